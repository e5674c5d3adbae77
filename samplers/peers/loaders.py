"""Graphmill's loader as PyTorch's `IterableDataset`, as PyG's `NeighborLoader`, and as Lightning's data module.

The loader samples in advance, in threads. It refuses DataLoader worker processes, because every worker would sample all batches again.
"""

import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from graphmill.core.errors import ConfigError, MissingDependencyError
from graphmill.samplers.access.typed_router import TypedRouter, whole_router
from graphmill.samplers.batches.minibatch import to_torch
from graphmill.samplers.batches.typed_batch import typed_to_torch
from graphmill.samplers.drawing.protocol import check_batch
from graphmill.samplers.kernels.random_streams import Purpose, hash_ids, stream_key
from graphmill.samplers.loading.loader import Loader, LoaderOptions
from graphmill.samplers.methods.neighbor import NeighborSampler
from graphmill.samplers.vocabulary.messages import EdgeColumn
from graphmill.samplers.vocabulary.options import NeighborOptions
from graphmill.samplers.vocabulary.requirements import has_column
from graphmill.storage.format.source import Relation
from graphmill.storage.graph import StoredGraph, TypedGraph, open_graph


class BatchDataset(IterableDataset):
    """A data set whose every iteration is an epoch of the loader. Use it as `torch.utils.data.DataLoader(dataset, batch_size=None)`. `transform` is applied to
    each batch."""

    def __init__(self, loader: Loader, transform: Callable[[Any], Any] | None = None) -> None:
        self.loader, self.transform = loader, transform

    def __iter__(self) -> Iterator[Any]:
        """Raises ConfigError in a worker process."""
        if get_worker_info() is not None:
            raise ConfigError(
                "expected DataLoader(…, num_workers=0), got worker processes; the loader samples ahead in threads: set LoaderOptions(threads=…)"
            )
        # Lightning takes exactly an epoch's batches, so the position is still at the end of the last epoch. This line moves it to the next epoch.
        self.loader.load_state_dict(self.loader.state_dict())
        return iter(self.loader) if self.transform is None else map(self.transform, self.loader)

    def __len__(self) -> int:
        return len(self.loader)


