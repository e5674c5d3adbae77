"""Plans which remote rows a process keeps, from the batches that come next. If rows must be dropped, the plan drops the row whose next use is farthest away.

This is Belady's algorithm (IBM Systems Journal 5(2), 1966), except that a fetched row need not be kept. With the same known batches and the same room, no other
plan fetches fewer rows. The plan moves no data, and its decisions depend only on the batches.

A kept row has a slot and a next use. The next use is the number of the next batch that needs the row. If no known batch needs it, the next use is `never`, a
number beyond the last batch. To find the rows to drop, the plan counts the slots for each next use. Each appearance of a node in a known batch is called an
occurrence and has a number. For each occurrence, `ring` has the next use of its node.
"""

from collections import deque
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from graphmill.core.compile_cache import compiled
from graphmill.samplers.kernels.prefetch import prefetch

# Values in place of a slot. NEAR: this process has the row. ABSENT: the row must be fetched. NEAR - 1 - i: it is row i of the host's shared memory.
NEAR, ABSENT = -2, -1
_NONE = -1
_COUNTER = (1 << 31) - 1  # largest occurrence number; then numbers start again at 0
_FIRST_RING = 1 << 16
_SOON, _LATER = 8, 16  # the processor prefetches the ring and the table this many nodes ahead

# table[2 v] is the slot of node v. table[2 v + 1] is the number of its last occurrence in a known batch.


@compiled
def _split(node, start, stop, position, outside):
    """Writes to `position` the positions of the nodes in [start, stop), then the positions of the other nodes. Returns the number of nodes in [start, stop).

    To avoid a branch, the loop writes each position to both lists and advances only the right one. A mispredicted branch would take longer.
    """
    num_inside = num_outside = 0
    for i in range(len(node)):
        position[num_inside] = outside[num_outside] = i
        is_inside = start <= node[i] < stop
        num_inside += is_inside
        num_outside += not is_inside
    position[num_inside:] = outside[:num_outside]
    return num_inside


@compiled
def _admit(node, position, number, counter, table, ring, use, count):
    """For each node at these positions, sets `number` as the next use after the node's previous occurrence."""
    mask, never, num_nodes = len(ring) - 1, len(count) - 1, len(position)
    for k in range(num_nodes):
        if k + _LATER < num_nodes:
            prefetch(table, 2 * node[position[k + _LATER]])  # type: ignore[call-arg]  # the compiler passes the context
            prefetch(ring, table[2 * node[position[k + _SOON]] + 1] & mask)
        at, here = 2 * node[position[k]], (counter + position[k]) & _COUNTER
        slot, last = table[at], table[at + 1]
        if slot <= NEAR:
            continue
        if last != _NONE:
            ring[last & mask] = number
        elif slot >= 0:
            count[use[slot]] -= 1
            count[number] += 1
            use[slot] = number
        table[at + 1] = here
        ring[here & mask] = never


@compiled
def _look_up(node, position, table, near, shared, shared_row, hit, slot, absent):
    """Finds where the row of each node at these positions is. Writes the positions by kind, the shared rows and the slots. Returns the number of each kind.

    To avoid branches, the loop writes each position to several lists and advances only the right one. A mispredicted branch would take longer.
    """
    num_near = num_shared = num_hit = num_absent = 0
    for k in range(len(position)):
        if k + _LATER < len(position):
            prefetch(table, 2 * node[position[k + _LATER]])  # type: ignore[call-arg]
        i = position[k]
        place = table[2 * node[i]]
        near[num_near] = hit[num_hit] = absent[num_absent] = i
        slot[num_hit] = place
        if place < NEAR:
            shared[num_shared], shared_row[num_shared] = i, NEAR - 1 - place
            num_shared += 1
        num_near += place == NEAR
        num_hit += place >= 0
        num_absent += place == ABSENT
    return num_near, num_shared, num_hit, num_absent


@compiled
def _next_uses(node, position, counter, table, ring, never, following):
    """Finds the next use of each of these nodes after a batch. `counter`: number of the batch's first occurrence."""
    mask = len(ring) - 1
    for k in range(len(position)):
        i = position[k]
        following[k] = ring[(counter + i) & _COUNTER & mask]
        if following[k] == never:
            table[2 * node[i] + 1] = _NONE


