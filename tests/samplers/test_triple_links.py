"""Compares batches of a knowledge graph's links, by relation, with Python sets."""

from pathlib import Path

import numpy as np
import pytest

from graphmill.core.errors import ConfigError
from graphmill.samplers.access.router import Router, local_router
from graphmill.samplers.methods.links import LinkSampler, TopLinkSampler
from graphmill.samplers.vocabulary.options import LinkOptions, NeighborOptions, RandomPartitionOptions, TopLinkOptions
from graphmill.storage.format.source import SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID
from graphmill.storage.graph import open_graph
from graphmill.storage.importers.tables.triples import knowledge_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest

NUM_NODES, NUM_RELATIONS = 40, 3
Triples = set[tuple[int, int, int]]


def drawn() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random triples in three parts. Each part is int64 [3, m]: heads, relations, tails. Loops are among them."""
    rng = np.random.default_rng(2)
    rows = rng.integers(0, [NUM_NODES, NUM_RELATIONS, NUM_NODES], (700, 3))
    rows = rng.permutation(np.unique(rows, axis=0)).T
    return rows[:, :-120], rows[:, -120:-60], rows[:, -60:]


@pytest.fixture(scope="module")
def routers(tmp_path_factory) -> dict[int, Router]:
    folder: Path = tmp_path_factory.mktemp("triples")
    source = knowledge_graph("drawn", ["r", "s", "t"], *drawn(), num_nodes=NUM_NODES)
    made = {}
    for partitions in (1, 3):
        ingest(source, str(folder / f"{partitions}"), IngestOptions(num_partitions=partitions))
        made[partitions] = local_router(open_graph(str(folder / f"{partitions}")))
    return made


def both_ways(rows: np.ndarray) -> Triples:
    """The triples as (source, relation, destination), in both directions."""
    return {(h, r, t) for h, r, t in rows.T.tolist()} | {(t, r + NUM_RELATIONS, h) for h, r, t in rows.T.tolist()}


def links_of(batch) -> list[tuple[int, int, int]]:
    ids = batch.node_id[batch.root_index]
    columns = ids[batch.link_source], batch.link_relation, ids[batch.link_destination]
    return list(zip(*(column.tolist() for column in columns), strict=True))


def options(**more) -> LinkOptions:
    return LinkOptions(NeighborOptions(fanouts=(4, 3)), **{"batch_size": 100, **more})


def test_an_epoch_has_each_triple_both_ways_and_of_no_other_part(routers) -> None:
    sampler = LinkSampler(routers[3], options())
    for epoch in (0, 1):
        found = [link for batch in range(sampler.num_batches) for link in links_of(sampler.sample(epoch, batch))]
        assert len(found) == len(set(found))
        assert set(found) == both_ways(drawn()[0])


@pytest.mark.parametrize("code", [SPLIT_VALID, SPLIT_TEST])
def test_a_part_is_scored_both_ways(routers, code) -> None:
    sampler = LinkSampler(routers[1], options(splits=(code,), shuffle=False, exclude_own=False))
    found = [link for batch in range(sampler.num_batches) for link in links_of(sampler.sample(0, batch))]
    assert sorted(found) == sorted(both_ways(drawn()[code - SPLIT_TRAIN]))


def test_batches_do_not_depend_on_partitions(routers) -> None:
    for number in range(3):
        one, three = (LinkSampler(router, options()).sample(1, number) for router in routers.values())
        for name in ("node_id", "indptr", "indices", "link_source", "link_relation", "link_destination", "negative"):
            assert getattr(one, name).tobytes() == getattr(three, name).tobytes(), name


def test_no_edge_joins_the_two_ends_of_a_link_by_any_relation(routers) -> None:
    batch = LinkSampler(routers[3], options()).sample(0, 1)
    pairs = {frozenset((source, destination)) for source, _, destination in links_of(batch)}
    row = np.repeat(np.arange(batch.num_nodes), np.diff(batch.indptr))
    edges = zip(batch.node_id[batch.indices].tolist(), batch.node_id[row].tolist(), strict=True)
    assert not pairs & {frozenset(edge) for edge in edges}


def test_rivals_are_all_but_those_known_by_the_same_relation(routers) -> None:
    """A link is not ranked against its own destination. It is ranked against its source, because a relation may join a node to itself."""
    whole = LinkOptions(
        RandomPartitionOptions(num_chunks=1),
        splits=(SPLIT_VALID, SPLIT_TEST),
        batch_size=None,
        negatives="all",
        exclude_own=False,
        shuffle=False,
    )
    batch = LinkSampler(routers[3], whole).sample(0, 0)
    ids, known = batch.node_id[batch.root_index], set().union(*map(both_ways, drawn()))
    links = links_of(batch)
    told: list[set[int]] = [set() for _ in links]
    for link, root in batch.known.T.tolist():
        told[link].add(int(ids[root]))
    assert batch.known[0].tolist() == sorted(batch.known[0].tolist())
    for (source, relation, destination), others in zip(links, told, strict=True):
        assert others == {v for v in range(NUM_NODES) if (source, relation, v) in known} - {destination}
    assert any(source not in others for (source, *_), others in zip(links, told, strict=True))


def test_the_best_links_are_of_one_relation(routers) -> None:
    around = RandomPartitionOptions(num_chunks=1, shuffle=False)
    batch = TopLinkSampler(routers[1], TopLinkOptions(around, 3, relation=4)).sample(0, 0)
    assert set(batch.link_relation.tolist()) == {4}
    ids, train = batch.node_id[batch.root_index], both_ways(drawn()[0])
    told = {(int(ids[batch.link_source[link]]), int(ids[root])) for link, root in batch.known.T.tolist()}
    assert told == {(u, v) for u, r, v in train if r == 4} | {(u, u) for u in range(NUM_NODES)}
    with pytest.raises(ConfigError, match="set --relation"):
        TopLinkSampler(routers[1], TopLinkOptions(around, 3))
