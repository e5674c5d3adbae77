"""Checks of a run that need no replay: its files against the digests in the receipt."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from graphmill.cluster.checkpoints.checkpoint import verify_checkpoint
from graphmill.cluster.checkpoints.checkpoint_store import BEST, checkpoints_of
from graphmill.cluster.receipts.chain import digest, metric_digests
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
    if place is None:
        return checked, list(_gaps(proven))
    problems = [*_gaps(proven), *_options(place, receipt.starts[-1].config), *_metrics(place, receipt.metrics)]
    checked += ["config.json", counted(receipt.metrics[-1][0] if receipt.metrics else 0, "epoch") + " of metrics.jsonl"]
    newest, count, wrong = _checkpoints(proven, place)
    problems += wrong
    checked.append(counted(count, "checkpoint"))
    if receipt.end is not None:
        problems += _end(place, receipt.end, newest)
        checked += ["summary.json", "the best weights"]
    return checked, problems


def _gaps(proven: ProvenRun) -> Iterator[str]:
    """A start that does not follow from the entry before it."""
    receipt = proven.receipt
    if not receipt.num_steps:
        return
    first = proven.number(receipt.starts[0].position)
    for start in receipt.starts[1:]:
        earlier = [entry.position for entry in receipt.entries if entry.position < start.position]
        reached = proven.number(earlier[-1]) + 1 if earlier else first
        if reached < proven.number(start.position) and proven.number(start.position) <= 4096:
            yield f"receipt.jsonl: the steps {reached} to {proven.number(start.position) - 1} have no record"


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
        if known is None and position < proven.receipt.starts[0].position:
            continue  # of a version without receipts
        if known is None:
            problems.append(f"{where}: the receipt names no such checkpoint; it was added after the run")
        elif digest(content) != known:
            problems.append(
                f"{where}: the checkpoint was replaced after the run (state.json has the digest {digest(content)[:12]}, the receipt {known[:12]})"
            )
    return newest, count, problems


def _end(place: RunStore, recorded: str, newest: Mapping[str, Any] | None) -> Iterator[str]:
    summary = place.read("summary.json")
    if summary is None or digest(summary) != recorded:
        yield f"{place.below('summary.json')}: expected the scores that the run wrote, found {'none' if summary is None else 'others'}"
    try:
        with place.at_hand(BEST) as run:
            verify_checkpoint(run / BEST)
            best = json.loads((run / BEST / "state.json").read_bytes())["sha256"].get("model.safetensors")
    except FormatError as error:
        yield str(error)
        return
    if newest is not None and newest["sha256"].get("best.safetensors") != best:
        yield f"{place.below(BEST)}: expected the best weights of the newest checkpoint, found others"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
