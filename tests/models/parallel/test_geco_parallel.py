"""The rows of a graph are divided among 1, 2 or 4 real processes. GECO then has the same outputs and gradients as in one process, in float64."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from graphmill.models.geco.network import GECO
from graphmill.models.geco.options import GECOConfig
from graphmill.models.operators.filters import ImplicitFilter, circular_convolve
from graphmill.models.options.filters import FilterConfig
from graphmill.models.options.local import LocalOptions
from graphmill.models.parallel import gated_sequences
from graphmill.models.parallel.collectives import Peers, sum_gradients
from graphmill.models.parallel.halo import ShardedAdjacency
from graphmill.models.parallel.sequences import ShardedLayout
from graphmill.models.parallel.shards import Shards
from graphmill.models.parallel_cost import sent_bytes
from graphmill.models.primitives.propagation import Adjacency
from tests.gloo_workers import SIZES, check_parts, on_workers, shards_of

SMALL = FilterConfig(bands=2, inner_width=4, num_inner_layers=1)


@dataclass(frozen=True)
class Case:
    num_nodes: int
    options: dict[str, Any] = field(default_factory=dict)
    symmetric: bool = False
    weighted: bool = False
    lopsided: bool = False  # with more than two workers, the first and the last have no rows


CASES = {
    "static": Case(37, {"skip": True}),
    "padded transforms": Case(67, {"skip": True}),
    "dynamic, hops": Case(36, {"permutation": "dynamic", "hops": 2, "propagation": "sym"}),
    "symmetric, weighted": Case(41, {"propagation": "sym", "order": 3}, symmetric=True, weighted=True),
    "directed, weighted": Case(24, {"propagation": "sym", "filter": FilterConfig(scale="length")}, weighted=True),
    "every departure": Case(
        29, {"norm": "pre", "jump": "sum", "output_projection": True, "propagation": "sum", "permutation": "none"}
    ),
    "dropout": Case(43, {"dropout": 0.4, "input_dropout": 0.2, "recompute": True}),
    "dropout of a gate": Case(
        43,
        {"dropout": 0.4, "scale_rows": True, "input_dropout": 0.2, "local": LocalOptions("gcn", "gate", dropout=0.3)},
    ),
    "recomputed": Case(31, {"permutation": "dynamic", "hops": 2, "propagation": "sym", "recompute": True}),
    "self-loops": Case(
        31, {"propagation": "gcn", "local": LocalOptions(residual="linear", norm="none")}, weighted=True
    ),
    "gated gcn": Case(33, {"local": LocalOptions("gcn", "gate", "linear"), "recompute": True}),
    "gated lcb": Case(26, {"local": LocalOptions("lcb", "gate", "linear"), "hops": 2, "propagation": "gcn"}),
    "gated gat": Case(24, {"local": LocalOptions("gat", "gate", "linear", num_heads=2), "recompute": True}),
    "gat in front, empty shards": Case(23, {"local": LocalOptions("gat", "top", num_heads=3)}, lopsided=True),
    "the paper's layer, batch norm": Case(
        29, {"local": LocalOptions(norm="batch"), "norm": "pre", "recompute": True}, lopsided=True
    ),
    "serial sage, batch norm": Case(31, {"local": LocalOptions("sage", "serial", "linear", "batch")}),
    "gated gcn, batch norm": Case(33, {"local": LocalOptions("gcn", "gate", "linear", "batch"), "recompute": True}),
    "sage in front, batch norm, empty shards": Case(
        23, {"local": LocalOptions("sage", "top", "identity", "batch")}, lopsided=True
    ),
    "sage in front": Case(22, {"local": LocalOptions("sage", "top", "identity", "none", top_layers=2), "skip": True}),
    "encodings": Case(17, {"encoding_dim": 2, "permutation": "dynamic"}),
    "fewer channels than workers": Case(19, {"width": 3, "skip": True}),
    "fewer nodes than workers": Case(3, {"skip": True}),
    "one node": Case(1),
    "no node": Case(0),
    "empty shards": Case(23, {"hops": 2, "propagation": "sym"}, lopsided=True),
}


def build(case: Case) -> GECO:
    torch.manual_seed(1)
    options = {"width": 6, "num_layers": 3, "dropout": 0.0, "filter": SMALL, **case.options}
    model = GECO(GECOConfig(in_dim=5, out_dim=3, seed=5, **options)).double()
    with torch.no_grad():  # at their initial values, norms and biases have no effect
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@dataclass(frozen=True)
class Problem:
    """A directed graph with self-loops, parallel edges and isolated nodes. All numbers are float64."""

    indptr: torch.Tensor
    indices: torch.Tensor
    weight: torch.Tensor | None
    x: torch.Tensor
    node_id: torch.Tensor
    target: torch.Tensor
    encoding: torch.Tensor | None


def problem(case: Case) -> Problem:
    n, generator = case.num_nodes, torch.Generator().manual_seed(2)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    edges = torch.randint(0, max(n - 1, 1), (4 * n, 2), generator=generator)
    edges = torch.cat([edges, edges[:n]])
    weight = torch.rand(len(edges), dtype=torch.float64, generator=generator) + 0.1
    if case.symmetric:
        edges, weight = torch.cat([edges, edges.flip(1)]), torch.cat([weight, weight])
    order = torch.argsort(edges[:, 1], stable=True)
    indptr = torch.zeros(n + 1, dtype=torch.int64)
    indptr[1:] = torch.bincount(edges[:, 1], minlength=n).cumsum(0)
    return Problem(
        indptr,
        edges[order, 0].int(),
        weight[order] if case.weighted else None,
        randn(n, 5),
        torch.randperm(1000, generator=generator)[:n],
        randn(n, 3),
        randn(n, 2) if "encoding_dim" in case.options else None,
    )


def outcome(model: GECO, x: torch.Tensor, y: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
    """Computes outputs and gradients. The loss is a sum over rows, so the total is the sum of the workers' losses."""
    ((y - target).square() * torch.linspace(0.5, 1, 3, dtype=y.dtype)).sum().backward()
    assert x.grad is not None
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert len(grads) == len(list(model.parameters())), "DDP waits for every parameter's gradient"
    return {"y": y.detach(), "x": x.grad, **dict(model.named_buffers())} | grads


