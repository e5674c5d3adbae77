"""Defines the lines of a run's receipt, and reads and checks them. The receipt is `receipt.jsonl` in the run's directory; the driver writes it.

    start        a start of the workers: position, facts of the hosts, config.json if it has changed, digests of the weights, the data; name and digest of
                 the checkpoint that it continues
    steps        consecutive entries [epoch, step, digest of the batches' ids, loss, norm of the gradient]; perhaps a mark after the last entry;
                 the number of epochs in metrics.jsonl and the digest of their lines
    checkpoint   name of a checkpoint and digest of its state.json, which has the digests of all files
    end          digest of summary.json, the scores in it, an early end, and the digest of the best weights

Every line has the digest of the line before it (`before`), so no line can be changed, removed or added without a change of all later lines. A line of steps
also has `chain`: a digest of all entries and marks since the beginning of the run. It depends on no host, time or number of workers and on no interruption.
Therefore two equal runs have equal `chain`s.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from graphmill.core.errors import FormatError

EACH = 6  # hexadecimal digits of a single tensor's digest, which only names the tensors that differ

RECEIPT = "receipt.jsonl"
VERSION = 1
_CHAIN = 32  # hexadecimal digits of the digests of lines and entries

Position = tuple[int, int]  # (epoch, step)


@dataclass(frozen=True)
class TensorDigests:
    """Digests of a list of tensors."""

    whole: str  # of all tensors
    each: str  # `EACH` digits for each tensor, in order
    norm: float  # Euclidean norm of all floating-point tensors together, summed in float64

    def of(self, index: int) -> str:
        """Returns the short digest of a tensor."""
        return self.each[index * EACH : (index + 1) * EACH]


@dataclass(frozen=True)
class Mark:
    """Digests after a step: of the gradients (before they are clipped) and of the weights that the step made."""

    gradients: TensorDigests
    weights: TensorDigests


@dataclass(frozen=True)
class Entry:
    """The record of one step."""

    epoch: int
    step: int
    ids: str  # digest of the ids of the step's batches
    loss: float  # mean over the targets of the step
    norm: float  # of the gradient; 0.0: the step had no labelled target
    mark: Mark | None = None

    @property
    def position(self) -> Position:
        return self.epoch, self.step

    @property
    def row(self) -> list[Any]:
        return [self.epoch, self.step, self.ids, self.loss, self.norm]


@dataclass(frozen=True)
class Start:
    """A start of the workers."""

    epoch: int
    step: int
    facts: Mapping[str, Any]  # `facts_of_ranks`
    config: Mapping[str, Any]  # the content of config.json
    data: Mapping[str, Any]  # URL, snapshot and content hash of the data
    weights: TensorDigests  # at this position
    tensors: tuple[str, ...]  # names of the weights, in the order of digests
    trained: tuple[str, ...]  # names of the weights with a gradient, in the order of digests

    @property
    def position(self) -> Position:
        return self.epoch, self.step


@dataclass
class Receipt:
    """The content of a receipt."""

    starts: list[Start] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    checkpoints: dict[str, str] = field(default_factory=dict)  # name -> digest of state.json
    metrics: list[tuple[int, str]] = field(default_factory=list)  # (number of epochs, digest of their lines), ascending
    end: str | None = None  # digest of summary.json
    best: str | None = None  # digest of the best weights
    scores: Mapping[str, Any] = field(default_factory=dict)  # of the best weights, by name in summary.json
    stopped_early: bool = False
    chain: str = ""  # of all entries
    num_steps: int = 0  # steps of an epoch; 0: no entry tells it

    def before(self, position: Position) -> Start:
        """Returns the last start at or before a position."""
        return [start for start in self.starts if start.position <= position][-1]


def digest(content: bytes) -> str:
    """Returns the digest of a file's content or of a line."""
    return hashlib.sha256(content).hexdigest()[:_CHAIN]


def line_of(body: Mapping[str, Any], before: str) -> bytes:
    """Returns a line with the digest of the line before it, without a line end."""
    return _text({**body, "before": before})


def chained(chain: str, entries: Iterable[Entry]) -> str:
    """Returns the `chain` after these entries. `chain`: the one before them, or the digest of the first weights."""
    for entry in entries:
        more = [entry.row] if entry.mark is None else [entry.row, asdict(entry.mark)]
        chain = digest(chain.encode() + _text(more))
    return chain


