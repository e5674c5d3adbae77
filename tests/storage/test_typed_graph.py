"""Typed graphs on disk. Stored data equal lists in Python. Damage and contradictions are refused with a one-line error."""

import tempfile
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.core.errors import ConfigError, DataError, FormatError
from graphmill.storage.format.manifest import parse_manifest
from graphmill.storage.format.source import Relation, TypedSource
from graphmill.storage.graph import StoredGraph, TypedGraph, open_graph
from graphmill.storage.graph_sets.graph_set import StoredGraphs
from graphmill.storage.importers.memory.array_graph import array_edges, array_nodes
from graphmill.storage.ingestion import typed_sources
from graphmill.storage.ingestion.ingest import ingest
from graphmill.storage.ingestion.ingest_options import IngestOptions, LinkSplitOptions, SplitOptions
from graphmill.storage.partitioning.partitioners import LDG_SLACK
from graphmill.storage.replicas.copied_files import copy_here
from graphmill.storage.snapshots.prune import prune
from tests.listed_graph import ListedGraph, expected_lists, listed_graphs, stored_lists, typed_lists, typed_source
from tests.stored_files import edit_manifest, newest_manifest, stored_file

WRITES, CITES, AT = (
    Relation("author", "writes", "paper"),
    Relation("paper", "cites", "paper"),
    Relation("author", "affiliated_with", "institution"),
)


def small(**changes) -> TypedSource:
    """Returns a source with 40 papers that have features and classes, 17 authors and 2 institutions."""
    rng = np.random.default_rng(0)
    nodes = {
        "paper": array_nodes(
            "paper", 40, rng.random((40, 3)), rng.integers(0, 4, 40), rng.integers(0, 4, (40, 1), np.int8)
        ),
        "author": array_nodes("author", 17),
        "institution": array_nodes("institution", 2, rng.random((2, 5))),
    }
    relations = {
        WRITES: array_edges("writes", rng.integers(0, 17, 100), rng.integers(0, 40, 100), rng.random(100)),
        CITES: array_edges("cites", rng.integers(0, 40, 90), rng.integers(0, 40, 90)),
        AT: array_edges("affiliated_with", rng.integers(0, 17, 20), rng.integers(0, 2, 20), edge_feature=rng.random((20, 2))),
    }  # fmt: skip
    return replace(TypedSource("small", nodes, relations), **changes)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("typed") / "graph"
    ingest(small(), str(folder), IngestOptions(num_partitions=2))
    return folder


@pytest.fixture
def stored(written: Path, tmp_path: Path) -> Path:
    """Returns a copy of the graph, which a test may damage."""
    import shutil

    return Path(shutil.copytree(written, tmp_path / "graph"))


@st.composite
def cases(draw: st.DrawFn):
    # One type and one relation make a plain graph, which the next test checks.
    nodes, relations = draw(typed_lists().filter(lambda lists: not len(lists[0]) == len(lists[1]) == 1))
    options = IngestOptions(
        num_partitions=draw(st.integers(1, max(each.num_nodes for each in nodes.values()))),
        partitioner=draw(st.sampled_from(["random", "range"])),
        seed=draw(st.integers(0, 3)),
        # A later test compares reverses within one type with the plain reference.
        undirected=draw(st.booleans()) if all(each.source != each.target for each in relations) else None,
        drop_duplicates=draw(st.booleans()),
        drop_self_loops=draw(st.booleans()),
        edge_ids=draw(st.booleans()),
        out_edges=draw(st.booleans()) and any(each.source == each.target for each in relations),
        memory_budget_bytes=1 << 24,
        num_threads=draw(st.sampled_from([1, 3])),
    )
    return nodes, relations, options


