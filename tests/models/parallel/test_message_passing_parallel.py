"""The rows of a graph are divided among 1, 2 or 4 real processes. GraphSAGE, GCN and GAT then have the same outputs and gradients as in one process."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from graphmill.models.message_passing.network import MessagePassing
from graphmill.models.message_passing.options import GATConfig, GCNConfig, MessagePassingConfig, SAGEConfig
from graphmill.models.parallel.collectives import Peers, sum_gradients
from graphmill.models.parallel.global_terms import ShardedNodes
from graphmill.models.parallel.graph import ShardedGraph
from graphmill.models.parallel.halo import ShardedAdjacency
from graphmill.models.parallel.shards import Shards
from graphmill.models.parallel_cost import as_geco, num_parameters, sent_bytes
from graphmill.models.primitives.batch_norm import RowBatchNorm
from graphmill.models.primitives.graphs import Graphs
from tests.gloo_workers import SIZES, check_parts, on_workers, shards_of

IN, OUT = 5, 3
CLASSIC = {"in_dim": IN, "out_dim": OUT, "width": 6, "norm": "layer", "seed": 5}


@dataclass(frozen=True)
class Case:
    config: MessagePassingConfig
    num_nodes: int = 37
    lopsided: bool = False  # with more than two workers, the first and the last have no rows


def plain(config: type[MessagePassingConfig], **options: Any) -> MessagePassingConfig:
    return config(**{**CLASSIC, "dropout": 0.0, **options})


CASES = {
    "sage": Case(plain(SAGEConfig)),
    "gcn": Case(plain(GCNConfig, norm="none", residual="none", scale_rows=True)),
    "gat": Case(plain(GATConfig, num_heads=3, residual="identity")),
    "sage, empty shards": Case(plain(SAGEConfig), 23, lopsided=True),
    "gat, empty shards": Case(plain(GATConfig, num_heads=2), 23, lopsided=True),
    "fewer nodes than workers": Case(plain(GCNConfig), 3),
    "batch norm": Case(plain(SAGEConfig, norm="batch")),
    "batch norm, empty shards": Case(plain(GCNConfig, norm="batch"), 23, lopsided=True),
    "dropout of sage": Case(plain(SAGEConfig, dropout=0.4, input_dropout=0.2)),
    "dropout of gcn": Case(plain(GCNConfig, dropout=0.4)),
    "dropout of gat": Case(plain(GATConfig, num_heads=2, dropout=0.4)),
}


def build(case: Case) -> MessagePassing:
    torch.manual_seed(1)
    model = MessagePassing(case.config).double()
    with torch.no_grad():  # at their initial values, norms and biases have no effect
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def problem(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (edges [2, E] sorted by destination, features, targets). The graph is directed, with self-loops, parallel edges and an isolated node."""
    n, generator = case.num_nodes, torch.Generator().manual_seed(2)
    edges = torch.randint(0, n - 1, (2, 4 * n), generator=generator)
    edges = torch.cat([edges, edges[:, :n]], dim=1)
    edges = edges[:, torch.argsort(edges[1], stable=True)]
    x, target = (torch.randn(n, k, dtype=torch.float64, generator=generator) for k in (IN, OUT))
    return edges, x, target


def outcome(model: MessagePassing, graphs: Graphs | ShardedGraph, target: Tensor) -> dict[str, Any]:
    """Computes outputs and gradients. The loss is a sum over rows, so the total is the sum of the workers' losses."""
    assert graphs.x is not None
    y = model(graphs, epoch=3)
    (y - target).square().sum().backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert len(grads) == len(list(model.parameters())), "DDP waits for every parameter's gradient"
    return {"y": y.detach(), "x": graphs.x.grad, **dict(model.named_buffers())} | grads


def one_process(case: Case) -> dict[str, Any]:
    edges, x, target = problem(case)
    node_ptr = torch.tensor([0, case.num_nodes])
    return outcome(build(case), Graphs(node_ptr=node_ptr, edge_index=edges, x=x.requires_grad_()), target)


def sharded(case: Case, peers: Peers) -> dict[str, Any]:
    (edges, x, target), shards, model = (
        problem(case),
        shards_of(case.num_nodes, peers.size, lopsided=case.lopsided),
        build(case),
    )
    start, stop = shards.range(peers.rank)
    here = edges[:, (edges[1] >= start) & (edges[1] < stop)]
    indptr = torch.zeros(stop - start + 1, dtype=torch.int64)
    indptr[1:] = torch.bincount(here[1] - start, minlength=stop - start).cumsum(0)
    adjacency = ShardedAdjacency(indptr, here[0], shards, peers)
    peers.sent_bytes.clear()
    x_nF = x[start:stop].clone().requires_grad_()
    result = outcome(model, ShardedGraph(shards, peers, adjacency, torch.arange(start, stop), x_nF), target[start:stop])
    sum_gradients(list(model.parameters()), peers)
    result |= {name: p.grad for name, p in model.named_parameters()}
    result |= {name: buffer for name, buffer in model.named_buffers()}
    result["sent"] = dict(peers.sent_bytes)
    result["halo"] = (sum(adjacency.plan.send), adjacency.plan.num_halo)
    return result


def all_cases(peers: Peers) -> dict[str, Any]:
    return {name: sharded(case, peers) for name, case in CASES.items()}


@pytest.fixture(scope="module")
def results() -> dict[int, list[Any]]:
    return on_workers(all_cases)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.long
def test_outputs_and_gradients_equal_one_process(results, name, size):
    # Cases with dropout are compared with a group of one worker, which draws the same random numbers.
    expected = results[1][0][name] if name.startswith("dropout") else one_process(CASES[name])
    check_parts([by_case[name] for by_case in results[size]], expected)


def test_dropout_drops(results):
    for name in ("sage", "gcn", "gat"):
        case = CASES[f"dropout of {name}"]
        without = replace(case, config=replace(case.config, dropout=0.0, input_dropout=0.0))
        assert not torch.allclose(results[1][0][f"dropout of {name}"]["y"], one_process(without)["y"])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["sage", "gcn", "gat", "batch norm"])
def test_bytes_sent_are_those_of_the_formula(results, name, size):
    case = CASES[name]
    for rank in range(size):
        sharded_run = results[size][rank][name]
        predicted = sent_bytes(
            case.config, Shards.even(case.num_nodes, size), rank, *sharded_run["halo"], element_size=8
        )
        degrees = 0 if name == "gat" else 8 * sharded_run["halo"][0]  # degrees are sent once, as one channel
        assert predicted["sequences"] == 0
        assert sharded_run["sent"].get("halo", 0) == predicted["halo"] + degrees
        assert sharded_run["sent"].get("gradients", 0) == predicted["gradients"]
        assert sharded_run["sent"].get("sums", 0) == predicted["sums"]
    assert num_parameters(as_geco(case.config)) == sum(p.numel() for p in build(case).parameters())


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-12), (torch.float32, 1e-4), (torch.bfloat16, 1e-2)])
def test_a_batch_norm_over_all_rows_is_torchs(dtype, close):
    rows = 30 + torch.randn(500, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = rows.to(dtype)
    ours, torchs = (RowBatchNorm(6).to(torch.promote_types(dtype, torch.float32)).train() for _ in range(2))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        got, expected = ours(rows, ShardedNodes(Shards.even(500, 1), Peers())), torchs(rows)
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, rtol=close, atol=close)
    for name, buffer in torchs.named_buffers():
        torch.testing.assert_close(dict(ours.named_buffers())[name], buffer, rtol=1e-5, atol=1e-6)
