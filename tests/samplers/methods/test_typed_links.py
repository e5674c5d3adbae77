"""Tests batches of links of one relation of a typed graph. The batch's links and their reverses are hidden. With one type and one relation, batches equal those
of a plain graph."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graphmill.core.errors import ConfigError, DataError
from graphmill.jobs.tasks.link_model import LinkModel
from graphmill.models.options.links import LinkDecoderOptions
from graphmill.samplers.access.router import local_router
from graphmill.samplers.access.typed_router import TypedRouter, typed_router
from graphmill.samplers.batches.link_batch import TypedLinkBatch, links_to_torch
from graphmill.samplers.methods.links import LinkSampler, TopLinkSampler
from graphmill.samplers.vocabulary.options import LinkOptions, NeighborOptions, RandomPartitionOptions, TopLinkOptions
from graphmill.storage.format.source import SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID, Relation, TypedSource
from graphmill.storage.format.stored_links import Links
from graphmill.storage.graph import TypedGraph, open_graph
from graphmill.storage.importers.memory.array_graph import array_edges, array_nodes
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.ingestion.ingest_options import LinkSplitOptions
from tests.samplers.methods.test_links import around_all, content, options

__all__ = ["graphs"]
from tests.samplers.methods.test_links import graphs

AUTHORS, PAPERS = 40, 70
WRITES, BY, CITES = (
    Relation("author", "writes", "paper"),
    Relation("paper", "by", "author"),
    Relation("paper", "cites", "paper"),
)
HELD = LinkSplitOptions(valid=0.15, test=0.15, relation=str(WRITES), reverse=str(BY))
Pairs = set[tuple[int, int]]


def source(*, links: Links | None = None, reverse: bool = True, time: np.ndarray | None = None) -> TypedSource:
    rng = np.random.default_rng(5)
    ends = np.unique(np.stack([rng.integers(0, AUTHORS, 400), rng.integers(0, PAPERS, 400)]), axis=1)
    if links is not None:
        ends = ends[:, ~np.isin(ends[0] * PAPERS + ends[1], links.source * PAPERS + links.destination)]
    nodes = {
        "author": array_nodes("author", AUTHORS, rng.normal(size=(AUTHORS, 3)).astype(np.float32)),
        "paper": array_nodes(
            "paper", PAPERS, rng.normal(size=(PAPERS, 4)).astype(np.float32), label=np.arange(PAPERS) % 3
        ),
    }
    edges = {
        WRITES: array_edges("writes", *ends, links=links, edge_time=None if time is None else time[: ends.shape[1]])
    }
    if reverse:
        order = rng.permutation(ends.shape[1])  # rows of the reverse relation have another order
        edges[BY] = array_edges("by", *ends[::-1, order], edge_time=None if time is None else time[order])
    edges[CITES] = array_edges("cites", rng.integers(0, PAPERS, 300), rng.integers(0, PAPERS, 300))
    return TypedSource("books", nodes, edges)


def stored(folder: Path, made: TypedSource, held: LinkSplitOptions = HELD, **more: Any) -> TypedGraph:
    url = str(folder / f"graph-{more.get('num_partitions', 1)}")
    ingest(made, url, IngestOptions(links=held, **more))
    return open_graph(url, kind=TypedGraph)


def pairs_of(graph: TypedGraph, relation: Relation) -> Pairs:
    """The stored edges of a relation as (source, target), by permanent ids."""
    permanent = np.concatenate([each.original_id for each in graph.nodes(relation.source).partitions()])
    found = set()
    for part in graph.relation(relation).partitions():
        row = np.repeat(part.original_id, np.diff(part.indptr))
        found |= set(zip(permanent[part.indices].tolist(), row.tolist(), strict=True))
    return found


def batch_pairs(batch: TypedLinkBatch, relation: Relation) -> Pairs:
    edges = batch.edges[relation]
    row = np.repeat(batch.nodes[relation.target].node_id, np.diff(edges.indptr))
    return set(zip(batch.nodes[relation.source].node_id[edges.indices].tolist(), row.tolist(), strict=True))


def ends(batch: TypedLinkBatch, *names: str) -> list[np.ndarray]:
    root = links_to_torch(batch).root_id.numpy()
    return [root[getattr(batch, name)] for name in names]


def backwards(pairs: Pairs) -> Pairs:
    return {(v, u) for u, v in pairs}


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> dict[int, TypedGraph]:
    folder = tmp_path_factory.mktemp("books")
    return {count: stored(folder, source(), num_partitions=count) for count in (1, 3)}


def test_held_out_links_are_edges_of_neither_relation(books: dict[int, TypedGraph]) -> None:
    whole = source()
    every = set(zip(whole.relations[WRITES].src.tolist(), whole.relations[WRITES].dst.tolist(), strict=True))
    for graph in books.values():
        kept = pairs_of(graph, WRITES)
        router, held = typed_router(graph).link_tables(None), Pairs()
        for code in (SPLIT_VALID, SPLIT_TEST):
            table = router.links(code)
            held |= set(zip(table.source.tolist(), table.destination.tolist(), strict=True))
        assert len(held) > 50
        assert not held & kept
        assert kept | held == every
        assert pairs_of(graph, BY) == backwards(kept)
        graph.verify()
    rows = [graph.relation(WRITES).manifest.links for graph in books.values()]
    assert rows[0] == rows[1]
    assert rows[0].reverse == str(BY)


@pytest.mark.parametrize("kind", ["added", "given", "by time"])
def test_every_way_to_hold_out_hides_the_reverses(kind: str, tmp_path: Path) -> None:
    split = LinkSplitOptions(valid=0.1, test=0.1, relation=str(WRITES))
    if kind == "added":
        graph, back = (
            stored(tmp_path, source(reverse=False), split, undirected=True),
            Relation("paper", "rev_writes", "author"),
        )
    elif kind == "given":
        whole = source().relations[WRITES]
        held = Links.of(whole.src[:30], whole.dst[:30], np.repeat([SPLIT_VALID, SPLIT_TEST], 15))
        graph, back = stored(tmp_path, source(links=held), LinkSplitOptions(reverse=str(BY))), BY
        assert sum(graph.relation(WRITES).manifest.links.positives) == 30
        bad = source()
        bad = replace(bad, relations={**bad.relations, WRITES: source(links=held).relations[WRITES]})
        with pytest.raises(DataError, match="no held-out link"):  # the reverse relation still has them
            stored(tmp_path / "bad", bad, LinkSplitOptions(reverse=str(BY)))
    else:
        time = np.arange(400) % 90
        made, back = source(), BY
        edges = made.relations[WRITES]
        when = {pair: int(time[i]) for i, pair in enumerate(zip(edges.src.tolist(), edges.dst.tolist(), strict=True))}
        timed = {
            WRITES: replace(
                edges,
                edge_time=np.array([when[pair] for pair in zip(edges.src.tolist(), edges.dst.tolist(), strict=True)]),
            )
        }
        of_by = made.relations[BY]
        timed[BY] = replace(
            of_by, edge_time=np.array([when[v, u] for u, v in zip(of_by.src.tolist(), of_by.dst.tolist(), strict=True)])
        )
        split = replace(HELD, valid=0.0, test=0.0, by_time=(0.7, 0.85))
        graph = stored(tmp_path, replace(made, relations={**made.relations, **timed}), split)
    kept = pairs_of(graph, WRITES)
    assert kept
    assert pairs_of(graph, back) == backwards(kept)
    assert graph.relation(WRITES).manifest.links.reverse == str(back)


@pytest.mark.parametrize("around", ["neighbor", "induced", "node2subgraph", "ppr", "whole"])
def test_a_batch_passes_no_message_along_its_links_nor_back(around: str, books: dict[int, TypedGraph]) -> None:
    told, seen = options(around, batch_size=40, num_negatives=3), []
    if around == "node2subgraph":
        told = replace(told, around=replace(told.around, direction="in"))
    samplers = [LinkSampler(typed_router(graph), told) for graph in books.values()]
    for number in range(samplers[0].num_batches):
        batch, same = (sampler.sample(2, number) for sampler in samplers)
        for one, other in zip(_arrays(batch), _arrays(same), strict=True):
            assert one == other
        begin, end, negative = ends(batch, "link_source", "link_destination", "negative")
        own = set(zip(begin.tolist(), end.tolist(), strict=True))
        assert not own & batch_pairs(batch, WRITES)
        assert not backwards(own) & batch_pairs(batch, BY)
        leaking = LinkSampler(typed_router(books[1]), replace(told, exclude_own=False)).sample(2, number)
        assert own & (batch_pairs(leaking, WRITES) | backwards(batch_pairs(leaking, BY)))
        assert batch.negative.max() < batch.num_roots  # negatives are papers, which come first
        assert batch.link_source.min() >= batch.num_roots
        assert negative.shape == (len(own), 3)
        seen += own
    assert len(seen) == len(set(seen))
    assert set(seen) == pairs_of(books[1], WRITES)


def _arrays(batch: TypedLinkBatch) -> list[Any]:
    tables = [*batch.nodes.values(), *batch.edges.values()]
    return [content(replace(batch, nodes={}, edges={})), *map(content, tables)]


@around_all
def test_one_type_and_one_relation_are_a_plain_graph(around: str, graphs) -> None:
    """Batches and a decoder's losses on them are the same as in the plain graph, byte for byte."""
    torch.manual_seed(0)
    model = LinkModel(_Rows(), LinkDecoderOptions(kind="mlp", width=4))
    for graph in (graphs["directed", 4], graphs["symmetric", 4]):
        router = local_router(graph)
        typed = TypedRouter(router.nodes, router.edges)
        # In a typed graph, held-out links are found by the name of their relation. This router has only one relation.
        typed.link_tables = lambda _, of=router: of.link_tables
        for told in (
            options(around),
            options(around, negatives="degree", num_negatives=2),
            options("whole", splits=(SPLIT_VALID, SPLIT_TEST), negatives="all", shuffle=False, batch_size=None),
        ):
            plain, one = (LinkSampler(each, told) for each in (router, typed))
            assert plain.num_batches == one.num_batches
            for number in range(0, plain.num_batches, 5):
                first, other = plain.sample(1, number), one.sample(1, number)
                columns = content(other)
                if around not in ("node2subgraph", "ppr"):  # those two have another order of nodes
                    (nodes,), (edges,) = other.nodes.values(), other.edges.values()
                    columns |= {**content(nodes), **content(edges), "feature": content(nodes)["x"]}
                shared = [name for name in columns if name.startswith(("link", "neg", "known", "is_l"))]
                if len(columns) > len(content(other)):
                    shared += ["root_index", "node_id", "indptr", "indices", "edge_id", "feature"]
                for name in shared:
                    assert content(first)[name] == columns[name], name
                model.train(told.shuffle)
                results = [model(links_to_torch(batch)).prediction for batch in (first, other)]
                assert results[0].tolist() == results[1].tolist()


