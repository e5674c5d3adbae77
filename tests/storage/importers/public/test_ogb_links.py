"""Reads small link sets in OGB's raw layout with the readers of the `ogb` package."""

from pathlib import Path

import numpy as np
import pytest
import torch

from graphmill.core.errors import ConfigError, DataError
from graphmill.storage.format.source import SPLIT_TEST, SPLIT_VALID
from graphmill.storage.graph import open_graph
from graphmill.storage.importers.public.ogb_links import NAMES, ogb_link_graph
from graphmill.storage.importers.public.ogb_nodes import is_directed
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from tests.ogb_layout import NUM_NODES, check_graph, write_csv, write_graph

pytest.importorskip("ogb")

SPLIT = {"ogbl-collab": "time", "ogbl-citation2": "time", "ogbl-ppa": "throughput"}


def write_raw_layout(folder: Path, name: str) -> dict[str, np.ndarray]:
    """Writes the files of a downloaded set. The splits have arrays, as in OGB's files. Returns the content."""
    truth = write_graph(folder)
    edge, random = truth["edge"], np.random.default_rng(8)
    truth["weight"] = weight = random.integers(1, 5, len(edge))
    if name == "ogbl-collab":
        write_csv(folder / "raw/edge_weight.csv.gz", weight)
        truth["year"] = 1990 + np.arange(len(edge))
        write_csv(folder / "raw/edge_year.csv.gz", truth["year"])
    if name == "ogbl-citation2":
        write_csv(folder / "raw/node_year.csv.gz", np.full(NUM_NODES, 2016))
    for number, part in enumerate(("train", "valid", "test")):
        held = np.stack([np.arange(6), np.arange(6) + 10 + number], axis=1)
        if part == "train":
            held = edge
        if name == "ogbl-citation2":
            content = {"source_node": held[:, 0], "target_node": held[:, 1]}
            if part != "train":
                content["target_node_neg"] = random.integers(0, NUM_NODES, (len(held), 4))
                truth[f"{part}_negative"] = content["target_node_neg"]
        else:
            content = {"edge": held}
            if name == "ogbl-collab":
                content |= {"weight": np.ones(len(held)), "year": np.full(len(held), 2016 + number)}
            if part != "train":
                content["edge_neg"] = np.stack([np.arange(9), np.arange(9) + 20], axis=1)
        (folder / "split" / SPLIT[name]).mkdir(parents=True, exist_ok=True)
        torch.save(content, folder / "split" / SPLIT[name] / f"{part}.pt", pickle_protocol=4)
        truth[part] = held
    return truth


@pytest.mark.parametrize("name", NAMES)
def test_reads_the_real_layout(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name.replace("-", "_")
    truth = write_raw_layout(folder, name)
    source = ogb_link_graph(name, tmp_path, download=False)
    assert is_directed(name) == (name == "ogbl-citation2")
    check_graph(source, truth, directed=is_directed(name))
    assert source.info.has_edge_weight == (name == "ogbl-collab")
    np.testing.assert_allclose(source.feature, truth["feature"], rtol=1e-6)
    ingest(source, str(tmp_path / "g"), IngestOptions(num_partitions=2, undirected=is_directed(name) or None))
    graph = open_graph(str(tmp_path / "g"))
    graph.verify()
    assert graph.manifest.symmetric
    stored = graph.manifest.links
    assert stored is not None
    assert stored.positives == (0, 0, 6, 6)
    listed = name == "ogbl-citation2"
    assert stored.negatives == ((0, 0, 0, 0) if listed else (0, 0, 9, 9))
    assert stored.listed == ((0, 0, 24, 24) if listed else (0, 0, 0, 0))
    for partition in graph.partitions():
        assert partition.links is not None
        for i, source_node in enumerate(partition.links.source.tolist()):
            code, destination = partition.links.split[i], int(partition.links.destination[i])
            part = {SPLIT_VALID: "valid", SPLIT_TEST: "test"}[code]
            if partition.links.is_link[i]:
                row = truth[part].tolist().index([source_node, destination])
                if listed:
                    own = partition.links.negative[slice(*partition.links.negative_ptr[i : i + 2])]
                    assert own.tolist() == truth[f"{part}_negative"][row].tolist()
    if name == "ogbl-collab":
        np.testing.assert_array_equal(np.sort(source.edge_weight), np.sort(np.repeat(truth["weight"], 2)))
    assert list((folder / "processed").iterdir()) == []


def test_years_are_times(tmp_path: Path) -> None:
    truth = write_raw_layout(tmp_path / "ogbl_collab", "ogbl-collab")
    source = ogb_link_graph("ogbl-collab", tmp_path, download=False, years=True)
    ingest(source, str(tmp_path / "g"), IngestOptions(num_partitions=2))
    graph = open_graph(str(tmp_path / "g"))
    graph.verify()
    stored = np.concatenate([graph.original_id(index) for index in range(2)])
    expected = {}
    for (one, other), weight, year in zip(truth["edge"].tolist(), truth["weight"], truth["year"], strict=True):
        expected |= {(one, other): (weight, year), (other, one): (weight, year)}
    edges = {}
    for part in graph.partitions():
        target = np.repeat(part.original_id, np.diff(part.indptr))
        values = zip(part.edge_weight.tolist(), part.edge_time.tolist(), strict=True)
        edges |= dict(zip(zip(stored[part.indices].tolist(), target.tolist(), strict=True), values, strict=True))
        years = {SPLIT_VALID: 2017, SPLIT_TEST: 2018}  # years of links, and of pairs that are not links
        assert part.links.time.tolist() == [years[code] for code in part.links.split.tolist()]
    assert edges == expected
    write_raw_layout(tmp_path / "ogbl_ppa", "ogbl-ppa")
    with pytest.raises(ConfigError, match="leave --ogb-years out"):
        ogb_link_graph("ogbl-ppa", tmp_path, download=False, years=True)


def test_what_is_missing_or_something_else_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected one of ogbl-collab, ogbl-citation2, ogbl-ppa"):
        ogb_link_graph("ogbl-ddi", tmp_path)
    with pytest.raises(DataError, match=r"downloading is off; download http.*collab\.zip"):
        ogb_link_graph("ogbl-collab", tmp_path, download=False)
    folder = tmp_path / "ogbl_collab"
    write_raw_layout(folder, "ogbl-collab")
    valid = folder / "split/time/valid.pt"
    for content, message in (
        ({"edge": np.zeros((3, 3), np.int64), "edge_neg": np.zeros((1, 2), np.int64)}, r"edge of shape \[3, 3\]"),
        ({"edge": np.zeros((3, 2), np.float32)}, "edge: float32"),
        ([1, 2], "expected a dictionary of arrays"),
        ({"edge": np.zeros((3, 2), np.int64)}, "edge_neg: expected an array, found NoneType"),
    ):
        torch.save(content, valid)
        with pytest.raises(DataError, match=message):
            ogb_link_graph("ogbl-collab", tmp_path, download=False)
    valid.unlink()
    with pytest.raises(DataError, match=r"split/time/valid\.pt missing"):
        ogb_link_graph("ogbl-collab", tmp_path, download=False)
