"""Records that are taken once each and in order, whatever of the messages between is lost, late, doubled or overtaken.

Who sends numbers its records, keeps each until it hears that it was taken, and puts all that it keeps into every message. Who takes
them counts. Between the two stands an inbox that may lose all it holds: what was in it comes again.
"""

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]
Numbered = tuple[str, int, Record]  # sender, number from 0, record


class Outbox:
    """The sender's end."""

    def __init__(self) -> None:
        self.sender = uuid.uuid4().hex
        self.num_taken = 0
        self._kept: deque[Record] = deque()

    def __len__(self) -> int:
        """Records added so far."""
        return self.num_taken + self.num_kept

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    def add(self, record: Record) -> None:
        self._kept.append(record)

    def kept(self) -> list[Record]:
        """What every message holds: the records from number `num_taken` on."""
        return list(self._kept)

    def taken(self, count: int) -> None:
        """The first `count` records were taken; an older answer says nothing new."""
        while self.num_taken < count:
            self._kept.popleft()
            self.num_taken += 1


class Inbox:
    """Holds what was sent until it is taken; of any number of senders."""

    def __init__(self) -> None:
        self.waiting: list[Numbered] = []
        self._next: dict[str, int] = {}
        self._num_taken: dict[str, int] = {}

    def put(self, sender: str, first: int, records: Sequence[Record]) -> list[Record]:
        """A message: `sender`'s records from number `first` on, those before being taken. Returns those that are new here."""
        known = max(self._next.get(sender, 0), first)
        fresh = [(sender, number, record) for number, record in enumerate(records, first) if number >= known]
        self.waiting += fresh
        self._next[sender] = known + len(fresh)
        self.taken({sender: first})
        return [record for _, _, record in fresh]

    def taken(self, counts: Mapping[str, int]) -> None:
        """How many records of each of these senders were taken."""
        for sender, count in counts.items():
            self._num_taken[sender] = max(self.num_taken(sender), count)
        self.waiting = [item for item in self.waiting if item[1] >= self._num_taken.get(item[0], 0)]

    def num_taken(self, sender: str) -> int:
        return self._num_taken.get(sender, 0)


class Reader:
    """Who takes them. After a record that `supersedes`, those of senders known before its own are taken and not shown."""

    def __init__(self, supersedes: Callable[[Record], bool] = lambda _: False) -> None:
        self._counts: dict[str, int] = {}
        self._supersedes, self._superseded = supersedes, set[str]()

    def fresh(self, items: Iterable[Numbered]) -> Iterator[Record]:
        """What was not taken before, in turn; a record is taken once the next is asked for."""
        for sender, number, record in items:
            if number < self._counts.get(sender, 0):
                continue
            if sender not in self._superseded:
                yield record
                if self._supersedes(record):
                    self._superseded |= self._counts.keys() - {sender}
            self._counts[sender] = number + 1

    def counts(self, items: Iterable[Numbered]) -> dict[str, int]:
        """How many records of each sender of these items are taken."""
        return {sender: self._counts.get(sender, 0) for sender, _, _ in items}
