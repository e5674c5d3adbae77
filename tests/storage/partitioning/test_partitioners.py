import builtins

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from graphmill.core.errors import ConfigError, DataError, MissingDependencyError
from graphmill.storage.format.source import Relation, TypedSource
from graphmill.storage.importers.memory.array_graph import ArrayGraph, array_edges, array_nodes
from graphmill.storage.partitioning import partitioners
from graphmill.storage.partitioning.partitioners import LDG_SLACK, assign_partitions, assign_types
from graphmill.storage.synthetic.mag_like import SyntheticMagOptions, synthetic_mag
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions


def _graph(num_nodes, src, dst):
    return ArrayGraph("test", num_nodes, np.asarray(src, np.int64), np.asarray(dst, np.int64))


@pytest.mark.parametrize("name", ["ldg", "metis"])
def test_partitions_are_unions_of_groups_that_do_not_depend_on_them(name):
    if name == "metis":
        pytest.importorskip("pymetis")
    source = SyntheticGraph(SyntheticOptions(num_nodes=3000, feature_dim=1))
    groups = assign_partitions(name, source, 2, 0).group
    assert len(np.unique(groups)) == 64
    for num_partitions in (1, 2, 3, 7, 40):
        assigned = assign_partitions(name, source, num_partitions, 0, num_groups=64)
        assert np.array_equal(assigned.group, groups)
        by_group = assigned.partition[np.argsort(groups, kind="stable")]
        assert (np.diff(by_group) >= 0).all()  # partitions are ranges of groups
        pairs = np.unique(np.stack([groups, assigned.partition]), axis=1)
        assert len(pairs[0]) == assigned.num_groups  # each group lies in one partition
        size = np.bincount(assigned.partition)
        assert len(size) == num_partitions
        assert abs(size - 3000 / num_partitions).max() <= np.bincount(groups).max()


def test_one_partition_and_those_that_see_no_edge_have_no_groups():
    source = _graph(300, range(299), range(1, 300))
    for name, num_partitions in (("ldg", 1), ("random", 3), ("range", 3)):
        assigned = assign_partitions(name, source, num_partitions, 0)
        assert (assigned.group, assigned.num_groups) == (None, 0)


@pytest.mark.parametrize(
    ("name", "num_groups", "message"),
    [("random", 9, "ldg or metis, got random"), ("ldg", 2, "got 2"), ("ldg", 301, "got 301")],
)
def test_groups_that_cannot_be(name, num_groups, message):
    with pytest.raises(ConfigError, match=rf"^groups: expected .*{message}"):
        assign_partitions(name, _graph(300, [0], [1]), 3, 0, num_groups)


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
    partition = assign_partitions(name, source, num_partitions, seed).partition
    assert partition.dtype == np.int32
    size = np.bincount(partition, minlength=num_partitions)
    assert len(size) == num_partitions
    assert size.min() >= 1
    assert size.sum() == source.num_nodes
    bound = np.ceil(source.num_nodes / num_partitions * (1 + LDG_SLACK if name == "ldg" else 1))
    assert size.max() <= bound
    if name != "ldg":
        assert size.max() - size.min() <= 1
    assert np.array_equal(partition, assign_partitions(name, source, num_partitions, seed).partition)


def test_metis_leaves_none_empty():
    pytest.importorskip("pymetis")
    star = _graph(12, [0] * 11, range(1, 12))
    partition = assign_partitions("metis", star, 6, 0).partition
    assert np.bincount(partition, minlength=6).min() >= 1


@pytest.mark.parametrize("name", ["ldg", "metis"])
def test_communities_stay_together(name):
    if name == "metis":
        pytest.importorskip("pymetis")
    source = SyntheticGraph(SyntheticOptions(num_nodes=5000, feature_dim=1))
    random = _edge_cut(source, assign_partitions("random", source, 4, 0).partition)
    assert random == pytest.approx(0.75, abs=0.02)
    assert _edge_cut(source, assign_partitions(name, source, 4, 0).partition) < 0.3


