"""Computes short digests of tensors and batches for a run's receipt.

Digests are SHA-256 over the bytes in memory, cut short. Two tensors have the same digest only if all bits are equal, so 0.0 and -0.0 differ.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphmill.cluster.receipts.chain import EACH, TensorDigests

_WHOLE = 32  # hexadecimal digits of the digest of all tensors
_NUMBER_BYTES = 6  # a batch's digest travels between ranks as a float64, which holds whole numbers below 2**53

# Attributes of a batch that hold ids or positions of what was drawn. A batch has the attributes of its kind.
_DRAWN = ("graph_id", "node_id", "root_index", "second_index", "link_source", "link_destination", "negative")


def tensor_digests(tensors: Iterable[Tensor]) -> TensorDigests:
    """Computes the digests of tensors on any device."""
    whole, each, squares = hashlib.sha256(), [], 0.0
    for tensor in tensors:
        array = _array(tensor)
        own = hashlib.sha256(_bytes(array))
        whole.update(own.digest())
        each.append(own.hexdigest()[:EACH])
        if tensor.is_floating_point():
            # numpy sums in pairs, in one thread: the order of additions depends on no thread
            squares += float(np.square(array, dtype=np.float64).sum())
    return TensorDigests(whole.hexdigest()[:_WHOLE], "".join(each), squares**0.5)


def batch_number(batch: Any, ids: Callable[[Any], Tensor], sizes: tuple[int, int]) -> int:
    """Returns the digest of a batch's ids as a whole number of 48 bits. `sizes`: numbers of nodes and edges. `ids` returns what the model predicts; it is
    called for a batch of a user's own kind, which has none of our attributes."""
    digest = hashlib.sha256(repr(sizes).encode())
    for name, array in [*_drawn(batch)] or [("predicted", _array(ids(batch)))]:
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(_bytes(array))
    return int.from_bytes(digest.digest()[:_NUMBER_BYTES], "big")


def step_ids(numbers: Iterable[float]) -> str:
    """Returns the digest of a step, 12 hexadecimal digits, from the numbers of its batches in the order of positions."""
    packed = b"".join(int(number).to_bytes(_NUMBER_BYTES, "big") for number in numbers)
    return hashlib.sha256(packed).hexdigest()[: 2 * _NUMBER_BYTES]


def _drawn(batch: Any, of: str = "") -> Iterator[tuple[str, np.ndarray]]:
    for name in _DRAWN:
        value = getattr(batch, name, None)
        if isinstance(value, Tensor):
            yield f"{of}{name}", _array(value)
    nodes = getattr(batch, "nodes", None)
    if isinstance(nodes, dict):
        for node_type, table in nodes.items():
            yield from _drawn(table, f"{node_type}.")


def _array(tensor: Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:  # numpy has no such type; float32 holds every bfloat16
        tensor = tensor.float()
    return np.ascontiguousarray(tensor.numpy())


def _bytes(array: np.ndarray) -> memoryview | bytes:
    return array.data.cast("B") if array.size else b""