def one_process(case: Case) -> dict[str, torch.Tensor]:
    model, data = build(case), problem(case)
    x = data.x.clone().requires_grad_()
    adjacency = Adjacency(data.indptr, data.indices, data.weight)
    y = model(x, adjacency, node_id_N=data.node_id, epoch=3, encoding_NE=data.encoding)
    return outcome(model, x, y, data.target)


def sharded(case: Case, peers: Peers) -> dict[str, Any]:
    model, data, shards = build(case), problem(case), shards_of(case.num_nodes, peers.size, lopsided=case.lopsided)
    start, stop = shards.range(peers.rank)
    first, last = int(data.indptr[start]), int(data.indptr[stop])
    adjacency = ShardedAdjacency(
        data.indptr[start : stop + 1] - first,
        data.indices[first:last],
        shards,
        peers,
        None if data.weight is None else data.weight[first:last],
        symmetric=case.symmetric,
    )
    layout = ShardedLayout(shards, peers)
    x = data.x[start:stop].clone().requires_grad_()
    encoding = None if data.encoding is None else data.encoding[start:stop]
    peers.sent_bytes.clear()
    y = model(x, adjacency, node_id_N=data.node_id, epoch=3, encoding_NE=encoding, layout=layout)
    result: dict[str, Any] = outcome(model, x, y, data.target[start:stop])
    sum_gradients(list(model.parameters()), peers)
    result |= {name: p.grad for name, p in model.named_parameters()}
    result["sent"] = dict(peers.sent_bytes)
    result["halo_sent"] = sum(adjacency.plan.send)
    result["halo_received"] = adjacency.plan.num_halo
    return result


def all_cases(peers: Peers) -> dict[str, Any]:
    return {name: sharded(case, peers) for name, case in CASES.items()}


@pytest.fixture(scope="module")
def results() -> dict[int, list[Any]]:
    return on_workers(all_cases)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", list(CASES))
