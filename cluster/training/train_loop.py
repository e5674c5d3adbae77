"""Trains one worker of a run: epochs of steps, validation, checkpoints, and the exact test of the best weights.

A step has V micro-batches, dealt to the ranks by position. The loss of a step is the mean over the targets of all micro-batches, also if the micro-batches have
different numbers of targets. All sums over positions have one fixed order (`graphmill.cluster.reduction.gradient_tree`), and dropout is seeded by
(seed, epoch, step, position). Therefore any number of ranks trains the same weights, and a run that is resumed after any step equals an uninterrupted run
exactly. A number that is not finite stops all ranks at the same step, with a message about its origin.
"""

import math
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from graphmill.cluster.checkpoints.checkpoint import (
    EpochProgress,
    TrainState,
    check_continues,
    load_optimizer,
    load_state,
    load_weights,
)
from graphmill.cluster.checkpoints.checkpoint_store import STATE, Checkpoints
from graphmill.cluster.data.training_data import root_weights
from graphmill.cluster.metrics.class_scores import all_reduce_sum, begin_sum, gather_objects, gather_rows
from graphmill.cluster.metrics.straggler import PeerWait, StragglerWatch
from graphmill.cluster.process.outcome import Failed, Finished, Outcome, Stopped, located
from graphmill.cluster.process.subnormals import flushed_subnormals
from graphmill.cluster.receipts.chain import Entry, digest
from graphmill.cluster.receipts.digests import batch_number, step_ids
from graphmill.cluster.receipts.host_facts import facts_of_ranks, host_facts
from graphmill.cluster.receipts.step_receipts import StepReceipts
from graphmill.cluster.reduction.buffer_mean import BufferMean
from graphmill.cluster.reduction.gradient_tree import GradientTree
from graphmill.cluster.reduction.position_tree import Seat
from graphmill.cluster.runs.records import Recorder, is_recorded
from graphmill.cluster.serving.shared_rows import HostMates, share_rows
from graphmill.cluster.tasks import Scores, StepOutput, Task, step_output
from graphmill.cluster.training.checkpoint_writer import CheckpointRequest, CheckpointWriter
from graphmill.cluster.training.evaluation import (
    BatchCache,
    autocast,
    deal_split,
    predictions,
    scored_with,
    update_scores,
)
from graphmill.cluster.training.initial_weights import freeze, load_start
from graphmill.cluster.training.nonfinite import NonFiniteLossError, describe_nonfinite_gradients, find_nonfinite
from graphmill.cluster.training.schedule import Callbacks, Rates, build_optimizer, load_text, saved_text
from graphmill.cluster.training.train_session import TrainSession
from graphmill.cluster.training.train_spec import TrainSpec
from graphmill.cluster.training.weight_average import build_average, update_average
from graphmill.core.compile_cache import compiled_loops
from graphmill.core.counter_random import derive_key
from graphmill.core.errors import ConfigError, FormatError
from graphmill.core.process_memory import own_bytes
from graphmill.samplers.access.traffic import COLUMNS
from graphmill.samplers.drawing.pending_batch import DrawingSampler
from graphmill.samplers.drawing.protocol import Sampler
from graphmill.samplers.loading.loader import STAGE_SECONDS, Loader
from graphmill.samplers.loading.scheduled_rows import SharedRows
from graphmill.samplers.vocabulary.options import LoaderOptions

if TYPE_CHECKING:
    from graphmill.cluster.embeddings.embeddings import Embeddings

RANK_SECONDS = ("train_s", "wait_s", "peers_s", "cpu_s", "train_cpu_s", "eval_s", *STAGE_SECONDS)
_STEP_REPORT_S = 0.25  # shortest time between two reports of progress within an epoch
_DROPOUT = 0x64726F70  # "drop": separates these seeds from the seeds of the samplers


@flushed_subnormals()
def train_worker(spec: TrainSpec, session: TrainSession) -> Outcome:
    """Runs one rank's whole training. Every rank returns the same kind of outcome."""
    rank, device = session.rank, session.device
    # Some errors occur on all ranks at the same place, and would occur again in another attempt. They are returned and not raised, so that no attempt follows.
    with ExitStack() as ending:
        try:
            with located("start of the workers", f"rank {rank}"):
                writer = CheckpointWriter(session.checkpoints, rank, spec.options.checkpoint_minutes, session.register)
                if device.type == "cuda":  # collective calls use torch's current device
                    torch.cuda.set_device(device)
                worker = Worker(spec, session.reporter, rank, session.world_size, device, writer, session)
                ending.callback(worker.close)
                worker.restore(session.checkpoints)
        except ConfigError as error:
            return Failed(error.stage, error.owner, error)
        try:
            with located("training", f"rank {rank}"):
                return worker.run()
        except NonFiniteLossError as error:
            return Failed(error.stage, error.owner, error)


def seed_dropout(seed: int, *position: int) -> None:
    """Seeds torch's global generators from the seed and a position, such as (epoch, step, position)."""
    torch.manual_seed(derive_key(seed, _DROPOUT, *position) >> 1)


