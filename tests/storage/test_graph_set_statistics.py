"""Compares the statistics of many graphs with a computation over lists and float64, for any shards. Tests which statistics the manifest's parser refuses."""

import itertools
import json
import statistics
import tempfile
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.core.errors import FormatError
from graphmill.storage.format.graph_set_manifest import GraphSetManifest, RowSchema, parse_graph_set_manifest
from graphmill.storage.format.statistics import GraphSetStatistics, TargetStatistics
from graphmill.storage.graph_sets.graph_set import open_graphs, shard_batch
from graphmill.storage.graph_sets.graph_set_writer import GraphSetInfo, write_graphs
from graphmill.storage.graph_sets.packed_graphs import PackedGraphs
from tests.storage.format.test_statistics import spread

INFO = GraphSetInfo(
    "toy", RowSchema(1, "uint8"), RowSchema(1, "uint8"), target_names=("a", "b"), split_names=("train", "valid")
)


def graphs(num_nodes: list[int], num_edges: list[int], target: np.ndarray) -> PackedGraphs:
    total = sum(num_edges)
    return PackedGraphs(
        num_nodes=np.array(num_nodes, np.int64),
        num_edges=np.array(num_edges, np.int64),
        edge_index=np.zeros((2, total), np.int32),
        node_feature=np.arange(sum(num_nodes), dtype=np.uint8)[:, None],
        edge_feature=np.arange(total, dtype=np.uint8)[:, None],
        target=target.astype(np.float32),
    )


def written(sizes: list[tuple[int, int]], target: np.ndarray, split: list[int], cuts: list[int]) -> GraphSetManifest:
    """Writes a store whose shards lie between the cuts."""
    bounds = sorted({0, *(cut for cut in cuts if cut < len(sizes)), len(sizes)})
    batches = []
    for start, stop in itertools.pairwise(bounds):
        before = (sum(n for n, _ in sizes[:start]), sum(m for _, m in sizes[:start]))
        some = graphs([n for n, _ in sizes[start:stop]], [m for _, m in sizes[start:stop]], target[start:stop])
        assert some.node_feature is not None
        assert some.edge_feature is not None
        some = replace(
            some,
            node_feature=(some.node_feature + before[0]).astype(np.uint8),
            edge_feature=(some.edge_feature + before[1]).astype(np.uint8),
        )
        codes = np.array(split[start:stop], np.int8)
        batches.append(shard_batch(some, INFO.index_dtype, codes, np.arange(start, stop)))
    with tempfile.TemporaryDirectory() as folder:
        manifest = write_graphs(f"{folder}/graphs", INFO, batches)
        assert open_graphs(f"{folder}/graphs").manifest == manifest
    return manifest


def of_target(values: np.ndarray) -> TargetStatistics:
    known = [float(value) for value in values if not np.isnan(value)]
    if not known:
        return TargetStatistics(0, None, None)
    return TargetStatistics(len(known), statistics.fmean(known), statistics.pstdev(known))


def statistics_of(manifest: GraphSetManifest) -> GraphSetStatistics:
    assert manifest.statistics is not None
    return manifest.statistics


@given(st.data())
def test_statistics_are_those_of_the_reference_under_any_shards(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=12))
    count = len(sizes)
    numbers = st.floats(-1000, 1000, width=32) | st.just(float("nan"))
    target = np.array(
        data.draw(st.lists(st.lists(numbers, min_size=2, max_size=2), min_size=count, max_size=count)), np.float32
    )
    split = data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    found = statistics_of(written(sizes, target, split, data.draw(st.lists(st.integers(1, count), max_size=3))))
    assert found.nodes == spread([n for n, _ in sizes])
    assert found.edges == spread([m for _, m in sizes])
    for code, part in enumerate(found.parts):
        members = [graph for graph in range(count) if split[graph] == code]
        assert part.num_graphs == len(members)
        for column, one in enumerate(part.targets):
            wanted = of_target(target[members, column])
            assert one.num_labelled == wanted.num_labelled
            assert one.mean == (wanted.mean and pytest.approx(wanted.mean, rel=1e-14, abs=1e-300))
            assert one.std == (wanted.std and pytest.approx(wanted.std, rel=1e-12, abs=1e-300))
    assert statistics_of(written(sizes, target, split, data.draw(st.lists(st.integers(1, count), max_size=3)))) == found


def test_the_digest_tells_other_data() -> None:
    sizes, target, split = [(2, 1), (3, 0), (1, 2)], np.arange(6.0).reshape(3, 2), [1, 2, 0]
    digest = statistics_of(written(sizes, target, split, [])).digest
    others = [
        written([(3, 1), (2, 0), (1, 2)], target, split, []),
        written(sizes, target + 1, split, []),
        written(sizes, target, [1, 0, 2], []),
    ]
    assert len({digest, *(statistics_of(other).digest for other in others)}) == 4


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("nodes", "total"), 7, "'total': expected 6"),
        (("edges", "maximum"), 9, "'maximum'"),
        (("parts",), [], "'parts': expected 3"),
        (("parts", 0, "num_graphs"), 2, "'parts': expected 3 graphs"),
        (("parts", 1, "targets"), [], "'targets': expected 2"),
        (("parts", 1, "targets", 0, "num_labelled"), 2, "'num_labelled'"),
        (("parts", 1, "targets", 0, "std"), -1.0, "'std'"),
        (("parts", 1, "targets", 0, "mean"), "0", "'mean'"),
        (("digest",), "", "'digest'"),
    ],
)
def test_numbers_that_contradict_each_other_are_named(path: tuple, value: object, named: str) -> None:
    text = written([(2, 1), (3, 0), (1, 2)], np.arange(6.0).reshape(3, 2), [1, 2, 0], []).to_json()
    changed = json.loads(text)
    assert parse_graph_set_manifest(text, "manifest.json").to_json() == text
    at = changed["statistics"]
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(FormatError, match=named):
        parse_graph_set_manifest(json.dumps(changed), "manifest.json")
