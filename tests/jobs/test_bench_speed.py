"""Tests the speed benchmark: plain GECO computes the same as GECO, sizes that do not fit are skipped with their estimate, and a tiny run writes all files."""

import json
import math
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch

from graphmill.core.errors import ConfigError
from graphmill.jobs.bench import speed as bench_speed
from graphmill.jobs.bench import speed_subjects
from graphmill.jobs.bench.speed import Point, SpeedConfig
from graphmill.jobs.bench.speed_subjects import RegularGraph, Shape
from graphmill.jobs.plan.tries import saved_bytes
from graphmill.models.geco.network import GECO, GECOLayer
from graphmill.models.grit.attention import Pairs

REPOSITORY = Path(__file__).resolve().parent.parent.parent
SHAPE = Shape(width=8, heads=2, layers=2, order=2)
TINY = {"nodes": (64, 134), "degree": 6, "width": 8, "heads": 2, "layers": 1, "rounds": 1, "budget_s": 120.0}


def test_the_graph_is_regular_symmetric_and_without_loops():
    graph = RegularGraph(30, 6, "cpu")
    dense = torch.zeros(30, 30, dtype=torch.int64)
    row_E = torch.arange(30).repeat_interleave(6)
    dense.index_put_((row_E, graph.indices.long()), torch.ones(180, dtype=torch.int64), accumulate=True)
    assert torch.equal(dense, dense.t())
    assert int(dense.max()) == 1
    assert int(dense.diagonal().sum()) == 0
    assert dense.sum(1).tolist() == [6] * 30
    with pytest.raises(ValueError, match="degree must be even"):
        RegularGraph(30, 5, "cpu")


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_plain_geco_equals_geco_with_its_gradients():
    torch.manual_seed(0)
    graph = RegularGraph(67, 6, "cpu")  # 67 is prime: GECO pads its transforms, plain GECO does not
    settings = speed_subjects.geco_config(SHAPE)
    layer, model = GECOLayer(settings), GECO(settings)
    x = torch.randn(67, 8, requires_grad=True)
    ours = layer(x, graph.adjacency, graph.order)
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


def test_plain_grit_and_ppgt_equal_the_layers():
    torch.manual_seed(0)
    shape = Shape(width=8, heads=2, layers=1, order=2, graphs=3)
    batch = RegularGraph(27, 4, "cpu").packed(3)
    x, pairs = torch.randn(27, 8), torch.randn(3, 9, 9, 8)
    for name in ("grit", "ppgt"):
        ours = speed_subjects.MIXERS[name](shape, batch)
        ours.attend.attention_dropout = ours.attend.dropout = 0.0
        plain_form = speed_subjects.PlainPpgt(ours.attend, batch)
        if name == "grit":
            plain_form = speed_subjects.PlainGrit(ours.attend, 8, batch)
        out, handed = ours(x, pairs)
        plain, fresh = plain_form(x, pairs.flatten(0, 2))
        torch.testing.assert_close(plain, out, rtol=1e-4, atol=1e-5)
        handed = handed.states() if isinstance(handed, Pairs) else handed
        torch.testing.assert_close(fresh, handed.flatten(0, 2), rtol=1e-4, atol=1e-5)


def test_grit_keeps_at_most_half_of_the_plain_form():
    shape, graph = Shape(width=64, heads=8, layers=1, order=2, graphs=2), RegularGraph(40, 8, "cpu")
    steps = (speed_subjects.build_subject(name, "attention", shape, graph) for name in ("grit", "grit, plain"))
    ours, plain = map(saved_bytes, steps)
    assert ours < plain / 2


def test_a_tiny_run_writes_table_json_and_plot(tmp_path: Path):
    said: list[str] = []
    bench_speed.bench(SpeedConfig(**TINY, clock="process", out=tmp_path), said.append)
    kept = json.loads((tmp_path / "results.json").read_text())
    keys = {(p["subject"], p["level"], p["nodes"]) for p in kept["points"]}
    assert keys == {(s, level, n) for s in SpeedConfig().subjects for level in ("layer", "model") for n in (64, 134)}
    assert kept["skipped"] == []
    assert all(p["forward_s"] > 0 and p["step_s"] > 0 and p["saved_bytes"] > 0 for p in kept["points"])
    text = (tmp_path / "results.md").read_text()
    assert text == said[-1] + "\n"
    assert "softmax / geco" in text
    assert "of its saved memory" in text
    root = ElementTree.fromstring((tmp_path / "ratio.svg").read_text())
    labels = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert {"layer, forward", "model, both", "N / log N", "paper, 169"} <= set(labels)


@pytest.mark.long
def test_attentions_of_a_batch_of_graphs_with_their_exponents(tmp_path: Path):
    subjects = tuple(speed_subjects.MIXERS)
    config = SpeedConfig(
        **TINY | {"nodes": (5, 9, 12)}, subjects=subjects, levels=("attention",), graphs=4, out=tmp_path
    )
    said: list[str] = []
    points, skips = bench_speed.bench(config, said.append)
    assert {(p.subject, p.nodes) for p in points} == {(s, n) for s in subjects for n in (5, 9, 12)}
    assert not skips
    assert "| attention | nodes | exponent of time, both | of saved memory |" in said[-1]
    assert [
        line.split(" | ")[:2] for line in said[-1].splitlines() if line.startswith(("| grit | 9", "| ppgt | 9"))
    ] == [
        ["| grit", "9"],
        ["| ppgt", "9"],
    ]


