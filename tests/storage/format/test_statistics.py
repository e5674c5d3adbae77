"""Compares the statistics of ingested graphs with a slow reference over lists, for any partitions. The manifest's parser refuses wrong statistics."""

import hashlib
import json
import math
import statistics
import tempfile
from collections import Counter
from dataclasses import asdict, astuple, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.core.errors import DataError, FormatError
from graphmill.storage.format.feature_rows import FeatureRows
from graphmill.storage.format.manifest import parse_manifest
from graphmill.storage.format.source import SPLIT_TRAIN, SourceInfo
from graphmill.storage.format.statistics import (
    CountStatistics,
    FeatureStatistics,
    GraphStatistics,
    SplitStatistics,
    TargetStatistics,
)
from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion import node_spool
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.statistics.graph_measures import TargetMeasure, count_statistics
from tests.listed_graph import (
    ListedGraph,
    NodeRow,
    expected_graph,
    is_symmetric,
    listed_graphs,
    random_listed_graph,
)
from tests.stored_files import newest_manifest


@st.composite
def cases(draw: st.DrawFn) -> tuple[ListedGraph, IngestOptions, IngestOptions]:
    """Draws a graph, and two ways to divide it into partitions."""
    graph = draw(listed_graphs())
    if draw(st.booleans()):  # some of the graphs are symmetric
        edges = graph.edges_listed
        columns = {
            name: None if values is None else values + values
            for name, values in (
                ("weight", graph.weight),
                ("edge_feature", graph.edge_feature),
                ("edge_time", graph.edge_time),
            )
        }
        graph = replace(graph, edges_listed=edges + [(v, u) for u, v in edges], **columns)
    options = IngestOptions(
        num_partitions=draw(st.integers(1, min(4, graph.num_nodes))),
        seed=draw(st.integers(0, 3)),
        undirected=draw(st.sampled_from([None, True, False])),
        drop_duplicates=draw(st.booleans()),
        drop_self_loops=draw(st.booleans()),
        out_edges=draw(st.booleans()),
        feature_dtype=draw(st.sampled_from(["float16", "float32"])),
        memory_budget_bytes=1 << 24,
        num_threads=draw(st.sampled_from([1, 3])),
    )
    other = replace(
        options,
        num_partitions=draw(st.integers(1, min(4, graph.num_nodes))),
        partitioner=draw(st.sampled_from(["range", "ldg"])),
        num_threads=1,
    )
    return graph, options, other


def ingested(graph: ListedGraph, options: IngestOptions) -> GraphStatistics:
    with tempfile.TemporaryDirectory() as folder:
        made = ingest(graph, f"{folder}/graph", options)
        assert open_graph(f"{folder}/graph").manifest == made
        assert open_graph(f"{folder}/graph").manifest.measured == made.measured
        return made.measured


@given(cases())
def test_statistics_are_those_of_the_reference_under_any_partitions(
    case: tuple[ListedGraph, IngestOptions, IngestOptions],
) -> None:
    graph, options, other = case
    found = ingested(graph, options)
    rows = expected_graph(graph, options)
    expected = reference(graph, rows, options)
    assert without_hashes(found) == without_hashes(expected)
    of_edges = np.array([edge.feature for row in rows.values() for edge in row.in_edges if edge.feature])
    for own, column in zip(found.edge_columns, of_edges.T if len(of_edges) else (), strict=bool(len(of_edges))):
        column = column[np.isfinite(column)].astype(float)
        wanted = (column.mean(), column.std(), np.mean(column != 0)) if len(column) else (0, 0, 0)
        assert (own.mean, own.deviation, own.nonzero) == pytest.approx(wanted, rel=1e-9, abs=1e-7)
    for split, wanted in zip(found.splits, expected.splits, strict=True):
        assert split.training_target == wanted.training_target or close(split.training_target, wanted.training_target)
        assert split.digest == wanted.digest
    assert ingested(replace(graph, edges_per_chunk=3, nodes_per_chunk=2), other) == found


def without_hashes(found: GraphStatistics) -> GraphStatistics:
    splits = tuple(replace(split, training_target=None, digest="") for split in found.splits)
    feature = None if found.feature is None else replace(found.feature, fingerprint="", columns=())
    return replace(found, splits=splits, feature=feature, edge_fingerprint="", node_digest="", edge_columns=())


