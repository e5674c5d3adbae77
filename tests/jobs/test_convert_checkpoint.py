"""Tests that published checkpoints are converted, and that the converted models compute the same numbers."""

import argparse
import io
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from graphmill.core.errors import ConfigError, FormatError
from graphmill.jobs.convert_checkpoint import convert_state, load_converted, main, read_state, save_converted
from graphmill.models.tokengt.network import TokenGT
from graphmill.models.tokengt.options import TokenGTConfig
from tests.job_in_process import run_job
from tests.jobs.test_convert_grit import grit_state


def tokengt_state(width=8):
    """The state dict of a one-layer TokenGT, with the released names."""
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


def _crafted() -> dict[str, bytes]:
    """Files for which torch.load raises many kinds of errors."""
    whole, old = io.BytesIO(), io.BytesIO()
    state = {name: tensor for name, tensor in list(tokengt_state(2).items())[-6:]}
    torch.save(state, whole)
    torch.save(state, old, _use_new_zipfile_serialization=False)
    crafted = {
        "nothing": b"",
        "junk": bytes(range(256)) * 8,
        "zeros": bytes(1000),
        "text": b"not a checkpoint" * 50,
        "an empty archive": b"PK\x05\x06" + bytes(18),
        "names that are numbers": _saved({0: torch.ones(2), 1: torch.ones(2)}),
        "a number": _saved(3),
        "a value that stands for many": _saved({"a": torch.ones(1).expand(10**12)}),
        "a tensor without values": _saved({"a": torch.ones(3, device="meta")}),
        "a sparse tensor": _saved({"a": torch.eye(3).to_sparse()}),
        "lists in a state": _saved({"model": {"a": [torch.ones(2)]}}),
        "a pickle of a missing name": pickle.dumps({"a": 1}, 2).replace(b"a", b"\xff"),
        "a mark without an end": b"\x80\x02(((",
        "memory that is not there": b"\x80\x02j\xff\xff\xff\xff.",
        "a stack that is empty": b"\x80\x02R.",
    }
    for name, content in (("new", whole.getvalue()), ("old", old.getvalue())):
        crafted |= {f"{name}, cut at {share} %": content[: len(content) * share // 100] for share in range(1, 100, 7)}
        random = np.random.default_rng(7)
        for number in range(40):
            damaged = bytearray(content)
            for place in random.integers(len(content) // (1 if number % 2 else 8), size=8):
                damaged[place] = random.integers(256)
            crafted[f"{name}, damaged {number}"] = bytes(damaged)
    return crafted


def _saved(value: object) -> bytes:
    sink = io.BytesIO()
    torch.save(value, sink)
    return sink.getvalue()


def test_whatever_the_file_holds_it_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--source", "tokengt", "--num_heads", "2", "--out", "converted", "--checkpoint"]
    for name, content in _crafted().items():
        for ending in (".pt", ".safetensors"):
            Path("crafted" + ending).write_bytes(content)
            done = run_job(main, [*options, "crafted" + ending])
            assert done.returncode == 1, name
            assert done.stderr.startswith("error: crafted"), (name, done.stderr[:1000])
            assert done.stderr.count("\n") == 1, (name, done.stderr[:1000])
            assert len(done.stderr) < 1000, name
    os.mkfifo("pipe.pt")
    assert "expected a file, found a folder, a pipe" in run_job(main, [*options, "pipe.pt"]).stderr
    assert not Path("converted").exists()


@pytest.mark.parametrize("source", ["tokengt", "grit"])
def test_a_state_of_other_tensors_is_one_line(source, tmp_path, monkeypatch):
    """In each case one tensor of a complete state dict is missing, or has another rank or type."""
    monkeypatch.chdir(tmp_path)
    whole = tokengt_state() if source == "tokengt" else grit_state()
    others = (None, torch.zeros(0), torch.zeros(1, 1, 1, 1), torch.zeros(3, dtype=torch.bool))
    for number, name in enumerate(whole):
        for other in (torch.tensor(1.0), others[number % len(others)]):
            state = {key: tensor for key, tensor in (whole | {name: other}).items() if tensor is not None}
            torch.save(state, "some.pt")
            told = [
                "--source",
                source,
                "--checkpoint",
                "some.pt",
                "--out",
                f"converted-{number}-{other is None}-{other is not None and other.dim()}",
            ]
            told += ["--num_heads", "2"] if source == "tokengt" else []
            done = run_job(main, told)
            assert done.returncode in (0, 1), (name, other)
            assert done.stderr.count("\n") == done.returncode, (name, other, done.stderr[:1000])
            assert done.stderr.startswith("error: some.pt: " if done.returncode else ""), (name, other, done.stderr)


def test_a_converted_folder_that_was_changed_is_one_line(tmp_path):
    save_converted(TokenGT(TokenGTConfig(width=8, num_layers=1, num_heads=2)), "tokengt", tmp_path)
    for text in ("{", "[]", "{}", '{"model": "TokenGT"}', '{"model": "TokenGT", "config": [1]}', '{"model": ["x"]}'):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(FormatError, match=r"config\.json: expected"):
            load_converted(tmp_path)


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
