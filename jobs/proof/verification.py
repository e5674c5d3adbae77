"""Verifies a run: checks its files, draws steps, replays them, and says whether they are equal to the record."""

import itertools
import random
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from graphmill.cluster.receipts.chain import Entry, Position, Start
from graphmill.cluster.receipts.digests import tensor_digests
from graphmill.cluster.receipts.host_facts import differing_facts, host_facts
from graphmill.core.errors import FormatError
from graphmill.core.summaries import counted
from graphmill.jobs.proof.comparison import Difference, bound_after, compare, first_tensor, is_within
from graphmill.jobs.proof.file_checks import check_files
from graphmill.jobs.proof.proven_run import ProvenRun, open_proven
from graphmill.jobs.proof.replay_steps import Replay, replay_device

_SEEDS = 1 << 32
SCORES = "scores are in the chain; they are not computed again"


@dataclass(frozen=True)
class Pass:
    """Steps that one replay covers: from a beginning to a last step."""

    begin: int
    last: int
    asked: tuple[int, ...]  # the drawn steps among them

    @property
    def num_steps(self) -> int:
        return self.last - self.begin + 1


@dataclass(frozen=True)
class Draw:
    """The steps to verify, and what their replay costs and finds."""

    seed: int | None  # None: nothing was drawn
    asked: tuple[int, ...]
    passes: tuple[Pass, ...]
    num_steps: int  # of the run
    unreachable: int = 0  # first recorded steps, which no kept checkpoint precedes

    @property
    def replayed(self) -> int:
        return sum(each.num_steps for each in self.passes)

    @property
    def probability(self) -> float:
        """The probability that a replay covers a step that is drawn at random from the whole run. A batch trained otherwise is found there, and only there."""
        return self.replayed / self.num_steps if self.num_steps else 0.0


@dataclass
class Verification:
    """The result of `verify`."""

    run: str
    checked: list[str]
    problems: list[str]
    draw: Draw | None = None  # None: files are wrong, and nothing was replayed
    differences: list[Difference] = field(default_factory=list)
    num_equal: int = 0  # of the drawn steps
    others: tuple[str, ...] = ()  # facts of this machine that differ from the run's; empty: bits are compared
    largest: float = 0.0  # largest relative difference of a loss or norm

    @property
    def is_verified(self) -> bool | None:
        """Whether steps were replayed and every bit is equal. None: nothing is wrong, but bits could not be compared, because this machine sums in another
        order, or no step was replayed."""
        if self.problems or self.differences:
            return False
        return None if self.others or not self.num_equal else True

    def __repr__(self) -> str:
        return f"Verification({self.run}: {self.outcome})"

    @property
    def outcome(self) -> str:
        """One line: "5 of 5 equal", or what differs."""
        if self.problems:
            return f"altered: {self.problems[0]}"
        assert self.draw is not None
        if not self.draw.asked:
            return "not verified: the receipt has no steps to replay"
        count = f"{self.num_equal:,} of {len(self.draw.asked):,}"
        if not self.others:
            lost = f"; {counted(self.draw.unreachable, 'step')} before the first kept checkpoint cannot be replayed"
            return f"{count} equal{lost * (self.draw.unreachable > 0)}" + "".join(
                f"; {each}" for each in self.differences
            )
        within = f"{count} within the bound for another processor" + "".join(f"; {each}" for each in self.differences)
        return within if self.differences else f"{within}; not verified bit for bit"