def close(found: TargetStatistics | None, wanted: TargetStatistics | None) -> bool:
    if found is None or wanted is None or found.num_labelled != wanted.num_labelled:
        return False
    return found.mean == pytest.approx(wanted.mean, rel=1e-15) and found.std == pytest.approx(wanted.std, rel=1e-15)


def spread(values: list[int]) -> CountStatistics:
    width = Counter(value.bit_length() for value in values)
    histogram = tuple(width[bits] for bits in range(max(values).bit_length() + 1))
    return CountStatistics(len(values), sum(values), min(values), max(values), histogram)


def reference(graph: ListedGraph, rows: dict[int, NodeRow], options: IngestOptions) -> GraphStatistics:
    """Computes the statistics with lists, counters and float64."""
    edges = [(edge.other_end, node) for node, row in rows.items() for edge in row.in_edges]
    out = Counter(u for u, _ in edges)
    in_edges = {node: row.in_edges for node, row in rows.items()}
    permanent = sorted(rows)
    timed = [(edge.other_end, node, edge.time) for node, row in rows.items() for edge in row.in_edges]
    has_times = graph.edge_time is not None or graph.node_time is not None
    has_columns = graph.weight is not None or graph.edge_feature_dim > 0 or has_times
    label = None if graph.label is None else dict(zip(permanent, graph.label, strict=True))
    is_class = label is not None and isinstance(next(iter(label.values())), int)
    known = {node for node, value in (label or {}).items() if not is_class or value >= 0}

    def classes(nodes: set[int]) -> tuple[int, ...]:
        counted = Counter(label[node] for node in nodes & known) if label is not None else Counter()
        return tuple(counted[index] for index in range(graph.num_classes or 0))

    weights = [edge.weight for row in rows.values() for edge in row.in_edges if edge.weight is not None]

    def by_weight(training: set[int]) -> float | None:
        """Returns the total weight of training edges whose two ends have the same label, as a share of the weight of all training edges."""
        both = [(edge, node) for node, row in rows.items() for edge in row.in_edges if node in training]
        both = [(edge, node) for edge, node in both if edge.other_end in training and edge.other_end != node]
        total = sum(edge.weight for edge, _ in both) if weights and min(weights) >= 0 else 0
        agreeing = sum(edge.weight for edge, node in both if label[edge.other_end] == label[node]) if total else 0
        return float(f"{agreeing / total:.9g}") if total else None

    splits = []
    for index in range(graph.info.num_split_sets):
        code = {node: row.split[index] for node, row in rows.items() if row.split is not None}
        parts = [{node for node in permanent if code[node] == part} for part in range(4)]
        training = parts[SPLIT_TRAIN] & known
        between = [(u, v) for u, v in edges if u != v and {u, v} <= training]
        value = None
        if label is not None and not is_class:
            values = [float(np.float32(label[node])) for node in sorted(training)]
            value = TargetStatistics(
                len(values), statistics.fmean(values) if values else None, statistics.pstdev(values) if values else None
            )
        digest = hashlib.sha256(np.array(permanent, "<i8").tobytes())
        if label is None:
            digest.update(b"none")
        else:
            column = np.array([label[node] for node in permanent], np.int64 if is_class else np.float32)
            digest.update(column.dtype.str.encode() + column.tobytes())
        if graph.node_time is not None:
            digest.update(b"time" + np.array(graph.node_time, "<i8").tobytes())
        digest.update(b"split" + bytes(code[node] for node in permanent))
        splits.append(
            SplitStatistics(
                num_nodes=tuple(len(part) for part in parts),
                num_labelled=tuple(len(part & known) for part in parts),
                class_counts=tuple(classes(part) for part in parts) if is_class else None,
                training_target=value,
                num_training_edges=len(between) if is_class else None,
                num_agreeing_edges=sum(label[u] == label[v] for u, v in between) if is_class and label else None,
                digest=digest.hexdigest(),
                weighted_homophily=by_weight(training) if is_class else None,
            )
        )
    return GraphStatistics(
        in_degree=spread([len(row.in_edges) for row in rows.values()]),
        out_degree=spread([out[node] for node in rows]),
        num_isolated=sum(not row.in_edges and not out[node] for node, row in rows.items()),
        num_self_loops=sum(u == v for u, v in edges),
        num_duplicate_edges=sum(count - 1 for count in Counter(timed).values()),
        symmetric_edges=is_symmetric(in_edges, with_columns=False),
        symmetric_columns=is_symmetric(in_edges) if has_columns else None,
        edge_fingerprint="",
        feature=reference_features([list(rows[node].feature or ()) for node in permanent]),
        num_labelled=len(known),
        class_counts=classes(set(permanent)) if is_class else None,
        splits=tuple(splits),
        node_digest="",
        least_weight=min(weights, default=None),
    )