@given(cases())
def test_any_typed_graph_is_stored_as_the_lists_say(case) -> None:
    nodes, relations, options = case
    with tempfile.TemporaryDirectory() as folder:
        url = f"{folder}/graph"
        manifest = ingest(typed_source(nodes, relations), url, options)
        graph = open_graph(url)
        assert graph.manifest == manifest
        expected = expected_lists(nodes, relations, options)
        assert stored_lists(graph) == expected
        graph.verify()
        for relation, lists in expected.edges.items():
            degrees = [len(edges) for edges in lists.values()]
            measured = graph.relation(relation).manifest.measured
            assert (
                graph.relation(relation).num_edges
                == measured.in_degree.total
                == measured.out_degree.total
                == sum(degrees)
            )
            assert measured.in_degree.maximum == max(degrees)
            assert measured.out_degree.num == graph.nodes(relation.source).num_nodes
        for name in nodes:
            # No partition has more nodes than its equal share.
            sizes = np.diff(graph.nodes(name).offsets)
            assert sizes.max() - sizes.min() <= 1


@given(listed_graphs(), st.sampled_from(["random", "range"]), st.sampled_from([None, True, False]), st.data())
def test_one_type_and_one_relation_are_the_plain_graph(graph: ListedGraph, partitioner, undirected, data) -> None:
    """With any options, every file and every number is equal."""
    options = IngestOptions(
        num_partitions=data.draw(st.integers(1, min(4, graph.num_nodes))),
        partitioner=partitioner,
        undirected=undirected,
        drop_duplicates=data.draw(st.booleans()),
        drop_self_loops=data.draw(st.booleans()),
        edge_ids=data.draw(st.booleans()),
        memory_budget_bytes=1 << 24,
        num_threads=1,
    )
    source = TypedSource("one", {"paper": graph}, {CITES: graph})
    with tempfile.TemporaryDirectory() as folder:
        plain, one = (ingest(each, f"{folder}/{each.name}", options) for each in (graph, source))
        assert one.content_hash == plain.content_hash
        assert one.measured == plain.measured
        names = {"node_type": "paper", "relation": "cites"}
        assert replace(one, name=plain.name, files=plain.files, created=plain.created) == replace(
            plain, provenance={**names, **plain.provenance}
        )
        assert isinstance(open_graph(f"{folder}/one"), StoredGraph)


def test_partitions_do_not_show_through(tmp_path: Path) -> None:
    graphs = []
    for count in (1, 3, 8):
        for partitioner in ("random", "range"):
            url = str(tmp_path / f"{partitioner}{count}")
            ingest(small(), url, IngestOptions(num_partitions=count, partitioner=partitioner))
            graphs.append(open_graph(url))
    first = graphs[0]
    for graph in graphs[1:]:
        assert stored_lists(graph) == stored_lists(first)
        for name in first.manifest.rows:
            parts = [one.manifest.of_part(name).measured.graph_digest for one in (first, graph)]
            assert parts[0] == parts[1]
    # This type has fewer nodes than partitions.
    assert np.diff(graphs[-1].nodes("institution").offsets).tolist() == [0, 0, 0, 1, 0, 0, 0, 1]


def test_a_part_is_a_graph_that_opens_elsewhere_again(written: Path) -> None:
    """A pin opens the graph. The processes of a run open it in this way."""
    graph = open_graph(str(written))
    for part in (graph.nodes("institution"), graph.relation(WRITES)):
        again = part.pin().open()
        assert again.manifest == part.manifest
        assert again.manifest.content_hash == part.manifest.content_hash
    writes = graph.relation(WRITES).partition(1)
    assert writes.indices.dtype == np.int32
    assert (writes.original_id == graph.nodes("paper").partition(1).original_id).all()
    np.testing.assert_array_equal(writes.feature, graph.nodes("paper").partition(1).feature)


