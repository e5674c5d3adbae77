"""Tests batches of links, with every sampler that can draw around the ends of links."""

from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphmill.core.errors import ConfigError
from graphmill.samplers.access.router import Router, local_router
from graphmill.samplers.batches.link_batch import LinkBatch, links_to_torch, without_links
from graphmill.samplers.batches.minibatch import MiniBatch
from graphmill.samplers.loading.loader import Loader
from graphmill.samplers.methods.links import LinkSampler, TopLinkSampler
from graphmill.samplers.methods.registry import build_sampler
from graphmill.samplers.vocabulary.options import (
    LinkOptions,
    LoaderOptions,
    NeighborOptions,
    Node2SubgraphOptions,
    PprOptions,
    RandomPartitionOptions,
    SaintOptions,
    TopLinkOptions,
)
from graphmill.storage.format.source import SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID
from graphmill.storage.format.stored_links import Links
from graphmill.storage.graph import StoredGraph, open_graph
from graphmill.storage.importers.memory.array_graph import ArrayGraph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.ingestion.ingest_options import LinkSplitOptions
from tests.far_owner import far_router
from tests.listed_graph import random_listed_graph

NUM_NODES = 150
PERMANENT_ID = 7 + 3 * np.arange(NUM_NODES)
AROUND: dict[str, Any] = {
    "neighbor": NeighborOptions(fanouts=(4, 3)),
    "induced": NeighborOptions(fanouts=(3, 2), edges="induced"),
    "columns": NeighborOptions(fanouts=(-1, -1), edge_columns=("id",)),
    "node2subgraph": Node2SubgraphOptions(max_hops=2, max_nodes=9),
    "ppr": PprOptions(epsilon=1e-3, top_k=6),
    "whole": RandomPartitionOptions(num_chunks=1),
}
around_all = pytest.mark.parametrize("around", AROUND)


@pytest.fixture(scope="module")
def graphs(tmp_path_factory) -> dict[tuple[str, int], StoredGraph]:
    """The same graph in 1 and in 4 partitions, each as a directed and as a symmetric graph."""
    folder, made = tmp_path_factory.mktemp("links"), {}
    source = replace(random_listed_graph(NUM_NODES, 900, seed=8), original_id=PERMANENT_ID.tolist())
    for name, undirected in (("directed", False), ("symmetric", True)):
        for partitions in (1, 4):
            url = str(folder / f"{name}-{partitions}")
            links = LinkSplitOptions(valid=0.1, test=0.1)
            options = IngestOptions(
                num_partitions=partitions, undirected=undirected, links=links, edge_ids=True, out_edges=True
            )
            ingest(source, url, options)
            made[name, partitions] = open_graph(url)
    return made


@pytest.fixture(scope="module")
def routers(graphs) -> dict[tuple[str, int], Router]:
    return {key: local_router(graph) for key, graph in graphs.items()}


def options(around: str = "neighbor", **more) -> LinkOptions:
    return LinkOptions(AROUND[around], **{"batch_size": 40, **more})


def content(batch: Any) -> dict[str, Any]:
    return {
        field.name: (value.dtype.str, value.shape, value.tobytes())
        if isinstance(value := getattr(batch, field.name), np.ndarray)
        else value
        for field in fields(batch)
    }


def ends(batch: LinkBatch, *names: str) -> list[np.ndarray]:
    """The permanent ids of the roots to which these columns refer."""
    root = batch.node_id[batch.root_index]
    return [root[getattr(batch, name)] for name in names]


def pairs(batch: LinkBatch) -> list[tuple[int, int]]:
    source, destination = ends(batch, "link_source", "link_destination")
    return list(zip(source.tolist(), destination.tolist(), strict=True))


def edges(batch: MiniBatch) -> Counter:
    """Counts a batch's edges as (permanent id of the source, permanent id of the destination, index of the subgraph)."""
    row = np.repeat(np.arange(batch.num_nodes), np.diff(batch.indptr))
    graph = np.zeros(len(row), int) if batch.graph_ptr is None else np.searchsorted(batch.graph_ptr, row, side="right")
    found = zip(batch.node_id[batch.indices].tolist(), batch.node_id[row].tolist(), graph.tolist(), strict=True)
    return Counter(found)


def graph_edges(graph: StoredGraph) -> set[tuple[int, int]]:
    permanent = np.concatenate([partition.original_id for partition in graph.partitions()])
    found = set()
    for partition in graph.partitions():
        row = np.repeat(partition.original_id, np.diff(partition.indptr))
        found |= set(zip(permanent[partition.indices].tolist(), row.tolist(), strict=True))
    return {(u, v) for u, v in found if u != v}


