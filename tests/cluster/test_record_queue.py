"""Records through an inbox that forgets, by messages that are lost, doubled and overtaken: each is taken once, in order."""

from hypothesis import given
from hypothesis import strategies as st

from cluster.record_queue import Inbox, Outbox, Reader

# What happens next: (what, which of the messages under way).
EVENTS = st.tuples(
    st.sampled_from(("add", "send", "arrive", "arrive again", "answer", "drain", "drain unanswered", "forget")),
    st.integers(0, 1),
    st.integers(0, 5),
)


class Exchange:
    """Two senders, one inbox and one reader, and all that is under way between them."""

    def __init__(self) -> None:
        self.outboxes = [Outbox(), Outbox()]
        self.inbox, self.reader = Inbox(), Reader()
        self.under_way: list[tuple[str, int, list]] = []
        self.answers: list[tuple[int, int]] = []  # sender, how many were taken when it was given
        self.told: dict[str, int] = {}
        self.read: dict[str, list[int]] = {box.sender: [] for box in self.outboxes}

    def step(self, what: str, sender: int, which: int) -> None:
        box = self.outboxes[sender]
        match what:
            case "add":
                box.add({"value": len(box)})
            case "send":
                self.under_way.append((box.sender, box.num_taken, box.kept()))
            case "arrive" | "arrive again" if self.under_way:
                place = which % len(self.under_way)
                name, first, records = self.under_way[place]
                if what == "arrive":
                    del self.under_way[place]
                self.inbox.put(name, first, records)
            case "answer":
                self.answers.append((sender, self.inbox.num_taken(box.sender)))
                to, count = self.answers.pop(which % len(self.answers)) if which else self.answers[0]
                self.outboxes[to].taken(count)
            case "drain" | "drain unanswered":
                self.inbox.taken(self.told)
                if what == "drain":
                    items = list(self.inbox.waiting)
                    for record, name in self.fresh(items):
                        self.read[name].append(record["value"])
                    self.told = self.reader.counts(items)
            case "forget":
                self.inbox = Inbox()

    def fresh(self, items):
        names = {id(record): name for name, _, record in items}
        return [(record, names[id(record)]) for record in self.reader.fresh(items)]


@given(st.lists(EVENTS, min_size=40, max_size=200))
def test_each_record_is_taken_once_and_in_order(events):
    exchange = Exchange()
    for event in events:
        exchange.step(*event)
        for box in exchange.outboxes:
            read = exchange.read[box.sender]
            assert read == list(range(len(read)))
            assert box.num_taken <= len(read)  # nothing is let go of that was not taken
    # At last all goes well.
    for sender in (0, 1):
        box = exchange.outboxes[sender]
        exchange.inbox.put(box.sender, box.num_taken, box.kept())
        exchange.step("drain", sender, 0)
        exchange.step("drain", sender, 0)
        box.taken(exchange.inbox.num_taken(box.sender))
        assert exchange.read[box.sender] == list(range(len(box)))
        assert box.kept() == []
    assert exchange.inbox.waiting == []


def test_the_inbox_says_what_is_new():
    inbox, box = Inbox(), Outbox()
    box.add({"value": 0})
    first = (box.sender, box.num_taken, box.kept())
    assert inbox.put(*first) == [{"value": 0}]
    box.add({"value": 1})
    assert inbox.put(box.sender, box.num_taken, box.kept()) == [{"value": 1}]
    assert inbox.put(*first) == []


def test_what_old_senders_tell_after_a_new_one_has_begun_is_passed_over():
    def item(sender: str, number: int, what: str = "") -> tuple[str, int, dict]:
        return sender, number, {"what": what or f"{sender}{number}"}

    reader = Reader(lambda record: record["what"] == "begin")
    items = [item("a", 0, "begin"), item("a", 1), item("b", 0), item("a", 2), item("b", 1, "begin"), item("a", 3)]
    assert [record["what"] for record in reader.fresh(items)] == ["begin", "a1", "b0", "a2", "begin"]
    assert reader.counts(items) == {"a": 4, "b": 2}  # it is told that all were taken, and need not send them again
    assert [record["what"] for record in reader.fresh([item("a", 4), item("b", 2)])] == ["b2"]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=120))
def test_after_an_attempt_has_begun_no_older_one_is_heard(events):
    """Four attempts that begin in turn, each when it first tells something, and whose messages come when they like."""
    reader = Reader(lambda record: record["what"] == "begin")
    boxes: list[Outbox] = []
    inbox = Inbox()
    shown: list[tuple[int, int]] = []  # attempt, number of the record
    for attempt, records_taken in events:
        attempt = min(attempt, len(boxes))
        if attempt == len(boxes):
            boxes.append(Outbox())
        box = boxes[attempt]
        number = len(box)
        box.add({"what": "begin" if number == 0 else "goes on", "at": (attempt, number)})
        inbox.put(box.sender, box.num_taken, box.kept())
        items = inbox.waiting[:records_taken]
        shown += [record["at"] for record in reader.fresh(items)]
        inbox.taken(reader.counts(items))
        if records_taken % 2:
            box.taken(inbox.num_taken(box.sender))
    begun = [attempt for attempt, number in shown if number == 0]
    assert len(set(shown)) == len(shown)
    place = -1
    for attempt, number in shown:
        place = begun.index(attempt) if number == 0 else place
        assert attempt == begun[place], "an attempt was heard after another had begun"
    for attempt in begun:
        numbers = [number for of, number in shown if of == attempt]
        assert numbers == list(range(len(numbers)))


def test_a_record_whose_taking_fails_is_not_taken():
    reader, items = Reader(), [("a", 0, {"value": 0}), ("a", 1, {"value": 1})]
    fresh = reader.fresh(items)
    next(fresh)
    next(fresh)  # and here the reader fails
    assert reader.counts(items) == {"a": 1}
    assert list(reader.fresh(items)) == [{"value": 1}]