def test_outputs_and_gradients_equal_one_process(results, name, size):
    # Cases with dropout are compared with a group of one worker, which draws the same random numbers.
    expected = results[1][0][name] if name.startswith("dropout") else one_process(CASES[name])
    check_parts([by_case[name] for by_case in results[size]], expected)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "name",
    ["dynamic, hops", "recomputed", "gated gcn", "gated gcn, batch norm", "serial sage, batch norm", "sage in front"],
)
def test_bytes_sent_are_those_of_the_formula(results, name, size):
    case = CASES[name]
    config = build(case).config
    there = 2 if config.recompute else 1
    # After the local layers come five layers. Two of them have a global block. All five propagate as many channels as the model's width.
    num_layers, num_global = (5, 2) if name == "sage in front" else (config.num_layers, config.num_layers)
    parameters = sum(p.numel() for p in build(case).parameters())
    for rank in range(size):
        counted = results[size][rank][name]
        rows, channels = Shards.even(case.num_nodes, size).sizes, Shards.even(config.width, size).sizes
        # Before the convolutions a worker sends its rows of other workers' channels (K + 1 groups). After them it sends its
        # channels of other workers' rows.
        before = rows[rank] * (config.order + 1) * (config.width - channels[rank])
        after = (case.num_nodes - rows[rank]) * channels[rank]
        # The backward pass sends the same blocks in the opposite direction.
        back = (case.num_nodes - rows[rank]) * (config.order + 1) * channels[rank]
        back += rows[rank] * (config.width - channels[rank])
        assert counted["sent"].get("sequences", 0) == 8 * num_global * (there * (before + after) + back)
        # Degrees take one more product, with one channel. The product for out-degrees sends in the opposite direction.
        halo = num_layers * config.hops * config.width * (there * counted["halo_sent"] + counted["halo_received"])
        degrees = counted["halo_sent"] + (counted["halo_received"] if config.propagation == "sym" else 0)
        assert counted["sent"].get("halo", 0) == 8 * (halo + degrees)
        assert counted["sent"].get("gradients", 0) == 2 * (size - 1) * 8 * parameters // size
        # The documented formula leaves out the degrees. It also leaves out the plan, which has one byte per parameter: whether
        # the parameter has a gradient.
        shards = Shards.even(case.num_nodes, size)
        predicted = sent_bytes(config, shards, rank, counted["halo_sent"], counted["halo_received"], element_size=8)
        planned = counted["sent"].get("plan", 0)
        assert planned <= 2 * len(list(GECO(config).parameters()))
        assert sum(predicted.values()) == sum(counted["sent"].values()) - 8 * degrees - planned


@pytest.mark.parametrize("num", [11, 67])  # transforms of length 67 are padded
@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("scale", ["none", "length"])
def test_some_channels_in_chunks_are_the_equation(scale, skip, trainable, num):
    torch.manual_seed(0)
    config = FilterConfig(bands=2, inner_width=8, scale=scale, trainable_frequency=trainable)
    whole, chunked = (ImplicitFilter(config, 2, 5).double() for _ in range(2))
    chunked.load_state_dict(whole.state_dict())
    p, q = (torch.randn(3, 3, num, dtype=torch.float64).requires_grad_() for _ in range(2))
    s, t = (torch.randn(2, 3, dtype=torch.float64).requires_grad_() for _ in range(2))
    with torch.no_grad():
        q.copy_(p), t.copy_(s)
    assert len(gated_sequences._chunks(p)) == 3
    weight = torch.randn(3, num, dtype=torch.float64)
    v, filters = p[2], whole(num)[:, 1:4]
    for i in range(2):
        v = p[i] * (circular_convolve(filters[i], v) + (s[i].unsqueeze(1) * v if skip else 0))
    (v * weight).sum().backward()
    got = gated_sequences.gated_sequences(q, chunked, t if skip else None, 1, 4)
    (got * weight).sum().backward()
    torch.testing.assert_close(got, v, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(q.grad, p.grad, rtol=1e-12, atol=1e-12)
    if skip:
        torch.testing.assert_close(t.grad, s.grad, rtol=1e-12, atol=1e-12)
    for (name, ours), theirs in zip(chunked.named_parameters(), whole.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None), name
        if theirs.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-12, msg=name)


def test_shards_are_even_and_own_every_row():
    shards = Shards.even(11, 4)
    assert shards.sizes == [3, 3, 3, 2]
    assert shards.range(3) == (9, 11)
    assert Shards.even(2, 4).sizes == [1, 1, 0, 0]


def test_what_does_not_fit_is_one_clear_error():
    indptr, ids = torch.tensor([0, 1, 2]), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="rise from 0"):
        Shards((0, 3, 2))
    with pytest.raises(ValueError, match="one per worker: 1 workers, got 2"):
        ShardedAdjacency(indptr, ids, Shards.even(2, 2), Peers())
    with pytest.raises(ValueError, match=r"indptr \[4\] for its rows 0 to 3"):
        ShardedAdjacency(indptr, ids, Shards.even(3, 1), Peers())
    with pytest.raises(ValueError, match=r"lie in \[0, 2\)"):
        ShardedAdjacency(indptr, torch.tensor([0, 2]), Shards.even(2, 1), Peers())
    with pytest.raises(ValueError, match="2 edges"):
        ShardedAdjacency(torch.tensor([0, 2, 1]), ids, Shards.even(2, 1), Peers())
    adjacency = ShardedAdjacency(indptr, ids, Shards.even(2, 1), Peers())
    with pytest.raises(ValueError, match="one row per node: 2 nodes"):
        adjacency.propagate(torch.ones(3, 1))
    with pytest.raises(ValueError, match="propagation: expected one of"):
        adjacency.propagate(torch.ones(2, 1), "max")  # type: ignore[arg-type]