def test_what_does_not_fit_is_skipped_with_its_estimate(tmp_path: Path):
    settings = {**TINY, "subjects": ("softmax", "grit"), "levels": ("layer",)}
    said: list[str] = []
    bench_speed.bench(SpeedConfig(**settings, memory_gb=0.0004, out=tmp_path), said.append)
    skipped = json.loads((tmp_path / "results.json").read_text())["skipped"]
    assert ("grit", 64) in {(s["subject"], s["nodes"]) for s in skipped}
    assert any("GB there" in line and "grit, 64 nodes: skipped, needs about" in line for line in said)
    # Two rounds of 100 s each do not fit in a budget of 120 s.
    before = {"softmax": Point("softmax", "layer", 64, 1, 20.0, 80.0, 1, 1)}
    points, skips = bench_speed.measure_size(
        "layer", 128, SpeedConfig(**settings | {"subjects": ("softmax",)}), before, {"softmax": 120.0}, said.append
    )
    assert points == []
    assert skips[0].reason.startswith("two runs need about 800 s, 120 s")


def test_estimates_grow_with_the_largest_arrays():
    config = SpeedConfig(**TINY)
    before = Point("grit", "layer", 100, 1, 1.0, 2.0, 5, 1000)
    assert bench_speed.memory_needed("grit", "layer", 200, config, before) == int(1.15 * 4000)
    assert bench_speed.memory_needed("geco", "layer", 200, config, before) == int(1.15 * 2000)
    assert bench_speed.time_needed("softmax", 200, before) == pytest.approx(12.0)
    assert bench_speed.time_needed("geco", 200, before) == pytest.approx(3 * 2**1.1)


def test_ratios_and_their_slope():
    points = [
        Point(name, "layer", n, 1, time, time, 1, 1)
        for n in (2**15, 2**16, 2**17)
        for name, time in (("softmax", 1e-9 * n * n), ("geco", 1e-9 * n * math.log2(n)))
    ]
    assert bench_speed.fit_exponent([1, 2, 4, 8], [3.0, 12.0, 48.0, 192.0]) == pytest.approx(2.0)
    ratios = bench_speed.ratios(points, "layer")
    assert [n for n, _, _ in ratios] == [2**15, 2**16, 2**17]
    assert ratios[0][1] == pytest.approx(2**15 / 15)
    text = bench_speed.tables(SpeedConfig(levels=("layer",)), points, [], 1e10)
    assert "Slope of both against N / log N from 2^15 on: 1.00." in text


def test_floor_counts_each_array_once_per_pass():
    forward = speed_subjects.floor_bytes(10, 40, 8, 2, backward=False)
    assert forward == 10 * 8 * 4 * 11 + 4 * 50
    assert speed_subjects.floor_bytes(10, 40, 8, 2, backward=True) == forward + 10 * 8 * 4 * 21 + 4 * 50
    products = 4 * 2 * 16 * 16 + 3 * 2 * 2 * 64 + 4 * 2 * 8 * 4
    assert speed_subjects.layer_flops(1024, 0, 8, 1, 4) == 1024 * products + 48 * 2.5 * 1024 * 10
    assert speed_subjects.layer_flops(1024, 7, 8, 1, 4) - speed_subjects.layer_flops(1024, 0, 8, 1, 4) == 4 * 7 * 8


@pytest.mark.long
def test_the_plot_shows_every_ratio_on_logarithmic_axes_beside_the_papers(tmp_path):
    seconds = {"softmax": 6.0, "geco": 2.0}
    points = [Point(name, "layer", n, 1, s, 2 * s, 1, 1) for n in (64, 128) for name, s in seconds.items()]
    axes = bench_speed.plot(SpeedConfig(levels=("layer",)), points, "head", tmp_path / "ratio.svg")
    lines = {line.get_label(): line for line in axes.lines}
    assert list(lines) == ["layer, forward", "layer, both", "N / log N", "paper, 169"]
    assert lines["layer, both"].get_xydata().tolist() == [[64, 3], [128, 3]]
    assert lines["N / log N"].get_xydata()[-1].tolist() == pytest.approx([2**21, 169])
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    ElementTree.parse(tmp_path / "ratio.svg")


def test_bad_options_are_refused():
    for options, message in (
        ({"degree": 7}, "degree: expected an even number"),
        ({"heads": 3}, "expected a divisor of the width"),
        ({"graphs": 2}, "graphs: expected 1 for GECO"),
    ):
        with pytest.raises(ConfigError, match=message):
            SpeedConfig(**options)


@pytest.mark.long
def test_it_imports_without_ray_and_arrow():
    code = (
        "import sys\n"
        "for name in ('ray', 'pyarrow', 'numba', 'scipy'): sys.modules[name] = None\n"
        "import graphmill.jobs.bench.speed, graphmill.jobs.bench.speed_subjects"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True, timeout=600)
