"""The layer benchmark: its plain forms compute what the layers compute, its fits are slopes, and a small run writes its tables."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from jobs.bench import layers as bench_layers
from jobs.bench.layers import BenchConfig
from jobs.plan.saved_bytes import saved_bytes
from models.grit_attention import ConditionalAttention, Pairs
from models.sl2_attention import Sl2Attention
from storage.errors import ConfigError

REPOSITORY = Path(__file__).resolve().parent.parent.parent


def test_plain_grit_equals_the_layer():
    torch.manual_seed(0)
    layer, norm = ConditionalAttention(8, 2, clamp=0.5).double(), nn.BatchNorm1d(8).double()
    batch = bench_layers.ring_graphs(3, 9)
    x, e = torch.randn(27, 8).double(), torch.randn(3, 9, 9, 8).double()
    out, pairs = layer(x, Pairs(e), batch.padding)
    plain, fresh = bench_layers.grit_plain(layer, x, e.flatten(0, 2), bench_layers.complete_index(batch), norm)
    torch.testing.assert_close(plain, out)
    torch.testing.assert_close(fresh, pairs.states().flatten(0, 2))


def test_plain_ppgt_equals_the_layer():
    torch.manual_seed(0)
    layer = Sl2Attention(8, 2, 8).double()
    batch = bench_layers.ring_graphs(2, 9)
    x, p = torch.randn(18, 8).double(), torch.randn(2, 9, 9, 8).double()
    plain = bench_layers.ppgt_plain(layer, x, p.flatten(0, 2), bench_layers.complete_index(batch))
    torch.testing.assert_close(plain, layer(x.view(2, 9, 8), p, None).flatten(0, 1))


def test_grit_keeps_at_most_half_of_the_plain_form():
    config = BenchConfig()
    ours, plain = (saved_bytes(bench_layers.build_step(layer, 2, 20, config)) for layer in ("grit", "grit, plain"))
    assert ours < plain / 2


def test_exponents_are_slopes():
    assert bench_layers.fit_exponent([1, 2, 4, 8], [3.0, 12.0, 48.0, 192.0]) == pytest.approx(2.0)


@pytest.mark.long
def test_a_small_run_writes_its_tables(tmp_path: Path):
    command = [
        sys.executable,
        "-m",
        "jobs.bench",
        "layers",
        "--scale",
        "0.02",
        "--rounds",
        "1",
        "--width",
        "16",
        "--heads",
        "2",
    ]
    subprocess.run([*command, "--out", str(tmp_path)], cwd=REPOSITORY, check=True, timeout=200, capture_output=True)
    found = json.loads((tmp_path / "results.json").read_text())
    assert {m["layer"] for m in found["measures"]} == set(bench_layers.LARGEST)
    assert "times as fast" in (tmp_path / "results.md").read_text()


def test_bad_options_are_refused():
    with pytest.raises(ConfigError, match="expected some of"):
        BenchConfig(layers=("gat",))