@compiled
def _use(slot, following, use, count):
    for k in range(len(slot)):
        use[slot[k]] = following[k]
        count[following[k]] += 1


@compiled
def _count_wanted(following, taken, wanted):
    """Counts how many rows have each next use. `wanted` has one entry for each known batch from `taken` on, and a last entry for `never`."""
    last = len(wanted) - 1
    for k in range(len(following)):
        wanted[min(following[k] - taken, last)] += 1


@compiled
def _nearest(count, taken, wanted, num_slots):
    """Finds which fetched rows will be kept, given the number of slots. Returns (bound, count, count_of_bound).

    All rows whose next use is before `bound` fit; `count` of them are fetched rows. In addition, `count_of_bound` fetched rows fit whose next use is `bound`.
    If rows have the same next use, a row that already has a slot is preferred to a fetched row.
    """
    held = fetched = 0
    for i in range(len(wanted)):
        number = taken + i if i + 1 < len(wanted) else len(count) - 1
        if held + count[number] + wanted[i] > num_slots:
            return number, fetched, max(0, num_slots - held - count[number])
        held += count[number] + wanted[i]
        fetched += wanted[i]
    return len(count), fetched, 0


@compiled
def _make_room(num_victims, num_used, node_of, table, use, count, admitted, victim):
    """Frees slots, farthest next use first: `never`, then batch `admitted` - 1, then earlier batches."""
    number, left = len(count), num_victims
    while left > 0:
        number = len(count) - 1 if number == len(count) else min(number, admitted) - 1
        left -= count[number]
    of_last = count[number] + left if num_victims else 0  # number of rows with this next use that must be dropped
    found = 0
    for slot in range(num_used):
        if found == num_victims:
            break
        if use[slot] > number or (use[slot] == number and of_last > 0):
            of_last -= use[slot] == number
            victim[found] = slot
            found += 1
            count[use[slot]] -= 1
            table[2 * node_of[slot]] = ABSENT


@compiled
def _fill(node, number, victim, num_used, node_of, table, use, count, found):
    """Gives a slot to this node's row, whose next use is `number`. Takes the next unused slot. If none is left, takes the slot of the next victim (a dropped
    row). Returns (slots used, victims used)."""
    if num_used < len(node_of):
        slot, num_used = num_used, num_used + 1
    else:
        slot, found = victim[found], found + 1
    table[2 * node], node_of[slot], use[slot] = slot, node, number
    count[number] += 1
    return num_used, found


@compiled
def _keep(node, absent, following, bound, num_of_bound, victim, num_used, node_of, table, use, count, keep):
    """Gives slots to the fetched rows whose next use is before `bound`, and to `num_of_bound` fetched rows whose next use is `bound`. Returns the number of
    slots in use."""
    found = 0
    for k in range(len(absent)):
        keep[k] = ABSENT
        if following[k] < bound or (following[k] == bound and num_of_bound > 0):
            num_of_bound -= following[k] == bound
            own = node[absent[k]]
            num_used, found = _fill(own, following[k], victim, num_used, node_of, table, use, count, found)
            keep[k] = table[2 * own]
    return num_used


@compiled
def _absent(node, position, table, most, absent):
    """Writes to `absent` the nodes at these positions that have no kept row. Stops after `most` + 1 nodes. Returns the number of nodes."""
    found = 0
    for k in range(len(position)):
        if found > most:
            break
        if k + _LATER < len(position):
            prefetch(table, 2 * node[position[k + _LATER]])  # type: ignore[call-arg]
        absent[found] = node[position[k]]
        found += table[2 * node[position[k]]] == ABSENT
    return found


@compiled
def _fill_all(node, number, victim, num_used, node_of, table, use, count):
    found = 0
    for i in range(len(node)):
        num_used, found = _fill(node[i], number, victim, num_used, node_of, table, use, count, found)
    return num_used


@compiled
def _still_kept(node, absent, keep, table):
    for k in range(len(absent)):
        if keep[k] != ABSENT:
            keep[k] = table[2 * node[absent[k]]]


