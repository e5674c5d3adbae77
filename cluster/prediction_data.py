"""One graph as prediction sees it: as in training, and with the nodes that are in no split."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cluster.partition_server import PartitionServers, connect
from cluster.training_data import OpenNodes
from samplers.minibatch import MiniBatch
from samplers.options import RandomPartitionOptions
from samplers.protocol import Sampler
from samplers.random_partition import RandomPartitionSampler
from storage.source import SPLIT_NONE


@dataclass(frozen=True)
class UnsplitRoots:
    """Roots are the nodes of a cut that are in no split, which nothing is trained on or scored by."""

    cut: RandomPartitionOptions


class UnsplitRootSampler:
    """The chunks of a cut with those roots."""

    def __init__(self, sampler: RandomPartitionSampler, options: UnsplitRoots) -> None:
        self._sampler, self._options = sampler, options

    @property
    def options(self) -> UnsplitRoots:
        return self._options

    @property
    def content_hash(self) -> str:
        return self._sampler.content_hash

    @property
    def num_batches(self) -> int:
        return self._sampler.num_batches

    def sample(self, epoch: int, batch: int) -> MiniBatch:
        minibatch = self._sampler.sample(epoch, batch)
        assert minibatch.split is not None
        return replace(minibatch, root_index=np.flatnonzero(minibatch.split == SPLIT_NONE))


class PredictedNodes(OpenNodes):
    """One graph through its router."""

    def sampler(self, options: Any, num_ranks: int) -> Sampler:
        if isinstance(options, UnsplitRoots):
            return UnsplitRootSampler(RandomPartitionSampler(self.router, options.cut), options)
        return super().sampler(options, num_ranks)


@dataclass(frozen=True)
class PredictedNodeData:
    """One partitioned graph."""

    servers: PartitionServers

    def open(self) -> PredictedNodes:
        return PredictedNodes(connect(self.servers))


def unsplit(options: Any) -> Any:
    """The options by which the nodes in no split are reached as those of a split are."""
    if isinstance(options, RandomPartitionOptions):
        return UnsplitRoots(options)
    return replace(options, root_split=SPLIT_NONE)
