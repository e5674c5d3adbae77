"""Translates the state dict of the released GRIT to our names, so that released checkpoints load if the architecture matches.

The released code is a GraphGym model. The tables in this file have the names of its layers, stem and `san_graph` head, read from its source.
The names of encoders are certain too. The names of the `default` and `inductive_node` heads are from memory of GraphGym. Released name → our name:

    encoder.node_encoder.encoder.weight [types, d]       node_encoder.embedding.weight (TypeDictNode)
    encoder.node_encoder.encoder.{weight,bias} [d, F]    node_encoder.linear (LinearNode)
    encoder.node_encoder.atom_embedding_list.F.weight    node_encoder.embedding.weight, columns stacked (Atom)
    encoder.edge_encoder.…                               edge_encoder.… likewise (TypeDictEdge, LinearEdge, DummyEdge, Bond)
    post_mp.FC_layers.I                                  head.layers.2I, the last one behind a dropout
    post_mp.layer_post_mp.model.…                        head.…, the linear maps in their order; not certain. Hidden layers are scaled
                                                         to length 1 (head "graphgym")

Ignored: rrwp_rel_encoder.padding, a constant. Any other name that is not in the table is an error: nothing is dropped silently.

All options follow from the shapes (the attention heads from Aw's shape), except the kinds of pooling, task and activation (GELU on PCQM4Mv2):
`convert` takes these as arguments.
The resulting config has the code's five departures from the paper (`as_released`). In a checkpoint trained
after commit ee10422 of the released code (2024-12-08) walks start at the query: pass `transposed_rrwp=False`.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from graphmill.models.grit.options import GRITConfig
from graphmill.models.options.features import Features

_IN_LAYER = {
    "attention.Q": "attention.query",
    "attention.K": "attention.key",
    "attention.V": "attention.value",
    "attention.E": "attention.edge",
    "attention.Aw": "attention.score",
    "attention.VeRow": "attention.edge_value",
    "O_h": "out",
    "O_e": "attention.edge_out",
    "deg_coef": "scaler_1D2",
    "batch_norm1_h": "norm_1",
    "batch_norm2_h": "norm_2",
    "batch_norm1_e": "attention.edge_norm",
    "FFN_h_layer1": "ffn.0",
    "FFN_h_layer2": "ffn.3",
}
_LAYER = re.compile(r"^layers\.(\d+)\.(.+?)(\.(?:weight|bias|running_mean|running_var|num_batches_tracked))?$")
_COLUMN = re.compile(r"^encoder\.(node|edge)_encoder\.(?:atom|bond)_embedding_list\.(\d+)\.weight$")
_ENCODER = re.compile(r"^encoder\.(node|edge)_encoder\.encoder\.(weight|bias)$")
_HEAD = re.compile(r"^post_mp\.(FC_layers\.|layer_post_mp\.).*?(weight|bias)$")
_STEM = {"rrwp_abs_encoder.fc.weight": "absolute.weight", "rrwp_rel_encoder.fc.weight": "relative.weight"}
_IGNORED = ("rrwp_rel_encoder.padding",)


def as_released(config: GRITConfig) -> GRITConfig:
    """Returns the config with the published code's five departures from the paper, which published checkpoints require."""
    head = "graphgym" if config.head == "mlp" else config.head
    return replace(
        config, score_clamp=5.0, degree_scaler="before", transposed_rrwp=True, edge_query="target", head=head
    )