def test_it_is_written_to_other_stores_too() -> None:
    url = "memory://tests/typed/graph"
    manifest = ingest(small(), url, IngestOptions(num_partitions=2))
    graph = open_graph(url)
    graph.verify()
    assert (manifest.num_nodes, manifest.num_edges) == (59, 210)
    on_store = graph.features_by_range().pin().open()  # servers open graphs in this way with --servers.range_reads
    for part, own in ((on_store.nodes("paper"), graph.nodes("paper")), (on_store.relation(AT), graph.relation(AT))):
        rows = part.partition(1).feature_on_store
        assert rows is not None
        np.testing.assert_array_equal(rows.read(np.arange(own.partition(1).num_nodes)), own.partition(1).feature)


def test_a_copy_has_all_types_and_relations_of_its_partitions(written: Path, tmp_path: Path) -> None:
    url = str(tmp_path / "copy")
    origin = open_graph(str(written))
    assert copy_here(str(written), 1, url, [1]) == sum(entry.num_bytes for entry in origin.partition_files(1))
    copy = open_graph(url)
    assert isinstance(copy, TypedGraph)
    assert copy.manifest == replace(origin.manifest, origin=str(written))
    for name in origin.manifest.rows:
        np.testing.assert_array_equal(
            copy.part(name).partition(1, verify=True).indices, origin.part(name).partition(1).indices
        )
    with pytest.raises(FormatError, match=r"part-00000/.*: expected a file"):
        copy.nodes("paper").partition(0)
    assert not copy.is_here
    assert copy.whole().path == origin.path
    assert copy.nodes("author").whole().manifest == origin.nodes("author").manifest
    pinned = copy.relation(WRITES).pin()
    assert copy_here(str(written), 1, url, [0, 1]) == sum(entry.num_bytes for entry in origin.partition_files(0))
    open_graph(url).verify()
    for path in Path(url).rglob("*"):  # stands for a host that has none of the graph's files
        if path.is_file():
            path.unlink()
    assert pinned.open().manifest == copy.relation(WRITES).manifest


def test_what_a_dead_writer_left_is_pruned(tmp_path: Path) -> None:
    """The files and scratch files of a dead writer are removed, also in folders of types and relations."""
    url = tmp_path / "graph"
    for _ in range(2):
        ingest(small(), str(url), IngestOptions(overwrite=True))
    (url / "manifests/000001.json").unlink()
    (left,) = url.glob("data/000001-*")
    for name in ("paper/feature", "author--writes--paper/edges/0.dst"):
        (left / "scratch" / name).parent.mkdir(parents=True)
        (left / "scratch" / name).touch()
    pruned = prune(str(url), keep=1, now=time.time() + 1e6)
    assert pruned.foreign == ()
    assert pruned.orphans == (f"data/{left.name}",)
    assert not left.exists()
    open_graph(str(url)).verify()


def test_plain_and_typed_are_told_apart(written: Path, tmp_path: Path) -> None:
    plain = str(tmp_path / "plain")
    ingest(ListedGraph(3, [(0, 1)]), plain)
    for url, kind, message in (
        (
            str(written),
            StoredGraph,
            "expected a graph of one type of nodes, found a typed graph; graphmill inspect_graph",
        ),
        (plain, TypedGraph, "expected a typed graph, found a graph of one type of nodes"),
        (plain, StoredGraphs, "expected a set of graphs, found a graph of one type of nodes"),
    ):
        with pytest.raises(FormatError, match=message) as caught:
            open_graph(url, kind=kind)
        assert "\n" not in str(caught.value)
    assert isinstance(open_graph(plain, kind=(StoredGraph, TypedGraph)), StoredGraph)


