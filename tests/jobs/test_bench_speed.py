"""The speed benchmark: plain GECO computes what GECO computes, what does not fit is skipped with its estimate, a tiny run writes all files."""

import json
import math
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch

from jobs.bench import speed as bench_speed
from jobs.bench import speed_subjects
from jobs.bench.speed import Point, SpeedConfig
from jobs.bench.speed_subjects import Shape, SyntheticGraph
from models.geco import GECO, GECOLayer
from storage.errors import ConfigError

REPOSITORY = Path(__file__).resolve().parent.parent.parent
SHAPE = Shape(width=8, heads=2, layers=2, order=2)
TINY = {"nodes": (64, 134), "degree": 6, "width": 8, "heads": 2, "layers": 1, "rounds": 1, "budget_s": 120.0}


def test_the_graph_is_regular_symmetric_and_without_loops():
    graph = SyntheticGraph(30, 6, "cpu")
    dense = torch.zeros(30, 30, dtype=torch.int64)
    row_E = torch.arange(30).repeat_interleave(6)
    dense.index_put_((row_E, graph.indices.long()), torch.ones(180, dtype=torch.int64), accumulate=True)
    assert torch.equal(dense, dense.t())
    assert int(dense.max()) == 1
    assert int(dense.diagonal().sum()) == 0
    assert dense.sum(1).tolist() == [6] * 30
    with pytest.raises(ValueError, match="degree must be even"):
        SyntheticGraph(30, 5, "cpu")


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_plain_geco_equals_geco_with_its_gradients():
    torch.manual_seed(0)
    graph = SyntheticGraph(67, 6, "cpu")  # a prime: our transforms are padded, the plain ones are not
    settings = speed_subjects.geco_config(SHAPE)
    layer, model = GECOLayer(settings), GECO(settings)
    x = torch.randn(67, 8, requires_grad=True)
    ours = layer(x, graph.adjacency, graph.order_N, graph.inverse_N)
    plain = speed_subjects.PlainGECOLayer(layer, graph)(x)
    torch.testing.assert_close(plain, ours, rtol=1e-4, atol=1e-4)
    probe, leaves = torch.randn_like(ours), [x, *layer.parameters()]
    wanted = torch.autograd.grad(plain, leaves, probe)
    for got, want in zip(torch.autograd.grad(ours, leaves, probe), wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-3 * float(want.abs().max()) + 1e-6)
    features = torch.randn(67, speed_subjects.IN_DIM)
    torch.testing.assert_close(
        speed_subjects.PlainGECO(model, graph)(features), model(features, graph.adjacency), rtol=1e-3, atol=1e-3
    )


def test_a_tiny_run_writes_table_json_and_plot(tmp_path: Path):
    said: list[str] = []
    text = bench_speed.bench(SpeedConfig(**TINY, clock="process", out=tmp_path), said.append)
    found = json.loads((tmp_path / "results.json").read_text())
    keys = {(p["subject"], p["level"], p["nodes"]) for p in found["points"]}
    assert keys == {(s, level, n) for s in bench_speed.NAMES for level in bench_speed.LEVELS for n in (64, 134)}
    assert found["skipped"] == []
    assert all(p["forward_s"] > 0 and p["step_s"] > 0 and p["saved_bytes"] > 0 for p in found["points"])
    assert "softmax / geco" in text
    assert "of its saved memory" in text
    assert (tmp_path / "results.md").read_text().endswith(text + "\n")
    root = ElementTree.fromstring((tmp_path / "ratio.svg").read_text())
    labels = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert {"layer, forward", "model, both", "N / log N", "paper, 169"} <= set(labels)


def test_what_does_not_fit_is_skipped_with_its_estimate(tmp_path: Path):
    settings = {**TINY, "subjects": ("softmax", "grit"), "levels": ("layer",)}
    said: list[str] = []
    bench_speed.bench(SpeedConfig(**settings, memory_gb=0.0004, out=tmp_path), said.append)
    skipped = json.loads((tmp_path / "results.json").read_text())["skipped"]
    assert ("grit", 64) in {(s["subject"], s["nodes"]) for s in skipped}
    assert any("GB there" in line and "grit, 64 nodes: skipped, needs about" in line for line in said)
    # Two rounds of 100 s do not fit 120 s.
    before = {"softmax": Point("softmax", "layer", 64, 384, 1, 20.0, 80.0, 1, 1)}
    points, skips = bench_speed.measure_size(
        "layer", 128, SpeedConfig(**settings | {"subjects": ("softmax",)}), before, {"softmax": 120.0}, said.append
    )
    assert points == []
    assert skips[0].reason.startswith("two runs need about 800 s, 120 s")


