"""Compares Node2Subgraph with a slow search over lists. Also tests invariants, draws, and requests to owners."""

import pickle
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from graphmill.core.counter_random import hash_counters
from graphmill.core.errors import ConfigError
from graphmill.samplers.access.owners import LocalOwner
from graphmill.samplers.access.partition_owner import PartitionOwner
from graphmill.samplers.access.router import Router
from graphmill.samplers.batches.minibatch import to_torch
from graphmill.samplers.kernels.random_streams import Purpose, stream_key
from graphmill.samplers.kernels.subgraphs import induced_subgraphs
from graphmill.samplers.methods.node2subgraph import Node2SubgraphSampler, grow_subgraphs
from graphmill.samplers.vocabulary.messages import FetchRows, InducedSubgraphs, ListNeighbors, NodeList
from graphmill.samplers.vocabulary.options import Node2SubgraphOptions
from graphmill.storage.format.manifest import Manifest
from graphmill.storage.graph import Partition
from tests.memory_graph import (
    CountingOwner,
    MemoryGraph,
    counting_owners,
    cut,
    memory_graphs,
    memory_router,
    random_graph,
)
from tests.reference_sampler import assert_same_batch


def _hash(key: int, counter: int) -> int:
    return int(hash_counters(key, np.array([counter], np.uint64))[0])


def _below(hashed: int, bound: int) -> int:
    return int(float(hashed >> 11) * 2.0**-53 * bound)


def reference_subgraph(
    graph: MemoryGraph, root: int, options: Node2SubgraphOptions, epoch: int
) -> list[tuple[int, int]]:
    """The slow search, with dicts and lists. Returns the (hop, row) pairs of a root's subgraph in the promised order."""
    lists = graph.lists(options.direction)
    epoch = 0 if options.fixed or not options.shuffle else epoch
    root_key = _hash(int(stream_key(options.seed, Purpose.SUBGRAPHS, epoch)), graph.ids[root])
    found, layer = {root: 0}, [root]
    for hop in range(1, options.max_hops + 1):
        room = options.max_nodes - len(found)
        new = list(dict.fromkeys(n for node in layer for n in lists[node] if n not in found))
        if room == 0 or not new:
            break
        if len(new) > room:
            key = _hash(root_key, hop)
            for i in range(room):
                j = i + _below(_hash(key, i), len(new) - i)
                new[i], new[j] = new[j], new[i]
            new = new[:room]
        found |= dict.fromkeys(new, hop)
        layer = new
    return sorted((hop, row) for row, hop in found.items())


@st.composite
def option_sets(draw: st.DrawFn) -> Node2SubgraphOptions:
    return Node2SubgraphOptions(
        max_hops=draw(st.integers(0, 4)),
        max_nodes=draw(st.integers(1, 12)),
        direction=draw(st.sampled_from(["in", "out", "both"])),
        batch_size=draw(st.integers(1, 20)),
        fixed=draw(st.booleans()),
        seed=draw(st.integers(0, 3)),
        shuffle=draw(st.booleans()),
    )


@given(memory_graphs(), option_sets(), st.integers(0, 2), st.integers(1, 4), st.integers(0, 5))
def test_equals_slow_reference_for_any_partitions(graph, options, epoch, num_partitions, cut_seed):
    num_partitions = min(num_partitions, graph.num_nodes)
    router = memory_router(graph, cut(graph.num_nodes, num_partitions, cut_seed))
    sampler = Node2SubgraphSampler(router, options)
    one = Node2SubgraphSampler(memory_router(graph), options)
    row_of = {permanent: row for row, permanent in enumerate(graph.ids)}
    in_lists, seen = graph.lists("in"), []
    for index in range(sampler.num_batches):
        batch = sampler.sample(epoch, index)
        assert_same_batch(batch, one.sample(epoch, index))
        assert batch.graph_ptr[-1] == batch.num_nodes
        assert batch.root_index.tolist() == batch.graph_ptr[:-1].tolist()
        for low, high in zip(batch.graph_ptr[:-1], batch.graph_ptr[1:], strict=True):
            rows = [row_of[permanent] for permanent in batch.node_id[low:high].tolist()]
            expected = reference_subgraph(graph, rows[0], options, epoch)
            assert list(zip(batch.hop[low:high].tolist(), rows, strict=True)) == expected
            for place, row in enumerate(rows):
                sources = batch.indices[batch.indptr[low + place] : batch.indptr[low + place + 1]] - low
                assert [rows[source] for source in sources] == [other for other in in_lists[row] if other in rows]
            seen.append(rows[0])
        assert batch.feature[:, 0].tolist() == batch.node_id.tolist()
        assert batch.label.tolist() == (batch.node_id % 7).tolist()
        assert set(batch.split.tolist()) == {1}
    assert sorted(seen) == list(range(graph.num_nodes))