def convert(state: Mapping[str, Tensor], **options: Any) -> tuple[GRITConfig, dict[str, Tensor]]:
    """Returns (config, weights under our names) of a released state dict; `options` are fields of the config, such as task and pool.

    Raises ValueError on a name that is not in the table, and if a part is missing.
    """
    weights: dict[str, Tensor] = {}
    columns: dict[str, dict[int, Tensor]] = {"node": {}, "edge": {}}
    head: dict[tuple[str, str], list[Tensor]] = {}
    for name, tensor in state.items():
        name = name.removeprefix("model.")
        if name in _IGNORED:
            continue
        if name in _STEM:
            weights[_STEM[name]] = tensor
        elif column := _COLUMN.match(name):
            columns[column[1]][int(column[2])] = tensor
        elif encoder := _ENCODER.match(name):
            weights[f"{encoder[1]}_encoder.{encoder[2]}"] = tensor
        elif part := _HEAD.match(name):
            head.setdefault((part[1], part[2]), []).append(tensor)
        elif (layer := _LAYER.match(name)) and layer[2] in _IN_LAYER:
            weights[f"layers.{layer[1]}.{_IN_LAYER[layer[2]]}{layer[3] or ''}"] = tensor
        else:
            raise ValueError(f"expected a name of the released GRIT, found {name!r}; see models/grit/published.py")
    features = {part: _name_encoder(part, columns[part], weights) for part in ("node", "edge")}
    sizes = _name_head(head, weights)
    return _config(weights, features, sizes, options), weights


def _name_encoder(part: str, columns: dict[int, Tensor], weights: dict[str, Tensor]) -> Features:
    """Renames the encoder's tensors to our names; returns the features that the encoder reads."""
    weight = weights.pop(f"{part}_encoder.weight", None)
    bias = weights.pop(f"{part}_encoder.bias", None)
    if columns:
        tables = [columns[k] for k in sorted(columns)]
        weights[f"{part}_encoder.embedding.weight"] = torch.cat(tables)
        return Features(categories=tuple(len(rows) for rows in tables))
    if weight is None:
        return Features()
    if bias is None:
        weights[f"{part}_encoder.embedding.weight"] = weight
        return Features(categories=(len(weight),))
    weights[f"{part}_encoder.linear.weight"], weights[f"{part}_encoder.linear.bias"] = weight, bias
    return Features(dim=weight.shape[1])


def _name_head(head: dict[tuple[str, str], list[Tensor]], weights: dict[str, Tensor]) -> dict[str, Any]:
    """Renames the head's linear maps, in the order of the state dict; returns the config's fields that follow from the maps."""
    if len(head) != 2:
        raise ValueError(
            "expected one head, of FC_layers or layer_post_mp, with weights and biases, found none or another"
        )
    (kind, _), matrices = next(item for item in head.items() if item[0][1] == "weight")
    biases = head[kind, "bias"]
    halving = kind.startswith("FC_layers")
    for i, (matrix, bias) in enumerate(zip(matrices, biases, strict=True)):
        last = i + 1 == len(matrices)
        place = f"layers.{2 * i + (1 if last else 0)}" if halving else f"{2 * i}"
        weights[f"head.{place}.weight"], weights[f"head.{place}.bias"] = matrix, bias
    return {
        "head": "halving" if halving else "graphgym",
        "head_layers": len(matrices),
        "out_dim": matrices[-1].shape[0],
    }


def _config(
    weights: Mapping[str, Tensor], features: dict[str, Features], sizes: dict[str, Any], options: dict[str, Any]
) -> GRITConfig:
    numbers = {int(name.split(".")[1]) for name in weights if name.startswith("layers.")}
    if numbers != set(range(len(numbers))) or not numbers or "absolute.weight" not in weights:
        raise ValueError(
            "expected layers from 0 on and an RRWP encoder, found a part of them; the checkpoint is incomplete"
        )
    width, steps = weights["absolute.weight"].shape
    heads = weights["layers.0.attention.score"].shape[1]
    scaler = "before" if "layers.0.scaler_1D2" in weights else "none"
    config = GRITConfig(
        node=features["node"],
        edge=features["edge"],
        width=width,
        num_layers=len(numbers),
        num_heads=heads,
        rrwp_steps=steps,
        **sizes,
    )
    return replace(as_released(config), **{"degree_scaler": scaler, **options})