def reference_features(rows: list[list[float]]) -> FeatureStatistics | None:
    values = [value for row in rows for value in row]
    if not values:
        return None
    finite = [value for value in values if math.isfinite(value)]
    norms = [math.sqrt(math.fsum(x * x for x in row)) for row in rows if all(map(math.isfinite, row))]
    return FeatureStatistics(
        num_values=len(values),
        num_nonzero=sum(value != 0 for value in values),
        num_nonfinite=len(values) - len(finite),
        zero_or_one=all(value in (0, 1) for value in values),
        minimum=min(finite) + 0.0 if finite else None,
        maximum=max(finite) + 0.0 if finite else None,
        mean_norm=float(f"{math.fsum(norms) / len(norms):.9g}") if norms else None,
        max_norm=float(f"{max(norms):.9g}") if norms else None,
        fingerprint="",
    )


def test_features_that_are_not_finite_are_counted_and_left_out() -> None:
    graph = ListedGraph(
        4, [], feature=[[0.0, -3.0, 4.0], [math.nan, 1.0, -9.0], [math.inf, -math.inf, 7.0], [-0.0] * 3]
    )
    found = ingested(graph, IngestOptions(allow_nonfinite=True)).feature
    assert found is not None
    assert replace(found, fingerprint="", columns=()) == reference_features(graph.feature or [])
    assert [(own.mean, own.nonzero) for own in found.columns] == [(0, 0), (-2 / 3, 2 / 3), (0.5, 0.75)]
    assert (found.num_nonfinite, found.minimum, found.maximum, found.mean_norm) == (3, -9.0, 7.0, 2.5)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_columns_are_measured_on_the_training_rows_of_each_set(dtype: str) -> None:
    """If a split set has no training row, or there is no split set, all rows are measured. Partitions and chunks do not matter."""
    rng = np.random.default_rng(3)
    rows, split = rng.normal(2, 3, (50, 3)).round(2), rng.choice(4, (50, 3))
    rows[rng.random((50, 3)) < 0.3] = 0
    split[:, 1] = np.where(split[:, 1] == SPLIT_TRAIN, 2, split[:, 1])
    options = IngestOptions(feature_dtype=dtype)
    for codes in (split, None):
        graph = ListedGraph(50, [], feature=rows.tolist(), split=None if codes is None else codes.tolist())
        found = ingested(graph, options).feature
        assert found is not None
        stored = FeatureRows(3, dtype)
        read = stored.decode(stored.encode(rows.astype(np.float32))).astype(np.float64)
        chosen = [np.ones(50, bool)] if codes is None else [codes[:, 0] == 1, np.ones(50, bool), codes[:, 2] == 1]
        wanted = [(some.mean(), some.std(), (some != 0).mean()) for one in chosen for some in read[one].T]
        assert np.array([astuple(own) for own in found.columns]) == pytest.approx(np.array(wanted), rel=1e-12)
        again = ingested(replace(graph, nodes_per_chunk=7), replace(options, num_partitions=3, partitioner="ldg"))
        assert again.feature == found


def test_a_column_far_from_zero_keeps_its_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_spool, "_BLOCK_NUMBERS", 20)
    rng = np.random.default_rng(0)
    rows = np.stack([1e8 + 64 * rng.integers(0, 8, 400), np.full(400, 0.1), np.full(400, 3e7)], axis=1)
    found = ingested(ListedGraph(400, [], feature=rows.tolist()), IngestOptions()).feature
    assert found is not None
    far, *constant = found.columns
    assert (far.mean, far.deviation) == pytest.approx((rows[:, 0].mean(), rows[:, 0].std()), rel=1e-12)
    assert [(own.mean, own.deviation) for own in constant] == [(float(np.float32(0.1)), 0), (3e7, 0)]


@pytest.mark.parametrize("rows", [[[0.0, 1.0], [1.0, -0.0]], [[0.0, 1.0], [1.0, 0.5]]])
def test_features_of_zeros_and_ones_are_told(rows: list[list[float]]) -> None:
    found = ingested(ListedGraph(2, [], feature=rows), IngestOptions()).feature
    assert found is not None
    assert found.zero_or_one == (rows[1][1] == 0)
    assert found.sparsity == (0.5 if found.zero_or_one else 0.25)


