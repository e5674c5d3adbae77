"""The global terms of Primphormer and Performer have the same values and gradients in 1, 2 and 4 real processes as in one process, in float64."""

from typing import Any

import pytest
import torch

from graphmill.models.operators.favor import draw_projection, favor_attention
from graphmill.models.parallel.collectives import Peers, sum_gradients
from graphmill.models.parallel.global_terms import ShardedKeys, ShardedNodes
from graphmill.models.parallel.shards import Shards
from graphmill.models.primitives.graphs import Graphs
from graphmill.models.primphormer.attention import PrimalAttention
from graphmill.models.primphormer.options import PrimalOptions
from tests.gloo_workers import SIZES, on_workers

PRIMAL = {
    "as published": PrimalOptions(num_virtual=5),
    "sums": PrimalOptions(num_virtual=5, num_scores=4, pool="sum", score_terms="sum", multiplier="plain"),
    "no virtual node": PrimalOptions(num_virtual=3, virtual_nodes="none"),
}
NODES = (29, 3, 1)  # with 3 rows or 1 row, some of 4 workers have none
KEYS = {"all": 23, "few": 2, "masked": 12}


def randn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def primal(options: PrimalOptions) -> PrimalAttention:
    torch.manual_seed(0)
    return PrimalAttention(6, 2, options).double()


def primal_outcome(name: str, num_nodes: int, peers: Peers | None) -> dict[str, torch.Tensor]:
    """Computes outputs and gradients. Like Primphormer's objective, the loss contains J². Every one of the W workers knows J, so each adds J² / W."""
    model, x, target = primal(PRIMAL[name]), randn(1, num_nodes, 6), randn(2, num_nodes, 6)
    graphs: Any = Graphs(torch.tensor([0, num_nodes]), torch.zeros(2, 0, dtype=torch.int64), x=x)
    share = 1.0
    if peers is not None:
        shards = Shards.even(num_nodes, peers.size)
        rows = slice(*shards.range(peers.rank))
        x, target, graphs, share = x[rows], target[rows], ShardedNodes(shards, peers), 1 / peers.size
    x = x.clone().requires_grad_()
    out = model(x, graphs)
    ((out.x_nD * target).sum() + share * out.loss.square()).backward()
    if peers is not None:
        sum_gradients(list(model.parameters()), peers)
    assert x.grad is not None
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"y": out.x_nD.detach(), "x": x.grad, "loss": out.loss.detach()} | grads


def favor_outcome(name: str, peers: Peers | None) -> dict[str, torch.Tensor]:
    tokens = KEYS[name]
    q, k, v, target = (randn(seed, 1, 2, tokens, 4) for seed in range(4))
    k = 3 * k  # exponents differ so much that the shift matters
    mask = torch.arange(tokens).remainder(3).unsqueeze(0) > 0 if name == "masked" else None
    projection = draw_projection(8, 4, torch.Generator().manual_seed(0), torch.float64)
    rows = slice(None) if peers is None else slice(*Shards.even(tokens, peers.size).range(peers.rank))
    leaves = [part[:, :, rows].clone().requires_grad_() for part in (q, k, v)]
    here = None if mask is None else mask[:, rows]
    if peers is None:
        out = favor_attention(*leaves, projection, here)
    else:
        keys = ShardedKeys(peers, [[leaves[1].shape[2]]], [1] * peers.size)
        out = favor_attention(*leaves, projection, here, keys=keys)
    (out * target[:, :, rows]).sum().backward()
    return {"y": out.detach()} | {name: leaf.grad for name, leaf in zip("qkv", leaves) if leaf.grad is not None}


def all_cases(peers: Peers) -> dict[str, Any]:
    outcomes: dict[str, Any] = {f"{name} {n}": primal_outcome(name, n, peers) for name in PRIMAL for n in NODES}
    return outcomes | {name: favor_outcome(name, peers) for name in KEYS}


@pytest.fixture(scope="module")
def results() -> dict[int, list[Any]]:
    return on_workers(all_cases)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("num_nodes", NODES)
@pytest.mark.parametrize("name", list(PRIMAL))
@pytest.mark.long
def test_primal_attention_equals_one_process(results, name, num_nodes, size):
    expected = primal_outcome(name, num_nodes, None)
    parts = [by_case[f"{name} {num_nodes}"] for by_case in results[size]]
    for key in ("y", "x"):
        torch.testing.assert_close(torch.cat([f[key] for f in parts]), expected[key], rtol=1e-10, atol=1e-10)
    for key in expected.keys() - {"y", "x"}:
        for rank in range(size):
            torch.testing.assert_close(parts[rank][key], expected[key], rtol=1e-10, atol=1e-10, msg=key)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", list(KEYS))
def test_favor_attention_equals_one_process(results, name, size):
    expected = favor_outcome(name, None)
    for key, value in expected.items():
        got = torch.cat([by_case[name][key] for by_case in results[size]], dim=2)
        torch.testing.assert_close(got, value, rtol=1e-10, atol=1e-10, msg=key)


def uneven_gradients(peers: Peers) -> list[torch.Tensor]:
    """The sums of the gradients of three parameters. Only the first worker uses the first parameter, only the last worker the second, and nobody the third."""
    first, second, nobody = (torch.nn.Parameter(torch.zeros(2)) for _ in range(3))
    if peers.rank == 0:
        first.grad = torch.ones(2)
    if peers.rank == peers.size - 1:
        second.grad = torch.full((2,), 2.0)
    sum_gradients([second, nobody, first], peers)
    assert nobody.grad is None
    assert first.grad is not None
    assert second.grad is not None
    return [first.grad, second.grad]


def test_gradients_that_some_workers_lack():
    for results in on_workers(uneven_gradients).values():
        for first, second in results:
            assert first.tolist() == [1.0, 1.0]
            assert second.tolist() == [2.0, 2.0]
