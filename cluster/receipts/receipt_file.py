"""Writes a run's receipt; used by the driver, which alone knows the lines before. A start at an earlier position removes what it will repeat."""

import hashlib
import json
import os
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

    def start(self, position: Position, own: Mapping[str, Any], config: bytes, metrics: list[str]) -> None:
        """Begins at the position of a start. `own`: the worker's part; `config`: content of config.json; `metrics`: the lines that are kept."""
        self._num_epochs, self._metrics = len(metrics), hashlib.sha256("".join(metrics).encode())
        kept = self._kept(position)
        if self.path.exists():
            self._write(self.path, "".join(f"{line.decode()}\n" for line in kept))
        body = {"kind": "start", "version": VERSION, "epoch": position[0], "step": position[1]}
        options = json.loads(config)
        same = options == self._options
        self._options = options
        self._append({**body, "config": None if same else options, "data": dict(self.data), **own})
        self._chain = self._chain or own["weights"]["whole"]

    def take(self, record: Mapping[str, Any]) -> None:
        """Appends the entries of a worker's record. Entries that are already there are left out: a killed driver may have written them."""
        if record["kind"] == "receipt-checkpoint":
            self._append({"kind": "checkpoint", "name": record["name"], "digest": record["digest"]})
            return
        entries = [entry for entry in entries_of(record) if entry.position > self._last]
        if entries:
            self._chain, self._last = chained(self._chain, entries), entries[-1].position
            metrics = (self._num_epochs, self._metrics.hexdigest()[: len(self._chain)])
            self._append(steps_body(entries, self._chain, record["of"], metrics))

    def add_metrics(self, line: str) -> None:
        """Adds a line of metrics.jsonl to the digest that the next line of the receipt holds."""
        self._num_epochs += 1
        self._metrics.update(line.encode())

    def end(self, summary: bytes) -> None:
        """Appends the digests of summary.json and of all metrics."""
        if self._before:
            metrics = (self._num_epochs, self._metrics.hexdigest()[: len(self._chain)])
            self._append({"kind": "end", "summary": digest(summary), "metrics": metrics})

    def _append(self, body: Mapping[str, Any]) -> None:
        line = line_of(body, self._before)
        with open(self.path, "ab") as stream:
            stream.write(line + b"\n")
            if body["kind"] != "steps":  # a checkpoint must not outlive the entries before it
                stream.flush()
                os.fsync(stream.fileno())
        self._before = digest(line)

    def _kept(self, position: Position) -> list[bytes]:
        """Returns the lines before a position, and sets the state to the last of them. A line of steps may lose its last entries. Raises FormatError if
        the chain is broken: new digests would hide that."""
        self._before, self._chain, self._last, self._options = "", "", (-1, -1), None
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
                break
            if body["kind"] == "start":
                self._chain = self._chain or body["weights"]["whole"]
                self._options = body["config"] or self._options
            if body["kind"] == "steps":
                every = entries_of(body)
                entries = [entry for entry in every if entry.position < position]
                if not entries:
                    break
                self._chain, self._last = chained(self._chain, entries), entries[-1].position
                metrics = body.get("metrics")
                if metrics is not None and metrics[0] > self._num_epochs:
                    metrics = None
                line = line_of(steps_body(entries, self._chain, body["of"], metrics), self._before)
                if len(entries) < len(every):
                    kept.append(line)
                    self._before = digest(line)
                    break
            else:
                body.pop("before")
                line = line_of(body, self._before)
            kept.append(line)
            self._before = digest(line)
        return kept