def step_weight(task: Task, target: Tensor, row_weight: Tensor | None) -> Tensor:
    """float64 scalar: the weight of a batch's targets. `row_weight` is left out if it is None, because a user's task need not accept it."""
    return task.weight(target) if row_weight is None else task.weight(target, row_weight)


def step_loss(
    task: Task, output: StepOutput, target: Tensor, weight: Tensor, row_weight: Tensor | None = None
) -> Tensor:
    """Returns the batch's part of the step's sum: the losses of its targets, plus the penalty times the weight of the targets."""
    weights = () if row_weight is None else (row_weight,)
    loss = task.loss(output.prediction, target, *weights)
    return loss if output.penalty is None else loss + output.penalty.float() * weight.float()


def _groups(batches: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yields the batches in lists of `size`."""
    iterator = iter(batches)
    while group := list(islice(iterator, size)):
        yield group


class EpochClock:
    """Measures the times of an epoch on this rank, by their names in the epoch's record. The times include the part of the epoch before an interruption."""

    def __init__(self, loader: Loader, peers: PeerWait, earlier: Mapping[str, float]) -> None:
        self._stats, self._peers, self._earlier = loader.stats, peers, earlier
        self._peers_s = peers.seconds
        self._before, self._start = loader.stats.as_dict(), time.perf_counter()
        self._cpu, self._thread_cpu = time.process_time(), time.thread_time()

    def spent(self) -> dict[str, float]:
        done = {name: value - self._before[name] for name, value in self._stats.as_dict().items()}
        seconds = {
            "train_s": time.perf_counter() - self._start,
            "wait_s": done["wait_s"],
            "peers_s": self._peers.seconds - self._peers_s,
            "cpu_s": time.process_time() - self._cpu,  # CPU time of all threads
            "train_cpu_s": time.thread_time() - self._thread_cpu,
            **{name: done[name] for name in STAGE_SECONDS},
        }
        return {name: value + self._earlier.get(name, 0.0) for name, value in seconds.items()}


class Worker:
    """One rank of a run."""

    def __init__(
        self,
        spec: TrainSpec,
        reporter: Recorder,
        rank: int,
        world_size: int,
        device: torch.device,
        writer: CheckpointWriter | None = None,
        session: TrainSession | None = None,
    ) -> None:
        self.spec, self.options, self.reporter, self.writer = spec, spec.options, reporter, writer
        self.rank, self.world_size, self.device = rank, world_size, device
        self.host, self.node = ("", "") if session is None else (session.host, session.node)
        self.is_leaving = (lambda: False) if session is None else session.is_leaving
        self.data, self.task = spec.data.open(), spec.task
        self.seat = Seat(rank, world_size, spec.options.micro_batches or world_size, self._places())
        torch.manual_seed(spec.options.seed)
        self.model = spec.build_model().to(self.device)
        self.frozen = freeze(self.model, spec.options.freeze)
        _take_first_ranks(self.model)
        decay = spec.options.ema_decay
        self.average = build_average(self.model, decay) if decay is not None else None
        self.embeddings: Embeddings | None = None
        if spec.table is not None:
            from graphmill.cluster.embeddings import embeddings

            self.embeddings = embeddings.Embeddings(spec.table, self.seat, device)
        self.gradients = GradientTree(self.model, self.seat)
        # A model may say which parameters have no gradient in an epoch; the answer depends only on the epoch, so all ranks leave out the same ones.
        name = "parameters_without_gradient"
        self.unread = [getattr(module, name) for module in self.model.modules() if hasattr(module, name)]
        self.buffers = BufferMean(self.model, self.seat, device)
        self.optimizer = build_optimizer(self.model, spec.options, foreach=self.device.type == "cuda")
        self.rates = Rates(self.optimizer, spec.options, higher_is_better=self.task.higher_is_better)
        self.callbacks = Callbacks(spec.options.callbacks, rank)
        self.receipts = StepReceipts(self.model, rank, reporter.push)
        self.table_folder: Path | None = None  # where checkpoints of embeddings are made
        self.next_epoch, self.best_epoch = 0, -1
        self.part: EpochProgress | None = None  # progress within the next epoch, if a checkpoint was saved within it
        self.best_score: float | None = None
        self.valid_score: float | None = None  # of the last validation
        self.since_best = 0  # validations since the best score
        self.best = _copy_state(self.model)
        # Scores by split from the validation that chose the best weights. They are final scores, or `Scores` that are not computed yet.
        self.best_scores: dict[str, dict[str, float] | Scores] = {}
        self.reported_traffic: np.ndarray | int = 0
        self.received_bytes = 0.0  # bytes that this rank has received from other processes, up to the last epoch
        self.near_is_told = False
        self.reported_epoch = -1  # the last epoch whose traffic and ranks were reported
        self.peers = PeerWait(is_measured=device.type == "cpu")
        self.stragglers = StragglerWatch(gather_objects(self.host))
        self.rank_seconds: dict[str, list[float]] = {}  # on rank 0: the seconds of each rank since the last report

    def _places(self) -> tuple[int, ...]:
        """Returns the ranks' places in the order of positions; empty: the order of ranks. With locality groups the places follow the order of the nodes that
        the ranks read themselves; then this is a collective call."""
        if getattr(self.spec.sampler, "root_order", "") != "groups":
            return ()
        middles = gather_objects(self.data.near_middle())
        in_order = sorted(range(len(middles)), key=lambda rank: (middles[rank], rank))
        return tuple(in_order.index(rank) for rank in range(len(middles)))

    def close(self) -> None:
        """Ends the thread of the embeddings."""
        if self.embeddings is not None:
            self.embeddings.close()

    @property
    def scored(self) -> torch.nn.Module:
        """The model that is evaluated and kept: the moving average if the run has an average, else the model."""
        return self.model if self.average is None else self.average.module

    def run(self) -> Finished | Stopped:
        """Trains until the last epoch, an early end, or a stop request of the driver."""
        options = self.options
        with ExitStack() as stack:
            train = stack.enter_context(self.loader(self.spec.sampler, is_sharing=self.spec.loader.shared_bytes > 0))
            valid_loader = stack.enter_context(self.split_loader(self.spec.evaluation["valid"]))
            valid = BatchCache(valid_loader, self.spec.loader.kept_bytes)
            if self.rank == 0:
                steps, warmup = train.num_steps * options.epochs, options.num_warmup_steps(train.num_steps)
                self.reporter.push({"kind": "planned", "steps": steps, "warmup_steps": warmup})
            for epoch in range(self.next_epoch, options.epochs):
                if self.is_out_of_patience or self.callbacks.stopped_by:  # may be true right after a resume
                    break
                record, request = self.train_epoch(train, epoch)
                if record is None:
                    return self._stopped()
                last = epoch + 1 == options.epochs
                is_due = last or (epoch + 1) % options.eval_every == 0
                if is_due:
                    record |= self.validate(valid, epoch)
                self.rates.advance("epoch", self.valid_score if is_due else None)
                if self._is_stopped(epoch, record) and not is_due:  # the weights that are kept need a score
                    record |= self.validate(valid, epoch)
                last = last or self.is_out_of_patience or bool(self.callbacks.stopped_by)
                self.next_epoch, self.part = epoch + 1, None
                if self.writer is not None:
                    record["checkpoint_s"] = self.writer.take_stall_s()
                if self.rank == 0:
                    self.reporter.push({"kind": "epoch", "epoch": epoch, **record})
                self._watch_ranks(epoch, record)
                if last or is_recorded(epoch):
                    self.report_traffic(epoch)
                    self._report_ranks(epoch)
                    self.reported_epoch = epoch
                if last or request != CheckpointRequest.NONE or (epoch + 1) % options.checkpoint_every == 0:
                    self.checkpoint()
                if request == CheckpointRequest.SAVE_AND_STOP and not last:
                    return self._stopped()
        self.receipts.flush()
        scores = self._final_scores()
        self.report_traffic(None)
        self._report_memory()
        return Finished(scores)

    def _is_stopped(self, epoch: int, record: Mapping[str, float]) -> bool:
        """Returns whether a callback ends the run after this epoch. A collective call if there are callbacks."""
        if not self.callbacks.paths:
            return False
        self.callbacks.tell("on_epoch_end", epoch, dict(record))
        self.callbacks.stopped_by = gather_objects(self.callbacks.stopped_by)[0]
        return bool(self.callbacks.stopped_by)

    @property
    def is_out_of_patience(self) -> bool:
        """Whether training ends early because the validation score has not improved. The same on all ranks."""
        patience = self.options.patience
        return patience is not None and self.since_best >= patience

    def report_traffic(self, epoch: int | None) -> None:
        """Reports the traffic of all ranks with each partition since the last report, including prefetched batches. A collective call if traffic is counted.

        `epoch`: the last epoch in the report; None: the report is about the final scores.
        """
        counts = self.data.traffic()
        if counts is None:
            return
        done, self.reported_traffic = counts - self.reported_traffic, counts
        total = all_reduce_sum(torch.from_numpy(done).to(self.device))
        if self.rank == 0:
            columns = dict(zip(COLUMNS, total.T.tolist(), strict=True))
            covered: dict[str, Any] = {"of": "final scores"}
            if epoch is not None:
                covered = {"of": "epochs", "epochs": max(1, epoch - self.reported_epoch)}
            self.reporter.push({"kind": "traffic", "epoch": epoch, **covered, **columns})

    def _report_near(self, epoch: int) -> None:
        """Reports for each rank which share of the bytes for its first batches it read on its own host. A collective call if traffic is counted."""
        self.near_is_told = True
        counts = self.data.traffic()
        if counts is None:
            return
        totals = dict(zip(COLUMNS, counts.sum(axis=0).tolist(), strict=True))
        near, far = totals["local_bytes"], totals["sent_bytes"] + totals["received_bytes"]
        rows = gather_rows(torch.tensor([[near, far]], dtype=torch.float64, device=self.device))
        if self.rank == 0 and rows[:, 1].any():
            shares = (rows[:, 0] / rows.sum(dim=1).clamp(min=1)).tolist()
            self.reporter.push({"kind": "near", "epoch": epoch, "hosts": self.stragglers.hosts, "shares": shares})

    def _watch_ranks(self, epoch: int, record: Mapping[str, float]) -> None:
        """Adds the ranks' times of an epoch, and reports the rank for which the others wait. A collective call if there are several ranks."""
        if self.world_size == 1:
            return
        counts = self.data.traffic()
        received = 0.0 if counts is None else float(counts[:, COLUMNS.index("received_bytes")].sum())
        steps = record["batches"] / self.seat.num_positions
        gradients = 2 * (self.world_size - 1) / self.world_size * self.gradients.num_bytes * steps
        row = [*(record.get(name, 0.0) for name in RANK_SECONDS), received - self.received_bytes + gradients]
        self.received_bytes = received
        rows = gather_rows(torch.tensor([row], dtype=torch.float64, device=self.device))
        if self.rank != 0:
            return
        columns = dict(zip(RANK_SECONDS, rows.T[:-1].tolist(), strict=True))
        for name, seconds in columns.items():
            before = self.rank_seconds.get(name, [0.0] * self.world_size)
            self.rank_seconds[name] = [a + b for a, b in zip(before, seconds, strict=True)]
        message = self.stragglers.update(columns, rows[:, -1].tolist())
        if message is not None:
            self.reporter.push({"kind": "slow", "epoch": epoch, "what": message})

    def _report_ranks(self, epoch: int) -> None:
        """Reports the times of each rank since the last report."""
        if self.rank_seconds:
            columns = {name: [round(s, 3) for s in seconds] for name, seconds in self.rank_seconds.items()}
            covered = {"epoch": epoch, "epochs": epoch - self.reported_epoch}
            self.reporter.push({"kind": "ranks", **covered, "hosts": self.stragglers.hosts, **columns})
            self.rank_seconds = {}

    def _report_memory(self) -> None:
        """Reports each rank's peak memory: on a GPU the memory allocated by PyTorch, on a CPU the resident memory (None if unknown). Reports it also without the
        pages of mapped files, which the system may take back, and reports how many loops each rank has compiled. A collective call."""
        is_gpu, peak = self.device.type == "cuda", own_bytes("VmHWM")
        own = max(0, peak - own_bytes("RssFile") - own_bytes("RssShmem"))
        largest = torch.cuda.max_memory_allocated(self.device) if is_gpu else peak or None
        columns = zip(*gather_objects((largest, own or None, len(compiled_loops()))), strict=True)
        if self.rank == 0:
            names = ("peak_bytes", "own_bytes", "compiled_loops")
            self.reporter.push({"kind": "memory", **dict(zip(names, map(list, columns), strict=True))})

    def _stopped(self) -> Stopped:
        """Returns the outcome after a request to save and end. A collective call."""
        leaving = [host for host in gather_objects(self.host if self.is_leaving() else "") if host]
        return Stopped(self.next_epoch, self._part_step, tuple(dict.fromkeys(leaving)))

    @property
    def _part_step(self) -> int:
        return 0 if self.part is None else self.part.step

    def loader(self, sampler_options: Any, *, is_sharing: bool = False) -> Loader:
        """Makes the loader of this rank's training batches. A collective call if the host's ranks share rows."""
        sampler, num_positions = self.data.sampler(sampler_options, self.seat.num_positions), self.seat.num_positions
        shared = list[SharedRows]()
        if is_sharing and isinstance(sampler, DrawingSampler):
            own = [
                step * num_positions + place
                for step in range(sampler.num_batches // num_positions)
                for place in self.seat.positions
            ]
            mates = HostMates.of(self.rank, self.host)
            shared = share_rows(sampler, self.next_epoch, own, self.spec.loader.shared_bytes, mates)
        return self._loader(sampler, num_positions, self.spec.loader, self.seat.place, shared)

    def split_loader(self, sampler_options: Any) -> Loader:
        """Makes the loader of this rank's batches of a split to score. If there are more ranks than positions, the extra ranks repeat the last position's
        batches, and their scores do not count."""
        dealt = deal_split(self.data, sampler_options, self.seat.num_positions, self.world_size)
        uncached = replace(self.spec.loader, cache_bytes=0, shared_bytes=0)  # caches are for training
        return self._loader(*dealt, uncached, self.rank)

    def _loader(
        self,
        sampler: Sampler,
        num_positions: int,
        options: LoaderOptions,
        place: int,
        shared: Sequence[SharedRows] = (),
    ) -> Loader:
        num_ranks = min(self.world_size, num_positions)
        return Loader(
            sampler,
            options,
            rank=min(place, num_ranks - 1),
            num_ranks=num_ranks,
            num_positions=num_positions,
            num_epochs=self.options.epochs,
            shared=shared,
            device=self.device,
            collate=self.data.collate,
        )

    def _autocast(self) -> torch.autocast:
        return autocast(self.device, self.options.precision)

    def train_epoch(self, loader: Loader, epoch: int) -> tuple[dict[str, float] | None, CheckpointRequest]:
        """Trains one epoch. Returns its record (mean loss, times, throughput over all ranks), or None if it is stopped before its end; and the ranks' request."""
        self.model.train()
        for module in self.frozen:
            module.eval()
        num_steps, own = loader.num_steps, self.seat.positions
        self.receipts.num_steps = num_steps
        # Sums over the epoch, a row for each own position: loss, weight of the targets, number of targets, nodes and edges.
        sums = torch.zeros(len(own), 5, dtype=torch.float64, device=self.device)
        first, self.part, before_part = 0, None, self.part
        if before_part is not None:
            first = before_part.step
            sums += sums.new_tensor(before_part.sums[own.start : own.stop])
        clock = EpochClock(loader, self.peers, {} if before_part is None else before_part.spent)
        reported, request = 0.0, CheckpointRequest.NONE
        for step, batches in enumerate(_groups(loader.epoch(epoch, first), len(own)), first):
            self.rates.set(epoch * num_steps + step, num_steps)
            targets = [self.data.target(batch) for batch in batches]
            step_sums, request = self._step(epoch, step, batches, targets)
            self.rates.advance("step")
            sizes = [(len(target), *self.data.sizes(batch)) for batch, target in zip(batches, targets, strict=True)]
            sums += torch.cat([step_sums, sums.new_tensor(sizes)], dim=1)
            if self.average is not None:
                update_average(self.average, self.model, epoch * num_steps + step)
            if not self.near_is_told:
                self._report_near(epoch)
            now = time.perf_counter()
            if self.rank == 0 and now - reported > _STEP_REPORT_S:
                reported = now
                self.reporter.push({"kind": "step", "epoch": epoch, "step": step + 1, "num_steps": num_steps})
            if request != CheckpointRequest.NONE and step + 1 < num_steps:
                rows = tuple(tuple(row) for row in self._by_position(sums).tolist())
                self.part = EpochProgress(step + 1, loader.state_dict(), rows, clock.spent())
                self.checkpoint()
                if request == CheckpointRequest.SAVE_AND_STOP:
                    self.report_traffic(epoch)
                    self._report_ranks(epoch - 1)
                    return None, request
        self.part = None
        spent = clock.spent() | {"batches": float(self.seat.num_positions * num_steps)}
        loss_sum, weight, roots, nodes, edges = self._by_position(sums).sum(dim=0).tolist()
        return {
            "train_loss": loss_sum / weight if weight else 0.0,
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            **spent,
            "roots": roots,
            "roots_per_s": roots / spent["train_s"],
            "nodes_per_s": nodes / spent["train_s"],
            "edges_per_s": edges / spent["train_s"],
        }, request

    def _by_position(self, rows: Tensor) -> Tensor:
        """Gathers the rows of all ranks' positions in the order of positions. A collective call."""
        gathered = gather_rows(rows)
        in_order = torch.empty_like(gathered)
        in_order[[position for own in self.seat.positions_of_ranks for position in own]] = gathered
        return in_order

    def _step(
        self, epoch: int, step: int, batches: Sequence[Any], targets: Sequence[Tensor]
    ) -> tuple[Tensor, CheckpointRequest]:
        """Makes one optimizer step. Returns float64 [k, 2]: the sum of losses and the weight of the targets of each own batch; and the ranks' request.

        The ranks exchange weights during the first forward pass, and losses during the last backward pass.
        """
        own, num_positions = self.seat.positions, self.seat.num_positions
        has_entry = self.receipts.is_recorded(epoch, step)
        ids = self._ids(batches) if has_entry else torch.zeros(0, dtype=torch.float64, device=self.device)
        row_weights = [root_weights(batch) for batch in batches]
        if self.embeddings is not None:
            batches = self.embeddings.for_step(batches)
        # Every rank writes only the entries of its own positions. Therefore the sum over ranks has each position's number unchanged.
        weights = torch.zeros(num_positions + 1, dtype=torch.float64, device=self.device)
        weights[own.start : own.stop] = torch.stack(
            [step_weight(self.task, target, rows) for target, rows in zip(targets, row_weights, strict=True)]
        )
        weights[-1] = self._request().share
        sums = torch.stack([torch.zeros_like(weights[own.start : own.stop]), weights[own.start : own.stop]], dim=1)
        all_weights = begin_sum(weights)
        losses = torch.zeros(num_positions, dtype=torch.float64, device=self.device)
        self.buffers.begin_step()
        for i, (position, batch, target) in enumerate(zip(own, batches, targets, strict=True)):
            seed_dropout(self.options.seed, epoch, step, position)
            self.buffers.begin_position()
            with self._autocast():
                output = step_output(self.model(batch))
            loss = step_loss(self.task, output, target, sums[i, 1], row_weights[i])
            sums[i, 0] = losses[position] = loss.detach().double()
            changed = self.buffers.look()
            if i == 0:
                with self.peers:
                    of_all = all_weights()
                total, request = torch.stack([of_all[:-1].sum(), of_all[-1]]).tolist()
            if position + 1 == own.stop:
                all_losses = begin_sum(torch.cat([losses, changed, ids]))
            self.gradients.backward(loss * (1.0 / total if total > 0 else 0.0))
            self.buffers.keep(position)
        with self.peers:
            self.gradients.end()
            reduced = all_losses().tolist()
        reduced, numbers = reduced[: len(reduced) - len(ids)], reduced[len(reduced) - len(ids) :]
        if not all(map(math.isfinite, reduced)):
            raise self._nonfinite_loss(epoch, step, batches, sums[:, 0].tolist())
        self.buffers.end(reduced[num_positions:])
        gradients, norm = self.receipts.gradients(epoch, step), 0.0
        for unread in self.unread:
            for parameter in unread(epoch):
                parameter.grad = None  # not 0: the optimizer then leaves the parameter as it is
        if total > 0:  # otherwise no position has a labelled target: then no update and no weight decay
            norm = self._update(epoch, step, batches)
        if numbers:
            mean = sum(reduced[:num_positions]) / total if total > 0 else 0.0
            self.receipts.add(Entry(epoch, step, step_ids(numbers), mean, norm), gradients)
        if self.embeddings is not None:
            self.embeddings.push(self.rates.factor, learns=total > 0)
        self.optimizer.zero_grad(set_to_none=True)
        return sums, CheckpointRequest.of(request)

    def _ids(self, batches: Sequence[Any]) -> Tensor:
        """float64 [positions]: the digest of the ids of each own batch at its position, 0 at other ranks' positions."""
        ids = [0.0] * self.seat.num_positions
        for position, batch in zip(self.seat.positions, batches, strict=True):
            ids[position] = float(batch_number(batch, self.data.ids, self.data.sizes(batch)))
        return torch.tensor(ids, dtype=torch.float64, device=self.device)

    def _request(self) -> CheckpointRequest:
        """Returns this rank's request to all ranks."""
        if self.is_leaving():
            return CheckpointRequest.SAVE_AND_STOP
        if self.rank != 0:
            return CheckpointRequest.NONE
        if self.reporter.stop_asked():
            return CheckpointRequest.SAVE_AND_STOP
        is_full = self.embeddings is not None and self.embeddings.is_log_full
        is_due = self.writer is not None and (self.writer.is_due() or (is_full and self.writer.is_idle))
        return CheckpointRequest.SAVE if is_due else CheckpointRequest.NONE

    def _update(self, epoch: int, step: int, batches: Sequence[Any]) -> float:
        """Updates the weights. Returns the norm of the gradient before it is clipped."""
        parameters = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if not math.isfinite(norm):  # the reduced gradients are equal on all ranks, so all ranks stop here
            numbers = ", ".join(str(batch.index) for batch in batches)
            raise self._not_finite("the gradient", describe_nonfinite_gradients(self.model)).at(
                f"epoch {epoch}, step {step}", f"rank {self.rank}, batches {numbers}"
            )
        if self.options.clip_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(parameters, self.options.clip_norm, norm)
        self.optimizer.step()
        return float(norm)

    def _nonfinite_loss(
        self, epoch: int, step: int, batches: Sequence[Any], losses: Sequence[float]
    ) -> NonFiniteLossError:
        """Returns the error for a loss that is not finite, the same on all ranks. A collective call."""
        bad = [i for i, loss in enumerate(losses) if not math.isfinite(loss)]
        i = bad[0] if bad else 0

        def forward() -> Any:
            seed_dropout(self.options.seed, epoch, step, self.seat.positions[i])
            with self._autocast():
                return self.model(batches[i])

        owner, finding = find_nonfinite(self.model, forward, batches[i], self.rank, bool(bad))
        return self._not_finite("the loss", finding).at(f"epoch {epoch}, step {step}", owner)

    def _not_finite(self, quantity: str, finding: str) -> NonFiniteLossError:
        return NonFiniteLossError(
            f"{quantity} is not finite; {finding}; lower --fit.learning_rate (now {self.options.learning_rate:g}), set --fit.clip_norm, or "
            "check the features and targets"
        )

    def validate(self, loader: Loader | BatchCache, epoch: int) -> dict[str, float]:
        """Scores the validation split after an epoch, and keeps the weights if they are the best. A collective call."""
        start = time.perf_counter()
        by_split: dict[str, Any] = self._evaluate(self.scored, loader, "valid")
        scores = by_split["valid"] = by_split["valid"].compute()
        # Rank 0's score decides for all ranks, also if a user's task does not reduce its scores over ranks.
        own = scores.get(self.task.metric, math.nan) if self.rank == 0 else 0.0
        score = float(all_reduce_sum(torch.tensor([own], dtype=torch.float64, device=self.device)))
        self.valid_score = score if math.isfinite(score) else None
        self.callbacks.tell("on_validation", epoch, dict(scores))
        sign = 1.0 if self.task.higher_is_better else -1.0
        if not self.spec.keep_best:
            self.best_epoch, self.best_scores = epoch, by_split
            self._keep_weights()
        elif math.isfinite(score) and (self.best_score is None or sign * score > sign * self.best_score):
            self.best_score, self.best_epoch, self.best_scores = score, epoch, by_split
            self._keep_weights()
            self.since_best = 0
        else:
            self.since_best += 1
        prefix = "valid_estimate_" if self.spec.is_estimate else "valid_"
        named = {
            f"{prefix}{name}": value for name, value in scores.items() if name not in ("count", "by_class", "confusion")
        }
        waited = {} if self.options.patience is None else {"since_best": self.since_best}
        return {**named, **self._kept_epoch(), **waited, "eval_s": time.perf_counter() - start}

    def _keep_weights(self) -> None:
        """Keeps the current weights as the best weights. Every rank calls this method."""
        self.best = _copy_state(self.scored)
        if self.embeddings is not None:
            self.embeddings.keep_best()

    def _kept_epoch(self) -> dict[str, int]:
        """Returns the epoch whose weights are kept. The key tells how the epoch was chosen."""
        if not self.spec.keep_best:
            return {"last_epoch": self.best_epoch}
        return {"best_epoch_by_estimate" if self.spec.is_estimate else "best_epoch": self.best_epoch}

    def _early_stop(self) -> dict[str, dict[str, Any]]:
        """Returns the epoch and the reason of an early end. Empty if training did not end early."""
        if self.next_epoch >= self.options.epochs:
            return {}
        if why := self.callbacks.stopped_by:
            return {"stopped_early": {"epoch": self.next_epoch - 1, "why": why}}
        if not self.is_out_of_patience:
            return {}
        since = "validation" if self.since_best == 1 else f"{self.since_best} validations"
        why = f"no better valid {self.task.metric} in {since} (--fit.patience {self.options.patience})"
        return {"stopped_early": {"epoch": self.next_epoch - 1, "why": why}}

    @torch.no_grad()
    def _evaluate(
        self, model: torch.nn.Module, loader: Loader | BatchCache, split: str, *, best: bool = False
    ) -> dict[str, Scores]:
        """Computes the scores of this split and of the splits that share its batches. Each target counts once. `best`: use the best epoch's embeddings.

        Raises NonFiniteLossError if a prediction is not finite.
        """
        names = scored_with(split, self.spec.evaluation)
        own = [{name: self.task.scores(self.device) for name in names} for _ in loader.positions]
        bad = last = None
        plain = loader.epoch(0)
        complete = plain if self.embeddings is None else self.embeddings.evaluated(plain, best=best)
        batches = predictions(model, complete, self.device, self.options.precision)
        for number, (batch, prediction) in enumerate(batches):
            if bad is None and not bool(torch.isfinite(prediction).all()):
                bad = batch
            last = batch
            update_scores(own[number % len(own)], self.data, batch, prediction)
        if float(all_reduce_sum(torch.tensor([float(bad is not None)], device=self.device))) and last is not None:
            batch = last if bad is None else bad

            def forward() -> Any:
                with self._autocast():
                    return model(batch)

            owner, finding = find_nonfinite(model, forward, batch, self.rank, bad is not None)
            raise NonFiniteLossError(f"a prediction is not finite; {finding}").at(f"evaluation of {split}", owner)
        if (
            self.rank > loader.positions.start
        ):  # only a rank that repeats the position of another rank has a rank number above its first position
            return {name: self.task.scores(self.device) for name in names}
        for later in own[1:]:
            for name in names:
                own[0][name].add(later[name])
        return own[0]

    def _final_scores(self) -> dict[str, Any]:
        """Returns the scores of all splits with the kept weights. Splits that were scored when these weights were chosen are not scored again."""
        self.model.load_state_dict(self.best)
        by_split = self.best_scores
        for split, sampler_options in self.spec.evaluation.items():
            if split not in by_split:
                with self.split_loader(sampler_options) as loader:
                    by_split = {**self._evaluate(self.model, loader, split, best=True), **by_split}
        scores = {}
        for split in self.spec.evaluation:
            of_split = by_split[split]
            scores[split] = of_split if isinstance(of_split, dict) else of_split.compute()
        self.data.check()
        return {
            **self._kept_epoch(),
            **self._early_stop(),
            "scores": scores,
            "num_parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "device": str(self.device),
            "world_size": self.world_size,
            "micro_batches": self.seat.num_positions,
        }

    def checkpoint(self) -> None:
        """Saves and reports a checkpoint if there is a writer. Every rank calls this method, rank 0 writes."""
        if self.writer is None:
            return
        self.data.check()  # weights that were trained on damaged files are not kept
        self.receipts.flush()
        state = TrainState(
            next_epoch=self.next_epoch,
            best_epoch=self.best_epoch,
            best_score=self.best_score,
            since_best=self.since_best,
            identity=self.spec.identity,
            model_config=self.spec.model_config,
            part=self.part,
            table_step=0 if self.embeddings is None else self.embeddings.client.step,
            own=saved_text(self.rates, self.callbacks),
        )
        average = None if self.average is None else self.average.module
        saved = state, self.model, self.best, self.optimizer, average, self._settle
        if self.embeddings is None:
            name = self.writer.save(*saved)
        else:
            assert self.table_folder is not None, "restore sets it"
            folder = self.table_folder
            name = gather_objects(self.writer.save(*saved, self.embeddings.save(folder)))[0]
            self.embeddings.client.saved(str(folder / name))
        self.callbacks.tell("on_checkpoint", self.next_epoch, name)

    def _settle(self, name: str, digest: str) -> None:
        """Waits until the records before a checkpoint are written, with the digest of its state. Rank 0's writing thread calls this method."""
        self.reporter.push({"kind": "receipt-checkpoint", "name": name, "digest": digest})
        self.reporter.flush()

    def restore(self, checkpoints: Checkpoints) -> None:
        """Continues from the newest valid checkpoint, if the run has checkpoints. Reports the next epoch to the driver.

        A collective call: rank 0 chooses the checkpoint for all ranks. Raises ConfigError on all ranks if the checkpoint is of another run; FormatError if
        all checkpoints are damaged.
        """
        damaged: list[str] = []
        with ExitStack() as held:
            folder: Path | None = None
            choice: str | FormatError | None = None
            if self.rank == 0:
                try:
                    choice, folder = _choose(held, checkpoints, damaged)
                except FormatError as error:
                    choice = error
            choice = gather_objects(choice)[0]
            if isinstance(choice, FormatError):
                raise choice
            if choice is not None and folder is None:
                folder = held.enter_context(
                    checkpoints.opened(choice)
                )  # verified on each node, because a node may read other bytes than rank 0
            if self.embeddings is not None:
                assert checkpoints.store.is_local, "a run with embeddings on a store is refused before it begins"
                self.table_folder = checkpoints.store.folder.resolve()
                if self.rank == 0:  # remove unfinished tables of an earlier attempt
                    for left in checkpoints.store.folder.glob(".table-[0-9]*-[0-9]*"):
                        shutil.rmtree(left, ignore_errors=True)
            self.begin_at(folder)
            origin = None if choice is None or folder is None else (choice, digest((folder / STATE).read_bytes()))
        places = gather_objects((self.node, host_facts(self.device, torch.get_num_threads())))
        nodes = [node for node, _ in places]
        if self.rank == 0:
            for message in damaged:
                self.reporter.push({"kind": "damage", "what": message})
            begun = {"epoch": self.next_epoch, "step": self._part_step, "workers": self.world_size}
            self.reporter.push({"kind": "start", **begun, **({"nodes": nodes} if any(nodes) else {})})
            at = self.next_epoch, self._part_step
            self.receipts.start(at, facts_of_ranks([facts for _, facts in places]), origin)

    def begin_at(self, folder: Path | None) -> None:
        """Takes the state of the checkpoint in this folder; None: begins a run. Writes nothing. A collective call."""
        if self.embeddings is not None:
            from graphmill.cluster.embeddings.client import SavedAt

            step, saved = (0, "") if folder is None else (load_state(folder).table_step, str(folder.resolve()))
            self.embeddings.begin(SavedAt(step, saved))
        if folder is not None:
            self._load(folder)
        elif self.options.start_from is not None:
            self._begin_with(self.options.start_from)

    def _begin_with(self, path: str) -> None:
        """Sets the initial weights, which rank 0 reads for all ranks. A collective call. Raises ConfigError on all ranks."""
        refusal: ConfigError | None = None
        if self.rank == 0:
            try:
                load_start(self.model, path, fresh_head=self.options.fresh_head)
            except ConfigError as error:
                refusal = error
        refusal = gather_objects(refusal)[0]
        if refusal is not None:
            raise refusal
        _take_first_ranks(self.model)
        self.best = _copy_state(self.model)
        if self.options.ema_decay is not None:
            self.average = build_average(self.model, self.options.ema_decay)

    def _check_position(self, state: TrainState) -> None:
        """Raises ConfigError if the checkpoint's position within an epoch belongs to a sequence of other batches or steps."""
        if state.part is None:
            return
        with self.loader(self.spec.sampler) as loader:
            loader.load_state_dict(state.part.position)

    def _load(self, directory: Path) -> None:
        state = load_state(directory)
        check_continues(state, self.spec.model_config, self.spec.identity, self.options.epochs, str(directory))
        self._check_position(state)
        load_weights(directory / "best.safetensors", self.model)
        self.best = _copy_state(self.model)
        load_weights(directory / "model.safetensors", self.model)
        if self.average is not None:
            load_weights(directory / "average.safetensors", self.average.module)
        load_optimizer(directory / "optimizer.safetensors", self.optimizer)
        load_text(state.own, self.rates, self.callbacks)
        self.next_epoch, self.best_epoch = state.next_epoch, state.best_epoch
        self.reported_epoch = self.next_epoch - 1
        self.best_score, self.since_best, self.part = state.best_score, state.since_best, state.part


def _copy_state(model: torch.nn.Module) -> Mapping[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _choose(held: ExitStack, checkpoints: Checkpoints, damaged: list[str]) -> tuple[str, Path] | tuple[None, None]:
    """Returns the name of the checkpoint to continue from, and its folder, which stays until `held` ends. (None, None) if there is no checkpoint. Raises
    FormatError if all checkpoints are damaged."""
    newest = held.enter_context(checkpoints.newest(damaged))
    if newest is None and damaged:
        raise FormatError(f"{damaged[0]}; no older checkpoint is whole: start another run")
    return newest or (None, None)


def _take_first_ranks(model: torch.nn.Module) -> None:
    """Copies rank 0's weights and buffers to all ranks, because another kind of CPU may initialise them with other last digits."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.detach(), 0)