def test_estimates_grow_with_the_largest_arrays():
    config = SpeedConfig(**TINY)
    before = Point("grit", "layer", 100, 600, 1, 1.0, 2.0, 5, 1000)
    assert bench_speed.memory_needed("grit", "layer", 200, config, before) == int(1.15 * 4000)
    assert bench_speed.memory_needed("geco", "layer", 200, config, before) == int(1.15 * 2000)
    assert bench_speed.time_needed("softmax", 200, before) == pytest.approx(12.0)
    assert bench_speed.time_needed("geco", 200, before) == pytest.approx(3 * 2**1.1)


def test_ratios_and_their_slope():
    points = [
        Point(name, "layer", n, 20 * n, 1, time, time, 1, 1)
        for n in (2**15, 2**16, 2**17)
        for name, time in (("softmax", 1e-9 * n * n), ("geco", 1e-9 * n * math.log2(n)))
    ]
    found = bench_speed.ratios(points, "layer", "softmax", "geco")
    assert [n for n, _, _ in found] == [2**15, 2**16, 2**17]
    assert found[0][1] == pytest.approx(2**15 / 15)
    text = bench_speed.tables(SpeedConfig(levels=("layer",)), points, [], 1e10)
    assert "Slope of both against N / log N from 2^15 on: 1.00." in text


def test_floor_counts_each_array_once_per_pass():
    forward = speed_subjects.floor_bytes(10, 40, 8, 2, backward=False)
    assert forward == 10 * 8 * 4 * 11 + 4 * 50
    assert speed_subjects.floor_bytes(10, 40, 8, 2, backward=True) == forward + 10 * 8 * 4 * 21 + 4 * 50
    flops = speed_subjects.layer_flops(1024, 0, 8, 1, 4, backward=False)
    assert flops["transforms"] == 20 * 2.5 * 1024 * 10
    assert flops["products"] == 1024 * (2 * 16 * 16 + 2 * 2 * 64 + 2 * 8 * 4)


def test_the_plot_shows_every_ratio_on_logarithmic_axes_beside_the_papers(tmp_path):
    seconds = {"softmax": 6.0, "geco": 2.0}
    points = [Point(name, "layer", n, 6 * n, 1, s, 2 * s, 1, 1) for n in (64, 128) for name, s in seconds.items()]
    axes = bench_speed.plot(SpeedConfig(levels=("layer",)), points, "head", tmp_path / "ratio.svg")
    lines = {line.get_label(): line for line in axes.lines}
    assert list(lines) == ["layer, forward", "layer, both", "N / log N", "paper, 169"]
    assert lines["layer, both"].get_xydata().tolist() == [[64, 3], [128, 3]]
    assert lines["N / log N"].get_xydata()[-1].tolist() == pytest.approx([2**21, 169])
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    ElementTree.parse(tmp_path / "ratio.svg")


def test_bad_options_are_refused():
    for options, message in (
        ({"subjects": ("gat",)}, "subjects: expected some of"),
        ({"degree": 7}, "degree: expected an even number"),
        ({"heads": 3}, "heads that divide the width"),
        ({"clock": "sun"}, "wall or process"),
    ):
        with pytest.raises(ConfigError, match=message):
            SpeedConfig(**options)
    assert bench_speed.parse(["--nodes", "64", "128", "--bf16", "--log2-to", "14"]) == SpeedConfig(
        nodes=(64, 128), bf16=True, log2_to=14
    )


@pytest.mark.long
def test_it_imports_without_ray_arrow_and_tyro():
    code = (
        "import sys\n"
        "for name in ('ray', 'pyarrow', 'tyro', 'numba', 'scipy'): sys.modules[name] = None\n"
        "import jobs.bench.speed, jobs.bench.speed_subjects"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True, timeout=200)
