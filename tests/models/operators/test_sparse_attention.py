"""Compares Exphormer's and BigBird's attention with their formulas, node by node in float64, and checks which pairs they read."""

import math

import pytest
import torch
from torch.overrides import TorchFunctionMode

from graphmill.models.gps.options import GPSOptions
from graphmill.models.operators.sparse_attention import ExpanderPairs, SparseAttention, block_pairs, cycle_pairs
from graphmill.models.options.features import Features
from graphmill.models.options.sparse import SparseOptions
from graphmill.models.primitives.graphs import Graphs
from graphmill.models.primphormer.attention import unit
from graphmill.models.primphormer.network import Primphormer
from graphmill.models.primphormer.options import PrimalOptions, PrimphormerConfig
from graphmill.models.primphormer.sequence import SequenceAttention

SIZES = (7, 1, 2, 0, 16)
WIDTH, HEADS = 8, 2


def batch(seed=0, sizes=SIZES):
    torch.manual_seed(seed)
    ptr = torch.tensor([0, *sizes]).cumsum(0)
    edges = [torch.randint(0, size, (2, size)) + first for size, first in zip(sizes, ptr, strict=False) if size]
    x = torch.randn(int(ptr[-1]), 3, dtype=torch.float64)
    edge_index = torch.cat(edges, dim=1)
    return Graphs(ptr, edge_index, x, torch.randn(edge_index.shape[1], 2, dtype=torch.float64))


def as_set(pairs):
    return set(zip(pairs.by_key.group_E.tolist(), pairs.by_query.group_E.tolist(), strict=True))


def test_cycles_visit_every_node_of_a_graph_once_and_leave_no_graph():
    graphs = batch()
    pairs = cycle_pairs(graphs, 3, seed=1)
    assert (graphs.graph_of_node[pairs[0]] == graphs.graph_of_node[pairs[1]]).all()
    assert (pairs[0] != pairs[1]).all()
    degree = torch.bincount(pairs[1], minlength=graphs.num_nodes)
    expected = torch.tensor([0 if size == 1 else 6 for size in SIZES])[graphs.graph_of_node]
    assert torch.equal(degree, expected)
    one = cycle_pairs(graphs, 1, seed=1)[:, :7]
    step = dict(one[:, one[0] < 7].t().tolist())
    seen, at = [], 0
    for _ in range(7):
        seen.append(at)
        at = step[at]
    assert at == 0
    assert sorted(seen) == list(range(7))


def test_cycles_depend_on_the_seed_and_on_no_other_graph():
    together, alone = batch(), batch(sizes=(7,))
    first = cycle_pairs(together, 2, seed=0)
    assert torch.equal(first[:, (first < 7).all(0)], cycle_pairs(alone, 2, seed=0))
    assert not torch.equal(cycle_pairs(alone, 2, seed=0), cycle_pairs(alone, 2, seed=1))


def test_the_union_of_five_cycles_is_an_expander():
    graphs = Graphs(torch.tensor([0, 200]), torch.zeros(2, 0, dtype=torch.int64))
    pairs = cycle_pairs(graphs, 5, seed=0)
    matrix = torch.zeros(200, 200, dtype=torch.float64).index_put_(
        (pairs[0], pairs[1]), torch.ones(1, dtype=torch.float64), accumulate=True
    )
    second = torch.linalg.eigvalsh(matrix)[-2]
    assert (
        second < 2 * math.sqrt(9) + 0.6
    )  # Alon and Boppana's bound of a graph of degree 10, which Friedman's theorem attains


def exphormer_reference(layer, x, pairs, states):
    """One query at a time."""
    q, k, v = layer.qkv(x).chunk(3, dim=1)
    e, channels = layer.state(states), WIDTH // HEADS
    out = torch.zeros_like(x)
    keys, queries = pairs.by_key.group_E.tolist(), pairs.by_query.group_E.tolist()
    for i in range(len(x)):
        for head in range(HEADS):
            c = slice(head * channels, (head + 1) * channels)
            own = [(p, keys[p]) for p in range(len(keys)) if queries[p] == i]
            weights = [
                math.exp(max(-5.0, min(5.0, float((q[i, c] * k[j, c] * e[p, c]).sum().detach()) / math.sqrt(channels))))
                for p, j in own
            ]
            out[i, c] = sum(w * v[j, c] for w, (_, j) in zip(weights, own, strict=True)) / (sum(weights) + 1e-6)
    return out


