"""A byte-budgeted cache of another machine's feature rows: those of the nodes with most in-edges, read once, never replaced.

The set is fixed before the first answer, so look-ups take no lock (docs/decisions/0009-static-row-cache.md).
"""

import threading
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from samplers.messages import FetchRows, ListHot, NodeList, NodeRows, Reply, Request, join_columns
from samplers.router import Owner, Pending, expect
from storage.encoding_names import encoding_columns
from storage.errors import ConfigError, DeadlineError
from storage.manifest import Manifest

_FILL_BYTES = 1 << 25  # rows asked for at once while a cache is filled
_FILL_TIMEOUT_S = 600.0  # longest wait for another thread's filling


@dataclass
class CacheStats:
    """Counters of a cache; those of several owners can be added up."""

    hits: int = 0  # rows answered here
    misses: int = 0  # rows asked of the owner
    bytes_saved: int = 0  # of features that did not travel
    held_bytes: int = 0


@dataclass(frozen=True)
class _Rows:
    """The cached rows, for requests that differ only in their nodes."""

    kind: tuple[int | None, str | None, tuple[str, ...]]  # split set, feature dtype and encodings
    slot: np.ndarray  # int32 [num_owned]: row of each owned node in `rows`, or -1
    rows: NodeRows


class CachedOwner:
    """An `Owner` that answers `FetchRows` from a cache as far as it can, and asks the owner behind it for everything else.

    The first request for features decides which columns and dtype are cached; requests for others pass. Thread-safe.
    """

    def __init__(self, owner: Owner, manifest: Manifest, partition: int, budget_bytes: int) -> None:
        if budget_bytes < 0:
            raise ConfigError(f"row cache: expected a budget of at least 0 bytes, got {budget_bytes}")
        self._owner, self._manifest, self._budget_bytes = owner, manifest, budget_bytes
        self._start, stop = manifest.partition_offsets[partition : partition + 2]
        self._num_owned = stop - self._start
        self._rows: _Rows | None = None
        self._filling, self._counting = threading.Lock(), threading.Lock()
        self.stats = CacheStats()

    def submit(self, request: Request) -> Pending:
        if not isinstance(request, FetchRows) or not request.feature or not self._manifest.feature_dim:
            return self._owner.submit(request)
        cached = self._rows or self._fill(request)
        if _kind(request) != cached.kind:
            return self._owner.submit(request)
        slot = cached.slot[request.node - self._start]
        is_hit = slot >= 0
        missed = request.node[~is_hit]
        with self._counting:
            self.stats.hits += len(slot) - len(missed)
            self.stats.misses += len(missed)
            self.stats.bytes_saved += (len(slot) - len(missed)) * self._feature_bytes(request)
        pending = self._owner.submit(replace(request, node=missed)) if len(missed) else None
        return _Merging(cached.rows, slot, is_hit, pending)

    def _feature_bytes(self, request: FetchRows) -> int:
        return self._manifest.feature_dim * np.dtype(request.feature_dtype or self._manifest.feature_dtype).itemsize

    def _fill(self, request: FetchRows) -> _Rows:
        """Reads the rows of the hottest nodes; other threads wait for it."""
        if not self._filling.acquire(timeout=_FILL_TIMEOUT_S):
            raise DeadlineError(f"row cache: not filled within {_FILL_TIMEOUT_S:g} s; is the partition's server slow?")
        try:
            if self._rows is None:
                self._rows = self._read(request)
            return self._rows
        finally:
            self._filling.release()

    def _read(self, request: FetchRows) -> _Rows:
        # Features, original id, label, split, encodings.
        row_bytes = self._feature_bytes(request) + 17 + 4 * encoding_columns(request.encodings)
        room = max(0, self._budget_bytes - 4 * self._num_owned) // row_bytes
        slot = np.full(self._num_owned, -1, np.int32)
        hot = self._owner.submit(ListHot(min(room, self._num_owned))).result() if room else None
        node = hot.node.astype(request.node.dtype) if isinstance(hot, NodeList) else request.node[:0]
        slot[node - self._start] = np.arange(len(node), dtype=np.int32)
        step = max(1, _FILL_BYTES // row_bytes)
        pieces = [
            expect(self._owner.submit(replace(request, node=node[start : start + step])).result(), NodeRows)
            for start in range(0, max(len(node), 1), step)
        ]
        columns: dict[str, Any] = {
            one.name: join_columns([getattr(p, one.name) for p in pieces]) for one in fields(NodeRows)
        }
        rows = NodeRows(**columns)
        self.stats.held_bytes = slot.nbytes + sum(v.nbytes for v in vars(rows).values() if v is not None)
        return _Rows(_kind(request), slot, rows)


class _Merging:
    """The owner's answer about what was missed, with what was cached put in."""

    def __init__(self, cached: NodeRows, slot: np.ndarray, is_hit: np.ndarray, pending: Pending | None) -> None:
        self._cached, self._slot, self._is_hit, self._pending = cached, slot, is_hit, pending

    def result(self) -> Reply:
        if self._pending is None:
            taken: dict[str, Any] = {name: _take(column, self._slot) for name, column in vars(self._cached).items()}
            return NodeRows(**taken)
        missed = expect(self._pending.result(), NodeRows)
        hit = np.flatnonzero(self._is_hit)
        if not len(hit):
            return missed
        hit_slot, other = self._slot[hit], np.flatnonzero(~self._is_hit)
        merged: dict[str, Any] = dict.fromkeys(vars(self._cached))
        for name, column in vars(self._cached).items():
            if column is None:
                continue
            values = np.empty((len(self._slot), *column.shape[1:]), column.dtype)
            values[hit] = column[hit_slot]
            values[other] = getattr(missed, name)
            merged[name] = values
        return NodeRows(**merged)


def _kind(request: FetchRows) -> tuple[int | None, str | None, tuple[str, ...]]:
    return request.split_set, request.feature_dtype, request.encodings


def _take(column: np.ndarray | None, slot: np.ndarray) -> np.ndarray | None:
    return None if column is None else np.take(column, slot, axis=0)