@given(memory_graphs(max_nodes=25, max_edges=80), option_sets(), st.integers(2, 30))
def test_invariants_with_and_without_hub_tables(graph, options, hub_degree):
    """E13: a subgraph has at most M nodes, including the root. All layers except the last are complete. It is connected, and depends only on the root."""
    options = replace(options, max_nodes=min(options.max_nodes, 5))
    router = memory_router(graph, cut(graph.num_nodes, min(3, graph.num_nodes)))
    roots = router.list_split(0, 1)
    grown = grow_subgraphs(router, roots, options, 0, hub_degree)
    one = memory_router(graph)
    permanent = router.fetch(np.arange(graph.num_nodes), feature=False).original_id
    row_of = {p: row for row, p in enumerate(graph.ids)}
    lists = graph.lists(options.direction)
    for g, root in enumerate(roots.original_id.tolist()):
        low, high = grown.graph_ptr[g], grown.graph_ptr[g + 1]
        rows = [row_of[p] for p in permanent[grown.node[low:high]].tolist()]
        hops = grown.hop[low:high].tolist()
        assert len(set(rows)) == len(rows) <= options.max_nodes
        assert (rows[0], hops[0]) == (row_of[root], 0)
        distance, layer = {rows[0]: 0}, [rows[0]]
        while layer:
            layer = list({n for node in layer for n in lists[node]} - distance.keys())
            distance |= dict.fromkeys(layer, distance[max(distance, key=distance.get)] + 1)
        assert hops == [distance[row] for row in rows] == sorted(hops)
        assert max(hops) <= options.max_hops
        reachable = [row for row, far in distance.items() if far <= options.max_hops]
        full = len(rows) == min(options.max_nodes, len(reachable))
        assert full
        for row, far in distance.items():
            assert row in rows or far >= max(hops)
        for row, hop in zip(rows[1:], hops[1:], strict=True):
            parents = [other for other in rows if distance[other] == hop - 1 and row in lists[other]]
            assert parents
        # The same root is searched without other roots, in one partition. Neither other roots nor partitions change its subgraph.
        index = np.flatnonzero(one.list_split(0, 1).original_id == root)
        alone = NodeList(node=index, original_id=np.array([root]))
        again = grow_subgraphs(one, alone, options, 0, hub_degree)
        assert [row_of[p] for p in np.asarray(graph.ids)[again.node].tolist()] == rows


@pytest.mark.parametrize("hub_degree", [4, 1 << 30], ids=["hub tables", "read in full"])
@pytest.mark.parametrize("direction", ["in", "both"])
def test_part_of_a_layer_is_uniform(hub_degree, direction):
    """A chi-square test (p = 1e-4). Layer 2 of node 0 has 30 nodes and three parents. Some nodes have several parents or parallel edges."""
    parents, layer = [1, 2, 3], list(range(4, 34))
    edges = [(parent, 0) for parent in parents]
    edges += (
        [(node, 1) for node in layer[:20]] + [(node, 2) for node in layer[10:30]] + [(node, 3) for node in layer[5:15]]
    )
    edges += [(node, 1) for node in layer[:8]] + [(0, 1), (1, 1), (2, 3)]
    graph = MemoryGraph(34, edges)
    router, room, trials = memory_router(graph), 5, 4000
    root, count = NodeList(np.array([0]), np.array([0])), Counter()
    for seed in range(trials):
        options = Node2SubgraphOptions(max_hops=2, max_nodes=4 + room, direction=direction, seed=seed)
        grown = grow_subgraphs(router, root, options, 0, hub_degree)
        assert grown.hop.tolist() == [0, 1, 1, 1] + [2] * room
        count.update(grown.node[4:].tolist())
    assert set(count) == set(layer)
    expected = trials * room / len(layer)
    # Draws are without replacement. So the covariance of the counts is (1 - 1/30)(1 - room/30)·30/29 times that of independent draws.
    scale = (1 - room / len(layer)) * len(layer) / (len(layer) - 1)
    statistic = sum((count[node] - expected) ** 2 / expected for node in layer) / scale
    assert statistic < chi2.ppf(1 - 1e-4, len(layer) - 1)
    assert statistic > chi2.ppf(1e-4, len(layer) - 1)