class NeighborLoader:
    """Replaces `torch_geometric.loader.NeighborLoader`: same arguments, same batches (`Data`, `HeteroData`), Graphmill's sampler. Each `for` loop is an epoch.

    `data`: a PyG `Data` or `HeteroData`, a stored graph, or its URL. PyG's objects are stored in a temporary folder, which is deleted with the loader.
    `num_neighbors`: neighbors per hop, -1 for all; or a mapping from (source, relation, target) to such numbers. `input_nodes`: the roots, as a mask or
    indices; None for all nodes; in a typed graph (type, roots). `shuffle`: use another order in each epoch, drawn from `seed`. `num_workers`: number of threads
    that sample in advance. `weight_attr="edge_weight"` (or "weight"): draw by edge weights. `time_attr="time"` (or "edge_time", "node_time"): draw only edges
    up to the root's time.

    Differences from PyG: PyG may draw an edge in two hops; Graphmill expands each node once. A batch has the columns that the graph stores, and `n_id`,
    `input_id` and `batch_size`; it has no `e_id` and no counts by hop. The roots come first. Labels have the form of a stored graph (classes are integers, -1
    means not known).

    Raises ConfigError if the graph does not have the roots or columns.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Sequence[int] | Mapping[tuple[str, str, str], Sequence[int]],
        input_nodes: Any = None,
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        replace: bool = False,
        subgraph_type: Literal["directional", "induced"] = "directional",
        weight_attr: str | None = None,
        time_attr: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        num_workers: int = 0,
        persistent_workers: bool = False,  # accepted for compatibility and ignored, because threads start immediately
        seed: int = 0,
    ) -> None:
        for option, column, known in (
            ("weight_attr", weight_attr, ("edge_weight", "weight")),
            ("time_attr", time_attr, ("time", "edge_time", "node_time")),
        ):
            if column not in (None, *known):
                raise ConfigError(
                    f"{option}: expected {' or '.join(known)}, which a stored graph keeps, got {column!r}; rename the column"
                )
        self.data, self._transform, self._epoch = data, transform, 0
        graph = self._stored(data)
        router = whole_router(graph)
        if isinstance(input_nodes, str):
            input_nodes = (input_nodes, None)
        root_type, nodes = input_nodes if isinstance(input_nodes, tuple) else (None, input_nodes)
        if isinstance(num_neighbors, Mapping):
            of_relations = {Relation(*names): tuple(map(int, counts)) for names, counts in num_neighbors.items()}
            if absent := [str(relation) for relation in router.edges if relation not in of_relations]:
                raise ConfigError(
                    f"num_neighbors: expected counts for every relation, got none for {', '.join(absent)}; 0 leaves one out"
                )
            fanouts = (0,) * max(map(len, of_relations.values()))
        else:
            of_relations, fanouts = {}, tuple(map(int, num_neighbors))
        options = NeighborOptions(
            fanouts=fanouts,
            batch_size=batch_size,
            relation_fanouts=of_relations,
            root_type=root_type,
            root_split=None,
            replace=replace,
            edges="induced" if subgraph_type == "induced" else "sampled",
            scheme="uniform" if weight_attr is None else "weight",
            time="all" if time_attr is None else "until",
            edge_columns=_columns(router),
            seed=seed,
        )
        self._sampler = _GivenRoots(router, options, _as_ids(nodes, router, root_type), shuffle, drop_last)
        self._collate: Any = typed_to_torch if isinstance(router, TypedRouter) else to_torch
        self._options = LoaderOptions(threads=max(1, num_workers))

    def __len__(self) -> int:
        return self._sampler.num_batches

    def __iter__(self) -> Iterator[Any]:
        from graphmill.samplers.batches.to_pyg import MASKS, to_pyg

        epoch, self._epoch = self._epoch, self._epoch + 1
        with Loader(self._sampler, self._options, collate=self._collate) as loader:
            for batch in loader.epoch(epoch):
                yield self._pyg(to_pyg(batch), batch, MASKS)

    def _pyg(self, made: Any, batch: Any, masks: Mapping[str, int]) -> Any:
        """Converts a batch into PyG's form, and adds the columns that PyG's loader adds."""
        root_store = made if self._sampler.is_plain else made[batch.root_type]
        root_store.input_id = self._sampler.positions(batch.epoch, batch.index)
        for store in [made] if self._sampler.is_plain else made.node_stores:
            if "split" in store:
                for name, code in masks.items():
                    store[name] = store["split"] == code
                del store["split"]
        return made if self._transform is None else self._transform(made)

    def _stored(self, data: Any) -> StoredGraph | TypedGraph:
        if isinstance(data, StoredGraph | TypedGraph):
            return data
        if isinstance(data, str):
            return open_graph(data, kind=(StoredGraph, TypedGraph))
        from graphmill.storage.importers.memory.from_pyg import pyg_graph, typed_pyg_graph
        from graphmill.storage.ingestion.ingest import IngestOptions, ingest

        folder = tempfile.TemporaryDirectory(prefix="graphmill-")
        weakref.finalize(self, folder.cleanup)
        for each in getattr(data, "node_stores", [data]):
            if any(getattr(each.get(name), "ndim", 1) > 1 for name in ("train_mask", "val_mask", "test_mask")):
                raise ConfigError(
                    "data: expected masks of one split, got several sets [nodes, sets]; take one: data.train_mask = data.train_mask[:, 0]"
                )
        source = (
            typed_pyg_graph(data)
            if hasattr(data, "node_types") and not hasattr(data, "edge_index")
            else pyg_graph(data)
        )
        ingest(source, f"{folder.name}/graph", IngestOptions(num_partitions=1))
        return open_graph(f"{folder.name}/graph", kind=(StoredGraph, TypedGraph))


class _GivenRoots:
    """Divides given roots into batches, in the given order or in a new order for each epoch."""

    def __init__(self, router: Any, options: NeighborOptions, ids: np.ndarray, shuffle: bool, drop_last: bool) -> None:
        self._sampler = NeighborSampler(router, options, roots=np.sort(ids))
        self.options, self.content_hash = options, self._sampler.content_hash
        self.is_plain = not isinstance(router, TypedRouter)
        self._ids, self._shuffle, size = ids, shuffle, options.batch_size
        self.num_batches = len(ids) // size if drop_last else -(-len(ids) // size)

    def positions(self, epoch: int, batch: int) -> torch.Tensor:
        """int64 [roots of the batch]: the position of each root of the batch among the given roots."""
        check_batch(batch, self.num_batches)
        order = np.arange(len(self._ids))
        if self._shuffle:
            order = np.argsort(hash_ids(stream_key(self.options.seed, Purpose.ROOT_ORDER, epoch), order), kind="stable")
        size = self.options.batch_size
        return torch.from_numpy(order[batch * size : (batch + 1) * size])

    def sample(self, epoch: int, batch: int) -> Any:
        return self._sampler.sample_roots(self._ids[self.positions(epoch, batch).numpy()], epoch, batch)


def _as_ids(nodes: Any, router: Any, root_type: str | None) -> np.ndarray:
    """int64 [roots]: the permanent ids for a mask or indices; for None, all permanent ids."""
    manifest = router.nodes[root_type if root_type is not None else next(iter(router.nodes))].manifest
    if nodes is None:
        return np.arange(manifest.num_nodes, dtype=np.int64)
    ids = np.asarray(nodes)
    if ids.dtype == bool:
        if ids.shape != (manifest.num_nodes,):
            raise ConfigError(
                f"input_nodes: expected a mask of {manifest.num_nodes} nodes, got one of shape {list(ids.shape)}"
            )
        return np.flatnonzero(ids)
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer) or ids.dtype == np.uint8:
        raise ConfigError(
            f"input_nodes: expected a mask of bool, or whole numbers [roots], got {ids.dtype} {list(ids.shape)}"
        )
    return ids.astype(np.int64)


def _columns(router: Any) -> tuple[EdgeColumn, ...]:
    """The edge columns that a relation of the graph stores, without ids."""
    names: tuple[EdgeColumn, ...] = ("weight", "time", "feature")
    return tuple(name for name in names if any(has_column(each.manifest, name) for each in router.edges.values()))


def lightning_data(train: Loader, valid: Loader | None = None, test: Loader | None = None) -> Any:
    """Returns a `lightning.LightningDataModule` that delivers Graphmill's batches (`TorchBatch`). Needs lightning (extra: lightning).

    With several ranks, do not use a `DistributedSampler`: `rank` and `num_ranks` give each loader a separate share of the roots.
    """
    try:
        from lightning import LightningDataModule
    except ImportError as error:
        raise MissingDependencyError(f"lightning_data needs lightning ({error}); pip install lightning") from error

    class Batches(LightningDataModule):
        def train_dataloader(self) -> DataLoader:
            return _in_loop(train)

        def val_dataloader(self) -> Any:
            return _in_loop(valid) if valid else []

        def test_dataloader(self) -> Any:
            return _in_loop(test) if test else []

        def transfer_batch_to_device(self, batch: Any, device: torch.device, _: int) -> Any:
            return batch.to(device)

    return Batches()


def _in_loop(loader: Loader) -> DataLoader:
    return DataLoader(BatchDataset(loader), batch_size=None)