def steps_body(entries: list[Entry], chain: str, num_steps: int, metrics: tuple[int, str] | None) -> dict[str, Any]:
    """Returns the content of a line of steps. Only the last entry may have a mark."""
    mark = entries[-1].mark
    return {
        "kind": "steps",
        "entries": [entry.row for entry in entries],
        **({} if mark is None else {"mark": asdict(mark)}),
        "of": num_steps,
        **({} if metrics is None else {"metrics": metrics}),
        "chain": chain,
    }


def entries_of(body: Mapping[str, Any]) -> list[Entry]:
    """Returns the entries of a line of steps."""
    entries = [Entry(*row) for row in body["entries"]]
    if "mark" in body:
        entries[-1] = replace(entries[-1], mark=mark_of(body["mark"]))
    return entries


def mark_of(body: Mapping[str, Any]) -> Mark:
    return Mark(TensorDigests(**body["gradients"]), TensorDigests(**body["weights"]))


def start_of(body: Mapping[str, Any], config: Mapping[str, Any] | None) -> Start:
    """Returns the start that a line describes. `config`: of the start before it, which is written again only if it has changed."""
    return Start(
        epoch=body["epoch"],
        step=body["step"],
        facts=body["facts"],
        config=body["config"] or config or {},
        data=body["data"],
        weights=TensorDigests(**body["weights"]),
        tensors=tuple(body["tensors"]),
        trained=tuple(body["trained"]),
    )


def whole_lines(content: bytes) -> list[bytes]:
    """Returns the lines without their ends. A last line that was cut short is left out."""
    return content[: content.rfind(b"\n") + 1].splitlines()


def read_receipt(lines: Iterable[bytes], where: str) -> Receipt:
    """Reads a receipt and checks its chain. Raises FormatError that names the first line that does not follow from the line before it."""
    receipt, before, number = Receipt(), "", 0
    try:
        for number, line in enumerate(lines, 1):
            body = json.loads(line)
            if body["before"] != before:
                raise FormatError(
                    f"{where}, line {number}: expected the digest of the line before it ({before[:12] or 'none'}), found "
                    f"{body['before'][:12]}; line {number - 1} or {number} was changed, added or removed"
                )
            before = digest(line)
            _add(receipt, body, f"{where}, line {number}")
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{where}, line {number}: expected a line of a receipt, found damage ({error})") from None
    if not receipt.starts:
        raise FormatError(f"{where}: expected a receipt, found no start in it")
    return receipt


def _add(receipt: Receipt, body: Mapping[str, Any], where: str) -> None:
    kind = body["kind"]
    if kind == "start":
        if body["version"] != VERSION:
            raise FormatError(f"{where}: expected a receipt of version {VERSION}, got {body['version']!r}")
        start = start_of(body, receipt.starts[-1].config if receipt.starts else None)
        receipt.starts.append(start)
        if body.get("origin"):
            name, checkpoint = body["origin"]
            receipt.checkpoints.setdefault(str(name), str(checkpoint))
        receipt.chain = receipt.chain or start.weights.whole
    elif kind == "steps":
        entries = entries_of(body)
        for entry in entries:
            if not (math.isfinite(entry.loss) and math.isfinite(entry.norm)):
                raise FormatError(
                    f"{where}: expected finite numbers at {entry.position}, got {entry.loss}, {entry.norm}"
                )
        receipt.chain = chained(receipt.chain, entries)
        if receipt.chain != body["chain"]:
            raise FormatError(f"{where}: expected entries with the digest {body['chain'][:12]}, found others")
        receipt.entries += entries
        receipt.num_steps = body["of"]
        if receipt.num_steps < 1:
            raise FormatError(f"{where}: expected at least 1 step an epoch, got {receipt.num_steps}")
        if "metrics" in body:
            receipt.metrics.append((int(body["metrics"][0]), str(body["metrics"][1])))
    elif kind == "checkpoint":
        receipt.checkpoints[body["name"]] = body["digest"]
    elif kind == "end":
        receipt.end, receipt.best = body["summary"], body.get("best")
        receipt.scores, receipt.stopped_early = body.get("scores", {}), bool(body.get("stopped_early"))
        receipt.metrics.append((int(body["metrics"][0]), str(body["metrics"][1])))
    else:
        raise FormatError(f"{where}: expected a line of steps, a start, a checkpoint or an end, got {kind!r}")


def metric_digests(lines: Iterable[bytes]) -> Iterator[str]:
    """Yields the digest of the first line of metrics.jsonl, of the first two, and so on. A line has its line end."""
    running = hashlib.sha256()
    for line in lines:
        running.update(line)
        yield running.hexdigest()[:_CHAIN]


def _text(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
