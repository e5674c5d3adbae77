"""Published checkpoints are converted, and their numbers come back."""

import argparse
import json

import pytest
import torch
from safetensors.torch import save_file

from jobs.convert_checkpoint import convert_state, load_converted, main, read_state, save_converted
from models.options.tokengt import TokenGTConfig
from models.tokengt import TokenGT
from storage.errors import ConfigError, FormatError
from tests.job_in_process import run_job


def tokengt_state(width=8):
    """A one-layer TokenGT under the released names."""
    feature, layer = "encoder.graph_encoder.graph_feature.", "encoder.graph_encoder.layers.0."
    state = {
        feature + "atom_encoder.weight": (4608, width),
        feature + "edge_encoder.weight": (1536, width),
        feature + "graph_token.weight": (1, width),
        feature + "null_token.weight": (1, width),
        feature + "order_encoder.weight": (2, width),
        feature + "lap_encoder.weight": (width, 6),
        "encoder.lm_output_learned_bias": (1,),
        "encoder.embed_out.weight": (1, width),
    }
    norms = ("encoder.graph_encoder.emb_layer_norm", "encoder.graph_encoder.final_layer_norm", "encoder.layer_norm")
    for name in (*norms, layer + "self_attn_layer_norm", layer + "final_layer_norm"):
        state |= {name + ".weight": (width,), name + ".bias": (width,)}
    parts = [f"self_attn.{p}_proj" for p in ("q", "k", "v", "out")] + ["feedforward.fc1", "feedforward.fc2"]
    for name in ("encoder.masked_lm_pooler", "encoder.lm_head_transform_weight", *(layer + p for p in parts)):
        state |= {name + ".weight": (width, width), name + ".bias": (width,)}
    return {name: torch.randn(shape) for name, shape in state.items()}


def test_command_converts_and_the_result_loads(tmp_path):
    torch.save({"model": tokengt_state(), "epoch": 3}, tmp_path / "published.pt")
    options = ["--source", "tokengt", "--num_heads", "2", "--checkpoint", "published.pt", "--out", "converted"]
    done = run_job(main, options, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "tensors" in done.stdout
    assert json.loads((tmp_path / "converted/config.json").read_text())["model"] == "TokenGT"
    model = load_converted(tmp_path / "converted")
    assert isinstance(model, TokenGT)
    assert model.config.num_heads == 2
    assert model.config.identifier_dim == 3
    want = convert_state("tokengt", read_state(tmp_path / "published.pt"), num_heads=2)
    for name, tensor in want.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)


def test_safetensors_and_module_prefix(tmp_path):
    state = tokengt_state()
    save_file(state, tmp_path / "a.safetensors")
    torch.save({"module." + name: tensor for name, tensor in state.items()}, tmp_path / "b.pt")
    for name in ("a.safetensors", "b.pt"):
        assert read_state(tmp_path / name).keys() == state.keys()


def test_other_objects_are_refused_and_damage_is_named(tmp_path):
    torch.save({"model": tokengt_state(), "args": argparse.Namespace(lr=1)}, tmp_path / "objects.pt")
    with pytest.raises(FormatError, match="expected tensors only"):
        read_state(tmp_path / "objects.pt")
    (tmp_path / "short.safetensors").write_bytes(b"abc")
    (tmp_path / "text.pt").write_text("not a checkpoint")
    for name in ("short.safetensors", "text.pt", "absent.pt"):
        with pytest.raises(FormatError, match=name):
            read_state(tmp_path / name)
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(FormatError, match="a dictionary of tensors"):
        read_state(tmp_path / "list.pt")


def test_other_shapes_are_named(tmp_path):
    state = tokengt_state()
    with pytest.raises(ValueError, match=r"expected head.norm.bias of shape \(8,\), found \(9,\)"):
        convert_state("tokengt", state | {"encoder.layer_norm.bias": torch.zeros(9)}, num_heads=2)
    save_converted(TokenGT(TokenGTConfig(width=8, num_layers=1, num_heads=2)), "tokengt", tmp_path / "c")
    config = json.loads((tmp_path / "c/config.json").read_text())
    config["config"]["width"] = 16
    (tmp_path / "c/config.json").write_text(json.dumps(config))
    with pytest.raises(FormatError, match="of shape"):
        load_converted(tmp_path / "c")


def test_options_of_another_model_are_refused():
    with pytest.raises(ConfigError, match="has the option --num_heads only, got pool; leave it out"):
        convert_state("tokengt", tokengt_state(), num_heads=2, pool="mean", task=None)
