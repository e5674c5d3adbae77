"""Checks of a run that need no replay: its files against the digests in the receipt."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import zip_longest
from typing import Any

from graphmill.cluster.checkpoints.checkpoint import TrainState, verify_checkpoint
from graphmill.cluster.checkpoints.checkpoint_store import BEST, checkpoints_of
from graphmill.cluster.receipts.chain import Position, Receipt, digest, metric_digests
from graphmill.cluster.receipts.step_receipts import has_mark, is_recorded, mark_distance
from graphmill.cluster.runs.run_directory import flat
from graphmill.cluster.runs.run_store import CONFIG, RunStore
from graphmill.core.errors import FormatError
from graphmill.core.files.json_object import parse_object
from graphmill.core.summaries import counted
from graphmill.jobs.proof.proven_run import ProvenRun

_SHOWN = 3  # most options in a line


def check_files(proven: ProvenRun) -> tuple[list[str], list[str]]:
    """(what was checked, what is wrong), each in a few words. An exported receipt has its chain alone."""
    receipt = proven.receipt
    checked = [f"a chain of {counted(len(proven.lines), 'line')} and {counted(len(receipt.entries), 'step')}"]
    place = proven.place
    if first := proven.number(receipt.starts[0].position):
        checked.append(f"no record of the {counted(first, 'step')} before them")
    if place is None:
        return checked, list(_gaps(proven, []))
    problems = [
        *_gaps(proven, [state.position for state in _states(proven, place)]),
        *_options(place, receipt.starts[-1].config),
        *_metrics(place, receipt.metrics),
    ]
    checked += ["config.json", counted(receipt.metrics[-1][0] if receipt.metrics else 0, "epoch") + " of metrics.jsonl"]
    newest, count, wrong = _checkpoints(proven, place)
    problems += wrong
    checked.append(counted(count, "checkpoint"))
    if receipt.end is not None:
        problems += _end(place, receipt, newest)
        checked.append("summary.json")
        if receipt.best is not None:
            checked.append("the best weights")
    return checked, problems


def _gaps(proven: ProvenRun, checkpoints: list[Position]) -> Iterator[str]:
    """What the receipt should hold and does not: a start, a checkpoint or an end that does not follow from the entries, a missing entry or mark.
    `checkpoints`: their positions."""
    receipt = proven.receipt
    num_epochs = receipt.metrics[-1][0] if receipt.metrics else 0
    if not receipt.num_steps:
        if num_epochs > receipt.starts[0].epoch or any(each > receipt.starts[0].position for each in checkpoints):
            yield "receipt.jsonl: the run trained steps, and none has a record"
        return
    fit = receipt.starts[-1].config.get("fit", {})
    epochs = fit.get("epochs", num_epochs)
    if receipt.end is not None and not receipt.stopped_early and num_epochs < epochs:
        yield f"receipt.jsonl: the run ended after {counted(num_epochs, 'epoch')} of {epochs}, and no early end is recorded"
    first = proven.number(receipt.starts[0].position)
    reached = [proven.num_steps, *(proven.number(each.position) for each in receipt.starts)]
    reached += [proven.number(each) for each in checkpoints]
    if receipt.end is not None:
        reached.append(num_epochs * receipt.num_steps)
    found = [proven.number(entry.position) for entry in receipt.entries]
    expected = (number for number in range(first, max(reached)) if is_recorded(number + 1))
    for wanted, number in zip_longest(expected, found):
        if wanted != number:
            what = f"step {number} has a record that no run makes" if wanted is None else f"step {wanted} has no record"
            yield f"receipt.jsonl: {what}"
            return
    starts = [*receipt.starts[1:], None]
    start, following = receipt.starts[0], starts.pop(0)
    for number, entry in zip(found, receipt.entries, strict=True):
        while following is not None and following.position <= entry.position:
            start, following = following, starts.pop(0)
        if entry.mark is None and has_mark(number + 1, mark_distance(len(start.tensors) + len(start.trained))):
            yield f"receipt.jsonl: step {number} has no digests of its gradients and weights"
            return


def _states(proven: ProvenRun, place: RunStore) -> Iterator[TrainState]:
    """The states of the checkpoints that the receipt names. What is wrong with others is told elsewhere."""
    checkpoints = checkpoints_of(place)
    for name in checkpoints.names():
        if name in proven.receipt.checkpoints:
            with suppress(FormatError):
                yield checkpoints.state(name)


def _options(place: RunStore, recorded: Mapping[str, Any]) -> Iterator[str]:
    content = place.read(CONFIG)
    if content is None:
        yield f"{place.below(CONFIG)}: expected the run's options, found no file"
        return
    kept, found = flat(recorded), flat(parse_object(content, place.below(CONFIG)))
    differing = [name for name in {**kept, **found} if _plain(kept.get(name)) != _plain(found.get(name))]
    if differing:
        shown = ", ".join(f"{name} was {kept.get(name)!r}, is {found.get(name)!r}" for name in differing[:_SHOWN])
        more = f" and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
        yield f"{place.below(CONFIG)}: an option was changed after the run: {shown}{more}"


def _metrics(place: RunStore, recorded: list[tuple[int, str]]) -> Iterator[str]:
    lines = (place.read("metrics.jsonl") or b"").splitlines(keepends=True)
    digests, fine = ["", *metric_digests(lines)], 0
    for count, expected in recorded:
        if count and (count >= len(digests) or digests[count] != expected):
            of = f"the lines {fine + 1} to {count}" if count > fine + 1 else f"line {count}"
            yield f"{place.below('metrics.jsonl')}: {of} (one for each epoch) differ from what the run wrote"
            return
        fine = count


def _checkpoints(proven: ProvenRun, place: RunStore) -> tuple[Mapping[str, Any] | None, int, list[str]]:
    """(state.json of the newest checkpoint, number of checkpoints, what is wrong)."""
    checkpoints, problems, newest, count = checkpoints_of(place), list[str](), None, 0
    for name in checkpoints.names():
        try:
            with checkpoints.opened(name) as folder:
                content = (folder / "state.json").read_bytes()
                state = json.loads(content)
        except FormatError as error:
            problems.append(str(error))
            continue
        count += 1
        newest = state if newest is None else newest
        where, known = checkpoints.store.below(name), proven.receipt.checkpoints.get(name)
        position = checkpoints.state(name).position
        if known is None and position <= proven.receipt.starts[0].position:
            continue  # of a version without receipts
        if known is None:
            problems.append(f"{where}: the receipt names no such checkpoint; it was added after the run")
        elif digest(content) != known:
            problems.append(
                f"{where}: the checkpoint was replaced after the run (state.json has the digest {digest(content)[:12]}, the receipt {known[:12]})"
            )
    return newest, count, problems


def _end(place: RunStore, receipt: Receipt, newest: Mapping[str, Any] | None) -> Iterator[str]:
    summary = place.read("summary.json")
    if summary is None or digest(summary) != receipt.end:
        yield f"{place.below('summary.json')}: expected the scores that the run wrote, found {'none' if summary is None else 'others'}"
    try:
        with place.at_hand(BEST) as run:
            verify_checkpoint(run / BEST)
            best = json.loads((run / BEST / "state.json").read_bytes())["sha256"].get("model.safetensors")
    except FormatError as error:
        yield str(error)
        return
    if receipt.best is not None and receipt.best != best:
        yield f"{place.below(BEST)}: expected the best weights that the run kept at its end, found others"
    elif newest is not None and newest["sha256"].get("best.safetensors") != best:
        yield f"{place.below(BEST)}: expected the best weights of the newest checkpoint, found others"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
