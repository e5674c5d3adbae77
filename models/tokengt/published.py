"""Translates the state dict of the released TokenGT to our names, so that released checkpoints load if the architecture matches.

The released code is a fairseq model (PCQM4Mv2). The tables in this file map its names to our names, from memory of the code. The names of its
graph encoder were compared with the public repository (jw9730/tokengt); the names of the tokenizer and the layers were not. In addition:

    graph_feature.{atom,edge}_encoder.weight [512 · columns, d]   row 2 + 512 f + c is category c of column f
    graph_feature.{lap,orf,rand}_encoder.weight [d, 2P]           at most one of them; order_encoder is absent when ablated
    layers.N.self_attn.{q,k,v}_proj.{weight,bias}                 layers.N.attention.qkv, stacked
    layers.N.….projection_matrix [R, d/H]                         layers.N.attention.favor.projection_RD; only after fine-tuning with Performer

Ignored: `…performer_proj_updater.…`, a second name for the layers. A state dict with projections becomes a model with Performer's attention
and the released code's shifts (`performer_as_released`).
A name that is neither in the table nor ignored, or a missing one, is an error: nothing is dropped silently.

A state dict does not contain the number of heads (32) and the order of the type rows (row 1 is u = v); the order is from memory too.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from graphmill.models.options.features import Features, atoms, bonds
from graphmill.models.tokengt.options import SLOT, SLOT_CATEGORIES, TokenGTConfig

_FEATURE = "encoder.graph_encoder.graph_feature."
_IDENTIFIERS = {"lap_encoder": "laplacian", "orf_encoder": "orf", "rand_encoder": "positive"}
_IGNORED = re.compile(r"performer_proj_updater\.|calls_since_last_redraw$|^encoder\.version$")
_PROJECTION = re.compile(r"^encoder\.graph_encoder\.layers\.(\d+)\..+\.projection_matrix$")
_LAYER = re.compile(r"^encoder\.graph_encoder\.layers\.(\d+)\.(.+)$")
_ENDS = {
    _FEATURE + "atom_encoder.weight": "embedding.node.embedding.weight",
    _FEATURE + "edge_encoder.weight": "embedding.edge.embedding.weight",
    _FEATURE + "graph_token.weight": "embedding.graph_token.weight",
    _FEATURE + "null_token.weight": "embedding.null_token.weight",
    _FEATURE + "order_encoder.weight": "embedding.token_type.weight",
    **{_FEATURE + name + ".weight": "embedding.identifier.weight" for name in _IDENTIFIERS},
    **{f"encoder.graph_encoder.emb_layer_norm.{p}": f"embedding_norm.{p}" for p in ("weight", "bias")},
    **{f"encoder.graph_encoder.final_layer_norm.{p}": f"dead_norm.{p}" for p in ("weight", "bias")},
    **{f"encoder.masked_lm_pooler.{p}": f"dead_pooler.{p}" for p in ("weight", "bias")},
    **{f"encoder.lm_head_transform_weight.{p}": f"head.transform.{p}" for p in ("weight", "bias")},
    **{f"encoder.layer_norm.{p}": f"head.norm.{p}" for p in ("weight", "bias")},
    "encoder.embed_out.weight": "head.out.weight",
    "encoder.lm_output_learned_bias": "head.bias",
}
_IN_LAYER = {
    "self_attn.out_proj": "attention.out",
    "self_attn_layer_norm": "attention_norm",
    "final_layer_norm": "ffn_norm",
    "feedforward.fc1": "fc1",
    "feedforward.fc2": "fc2",
    "fc1": "fc1",
    "fc2": "fc2",
}


def convert(state: Mapping[str, Tensor], *, num_heads: int = 32) -> tuple[TokenGTConfig, dict[str, Tensor]]:
    """Returns the config of a published state dict, inferred from its shapes, and its tensors under the names of `TokenGT`.

    Raises ValueError if a tensor is missing, is unknown, or has a shape that no TokenGT has.
    """
    state = {name: tensor for name, tensor in state.items() if not _IGNORED.search(name)}
    config = _config(state, num_heads)
    renamed: dict[str, Tensor] = {}
    stacked: dict[str, dict[str, Tensor]] = {}  # "layers.N.attention.qkv.weight" → q, k, v
    unknown = []
    for name, tensor in state.items():
        ours = _our_name(name)
        if ours is None:
            unknown.append(name)
        elif isinstance(ours, tuple):
            stacked.setdefault(ours[0], {})[ours[1]] = tensor
        else:
            renamed[ours] = tensor
    if unknown:
        raise ValueError(
            f"{len(unknown)} tensors have no place in TokenGT, such as {sorted(unknown)[0]!r}; "
            "see models/tokengt/published.py for the names that have one"
        )
    for name, parts in stacked.items():
        if len(parts) != 3:
            raise ValueError(
                f"{name} needs q_proj, k_proj and v_proj, got {sorted(parts)}; the state dict is incomplete"
            )
        renamed[name] = torch.cat([parts[p] for p in "qkv"])
    if config.attention == "performer":
        renamed |= {f"layers.{i}.attention.favor.num_calls": torch.tensor(0) for i in range(config.num_layers)}
    return config, renamed


def _our_name(name: str) -> str | tuple[str, str] | None:
    if name in _ENDS:
        return _ENDS[name]
    if projection := _PROJECTION.match(name):
        return f"layers.{projection[1]}.attention.favor.projection_RD"
    layer = _LAYER.match(name)
    if layer is None:
        return None
    index, rest = layer.groups()
    module, _, kind = rest.rpartition(".")
    if kind not in ("weight", "bias"):
        return None
    projection = re.fullmatch(r"self_attn\.([qkv])_proj", module)
    if projection:
        return f"layers.{index}.attention.qkv.{kind}", projection.group(1)
    return f"layers.{index}.{_IN_LAYER[module]}.{kind}" if module in _IN_LAYER else None


def _config(state: Mapping[str, Tensor], num_heads: int) -> TokenGTConfig:
    def shape(name: str) -> tuple[int, ...]:
        if name not in state:
            raise ValueError(
                f"a published TokenGT has {name!r}, this state dict of {len(state)} tensors has not; "
                "pass the dictionary under 'model' of the checkpoint"
            )
        return tuple(state[name].shape)

    width = shape(_FEATURE + "graph_token.weight")[1]
    layers = {int(match.group(1)) for match in map(_LAYER.match, state) if match}
    if layers != set(range(len(layers))) or not layers:
        raise ValueError(f"layers must be numbered 0, 1, …, got {sorted(layers)}; the state dict is incomplete")
    layer = "encoder.graph_encoder.layers.0."
    names = [f"{layer}{name}.weight" for name in ("feedforward.fc1", "fc1")]
    ffn_width = shape(next((name for name in names if name in state), names[0]))[0]
    identifiers = [name for name in _IDENTIFIERS if f"{_FEATURE}{name}.weight" in state]
    if len(identifiers) > 1:
        raise ValueError(f"at most one kind of node identifier is supported, got {identifiers}")
    options: dict = {"identifier": "none"}
    if identifiers:
        pair = shape(f"{_FEATURE}{identifiers[0]}.weight")[1]
        options = {"identifier": _IDENTIFIERS[identifiers[0]], "identifier_dim": pair // 2}
    projections = [tensor for name, tensor in state.items() if _PROJECTION.match(name)]
    if projections:
        options |= {
            "attention": "performer",
            "performer_as_released": True,
            "performer_features": projections[0].shape[0],
        }
    return TokenGTConfig(
        feature_table="slots",
        head="code",
        dead_modules=True,
        node=_features(shape(_FEATURE + "atom_encoder.weight")[0], atoms()),
        edge=_features(shape(_FEATURE + "edge_encoder.weight")[0], bonds()),
        out_dim=shape("encoder.embed_out.weight")[0],
        width=width,
        num_layers=len(layers),
        num_heads=num_heads,
        ffn_width=ffn_width,
        type_identifier=_FEATURE + "order_encoder.weight" in state,
        null_token=_FEATURE + "null_token.weight" in state,
        embedding_norm="encoder.graph_encoder.emb_layer_norm.weight" in state,
        type_by_index=True,
        resample_in_eval=options["identifier"] in ("orf", "positive"),
        **options,
    )


def _features(rows: int, molecular: Features) -> Features:
    """Returns OGB's columns if the table has as many columns, else that many columns with `SLOT_CATEGORIES` categories each."""
    columns, rest = divmod(rows, SLOT)
    if rest or not columns:
        raise ValueError(f"a feature table has {SLOT} rows per column, got {rows} rows")
    return molecular if columns == len(molecular.categories) else Features(categories=(SLOT_CATEGORIES,) * columns)
