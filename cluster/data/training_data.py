"""Where a run's batches come from: one partitioned graph (behind servers: cluster/data/served_nodes.py), or a store of many graphs.

The trainer knows neither: it asks for a sampler by its options, turns what that makes into tensors, and reads the targets.
"""

import socket
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from graphmill.core.errors import ConfigError
from graphmill.core.offsets import pointers
from graphmill.samplers.access.router import Router
from graphmill.samplers.access.traffic import Traffic
from graphmill.samplers.access.typed_router import TypedRouter, whole_router
from graphmill.samplers.batches.link_batch import LinkBatch, links_to_torch
from graphmill.samplers.batches.minibatch import to_torch
from graphmill.samplers.batches.typed_batch import TypedBatch, typed_to_torch
from graphmill.samplers.drawing.protocol import Sampler
from graphmill.samplers.methods.graph_batches import GraphBatch, GraphBatchSampler, TorchGraphBatch, graphs_to_torch
from graphmill.samplers.methods.registry import build_sampler
from graphmill.samplers.vocabulary.options import GraphBatchOptions
from graphmill.storage.filesystem.urls import absolute_url
from graphmill.storage.graph import PinnedGraph, StoredGraph
from graphmill.storage.graph_sets.graph_set import StoredGraphs, open_graphs
from graphmill.storage.replicas.file_stamps import FileStamps, take_stamps
from graphmill.storage.snapshots.snapshots import has_graph
from graphmill.storage.typed_graph import PinnedTypedGraph, TypedGraph


class OpenData(Protocol):
    """Data as one process sees it."""

    def sampler(self, options: Any, num_ranks: int) -> Sampler:
        """The sampler that these options describe."""
        ...

    def collate(self, minibatch: Any) -> Any:
        """What the sampler makes, as tensors."""
        ...

    def target(self, batch: Any) -> Tensor:
        """What the model's predictions for this batch are compared with."""
        ...

    def ids(self, batch: Any) -> Tensor:
        """int64: permanent ids of those that the model's predictions for this batch are about."""
        ...

    def sizes(self, batch: Any) -> tuple[int, int]:
        """(nodes, edges) of a batch."""
        ...

    def split_codes(self, batch: Any) -> Tensor | None:
        """int8: the split (graphmill.storage.format.source.SPLITS) of each of those that are predicted; None where a batch is of one split."""
        ...

    def near_middle(self) -> float:
        """Where, from 0 to 1, the middle of what this process reads itself lies in all that is stored."""
        ...

    def check(self) -> None:
        """Raises FormatError naming a file that was touched since it was opened; costs no reading where none was."""
        ...

    def traffic(self) -> np.ndarray | None:
        """int64 [partitions, len(graphmill.samplers.access.traffic.COLUMNS)]: messages and bytes since it was opened; None where none are counted."""
        ...


class TrainingData(Protocol):
    """A small value that the driver sends to every worker."""

    def open(self) -> OpenData: ...


class CheckedFiles(Protocol):
    """The files that a process's batches come from."""

    def check_untouched(self) -> None:
        """Raises FormatError naming a file that was changed since it was opened."""
        ...


