"""Which remote rows a process keeps while it knows what the next batches need: the row whose next use is farthest goes first.

That is Belady's choice (IBM Systems Journal 5(2), 1966), with the right to keep nothing of what a batch fetched: no plan that knows the same
batches and has the same room fetches fewer rows. It moves no data, and what it decides depends on the batches alone.

A row that is kept has a slot, and the number of the batch that needs it next; `never`, beyond the last batch, where no known batch does. What goes
is found by counts of slots for each next use. Occurrences of nodes in known batches are numbered, and `ring` has the next use after each.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from samplers.prefetch import prefetch
from storage.compiled import compiled

# In place of a slot: a row of this process, a row that must be fetched. NEAR - 1 - i: row i of those that the host's processes share.
NEAR, ABSENT = -2, -1
_NONE = -1
_COUNTER = (1 << 31) - 1  # occurrences are numbered up to here, and from 0 again
_FIRST_RING = 1 << 16
_SOON, _LATER = 8, 16  # how far ahead the ring and the table are asked for

# table[2 v] is the slot of node v, table[2 v + 1] the number of its last occurrence in a known batch.


@compiled
def _admit(node, number, counter, table, ring, use, count):
    """Makes `number` the next use after each node's occurrence before."""
    mask, never, num_nodes = len(ring) - 1, len(count) - 1, len(node)
    for i in range(num_nodes):
        if i + _LATER < num_nodes:
            prefetch(table, 2 * node[i + _LATER])  # type: ignore[call-arg]  # the compiler passes the context
            prefetch(ring, table[2 * node[i + _SOON] + 1] & mask)
        at, here = 2 * node[i], (counter + i) & _COUNTER
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
def _look_up(node, counter, table, ring, use, count, place, taken, wanted):
    """Where each row is, into `place`; those kept are then needed at their next use, and `wanted` counts next uses of those that are not.

    `wanted` has an entry for every batch from `taken` on that is known, and one for never.
    """
    mask, never, num_nodes = len(ring) - 1, len(count) - 1, len(node)
    for i in range(num_nodes):
        if i + _LATER < num_nodes:
            prefetch(table, 2 * node[i + _LATER])  # type: ignore[call-arg]
            prefetch(use, max(table[2 * node[i + _SOON]], 0))
        at = 2 * node[i]
        slot = place[i] = table[at]
        if slot <= NEAR:
            continue
        following = ring[(counter + i) & _COUNTER & mask]
        if following == never:
            table[at + 1] = _NONE
        if slot >= 0:
            count[use[slot]] -= 1
            count[following] += 1
            use[slot] = following
        else:
            wanted[len(wanted) - 1 if following == never else following - taken] += 1