def test_hub_with_very_many_neighbors():
    """A star with 200,000 leaves. The search from every leaf reaches the hub, but the hub's list is read only once, not once per root."""
    leaves = 200_000
    indptr = np.concatenate([[0, leaves], leaves + np.arange(1, leaves + 1)])
    indices = np.zeros(2 * leaves, np.int32)
    indices[:leaves] = np.arange(1, leaves + 1)
    partition = Partition(
        index=0,
        start=0,
        stop=leaves + 1,
        indptr=indptr,
        indices=indices,
        original_id=np.arange(leaves + 1),
        out_indptr=indptr,
        out_indices=indices,
        split=np.ones((1, leaves + 1), np.int8),
    )
    manifest = Manifest("star", leaves + 1, 2 * leaves, (0, leaves + 1), symmetric=True, num_split_sets=1)
    owner = CountingOwner(LocalOwner(PartitionOwner(partition, leaves + 1)))
    options = Node2SubgraphOptions(max_hops=3, max_nodes=20, batch_size=500)
    batch = Node2SubgraphSampler(Router(manifest, [owner]), options).sample(0, 0)
    asked = [request for request in owner.requests if isinstance(request, ListNeighbors)]
    assert sum((request.node == 0).sum() for request in asked) == 1
    assert np.all(np.diff(batch.graph_ptr) == 20)
    assert batch.num_edges == batch.num_roots * 2 * 19
    for g in range(batch.num_roots):
        low = batch.graph_ptr[g]
        assert batch.node_id[low + 1] == 0
        hub_sources = batch.indices[batch.indptr[low + 1] : batch.indptr[low + 2]]
        assert batch.node_id[hub_sources].tolist() == sorted(batch.node_id[low : low + 20].tolist())[1:]


@given(memory_graphs(max_nodes=20, max_edges=150), st.integers(0, 3), st.booleans())
def test_edges_of_hubs_equal_edges_read_in_full(graph, seed, by_time):
    """The result is the same even if equal neighbors are not adjacent in a list, as in lists that are sorted by time."""
    lists, rng = graph.lists("in"), np.random.default_rng(seed)
    lists = [rng.permutation(one).tolist() for one in lists] if by_time else lists
    sets = [rng.permutation(graph.num_nodes)[: rng.integers(1, graph.num_nodes + 1)] for _ in range(12)]
    member = np.concatenate(sets).astype(np.int32)
    graph_ptr = np.concatenate([[0], np.cumsum([len(one) for one in sets])])
    indptr = np.concatenate([[0], np.cumsum([len(one) for one in lists])])
    indices = np.asarray([node for one in lists for node in one], np.int32)
    position = np.arange(len(member), dtype=np.int32)
    arguments = (indptr, indices, member.astype(np.int64), position, graph_ptr, member, graph_ptr)
    for a, b in zip(induced_subgraphs(*arguments, 2, True), induced_subgraphs(*arguments, 1 << 40, True), strict=True):
        assert a.tolist() == b.tolist()


def test_one_request_per_owner_and_hop():
    graph, num_partitions = random_graph(300, 1500), 3
    manifest, owners = counting_owners(graph, cut(300, num_partitions))
    options = Node2SubgraphOptions(max_hops=4, max_nodes=40, batch_size=300)
    batch = Node2SubgraphSampler(Router(manifest, owners), options).sample(0, 0)
    hops = int(batch.hop.max())
    for owner in owners:
        kinds = Counter(type(request) for request in owner.requests)
        assert kinds[InducedSubgraphs] == 1
        assert kinds[FetchRows] == 1
        assert kinds[ListNeighbors] <= max(hops, 1) + 1
        listed = np.concatenate([request.node for request in owner.requests if isinstance(request, ListNeighbors)])
        assert len(listed) == len(set(listed.tolist()))  # each list is fetched at most once
        asked_rows = next(request.node for request in owner.requests if isinstance(request, FetchRows))
        assert len(asked_rows) == len(set(asked_rows.tolist()))