class OpenNodes:
    """One graph, plain or typed, through its router; the targets are the roots' labels: a class each, or answers (`answers`); of links whether they
    are some."""

    def __init__(
        self, router: Router | TypedRouter, files: CheckedFiles | None = None, traffic: Traffic | None = None
    ) -> None:
        self.router, self._files, self._traffic = router, files, traffic

    def sampler(self, options: Any, num_ranks: int) -> Sampler:
        return build_sampler(options, self.router, num_ranks)

    def collate(self, minibatch: Any) -> Any:
        if isinstance(minibatch, TypedBatch):
            return typed_to_torch(minibatch)
        return links_to_torch(minibatch) if isinstance(minibatch, LinkBatch) else to_torch(minibatch)

    def target(self, batch: Any) -> Tensor:
        target = batch.target
        return target if target.dim() == 1 else answers(target)

    def ids(self, batch: Any) -> Tensor:
        """int64: permanent ids of the nodes that are predicted; of links, of their sources."""
        return batch.predicted_id

    def sizes(self, batch: Any) -> tuple[int, int]:
        return batch.num_nodes, batch.num_edges

    def split_codes(self, batch: Any) -> Tensor | None:
        return batch.predicted_split

    def near_middle(self) -> float:
        """Of the stored nodes."""
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
    """One partitioned graph, plain or typed, which every process that opens it reads itself."""

    graph: PinnedGraph | PinnedTypedGraph
    stamps: FileStamps  # of its files, as they were verified

    @classmethod
    def of(cls, graph: StoredGraph | TypedGraph, *, verify: bool = True) -> "StoredNodes":
        """Raises FormatError naming a file that is missing or, with `verify`, not as its manifest says."""
        stamps = take_stamps(
            graph.url, [entry for index in range(graph.num_partitions) for entry in graph.partition_files(index)]
        )
        if verify:
            stamps.verify()
        return cls(graph.pin(), stamps)

    def open(self, traffic: Traffic | None = None) -> OpenNodes:
        """`traffic`: where messages are counted, beside others'."""
        stamps, graph = self.stamps.renewed(), self.graph.open()
        traffic = Traffic(graph.num_partitions) if traffic is None else traffic
        # Files that are not local are read into memory anew, so they are verified anew.
        router = whole_router(graph, verify=not stamps.stamps, watch=traffic.watch)
        return OpenNodes(router, stamps, traffic)


EVERY = "*"


@dataclass(frozen=True)
class GraphSplitOptions:
    """Batches of one split's graphs."""

    split: str | None  # None: of the graphs in no split; EVERY: of all, whatever their split
    batch: GraphBatchOptions


class OpenGraphs:
    """Many graphs; the targets are the graphs' own, or the chosen columns of them. Of a set whose nodes or pairs are labelled, they are those labels."""

    def __init__(
        self,
        store: StoredGraphs,
        columns: tuple[int, ...] | None = None,
        labels: bool = False,
        stamps: FileStamps | None = None,
    ) -> None:
        self.store, self._columns, self._labels, self._stamps = store, columns, labels, stamps

    def sampler(self, options: GraphSplitOptions, num_ranks: int) -> Sampler:
        if options.split == EVERY:
            graphs = np.arange(len(self.store))
        else:
            graphs = self.store.unsplit() if options.split is None else self.store.split(options.split)
        return GraphBatchSampler(self.store, options.batch, num_ranks, graphs)

    def collate(self, minibatch: GraphBatch) -> TorchGraphBatch:
        batch = graphs_to_torch(minibatch)
        if self._columns is None or batch.target is None:
            return batch
        return replace(batch, target=batch.target[:, list(self._columns)])

    def target(self, batch: TorchGraphBatch) -> Tensor:
        if batch.node_label is not None:
            return batch.node_label
        if batch.pairs is not None:
            assert batch.pair_ptr is not None
            graph = torch.repeat_interleave(batch.graph_id, batch.pair_ptr.diff(), output_size=len(batch.pairs))
            return torch.stack([batch.pairs[:, 2], graph], dim=1)
        assert batch.target is not None
        return graph_labels(batch.target) if self._labels else batch.target

    def ids(self, batch: TorchGraphBatch) -> Tensor:
        """int64 [g]: rows of the source. Of labelled nodes or pairs: their numbers in the set, graph after graph."""
        return torch.from_numpy(predicted_ids(self.store, batch.graph_id.cpu().numpy()))

    def sizes(self, batch: TorchGraphBatch) -> tuple[int, int]:
        feature = batch.node_feature
        return int(batch.node_ptr[-1]) if feature is None else len(feature), batch.edge_index.shape[1]

    def split_codes(self, batch: TorchGraphBatch) -> None:
        return None

    def near_middle(self) -> float:
        return 0.5  # every worker has the whole store

    def check(self) -> None:
        if self._stamps is not None:
            self._stamps.check_untouched()

    def traffic(self) -> None:
        return None  # every worker has the whole store


