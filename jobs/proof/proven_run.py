"""Opens a run for verification: from its directory, or from an exported receipt, which holds the receipt's lines alone."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphmill.cluster.receipts.chain import RECEIPT, Position, Receipt, Start, read_receipt, whole_lines
from graphmill.cluster.runs.run_store import RunStore
from graphmill.core.errors import ConfigError, FormatError
from graphmill.core.files.json_object import parse_object
from graphmill.core.files.small_files import read_small

if TYPE_CHECKING:
    from graphmill.cluster.training.train_spec import TrainSpec

FORMAT = "graphmill-receipt"
_LARGEST = 1 << 30  # bytes of an exported receipt


@dataclass(frozen=True)
class ProvenRun:
    """A run with a receipt whose chain is whole."""

    where: str  # path or URL of the run, or path of the exported receipt
    lines: tuple[bytes, ...]
    place: RunStore | None  # None: an exported receipt, without checkpoints and metrics

    @cached_property
    def receipt(self) -> Receipt:
        return read_receipt(self.lines, self.where if self.place is None else self.place.below(RECEIPT))

    @property
    def num_steps(self) -> int:
        """Number of steps from the beginning of the run to the last recorded step."""
        entries = self.receipt.entries
        return self.number(entries[-1].position) + 1 if entries else 0

    def number(self, position: Position) -> int:
        """The number of a step, counted from 0 over the whole run."""
        return position[0] * self.receipt.num_steps + position[1]

    def position(self, number: int) -> Position:
        epoch, step = divmod(number, self.receipt.num_steps)
        return epoch, step

    @contextmanager
    def checkpoint(self, latest: Position, since: Position) -> Iterator[tuple[Position, Path] | None]:
        """Yields the position and folder of the last checkpoint between two positions that the receipt names. None: there is none."""
        from graphmill.cluster.checkpoints.checkpoint_store import checkpoints_of

        with ExitStack() as held:
            found = None
            if self.place is not None:
                checkpoints = checkpoints_of(self.place)
                for name in checkpoints.names():
                    if name in self.receipt.checkpoints:
                        position = checkpoints.state(name).position
                        if since <= position <= latest:
                            found = position, held.enter_context(checkpoints.opened(name))
                            break
            yield found


def open_proven(path: str) -> ProvenRun:
    """Opens a run or an exported receipt. Raises FormatError if there is no receipt or its chain is broken."""
    if path.endswith(".json") and "://" not in path and Path(path).is_file():
        body = parse_object(read_small(Path(path), _LARGEST), path)
        if body.get("format") != FORMAT or not isinstance(body.get("lines"), list):
            raise FormatError(
                f"{path}: expected an exported receipt, found another file; make one by graphmill export-receipt RUN"
            )
        lines = tuple(_text(line) for line in body["lines"])
        proven = ProvenRun(path, lines, None)
    else:
        place = RunStore(path)
        content = place.read(RECEIPT)
        if content is None:
            if not place.holds_run:
                raise FormatError(f"{path}: expected a run directory or an exported receipt, found neither")
            raise FormatError(
                f"{path}: expected a receipt ({RECEIPT}), found none; the run is of a version that kept none: train it again, or use graphmill compare"
            )
        proven = ProvenRun(path, tuple(whole_lines(content)), place)
    proven.receipt  # noqa: B018 - raises if the chain is broken
    return proven


def exported(proven: ProvenRun) -> bytes:
    """The content of an exported receipt."""
    body = {"format": FORMAT, "run": RunStore(proven.where).name, "lines": [json.loads(line) for line in proven.lines]}
    return json.dumps(body, separators=(",", ":")).encode() + b"\n"


def _text(line: Any) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode()


def open_spec(proven: ProvenRun, start: Start, data: str | None, *, allow_import: bool) -> "TrainSpec":
    """The specification from which the workers of this start trained. `data`: URL of the graph; None: where the run found it.

    Raises FormatError if the data is another, or differs from its own checksums; ConfigError if one process cannot replay the run.
    """
    from graphmill.jobs.config.config import checked_tree
    from graphmill.jobs.resolve.resolve import read_resolved
    from graphmill.jobs.run.training_run import train_spec
    from graphmill.jobs.subjects.subject import subject_class

    if proven.place is None:
        _check_exported(proven, start, data)
    resolved = read_resolved(checked_tree(dict(start.config), proven.where, allow_import=allow_import))
    if resolved.is_full_graph and resolved.workers.most > 1:
        raise ConfigError(
            f"{proven.where}: expected a run that one process can replay, got a graph-parallel run of {resolved.workers.most} workers; its files equal the "
            "receipt, and its steps can only be trained again"
        )
    config = resolved.config
    url = data if data is not None else str(start.data.get("url", ""))
    if hasattr(config.data, "path"):
        config = replace(config, data=replace(config.data, path=url))
    if hasattr(config.servers, "verify"):  # the files are compared with their checksums, whatever the run did
        config = replace(config, servers=replace(config.servers, verify=True))
    if proven.place is None and hasattr(config.servers, "disk_cache_dir"):  # a folder of another machine
        config = replace(config, servers=replace(config.servers, disk_cache_dir=None))
    resolved = replace(resolved, config=config)
    subject = subject_class(config).open(config)
    content = start.data.get("content")
    if subject.manifest.content_hash != content:
        raise FormatError(
            f"{subject.url}: expected the data of the run (content {str(content)[:12]}), found another "
            f"({subject.manifest.content_hash[:12]}); name the right graph by --data"
        )
    return train_spec(subject, resolved, subject.data(resolved), subject.task(resolved), subject.table(resolved))


def _check_exported(proven: ProvenRun, start: Start, data: str | None) -> None:
    """Raises ConfigError if a file of the run is not at hand: an exported receipt may come from elsewhere, and the paths in it name files there."""
    if data is None:
        raise ConfigError(f"{proven.where}: expected the graph or set beside an exported receipt, got none; set --data")
    weights = start.config.get("fit", {}).get("start_from")
    if weights is not None and "://" not in str(weights) and not Path(str(weights)).exists():
        raise ConfigError(
            f"{proven.where}: expected the weights that the run began with (--fit.start_from {weights}), found none; copy them to this path"
        )


def same_options(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two configurations train the same numbers: only the run's directory and its placement may differ."""
    left, right = (
        {name: value for name, value in each.items() if name not in ("run", "workers", "ray", "servers")}
        for each in (one, other)
    )
    for each in (left, right):
        each["resolved"] = {name: each["resolved"][name] for name in ("inputs", "identity")}
    return left == right
