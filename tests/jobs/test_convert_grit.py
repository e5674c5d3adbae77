"""A GRIT checkpoint through the converter and back."""

import torch

from jobs.convert_checkpoint import load_converted, save_converted
from models.features import Features
from models.grit import GRIT, GRITConfig, as_released


def test_grit_is_built_again(tmp_path):
    config = as_released(GRITConfig(node=Features(categories=(5,)), width=8, num_layers=1, num_heads=2, rrwp_steps=3))
    model = GRIT(config)
    save_converted(model, "grit", tmp_path)
    again = load_converted(tmp_path)
    assert again.config == config
    torch.testing.assert_close(again.state_dict(), model.state_dict())