@around_all
@pytest.mark.parametrize("kind", ["directed", "symmetric"])
def test_each_link_once_an_epoch_and_none_of_them_among_its_batch_s_edges(around, kind, graphs, routers) -> None:
    router, expected = routers[kind, 4], graph_edges(graphs[kind, 4])
    if kind == "symmetric":
        expected = {(min(pair), max(pair)) for pair in expected}
    for num_ranks in (1, 3):
        sampler = LinkSampler(router, options(around), num_ranks)
        assert sampler.num_batches % num_ranks == 0
        seen: list[tuple[int, int]] = []
        for number in range(sampler.num_batches):
            batch = sampler.sample(2, number)
            assert isinstance(batch, LinkBatch)
            own = pairs(batch)
            seen += [(min(pair), max(pair)) if kind == "symmetric" else pair for pair in own]
            joined = {(u, v) for u, v, _ in edges(batch)}
            assert not joined & set(own)
            assert not joined & {(v, u) for u, v in own}
            assert (batch.is_link == 1).all()
            assert (batch.link_split == SPLIT_TRAIN).all()
        assert sorted(seen) == sorted(expected)


@around_all
def test_all_other_edges_stay_with_their_columns(around, routers) -> None:
    """Each batch is compared, edge by edge, with the batch that the inner sampler makes around the same roots."""
    router = routers["symmetric", 4]
    with_own, without = (LinkSampler(router, options(around, exclude_own=exclude)) for exclude in (False, True))
    left_out = 0
    for number in range(with_own.num_batches):
        whole, cut = with_own.sample(1, number), without.sample(1, number)
        own = {frozenset(pair) for pair in pairs(whole)}
        kept = Counter({edge: count for edge, count in edges(whole).items() if frozenset(edge[:2]) not in own})
        assert edges(cut) == kept
        left_out += whole.num_edges - cut.num_edges
        assert np.array_equal(cut.node_id, whole.node_id)
        if around == "columns":  # here an edge and its reverse have the same id
            of_edge = dict(zip(whole.edge_id.tolist(), ends_of_edges(whole), strict=True))
            assert [of_edge[one] for one in cut.edge_id.tolist()] == ends_of_edges(cut)
    assert left_out > 50


def ends_of_edges(batch: MiniBatch) -> list[frozenset[int]]:
    row = np.repeat(np.arange(batch.num_nodes), np.diff(batch.indptr))
    ends = zip(batch.node_id[batch.indices].tolist(), batch.node_id[row].tolist(), strict=True)
    return [frozenset(pair) for pair in ends]


@around_all
@pytest.mark.parametrize("negatives", ["uniform", "degree", "in_batch"])
def test_partitions_servers_threads_and_resumes_change_no_byte(around, negatives, graphs, routers) -> None:
    built = [
        LinkSampler(router, options(around, negatives=negatives, num_negatives=3), 2)
        for router in (routers["symmetric", 1], routers["symmetric", 4], far_router(graphs["symmetric", 4])[0])
    ]
    batches = [[content(sampler.sample(3, number)) for number in range(sampler.num_batches)] for sampler in built]
    if around == "columns":  # edge ids are ids of the source table
        assert batches[0][0]["edge_id"] == batches[1][0]["edge_id"]
    assert batches[0] == batches[1] == batches[2]
    assert len({sampler.content_hash for sampler in built}) == 1
    sampler = built[1]
    with Loader(sampler, LoaderOptions(threads=3, prefetch=4), rank=1, num_ranks=2, collate=links_to_torch) as loader:
        whole = list(loader.epoch(3))
        rest = list(loader.epoch(3, 2))
    assert [one.index for one in whole] == list(range(1, sampler.num_batches, 2))
    for one, again in zip(whole[2:], rest, strict=True):
        assert (one.negative == again.negative).all()
        assert one.negative.numpy().tobytes() == batches[0][one.index]["negative"][2]


def negatives_by_link(sampler: LinkSampler, epoch: int) -> dict[tuple[int, int], list[int]]:
    found = {}
    for number in range(sampler.num_batches):
        batch = sampler.sample(epoch, number)
        (negative,) = ends(batch, "negative")
        found |= dict(zip(pairs(batch), negative.tolist(), strict=True))
    return found