@pytest.mark.parametrize("name", ["institution/features", "author--affiliated_with--institution/edges"])
def test_a_changed_file_of_any_part_is_seen_by_verification(name: str, stored: Path) -> None:
    file = stored_file(stored, f"part-00001/{name}.arrow")
    changed = bytearray(file.read_bytes())
    changed[len(changed) // 2] ^= 1
    file.write_bytes(changed)
    with pytest.raises(FormatError, match=f"{name}.arrow: expected sha256"):
        open_graph(str(stored)).verify()


@pytest.mark.parametrize("swapped", [(WRITES, CITES), (AT, WRITES)])
def test_neighbors_of_another_type_are_refused(swapped: tuple[Relation, Relation], stored: Path) -> None:
    """If the lists of one relation replace those of another, ids are out of range, or the number of rows is wrong."""
    files = [stored_file(stored, f"part-00000/{each}/topology.arrow") for each in swapped]
    contents = [file.read_bytes() for file in files]
    entries: dict[str, dict] = {}

    def swap(body: dict) -> None:
        names = [f"part-00000/{each}/topology.arrow" for each in swapped]
        entries.update({name: dict(body["files"][name]) for name in names})
        for name, other in zip(names, names[::-1], strict=True):
            body["files"][name].update({key: entries[other][key] for key in ("num_bytes", "sha256")})

    edit_manifest(stored, swap)
    for file, content in zip(files, contents[::-1], strict=True):
        file.write_bytes(content)
    graph_of = newest_manifest(stored).read_text()
    with pytest.raises(FormatError, match="content_hash"):
        parse_manifest(graph_of, "here")

    edit_manifest(stored, lambda body: body.update(content_hash=_hash(body)))
    graph = open_graph(str(stored))
    with pytest.raises(
        FormatError, match=r"expected node ids in \[0, |expected \d+ rows, found|expected .*, found None"
    ):
        _ = [graph.relation(each).partition(0) for each in swapped]


def _hash(body: dict) -> str:
    from graphmill.storage.filesystem.file_entry import FileEntry
    from graphmill.storage.format.manifest import hash_of_files

    return hash_of_files({name: FileEntry(**entry) for name, entry in body["files"].items()})


MANIFESTS = {
    "a relation of a type that there is not": (lambda b: b["edge_types"][0].update(source="venue"), "'source': expected one of the types"),
    "a type twice": (lambda b: b["node_types"].append(b["node_types"][0]), "expected each type once"),
    "a relation twice": (lambda b: b["edge_types"].append(b["edge_types"][0]), "expected each relation once"),
    "a type that could be a relation": (
        lambda b: b["node_types"][1].update(name="author--writes--paper"),
        "'name': expected a name of the format",
    ),
    "no types": (lambda b: b.update(node_types=[], edge_types=[]), "expected at least one type"),
    "another number of partitions": (
        lambda b: b["node_types"][1].update(partition_offsets=[0, 17]),
        "expected 2 partitions of each type",
    ),
    "a file too few": (lambda b: b["files"].pop("part-00001/author/nodes.arrow"), "an entry for part-00001/author/nodes.arrow"),
    "a file of no name of ours": (
        lambda b: b["files"].update({"part-00000/../x.arrow": b["files"]["part-00000/author/nodes.arrow"]}),
        "only file names of the format",
    ),
    "text ids": (lambda b: b["node_types"][0].update(ids="text"), "'ids': expected one of ('int64', 'string'), got 'text'"),
    "no statistics": (lambda b: b.update(statistics=None), "'statistics': expected those of each type"),
    "statistics of another type": (lambda b: b["statistics"].pop("author"), "expected an object"),
    "encodings": (lambda b: b.update(encodings={"rwse-5": {"files": {}}}), "expected one file for each partition, got []"),
    "links of nothing": (lambda b: b.update(links={"a--b--c": {}}), "'links': expected relations among author--"),
    "something newer": (lambda b: b.update(requires=["types", "time"]), "use a newer one"),
}  # fmt: skip


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_wrong_manifest_is_refused(name: str, stored: Path) -> None:
    change, message = MANIFESTS[name]
    edit_manifest(stored, change)
    with pytest.raises(FormatError) as caught:
        open_graph(str(stored))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


REFUSED = {
    "groups of random partitions": (IngestOptions(groups=4), "groups: expected a partitioner that finds some"),
    "more groups than nodes": (IngestOptions(partitioner="ldg", groups=41), "one for each of 40 nodes, got 41"),
    "links": (IngestOptions(links=LinkSplitOptions(valid=0.1)), "set --links.relation"),
    "partitions": (IngestOptions(num_partitions=41), r"at most one partition per node \(40\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_impossible_options_are_refused(name: str, tmp_path: Path) -> None:
    options, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message):
        ingest(small(), str(tmp_path / "graph"), options)
    assert not list(tmp_path.iterdir())


def test_out_edges_are_stored_for_relations_within_a_type(tmp_path: Path) -> None:
    graph_of = {
        name: ingest(small(), str(tmp_path / name), IngestOptions(num_partitions=2, out_edges=name == "both"))
        for name in ("in", "both")
    }
    assert [each for each, row in graph_of["both"].edge_types.items() if row.has_out_edges] == [CITES]
    assert graph_of["both"].requires == ["types", "out-edges of relations"]
    assert graph_of["in"].requires == ["types"]
    stored = open_graph(str(tmp_path / "both"), kind=TypedGraph)
    stored.verify()
    assert set(graph_of["both"].files) - set(graph_of["in"].files) == {
        f"part-{index:05d}/{CITES}/out_topology.arrow" for index in range(2)
    }
    one_way = {WRITES: small().relations[WRITES]}
    with pytest.raises(ConfigError, match="out_edges: expected a relation within one type, found none"):
        ingest(small(relations=one_way), str(tmp_path / "other"), IngestOptions(out_edges=True))


def test_groups_are_stored_with_each_type_and_do_not_depend_on_partitions(tmp_path: Path) -> None:
    def group_of(num_partitions: int) -> dict[str, dict[int, int]]:
        options = IngestOptions(num_partitions=num_partitions, partitioner="ldg", groups=8)
        ingest(small(), str(tmp_path / str(num_partitions)), options)
        graph = open_graph(str(tmp_path / str(num_partitions)), kind=TypedGraph)
        graph.verify()
        groups = dict[str, dict[int, int]]()
        for name in graph.node_types:
            parts = list(graph.nodes(name).partitions())
            assert graph.nodes(name).manifest.num_groups == 8
            for one, other in pairwise([part.group for part in parts if part.num_nodes]):
                assert one.max() < other.min()  # partitions are ranges of groups
            ids = np.concatenate([part.original_id for part in parts]).tolist()
            groups[name] = dict(zip(ids, np.concatenate([part.group for part in parts]).tolist(), strict=True))
        return groups

    assert group_of(1) == group_of(4)
    sizes = np.bincount(list(group_of(3)["paper"].values()), minlength=8)
    assert sizes.min() >= 1
    assert sizes.max() <= np.ceil(40 / 8 * (1 + LDG_SLACK))


def test_more_files_than_a_process_maps_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed_sources, "MAX_PARTITIONS", 17)
    ingest(small(), str(tmp_path / "graph"), IngestOptions(num_partitions=2))
    with pytest.raises(
        ConfigError, match="expected at most 2 with 6 types and relations, whose files a process maps, got 3"
    ):
        ingest(small(), str(tmp_path / "other"), IngestOptions(num_partitions=3))


def test_bad_sources_are_refused_in_one_line(tmp_path: Path) -> None:
    url = str(tmp_path / "graph")
    source = small()
    bad = array_edges("writes", np.array([3, 17]), np.array([0, 1]))
    with pytest.raises(DataError, match=r"writes: edge 1: expected node ids in \[0, 17\), got 17"):
        ingest(replace(source, relations={WRITES: bad}), url)
    with pytest.raises(ConfigError, match="expected types among author, got 'paper'"):
        ingest(replace(source, nodes={"author": source.nodes["author"]}), url)
    for name in ("two words", "a--b", "-a", "a/b", "..", ""):
        with pytest.raises(ConfigError, match="expected names of up to 64 letters"):
            ingest(TypedSource("x", {name: source.nodes["author"]}, {}), url)
    with pytest.raises(DataError, match="none: expected at least one node, got 0"):
        ingest(TypedSource("x", {"one": source.nodes["author"], "none": array_nodes("none", 0)}, {}), url)
    with pytest.raises(DataError, match="expected at least one node"):
        ingest(TypedSource("x", {}, {}), url)
    both = {**source.relations, Relation("paper", "rev_writes", "author"): source.relations[CITES]}
    with pytest.raises(ConfigError, match="has its reverse paper--rev_writes--author already"):
        ingest(replace(source, relations=both), url, IngestOptions(undirected=True))
    labelled = {"author": array_nodes("author", 17, label=np.zeros(17, int)), "paper": source.nodes["paper"]}
    with pytest.raises(ConfigError, match="expected one type with labels, found author, paper"):
        ingest(TypedSource("x", labelled, {}), url, IngestOptions(num_classes=5))
    assert not list(tmp_path.iterdir())


def test_asking_for_what_is_not_there(written: Path) -> None:
    graph = open_graph(str(written))
    with pytest.raises(ConfigError, match="expected a type, one of paper, author, institution, got 'venue'"):
        graph.nodes("venue")
    with pytest.raises(
        ConfigError, match=r"expected a type or a relation, one of paper, .*, got .paper--writes--author"
    ):
        graph.relation(Relation("paper", "writes", "author"))
    with pytest.raises(ConfigError, match=r"expected a type or a relation, one of paper, .*, got 'x'"):
        graph.part("x")
    assert "paper 40" in repr(graph)
    assert isinstance(graph, TypedGraph)


def test_edges_are_as_old_as_the_younger_of_their_ends(tmp_path: Path) -> None:
    """If only one of the two types has times, an edge gets the time of this end. Edges that have times keep them."""
    rng = np.random.default_rng(1)
    year, born = rng.integers(1990, 2020, 40), rng.integers(1980, 2010, 17)
    source = small()
    nodes = {
        "paper": array_nodes("paper", 40, node_time=year),
        "author": array_nodes("author", 17, node_time=born),
        "institution": array_nodes("institution", 2),
    }
    own = array_edges("cites", rng.integers(0, 40, 90), rng.integers(0, 40, 90), edge_time=rng.integers(0, 5, 90))
    url = str(tmp_path / "graph")
    ingest(
        replace(source, nodes=nodes, relations={**source.relations, CITES: own}), url, IngestOptions(num_partitions=2)
    )
    graph = open_graph(url)
    graph.verify()
    stored = {name: np.concatenate([graph.nodes(name).partition(p).original_id for p in range(2)]) for name in nodes}
    for relation, times in ((WRITES, (born, year)), (AT, (born, None))):
        for part in (graph.relation(relation).partition(p) for p in range(2)):
            target = np.repeat(part.original_id, np.diff(part.indptr))
            expected = times[0][stored["author"][part.indices]]
            expected = expected if times[1] is None else np.maximum(expected, times[1][target])
            assert part.edge_time is not None
            np.testing.assert_array_equal(part.edge_time, expected)
            lists = np.split(part.edge_time, part.indptr[1:-1])
            assert all(np.all(np.diff(one) >= 0) for one in lists)
    assert max(graph.relation(CITES).partition(p).edge_time.max() for p in range(2)) == 4
    assert graph.nodes("institution").partition(0).time is None
    by_time = IngestOptions(overwrite=True, split=SplitOptions(by_time=(0.5, 0.75)))
    ingest(replace(source, nodes=nodes), url, by_time)
    papers = open_graph(url).nodes("paper").partition(0)
    assert papers.split is not None
    assert np.bincount(papers.split[0], minlength=4)[1] >= 20
    assert papers.time[papers.split[0] == 1].max() < papers.time[papers.split[0] == 3].min()
    assert open_graph(url).nodes("institution").manifest.num_split_sets == 0
    with pytest.raises(ConfigError, match="expected a type whose nodes have times, found none; leave --split out"):
        ingest(small(), url, by_time)
    assert not small().relations[WRITES].info.has_edge_time