class _Rows(torch.nn.Module):
    """A model that returns the permanent ids of the roots as states."""

    def forward(self, batch: Any) -> torch.Tensor:
        return torch.sin(batch.root_id[:, None] * torch.tensor([1.0, 0.3, 0.7, 0.1]))


def test_the_best_ends_are_of_the_target_type(books: dict[int, TypedGraph]) -> None:
    router = typed_router(books[3])
    batch = TopLinkSampler(router, TopLinkOptions(RandomPartitionOptions(num_chunks=1), 5)).sample(0, 0)
    found = LinkModel(_Rows(), LinkDecoderOptions(kind="dot", width=4)).eval()(links_to_torch(batch)).prediction
    assert links_to_torch(batch).predicted_id.tolist() == list(range(AUTHORS))
    known = pairs_of(books[3], WRITES)
    for author, best in enumerate(found[:, :5].long().tolist()):
        assert set(best) <= set(range(PAPERS))
        assert not {(author, paper) for paper in best} & known
    with pytest.raises(ConfigError, match="at most the number of nodes"):
        TopLinkSampler(router, TopLinkOptions(RandomPartitionOptions(num_chunks=1), PAPERS + 1))


def test_ends_of_two_types_are_as_of_their_links(tmp_path: Path) -> None:
    made = source(reverse=False)
    timed = replace(made.relations[WRITES], edge_time=np.arange(len(made.relations[WRITES].src)) % 50)
    split = LinkSplitOptions(by_time=(0.7, 0.85), relation=str(WRITES))
    graph = stored(tmp_path, replace(made, relations={**made.relations, WRITES: timed}), split, undirected=True)
    told = LinkOptions(
        NeighborOptions((3, 3), time="before", edge_columns=("time",)), splits=(SPLIT_TRAIN,), batch_size=30
    )
    batch = LinkSampler(typed_router(graph), told).sample(0, 1)
    papers, authors = batch.nodes["paper"], batch.nodes["author"]
    when = np.concatenate([papers.root_time[batch.root_index], authors.root_time[batch.second_index]])
    assert np.array_equal(when[batch.link_source], when[batch.link_destination])
    edges = batch.edges[WRITES]
    assert len(edges.edge_time)
    assert (edges.edge_time < np.repeat(papers.root_time, np.diff(edges.indptr))).all()