def mirrored(count: int, num_nodes: int) -> list[tuple[int, int]]:
    rng = np.random.default_rng(0)
    ends = rng.integers(0, num_nodes, (count, 2)).tolist()
    return [(u, v) for u, v in ends] + [(v, u) for u, v in ends]


def test_one_edge_without_its_reverse_is_seen_among_many() -> None:
    edges = mirrored(2000, 50)
    assert ingested(ListedGraph(50, edges), IngestOptions(num_partitions=3)).symmetric_edges
    for change in (edges[1:], [*edges, (0, 1)], [(edges[0][1], edges[0][0]), *edges[1:]]):
        assert not ingested(ListedGraph(50, change), IngestOptions(num_partitions=3)).symmetric_edges


def test_weights_that_differ_between_an_edge_and_its_reverse_are_seen_though_the_edges_are_symmetric() -> None:
    edges = mirrored(500, 40)
    weight = np.random.default_rng(1).random(500, np.float32).tolist()
    found = ingested(ListedGraph(40, edges, weight=weight * 2), IngestOptions())
    assert (found.symmetric_edges, found.symmetric_columns) == (True, True)
    found = ingested(ListedGraph(40, edges, weight=[*weight, *weight[:-1], 2.0]), IngestOptions())
    assert (found.symmetric_edges, found.symmetric_columns, found.symmetric) == (True, False, False)
    zeros = [0.0] * 500
    assert ingested(ListedGraph(40, edges, weight=[*zeros, *zeros[1:], -0.0]), IngestOptions()).symmetric_columns


def test_homophily_by_weight_is_where_weights_are_at_least_0() -> None:
    """Also tests the smallest weight, which is unknown if a weight is infinite."""
    graph = ListedGraph(
        4, [(0, 1), (2, 3), (0, 2), (1, 1)], weight=[3.0, 2.0, 15.0, 99.0], label=[0, 0, 1, 1], num_classes=2
    )
    graph = replace(graph, split=[[1]] * 4)
    (split,) = ingested(graph, IngestOptions()).splits
    assert (split.homophily, split.weighted_homophily) == (pytest.approx(2 / 3), 0.25)
    for bad in (-1.0, math.inf):
        found = ingested(replace(graph, weight=[3.0, bad, 15.0, 99.0]), IngestOptions(allow_nonfinite=True))
        assert found.splits[0].weighted_homophily is None
        assert found.least_weight == (-1 if bad < 0 else None)


def test_a_symmetric_source_that_does_not_say_so_is_stored_once(tmp_path: Path) -> None:
    graph = ListedGraph(40, mirrored(100, 40))
    for name, options in (("plain", IngestOptions()), ("out", IngestOptions(out_edges=True, num_partitions=2))):
        manifest = ingest(graph, str(tmp_path / name), options)
        assert (manifest.symmetric, manifest.has_out_edges) == (True, False)
        part = open_graph(str(tmp_path / name)).partition(0)
        assert part.out_indices is part.indices


def test_edge_ids_keep_the_two_directions_apart(tmp_path: Path) -> None:
    manifest = ingest(
        ListedGraph(40, mirrored(100, 40)), str(tmp_path / "g"), IngestOptions(out_edges=True, edge_ids=True)
    )
    assert (manifest.symmetric, manifest.has_out_edges) == (False, True)
    assert manifest.measured.symmetric


class ClaimsSymmetry(ListedGraph):
    @property
    def info(self) -> SourceInfo:
        return replace(super().info, symmetric=True)


@pytest.mark.parametrize(
    ("graph", "named"),
    [
        (ClaimsSymmetry(3, [(0, 1), (1, 0), (1, 2)]), "the reverse of each edge"),
        (ClaimsSymmetry(3, [(0, 1), (1, 0)], weight=[1.0, 2.0]), "with its weight"),
    ],
)
def test_a_false_claim_of_symmetry_is_refused(graph: ListedGraph, named: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"says that it is symmetric.*{named}.*--reverse-edges"):
        ingest(graph, str(tmp_path / "graph"))
    assert not (tmp_path / "graph").exists()
    ingest(replace(graph, edges_listed=[*graph.edges_listed[:2]], weight=None), str(tmp_path / "graph"))