def test_ldg_beats_random_even_where_edges_come_shuffled_and_in_small_windows(monkeypatch):
    source = SyntheticGraph(SyntheticOptions(num_nodes=5000, feature_dim=1))
    chunks = list(source.edges(1 << 20))
    src, dst = (np.concatenate([getattr(c, end) for c in chunks]) for end in ("src", "dst"))
    order = np.random.default_rng(0).permutation(len(src))
    shuffled = _graph(5000, src[order], dst[order])
    monkeypatch.setattr(partitioners, "LDG_WINDOW_EDGES", len(src) // 8)
    assert _edge_cut(shuffled, assign_partitions("ldg", shuffled, 4, 0).partition) < 0.55


def test_ldg_does_not_depend_on_the_sources_chunks(monkeypatch):
    source = SyntheticGraph(SyntheticOptions(num_nodes=2000, feature_dim=1))
    chunks = list(source.edges(1 << 20))
    flat = _graph(2000, np.concatenate([c.src for c in chunks]), np.concatenate([c.dst for c in chunks]))
    monkeypatch.setattr(partitioners, "LDG_WINDOW_EDGES", 10_000)
    whole = assign_partitions("ldg", flat, 4, 0).partition
    monkeypatch.setattr(partitioners, "_READ_EDGES", 777)
    assert np.array_equal(whole, assign_partitions("ldg", flat, 4, 0).partition)


def test_seed_changes_random_only():
    source = SyntheticGraph(SyntheticOptions(num_nodes=500, feature_dim=1))
    for name, differs in (("random", True), ("range", False), ("ldg", False)):
        one, other = (assign_partitions(name, source, 3, seed).partition for seed in (0, 1))
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


@st.composite
def typed_graphs(draw):
    count = {"paper": draw(st.integers(1, 50)), "author": draw(st.integers(1, 50)), "venue": draw(st.integers(1, 4))}
    edges = {}
    for ends in (("author", "paper"), ("paper", "paper"), ("venue", "paper")):
        rows = [st.integers(0, count[end] - 1) for end in ends]
        src, dst = np.array(draw(st.lists(st.tuples(*rows), max_size=150)), np.int64).reshape(-1, 2).T
        edges[Relation(ends[0], "to", ends[1])] = array_edges("to", src, dst)
    return TypedSource("typed", {name: array_nodes(name, n) for name, n in count.items()}, edges)


@pytest.mark.parametrize(
    ("name", "groups_each"),
    [("random", 0), ("range", 0), *((name, each) for name in ("ldg", "metis") for each in (0, 1, 3))],
)
@given(source=typed_graphs(), num_partitions=st.integers(1, 6))
def test_no_partition_has_more_than_its_share_of_any_type(name, groups_each, source, num_partitions):
    """`groups_each`: number of groups for each partition; 0: no number is given."""
    if name == "metis":
        pytest.importorskip("pymetis")
    most_nodes = max(nodes.info.num_nodes for nodes in source.nodes.values())
    assume(num_partitions * groups_each <= most_nodes)
    num_groups = num_partitions * groups_each or None
    assigned = assign_types(name, source, num_partitions, 0, num_groups)
    for node_type, nodes in source.nodes.items():
        num_nodes, own = nodes.info.num_nodes, assigned[node_type]
        slack = LDG_SLACK if name in ("ldg", "metis") else 0
        for part, count in ((own.partition, num_partitions), (own.group, num_groups)):
            if count is None:
                assert part is None
                continue
            size = np.bincount(part, minlength=count)
            assert size.sum() == num_nodes
            assert len(size) == count
            most = np.ceil(num_nodes / (num_groups or count) * (1 + slack))
            assert size.max() <= most * (num_groups or count) // count
            assert size.min() >= (num_nodes >= (num_groups or count))
        if num_groups:
            assert np.array_equal(own.partition, own.group // groups_each)
        again = assign_types(name, source, num_partitions, 0, num_groups)
        assert np.array_equal(own.partition, again[node_type].partition)


@pytest.mark.parametrize(("name", "most"), [("ldg", 0.45), ("metis", 0.45)])
def test_communities_of_several_types_stay_together(name, most):
    if name == "metis":
        pytest.importorskip("pymetis")
    source = synthetic_mag(SyntheticMagOptions(scale=0.002, num_classes=8, homophily=0.9))
    cut = {}
    for partitioner in ("random", name):
        assigned = assign_types(partitioner, source, 4, 0)
        crossing = total = 0
        for relation, edges in source.relations.items():
            for chunk in edges.edges(1 << 20):
                ends = assigned[relation.source].partition[chunk.src], assigned[relation.target].partition[chunk.dst]
                crossing, total = crossing + int((ends[0] != ends[1]).sum()), total + len(chunk.src)
        cut[partitioner] = crossing / total
    assert cut["random"] == pytest.approx(0.75, abs=0.03)
    assert cut[name] < most


def test_a_graph_of_one_type_is_cut_as_a_plain_one():
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 300, (2, 900))
    plain = assign_partitions("ldg", _graph(300, src, dst), 3, 0)
    edges = {Relation("a", "to", "a"): array_edges("to", src, dst)}
    typed = assign_types("ldg", TypedSource("one", {"a": array_nodes("a", 300)}, edges), 3, 0)["a"]
    assert plain.num_groups == 3
    parts = set(zip(plain.group.tolist(), typed.partition.tolist(), strict=True))
    assert len(parts) == 3  # the partitions are the same up to their order
    assert typed.group is None


@pytest.mark.parametrize("bad", [-1, 3])
def test_an_edge_to_no_node_of_its_type_is_named(bad):
    edges = {Relation("a", "to", "b"): array_edges("to", np.array([0, bad]), np.array([1, 1]))}
    source = TypedSource("two", {"a": array_nodes("a", 3), "b": array_nodes("b", 5)}, edges)
    with pytest.raises(DataError, match=rf"^to: edge ids must be 0 to 2 .*got {bad}"):
        assign_types("ldg", source, 2, 0)


def test_web_graph_is_cut_less_than_at_random(real_data):
    from graphmill.storage.importers.tables.edge_list import EdgeListGraph

    source = EdgeListGraph(real_data / "structure/web-NotreDame.txt.gz")
    cut = {name: _edge_cut(source, assign_partitions(name, source, 4, 0).partition) for name in ("random", "ldg")}
    assert cut["random"] == pytest.approx(0.737, abs=0.01)  # self-loops are never cut
    assert cut["ldg"] < 0.12