@pytest.mark.parametrize(
    ("held", "more", "message"),
    [
        (
            {"relation": None, "reverse": None},
            {},
            "of author--writes--paper, paper--by--author, paper--cites--paper, got none named",
        ),
        ({"relation": "a--b--c"}, {}, "got a--b--c; set --links.relation"),
        ({"valid": 0.0, "test": 0.0}, {}, "expected shares of edges to hold out, got none"),
        ({"reverse": str(CITES)}, {}, "expected a relation of the source from paper to author"),
        ({}, {"undirected": True}, "without --reverse-edges add, got paper--by--author"),
        ({"reverse": None}, {}, r"found paper--by--author \(100%\); .* pass --links.reverse none if"),
        ({"reverse": None}, {"undirected": True}, r"found paper--by--author \(100%\)"),
    ],
)
def test_options_that_do_not_fit_the_relations(held: dict, more: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        stored(tmp_path, source(), replace(HELD, **held), **more)


def test_another_relation_may_have_less_than_half_of_the_held_out_links_or_be_said_to_stay(tmp_path: Path) -> None:
    whole = source()
    free, cites = replace(HELD, reverse=None), replace(HELD, relation=str(CITES), reverse=None)
    graph = stored(tmp_path / "kept", whole, replace(HELD, reverse="none"))
    assert len(pairs_of(graph, BY)) == len(whole.relations[BY].src) > len(pairs_of(graph, WRITES))
    assert graph.relation(WRITES).manifest.links.reverse == ""
    half = {**whole.relations, BY: array_edges("by", whole.relations[BY].src[::3], whole.relations[BY].dst[::3])}
    stored(tmp_path / "third", replace(whole, relations=half), free)
    for way in (1, -1):  # 1: a copy of the relation; -1: its reverse
        for relation, held in ((WRITES, free), (CITES, cites)):
            again = Relation(*relation[::way])._replace(name="again")
            ends = np.stack([whole.relations[relation].src, whole.relations[relation].dst])[::way]
            more = {**half, again: array_edges("again", *ends)}
            with pytest.raises(ConfigError, match=rf"found {again} \(100%\)"):
                stored(tmp_path / "new", replace(whole, relations=more), held)
            assert not (tmp_path / "new/graph-1").exists()


def test_a_source_of_one_type_and_one_relation_is_held_out_as_a_plain_graph(tmp_path: Path) -> None:
    alone = TypedSource("alone", {"paper": source().nodes["paper"]}, {CITES: source().relations[CITES]})
    digests = []
    for name, relation in (("named", str(CITES)), ("not", None)):
        ingest(
            alone, str(tmp_path / name), IngestOptions(links=LinkSplitOptions(valid=0.2, test=0.2, relation=relation))
        )
        digests.append(open_graph(str(tmp_path / name)).manifest.links)
    assert digests[0] == digests[1] is not None
    with pytest.raises(ConfigError, match="one of paper--cites--paper alone"):
        ingest(alone, str(tmp_path / "other"), IngestOptions(links=replace(HELD, reverse=None)))