def test_negatives_are_a_function_of_seed_epoch_and_link(routers) -> None:
    router = routers["directed", 4]
    built = [LinkSampler(router, options(batch_size=size, num_negatives=4)) for size in (40, 7, 300)]
    first, *others = [negatives_by_link(sampler, 1) for sampler in built]
    assert all(other == first for other in others)
    assert negatives_by_link(built[0], 2) != first
    assert negatives_by_link(LinkSampler(router, options(num_negatives=4, seed=1)), 1) != first


def test_uniform_and_degree_weighted_negatives_come_as_often_as_they_should(graphs, routers) -> None:
    router = routers["symmetric", 1]
    degree = Counter(node for pair in graph_edges(graphs["symmetric", 1]) for node in pair)
    share = np.array([(degree[node] / 2) ** 0.75 for node in PERMANENT_ID.tolist()])
    for negatives, expected in (("uniform", np.ones(NUM_NODES)), ("degree", share)):
        sampler = LinkSampler(router, options(negatives=negatives, num_negatives=100))
        drawn = Counter(node for nodes in negatives_by_link(sampler, 0).values() for node in nodes)
        count = np.array([drawn[node] for node in PERMANENT_ID.tolist()])
        expected = expected / expected.sum() * count.sum()
        assert count.sum() > 30_000
        # A chi-square variable with 149 degrees of freedom exceeds 230 with probability 1/40,000.
        used = expected > 0
        assert ((count - expected)[used] ** 2 / expected[used]).sum() < 230
        assert not count[~used].any()


def test_negatives_in_the_batch_are_the_other_links_destinations(routers) -> None:
    sampler = LinkSampler(routers["directed", 4], options(negatives="in_batch", num_negatives=5))
    batch = sampler.sample(0, 1)
    assert batch.negative is not None
    for i, row in enumerate(batch.negative):
        others = np.delete(batch.link_destination, i)
        assert len(row) == 5
        assert Counter(row.tolist()) <= Counter(others.tolist())
    with pytest.raises(ConfigError, match="'in_batch' expects at least 2 links in a batch"):
        LinkSampler(routers["directed", 4], options(negatives="in_batch", batch_size=1))


@pytest.fixture(scope="module")
def listed(tmp_path_factory) -> Router:
    """A graph that stores negatives: for each link of one split, and for another split as a whole."""
    url = str(tmp_path_factory.mktemp("listed") / "g")
    edge = np.stack([np.arange(30), np.arange(1, 31)])
    links = Links.join(
        [
            Links.of([0, 4], [9, 12], SPLIT_VALID, negative=[[20, 21, 22], [23, 24, 25]]),
            Links.of([9], [4], SPLIT_TEST),
            Links.of([2, 3, 5], [30, 28, 27], SPLIT_TEST, is_link=0),
            Links.of([6, 7], [25, 26], SPLIT_TRAIN, is_link=0),
        ]
    )
    feature = np.ones((40, 1), np.float32)
    ingest(ArrayGraph("listed", 40, *edge, feature=feature, links=links), url, IngestOptions(num_partitions=3))
    return local_router(open_graph(url))


def test_stored_negatives(listed) -> None:
    def scored(code: int) -> LinkBatch:
        sampler = LinkSampler(
            listed, LinkOptions(AROUND["neighbor"], (code,), 9, "fixed", shuffle=False, exclude_own=False)
        )
        return sampler.sample(0, 0)

    valid, test = scored(SPLIT_VALID), scored(SPLIT_TEST)
    assert dict(zip(pairs(valid), ends(valid, "negative")[0].tolist(), strict=True)) == {
        (0, 9): [20, 21, 22],
        (4, 12): [23, 24, 25],
    }
    assert dict(zip(pairs(test), test.is_link.tolist(), strict=True)) == {(9, 4): 1, (2, 30): 0, (3, 28): 0, (5, 27): 0}
    assert test.negative.shape == (4, 0)
    training = LinkSampler(listed, options(negatives="fixed", num_negatives=2))
    batch = training.sample(0, 0)
    source, negative = ends(batch, "negative_source", "negative")
    assert set(zip(source.reshape(-1).tolist(), negative.reshape(-1).tolist(), strict=True)) == {(6, 25), (7, 26)}
    # If only some links of a batch have lists of negatives, shorter lists are padded with -1.
    both = LinkSampler(
        listed, LinkOptions(AROUND["whole"], (SPLIT_VALID, SPLIT_TEST), None, "fixed", shuffle=False, exclude_own=False)
    ).sample(0, 0)
    assert both.num_roots == 40
    assert both.negative.tolist() == [[20, 21, 22], [23, 24, 25]] + 4 * [[-1, -1, -1]]


