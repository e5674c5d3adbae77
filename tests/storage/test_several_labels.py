"""Nodes with several labels are ingested, measured, opened and fetched. Their labels do not change."""

from dataclasses import replace

import numpy as np
import pytest

from graphmill.core.errors import ConfigError, DataError, FormatError
from graphmill.samplers.access.router import local_router
from graphmill.storage.format.source import SPLIT_NAMES
from graphmill.storage.graph import open_graph
from graphmill.storage.importers.memory.array_graph import ArrayGraph, label_column
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from tests.cluster.transport.test_wire import through_bytes
from tests.stored_files import edit_manifest

NUM_NODES, NUM_LABELS = 60, 7


def _graph(**changes) -> ArrayGraph:
    random = np.random.default_rng(3)
    label = random.integers(0, 2, (NUM_NODES, NUM_LABELS))
    label[4], label[5, :3] = -1, -1  # one node has no labels, and one has only some known labels
    given = {
        "feature": random.random((NUM_NODES, 3)),
        "label": label,
        "split": random.integers(0, 4, (NUM_NODES, 2)).astype(np.int8),
        **changes,
    }
    src, dst = random.integers(0, NUM_NODES, (2, 200))
    return ArrayGraph("several", NUM_NODES, src, dst, **given)


@pytest.mark.parametrize("partitions", [1, 3])
def test_rows_and_statistics_are_those_of_the_source(tmp_path, partitions):
    source = _graph()
    ingest(source, str(tmp_path), IngestOptions(num_partitions=partitions))
    graph = open_graph(str(tmp_path))
    graph.verify()
    assert (graph.manifest.label_kind, graph.num_classes) == ("answers", NUM_LABELS)
    assert "7 answers" in repr(graph)
    whole = np.full((NUM_NODES, NUM_LABELS), 9, np.int8)
    for partition in graph.partitions():
        whole[partition.original_id] = partition.label
    np.testing.assert_array_equal(whole, source.label)
    measured = graph.manifest.measured
    assert measured.num_labelled == NUM_NODES - 1
    assert measured.class_counts == tuple((source.label == 1).sum(axis=0))
    for column, split in enumerate(measured.splits):
        for code in range(len(SPLIT_NAMES)):
            rows = source.label[source.split[:, column] == code]
            assert split.class_counts[code] == tuple((rows == 1).sum(axis=0))
            assert split.num_labelled[code] == (rows >= 0).any(axis=1).sum()
        assert split.homophily is None


def test_the_digest_is_of_the_labels_whatever_the_partitions(tmp_path):
    digests = set()
    for partitions in (1, 3):
        ingest(_graph(), str(tmp_path / str(partitions)), IngestOptions(num_partitions=partitions))
        digests.add(open_graph(str(tmp_path / str(partitions))).manifest.measured.data_digest(0))
    other = _graph().label.copy()
    other[0, 0] = 1 - other[0, 0]
    ingest(_graph(label=other), str(tmp_path / "other"))
    assert len(digests) == 1
    assert open_graph(str(tmp_path / "other")).manifest.measured.data_digest(0) not in digests


def test_rows_are_fetched_from_several_owners_and_over_the_wire(tmp_path):
    source = _graph()
    ingest(source, str(tmp_path), IngestOptions(num_partitions=3))
    router = local_router(open_graph(str(tmp_path)))
    rows = router.fetch(np.random.default_rng(1).permutation(NUM_NODES))
    np.testing.assert_array_equal(rows.label, source.label[rows.original_id])
    assert rows.label.dtype == np.int8
    again = through_bytes(rows)
    np.testing.assert_array_equal(again.label, rows.label)


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (
            np.full((NUM_NODES, 2), 2),
            "several labels per node must be 1 .yes., 0 .no. or -1 .not known., got 2, 120 such",
        ),
        (np.full((NUM_NODES, 2), 2.0), "got 2.0, 120 such; for real numbers set label_kind number"),
        (np.zeros((NUM_NODES, 2, 2)), r"or a row of 0 and 1, got shape \[60, 2, 2\]"),
        (np.zeros((NUM_NODES, 0)), r"got shape \[60, 0\]"),
        (np.zeros((NUM_NODES - 1, 2)), "labels must have one row per node: 60 nodes, got 59 rows"),
    ],
)
def test_other_labels_are_one_line(label, message):
    with pytest.raises(DataError, match=message) as caught:
        _graph(label=label)
    assert "\n" not in str(caught.value)


def test_unknown_numbers_are_missing_labels():
    label = np.array([[1.0, np.nan]] * NUM_NODES)
    assert _graph(label=label).label.tolist() == [[1, -1]] * NUM_NODES


