"""Trains steps of a run again, in this process, from the beginning or from a checkpoint, and passes each step's record to an observer.

The replay uses the trainer's own loop with one worker, which computes the same bits as any number of workers.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from graphmill.cluster.checkpoints.checkpoint_store import Checkpoints
from graphmill.cluster.process.random_state import own_random_state
from graphmill.cluster.process.subnormals import flushed_subnormals
from graphmill.cluster.receipts.chain import Entry, Position, Start, entries_of
from graphmill.cluster.runs.run_store import RunStore
from graphmill.cluster.training.checkpoint_writer import CheckpointWriter
from graphmill.cluster.training.evaluation import BatchCache
from graphmill.cluster.training.train_loop import Worker
from graphmill.core.errors import FormatError
from graphmill.jobs.proof.proven_run import ProvenRun, open_spec, same_options

if TYPE_CHECKING:
    from graphmill.cluster.training.train_spec import TrainSpec

Observer = Callable[[Worker, Entry], bool]  # returns whether the replay goes on


class _Watch:
    """Takes the place of a worker's recorder. Ends the replay after its last step, or when the observer says so."""

    def __init__(self, observe: Callable[[Entry], bool], last: Position) -> None:
        self._observe, self._last = observe, last
        self.worker: Worker
        self.is_ended = False
        self.next: Position = (0, 0)

    def push(self, record: Mapping[str, Any]) -> None:
        if record["kind"] == "receipt":
            # The step in which the worker reads the request to end is still trained. It is not observed.
            for entry in entries_of(record) if not self.is_ended else ():
                following = entry.epoch, entry.step + 1
                self.next = following if following[1] < record["of"] else (entry.epoch + 1, 0)
                self.is_ended |= not self._observe(entry) or entry.position >= self._last

    def stop_asked(self) -> bool:
        return self.is_ended or self.next >= self._last

    def flush(self) -> None: ...


class Replay:
    """Replays steps of one run. The data is opened once for each configuration that the run had."""

    def __init__(self, proven: ProvenRun, data: str | None = None, *, allow_import: bool = False) -> None:
        self.proven, self._data, self._allow_import = proven, data, allow_import
        self._specs: list[tuple[Mapping[str, Any], TrainSpec]] = []

    def spec(self, start: Start) -> "TrainSpec":
        """The specification of a start's workers. Raises FormatError if the data is not the run's."""
        for config, spec in self._specs:
            if same_options(config, start.config):
                return spec
        self._specs.append((start.config, open_spec(self.proven, start, self._data, allow_import=self._allow_import)))
        return self._specs[-1][1]

    def begin(self, position: Position) -> Position:
        """The position from which a step is replayed: of the nearest checkpoint at or before it, or of the run's first record."""
        with self._nearest(position) as nearest:
            return nearest[0]

    @contextmanager
    def _nearest(self, position: Position) -> Iterator[tuple[Position, Path | None]]:
        first = self.proven.receipt.starts[0].position
        with self.proven.checkpoint(position, first) as found:
            if found is None and first != (0, 0):
                raise FormatError(
                    f"{self.proven.where}: its receipt begins at epoch {first[0]}, step {first[1]}, and no checkpoint between there and epoch {position[0]}, "
                    f"step {position[1]} is kept; these steps cannot be replayed"
                )
            yield (first, None) if found is None else found

    def steps(
        self,
        last: Position,
        observe: Observer,
        *,
        marked: frozenset[Position] = frozenset(),
        first: Position | None = None,
    ) -> None:
        """Replays up to the step `last`. `observe` gets the worker and the record of each step, and once before the first step a record without ids.

        `marked`: further steps whose record has a mark. `first`: begin at the nearest checkpoint at or before this step in place of `last`.
        """
        with (
            own_random_state("replaying steps"),
            flushed_subnormals(),
            self._nearest(first or last) as (position, folder),
            ExitStack() as kept,
        ):
            while True:
                starts = self.proven.receipt.starts
                start = self.proven.receipt.before(position)
                later = [
                    each for each in starts if each.position > position and not same_options(each.config, start.config)
                ]
                end = min([last, *(self._before(each.position) for each in later)])
                spec, go_on = self.spec(start), True
                before = torch.get_num_threads()
                torch.set_num_threads(int(start.facts["threads"]))
                try:
                    worker, watch = self._worker(spec, start, end, observe, marked)
                    with closing(worker):
                        worker.begin_at(folder)
                        watch.next = position
                        if not observe(worker, Entry(*position, "", 0.0, 0.0)):
                            return
                        self._train(spec, worker, watch, end)
                        go_on = end < last and watch.next > end
                        if go_on:  # the run was continued with other options: the state goes over to another worker
                            folder = kept.enter_context(_saved(worker))
                            position = watch.next
                finally:
                    torch.set_num_threads(before)
                if not go_on:
                    return

    def _before(self, position: Position) -> Position:
        return self.proven.position(self.proven.number(position) - 1)

    def _worker(
        self, spec: "TrainSpec", start: Start, end: Position, observe: Observer, marked: frozenset[Position]
    ) -> tuple[Worker, _Watch]:
        watch = _Watch(lambda entry: observe(worker, entry), end)
        worker = Worker(spec, watch, 0, 1, torch.device(replay_device(start)))  # type: ignore[arg-type]
        worker.receipts.group, worker.receipts.marked_also = 1, marked
        worker.receipts.is_dense = True
        return worker, watch

    def _train(self, spec: "TrainSpec", worker: Worker, watch: _Watch, end: Position) -> None:
        scores = worker.rates.scheduler is not None  # a user's scheduler may take the validation's score
        with ExitStack() as stack:
            train = stack.enter_context(worker.loader(spec.sampler))
            if train.num_steps != self.proven.receipt.num_steps:
                raise FormatError(
                    f"{self.proven.where}: expected {self.proven.receipt.num_steps} steps an epoch, as recorded; the options give {train.num_steps}"
                )
            valid = (
                BatchCache(stack.enter_context(worker.split_loader(spec.evaluation["valid"])), 0) if scores else None
            )
            for epoch in range(worker.next_epoch, end[0] + 1):
                record, _ = worker.train_epoch(train, epoch)
                if record is None:
                    return
                is_due = (epoch + 1) % spec.options.eval_every == 0 or epoch + 1 == spec.options.epochs
                if valid is not None and is_due:
                    worker.validate(valid, epoch)
                worker.rates.advance("epoch", worker.valid_score if is_due else None)
                worker.next_epoch, worker.part = epoch + 1, None
                if watch.is_ended:
                    return


def replay_device(start: Start) -> str:
    """The device on which a start's steps are replayed: its own kind if this machine has one, else the CPU."""
    return "cuda" if start.facts["device"] == "cuda" and torch.cuda.is_available() else "cpu"


@contextmanager
def _saved(worker: Worker) -> Iterator[Path]:
    """Yields a checkpoint of the worker's state in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="graphmill-verify-") as folder:
        checkpoints = Checkpoints(RunStore(folder))
        names: list[str] = []

        def write(_: int, name: str, save: Callable[[], None] | None) -> None:
            if save is not None:
                save()
            names.append(name)

        worker.writer, worker.table_folder = CheckpointWriter(checkpoints, 0, None, write), Path(folder).resolve()
        worker.checkpoint()
        yield Path(folder, names[0])