def test_all_rivals_but_the_known_ones(graphs, routers) -> None:
    for kind in ("directed", "symmetric"):
        router = routers[kind, 4]
        scored = LinkOptions(AROUND["whole"], (SPLIT_VALID, SPLIT_TEST), None, "all", shuffle=False, exclude_own=False)
        batch = LinkSampler(router, scored).sample(0, 0)
        assert batch.node_id[batch.root_index].tolist() == PERMANENT_ID.tolist()
        joined = graph_edges(graphs[kind, 4])
        held = set(pairs(batch))
        if kind == "symmetric":
            held |= {(v, u) for u, v in held}
        found: dict[int, set[int]] = {}
        for link, node in batch.known.T.tolist():
            found.setdefault(link, set()).add(int(PERMANENT_ID[node]))
        for link, (u, v) in enumerate(pairs(batch)):
            expected = {b for a, b in joined | held if a == u and b != v} | {u}
            assert found[link] == expected
        best = TopLinkSampler(router, TopLinkOptions(AROUND["whole"], 3)).sample(0, 0)
        assert [source for source, _ in pairs(best)] == PERMANENT_ID.tolist()
        of_first = {int(PERMANENT_ID[node]) for link, node in best.known.T.tolist() if link == 0}
        first = int(PERMANENT_ID[0])
        assert of_first == {b for a, b in joined if a == first} | {first}  # held-out links may be found


def test_without_links_leaves_out_what_a_loop_over_the_edges_would() -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        n = int(rng.integers(1, 9))
        count = rng.integers(0, 5, n)
        indptr = np.concatenate([[0], np.cumsum(count)])
        ids = rng.permutation(30)[:n].astype(np.int64)
        indices = rng.integers(0, n, indptr[-1]).astype(np.int32)
        weight = rng.random(indptr[-1]).astype(np.float32)
        batch = MiniBatch(0, 0, ids, indptr, indices, np.arange(n), edge_weight=weight)
        source, destination = rng.integers(0, 30, (2, int(rng.integers(0, 12))))
        pairs_out = {frozenset(pair) for pair in zip(source.tolist(), destination.tolist(), strict=True)}
        found = without_links(batch, source, destination)
        lists = []
        for node in range(n):
            for place in range(indptr[node], indptr[node + 1]):
                if frozenset((int(ids[indices[place]]), int(ids[node]))) not in pairs_out:
                    lists.append((int(indices[place]), node, float(weight[place])))
        row = np.repeat(np.arange(n), np.diff(found.indptr))
        kept = zip(found.indices.tolist(), row.tolist(), found.edge_weight.tolist(), strict=True)
        assert list(kept) == lists


def test_what_cannot_be_is_one_line(routers, listed) -> None:
    router = routers["directed", 4]
    refusals = [
        (LinkOptions(SaintOptions()), "draws around given nodes .*SaintSampler has none; set --sampler neighbor"),
        (
            LinkOptions(AROUND["neighbor"], negatives="fixed"),
            "expects negatives stored for the links of the split train",
        ),
    ]
    for wrong, message in refusals:
        with pytest.raises(ConfigError, match=message):
            LinkSampler(router, wrong)
    cut = LinkSampler(router, LinkOptions(RandomPartitionOptions(num_chunks=4)))
    with pytest.raises(ConfigError, match="given roots need the whole graph in a batch, got 4 chunks"):
        cut.sample(0, 0)
    with pytest.raises(ConfigError, match=r"batch: expected a number in \[0, "):
        LinkSampler(router, options()).sample(0, 10_000)
    with pytest.raises(ConfigError, match="got 'all'"):
        LinkOptions(AROUND["neighbor"], negatives="all")
    with pytest.raises(ConfigError, match="top_k: expected less than the number of nodes"):
        build_sampler(TopLinkOptions(AROUND["whole"], NUM_NODES), router, 1)


def test_a_graph_without_held_out_links_says_what_to_do(tmp_path: Path) -> None:
    ingest(random_listed_graph(20, 60, seed=1), str(tmp_path / "g"))
    router = local_router(open_graph(str(tmp_path / "g")))
    assert LinkSampler(router, options()).num_batches >= 1  # links to train on: the graph's edges
    with pytest.raises(ConfigError, match=r"ingest it with --links\.valid"):
        LinkSampler(router, LinkOptions(AROUND["neighbor"], (SPLIT_VALID,), shuffle=False))
    with pytest.raises(ConfigError, match="links that are held out"):
        router.list_links(SPLIT_VALID)
