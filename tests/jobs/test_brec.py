"""Tests BREC: the graph6 reader, the statistic, and resuming. A model distinguishes a hexagon from two triangles, but not a graph from itself."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from graphmill.core.errors import ConfigError, FormatError
from graphmill.jobs.papers import brec
from graphmill.jobs.papers.brec import BrecConfig, Result
from graphmill.jobs.papers.color_refinement import tells_apart
from tests.recipe_options import options_of


def ring(*sizes: int) -> np.ndarray:
    adjacency = np.zeros((sum(sizes), sum(sizes)), dtype=bool)
    start = 0
    for n in sizes:
        for i in range(n):
            a, b = start + i, start + (i + 1) % n
            adjacency[a, b] = adjacency[b, a] = True
        start += n
    return adjacency


def small(tmp_path: Path, **options) -> BrecConfig:
    return BrecConfig(data=tmp_path, out=tmp_path / "out", num_layers=2, width=16, epochs=3, **options)


def write_graph6(adjacency: np.ndarray) -> str:
    n = len(adjacency)
    bits = adjacency[np.tril_indices(n, -1)].astype(int)
    bits = np.concatenate([bits, np.zeros(-len(bits) % 6, dtype=int)]).reshape(-1, 6)
    size = [n] if n < 63 else [63, n >> 12, (n >> 6) & 63, n & 63]
    return "".join(chr(63 + code) for code in [*size, *(bits @ [32, 16, 8, 4, 2, 1])])


def test_ppgts_rate():
    rates = [brec.ppgt_rate(epoch, 200, 1e-3) for epoch in (0, 5, 10, 105, 199)]
    assert rates == pytest.approx([1e-7, 5.0005e-4, 1e-3, (1e-3 + 7e-5) / 2, 7.006e-5], rel=1e-3)


def test_graph6_of_the_format_description():
    # Brendan McKay's example: five nodes, edges 0-2, 0-4, 1-3, 3-4.
    adjacency = brec.read_graph6("DQc")
    assert sorted(zip(*np.triu(adjacency).nonzero())) == [(0, 2), (0, 4), (1, 3), (3, 4)]


@pytest.mark.parametrize("n", [0, 1, 2, 62, 63, 200])
def test_graph6_returns_what_was_written(n):
    upper = np.triu(np.random.default_rng(n).random((n, n)) < 0.3, 1)
    adjacency = upper | upper.T
    np.testing.assert_array_equal(brec.read_graph6(write_graph6(adjacency)), adjacency)


def test_damaged_graph6_is_refused():
    for text in ("", "DQ", "DQcc", "~?"):
        with pytest.raises(FormatError, match="graph6"):
            brec.read_graph6(text)


@pytest.mark.parametrize("category", brec.CATEGORIES)
def test_published_pairs_have_equal_sizes_and_degrees(real_data, category):
    for first, second in brec.read_pairs(real_data / "brec", category)[:10]:
        np.testing.assert_array_equal(np.sort(first.sum(0)), np.sort(second.sum(0)))
        assert not np.array_equal(first, second)


@pytest.mark.parametrize(
    ("part", "apart"),
    [
        ("basic", 60),
        ("regular", 50),
        ("extension", 100),
        ("str:0-9", 0),
        pytest.param("4vtx:0-4", 0, marks=pytest.mark.long),
        ("dr:0-4", 0),
        pytest.param("cfi:0-24", 11, marks=pytest.mark.long),
    ],
)
def test_bound_of_walks_on_the_published_pairs(real_data, capsys, part, apart):
    brec.print_bound(BrecConfig(data=real_data / "brec", model="ppgt", pairs=(part,)))
    assert capsys.readouterr().out.startswith(f"{part.split(':')[0]}: {apart} of ")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("model", ["grit", "ppgt"])
def test_bound_of_all_cfi_pairs(real_data, capsys, model):
    brec.print_bound(BrecConfig(data=real_data / "brec", model=model, pairs=("cfi",)))
    assert capsys.readouterr().out.startswith("cfi: 26 of 100: ")


def test_bound_reads_as_far_as_the_recipes():
    grit, ppgt = options_of("grit/brec"), options_of("ppgt/brec")
    assert {"grit": grit.rrwp_steps - 1, "ppgt": ppgt.walk_steps} == brec.WALK_STEPS


def test_bound_needs_a_model_of_walks(tmp_path):
    with pytest.raises(ConfigError, match="bound: expected one of grit, ppgt"):
        BrecConfig(data=tmp_path, model="primphormer", bound=True)


def test_refinement_of_known_graphs():
    rook, shrikhande = (np.zeros((16, 16), dtype=bool) for _ in range(2))
    for a in range(16):
        for b in range(16):
            x, y = (a // 4 - b // 4) % 4, (a % 4 - b % 4) % 4
            rook[a, b] = a != b and (x == 0 or y == 0)
            shrikhande[a, b] = (x, y) in {(0, 1), (0, 3), (1, 0), (3, 0), (1, 1), (3, 3)}
    assert not tells_apart(rook, shrikhande, 32)  # both graphs are strongly regular, with equal parameters
    assert tells_apart(ring(6), ring(3, 3), 2)
    assert not tells_apart(ring(7), ring(3, 4), 0)  # Without walks a model sees only degrees and edges, as 1-WL does.
    order = np.random.default_rng(0).permutation(12)
    assert not tells_apart(ring(5, 7), ring(5, 7)[order][:, order], 32)
    assert tells_apart(ring(5), ring(6), 3)
    alone = np.zeros((3, 3), dtype=bool)
    assert not tells_apart(alone, alone, 4)


def test_statistic_is_the_quadratic_form():
    rows = torch.randn(32, 4, dtype=torch.float64) + 1
    mean, inverse = rows.mean(0).numpy(), np.linalg.inv(np.cov(rows.numpy().T))
    assert brec.hotelling_t2(rows) == pytest.approx(mean @ inverse @ mean)


@pytest.mark.long
def test_tells_a_hexagon_from_two_triangles_but_no_graph_from_itself(tmp_path):
    config = small(tmp_path)
    apart = brec.measure_pair(config, "basic", ring(6), ring(3, 3), 0)
    assert apart.told_apart
    assert apart.reliable
    same = brec.measure_pair(config, "basic", ring(6), ring(6), 0)
    assert not same.told_apart


def test_a_stopped_run_continues(tmp_path, monkeypatch):
    config = small(tmp_path, pairs=("basic:0-2",))
    calls = []

    def measure(config, name, first, second, number):
        calls.append(number)
        return Result(f"{name}:{number}", number > 0, True, 100.0, 1.0, 0.0, 1, 0.5, 6)

    monkeypatch.setattr(brec, "measure_pair", measure)
    monkeypatch.setattr(brec, "read_pairs", lambda folder, category: [(ring(6), ring(3, 3))] * 3)
    runs = brec.run_pairs(config)
    next(runs)
    runs.close()
    path = config.out / "grit.jsonl"
    path.write_text(path.read_text() + '{"settings": {"mod')  # an incomplete line, as after a kill
    results = list(brec.run_pairs(config))
    assert calls == [0, 1, 2]
    assert [r.told_apart for r in results] == [False, True, True]
    assert [r.told_apart for r in brec.run_pairs(config)] == [False, True, True]
    assert calls == [0, 1, 2]
    assert "| basic | 2 | 3 | 0 | 0.5 |" in brec.describe(results)
    other = small(tmp_path, pairs=("basic:0",), lr=1e-2)
    list(brec.run_pairs(other))
    assert calls == [0, 1, 2, 0]
    assert json.loads(path.read_text().splitlines()[-1])["settings"]["lr"] == 1e-2


@pytest.mark.parametrize("part", ["simple", "basic:60", "basic:5-3", "basic:a", "basic:-3", "cfi:1-"])
def test_bad_pairs_are_refused(part):
    with pytest.raises(ConfigError, match="set --pairs"):
        brec.parse_pairs(part)


def test_missing_data_is_refused(tmp_path):
    with pytest.raises(FormatError, match="set --data"):
        brec.read_pairs(tmp_path, "basic")
    np.save(tmp_path / "basic.npy", np.zeros(3))
    with pytest.raises(FormatError, match="expected 120 graph6 lines"):
        brec.read_pairs(tmp_path, "basic")


@pytest.mark.parametrize("model", ["ppgt", "primphormer"])
def test_every_model_has_a_preset(tmp_path, model):
    config = BrecConfig(data=tmp_path, model=model)
    batch = brec.pack([ring(6), ring(3, 3)], "cpu")
    assert brec.build_model(config).eval()(batch).shape == (2, 16)


def test_options_of_one_model_change_it_and_its_settings(tmp_path):
    few = brec.build_model(small(tmp_path, model="ppgt", spe_scales=3))
    assert few.config.spe_scales == 3
    assert brec.build_model(small(tmp_path, model="ppgt")).config.spe_scales == 15
    stable = brec.build_model(BrecConfig(data=tmp_path, model="primphormer", position="stable_expressive"))
    assert stable.config.position.kind == "stable_expressive"
    assert "spe_scales" not in brec.settings(small(tmp_path, model="ppgt"))
    assert brec.settings(small(tmp_path, model="ppgt", spe_scales=3))["spe_scales"] == 3
    with pytest.raises(ConfigError, match="spe_scales: expected model ppgt, which has it, got grit"):
        small(tmp_path, spe_scales=3)


def test_in_double_precision_the_whole_model_is(tmp_path):
    double = small(tmp_path, model="ppgt", precision="float64")
    model = brec.build_model(double)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}
    assert model(brec.pack([ring(6), ring(3, 3)], "cpu")).dtype == torch.float64
    assert brec.settings(double)["precision"] == "float64"
    assert "precision" not in brec.settings(small(tmp_path, model="ppgt"))


@pytest.mark.long
def test_double_precision_shows_a_difference_that_rounding_hides(real_data):
    """The two graphs of CFI pair 13 have equal multisets of walks.

    Before training, the outputs for the two graphs differ by less than the rounding error of single precision.
    """
    first, second = brec.read_pairs(real_data / "brec", "cfi")[13]
    order = np.random.default_rng(0).permutation(len(first))
    graphs = brec.pack([first, second, first[order][:, order]], "cpu")
    seen = {}
    for precision in ("float32", "float64"):
        torch.manual_seed(0)
        out = brec.build_model(BrecConfig(data=real_data, model="ppgt", precision=precision))(graphs).detach()
        seen[precision] = float((out[0] - out[1]).norm() / (out[0] - out[2]).norm())
    assert seen["float64"] > 1000
    assert seen["float32"] < 10