def _longest_run(offsets: np.ndarray, is_near: np.ndarray) -> tuple[int, int]:
    """Bounds of the longest range of nodes whose partitions are all near (read by this process)."""
    runs, at = [(0, 0)], 0
    for own, of_run in groupby(is_near):
        end = at + len(list(of_run))
        if own:
            runs.append((int(offsets[at]), int(offsets[end])))
        at = end
    return max(runs, key=lambda run: run[1] - run[0])


@dataclass(frozen=True)
class Step:
    """The plan for one batch: first it reads rows from slots, then it writes fetched rows to slots. Positions are positions in the batch, ascending."""

    near: np.ndarray  # int64: positions of rows that this process reads itself
    shared: np.ndarray  # int64: positions of rows in the host's shared memory
    shared_row: np.ndarray  # int64: for each entry of `shared`, the index of its row
    hit: np.ndarray  # int64: positions of kept rows
    slot: np.ndarray  # int64: for each entry of `hit`, its slot
    absent: np.ndarray  # int64: positions of rows that this batch fetches
    keep: np.ndarray  # int64: for each entry of `absent`, the slot that keeps it, or ABSENT
    ahead: np.ndarray  # nodes of later batches whose rows are fetched in advance
    ahead_slot: np.ndarray  # int64: for each entry of `ahead`, its slot


