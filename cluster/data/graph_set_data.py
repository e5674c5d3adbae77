"""Makes a stored set of many graphs the training data of a run (`graphmill.cluster.data.training_data.TrainingData`)."""

import socket
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from graphmill.core.errors import ConfigError
from graphmill.core.offsets import pointers
from graphmill.samplers.drawing.protocol import Sampler
from graphmill.samplers.methods.graph_batches import GraphBatch, GraphBatchSampler, TorchGraphBatch, graphs_to_torch
from graphmill.samplers.vocabulary.options import GraphBatchOptions
from graphmill.storage.filesystem.urls import absolute_url
from graphmill.storage.graph_sets.graph_set import StoredGraphs, open_graphs
from graphmill.storage.replicas.file_stamps import FileStamps
from graphmill.storage.snapshots.snapshots import has_graph

EVERY = "*"


@dataclass(frozen=True)
class GraphSplitOptions:
    """Sampler options: batches of one split's graphs."""

    split: str | None  # None: the graphs that are in no split; EVERY: all graphs
    batch: GraphBatchOptions


class OpenGraphs:
    """A set of many graphs. The targets are the graphs' targets (all or the chosen columns), or the labels of the graphs' nodes or pairs."""

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
        """int64 [g]: rows of the source. For labelled nodes or pairs: their positions in the set, counted graph after graph."""
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
    """Identifies one snapshot of a set of graphs for other processes."""

    url: str
    snapshot: int

    def open(self) -> StoredGraphs:
        """Opens the set. Raises ConfigError if this host does not have the set."""
        if not has_graph(self.url):
            raise ConfigError(
                f"{self.url} on {socket.gethostname()}: expected the run's graphs, found none; keep them where all hosts see them, in a "
                f"shared folder or an object store, or copy them to each host's disk: graphmill ingest {self.url} PATH --place hosts"
            )
        return open_graphs(self.url, self.snapshot)


@dataclass(frozen=True)
class GraphData:
    """A store of many graphs, and the target columns that are used (None: all)."""

    store: StoredGraphs | PinnedGraphs
    columns: tuple[int, ...] | None = None
    labels: bool = False  # the set has one target column, which holds class indices
    stamps: FileStamps | None = None  # stamps of the store's files at the beginning of the run

    def __reduce__(self):  # the pickle holds only the name; the receiving process opens the store
        store = self.store
        if isinstance(store, StoredGraphs):
            store = PinnedGraphs(absolute_url(store.url), store.manifest.snapshot)
        return GraphData, (store, self.columns, self.labels, self.stamps)

    def open(self) -> OpenGraphs:
        store = self.store.open() if isinstance(self.store, PinnedGraphs) else self.store
        stamps = None if self.stamps is None else self.stamps.renewed()
        return OpenGraphs(store, self.columns, self.labels, stamps)


def predicted_ids(store: StoredGraphs, graph: np.ndarray) -> np.ndarray:
    """int64: permanent ids of the predictions for these graphs, in order. A prediction is of a graph, a node or a pair."""
    ptr = _predicted_ptr(store)
    if ptr is None:
        return store.original_id[graph]
    counts = ptr[graph + 1] - ptr[graph]
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(ptr[graph], counts) + within


def predicted_places(store: StoredGraphs, ids: np.ndarray) -> dict[str, np.ndarray]:
    """Returns columns that explain the ids of labelled nodes or pairs: the graph's row in the source, and the node or nodes in that graph. Empty for graphs."""
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
    """int64 [num_graphs + 1]: the position of each graph's first predicted node or pair. None: the graphs themselves are predicted."""
    labelled = store.manifest.labelled
    return None if labelled is None else pointers(store.num_nodes if labelled == "nodes" else store.num_pairs)


def graph_labels(target: Tensor) -> Tensor:
    """Converts class numbers [g, 1], as stores hold them, to labels int64 [g]. Unknown classes (NaN) become -1."""
    return target.squeeze(1).nan_to_num(nan=-1.0).long()