def draw_steps(replay: Replay, steps: int | None, seed: int | None) -> Draw:
    """Draws steps at random. `steps`: None: all. The steps of an exported receipt are the first ones, because it has no checkpoints. A receipt that begins
    within the run has steps to draw from its first kept checkpoint on."""
    proven = replay.proven
    every = [proven.number(entry.position) for entry in proven.receipt.entries]
    first = proven.number(proven.receipt.starts[0].position)
    count, begins = proven.num_steps - first, _begins(proven)
    recorded = [number for number in every if begins and number >= begins[0]]
    lost = len(every) - len(recorded)
    if not recorded:
        return Draw(None, (), (), max(0, count), lost)
    if steps is None and any(here_differs(each) for each in proven.receipt.starts):
        # differences grow from step to step, so each checkpoint begins anew
        return Draw(None, tuple(recorded), tuple(_from_checkpoints(begins, recorded)), count, lost)
    if steps is None or proven.place is None:
        asked = recorded if steps is None else recorded[:steps]
        return Draw(None, tuple(asked), (Pass(begins[0], asked[-1], tuple(asked)),), count, lost)
    seed = secrets.randbelow(_SEEDS) if seed is None else seed
    asked = sorted(random.Random(seed).sample(recorded, min(steps, len(recorded))))
    by_begin: dict[int, list[int]] = {}
    for number in asked:
        by_begin.setdefault(proven.number(replay.begin(proven.position(number))), []).append(number)
    passes = tuple(Pass(begin, of[-1], tuple(of)) for begin, of in sorted(by_begin.items()))
    return Draw(seed, tuple(asked), passes, count, lost)


def _begins(proven: ProvenRun) -> list[int]:
    """The steps at which a replay can begin, ascending: the run's beginning if the receipt has it, and the kept checkpoints that it names."""
    first = proven.number(proven.receipt.starts[0].position)
    kept = [proven.number(at) for at, name in kept_checkpoints(proven).items() if name in proven.receipt.checkpoints]
    return sorted({*([0] if first == 0 else []), *(each for each in kept if first <= each < proven.num_steps)})


def _from_checkpoints(begins: list[int], asked: list[int]) -> Iterator[Pass]:
    """Passes over all steps, from each beginning to the next one."""
    for begin, end in itertools.pairwise([*begins, asked[-1] + 1]):
        yield Pass(begin, end - 1, tuple(number for number in asked if begin <= number < end))


def kept_checkpoints(proven: ProvenRun) -> dict[Position, str]:
    """Names of the checkpoints that are kept, by position."""
    if proven.place is None:
        return {}
    from graphmill.cluster.checkpoints.checkpoint_store import checkpoints_of

    checkpoints, kept = checkpoints_of(proven.place), {}
    for name in checkpoints.names():
        with suppress(FormatError):
            kept[checkpoints.state(name).position] = name
    return kept


def step_seconds(proven: ProvenRun) -> float | None:
    """CPU seconds of a step in the run, with sampling; None: not recorded."""
    import json

    lines = b"" if proven.place is None else proven.place.read("metrics.jsonl") or b""
    epochs = [json.loads(line) for line in lines.splitlines() if line.endswith(b"}")]
    seconds = [epoch["cpu_s"] for epoch in epochs if "cpu_s" in epoch]
    return sum(seconds) / (len(seconds) * proven.receipt.num_steps) if seconds and proven.receipt.num_steps else None


def here_differs(start: Start) -> tuple[str, ...]:
    """The facts of this process that differ from those of a start and may change the last digits."""
    return tuple(differing_facts(start.facts, host_facts(replay_device(start), int(start.facts["threads"]))))