def test_a_number_of_classes_must_be_that_of_the_labels(tmp_path):
    with pytest.raises(ConfigError, match="num_classes 3: expected the 7 labels of each node"):
        ingest(_graph(), str(tmp_path), IngestOptions(num_classes=3))


def test_a_source_that_gives_other_rows_is_refused(tmp_path):
    class Short(ArrayGraph):
        def nodes(self, chunk_nodes):
            for chunk in super().nodes(chunk_nodes):
                yield replace(chunk, label=chunk.label[:, :4])

    made = _graph()
    short = Short(**{name: getattr(made, name) for name in made.__dataclass_fields__})
    with pytest.raises(ConfigError, match="num_classes 7: expected the 4 labels of each node"):
        ingest(short, str(tmp_path))

    class Mixed(ArrayGraph):
        def nodes(self, chunk_nodes):
            first, second = super().nodes(NUM_NODES // 2)
            yield first
            yield replace(second, label=second.label[:, :4])

    mixed = Mixed(**vars(made) | {"num_classes": None})
    with pytest.raises(DataError, match=r"expected int8 labels \[7\] as before, got int8 \[4\]"):
        ingest(mixed, str(tmp_path))


class _Undeclared(ArrayGraph):
    """A source that does not give the number of labels, like an edge list with node files."""

    @property
    def info(self):
        return replace(super().info, num_classes=None, label_bytes=8)


def test_several_labels_need_no_declaration(tmp_path):
    ingest(_Undeclared(**vars(_graph())), str(tmp_path))
    graph = open_graph(str(tmp_path))
    assert (graph.manifest.label_kind, graph.num_classes) == ("answers", NUM_LABELS)


@pytest.mark.parametrize("partitions", [1, 3])
def test_several_numbers_are_those_of_the_source(tmp_path, partitions):
    random = np.random.default_rng(4)
    label = random.normal(size=(NUM_NODES, 3))
    label[:, 2] = label[:, 2] * 1e6 + 1e8
    label[4], label[5, :2] = np.nan, np.nan
    source = _graph(label=label, class_names=("a", "b", "c"))
    ingest(source, str(tmp_path), IngestOptions(num_partitions=partitions))
    graph = open_graph(str(tmp_path))
    graph.verify()
    assert (graph.manifest.label_kind, graph.num_classes, graph.class_names) == ("values", 3, ("a", "b", "c"))
    assert "3 values" in repr(graph)
    router = local_router(graph)
    rows = router.fetch(random.permutation(NUM_NODES))
    np.testing.assert_array_equal(rows.label, source.label[rows.original_id])
    assert rows.label.dtype == through_bytes(rows).label.dtype == np.float32
    measured = graph.manifest.measured
    assert measured.num_labelled == NUM_NODES - 1
    for column, split in enumerate(measured.splits):
        known = source.label[source.split[:, column] == 1].astype(np.float64)
        assert split.training_target is None
        assert [target.num_labelled for target in split.training_targets] == (~np.isnan(known)).sum(axis=0).tolist()
        assert [target.mean for target in split.training_targets] == pytest.approx(np.nanmean(known, axis=0))
        assert [target.std for target in split.training_targets] == pytest.approx(np.nanstd(known, axis=0))
    edit_manifest(tmp_path, lambda tree: tree["statistics"]["splits"][0].update(training_targets=[]))
    with pytest.raises(FormatError, match="training_targets': expected 3 targets, got '0 targets'"):
        _ = open_graph(str(tmp_path)).manifest.measured


@pytest.mark.parametrize(
    ("label", "kind", "dtype", "shape"),
    [
        ([[0.5, 1.0], [np.nan, 2.0]], "auto", np.float32, (2, 2)),
        ([[0.0, 1.0], [np.nan, 1.0]], "auto", np.int8, (2, 2)),
        ([[0.0, 1.0], [np.nan, 1.0]], "number", np.float32, (2, 2)),
        ([[3, 4], [5, 6]], "number", np.float32, (2, 2)),
        ([[True, False], [True, True]], "several", np.int8, (2, 2)),
        ([0.0, 1.0], "several", np.int8, (2, 1)),
        ([[0.0], [1.0]], "auto", np.int64, (2,)),
        ([[0.5], [1.0]], "auto", np.float32, (2,)),
    ],
)
def test_kinds_of_several_labels(label, kind, dtype, shape):
    found = label_column(np.array(label), "here", kind)
    assert (found.dtype, found.shape) == (dtype, shape)


def test_counts_of_labels_in_a_manifest_are_checked(tmp_path):
    ingest(_graph(), str(tmp_path))
    edit_manifest(tmp_path, lambda tree: tree["statistics"].update(class_counts=[NUM_NODES] * NUM_LABELS))
    with pytest.raises(FormatError, match="class_counts"):
        _ = open_graph(str(tmp_path)).manifest.measured
