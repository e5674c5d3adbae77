"""Compares the random-partition sampler with its slow reference, and its frequencies with probabilities."""

import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, chisquare

from graphmill.core.errors import ConfigError
from graphmill.samplers.access.owners import LocalOwner
from graphmill.samplers.access.partition_owner import PartitionOwner
from graphmill.samplers.access.router import Router, local_router
from graphmill.samplers.access.typed_router import typed_router
from graphmill.samplers.methods.full_graph import FullGraphSampler
from graphmill.samplers.methods.random_partition import RandomPartitionSampler
from graphmill.samplers.vocabulary.options import FullGraphOptions, RandomPartitionOptions
from graphmill.samplers.vocabulary.rank_shares import chunk_share, even_split
from graphmill.storage.format.source import SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID, Relation
from graphmill.storage.graph import StoredGraph, open_graph
from graphmill.storage.importers.files.npz_file import npz_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from tests import reference_sampler as reference
from tests.listed_graph import ListedGraph, expected_graph, listed_graphs, random_listed_graph
from tests.memory_graph import (
    CountingOwner,
    EdgeTable,
    MemoryGraph,
    NodeTable,
    TypedMemoryGraph,
    memory_router,
    random_typed_graph,
)
from tests.typed_reference import arrays_of

CUTS = [(1, "random"), (2, "random"), (4, "random"), (4, "range"), (4, "ldg"), (4, "metis")]


@pytest.fixture(scope="module")
def graph() -> ListedGraph:
    return random_listed_graph(300, 2400)


@pytest.fixture(scope="module")
def stored(graph: ListedGraph, tmp_path_factory: pytest.TempPathFactory) -> list[StoredGraph]:
    stored = []
    for count, partitioner in CUTS:
        url = str(tmp_path_factory.mktemp("cut") / "graph")
        ingest(graph, url, IngestOptions(num_partitions=count, partitioner=partitioner))
        stored.append(open_graph(url))
    return stored


@pytest.fixture(scope="module")
def routers(stored: list[StoredGraph]) -> list[Router]:
    return [local_router(one) for one in stored]


def partition_nodes(stored: StoredGraph) -> list[list[int]]:
    """For each partition, the permanent ids of its nodes."""
    return [partition.original_id.tolist() for partition in stored.partitions()]


def expected_batch(
    rows, options: RandomPartitionOptions, num_ranks: int, epoch: int, batch: int, parts: list[list[int]] | None = None
) -> reference.Expected:
    """The expected batch, computed with lists. `parts`: the nodes of each stored partition, if the graph is cut by partitions."""
    epoch = epoch if options.shuffle else 0
    if parts is None:
        chunks = [
            reference.chunk_nodes(rows, options.seed, epoch, chunk, options.num_chunks)
            for chunk in range(options.num_chunks)
        ]
    else:
        key = reference.stream_key(options.seed, reference.CHUNKS, epoch)
        chunks = [parts[i] for i in sorted(range(len(parts)), key=lambda i: reference.hash64(key, i))]
    groups = math.ceil(len(chunks) / options.chunks_per_batch)
    share = chunk_share(batch, groups, num_ranks)
    start, stop = even_split(len(chunks), groups, share.chunk)
    node = sorted(one for chunk in chunks[start:stop] for one in chunk)
    roots = [i for i, one in enumerate(node) if rows[one].split[options.split_set] in options.root_splits]
    return reference.Expected(
        node, reference.induced(rows, node), roots[reference.share(len(roots), share.parts, share.part)]
    )


