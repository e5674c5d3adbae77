"""What share of its steps a training loop waits for batches: GECO over neighbor batches, PPGT over Node2Subgraph, on CPU.

One thread computes, one samples, as on two cores. The first batch, for which there is no computation to hide behind, does not count.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from jobs.run.model_inputs import node_batch_graphs
from models import ppgt
from models.geco import GECO
from models.options import ppgt as ppgt_options
from models.options.features import Features
from models.options.geco import GECOConfig
from models.propagation import Adjacency
from samplers.loader import Loader
from samplers.minibatch import TorchBatch
from samplers.neighbor import NeighborSampler
from samplers.node2subgraph import Node2SubgraphSampler
from samplers.options import LoaderOptions, NeighborOptions, Node2SubgraphOptions
from samplers.protocol import Sampler
from samplers.router import local_router
from storage.graph import StoredGraph


@dataclass(frozen=True)
class Wait:
    """One loop's steps."""

    name: str
    wait_s: float
    total_s: float
    num_steps: int
    parameters: int

    @property
    def share(self) -> float:
        return self.wait_s / self.total_s


def measure_waits(graph: StoredGraph, fanouts: tuple[int, ...], num_steps: int) -> list[Wait]:
    """Both loops, `num_steps` counted steps each."""
    manifest, router = graph.manifest, local_router(graph)
    assert manifest.num_classes is not None
    geco = GECO(GECOConfig(in_dim=manifest.feature_dim, out_dim=manifest.num_classes))
    config = ppgt_options.arxiv(out_dim=manifest.num_classes, node=Features(dim=manifest.feature_dim))
    attention = ppgt.PPGT(config)

    def geco_logits(batch: TorchBatch) -> Tensor:
        return geco(batch.x, Adjacency(batch.indptr, batch.indices), node_id_N=batch.node_id)[batch.root_index]

    neighbors = NeighborSampler(router, NeighborOptions(fanouts=fanouts, batch_size=32))
    subgraphs = Node2SubgraphSampler(router, Node2SubgraphOptions(max_hops=10, max_nodes=100, batch_size=8))
    return [
        _measure("GECO, width 128, 3 layers, neighbor batches of 32 roots", neighbors, geco, geco_logits, num_steps),
        _measure(
            "PPGT, the paper's arxiv model, Node2Subgraph batches of 8 roots",
            subgraphs,
            attention,
            lambda batch: attention(node_batch_graphs(batch)),
            num_steps,
        ),
    ]


def _measure(
    name: str, sampler: Sampler, model: nn.Module, logits: Callable[[TorchBatch], Tensor], num_steps: int
) -> Wait:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    waited = started = 0.0
    with Loader(sampler, LoaderOptions(threads=1)) as loader:
        for step, batch in enumerate(loader):
            if step == 0:
                waited, started = loader.stats.wait_s, time.perf_counter()
            if step == num_steps:
                total = time.perf_counter() - started
                return Wait(name, loader.stats.wait_s - waited, total, num_steps, _count(model))
            loss = functional.cross_entropy(logits(batch), batch.y[batch.root_index], ignore_index=-1)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    raise ValueError(f"{name}: the epoch has {step + 1} batches, {num_steps + 1} are needed")


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
