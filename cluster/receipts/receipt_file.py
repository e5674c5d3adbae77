"""Writes a run's receipt; used by the driver, which alone knows the lines before. A start at an earlier position removes what it will repeat."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from graphmill.cluster.receipts.chain import (
    RECEIPT,
    VERSION,
    Position,
    chained,
    digest,
    entries_of,
    line_of,
    read_receipt,
    steps_body,
    whole_lines,
)
from graphmill.core.errors import FormatError

_SCORES = ("all_scores", "all_estimates")  # names in summary.json
_PLACE = re.compile(r"epoch-(\d+)(?:-step-(\d+))?")  # the beginning of a checkpoint's name


class ReceiptFile:
    """The receipt of one run that is being written."""

    def __init__(self, folder: Path, write: Callable[[Path, str], None]) -> None:
        """`write(path, text)` replaces a file."""
        self.path, self._write = folder / RECEIPT, write
        self.data: Mapping[str, Any] = {}  # URL, snapshot and content hash of the run's data
        self._before = self._chain = ""
        self._num_epochs, self._metrics = 0, hashlib.sha256()
        self._last: Position = (-1, -1)
        self._options: Any = None  # the content of config.json at the last start
        self._start: Position = (0, 0)
        self._checkpoints: set[str] = set()

    def cut(self, position: Position, metrics: list[str]) -> None:
        """Removes the records from the position of a start on. `metrics`: the lines of metrics.jsonl that are kept. Raises FormatError if the chain is broken."""
        self._start, self._num_epochs = position, len(metrics)
        self._metrics = hashlib.sha256("".join(metrics).encode())
        kept = self._kept()
        if self.path.exists():
            self._write(self.path, "".join(f"{line.decode()}\n" for line in kept))

    def make_up(self, record: Mapping[str, Any]) -> None:
        """Takes a record of an earlier attempt, whose driver was killed. Records from the position of the start on are left out."""
        if record["kind"] == "receipt":
            self._take_steps(record, self._start)
        elif record["kind"] == "receipt-checkpoint":
            self._take_checkpoint(record)

    def take(self, record: Mapping[str, Any], config: Callable[[], bytes] = lambda: b"{}") -> None:
        """Appends a worker's record. `config` returns the content of config.json."""
        if record["kind"] == "receipt-checkpoint":
            self._take_checkpoint(record)
        elif record["kind"] == "receipt":
            self._take_steps(record, None)
        else:
            options = json.loads(config())
            own = {name: value for name, value in record.items() if name != "kind"}
            changed = None if options == self._options else options
            self._append({"kind": "start", "version": VERSION, **own, "config": changed, "data": dict(self.data)})
            self._options, self._chain = options, self._chain or own["weights"]["whole"]

    def _take_checkpoint(self, record: Mapping[str, Any]) -> None:
        if self._before and record["name"] not in self._checkpoints:
            self._checkpoints.add(record["name"])
            self._append({"kind": "checkpoint", "name": record["name"], "digest": record["digest"]})

    def _take_steps(self, record: Mapping[str, Any], stop: Position | None) -> None:
        """Appends the entries before `stop` that are not there yet."""
        entries = [
            each for each in entries_of(record) if each.position > self._last and (stop is None or each.position < stop)
        ]
        if entries and self._before:
            self._chain, self._last = chained(self._chain, entries), entries[-1].position
            metrics = (self._num_epochs, self._metrics.hexdigest()[: len(self._chain)])
            self._append(steps_body(entries, self._chain, record["of"], metrics))

    def add_metrics(self, line: str) -> None:
        """Adds a line of metrics.jsonl to the digest that the next line of the receipt holds."""
        self._num_epochs += 1
        self._metrics.update(line.encode())

    def end(self, summary: bytes, best: str | None = None) -> None:
        """Appends the digests of summary.json and of all metrics, and the scores. `best`: digest of the best weights; None: not known."""
        if self._before:
            metrics = (self._num_epochs, self._metrics.hexdigest()[: len(self._chain)])
            values = json.loads(summary)
            told = {
                "scores": {name: values[name] for name in _SCORES if name in values},
                "stopped_early": "stopped_early" in values,
                "best": best,
            }
            self._append({"kind": "end", "summary": digest(summary), "metrics": metrics, **told})

    def _append(self, body: Mapping[str, Any]) -> None:
        line = line_of(body, self._before)
        with open(self.path, "ab") as stream:
            stream.write(line + b"\n")
            if body["kind"] != "steps":  # a checkpoint must not outlive the entries before it
                stream.flush()
                os.fsync(stream.fileno())
        self._before = digest(line)

    def _kept(self) -> list[bytes]:
        """Returns the lines before a position, and sets the state to the last of them. A line of steps may lose its last entries. A checkpoint at or before the
        position keeps its line, which may come after later steps, because another thread writes checkpoints. Raises FormatError if the chain is broken: new
        digests would hide that."""
        self._before, self._chain, self._last, self._options, position = "", "", (-1, -1), None, self._start
        self._checkpoints = set()
        kept: list[bytes] = []
        lines = whole_lines(self.path.read_bytes()) if self.path.exists() else []
        if lines:
            try:
                read_receipt(lines, str(self.path))
            except FormatError as error:
                raise FormatError(f"{error}; to continue without the earlier receipt, move the file away") from None
        for line in lines:
            body = json.loads(line)
            if body["kind"] == "end" or (body["kind"] == "start" and (body["epoch"], body["step"]) >= position):
                continue
            if body["kind"] == "checkpoint" and _place_of(body["name"]) > position:
                continue
            if body["kind"] == "start":
                self._chain = self._chain or body["weights"]["whole"]
                self._options = body["config"] or self._options
            if body["kind"] == "steps":
                entries = [entry for entry in entries_of(body) if entry.position < position]
                if not entries:
                    continue
                self._chain, self._last = chained(self._chain, entries), entries[-1].position
                metrics = body.get("metrics")
                if metrics is not None and metrics[0] > self._num_epochs:
                    metrics = None
                line = line_of(steps_body(entries, self._chain, body["of"], metrics), self._before)
            else:
                if body["kind"] == "checkpoint":
                    self._checkpoints.add(body["name"])
                body.pop("before")
                line = line_of(body, self._before)
            kept.append(line)
            self._before = digest(line)
        return kept


def _place_of(name: str) -> Position:
    """Returns the position of a checkpoint, which its name tells."""
    found = _PLACE.match(name)
    return (0, 0) if found is None else (int(found[1]), int(found[2] or 0))
