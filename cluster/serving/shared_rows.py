"""Rows of other hosts that all workers of a host share: one copy, in memory that cannot outlive them.

Each worker counts which rows its next batches need. The rows that are in most batches of all the host's workers are chosen, and each asks for an even part of them. They lie in a memory file without a
name (memfd_create), which the first worker makes and the others open through /proc while it lives. The kernel frees it with the last process that
maps it, however that ends: there is nothing in /dev/shm to be left. What lies there never changes, so no batch differs by a bit.
"""

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graphmill.cluster.metrics.class_scores import gather_objects
from graphmill.samplers.access.router import Router
from graphmill.samplers.drawing.pending_batch import DrawingSampler
from graphmill.samplers.loading.scheduled_rows import SharedRows, copy_rows
from graphmill.samplers.vocabulary.messages import NodeRows
from graphmill.samplers.vocabulary.rank_shares import even_split

_COUNTED = 16  # batches by which rows are chosen; more found no better ones
_ASKED_ROWS = 1 << 16  # in one question
_ALIGNED = 64


@dataclass(frozen=True)
class HostMates:
    """The ranks on one host."""

    ranks: tuple[int, ...]
    rank: int

    @classmethod
    def of(cls, rank: int, host: str) -> "HostMates":
        """A collective call."""
        hosts = gather_objects(host)
        return cls(tuple(each for each, theirs in enumerate(hosts) if theirs == host), rank)

    @property
    def place(self) -> int:
        return self.ranks.index(self.rank)

    def memory(self, num_bytes: int) -> np.ndarray:
        """uint8: zeros that the ranks of the host share. A collective call; all of a host ask for as much."""
        fd = -1
        if self.place == 0:
            fd = os.memfd_create("graphmill-rows", os.MFD_CLOEXEC)
            os.ftruncate(fd, max(num_bytes, 1))
        pid, theirs = gather_objects((os.getpid(), fd))[self.ranks[0]]
        own = fd if self.place == 0 else os.open(f"/proc/{pid}/fd/{theirs}", os.O_RDWR | os.O_CLOEXEC)
        mapped = mmap.mmap(own, max(num_bytes, 1))
        gather_objects(None)  # all have opened it
        os.close(own)
        return np.frombuffer(mapped, np.uint8)[:num_bytes]


def share_rows(
    sampler: DrawingSampler, epoch: int, batches: Sequence[int], num_bytes: int, mates: HostMates
) -> SharedRows | None:
    """The rows that the host's ranks need most, as many as `num_bytes` hold; None on a host with one rank. A collective call.

    `batches`: the rank's, of this epoch.
    """
    router = sampler.router
    drawn = sampler.draw(epoch, batches[:_COUNTED])
    columns: dict[str, Any] = vars(drawn[0].columns)
    one = router.empty_rows(1, **columns, stored=True)
    row_bytes = sum(column.nbytes for column in vars(one).values() if column is not None)
    # Each tells as many as there is room for, so that no lengths need be told; what nobody tells has the count 0.
    most = num_bytes // row_bytes if len(mates.ranks) > 1 else 0
    own, times = needed(router, [one.node for one in drawn], most)
    told = mates.memory(16 * most * len(mates.ranks)).view(np.int64).reshape(len(mates.ranks), 2, most)
    told[mates.place, :, : len(own)] = own, times
    gather_objects(None)
    node = most_needed(told[:, 0].ravel(), told[:, 1].ravel(), most)
    rows = _columns(one, len(node), mates)
    first, stop = even_split(len(node), len(mates.ranks), mates.place)
    for start in range(first, stop, _ASKED_ROWS):
        some = np.arange(start, min(start + _ASKED_ROWS, stop))
        for pending, group in router.ask_rows(node[some], **columns)[1]:
            copy_rows(pending.result(), np.arange(len(group)), rows, some[group])
    gather_objects(None)
    return SharedRows(node, rows) if len(node) else None


def needed(router: Router, batches: Sequence[np.ndarray], most: int) -> tuple[np.ndarray, np.ndarray]:
    """(nodes of owners elsewhere, in how many batches each is), at most so many, those in the most batches."""
    node, times = np.unique(np.concatenate(batches), return_counts=True)
    owner = np.searchsorted(np.asarray(router.manifest.partition_offsets), node, side="right") - 1
    far = ~router.is_near[owner]
    node, times = node[far], times[far]
    first = np.argsort(-times, kind="stable")[:most]
    return node[first], times[first]


def most_needed(node: np.ndarray, times: np.ndarray, most: int) -> np.ndarray:
    """The nodes, ascending, that are needed most often by all who told; entries of 0 times are none."""
    found, place = np.unique(node, return_inverse=True)
    total = np.bincount(place, weights=times, minlength=len(found))
    first = np.argsort(-total, kind="stable")[:most]
    return np.sort(found[first[total[first] > 0]])


def _columns(one: NodeRows, length: int, mates: HostMates) -> NodeRows:
    """Shared room for so many rows like this one."""
    columns = {name: column for name, column in vars(one).items() if column is not None}
    sizes = {name: -(-length * column.nbytes // _ALIGNED) * _ALIGNED for name, column in columns.items()}
    memory, start, made = mates.memory(sum(sizes.values())), 0, {}
    for name, column in columns.items():
        part = memory[start : start + length * column.nbytes]
        made[name] = part.view(column.dtype).reshape(length, *column.shape[1:])
        start += sizes[name]
    return replace(one, **made)