def test_exphormers_attention_is_its_formula():
    graphs = batch()
    torch.manual_seed(3)
    options = SparseOptions(cycles=2, virtual_nodes=2)
    expander = ExpanderPairs(options, WIDTH).double()
    layer = SparseAttention(WIDTH, HEADS, reads_states=True).double()
    with torch.no_grad():
        layer.qkv.weight.mul_(4)  # some scores reach the clamp
    e_ED = torch.randn(graphs.edge_index.shape[1], WIDTH, dtype=torch.float64)
    x_nD = torch.randn(graphs.num_nodes, WIDTH, dtype=torch.float64)
    pairs = expander(graphs, e_ED)
    n, count = graphs.num_nodes, graphs.num_graphs
    expected = {(int(a), int(b)) for a, b in graphs.edge_index.t()} | {
        (int(a), int(b)) for a, b in cycle_pairs(graphs, 2, 0).t()
    }
    for node in range(n):
        for number in range(2):
            virtual = n + number * count + int(graphs.graph_of_node[node])
            expected |= {(node, virtual), (virtual, node)}
    assert as_set(pairs) == expected
    got, virtual_VD = layer(x_nD, pairs)
    states = torch.cat(
        [
            e_ED,
            expander.expander_D.expand(cycle_pairs(graphs, 2, 0).shape[1], -1),
            *(each[number].expand(n, -1) for number in range(2) for each in (expander.into_VD, expander.out_of_VD)),
        ]
    )
    rows = torch.cat([x_nD, expander.virtual_VD.repeat_interleave(count, 0)])
    reference = exphormer_reference(layer, rows, pairs, states)
    torch.testing.assert_close(torch.cat([got, virtual_VD]), reference, rtol=1e-10, atol=1e-12)