def test_fingerprints_and_digests_tell_other_data(tmp_path: Path) -> None:
    graph = random_listed_graph(60, 300)
    assert graph.feature
    assert graph.label
    assert graph.split
    label, split = list(graph.label), [list(row) for row in graph.split]
    label[7], split[9][1] = (label[7] + 1) % 5, (split[9][1] + 1) % 4
    rows = [list(row) for row in graph.feature]
    rows[3], rows[4] = rows[4], rows[3]
    found = ingested(graph, IngestOptions())
    edges = ingested(replace(graph, edges_listed=[(0, 1), *graph.edges_listed[1:]]), IngestOptions())
    assert edges.edge_fingerprint != found.edge_fingerprint
    assert edges.splits[0].digest == found.splits[0].digest
    features = ingested(replace(graph, feature=rows), IngestOptions())
    assert features.feature
    assert found.feature
    assert features.feature.fingerprint != found.feature.fingerprint
    for other in (replace(graph, label=label), replace(graph, original_id=[*range(59), 70])):
        assert all(
            a.digest != b.digest for a, b in zip(ingested(other, IngestOptions()).splits, found.splits, strict=True)
        )
    digests = [each.digest for each in ingested(replace(graph, split=split), IngestOptions()).splits]
    assert digests[0] == found.splits[0].digest
    assert digests[1] != found.splits[1].digest


def test_what_a_run_learns_from_has_one_digest_under_any_partitions() -> None:
    graph = random_listed_graph(60, 300)
    one = ingested(graph, IngestOptions())
    assert ingested(graph, IngestOptions(num_partitions=5, partitioner="ldg", edge_ids=True)).data_digest(
        1
    ) == one.data_digest(1)
    bare = replace(graph, feature=None)
    others = [ingested(bare, IngestOptions()), ingested(graph, IngestOptions(undirected=True))]
    assert len({one.data_digest(0), one.data_digest(1), *(other.data_digest(1) for other in others)}) == 4


def test_more_than_eight_sets_of_splits() -> None:
    rng = np.random.default_rng(5)
    graph = replace(random_listed_graph(40, 300), split=rng.choice(4, (40, 19)).tolist())
    found, expected = ingested(graph, IngestOptions()), expected_graph(graph, IngestOptions())
    assert without_hashes(found).splits == without_hashes(reference(graph, expected, IngestOptions())).splits


def test_a_mean_far_from_zero_keeps_its_deviation() -> None:
    values = (1e7 + np.random.default_rng(0).integers(0, 8, 1000)).astype(np.float32)
    parts = np.zeros(1000, np.int8)
    measure = TargetMeasure(2, 1)
    for start in (0, 10, 500):
        stop = {0: 10, 10: 500, 500: 1000}[start]
        measure.add(values[start:stop, None], parts[start:stop])
    found, none = (row[0] for row in measure.result())
    assert found.mean == pytest.approx(statistics.fmean(values.tolist()), rel=1e-15)
    assert found.std == pytest.approx(statistics.pstdev(values.tolist()), rel=1e-14)
    assert none == TargetStatistics(0, None, None)


def test_ids_beyond_32_bits_are_hashed_whole() -> None:
    from graphmill.storage.statistics.statistics_kernels import _pair_hash

    ends = [(1, 2**32), (2**32, 1), (0, 2**33), (2**32 + 1, 2**32), (2**40, 2**41)]
    hashes = [int(_pair_hash.py_func(np.int64(u), np.int64(v), True)) for u, v in ends]
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == len(ends) - 1


def test_histogram_bins_are_powers_of_two() -> None:
    found = count_statistics(np.array([0, 0, 1, 2, 3, 4, 7, 8]))
    assert found == CountStatistics(8, 25, 0, 8, (2, 1, 2, 2, 1))
    assert found.mean == 25 / 8