@compiled
def _nearest(count, taken, wanted, num_slots):
    """(next use before which all fit, fetched rows that are needed before, how many of this next use fit, too).

    Where next uses are equal, what is kept stays first.
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
def _make_room(num_victims, use, num_used, node_of, table, count, admitted, victim):
    """Frees the slots whose next use is farthest: never, or else before `admitted`."""
    number, left = len(count), num_victims
    while left > 0:
        number = len(count) - 1 if number == len(count) else min(number, admitted) - 1
        left -= count[number]
    of_last = count[number] + left if num_victims else 0  # of this next use only so many go
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
    """A slot for this node's row, needed next at `number`: the next free one, else the next victim's; (slots used, victims found)."""
    if num_used < len(node_of):
        slot, num_used = num_used, num_used + 1
    else:
        slot, found = victim[found], found + 1
    table[2 * node], node_of[slot], use[slot] = slot, node, number
    count[number] += 1
    return num_used, found


@compiled
def _keep(node, counter, place, bound, num_of_bound, victim, num_used, node_of, table, ring, use, count, keep):
    """Gives slots to the fetched rows that are needed before `bound`, and to some that are then; returns the slots used."""
    mask, found = len(ring) - 1, 0
    for i in range(len(node)):
        keep[i] = ABSENT
        if place[i] != ABSENT:
            continue
        following = ring[(counter + i) & _COUNTER & mask]
        if following < bound or (following == bound and num_of_bound > 0):
            num_of_bound -= following == bound
            num_used, found = _fill(node[i], following, victim, num_used, node_of, table, use, count, found)
            keep[i] = table[2 * node[i]]
    return num_used


@compiled
def _absent(node, table, most, absent):
    """Fills `absent` with the nodes whose rows are not kept; returns their number, or one more than `most` where there are more."""
    found = 0
    for i in range(len(node)):
        if found > most:
            break
        if i + _LATER < len(node):
            prefetch(table, 2 * node[i + _LATER])  # type: ignore[call-arg]
        absent[found] = node[i]
        found += table[2 * node[i]] == ABSENT
    return found


@compiled
def _fill_all(node, number, victim, num_used, node_of, table, use, count):
    found = 0
    for i in range(len(node)):
        num_used, found = _fill(node[i], number, victim, num_used, node_of, table, use, count, found)
    return num_used


@compiled
def _still_kept(node, keep, table):
    for i in range(len(node)):
        if keep[i] != ABSENT:
            keep[i] = table[2 * node[i]]


@dataclass(frozen=True)
class Step:
    """What a batch does: it reads slots, then writes what it fetched to some."""

    place: np.ndarray  # int32 [n]: the slot of each of its rows, NEAR or below, or ABSENT: it is fetched
    keep: np.ndarray  # int32 [n]: the slot that a fetched row goes to, or ABSENT
    ahead: np.ndarray  # rows fetched with them, of batches that follow
    ahead_slot: np.ndarray  # int32: where these go


class RowPlan:
    """Admits batches in order, as far ahead as they are known, and takes them one by one, in order. Not thread-safe.

    `offsets` and `is_near` say which nodes' rows the process reads itself: they take no part. It holds 8 bytes for each node of the graph, 8 for
    each slot, and 4 for each node of a batch that is admitted and not taken.
    """

    def __init__(self, offsets: np.ndarray, is_near: np.ndarray, num_slots: int) -> None:
        self._table = np.full(2 * int(offsets[-1]), _NONE, np.int32)
        self._table[::2] = np.repeat(np.where(is_near, NEAR, ABSENT).astype(np.int32), np.diff(offsets))
        self._node_of, self._use = np.empty((2, num_slots), np.int32 if offsets[-1] <= _COUNTER else np.int64)
        self._ring = np.empty(_FIRST_RING, np.int32)
        self._known: deque[tuple[int, np.ndarray]] = deque()  # (number of the first occurrence, nodes)
        self._counter = 0
        self.num_used = 0
        self.begin(0, 0)

    def share(self, node: np.ndarray) -> None:
        """Before the first batch: these nodes' rows lie in memory that processes share, in this order, and take no part."""
        self._table[2 * node.astype(np.int64)] = NEAR - 1 - np.arange(len(node))

    @property
    def num_slots(self) -> int:
        return len(self._node_of)

    @property
    def num_known(self) -> int:
        """Batches admitted and not taken."""
        return len(self._known)

    @property
    def next_taken(self) -> int:
        """The number of the batch that `take` gives next."""
        return self._taken

    def begin(self, first: int, num_batches: int) -> None:
        """The next batch is `first` of `num_batches`. What is kept stays; batches that were not taken are forgotten."""
        for _, node in self._known:
            self._table[2 * node.astype(np.int64) + 1] = _NONE
        self._known.clear()
        self._admitted = self._taken = first
        self._count = np.zeros(num_batches + 1, np.int64)  # slots by next use
        self._count[num_batches] = self.num_used
        self._use[: self.num_used] = num_batches

    def forget(self) -> None:
        """Keeps no row."""
        self._table[2 * self._node_of[: self.num_used].astype(np.int64)] = ABSENT
        self.num_used = 0
        self._count[:] = 0

    def admit(self, node: np.ndarray) -> None:
        """The distinct nodes of the next batch that is known."""
        first = self._counter if not self._known else self._known[0][0]
        if ((self._counter - first) & _COUNTER) + len(node) > len(self._ring):
            self._grow(first, len(node))
        _admit(node, self._admitted, self._counter, self._table, self._ring, self._use, self._count)
        self._known.append((self._counter, node))
        self._counter = (self._counter + len(node)) & _COUNTER
        self._admitted += 1

    def _grow(self, first: int, more: int) -> None:
        """A ring with room for `more` occurrences."""
        held = (self._counter - first) & _COUNTER
        grown = np.empty(1 << (held + more - 1).bit_length(), np.int32)
        number = (first + np.arange(held)) & _COUNTER
        grown[number & (len(grown) - 1)] = self._ring[number & (len(self._ring) - 1)]
        self._ring = grown

    def take(self, most_ahead: int = 0) -> Step:
        """The first batch that was admitted. If it fetches, it fetches rows of the next ones, too: of whole batches, at most so many rows."""
        counter, node = self._known.popleft()
        place, keep = np.empty((2, len(node)), np.int32)
        wanted = np.zeros(self._admitted - self._taken + 1, np.int64)
        _look_up(node, counter, self._table, self._ring, self._use, self._count, place, self._taken, wanted)
        bound, num_before, num_of_bound = _nearest(self._count, self._taken, wanted, self.num_slots)
        victim = self._victims(num_before + num_of_bound)
        self.num_used = _keep(
            node,
            counter,
            place,
            bound,
            num_of_bound,
            victim,
            self.num_used,
            self._node_of,
            self._table,
            self._ring,
            self._use,
            self._count,
            keep,
        )
        self._taken += 1
        ahead = self._fetch_ahead(most_ahead) if wanted.any() and most_ahead else np.empty(0, node.dtype)
        if len(ahead):
            _still_kept(node, keep, self._table)
        return Step(place, keep, ahead, self._table[2 * ahead.astype(np.int64)])

    def _victims(self, num_rows: int) -> np.ndarray:
        """Slots for these many rows beside the free ones, which were those of rows needed farthest from now."""
        victim = np.empty(max(0, num_rows - (self.num_slots - self.num_used)), np.int32)
        _make_room(
            len(victim), self._use, self.num_used, self._node_of, self._table, self._count, self._admitted, victim
        )
        return victim

    def _fetch_ahead(self, most: int) -> np.ndarray:
        pieces = []
        for number, (_, node) in enumerate(self._known, self._taken):
            later = int(self._count[number + 1 : self._admitted].sum() + self._count[-1])
            fits = min(most, self.num_slots - self.num_used + later)
            absent = np.empty(len(node) + 1, node.dtype)
            absent = absent[: _absent(node, self._table, fits, absent)]
            if len(absent) > fits:
                break
            victim = self._victims(len(absent))
            self.num_used = _fill_all(
                absent, number, victim, self.num_used, self._node_of, self._table, self._use, self._count
            )
            pieces.append(absent)
            most -= len(absent)
        return np.concatenate(pieces) if pieces else self._node_of[:0]