def test_bigbirds_blocks_are_the_papers():
    graphs, options = batch(sizes=(30, 4)), SparseOptions(block=3, random_blocks=1)
    pairs = as_set(block_pairs(graphs, options))
    assert {pair for pair in pairs if max(pair) >= 30} == {(a, b) for a in range(30, 34) for b in range(30, 34)}
    near = {(a, b) for a in range(30) for b in range(30) if abs(a // 3 - b // 3) <= 1}
    ends = {(a, b) for a in range(30) for b in range(30) if a // 3 in (0, 9) or b // 3 in (0, 9)}
    assert near | ends <= pairs
    random = {(a // 3, b // 3) for a, b in pairs if a < 30} - {(a // 3, b // 3) for a, b in near | ends}
    assert 0 < len(random) <= 10
    assert len({query for _, query in random}) == len(random)


@pytest.mark.parametrize("sizes", [(30, 4), (0, 7, 0, 13), (1,), (3, 3, 40, 1, 22)])
def test_bigbirds_ends_of_a_batch_are_those_of_a_loop_over_all_blocks(sizes, monkeypatch):
    graphs, options = batch(sizes=sizes), SparseOptions(block=3, random_blocks=1)
    blocks = [-(-size // 3) for size in sizes]
    owner = [graph for graph, count in enumerate(blocks) for _ in range(count)]
    first = [sum(blocks[:graph]) for graph in range(len(blocks))]
    ends = {end for graph, count in enumerate(blocks) if count for end in (first[graph], first[graph] + count - 1)}
    expected = {(end, other) for end in ends for other in range(len(owner)) if owner[end] == owner[other]}
    start = [int(graphs.node_ptr[owner[block]]) + 3 * (block - first[owner[block]]) for block in range(len(owner))]
    block_of = {start[block] + i: block for block in range(len(owner)) for i in range(3)}
    found = {(block_of[query], block_of[key]) for key, query in as_set(block_pairs(graphs, options))}
    assert expected <= found
    rest = {(query, key) for query, key in found - expected if abs(query - key) > 1 and key not in ends}
    assert all(sum(query == one for one, _ in rest) <= 1 for query, _ in rest)  # the drawn block
    assert all(owner[query] == owner[key] for query, key in found)


def test_bigbirds_pairs_grow_with_the_batch_as_its_blocks_do():
    largest = 0

    class Largest(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            largest = max(largest, out.numel() if isinstance(out, torch.Tensor) else 0)
            return out

    with Largest():
        pairs = block_pairs(batch(sizes=(9,) * 200), SparseOptions(block=3, random_blocks=1))
    assert largest <= 4 * len(pairs.by_key.group_E)


def test_bigbirds_attention_is_a_softmax_over_its_pairs():
    graphs = batch(sizes=(30, 4))
    torch.manual_seed(4)
    layer, x_nD = (
        SparseAttention(WIDTH, HEADS, reads_states=False).double(),
        torch.randn(34, WIDTH, dtype=torch.float64),
    )
    pairs = block_pairs(graphs, SparseOptions(random_blocks=1))
    mask = torch.zeros(34, 34, dtype=torch.bool)
    mask[pairs.by_query.group_E, pairs.by_key.group_E] = True
    q, k, v = (each.unflatten(1, (HEADS, -1)).transpose(0, 1) for each in layer.qkv(x_nD).chunk(3, dim=1))
    score = (q @ k.mT / math.sqrt(WIDTH // HEADS)).masked_fill(~mask, -math.inf)
    expected = layer.out((score.softmax(-1) @ v).transpose(0, 1).flatten(1))
    got, virtual = layer(x_nD, pairs)
    assert virtual is None
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


def test_sequence_attention_is_its_formula():
    graphs = batch()
    torch.manual_seed(5)
    options = PrimalOptions(num_virtual=1)  # ten sampled nodes
    layer = SequenceAttention(WIDTH, HEADS, options).double()
    x_nD = torch.randn(graphs.num_nodes, WIDTH, dtype=torch.float64)
    got, loss = layer(x_nD, graphs)
    expected, losses = torch.zeros_like(x_nD), []
    for graph, size in enumerate(SIZES):
        if not size:
            continue
        first, count = int(graphs.node_ptr[graph]), min(size, 10)
        places = [first + (m * (size - 1)) // max(count - 1, 1) for m in range(count)]
        energy, traces = [], []
        for head in range(HEADS):
            c = slice(head * 4, head * 4 + 4)
            maps = [x_nD[places, c].T @ weight[head, :count] for weight in (layer.weight_e_HMS, layer.weight_r_HMS)]
            traces.append(torch.trace(maps[0].T @ maps[1]))
            for i in range(first, first + size):
                e, r = (unit(f(x_nD[i])[c]) @ m for f, m in zip((layer.query, layer.key), maps, strict=True))
                expected[i, c] = layer.out(torch.cat([e, r]))
                energy.append(0.5 * ((e.square() + r.square()) * layer.multiplier_HS[head].square()).sum())
        losses.append(sum(energy) / len(energy) - sum(traces) / HEADS)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(loss, sum(losses) / len(losses), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("attention", ["exphormer", "bigbird", "primal_sequence"])
@pytest.mark.parametrize("local", ["gated_gcn", "gcn", "none"])
def test_the_network_trains_and_graphs_do_not_mix(attention, local):
    torch.manual_seed(6)
    edge = Features(dim=2) if local == "gated_gcn" or attention == "exphormer" else Features()
    config = PrimphormerConfig(
        node=Features(dim=3),
        edge=edge,
        width=WIDTH,
        num_layers=2,
        num_heads=HEADS,
        attention=attention,
        layer=GPSOptions(local=local),
        primal=PrimalOptions(num_virtual=3),
    )
    model, graphs = Primphormer(config).double(), batch()
    out, penalty = model.forward_with_penalty(graphs)
    (out.square().sum() + penalty).backward()
    assert all(each.grad is not None for each in model.parameters() if each.requires_grad)
    assert (penalty > 0) == (attention == "primal_sequence")
    model.eval()
    alone = batch(sizes=(7,))
    edges = (graphs.edge_index < 7).all(0)
    alone = Graphs(alone.node_ptr, graphs.edge_index[:, edges], graphs.x[:7], graphs.edge_attr[edges])
    torch.testing.assert_close(model(alone)[0], model(graphs)[0], rtol=1e-9, atol=1e-11)
    assert model.config.sharding is None


def test_pairs_are_needed():
    with pytest.raises(ValueError, match="attention needs pairs"):
        SparseOptions(cycles=0, edges=False, virtual_nodes=0)
