"""The source of a run's batches: one partitioned graph (from servers: cluster/data/served_nodes.py) or many graphs (cluster/data/graph_set_data.py).

The trainer uses only these protocols. It gets a sampler for its options, turns the sampler's batches into tensors, and reads the targets.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from graphmill.samplers.access.router import Router
from graphmill.samplers.access.traffic import Traffic
from graphmill.samplers.access.typed_router import TypedRouter, whole_router
from graphmill.samplers.batches.link_batch import LinkBatch, OfLinks, TypedLinkBatch, links_to_torch
from graphmill.samplers.batches.minibatch import TorchBatch, to_torch
from graphmill.samplers.batches.typed_batch import TypedBatch, typed_to_torch
from graphmill.samplers.drawing.protocol import Sampler
from graphmill.samplers.methods.registry import build_sampler
from graphmill.storage.graph import PinnedGraph, StoredGraph, TypedGraph
from graphmill.storage.replicas.file_stamps import FileStamps, take_stamps


class OpenData(Protocol):
    """The data of a run, opened by one process."""

    def sampler(self, options: Any, num_ranks: int) -> Sampler:
        """Makes the sampler with these options."""
        ...

    def collate(self, minibatch: Any) -> Any:
        """Converts the sampler's batch to tensors."""
        ...

    def target(self, batch: Any) -> Tensor:
        """Returns the targets of the model's predictions for this batch."""
        ...

    def ids(self, batch: Any) -> Tensor:
        """int64: permanent ids of the nodes, graphs or pairs that the model predicts for this batch."""
        ...

    def sizes(self, batch: Any) -> tuple[int, int]:
        """Returns the numbers of nodes and edges of a batch."""
        ...

    def split_codes(self, batch: Any) -> Tensor | None:
        """int8: the split (graphmill.storage.format.source.SPLITS) of each prediction; None if all predictions of a batch belong to one split."""
        ...

    def near_middle(self) -> float:
        """This process reads a range of the stored data itself. Returns the middle of this range as a fraction (0 to 1) of all stored data."""
        ...

    def check(self) -> None:
        """Raises FormatError naming a file that was changed since it was opened. Untouched files are not read."""
        ...

    def traffic(self) -> np.ndarray | None:
        """int64 [partitions, len(graphmill.samplers.access.traffic.COLUMNS)]: messages and bytes since the opening. None if they are not counted."""
        ...


class TrainingData(Protocol):
    """A small value that the driver sends to every worker. The worker opens the data with this value."""

    def open(self) -> OpenData: ...


class CheckedFiles(Protocol):
    """Checks the files that a process reads for its batches."""

    def check_untouched(self) -> None:
        """Raises FormatError naming a file that was changed since it was opened."""
        ...


class OpenNodes:
    """One graph, plain or typed, read through its router. Targets are the roots' labels: one class per root, or answers (`answers`); for links 1 or 0."""

    def __init__(
        self, router: Router | TypedRouter, files: CheckedFiles | None = None, traffic: Traffic | None = None
    ) -> None:
        self.router, self._files, self._traffic = router, files, traffic

    def sampler(self, options: Any, num_ranks: int) -> Sampler:
        return build_sampler(options, self.router, num_ranks)

    def collate(self, minibatch: Any) -> Any:
        if isinstance(minibatch, LinkBatch | TypedLinkBatch):
            return links_to_torch(minibatch)
        return typed_to_torch(minibatch) if isinstance(minibatch, TypedBatch) else to_torch(minibatch)

    def target(self, batch: Any) -> Tensor:
        target = batch.target
        return target if target.dim() == 1 else answers(target)

    def ids(self, batch: Any) -> Tensor:
        """int64: permanent ids of the predicted nodes. For links: permanent ids of their source nodes."""
        return batch.predicted_id

    def sizes(self, batch: Any) -> tuple[int, int]:
        return batch.num_nodes, batch.num_edges

    def split_codes(self, batch: Any) -> Tensor | None:
        return batch.predicted_split

    def near_middle(self) -> float:
        """Returns the middle as a fraction of the stored nodes."""
        sizes = self.router.partition_sizes / self.router.partition_sizes.sum()
        near, middles = sizes * self.router.is_near, np.cumsum(sizes) - sizes / 2
        return float(np.average(middles, weights=near)) if near.any() else 0.5

    def check(self) -> None:
        if self._files is not None:
            self._files.check_untouched()

    def traffic(self) -> np.ndarray | None:
        return None if self._traffic is None else self._traffic.by_partition()


@dataclass(frozen=True)
class StoredNodes:
    """One partitioned graph, plain or typed, that each process opens and reads itself."""

    graph: PinnedGraph
    stamps: FileStamps  # stamps of the graph's files when they were verified

    @classmethod
    def of(cls, graph: StoredGraph | TypedGraph, *, verify: bool = True) -> "StoredNodes":
        """Describes an opened graph. Raises FormatError if a file is missing or, with `verify`, differs from its manifest."""
        stamps = take_stamps(
            graph.url, [entry for index in range(graph.num_partitions) for entry in graph.partition_files(index)]
        )
        if verify:
            stamps.verify()
        return cls(graph.pin(), stamps)

    def open(self, traffic: Traffic | None = None) -> OpenNodes:
        """`traffic`: the counter of messages; None: a new one."""
        stamps, graph = self.stamps.renewed(), self.graph.open()
        traffic = Traffic(graph.num_partitions) if traffic is None else traffic
        # Files that are not local are read into memory again. Therefore they are verified again.
        router = whole_router(graph, verify=not stamps.stamps, watch=traffic.watch)
        return OpenNodes(router, stamps, traffic)


def root_weights(batch: Any) -> Tensor | None:
    """float32 [r]: the factor of each root's loss, if the sampler gives factors (GraphSAINT). None: every loss counts once; this is always so for links."""
    if not isinstance(batch, TorchBatch | TypedBatch) or isinstance(batch, OfLinks):
        return None
    weight = (batch.roots if isinstance(batch, TypedBatch) else batch).loss_weight
    return None if weight is None else weight[batch.root_index]


def answers(label: Tensor) -> Tensor:
    """Converts stored answers or numbers [n, L] to float32 targets. An unknown answer (-1) becomes NaN."""
    return label if label.is_floating_point() else label.float().masked_fill(label < 0, torch.nan)