def test_epochs_redraw_unless_fixed():
    graph = random_graph(200, 3000)
    router = memory_router(graph)

    def sets(epoch: int, **options) -> dict[int, bytes]:
        sampler = Node2SubgraphSampler(router, Node2SubgraphOptions(max_hops=3, max_nodes=10, batch_size=64, **options))
        found = {}
        for index in range(sampler.num_batches):
            batch = sampler.sample(epoch, index)
            for low, high in zip(batch.graph_ptr[:-1], batch.graph_ptr[1:], strict=True):
                found[int(batch.node_id[low])] = batch.node_id[low:high].tobytes()
        return found

    fresh, again = sets(0), sets(1)
    assert fresh.keys() == again.keys()
    assert sum(fresh[root] != again[root] for root in fresh) > 100
    assert sets(0, fixed=True) == sets(1, fixed=True) == fresh
    assert sets(5, shuffle=False) == fresh
    assert sets(0, seed=1) != fresh


def test_repeated_roots_isolated_roots_and_the_root_alone():
    graph = MemoryGraph(5, [(0, 1), (1, 0), (2, 2), (2, 2), (1, 2)])
    router = memory_router(graph, [0, 1, 0, 1, 0])
    sampler = Node2SubgraphSampler(router, Node2SubgraphOptions(max_hops=3, max_nodes=3))
    roots = router.list_split(0, 1)
    batch = sampler.sample_roots(np.repeat(roots.original_id, 2))
    for g in range(0, 10, 2):
        parts = [batch.node_id[batch.graph_ptr[h] : batch.graph_ptr[h + 1]].tolist() for h in (g, g + 1)]
        assert parts[0] == parts[1]
    isolated = batch.graph_ptr[2 * 3]
    assert batch.graph_ptr[2 * 3 + 1] == isolated + 1
    for options in (Node2SubgraphOptions(max_hops=0), Node2SubgraphOptions(max_nodes=1)):
        alone = Node2SubgraphSampler(router, options).sample(0, 0)
        assert sorted(alone.node_id.tolist()) == [0, 1, 2, 3, 4]
        assert alone.graph_ptr.tolist() == [0, 1, 2, 3, 4, 5]
        loops = np.diff(alone.indptr)[np.argsort(alone.node_id)]
        assert loops.tolist() == [0, 0, 2, 0, 0]  # self-loops are kept


def test_bad_options_and_roots():
    for bad in ({"max_nodes": 0}, {"max_hops": -1}, {"max_hops": 1 << 15}, {"batch_size": 0}, {"direction": "up"}):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            Node2SubgraphOptions(**bad)
    graph = random_graph(20, 40)
    for assignment in (None, cut(20, 2)):
        router = memory_router(graph, assignment)
        sampler = Node2SubgraphSampler(router, Node2SubgraphOptions())
        for wrong in (20, -1, 2**40):
            with pytest.raises(ConfigError, match=rf"roots: expected ids of nodes of .* got {wrong}, "):
                sampler.sample_roots(np.array([3, wrong]))
        roots = sampler._root_batches.roots(2, 0)
        assert_same_batch(sampler.sample_roots(roots.original_id, 2, 0), sampler.sample(2, 0))
        with pytest.raises(ConfigError, match="batch"):
            sampler.sample(0, 99)


def test_torch_batch_and_its_bytes():
    router = memory_router(random_graph(60, 300), cut(60, 2))
    batch = Node2SubgraphSampler(router, Node2SubgraphOptions(max_nodes=8, batch_size=10)).sample(0, 0)
    tensors = to_torch(batch)
    assert tensors.graph_ptr.tolist() == batch.graph_ptr.tolist()
    assert tensors.to("cpu").hop.tolist() == batch.hop.tolist()
    assert batch.num_bytes >= batch.graph_ptr.nbytes + batch.hop.nbytes + batch.feature.nbytes
    assert_same_batch(pickle.loads(pickle.dumps(batch)), batch)  # noqa: S301
