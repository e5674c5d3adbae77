"""Measures the share of the training time that a loop waits for batches: GECO over neighbor batches, PPGT over Node2Subgraph.

The first batch does not count, because no computation overlaps with loading it. A step ends when the device has finished: the device is idle in a wait.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

import graphmill.models.ppgt.network as ppgt
from graphmill.core.errors import ConfigError
from graphmill.jobs.bench.device import wait_for
from graphmill.jobs.bench.results import recipe_options
from graphmill.jobs.tasks.model_inputs import node_batch_graphs
from graphmill.models.geco.network import GECO
from graphmill.models.geco.options import GECOConfig
from graphmill.models.options.features import Features
from graphmill.models.primitives.propagation import Adjacency
from graphmill.samplers.access.router import local_router
from graphmill.samplers.batches.minibatch import TorchBatch
from graphmill.samplers.drawing.protocol import Sampler
from graphmill.samplers.loading.loader import Loader
from graphmill.samplers.methods.neighbor import NeighborSampler
from graphmill.samplers.methods.node2subgraph import Node2SubgraphSampler
from graphmill.samplers.vocabulary.options import LoaderOptions, NeighborOptions, Node2SubgraphOptions
from graphmill.storage.graph import StoredGraph


@dataclass(frozen=True)
class Wait:
    """The time that one loop waited for batches."""

    name: str
    wait_s: float
    total_s: float
    num_steps: int
    parameters: int

    @property
    def share(self) -> float:
        return self.wait_s / self.total_s


@dataclass(frozen=True)
class Setting:
    """Settings of the loops. The defaults suit a CPU with two cores, one of which samples."""

    num_steps: int
    fanouts: tuple[int, ...]
    neighbor_roots: int = 32
    subgraph_roots: int = 8
    threads: int = 1
    device: str = "cpu"


def measure_waits(graph: StoredGraph, setting: Setting) -> list[Wait]:
    """Runs both loops, each for `num_steps` counted steps."""
    manifest, router = graph.manifest, local_router(graph)
    assert manifest.num_classes is not None
    geco = GECO(GECOConfig(in_dim=manifest.feature_dim, out_dim=manifest.num_classes))
    node = Features(dim=manifest.feature_dim)
    config = recipe_options("ppgt/arxiv.yaml", node=node, out_dim=manifest.num_classes, task="node")
    attention = ppgt.PPGT(config)

    def geco_logits(batch: TorchBatch) -> Tensor:
        return geco(batch.x, Adjacency(batch.indptr, batch.indices), node_id_N=batch.node_id)[batch.root_index]

    roots, few = setting.neighbor_roots, setting.subgraph_roots
    neighbors = NeighborSampler(router, NeighborOptions(fanouts=setting.fanouts, batch_size=roots))
    subgraphs = Node2SubgraphSampler(router, Node2SubgraphOptions(max_hops=10, max_nodes=100, batch_size=few))
    ppgt_name = f"PPGT, the paper's arxiv model, Node2Subgraph batches of {few} roots"
    return [
        _measure(
            f"GECO, width 128, 3 layers, neighbor batches of {roots} roots", neighbors, geco, geco_logits, setting
        ),
        _measure(ppgt_name, subgraphs, attention, lambda batch: attention(node_batch_graphs(batch)), setting),
    ]


def _measure(
    name: str, sampler: Sampler, model: nn.Module, logits: Callable[[TorchBatch], Tensor], setting: Setting
) -> Wait:
    if sampler.num_batches <= setting.num_steps:
        raise ConfigError(
            f"{name}: expected more than {setting.num_steps} batches, got {sampler.num_batches}; take a larger graph or fewer steps"
        )
    optimizer = torch.optim.AdamW(model.to(setting.device).parameters(), lr=1e-3)
    waited = started = 0.0
    with Loader(sampler, LoaderOptions(threads=setting.threads), device=setting.device) as loader:
        for step, batch in enumerate(loader):
            if step == 0:
                waited, started = loader.stats.wait_s, time.perf_counter()
            if step == setting.num_steps:
                break
            loss = functional.cross_entropy(logits(batch), batch.y[batch.root_index], ignore_index=-1)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            wait_for(setting.device)
        total = time.perf_counter() - started
        parameters = sum(parameter.numel() for parameter in model.parameters())
        return Wait(name, loader.stats.wait_s - waited, total, setting.num_steps, parameters)
