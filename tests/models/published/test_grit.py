"""Converts a state dict with the names and shapes of the released GRIT. Our model with the converted weights computes the same numbers."""

import pytest
import torch

from graphmill.models.grit.network import GRIT
from graphmill.models.grit.published import as_released, convert
from graphmill.models.options.features import Features
from graphmill.models.primitives.graphs import Graphs
from tests.recipe_options import options_of


def released_state(width: int, heads: int, layers: int, steps: int, head: str = "san") -> dict[str, torch.Tensor]:
    """A state dict of random tensors with the released names."""
    torch.manual_seed(0)
    c = width // heads
    shapes: dict[str, tuple[int, ...]] = {
        "encoder.node_encoder.encoder.weight": (21, width),
        "encoder.edge_encoder.encoder.weight": (4, width),
        "rrwp_abs_encoder.fc.weight": (width, steps),
        "rrwp_rel_encoder.padding": (1, width),
        "rrwp_rel_encoder.fc.weight": (width, steps),
    }
    for n in range(layers):
        own = {
            "attention.Aw": (c, heads, 1),
            "attention.VeRow": (c, heads, c),
            "attention.Q.weight": (width, width),
            "attention.Q.bias": (width,),
            "attention.K.weight": (width, width),
            "attention.E.weight": (2 * width, width),
            "attention.E.bias": (2 * width,),
            "attention.V.weight": (width, width),
            "deg_coef": (1, width, 2),
            "FFN_h_layer1.weight": (2 * width, width),
            "FFN_h_layer1.bias": (2 * width,),
            "FFN_h_layer2.weight": (width, 2 * width),
            "FFN_h_layer2.bias": (width,),
        }
        for linear in ("O_h", "O_e"):
            own |= {f"{linear}.weight": (width, width), f"{linear}.bias": (width,)}
        for norm in ("batch_norm1_h", "batch_norm1_e", "batch_norm2_h"):
            own |= {f"{norm}.{part}": (width,) for part in ("weight", "bias", "running_mean", "running_var")}
            own[f"{norm}.num_batches_tracked"] = ()
        shapes |= {f"layers.{n}.{name}": shape for name, shape in own.items()}
    if head == "san":
        for i in range(2):
            shapes[f"post_mp.FC_layers.{i}.weight"] = (width >> (i + 1), width >> i)
            shapes[f"post_mp.FC_layers.{i}.bias"] = (width >> (i + 1),)
        shapes |= {"post_mp.FC_layers.2.weight": (1, width >> 2), "post_mp.FC_layers.2.bias": (1,)}
    else:
        shapes |= {
            "post_mp.layer_post_mp.model.0.Layer_0.layer.model.weight": (width, width),
            "post_mp.layer_post_mp.model.0.Layer_0.layer.model.bias": (width,),
            "post_mp.layer_post_mp.model.1.model.weight": (10, width),
            "post_mp.layer_post_mp.model.1.model.bias": (10,),
        }
    return {"model." + name: torch.rand(shape) if shape else torch.tensor(3) for name, shape in shapes.items()}


def test_zinc_checkpoint_loads_whole():
    state = released_state(64, 8, 10, 21)
    config, weights = convert(state)
    zinc = options_of("grit/zinc", node=Features(categories=(21,)), edge=Features(categories=(4,)))
    assert config == as_released(zinc)
    model = GRIT(config)
    model.load_state_dict(weights)
    assert sum(p.numel() for p in model.parameters()) == 473_473
    torch.testing.assert_close(model.layers[3].attention.edge.weight, state["model.layers.3.attention.E.weight"])
    torch.testing.assert_close(model.head.layers[5].weight, state["model.post_mp.FC_layers.2.weight"])


def test_converted_model_runs():
    config, weights = convert(released_state(16, 4, 2, 5), pool="mean")
    model = GRIT(config).eval()
    model.load_state_dict(weights)
    graphs = Graphs(
        node_ptr=torch.tensor([0, 3]),
        edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]),
        x=torch.tensor([[3], [20], [0]]),
        edge_attr=torch.tensor([[0], [0], [3], [3]]),
    )
    assert torch.isfinite(model(graphs)).all()


def test_columns_of_atoms_and_a_graphgym_head():
    state = released_state(16, 4, 1, 5, head="default")
    del state["model.encoder.node_encoder.encoder.weight"]
    state |= {
        f"model.encoder.node_encoder.atom_embedding_list.{i}.weight": torch.rand(n, 16) for i, n in enumerate((7, 5))
    }
    config, weights = convert(state, task="node")
    assert config.node == Features(categories=(7, 5))
    assert (config.head, config.head_layers, config.out_dim) == ("graphgym", 2, 10)
    GRIT(config).load_state_dict(weights)


def test_numeric_features():
    state = released_state(16, 4, 1, 5)
    state["model.encoder.node_encoder.encoder.weight"] = torch.rand(16, 3)
    state["model.encoder.node_encoder.encoder.bias"] = torch.rand(16)
    config, weights = convert(state)
    assert config.node == Features(dim=3)
    GRIT(config).load_state_dict(weights)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.layers.0.alpha1_h": torch.zeros(1, 1)}, "found 'layers.0.alpha1_h'"),
        ({"model.rrwp_abs_encoder.fc.weight": None}, "incomplete"),
        ({"model.layers.0.": None}, "incomplete"),
        ({"model.post_mp": None}, "expected one head"),
    ],
)
def test_what_does_not_match_is_refused(change, message):
    state = released_state(16, 4, 2, 5)
    for name, tensor in change.items():
        if tensor is None:
            state = {key: value for key, value in state.items() if not key.startswith(name)}
        else:
            state[name] = tensor
    with pytest.raises(ValueError, match=message):
        convert(state)