class RowSchedule:
    """The plan of one process. Admit each batch as soon as it is known, and take each batch when it is needed, both in order. Not thread-safe.

    `offsets` and `is_near` name the partitions that the process reads itself; their rows are not planned. The plan takes 8 bytes per node of the graph, 8 per
    slot, 8 to 20 per node of a batch that is admitted but not taken, and 56 per node of the largest batch.
    """

    def __init__(self, offsets: np.ndarray, is_near: np.ndarray, num_slots: int) -> None:
        self._table = np.full(2 * int(offsets[-1]), _NONE, np.int32)
        self._table[::2] = np.repeat(np.where(is_near, NEAR, ABSENT).astype(np.int32), np.diff(offsets))
        self._node_of, self._use = np.empty((2, num_slots), np.int32 if offsets[-1] <= _COUNTER else np.int64)
        self._ring = np.empty(_FIRST_RING, np.int32)
        # Every batch reuses these arrays: the page faults of new arrays would take as long as filling them.
        self._room, self._following = np.empty((6, 0), np.int64), np.empty((2, 0), np.int32)
        self._near = _longest_run(offsets, is_near)
        # An entry for each batch: (number of its first occurrence, its nodes, their positions with `_near` nodes first, number of `_near` nodes).
        self._known: deque[tuple[int, np.ndarray, np.ndarray, int]] = deque()
        self._counter = 0
        self.num_used = 0
        self.begin(0, 0)

    def share(self, node: np.ndarray) -> None:
        """Declares that shared memory has the rows of these nodes, in this order. They are not planned. Call it before the first batch."""
        self._table[2 * node.astype(np.int64)] = NEAR - 1 - np.arange(len(node))

    @property
    def num_slots(self) -> int:
        return len(self._node_of)

    @property
    def next_taken(self) -> int:
        """Number of the batch that `take` returns next."""
        return self._taken

    def begin(self, first: int, num_batches: int) -> None:
        """Begins at batch `first` of `num_batches`. Keeps the kept rows; forgets batches that were not taken."""
        for _, node, *_ in self._known:
            self._table[2 * node.astype(np.int64) + 1] = _NONE
        self._known.clear()
        self._admitted = self._taken = first
        self._count = np.zeros(num_batches + 1, np.int64)  # number of slots for each next use
        self._count[num_batches] = self.num_used
        self._use[: self.num_used] = num_batches

    def forget(self) -> None:
        """Drops all kept rows."""
        self._table[2 * self._node_of[: self.num_used].astype(np.int64)] = ABSENT
        self.num_used = 0
        self._count[:] = 0

    def admit(self, node: np.ndarray) -> None:
        """Adds the next known batch, given by its distinct nodes."""
        first = self._counter if not self._known else self._known[0][0]
        held = ((self._counter - first) & _COUNTER) + len(node)
        if held > len(self._ring):
            self._grow(first, held)
        if len(node) > self._room.shape[1]:
            self._room = np.empty((6, len(node)), np.int64)
            self._following = np.empty((2, len(node)), np.int32)
        position = np.empty(len(node), np.int32)
        num_near = _split(node, *self._near, position, self._room[0])
        _admit(
            node, position[num_near:], self._admitted, self._counter, self._table, self._ring, self._use, self._count
        )
        self._known.append((self._counter, node, position, num_near))
        self._counter = (self._counter + len(node)) & _COUNTER
        self._admitted += 1

    def _grow(self, first: int, held: int) -> None:
        """Doubles the ring's length. Copies the occurrences from `first` on, in two stretches of the old length."""
        length, size = len(self._ring), 1 << held.bit_length() + 1
        grown = np.empty(size, np.int32)
        for stretch in (first // length, first // length + 1):
            at = stretch * length & (size - 1)
            grown[at : at + length] = self._ring
        self._ring = grown

    def take(self, most_ahead: int = 0) -> Step:
        """Takes the next admitted batch. If it fetches rows, it also fetches up to `most_ahead` rows in advance, for whole batches only."""
        counter, node, position, num_inside = self._known.popleft()
        num_near, num_shared, num_hit, num_absent = _look_up(node, position[num_inside:], self._table, *self._room)
        sizes = (num_near, num_shared, num_shared, num_hit, num_hit, num_absent)
        near, shared, shared_row, hit, slot, absent = (
            row[:size].copy() for row, size in zip(self._room, sizes, strict=True)
        )
        near = (
            np.sort(np.concatenate([near, position[:num_inside]]))
            if num_near
            else position[:num_inside].astype(np.int64)
        )
        never = len(self._count) - 1
        of_hit, of_absent = self._following[0, :num_hit], self._following[1, :num_absent]
        for position, uses in ((hit, of_hit), (absent, of_absent)):
            _next_uses(node, position, counter, self._table, self._ring, never, uses)
        self._count[self._taken] = 0  # rows whose next use was this batch are used now
        _use(slot, of_hit, self._use, self._count)
        wanted = np.zeros(self._admitted - self._taken + 1, np.int64)
        _count_wanted(of_absent, self._taken, wanted)
        bound, num_before, num_of_bound = _nearest(self._count, self._taken, wanted, self.num_slots)
        victim, keep = self._victims(num_before + num_of_bound), np.empty(num_absent, np.int64)
        self.num_used = _keep(node, absent, of_absent, bound, num_of_bound, victim, *self._slots, keep)
        self._taken += 1
        ahead = self._fetch_ahead(most_ahead) if num_absent and most_ahead else np.empty(0, node.dtype)
        if len(ahead):
            _still_kept(node, absent, keep, self._table)
        ahead_slot = self._table[2 * ahead.astype(np.int64)].astype(np.int64)
        return Step(near, shared, shared_row, hit, slot, absent, keep, ahead, ahead_slot)

    @property
    def _slots(self) -> tuple[int, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        return self.num_used, self._node_of, self._table, self._use, self._count

    def _victims(self, num_rows: int) -> np.ndarray:
        """Finds slots for `num_rows` rows that do not fit into free slots: the slots of the kept rows whose next use is farthest."""
        victim = np.empty(max(0, num_rows - (self.num_slots - self.num_used)), np.int32)
        _make_room(len(victim), *self._slots, self._admitted, victim)
        return victim

    def _fetch_ahead(self, most: int) -> np.ndarray:
        pieces = []
        for number, (_, node, position, num_inside) in enumerate(self._known, self._taken):
            later = int(self._count[number + 1 : self._admitted].sum() + self._count[-1])
            fits = min(most, self.num_slots - self.num_used + later)
            absent = np.empty(len(node) + 1, node.dtype)
            absent = absent[: _absent(node, position[num_inside:], self._table, fits, absent)]
            if len(absent) > fits:
                break
            victim = self._victims(len(absent))
            self.num_used = _fill_all(absent, number, victim, *self._slots)
            pieces.append(absent)
            most -= len(absent)
        return np.concatenate(pieces) if pieces else self._node_of[:0]
