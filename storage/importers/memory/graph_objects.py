"""Functions shared by the importers of PyG and DGL. They find the only graph of a data set and its split, and warn of entries that are not read."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from graphmill.core.errors import DataError
from graphmill.storage.importers.memory.array_graph import mask_split, rows_split

_PARTS = ("train", "val", "valid", "test")
# Names of the entries that `stored_split` reads.
SPLIT_ENTRIES = tuple(
    f"{part}_{kind}" for part in _PARTS for kind in ("mask", "idx") if (part, kind) != ("valid", "mask")
)


def only_graph(data: Any, name: str) -> Any:
    """Returns `data` if it is a graph, or the only graph of a list or data set (of PyG, DGL, OGB or torch). Raises DataError for several graphs, or none."""
    if not isinstance(data, list) and not any(base.__name__.endswith("Dataset") for base in type(data).__mro__):
        return data
    if len(data) != 1:
        raise DataError(
            f"{name}: expected one graph, got {type(data).__name__} of {len(data)}; give one of them, or store them all with ingest_graphs"
        )
    return data[0]


def split_of(data: Any, split_idx: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Returns `split_idx` if it is given, else the result of the data set's `get_idx_split`, which OGB's data sets have."""
    return data.get_idx_split() if split_idx is None and hasattr(data, "get_idx_split") else split_idx


def stored_split(
    get: Callable[[str], Any], split_idx: Mapping[str, Any] | None, num_nodes: int, name: str
) -> np.ndarray | None:
    """Returns split codes, int8 [num_nodes, num_split_sets], from `split_idx`, else from the entries train_mask … or train_idx …; None if there are none.

    `get` returns an entry by name. Raises DataError like `rows_split` and `mask_split`, and if masks and rows differ.
    """
    if split_idx is not None:
        return rows_split(split_idx, num_nodes, name)
    masks = mask_split([get(f"{part}_mask") for part in ("train", "val", "test")], num_nodes, name)
    rows = {part: idx for part in _PARTS if (idx := get(f"{part}_idx")) is not None}
    if not rows:
        return masks
    named = rows_split(rows, num_nodes, name)
    if masks is not None and not np.array_equal(masks, named):
        raise DataError(f"{name}: train_mask … and train_idx … name other nodes; give those to be used as split_idx")
    return named


def node_columns(
    get: Callable[[str], Any],
    entries: Mapping[str, str | None],
    split_idx: Mapping[str, Any] | None,
    num_nodes: int,
    name: str,
) -> dict[str, Any]:
    """Returns the node columns of an `ArrayGraph`, and the split. `entries` maps a column to the object's entry. Raises DataError like `stored_split`."""
    columns = {column: None if entry is None else get(entry) for column, entry in entries.items()}
    return {**columns, "split": stored_split(get, split_idx, num_nodes, name)}


def tell_unread(name: str, entries: Iterable[str], read: Iterable[str | None]) -> None:
    """Warns, in one line, that some entries of an object are not read, and names them."""
    if unread := sorted(entry for entry in set(entries) - set(read) if not entry.startswith("_")):
        warnings.warn(f"{name}: not read: {', '.join(unread)}", stacklevel=4)