@pytest.mark.parametrize(("num_chunks", "num_ranks"), [(1, 1), (1, 3), (2, 1), (7, 1), (7, 3), (64, 2), (300, 1)])
def test_every_cut_yields_the_reference(
    num_chunks: int, num_ranks: int, graph: ListedGraph, routers: list[Router]
) -> None:
    rows = expected_graph(graph, IngestOptions())
    options = RandomPartitionOptions(num_chunks=num_chunks, seed=3, root_splits=(SPLIT_TRAIN, SPLIT_TEST), split_set=1)
    samplers = [RandomPartitionSampler(router, options, num_ranks) for router in routers]
    num_batches = samplers[0].num_batches
    for epoch, batch in {(0, 0), (2, num_batches // 2), (2, num_batches - 1)}:
        first = samplers[0].sample(epoch, batch)
        reference.assert_is(first, expected_batch(rows, options, num_ranks, epoch, batch), rows, split_set=1)
        for sampler in samplers[1:]:
            reference.same_bytes(sampler.sample(epoch, batch), first)


@given(
    graph=listed_graphs(),
    partitions=st.integers(1, 4),
    num_chunks=st.integers(1, 12),
    num_ranks=st.integers(1, 5),
    seed=st.integers(0, 2**64 - 1),
    shuffle=st.booleans(),
    chunks_per_batch=st.integers(1, 5),
    cut=st.sampled_from(["random", "partitions"]),
)
def test_any_graph_yields_the_reference(
    graph: ListedGraph, partitions, num_chunks, num_ranks, seed, shuffle, chunks_per_batch, cut
) -> None:
    if graph.split is None:
        graph = replace(graph, split=[[SPLIT_TRAIN]] * graph.num_nodes)
    rows = expected_graph(graph, IngestOptions())
    partitions = min(partitions, graph.num_nodes)
    chunks = partitions if cut == "partitions" else min(num_chunks, graph.num_nodes)
    options = RandomPartitionOptions(
        chunks, seed=seed, shuffle=shuffle, chunks_per_batch=min(chunks_per_batch, chunks), cut=cut
    )
    with tempfile.TemporaryDirectory() as folder:
        ingest(graph, f"{folder}/graph", IngestOptions(num_partitions=partitions))
        stored = open_graph(f"{folder}/graph")
        parts = partition_nodes(stored) if cut == "partitions" else None
        sampler = RandomPartitionSampler(local_router(stored), options, num_ranks)
        roots, nodes = [], set()
        for batch in range(sampler.num_batches):
            found = sampler.sample(4, batch)
            reference.assert_is(found, expected_batch(rows, options, num_ranks, 4, batch, parts), rows)
            roots += found.node_id[found.root_index].tolist()
            nodes |= set(found.node_id.tolist())
        assert nodes == set(rows)
        assert sorted(roots) == [node for node, row in sorted(rows.items()) if row.split[0] == SPLIT_TRAIN]


@pytest.mark.parametrize(("num_chunks", "per_batch"), [(8, 2), (7, 3), (10, 4), (5, 5), (64, 7)])
def test_unions_of_chunks_are_the_reference(
    num_chunks: int, per_batch: int, graph: ListedGraph, routers: list[Router]
) -> None:
    rows = expected_graph(graph, IngestOptions())
    options = RandomPartitionOptions(num_chunks, seed=5, chunks_per_batch=per_batch)
    samplers = [RandomPartitionSampler(router, options, 2) for router in routers]
    assert samplers[0].num_batches == 2 * math.ceil(math.ceil(num_chunks / per_batch) / 2)
    for batch in range(samplers[0].num_batches):
        first = samplers[0].sample(1, batch)
        reference.assert_is(first, expected_batch(rows, options, 2, 1, batch), rows)
        for sampler in samplers[1:]:
            reference.same_bytes(sampler.sample(1, batch), first)


@pytest.fixture(scope="module")
def clustered(graph: ListedGraph, tmp_path_factory: pytest.TempPathFactory) -> StoredGraph:
    """The graph in eleven partitions made by METIS."""
    url = str(tmp_path_factory.mktemp("clustered") / "graph")
    ingest(graph, url, IngestOptions(num_partitions=11, partitioner="metis"))
    return open_graph(url)


CLUSTERS = RandomPartitionOptions(chunks_per_batch=2, cut="partitions", seed=2)


@pytest.mark.parametrize("per_batch", [1, 2, 3, 11])
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_partitions_are_the_chunks(per_batch: int, num_ranks: int, graph: ListedGraph, clustered: StoredGraph) -> None:
    rows = expected_graph(graph, IngestOptions())
    options = replace(CLUSTERS, chunks_per_batch=per_batch)
    sampler = RandomPartitionSampler(local_router(clustered), options, num_ranks)
    assert sampler.num_batches == num_ranks * math.ceil(math.ceil(11 / per_batch) / num_ranks)
    for batch in range(sampler.num_batches):
        expected = expected_batch(rows, options, num_ranks, 3, batch, partition_nodes(clustered))
        reference.assert_is(sampler.sample(3, batch), expected, rows)


VARIANTS = {
    "unions": RandomPartitionOptions(12, chunks_per_batch=3),
    "partitions": CLUSTERS,
    "within": RandomPartitionOptions(22, cut="within"),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_node_once_an_epoch_and_ranks_are_disjoint(name: str, clustered: StoredGraph) -> None:
    for num_ranks in (1, 2):  # both divide the number of groups, so ranks share no group
        sampler = RandomPartitionSampler(local_router(clustered), VARIANTS[name], num_ranks)
        for epoch in range(3):
            nodes = [sampler.sample(epoch, batch).node_id.tolist() for batch in range(sampler.num_batches)]
            assert all(node == sorted(node) for node in nodes)
            assert sorted(chain(*nodes)) == list(range(300))
            ranks = [set(chain(*nodes[rank::num_ranks])) for rank in range(num_ranks)]
            assert sum(map(len, ranks)) == 300


@pytest.mark.parametrize("name", VARIANTS)
def test_groups_are_drawn_anew_each_epoch_and_found_again(name: str, clustered: StoredGraph) -> None:
    def groups(epoch: int, *, shuffle: bool = True) -> frozenset[tuple[int, ...]]:
        sampler = RandomPartitionSampler(local_router(clustered), replace(VARIANTS[name], shuffle=shuffle))
        return frozenset(tuple(sampler.sample(epoch, batch).node_id.tolist()) for batch in range(sampler.num_batches))

    epochs = [groups(epoch) for epoch in range(5)]
    assert len(set(epochs)) == 5
    assert [groups(epoch) for epoch in range(5)] == epochs
    assert {groups(epoch, shuffle=False) for epoch in range(5)} == {epochs[0]}


def test_any_two_partitions_meet_about_equally_often(clustered: StoredGraph) -> None:
    sampler = RandomPartitionSampler(local_router(clustered), replace(CLUSTERS, chunks_per_batch=3))
    part_of = {node: part for part, nodes in enumerate(partition_nodes(clustered)) for node in nodes}
    met = np.zeros((11, 11), int)
    for epoch in range(300):
        for batch in range(4):  # of 2, 3, 3 and 3 partitions: an epoch has 10 of the 55 pairs
            parts = sorted({part_of[node] for node in sampler.sample(epoch, batch).node_id.tolist()})
            met[np.ix_(parts, parts)] += 1
    pairs = met[np.triu_indices(11, 1)]
    assert pairs.sum() == 3000
    low, high = binom.interval(1 - 1e-6, 300, 10 / 55)
    assert low <= pairs.min() <= pairs.max() <= high


def test_only_owners_of_a_batch_s_partitions_are_asked(clustered: StoredGraph) -> None:
    owners = [CountingOwner(LocalOwner(PartitionOwner(partition, 300))) for partition in clustered.partitions()]
    RandomPartitionSampler(Router(clustered.manifest, owners), CLUSTERS).sample(0, 4)
    kinds = [[type(request).__name__ for request in owner.requests] for owner in owners]
    assert sorted(kinds) == [[]] * 9 + [["ListChunk", "InducedEdges", "FetchRows"]] * 2


WITHIN = RandomPartitionOptions(33, cut="within", seed=2)


def within(options: RandomPartitionOptions, epoch: int, partition: int, part: int, nodes: list[int]) -> list[int]:
    """The nodes of one part of a stored partition that is cut into parts."""
    parts = options.num_chunks // 11
    key = reference.stream_key(options.seed, reference.CHUNKS, epoch)
    return [node for node in nodes if reference.hash64(key, node) * parts >> 64 == part]


@pytest.mark.parametrize(("num_ranks", "partition_of_rank"), [(1, None), (11, range(11)), (22, np.arange(22) // 2)])
def test_a_cut_within_partitions_is_the_reference(num_ranks, partition_of_rank, graph, clustered) -> None:
    rows, parts = expected_graph(graph, IngestOptions()), partition_nodes(clustered)
    options = replace(WITHIN, num_chunks=44)
    sampler = RandomPartitionSampler(local_router(clustered), options, num_ranks)
    expected = {tuple(within(options, 5, p, part, parts[p])): p for p in range(11) for part in range(4)}
    found = []
    for batch in range(sampler.num_batches):
        one = sampler.sample(5, batch)
        node = one.node_id.tolist()
        partition = expected[tuple(node)]
        if partition_of_rank is not None:
            assert partition == partition_of_rank[batch % num_ranks]
        roots = [i for i, row in enumerate(node) if rows[row].split[0] == SPLIT_TRAIN]
        reference.assert_is(one, reference.Expected(node, reference.induced(rows, node), roots), rows)
        found.append(tuple(node))
    assert sorted(found) == sorted(expected)


def test_a_rank_of_a_cut_within_partitions_asks_one_owner_alone(clustered: StoredGraph) -> None:
    owners = [CountingOwner(LocalOwner(PartitionOwner(partition, 300))) for partition in clustered.partitions()]
    sampler = RandomPartitionSampler(Router(clustered.manifest, owners), replace(WITHIN, corrected=True), num_ranks=11)
    for step in range(3):
        sampler.sample(1, 11 * step + 7)
    assert [len(owner.requests) for owner in owners] == [12 if index == 7 else 0 for index in range(11)]


def multigraph() -> MemoryGraph:
    """A graph of 40 nodes with parallel edges and self-loops. The last nodes have no in-edges."""
    rng = np.random.default_rng(4)
    edges = list(zip(rng.integers(0, 40, 400).tolist(), rng.integers(0, 36, 400).tolist(), strict=True))
    return MemoryGraph(40, [*edges, (3, 3), (3, 3), (20, 20)])


@pytest.mark.parametrize("cut_of", ["random", "within"])
def test_corrected_sums_are_unbiased(cut_of: str) -> None:
    """For every node, the mean of Σ coefficient · value over 1,500 epochs is within 4.5 standard errors of the sum over all in-edges. For chunks within
    partitions, the expected sum is over in-edges from the node's partition, scaled to all in-edges. Sums without coefficients are far off."""
    graph, trials = multigraph(), 1500
    part_of = np.arange(40) % 2
    options = RandomPartitionOptions(4, cut=cut_of, corrected=True)
    sampler = RandomPartitionSampler(memory_router(graph, part_of.tolist()), options)
    value, sums, plain = np.arange(40) ** 2 / 10.0 - 20, np.zeros((trials, 40)), np.zeros((trials, 40))
    in_lists = graph.lists("in")
    for epoch in range(trials):
        for batch in range(4):
            one = sampler.sample(epoch, batch)
            end = np.repeat(one.node_id, np.diff(one.indptr))
            np.add.at(sums[epoch], end, one.edge_coefficient * value[one.node_id[one.indices]])
            np.add.at(plain[epoch], end, value[one.node_id[one.indices]])
            assert one.degree.tolist() == [len(in_lists[node]) for node in one.node_id]
            assert (one.edge_coefficient[one.node_id[one.indices] == end] == 1).all()
    wrong = 0
    for node, sources in enumerate(in_lists):
        others = [one for one in sources if one != node]
        near = [one for one in others if cut_of == "random" or part_of[one] == part_of[node]]
        loops = value[node] * (len(sources) - len(others))
        exact = loops + value[near].sum() * len(others) / max(len(near), 1)
        error = 4.5 * sums[:, node].std() / np.sqrt(trials) + 1e-4
        assert abs(sums[:, node].mean() - exact) < error, node
        wrong += abs(plain[:, node].mean() - exact) > error
    assert wrong > 25


def test_correction_is_nothing_where_a_batch_is_the_graph(routers: list[Router]) -> None:
    batch = RandomPartitionSampler(routers[2], RandomPartitionOptions(1, corrected=True)).sample(0, 0)
    assert (batch.edge_coefficient == 1).all()
    assert batch.degree.tolist() == np.diff(batch.indptr).tolist()


def test_metis_parts_keep_far_more_edges_than_a_random_cut(real_data, tmp_path: Path) -> None:
    source = npz_graph(real_data / "nodes" / "amazon_photo.npz")
    ingest(source, str(tmp_path / "graph"), IngestOptions(num_partitions=32, partitioner="metis"))
    router = local_router(open_graph(str(tmp_path / "graph")))

    def kept(options: RandomPartitionOptions) -> float:
        sampler = RandomPartitionSampler(router, options)
        batches = [sampler.sample(0, batch) for batch in range(sampler.num_batches)]
        assert sum(batch.num_nodes for batch in batches) == 7650
        return sum(batch.num_edges for batch in batches) / router.manifest.num_edges

    random, parts = kept(RandomPartitionOptions(32)), kept(RandomPartitionOptions(cut="partitions"))
    groups = kept(RandomPartitionOptions(cut="partitions", chunks_per_batch=16))
    assert random == pytest.approx(1 / 32, rel=0.2)
    assert parts > 10 * random
    assert groups > parts + 0.05  # grouped partitions keep edges between them


def test_empty_chunks_are_empty_batches(routers: list[Router]) -> None:
    options = RandomPartitionOptions(num_chunks=300)
    for router in routers:
        sampler = RandomPartitionSampler(router, options)
        empty = [batch for batch in map(lambda b: sampler.sample(0, b), range(300)) if batch.num_nodes == 0]
        assert empty
        for batch in empty:
            assert batch.indptr.tolist() == [0]
            assert batch.num_edges == batch.num_roots == 0
            assert batch.feature is not None
            assert batch.feature.shape == (0, 4)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Router:
    rng = np.random.default_rng(0)
    edges = rng.integers(0, 20_000, (100_000, 2)).tolist()
    graph = ListedGraph(num_nodes=20_000, edges_listed=[tuple(edge) for edge in edges], split=[[SPLIT_TRAIN]] * 20_000)
    url = str(tmp_path_factory.mktemp("large") / "graph")
    ingest(graph, url, IngestOptions(num_partitions=2))
    return local_router(open_graph(url))


@pytest.mark.parametrize("num_chunks", [2, 10, 64])
def test_chunk_sizes_and_surviving_edges_are_as_chance_has_it(num_chunks: int, large: Router) -> None:
    sampler = RandomPartitionSampler(large, RandomPartitionOptions(num_chunks=num_chunks, seed=1))
    batches = [sampler.sample(0, batch) for batch in range(num_chunks)]
    sizes = [batch.num_nodes for batch in batches]
    assert sum(sizes) == 20_000
    assert chisquare(sizes).pvalue > 1e-4
    kept = sum(batch.num_edges for batch in batches)
    # Self-loops are always kept. Edges share nodes, so the variance is a little larger than that of a binomial distribution.
    low, high = binom.interval(1 - 1e-6, 100_000, 1 / num_chunks)
    assert 0.98 * low < kept < 1.02 * high


def test_two_nodes_meet_about_once_in_p_epochs(large: Router) -> None:
    sampler = RandomPartitionSampler(large, RandomPartitionOptions(num_chunks=4, seed=1))
    together = 0
    for epoch in range(100):
        chunks = [set(sampler.sample(epoch, batch).node_id[:10].tolist()) for batch in range(4)]
        together += any({0, 1} <= chunk for chunk in chunks)
    low, high = binom.interval(1 - 1e-4, 100, 1 / 4)
    assert low <= together <= high


REFUSED: dict[str, tuple[Callable[[Router], object], str]] = {
    "no chunk": (lambda _: RandomPartitionOptions(num_chunks=0), "num_chunks: expected at least 1, got 0; set num_chunks"),
    "no chunk in a batch": (
        lambda router: RandomPartitionSampler(router, RandomPartitionOptions(4, chunks_per_batch=0)),
        "chunks_per_batch: expected 1 to the number of chunks (4), got 0; set --sampler.chunks_per_batch",
    ),
    "more chunks in a batch than there are": (
        lambda router: RandomPartitionSampler(router, RandomPartitionOptions(chunks_per_batch=11)),
        "expected 1 to the number of chunks (4), got 11; set --sampler.chunks_per_batch",
    ),
    "more partitions in a batch than there are": (
        lambda router: RandomPartitionSampler(router, RandomPartitionOptions(cut="partitions", chunks_per_batch=2)),
        "expected 1 to the number of chunks (1), got 2; set --sampler.chunks_per_batch",
    ),
    "another number of chunks than partitions": (
        lambda router: RandomPartitionSampler(router, RandomPartitionOptions(10, cut="partitions")),
        "num_chunks: with cut 'partitions' expected the graph's 1 partitions or none, got 10; leave out --sampler.num_chunks",
    ),
    "no equal number of chunks within partitions": (
        lambda router: RandomPartitionSampler(router, RandomPartitionOptions(4, chunks_per_batch=2, cut="within")),
        "with cut 'within' expected a multiple of the graph's 1 partitions, one chunk a batch, got 4 and 2; set --sampler.num_chunks 4",
    ),
    "stored partitions corrected": (
        lambda _: RandomPartitionOptions(cut="partitions", corrected=True),
        "corrected: expected a cut at random (random or within), got the stored partitions; set cut",
    ),
    "unknown cut": (
        lambda _: RandomPartitionOptions(cut="metis"),  # type: ignore[arg-type]
        "cut: expected one of random, partitions, within, got 'metis'; set cut",
    ),
    "no root": (lambda _: RandomPartitionOptions(root_splits=()), "expected codes of no split, train, valid or test, got ()"),
    "roots of an unknown split": (lambda _: RandomPartitionOptions(root_splits=(SPLIT_VALID, 4)), "got (2, 4)"),
    "more chunks than nodes": (
        lambda router: RandomPartitionSampler(router, RandomPartitionOptions(num_chunks=301)),
        "expected at most one per node (300), got 301; set --sampler.num_chunks",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused_in_one_line(name: str, routers: list[Router]) -> None:
    build, message = REFUSED[name]
    with pytest.raises(ConfigError) as refused:
        build(routers[0])
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_chunks_of_a_typed_graph_have_all_types_and_relations():
    """An epoch has every node of every type once. A batch has all stored edges among its nodes, with their columns. A single chunk is the full graph."""
    graph, splits = random_typed_graph(), (0, 1, 2, 3)
    router = typed_router(graph.parted(3))
    options = RandomPartitionOptions(num_chunks=4, root_splits=splits, edge_columns=("feature",))
    sampler, seen = RandomPartitionSampler(router, options), {name: [] for name in graph.node_types}
    for number in range(sampler.num_batches):
        batch = sampler.sample(1, number)
        assert batch.predicted_id.tolist() == batch.roots.node_id.tolist()
        for name, nodes in batch.nodes.items():
            assert nodes.node_id.tolist() == sorted(nodes.node_id.tolist())
            seen[name] += nodes.node_id.tolist()
        for relation, edges in batch.edges.items():
            sources, targets = (batch.nodes[end].node_id.tolist() for end in (relation.source, relation.target))
            place, stored = {one: i for i, one in enumerate(sources)}, graph.in_edges(relation)
            kept = [[(place[source], row) for source, row in stored[one] if source in place] for one in targets]
            assert edges.indptr.tolist() == np.cumsum([0, *map(len, kept)]).tolist()
            assert edges.indices.tolist() == [source for one in kept for source, _ in one]
            if (feature := graph.edges[relation].feature) is not None:
                assert edges.edge_feature.tolist() == [feature[row] for one in kept for _, row in one]
    assert {name: sorted(nodes) for name, nodes in seen.items()} == {n: table.ids for n, table in graph.tables.items()}
    whole = RandomPartitionSampler(router, RandomPartitionOptions(num_chunks=1, root_splits=splits)).sample(0, 0)
    full = FullGraphSampler(typed_router(graph), FullGraphOptions(root_splits=splits))
    assert arrays_of(whole) == arrays_of(full.sample(0, 0))


@pytest.mark.parametrize(("num_ranks", "num_blocks"), [(1, 6), (2, 6), (3, 240), (5, 2)])
def test_shards_of_a_typed_graph_are_the_whole_in_its_stored_order(num_ranks: int, num_blocks: int) -> None:
    """Each rank has a range of blocks of every type, in order. Lists have the stored ids of sources. Roots have one type."""
    graph = random_typed_graph().parted(3)
    router, splits = typed_router(graph), (1, 2)
    options = FullGraphOptions(root_splits=splits, num_blocks=num_blocks, alone="shard", edge_columns=("id",))
    sampler = FullGraphSampler(router, options, num_ranks)
    shards = [sampler.sample(4, rank) for rank in range(num_ranks)]
    stored = {
        name: np.concatenate([part.original_id for part in graph.nodes(name).parts]).tolist() for name in graph.tables
    }
    for name, ids in stored.items():
        assert [one for shard in shards for one in shard.nodes[name].node_id.tolist()] == ids
        starts = shards[0].shard.block_starts(name)
        assert [len(shard.nodes[name]) for shard in shards] == np.diff(starts[list(shards[0].shard.ends)]).tolist()
    for relation in graph.relations:
        lists = graph.in_edges(relation)
        for shard in shards:
            edges = shard.edges[relation]
            for row, node in enumerate(shard.nodes[relation.target].node_id.tolist()):
                some = slice(edges.indptr[row], edges.indptr[row + 1])
                assert [stored[relation.source][one] for one in edges.indices[some]] == [one for one, _ in lists[node]]
                if edges.edge_id is not None:
                    assert edges.edge_id[some].tolist() == [edge for _, edge in lists[node]]
    papers = graph.tables["paper"]
    roots = {node for node, code in zip(papers.ids, papers.split, strict=True) if code in splits}
    assert sorted(one for shard in shards for one in shard.predicted_id.tolist()) == sorted(roots)
    assert all(shard.num_bytes > 0 for shard in shards)


@pytest.mark.parametrize("cut_of", ["random", "within"])
def test_corrected_sums_are_unbiased_in_every_relation(cut_of: str) -> None:
    """As in a plain graph, means over 400 epochs are within 4.5 standard errors. With a single chunk every coefficient is 1."""
    graph, trials, splits = random_typed_graph().parted(2), 400, (0, 1, 2, 3)
    router = typed_router(graph)
    options = RandomPartitionOptions(4, cut=cut_of, corrected=True, root_splits=splits)
    sampler = RandomPartitionSampler(router, options)
    part_of = {name: dict(zip(t.ids, graph.cut[name], strict=True)) for name, t in graph.tables.items()}
    value = lambda node: node**2 / 10.0 - 20  # noqa: E731
    stored = {relation: graph.in_edges(relation) for relation in graph.relations}
    sums = {relation: {node: np.zeros(trials) for node in lists} for relation, lists in stored.items()}
    for epoch in range(trials):
        for number in range(4):
            batch = sampler.sample(epoch, number)
            for relation, edges in batch.edges.items():
                source, target = (batch.nodes[end].node_id for end in (relation.source, relation.target))
                assert edges.degree.tolist() == [len(stored[relation][node]) for node in target.tolist()]
                end = np.repeat(np.arange(len(target)), np.diff(edges.indptr))
                itself = relation.source == relation.target
                if cut_of == "random":  # every other node is in the chunk with equal probability
                    is_loop = itself & (edges.indices == end)
                    share = (len(graph.tables[relation.source].ids) - itself) / max(len(source) - itself, 1)
                    assert np.allclose(edges.edge_coefficient, np.where(is_loop, 1, share))
                found = np.bincount(end, edges.edge_coefficient * value(source[edges.indices]), minlength=len(target))
                for node, total in zip(target.tolist(), found, strict=True):
                    sums[relation][node][epoch] = total
    for relation, lists in stored.items():
        for node, edges in lists.items():
            others = [source for source, _ in edges if relation.source != relation.target or source != node]
            here = part_of[relation.target][node]
            near = [one for one in others if cut_of == "random" or part_of[relation.source][one] == here]
            loops = value(node) * (len(edges) - len(others))
            exact, found = loops + sum(map(value, near)) * len(others) / max(len(near), 1), sums[relation][node]
            assert abs(found.mean() - exact) <= 4.5 * found.std() / np.sqrt(trials) + 1e-3 * abs(exact), (
                relation,
                node,
            )
    whole = RandomPartitionSampler(router, replace(options, cut="random", num_chunks=1)).sample(0, 0)
    for edges in whole.edges.values():
        assert (edges.edge_coefficient == 1).all()
        assert edges.degree.tolist() == np.diff(edges.indptr).tolist()


def test_types_are_cut_apart():
    """If nodes of two types have the same id, their chunks are independent."""
    table = NodeTable(list(range(400)))
    graph = TypedMemoryGraph(
        {"a": replace(table, labelled=True), "b": table}, {Relation("b", "to", "a"): EdgeTable([0], [0])}
    )
    batch = RandomPartitionSampler(typed_router(graph), RandomPartitionOptions(num_chunks=2)).sample(0, 0)
    both = np.intersect1d(batch.nodes["a"].node_id, batch.nodes["b"].node_id)
    assert 60 < len(both) < 140
