import builtins

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import partitioners
from storage.errors import DataError, MissingDependencyError
from storage.importers.array_graph import ArrayGraph
from storage.partitioners import LDG_SLACK, assign_partitions
from storage.synthetic import SyntheticGraph, SyntheticOptions


def _graph(num_nodes, src, dst):
    return ArrayGraph("test", num_nodes, np.asarray(src, np.int64), np.asarray(dst, np.int64))


def _edge_cut(source, partition):
    chunks = list(source.edges(1 << 20))
    cut = sum(int((partition[c.src] != partition[c.dst]).sum()) for c in chunks)
    return cut / sum(len(c.src) for c in chunks)


@st.composite
def graphs(draw):
    num_nodes = draw(st.integers(1, 60))
    edges = draw(st.lists(st.tuples(st.integers(0, num_nodes - 1), st.integers(0, num_nodes - 1)), max_size=200))
    src, dst = zip(*edges, strict=True) if edges else ((), ())
    return _graph(num_nodes, src, dst), draw(st.integers(1, num_nodes))


@pytest.mark.parametrize("name", ["random", "range", "ldg"])
@given(case=graphs(), seed=st.integers(0, 2**64 - 1))
def test_every_node_has_a_partition_and_none_is_empty(name, case, seed):
    source, num_partitions = case
    partition = assign_partitions(name, source, num_partitions, seed)
    assert partition.dtype == np.int32
    size = np.bincount(partition, minlength=num_partitions)
    assert len(size) == num_partitions
    assert size.min() >= 1
    assert size.sum() == source.num_nodes
    bound = np.ceil(source.num_nodes / num_partitions * (1 + LDG_SLACK if name == "ldg" else 1))
    assert size.max() <= bound
    if name != "ldg":
        assert size.max() - size.min() <= 1
    assert np.array_equal(partition, assign_partitions(name, source, num_partitions, seed))


def test_metis_leaves_none_empty():
    pytest.importorskip("pymetis")
    star = _graph(12, [0] * 11, range(1, 12))
    partition = assign_partitions("metis", star, 6, 0)
    assert np.bincount(partition, minlength=6).min() >= 1


@pytest.mark.parametrize("name", ["ldg", "metis"])
def test_communities_stay_together(name):
    if name == "metis":
        pytest.importorskip("pymetis")
    source = SyntheticGraph(SyntheticOptions(num_nodes=5000, feature_dim=1))
    random = _edge_cut(source, assign_partitions("random", source, 4, 0))
    assert random == pytest.approx(0.75, abs=0.02)
    assert _edge_cut(source, assign_partitions(name, source, 4, 0)) < 0.3


def test_ldg_beats_random_even_where_edges_come_shuffled_and_in_small_windows(monkeypatch):
    source = SyntheticGraph(SyntheticOptions(num_nodes=5000, feature_dim=1))
    chunks = list(source.edges(1 << 20))
    src, dst = (np.concatenate([getattr(c, end) for c in chunks]) for end in ("src", "dst"))
    order = np.random.default_rng(0).permutation(len(src))
    shuffled = _graph(5000, src[order], dst[order])
    monkeypatch.setattr(partitioners, "LDG_WINDOW_EDGES", len(src) // 8)
    assert _edge_cut(shuffled, assign_partitions("ldg", shuffled, 4, 0)) < 0.55


def test_ldg_does_not_depend_on_the_sources_chunks(monkeypatch):
    source = SyntheticGraph(SyntheticOptions(num_nodes=2000, feature_dim=1))
    chunks = list(source.edges(1 << 20))
    flat = _graph(2000, np.concatenate([c.src for c in chunks]), np.concatenate([c.dst for c in chunks]))
    monkeypatch.setattr(partitioners, "LDG_WINDOW_EDGES", 10_000)
    whole = assign_partitions("ldg", flat, 4, 0)
    monkeypatch.setattr(partitioners, "_READ_EDGES", 777)
    assert np.array_equal(whole, assign_partitions("ldg", flat, 4, 0))


def test_seed_changes_random_only():
    source = SyntheticGraph(SyntheticOptions(num_nodes=500, feature_dim=1))
    for name, differs in (("random", True), ("range", False), ("ldg", False)):
        one, other = (assign_partitions(name, source, 3, seed) for seed in (0, 1))
        assert (not np.array_equal(one, other)) == differs


@pytest.mark.parametrize("name", ["ldg", "metis"])
@pytest.mark.parametrize("bad", [-1, 3])
def test_edge_out_of_range_is_named(name, bad):
    if name == "metis":
        pytest.importorskip("pymetis")
    with pytest.raises(DataError, match=rf"0 to 2 .*got {bad}"):
        assign_partitions(name, _graph(3, [0, 1], [1, bad]), 2, 0)


def test_metis_without_pymetis_says_what_to_install(monkeypatch):
    real_import = builtins.__import__

    def no_pymetis(name, *args, **kwargs):
        if name == "pymetis":
            raise ImportError("no pymetis")
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_pymetis)
    with pytest.raises(MissingDependencyError, match="pip install"):
        assign_partitions("metis", _graph(3, [0], [1]), 2, 0)


def test_web_graph_is_cut_less_than_at_random(real_data):
    from storage.importers.edge_list import EdgeListGraph

    source = EdgeListGraph(real_data / "structure/web-NotreDame.txt.gz")
    cut = {name: _edge_cut(source, assign_partitions(name, source, 4, 0)) for name in ("random", "ldg")}
    assert cut["random"] == pytest.approx(0.737, abs=0.01)  # self-loops are never cut
    assert cut["ldg"] < 0.12