@dataclass(frozen=True)
class PinnedGraphs:
    """Names one snapshot of a set of graphs, for other processes."""

    url: str
    snapshot: int

    def open(self) -> StoredGraphs:
        """Raises ConfigError where this host does not have the set."""
        if not has_graph(self.url):
            raise ConfigError(
                f"{self.url} on {socket.gethostname()}: expected the run's graphs, found none; keep them where all hosts see them, in a "
                f"shared folder or an object store, or copy them to each host's disk: graphmill ingest {self.url} PATH --place hosts"
            )
        return open_graphs(self.url, self.snapshot)


@dataclass(frozen=True)
class GraphData:
    """A store of many graphs, and which columns of its targets are meant (None: all)."""

    store: StoredGraphs | PinnedGraphs
    columns: tuple[int, ...] | None = None
    labels: bool = False  # the one column holds numbers of classes
    stamps: FileStamps | None = None  # of the store's files, as the run began

    def __reduce__(self):  # pickled by name, and opened by the process that wants it
        store = self.store
        if isinstance(store, StoredGraphs):
            store = PinnedGraphs(absolute_url(store.url), store.manifest.snapshot)
        return GraphData, (store, self.columns, self.labels, self.stamps)

    def open(self) -> OpenGraphs:
        store = self.store.open() if isinstance(self.store, PinnedGraphs) else self.store
        stamps = None if self.stamps is None else self.stamps.renewed()
        return OpenGraphs(store, self.columns, self.labels, stamps)


def predicted_ids(store: StoredGraphs, graph: np.ndarray) -> np.ndarray:
    """int64: the permanent ids of what is predicted of these graphs, in their order."""
    ptr = _predicted_ptr(store)
    if ptr is None:
        return store.original_id[graph]
    counts = ptr[graph + 1] - ptr[graph]
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(ptr[graph], counts) + within


def predicted_places(store: StoredGraphs, ids: np.ndarray) -> dict[str, np.ndarray]:
    """What the ids of labelled nodes or pairs mean: the graph's row in the source, and the node, or nodes, within it. Empty for graphs."""
    ptr = _predicted_ptr(store)
    if ptr is None:
        return {}
    graph = np.searchsorted(ptr, ids, side="right") - 1
    column = {"graph": store.original_id[graph]}
    if store.manifest.labelled == "nodes":
        return column | {"node": ids - ptr[graph]}
    packed = store.fetch(np.unique(graph))
    assert packed.pairs is not None
    first = pointers(store.num_pairs[np.unique(graph)])
    row = first[np.searchsorted(np.unique(graph), graph)] + ids - ptr[graph]
    return column | {"first": packed.pairs[row, 0], "second": packed.pairs[row, 1]}


def _predicted_ptr(store: StoredGraphs) -> np.ndarray | None:
    """int64 [num_graphs + 1]: where each graph's predicted nodes or pairs begin; None: the graphs themselves are predicted."""
    labelled = store.manifest.labelled
    return None if labelled is None else pointers(store.num_nodes if labelled == "nodes" else store.num_pairs)


def answers(label: Tensor) -> Tensor:
    """Answers or numbers [n, L] as graphs store them to targets, float32; an answer that is not known (-1) becomes NaN."""
    return label if label.is_floating_point() else label.float().masked_fill(label < 0, torch.nan)


def graph_labels(target: Tensor) -> Tensor:
    """Numbers of classes [g, 1], as stores hold them, to labels int64 [g]; what is not known (NaN) becomes -1."""
    return target.squeeze(1).nan_to_num(nan=-1.0).long()
