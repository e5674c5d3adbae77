"""Tests how links are held out, that no edge of the stored graph is a held-out link, and that files hold the given links."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from graphmill.core.errors import ConfigError, DataError, FormatError
from graphmill.storage.format.source import SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID
from graphmill.storage.format.stored_links import Links
from graphmill.storage.graph import StoredGraph, open_graph
from graphmill.storage.importers.memory.array_graph import ArrayGraph
from graphmill.storage.ingestion.held_out_links import split_of_edges
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.ingestion.ingest_options import LinkSplitOptions
from tests.listed_graph import ListedGraph, random_listed_graph, stored_graph

NUM_NODES = 120
HALF = LinkSplitOptions(valid=0.2, test=0.3, seed=1)


def edges_of(graph: StoredGraph) -> set[tuple[int, int]]:
    """Returns (source, destination) of every stored edge, as permanent ids."""
    return {(edge.other_end, node) for node, row in stored_graph(graph).items() for edge in row.in_edges}


def links_of(graph: StoredGraph) -> list[tuple[int, int, int, int, tuple[int, ...]]]:
    """Returns (split, whether it is a link, source, destination, negatives of this link) from all partitions, sorted. Nodes are named by rows in the source."""
    rows = []
    for partition in graph.partitions(verify=True):
        links = partition.links
        assert links is not None
        own = partition.original_id
        for i in range(len(links.source)):
            negatives = links.negative[links.negative_ptr[i] : links.negative_ptr[i + 1]]
            values = (links.split[i], links.is_link[i], links.source[i], links.destination[i])
            rows.append((*map(int, values), tuple(negatives.tolist())))
            permanent = np.sort(np.concatenate([part.original_id for part in graph.partitions()]))
            assert permanent[links.source[i]] in own
    return sorted(rows)


def gapped() -> ListedGraph:
    graph = random_listed_graph(NUM_NODES, 900, seed=4)
    return replace(graph, original_id=(5 + 2 * np.arange(NUM_NODES)).tolist())


@pytest.mark.parametrize("undirected", [True, False])
@pytest.mark.parametrize("partitioner", ["random", "ldg"])
def test_a_held_out_pair_is_no_edge_in_any_direction(tmp_path: Path, undirected: bool, partitioner) -> None:
    source = gapped()
    options = IngestOptions(num_partitions=3, partitioner=partitioner, undirected=undirected, links=HALF)
    ingest(source, str(tmp_path / "graph"), options)
    graph = open_graph(str(tmp_path / "graph"))
    graph.verify()
    permanent = source.original_id
    assert permanent is not None
    given = {frozenset((u, v)) for u, v in source.edges_listed if u != v}
    edges = {frozenset((permanent.index(u), permanent.index(v))) for u, v in edges_of(graph) if u != v}
    links = links_of(graph)
    held = {frozenset((u, v)) for _, _, u, v, _ in links}
    assert not held & edges
    assert held | edges == given
    # Shares are near the shares in the options. The split of a pair is a pure function of the pair.
    assert 0.4 < len(held) / len(given) < 0.6
    for split, is_link, u, v, negatives in links:
        assert is_link == 1
        assert negatives == ()
        assert split_of_edges(np.array([v]), np.array([u]), HALF) == split
        assert not undirected or u < v
    directed = sum((u, v) in set(source.edges_listed) for _, _, u, v, _ in links)
    assert directed == len(links) or undirected
    stored = graph.manifest.links
    assert stored is not None
    assert stored.positives[SPLIT_VALID] == sum(link[0] == SPLIT_VALID for link in links)
    assert stored.positives[SPLIT_TEST] == sum(link[0] == SPLIT_TEST for link in links)
    # Ingestion measures only the edges that are not held out.
    assert graph.manifest.measured.in_degree.total == graph.num_edges


def test_partitions_seeds_and_shares(tmp_path: Path) -> None:
    found = {}
    for name, partitions, links in (("one", 1, HALF), ("five", 5, HALF), ("seed", 2, replace(HALF, seed=2))):
        ingest(gapped(), str(tmp_path / name), IngestOptions(num_partitions=partitions, links=links))
        graph = open_graph(str(tmp_path / name))
        found[name] = (links_of(graph), graph.manifest.links)
    assert found["one"] == found["five"]
    assert found["one"][0] != found["seed"][0]
    # With a larger share, the links of the test split stay in it.
    one, more = (
        split_of_edges(np.arange(1000), np.arange(1000)[::-1] + 1000, s) for s in (HALF, replace(HALF, valid=0.4))
    )
    assert np.array_equal(one == SPLIT_TEST, more == SPLIT_TEST)
    assert (more[one == SPLIT_VALID] == SPLIT_VALID).all()


def given_graph(edges: np.ndarray, links: Links, **more) -> ArrayGraph:
    feature = np.ones((10, 2), np.float32)
    return ArrayGraph("given", 10, edges[:, 0], edges[:, 1], feature=feature, links=links, **more)


EDGES = np.array([[0, 1], [1, 2], [2, 3], [3, 4], [4, 5]])


def some_links() -> Links:
    listed = Links.of([6, 7], [0, 9], SPLIT_VALID, negative=[[1, 2, 3], [4, 5, 6]])
    return Links.join([listed, Links.of([5, 0], [0, 9], SPLIT_TEST), Links.of([9, 8], [1, 2], SPLIT_TEST, is_link=0)])


def test_given_links_are_stored_as_they_are(tmp_path: Path) -> None:
    ingest(given_graph(EDGES, some_links()), str(tmp_path / "g"), IngestOptions(num_partitions=3, undirected=True))
    graph = open_graph(str(tmp_path / "g"))
    assert links_of(graph) == [
        (SPLIT_VALID, 1, 6, 0, (1, 2, 3)),  # the negatives of this link belong to node 6
        (SPLIT_VALID, 1, 7, 9, (4, 5, 6)),
        (SPLIT_TEST, 0, 1, 9, ()),
        (SPLIT_TEST, 0, 2, 8, ()),
        (SPLIT_TEST, 1, 0, 5, ()),
        (SPLIT_TEST, 1, 0, 9, ()),
    ]
    stored = graph.manifest.links
    assert stored is not None
    assert (stored.positives, stored.negatives, stored.listed) == ((0, 0, 2, 2), (0, 0, 0, 2), (0, 0, 6, 0))
    assert graph.manifest.provenance["held_out"] == "as published"


@pytest.mark.parametrize("pair", [[0, 5], [5, 0]])
def test_an_edge_that_is_a_held_out_link_is_refused(tmp_path: Path, pair) -> None:
    edges = np.concatenate([EDGES, [pair]])
    with pytest.raises(
        DataError, match=rf"no held-out link, nor its reverse, among the edges, found {pair[0]} to {pair[1]}"
    ):
        ingest(given_graph(edges, some_links()), str(tmp_path / "g"))
    assert not (tmp_path / "g").exists()
    ingest(given_graph(edges, some_links(), repeats_links=True), str(tmp_path / "g"))
    assert open_graph(str(tmp_path / "g")).manifest.provenance["edges_that_are_held_out_links"] == "1"


def test_links_that_cannot_be(tmp_path: Path) -> None:
    def refused(links: Links, message: str, options: IngestOptions | None = None) -> None:
        with pytest.raises(DataError, match=message):
            ingest(given_graph(EDGES, links), str(tmp_path / "g"), options)

    refused(Links.of([0], [10], SPLIT_TEST), r"expected node ids in \[0, 10\), got 10")
    refused(Links.of([3], [3], SPLIT_TEST), "got node 3 twice")
    refused(Links.of([3], [4], SPLIT_TEST, negative=[[11]]), r"negatives: expected node ids in \[0, 10\), got 11")
    refused(Links.of([3], [5], 0), "expected the splits train, valid, test")
    refused(some_links(), "leave them out", IngestOptions(links=HALF))
    for wrong in ({"valid": 1.0}, {"test": -0.1}, {"valid": 0.5, "test": 0.5}):
        with pytest.raises(ConfigError, match="less than 1"):
            LinkSplitOptions(**wrong)


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    ingest(given_graph(EDGES, some_links()), str(tmp_path / "g"))
    (path,) = (tmp_path / "g").rglob("links.arrow")
    content = bytearray(path.read_bytes())
    place = content.find(np.array([6, 7], np.int64).tobytes())
    if place < 0:  # the rows of the links are in canonical order
        place = content.find(np.int64(6).tobytes() + np.int64(7).tobytes())
    content[place] = 200
    path.write_bytes(bytes(content))
    graph = open_graph(str(tmp_path / "g"))
    with pytest.raises(
        FormatError, match=r"links.arrow: links: expected node ids in \[0, 10\), got 200; the file is corrupt"
    ):
        graph.partition(0)
    with pytest.raises(FormatError, match="sha256"):
        graph.partition(0, verify=True)


def test_no_links_no_file(tmp_path: Path) -> None:
    ingest(gapped(), str(tmp_path / "g"))
    graph = open_graph(str(tmp_path / "g"))
    assert graph.manifest.links is None
    assert graph.partition(0).links is None
    assert not list((tmp_path / "g").rglob("links.arrow"))


def test_train_links_may_be_edges(tmp_path: Path) -> None:
    """Only links for validation and test are held out."""
    ingest(given_graph(EDGES, Links.of([0], [1], SPLIT_TRAIN)), str(tmp_path / "g"))
    assert links_of(open_graph(str(tmp_path / "g"))) == [(SPLIT_TRAIN, 1, 0, 1, ())]