class Verifier:
    """Replays drawn steps and compares them with the record."""

    def __init__(self, replay: Replay, result: Verification) -> None:
        self._replay, self._proven, self._result = replay, replay.proven, result
        self._recorded = {entry.position: entry for entry in self._proven.receipt.entries}

    def run(self, each: Pass) -> None:
        """Replays one pass. Adds its difference, if there is one, and the number of equal steps to the result."""
        proven, starts = self._proven, self._proven.receipt.starts
        found: Difference | None = None
        begin, reached = each.begin, each.begin - 1
        at_start = {start.position: start for start in starts}
        kept = kept_checkpoints(proven)

        def observe(worker: Any, entry: Entry) -> bool:
            nonlocal found, reached
            is_begin = not entry.ids
            start = proven.receipt.before(entry.position)
            bound = bound_after(reached + 1 - begin) if self._others(begin, entry.position) else None
            here = proven.position(proven.number(entry.position) + (0 if is_begin else 1))
            if not is_begin:
                recorded = self._recorded.get(entry.position)
                if recorded is not None:
                    found, largest = compare(recorded, entry, start, proven.number(entry.position), bound)
                    self._result.largest = max(self._result.largest, largest)
                if found is None:
                    reached = proven.number(entry.position)
            if found is None:
                found = self._weights(worker, here, at_start.get(here), kept.get(here), bound)
            return found is None

        first = proven.position(each.begin)
        self._replay.steps(proven.position(each.last), observe, first=first)
        if found is not None:
            self._result.differences.append(found)
        self._result.num_equal += sum(number <= reached for number in each.asked)

    def _others(self, begin: int, position: Position) -> tuple[str, ...]:
        """The differing facts of all starts between the beginning of a pass and a step."""
        first, others = self._proven.position(begin), list[str]()
        starts = self._proven.receipt.starts
        for start in starts:
            if self._proven.receipt.before(first).position <= start.position <= position:
                others += here_differs(start)
        self._result.others = tuple(dict.fromkeys((*self._result.others, *others)))
        return tuple(others)

    def _weights(
        self, worker: Any, position: Position, start: Start | None, name: str | None, bound: float | None
    ) -> Difference | None:
        """Compares the weights with those of a start of the workers, and of a checkpoint, at this position. `bound`: compare their norms within it."""
        number = self._proven.number(position)
        if bound is not None:
            norms = [] if start is None else [("the start of the workers", start.weights.norm)]
            if name is not None:
                norms.append((f"the checkpoint {name}", self._saved_norm(worker, name)))
            own = worker.receipts.digests().norm if norms else 0.0
            for what, norm in norms:
                if not is_within(norm, own, bound):
                    reason = f"{what} has a norm of {norm!r}, {own!r} is computed; the bound is {bound:.1e}"
                    return Difference(number, *position, "weights", "", reason)
            return None
        if start is not None:
            weights = worker.receipts.digests()
            if weights.whole != start.weights.whole:
                tensor = first_tensor(start.weights, weights, start.tensors)
                return Difference(
                    number, *position, "weights", tensor, "the workers started with others than the steps before give"
                )
        if name is not None:
            tensor = self._other_tensor(worker, name)
            if tensor:
                return Difference(
                    number,
                    *position,
                    "weights",
                    tensor,
                    f"the checkpoint {name} holds others than the steps before give",
                )
        return None

    def _saved(self, name: str) -> Mapping[str, Any]:
        from safetensors.torch import load_file

        from graphmill.cluster.checkpoints.checkpoint_store import checkpoints_of

        assert self._proven.place is not None
        with checkpoints_of(self._proven.place).opened(name) as folder:
            saved: Mapping[str, Any] = load_file(folder / "model.safetensors")
        return saved

    def _saved_norm(self, worker: Any, name: str) -> float:
        """The norm of the checkpoint's weights, in the order of the receipt's."""
        saved = self._saved(name)
        return tensor_digests(saved[each] for each in worker.receipts.weights if each in saved).norm

    def _other_tensor(self, worker: Any, name: str) -> str:
        import torch

        saved = self._saved(name)
        state = worker.model.state_dict()
        return next(
            (key for key, value in saved.items() if key not in state or not torch.equal(state[key].cpu(), value)), ""
        )


def verify_files(path: str, data: str | None, *, allow_import: bool) -> tuple[Replay, Verification]:
    """Opens a run and checks everything that needs no replay. Raises FormatError if the receipt is missing or its chain is broken."""
    proven = open_proven(path)
    checked, problems = check_files(proven)
    replay = Replay(proven, data, allow_import=allow_import)
    if not problems:
        try:
            replay.spec(proven.receipt.starts[-1])
            start = proven.receipt.starts[-1]
            checked.append(
                f"the data (snapshot {start.data.get('snapshot')}, content {str(start.data.get('content'))[:12]})"
            )
        except FormatError as error:
            problems.append(str(error))
    return replay, Verification(path, checked, problems)


def cost_line(draw: Draw, seconds: float | None) -> str:
    """What a replay costs and finds, said before it begins."""
    share = f"{draw.replayed:,} of {counted(draw.num_steps, 'step')}"
    cost = "" if seconds is None else f", about {max(1, round(draw.replayed * seconds)):,} CPU seconds"
    return f"replaying {share}{cost}; one batch trained otherwise, anywhere in the run, is found with probability {draw.probability:.3g}"
