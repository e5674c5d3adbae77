"""Finds the first step, layer and tensor at which two runs part, and what differs between the runs.

The records of both runs give the step, or the few steps between two records. These steps are replayed for both runs, and their traces are compared in the
order in which a step computes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from graphmill.cluster.receipts.chain import Entry, Start, TensorDigests
from graphmill.cluster.runs.run_directory import flat
from graphmill.core.errors import ConfigError, FormatError
from graphmill.core.summaries import counted
from graphmill.jobs.proof.comparison import first_tensor
from graphmill.jobs.proof.proven_run import ProvenRun, open_proven
from graphmill.jobs.proof.replay_steps import Replay
from graphmill.jobs.proof.trace import StepTrace, Trace, trace_steps
from graphmill.jobs.proof.verification import here_differs

# Groups of options that decide no number
_PLACEMENT = ("run", "workers", "ray", "servers", "loader", "format", "resolved")
_FACTS = ("cpu", "instructions", "settings", "threads", "device", "gpu", "python", "packages")


@dataclass(frozen=True)
class Cause:
    """A value that differs between two runs."""

    kind: str  # "option", "data", "package", "threads", "cpu", "settings", "device", "code", "file"
    name: str
    one: str
    other: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.one}, {self.other}"


@dataclass
class Parting:
    """The result of `diff`."""

    num_common: int  # steps that both runs have
    step: int | None = None  # the first step that differs, counted from 0 over the whole run; None: the runs never part
    part: str = ""  # "weights", "batch", "layer", "loss", "gradient" or "update"
    name: str = ""  # of the tensor, field of the batch, or layer
    detail: str = ""
    causes: list[Cause] = field(default_factory=list)
    limits: list[str] = field(default_factory=list)  # why the step could not be replayed

    @property
    def is_equal(self) -> bool:
        return self.step is None

    @property
    def outcome(self) -> str:
        """One line: where the runs part."""
        if self.step is None:
            return f"the runs never part: {counted(self.num_common, 'common step')} equal"
        where = {
            "weights": "the weights before this step",
            "batch": "the batch",
            "layer": "the output of the layer",
            "loss": "the loss",
            "gradient": "the gradient",
            "update": "the weights after this step's update",
        }[self.part]
        return f"the runs part at step {self.step}: {where}{f' ({self.name})' if self.name else ''} {'differ' if 'weights' in where else 'differs'}{f'; {self.detail}' if self.detail else ''}"

    def __repr__(self) -> str:
        return f"Parting({self.outcome})"


def find_parting(one: str, other: str, data: str | None, *, allow_import: bool) -> Parting:
    """Compares two runs. `data`: the graph of both; None: where each run found its own. Raises FormatError if a receipt is missing or broken."""
    left, right = open_proven(one), open_proven(other)
    count = min(left.num_steps, right.num_steps)
    parting = Parting(count)
    first, last = _by_records(left, right, parting)
    parting.causes += _causes(left, right, parting.step)
    if parting.step is None or last is None:
        return parting
    try:
        replays = [Replay(each, data, allow_import=allow_import) for each in (left, right)]
        for each in (left, right):
            if others := here_differs(each.receipt.before(each.position(last))):
                parting.limits.append(
                    f"{each.where} is not replayed, because this machine sums in another order: {'; '.join(others)}"
                )
        if not parting.limits:
            _by_traces(trace_steps(replays[0], first, last), trace_steps(replays[1], first, last), left, right, parting)
    except (FormatError, ConfigError) as error:
        parting.limits.append(str(error))
    return parting


def _by_records(left: ProvenRun, right: ProvenRun, parting: Parting) -> tuple[int, int | None]:
    """Sets the parting as far as the records tell it. Returns the range of steps to replay for more; its end is None if nothing is left to find."""
    starts = left.receipt.starts[0], right.receipt.starts[0]
    if starts[0].position == starts[1].position and starts[0].weights.whole != starts[1].weights.whole:
        parting.step, parting.part = left.number(starts[0].position), "weights"
        parting.name = _first_of_two(starts[0].weights, starts[1].weights, starts[0], starts[1])
        return 0, None
    ours, theirs = ({run.number(entry.position): entry for entry in run.receipt.entries} for run in (left, right))
    begun = [{run.number(start.position): start for start in run.receipt.starts} for run in (left, right)]
    before = -1
    for number in sorted(ours.keys() & theirs.keys()):
        pair = [begun[0].get(number), begun[1].get(number)]
        if pair[0] is not None and pair[1] is not None and pair[0].weights.whole != pair[1].weights.whole:
            parting.step, parting.part = number, "weights"
            parting.name = _first_of_two(pair[0].weights, pair[1].weights, pair[0], pair[1])
            _restarted(left, right, number, parting)
            return number, None
        if (found := _differs(ours[number], theirs[number])) is None:
            before = number
            continue
        parting.step, parting.part = number, found
        parting.name = _named(ours[number], theirs[number], found, starts[0].tensors, starts[0].trained)
        return before + 1, number
    return 0, None


def _differs(ours: Entry, theirs: Entry) -> str | None:
    """The part of a step that differs first, by its record."""
    if ours.ids != theirs.ids:
        return "batch"
    if ours.loss != theirs.loss:
        return "loss"
    if ours.mark is not None and theirs.mark is not None:
        if ours.mark.gradients.whole != theirs.mark.gradients.whole:
            return "gradient"
        if ours.mark.weights.whole != theirs.mark.weights.whole:
            return "update"
    return "gradient" if ours.norm != theirs.norm else None


def _by_traces(ours: Trace, theirs: Trace, left: ProvenRun, right: ProvenRun, parting: Parting) -> None:
    """Sets the parting by the first difference of two traces."""
    for number in sorted(ours.steps.keys() & theirs.steps.keys()):
        one, other = ours.steps[number], theirs.steps[number]
        found = _first_in_step(one, other, ours)
        if found is not None:
            parting.step, (parting.part, parting.name) = number, found
            if parting.part == "weights" and not _restarted(left, right, number, parting) and number:
                parting.step, parting.part = number - 1, "update"
            return
    parting.limits.append(
        "replays of both runs are equal there: one of the two was not trained as it says (graphmill verify)"
    )


def _first_in_step(one: StepTrace, other: StepTrace, ours: Trace) -> tuple[str, str] | None:
    if one.before.whole != other.before.whole:
        return "weights", first_tensor(one.before, other.before, ours.tensors)
    for part, pairs in (("batch", (one.inputs, other.inputs)), ("layer", (one.layers, other.layers))):
        if (name := _first_pair(*pairs)) is not None:
            return part, name
    if one.entry is None or other.entry is None:
        return None
    found = _differs(one.entry, other.entry)
    return None if found is None else (found, _named(one.entry, other.entry, found, ours.tensors, ours.trained))


def _named(one: Entry, other: Entry, part: str, tensors: tuple[str, ...], trained: tuple[str, ...]) -> str:
    """The first tensor that differs, if both entries have a mark."""
    if one.mark is None or other.mark is None or part not in ("gradient", "update"):
        return ""
    if part == "gradient":
        return first_tensor(one.mark.gradients, other.mark.gradients, trained)
    return first_tensor(one.mark.weights, other.mark.weights, tensors)


def _first_pair(one: list[tuple[str, str]], other: list[tuple[str, str]]) -> str | None:
    for ours, theirs in zip(one, other, strict=False):
        if ours != theirs:
            return ours[0] if ours[0] == theirs[0] else f"{ours[0]}, {theirs[0]}"
    return None if len(one) == len(other) else "another number of tensors"


def _restarted(left: ProvenRun, right: ProvenRun, number: int, parting: Parting) -> bool:
    """Whether a run was continued at this step; then its checkpoint is a cause."""
    texts = [
        "continued there"
        if any(run.number(start.position) == number for start in run.receipt.starts[1:])
        else "not continued there"
        for run in (left, right)
    ]
    if number and "continued there" in texts:
        parting.detail = "a checkpoint from which a run was continued holds others than the steps before give"
        parting.causes.append(Cause("file", f"checkpoint at step {number}", *texts))
        return True
    return False


def _first_of_two(one: TensorDigests, other: TensorDigests, left: Start, right: Start) -> str:
    if left.tensors != right.tensors:
        names = sorted({*left.tensors} ^ {*right.tensors})
        return f"{names[0]} is in one run alone" if names else "another order"
    return first_tensor(one, other, left.tensors)


def _causes(left: ProvenRun, right: ProvenRun, step: int | None) -> Iterator[Cause]:
    """What differs between the runs up to the step."""
    starts = [
        run.receipt.before(run.position(step or 0)) if step is not None and run.num_steps else run.receipt.starts[-1]
        for run in (left, right)
    ]
    options = [
        {
            name: value
            for name, value in flat(start.config).items()
            if name.partition(".")[0] not in _PLACEMENT and name != "data.path"
        }
        for start in starts
    ]
    same_data = starts[0].data.get("content") == starts[1].data.get("content")
    yield from (
        Cause("option", name, *values)
        for name, *values in _differing(*options)
        if not (same_data and name.startswith("data.snapshot"))
    )
    batches = [_micro_batches(start.config) for start in starts]
    if batches[0] != batches[1] and not any(name == "fit.micro_batches" for name, *_ in _differing(*options)):
        yield Cause("option", "fit.micro_batches", str(batches[0]), str(batches[1]))
    if not same_data:
        texts = [
            f"snapshot {start.data.get('snapshot')}, content {str(start.data.get('content'))[:12]} ({start.data.get('url')})"
            for start in starts
        ]
        yield Cause("data", "snapshot", texts[0], texts[1])
    yield from (
        Cause("code", name.partition("own.")[2], *values)
        for name, *values in _differing(*(_own(start.config) for start in starts))
    )
    facts = [flat({name: start.facts.get(name) for name in _FACTS}) for start in starts]
    for name, one, other in _differing(*facts):
        group, _, leaf = name.partition(".")
        yield Cause({"packages": "package", "instructions": "cpu"}.get(group, group), leaf or group, one, other)


def _micro_batches(config: Mapping[str, Any]) -> Any:
    return config.get("resolved", {}).get("identity", {}).get("micro_batches")


def _own(config: Mapping[str, Any]) -> dict[str, Any]:
    return flat({"own": config.get("resolved", {}).get("identity", {}).get("own", {})})


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return [(name, str(one.get(name, "none")), str(other.get(name, "none"))) for name in names]