def paths(value: object, prefix: tuple = ()) -> list[tuple]:
    """Returns the paths of all values inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [prefix, *[path for key, item in inner for path in paths(item, (*prefix, key))]]


@pytest.fixture(scope="module")
def manifest_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    graph = random_listed_graph(30, 60)
    folder = tmp_path_factory.mktemp("graph") / "graph"
    return ingest(graph, str(folder)).to_json()


@pytest.mark.parametrize("wrong", [-1, 2**63, "x", None, True, [], {}, 1.5, float("nan"), float("inf"), 10**400])
def test_no_field_takes_what_it_cannot_be(wrong: object, manifest_text: str) -> None:
    body = json.loads(manifest_text)
    for path in paths(body["statistics"])[1:]:
        changed = json.loads(manifest_text)
        at = changed["statistics"]
        for key in path[:-1]:
            at = at[key]
        old, at[path[-1]] = at[path[-1]], wrong
        may_be_null = ("class_counts", "symmetric_columns", "training_target", "weighted_homophily")
        nullable = wrong is None and path[-1] in may_be_null
        number = path == ("least_weight",) or (
            path[-1] in ("minimum", "maximum", "mean_norm", "max_norm") and path[0] == "feature"
        )
        if nullable or old == wrong or (path[-1] == "zero_or_one" and wrong is True):
            continue
        if number and (wrong is None or wrong in (-1, 1.5) or wrong == 2**63):
            continue
        if path[-1] in ("symmetric_edges", "symmetric_columns") and wrong is True:
            continue
        fits = {"mean": (-1, 2**63, 1.5), "deviation": (2**63, 1.5)}
        if "columns" in str(path[:-1]) and wrong in fits.get(path[-1], ()):
            continue
        if path[-1] in ("columns", "edge_columns") and wrong == []:
            # valid, because it means that there are too many columns
            continue
        with pytest.raises(FormatError, match="field"):
            _ = parse_manifest(json.dumps(changed), "graph/manifest.json").measured


def test_an_older_version_s_manifest_does_not_know_the_least_weight_nor_columns(manifest_text: str) -> None:
    body = json.loads(manifest_text)
    del body["statistics"]["least_weight"], body["statistics"]["feature"]["columns"], body["statistics"]["edge_columns"]
    measured = parse_manifest(json.dumps(body), "graph/manifest.json").measured
    assert measured.least_weight is None
    assert measured.feature
    assert measured.feature.columns == measured.edge_columns == ()


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("in_degree", "total"), 61, "'total': expected 60"),
        (("in_degree", "histogram"), [29], "histogram"),
        (("num_isolated",), 31, "num_isolated"),
        (("splits",), [], "'splits': expected 2"),
        (("splits", 0, "num_nodes"), [30, 0, 0], "num_nodes"),
        (("splits", 0, "num_nodes"), [31, 0, 0, 0], "num_nodes"),
        (("feature", "num_values"), 1, "num_values"),
        (("feature",), None, "feature"),
        (("feature", "columns"), [{"mean": 0, "deviation": 1, "nonzero": 1}], "'columns': expected 8 columns, got '1"),
        (("edge_fingerprint",), "00", "edge_fingerprint"),
        (("node_digest",), "00", "node_digest"),
    ],
)
def test_numbers_that_contradict_each_other_are_named(
    path: tuple, value: object, named: str, manifest_text: str
) -> None:
    changed = json.loads(manifest_text)
    at = changed["statistics"]
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    parsed = parse_manifest(json.dumps(changed), "graph/manifest.json")
    for read in (lambda: parsed.measured, parsed.to_json):
        with pytest.raises(FormatError, match=named):
            read()


def test_statistics_survive_json(manifest_text: str) -> None:
    parsed = parse_manifest(manifest_text, "manifest.json")
    assert json.loads(manifest_text)["statistics"] == json.loads(json.dumps(asdict(parsed.measured)))


@pytest.mark.parametrize("wrong", [[], "x", 1])
def test_statistics_that_are_no_object_are_refused_at_once(wrong: object, manifest_text: str) -> None:
    with pytest.raises(FormatError, match="'statistics': expected an object"):
        parse_manifest(json.dumps({**json.loads(manifest_text), "statistics": wrong}), "graph/manifest.json")


def test_damaged_statistics_do_not_hinder_opening_and_are_refused_by_verify(tmp_path: Path) -> None:
    url = str(tmp_path / "graph")
    ingest(random_listed_graph(30, 60), url)
    manifest = newest_manifest(tmp_path / "graph")
    manifest.write_text(manifest.read_text().replace('"num_isolated": ', '"num_isolated": -1'))
    graph = open_graph(url)
    assert graph.partition(0).num_nodes == graph.manifest.num_nodes
    with pytest.raises(FormatError, match=r"000001.json: statistics: field 'num_isolated': expected a count.*, got -1"):
        graph.verify()
