"""Shares rows of other hosts between all workers of a host. There is one copy per host, in memory that is freed with the last worker.

Each worker counts the rows that its next batches need. The rows that the most batches of all workers of the host need are chosen, and each worker fetches
an even part of the chosen rows. The rows are in an unnamed memory file (memfd_create). The first worker makes this file, and the other workers open it
through /proc. The kernel frees the memory when the last process that maps it ends, for any reason, so nothing stays in /dev/shm. Shared rows never change,
so batches stay equal to the bit.
"""

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from graphmill.cluster.metrics.class_scores import gather_objects
from graphmill.core.offsets import pointers
from graphmill.samplers.access.router import Router, ask_rows
from graphmill.samplers.drawing.pending_batch import DrawingSampler
from graphmill.samplers.loading.scheduled_rows import SharedRows, copy_rows
from graphmill.samplers.vocabulary.messages import NodeRows
from graphmill.samplers.vocabulary.rank_shares import even_split

_COUNTED = 16  # batches whose rows are counted; a larger number did not choose better rows
_ASKED_ROWS = 1 << 16  # in one request
_ALIGNED = 64


@dataclass(frozen=True)
class HostMates:
    """The ranks on this rank's host."""

    ranks: tuple[int, ...]
    rank: int

    @classmethod
    def of(cls, rank: int, host: str) -> "HostMates":
        """Finds the ranks on this host. A collective call."""
        hosts = gather_objects(host)
        return cls(tuple(each for each, theirs in enumerate(hosts) if theirs == host), rank)

    @property
    def place(self) -> int:
        return self.ranks.index(self.rank)

    def memory(self, num_bytes: int) -> np.ndarray:
        """uint8: memory of zeros that the ranks of the host share. A collective call, with the same size on all ranks of a host."""
        fd = -1
        if self.place == 0:
            fd = os.memfd_create("graphmill-rows", os.MFD_CLOEXEC)
            os.ftruncate(fd, max(num_bytes, 1))
        pid, theirs = gather_objects((os.getpid(), fd))[self.ranks[0]]
        own = fd if self.place == 0 else os.open(f"/proc/{pid}/fd/{theirs}", os.O_RDWR | os.O_CLOEXEC)
        mapped = mmap.mmap(own, max(num_bytes, 1))
        gather_objects(None)  # afterwards all ranks have opened the file
        os.close(own)
        return np.frombuffer(mapped, np.uint8)[:num_bytes]


def share_rows(
    sampler: DrawingSampler, epoch: int, batches: Sequence[int], num_bytes: int, mates: HostMates
) -> list[SharedRows]:
    """Fetches the rows of each type that the host's ranks need most, as many as fit into `num_bytes`. No rows on a host with one rank. A collective call.

    `batches`: this rank's batches of the epoch.
    """
    drawn = sampler.draw(epoch, batches[:_COUNTED])
    type_rows = [router.empty_rows(1, **vars(columns), stored=True) for router, _, columns in drawn[0].wanted]
    row_bytes = [sum(column.nbytes for column in vars(row).values() if column is not None) for row in type_rows]
    # Each rank reports the same number of nodes, as many as fit, padded with count 0. Then no lengths have to be exchanged.
    most = num_bytes // min(row_bytes) if len(mates.ranks) > 1 else 0
    # The ids of nodes are made unique over types: type after type.
    first_of = pointers(np.array([router.manifest.num_nodes for router, *_ in drawn[0].wanted]))
    own = [
        needed(router, [row.wanted[place][1] for row in drawn], most)
        for place, (router, *_) in enumerate(drawn[0].wanted)
    ]
    node = np.concatenate([nodes + first for (nodes, _), first in zip(own, first_of, strict=False)])
    times = np.concatenate([times for _, times in own])
    first = np.argsort(-times, kind="stable")[:most]
    counts = mates.memory(16 * most * len(mates.ranks)).view(np.int64).reshape(len(mates.ranks), 2, most)
    counts[mates.place, :, : len(first)] = node[first], times[first]
    gather_objects(None)
    chosen = most_needed(counts[:, 0].ravel(), counts[:, 1].ravel(), num_bytes, first_of, row_bytes)
    shared = []
    for (router, _, columns), row, node in zip(drawn[0].wanted, type_rows, chosen, strict=True):
        rows = _columns(row, len(node), mates)
        start_of, stop = even_split(len(node), len(mates.ranks), mates.place)
        for start in range(start_of, stop, _ASKED_ROWS):
            block = np.arange(start, min(start + _ASKED_ROWS, stop))
            for pending, group in ask_rows([(router, node[block], columns)])[0][1]:
                copy_rows(pending.result(), np.arange(len(group)), rows, block[group])
        shared.append(SharedRows(node, rows))
    gather_objects(None)
    return shared if any(len(row.node) for row in shared) else []


def needed(router: Router, batches: Sequence[np.ndarray], most: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the `most` nodes on other hosts that the most batches need, as (nodes, number of batches that need each node)."""
    node, times = np.unique(np.concatenate(batches), return_counts=True)
    owner = np.searchsorted(np.asarray(router.manifest.partition_offsets), node, side="right") - 1
    far = ~router.is_near[owner]
    node, times = node[far], times[far]
    first = np.argsort(-times, kind="stable")[:most]
    return node[first], times[first]


def most_needed(
    node: np.ndarray, times: np.ndarray, room: int, first_of: np.ndarray, row_bytes: Sequence[int]
) -> list[np.ndarray]:
    """Returns for each type the nodes whose rows all ranks together need most often, in ascending order; as many as fit into `room` bytes.

    `times`: how often each node is needed; entries with 0 are padding. The ids of nodes of type i begin at first_of[i]. Rows are chosen only by `times`,
    because each byte of a row saves `times` bytes of traffic for every type.
    """
    distinct, place = np.unique(node, return_inverse=True)
    total = np.bincount(place, weights=times, minlength=len(distinct))
    order = np.argsort(-total, kind="stable")
    order = order[total[order] > 0]
    type_of = np.searchsorted(first_of, distinct[order], side="right") - 1
    chosen = np.sort(distinct[order[np.cumsum(np.array(row_bytes, np.int64)[type_of]) <= room]])
    ends = np.searchsorted(chosen, first_of)
    return [chosen[start:stop] - first for start, stop, first in zip(ends, ends[1:], first_of, strict=False)]


def _columns(row: NodeRows, length: int, mates: HostMates) -> NodeRows:
    """Makes shared memory for `length` rows with the columns of `row`."""
    columns = {name: column for name, column in vars(row).items() if column is not None}
    sizes = {name: -(-length * column.nbytes // _ALIGNED) * _ALIGNED for name, column in columns.items()}
    memory, start, made = mates.memory(sum(sizes.values())), 0, {}
    for name, column in columns.items():
        part = memory[start : start + length * column.nbytes]
        made[name] = part.view(column.dtype).reshape(length, *column.shape[1:])
        start += sizes[name]
    return replace(row, **made)
