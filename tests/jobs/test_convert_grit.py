"""Tests that the converter reads a GRIT checkpoint and writes a model that can be loaded."""

from dataclasses import replace

import torch

from graphmill.jobs.convert_checkpoint import convert_state, load_converted, save_converted
from graphmill.models.grit.network import GRIT
from graphmill.models.grit.options import GRITConfig
from graphmill.models.grit.published import _IN_LAYER, as_released
from graphmill.models.options.features import Features

TINY = GRITConfig(node=Features(categories=(5,)), width=8, num_layers=1, num_heads=2, rrwp_steps=3, head_layers=1)


def test_grit_is_built_again(tmp_path):
    config = as_released(GRITConfig(node=Features(categories=(5,)), width=8, num_layers=1, num_heads=2, rrwp_steps=3))
    model = GRIT(config)
    save_converted(model, "grit", tmp_path)
    again = load_converted(tmp_path)
    assert again.config == config
    torch.testing.assert_close(again.state_dict(), model.state_dict())


def grit_state():
    """The state dict of a one-layer GRIT, with the released names."""
    layer = {name: t for name, t in GRIT(as_released(TINY)).state_dict().items() if name.startswith("layers.0.")}
    theirs = {ours: name for name, ours in _IN_LAYER.items()}
    state = {"encoder.node_encoder.encoder.weight": torch.rand(5, 8)}
    state |= {f"rrwp_{part}_encoder.fc.weight": torch.rand(8, 3) for part in ("abs", "rel")}
    state |= {"post_mp.FC_layers.0.weight": torch.rand(1, 8), "post_mp.FC_layers.0.bias": torch.rand(1)}
    for name, tensor in layer.items():
        own = name.removeprefix("layers.0.")
        module = next(ours for ours in theirs if own == ours or own.startswith(ours + "."))
        state[f"layers.0.{theirs[module]}{own.removeprefix(module)}"] = tensor
    return state


def test_what_no_shape_tells_is_an_option():
    state = grit_state()
    released = convert_state("grit", state).config
    assert (released.pool, released.activation, released.transposed_rrwp) == ("sum", "relu", True)
    chosen = convert_state("grit", state, pool="mean", activation="gelu", transposed_rrwp=False).config
    assert chosen == replace(released, pool="mean", activation="gelu", transposed_rrwp=False)
    assert chosen.edge_query == "target"
