"""What one DDP worker does: epochs of steps, validation, checkpoints, and the exact test of the best weights.

Every rank takes equally many steps. The loss of a step is the mean over the targets of all ranks and of all batches that it
accumulates, however unevenly they hold them. Dropout is seeded by (seed, epoch, batch, rank) before each batch, so a resumed run repeats
the uninterrupted one exactly. A number that is not finite stops all ranks at once, and says where it came from.
"""

import math
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
import torch.distributed as dist
from ray.train.torch import get_device
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from cluster.bad_numbers import NonFiniteLossError, describe_bad_gradients, describe_bad_numbers, gather_text
from cluster.checkpoint import (
    TrainState,
    check_continues,
    load_optimizer,
    load_state,
    load_weights,
    save_checkpoint,
)
from cluster.evaluation import autocast, predictions
from cluster.schedule import rate_factor
from cluster.scores import all_reduce_sum
from cluster.tasks import StepOutput, Task, step_output
from cluster.train_spec import TrainSpec
from cluster.weight_average import WeightAverage
from samplers.loader import STAGE_SECONDS, Loader
from storage.counter_random import derive_key
from storage.errors import ConfigError

_STEP_REPORT_S = 0.25  # at most this often a step's progress goes to the driver
_DROPOUT = 0x64726F70  # "drop": keeps these seeds apart from the samplers'


def train_worker(config: dict[str, Any]) -> dict[str, Any] | None:
    """Entry point of a Ray Train worker; `config` holds the TrainSpec and the metrics hub. Rank 0 returns the final scores."""
    # What every rank meets at the same place, and would meet again, ends in the ordinary way, so that Ray does not try it over.
    try:
        context = ray.train.get_context()
        worker = Worker(config["spec"], config["hub"], context.get_world_rank(), context.get_world_size(), get_device())
        worker.restore(ray.train.get_checkpoint())
    except ConfigError as error:
        return {"error": error}
    try:
        return worker.run()
    except NonFiniteLossError as error:
        return {"error": error}


def seed_dropout(seed: int, *position: int) -> None:
    """Seeds torch's global generators from a position, such as (epoch, batch, rank)."""
    torch.manual_seed(derive_key(seed, _DROPOUT, *position) >> 1)


def total_weight(task: Task, targets: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """(weight of each of this rank's batches, float64 [k]; weight of all batches of all ranks): a collective call."""
    weights = torch.stack([task.weight(target) for target in targets])
    return weights, all_reduce_sum(weights.sum())


def step_loss(task: Task, output: StepOutput, target: Tensor, weight: Tensor) -> Tensor:
    """The sum that a batch adds to the step's loss: its targets' losses, and the penalty by the targets' weight."""
    loss = task.loss(output.prediction, target)
    return loss if output.penalty is None else loss + output.penalty.float() * weight.float()


def loss_scale(total: float, world_size: int) -> float:
    """What a rank's sum is multiplied by: DDP averages gradients over ranks, and this makes that the gradient of the mean over all."""
    return world_size / total if total > 0 else 0.0


def _groups(batches: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Lists of `size` batches in turn; the last may be shorter."""
    iterator = iter(batches)
    while group := list(islice(iterator, size)):
        yield group


class Worker:
    """One rank's run."""

    def __init__(self, spec: TrainSpec, hub: Any, rank: int, world_size: int, device: torch.device) -> None:
        self.spec, self.options, self.hub = spec, spec.options, hub
        self.rank, self.world_size, self.device = rank, world_size, device
        self.data, self.task = spec.data.open(), spec.task
        torch.manual_seed(spec.options.seed)
        self.model = spec.build_model().to(self.device)
        decay = spec.options.ema_decay
        self.average = WeightAverage(self.model, decay) if decay is not None else None
        self.ddp = self._distribute(self.model)
        self.optimizer = torch.optim.AdamW(
            _param_groups(self.model, spec.options), lr=spec.options.learning_rate, foreach=self.device.type == "cuda"
        )
        self.peak_rates = [group["lr"] for group in self.optimizer.param_groups]
        self.next_epoch, self.best_epoch = 0, -1
        self.best_score: float | None = None
        self.best = _copy_state(self.model)

    def _distribute(self, model: torch.nn.Module) -> torch.nn.Module:
        if not dist.is_initialized():
            return model
        return DistributedDataParallel(
            model,
            device_ids=[self.device] if self.device.type == "cuda" else None,
        )

    @property
    def scored(self) -> torch.nn.Module:
        """The model whose weights are evaluated and kept."""
        return self.model if self.average is None else self.average.model

    def run(self) -> dict[str, Any] | None:
        options = self.options
        with ExitStack() as stack:
            train = stack.enter_context(self._loader(self.spec.sampler))
            valid = stack.enter_context(self._loader(self.spec.evaluation["valid"]))
            for epoch in range(self.next_epoch, options.epochs):
                record = self._train_epoch(train, epoch)
                last = epoch + 1 == options.epochs
                if last or (epoch + 1) % options.eval_every == 0:
                    record |= self._validate(valid, epoch)
                self.next_epoch = epoch + 1
                if self.rank == 0:
                    self.hub.push.remote({"kind": "epoch", "epoch": epoch, **record})
                if last or (epoch + 1) % options.checkpoint_every == 0:
                    self._checkpoint(epoch)
        return self._final_scores()

    def _loader(self, sampler_options: Any) -> Loader:
        return Loader(
            self.data.sampler(sampler_options, self.world_size),
            self.spec.loader,
            rank=self.rank,
            num_ranks=self.world_size,
            device=self.device,
            collate=self.data.collate,
        )

    def _autocast(self) -> torch.autocast:
        return autocast(self.device, self.options.precision)

    def _train_epoch(self, loader: Loader, epoch: int) -> dict[str, float]:
        """Trains one epoch; returns its mean loss and throughput over all ranks."""
        self.ddp.train()
        num_steps = -(-loader.num_steps // self.options.accumulate)
        # Sums over the epoch: loss, weight of the targets, targets, nodes, edges.
        sums = torch.zeros(5, dtype=torch.float64, device=self.device)
        before, start, reported = loader.stats.as_dict(), time.perf_counter(), 0.0
        for step, batches in enumerate(_groups(loader.epoch(epoch), self.options.accumulate)):
            self._set_rates(epoch * num_steps + step, num_steps)
            targets = [self.data.target(batch) for batch in batches]
            sums[:2] += self._step(epoch, step, batches, targets)
            sizes = [(len(target), *self.data.sizes(batch)) for batch, target in zip(batches, targets, strict=True)]
            sums[2:] += sums.new_tensor([sum(column) for column in zip(*sizes, strict=True)])
            if self.average is not None:
                self.average.update(self.model, epoch * num_steps + step)
            now = time.perf_counter()
            if self.rank == 0 and now - reported > _STEP_REPORT_S:
                reported = now
                self.hub.push.remote({"kind": "step", "epoch": epoch, "step": step + 1, "num_steps": num_steps})
        self._share_buffers()
        train_s = time.perf_counter() - start
        loss_sum, weight, roots, nodes, edges = all_reduce_sum(sums).tolist()
        spent = {name: value - before[name] for name, value in loader.stats.as_dict().items()}
        return {
            "train_loss": loss_sum / weight if weight else 0.0,
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "train_s": train_s,
            "wait_s": spent["wait_s"],
            "batches": spent["num_batches"],
            **{name: spent[name] for name in STAGE_SECONDS},
            "roots": roots,
            "roots_per_s": roots / train_s,
            "nodes_per_s": nodes / train_s,
            "edges_per_s": edges / train_s,
        }

    def _set_rates(self, step: int, steps_per_epoch: int) -> None:
        """Sets the learning rates of optimizer step `step`, counted from the run's start."""
        options = self.options
        warmup = options.warmup_epochs * steps_per_epoch if options.warmup_steps is None else options.warmup_steps
        factor = rate_factor(
            step,
            options.epochs * steps_per_epoch,
            warmup,
            options.schedule,
            floor=options.min_learning_rate / options.learning_rate,
            power=options.power,
        )
        for group, peak in zip(self.optimizer.param_groups, self.peak_rates, strict=True):
            group["lr"] = peak * factor

    def _step(self, epoch: int, step: int, batches: Sequence[Any], targets: Sequence[Tensor]) -> Tensor:
        """One optimizer step; returns this rank's summed loss and its targets' weight, float64 [2]."""
        options = self.options
        weights, total = total_weight(self.task, targets)
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        for i, (batch, target, weight) in enumerate(zip(batches, targets, weights, strict=True)):
            position = (options.seed, epoch, step * options.accumulate + i, self.rank)
            seed_dropout(*position)
            with self._no_gradient_sync(i + 1 < len(batches)):
                with self._autocast():
                    output = step_output(self.ddp(batch))
                loss = step_loss(self.task, output, target, weight)
                self._check_loss(epoch, step, batch, loss, position)
                (loss * loss_scale(float(total), self.world_size)).backward()
            sums += torch.stack([loss.detach().double(), weight])
        if float(total) > 0:  # else no labelled target on any rank: nothing to learn, and no decay either
            self._update(epoch, step, batches)
        self.optimizer.zero_grad(set_to_none=True)
        return sums

    def _no_gradient_sync(self, wanted: bool) -> AbstractContextManager:
        """DDP reduces gradients in the last backward pass of a step only."""
        return self.ddp.no_sync() if wanted and isinstance(self.ddp, DistributedDataParallel) else nullcontext()

    def _update(self, epoch: int, step: int, batches: Sequence[Any]) -> None:
        parameters = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if not math.isfinite(norm):  # the reduced gradients are the same on all ranks: all stop here
            numbers = ", ".join(str(batch.index) for batch in batches)
            raise self._not_finite(
                epoch, step, f"batches {numbers} (rank {self.rank})", "the gradient", describe_bad_gradients(self.model)
            )
        if self.options.clip_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(parameters, self.options.clip_norm, norm)
        self.optimizer.step()

    def _check_loss(self, epoch: int, step: int, batch: Any, loss: Tensor, position: tuple[int, ...]) -> None:
        """Raises NonFiniteLossError on all ranks where the loss of any is not finite; a collective call."""
        if math.isfinite(float(all_reduce_sum(loss.detach().double().clone()))):
            return

        def forward() -> Any:
            seed_dropout(*position)
            with self._autocast():
                return self.model(batch)

        # On every rank, because a model that spreads one graph over the ranks needs them all in its forward pass.
        what = describe_bad_numbers(self.model, forward, batch)
        bad = not math.isfinite(float(loss.detach()))
        found = f"batch {batch.index} (rank {self.rank}): {what}" if bad else ""
        texts = gather_text(found, self.device) or ["the sum over ranks overflows"]
        where, _, what = texts[0].partition(": ")
        raise self._not_finite(epoch, step, where, "the loss", what)

    def _not_finite(self, epoch: int, step: int, where: str, which: str, what: str) -> NonFiniteLossError:
        return NonFiniteLossError(
            f"epoch {epoch}, step {step}, {where}: {which} is not finite; {what}; lower --learning-rate "
            f"(now {self.options.learning_rate:g}), set --clip-norm, or check the features and targets"
        )

    def _share_buffers(self) -> None:
        """Rank 0's BatchNorm statistics become everybody's, as DDP has it at every step: all ranks evaluate one model."""
        if dist.is_initialized() and self.world_size > 1:
            for buffer in self.model.buffers():
                dist.broadcast(buffer, 0)
        if self.average is not None:
            self.average.copy_buffers(self.model)

    def _validate(self, loader: Loader, epoch: int) -> dict[str, float]:
        start = time.perf_counter()
        scores = self._evaluate(self.scored, loader, "valid")
        score = scores[self.task.metric]
        sign = 1.0 if self.task.higher_is_better else -1.0
        if math.isfinite(score) and (self.best_score is None or sign * score > sign * self.best_score):
            self.best_score, self.best_epoch, self.best = score, epoch, _copy_state(self.scored)
        named = {f"valid_{name}": value for name, value in scores.items() if name != "count"}
        return {**named, "best_epoch": self.best_epoch, "eval_s": time.perf_counter() - start}

    @torch.no_grad()
    def _evaluate(self, model: torch.nn.Module, loader: Loader, split: str) -> dict[str, float]:
        """Scores of a split, each of its targets counted once. Raises NonFiniteLossError where a prediction is not finite."""
        scores = self.task.scores(self.device)
        bad = last = None
        for batch, prediction in predictions(model, loader.epoch(0), self.device, self.options.precision):
            if bad is None and not bool(torch.isfinite(prediction).all()):
                bad = batch
            last = batch
            scores.update(prediction, self.data.target(batch))
        found = ""
        if float(all_reduce_sum(torch.tensor([float(bad is not None)], device=self.device))) and last is not None:
            # Every rank looks, for the same reason as in `_check_loss`.
            batch = last if bad is None else bad

            def forward() -> Any:
                with self._autocast():
                    return model(batch)

            what = describe_bad_numbers(model, forward, batch)
            found = "" if bad is None else f"batch {batch.index} of {split} (rank {self.rank}): {what}"
        texts = gather_text(found, self.device)
        if texts:
            raise NonFiniteLossError(f"evaluation, {texts[0]}; a prediction is not finite")
        return scores.compute()

    def _final_scores(self) -> dict[str, Any]:
        """Scores of all splits with the best weights."""
        self.model.load_state_dict(self.best)
        scores = {}
        for split, sampler_options in self.spec.evaluation.items():
            with self._loader(sampler_options) as loader:
                scores[split] = self._evaluate(self.model, loader, split)
        return {
            "best_epoch": self.best_epoch,
            "scores": scores,
            "num_parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "device": str(self.device),
            "world_size": self.world_size,
        }

    def _checkpoint(self, epoch: int) -> None:
        """Saves and reports a checkpoint; every rank takes part, rank 0 writes."""
        metrics = {"epoch": epoch}
        name = f"epoch-{epoch + 1:06d}"
        if self.rank != 0:
            ray.train.report(metrics, checkpoint_dir_name=name)
            return
        state = TrainState(
            next_epoch=epoch + 1,
            best_epoch=self.best_epoch,
            best_score=self.best_score,
            identity=self.spec.identity,
            model_config=self.spec.model_config,
        )
        with tempfile.TemporaryDirectory(prefix="graphmill-checkpoint-") as directory:
            average = None if self.average is None else self.average.model.state_dict()
            save_checkpoint(Path(directory), state, self.model.state_dict(), self.best, self.optimizer, average)
            checkpoint = ray.train.Checkpoint.from_directory(directory)
            ray.train.report(metrics, checkpoint=checkpoint, checkpoint_dir_name=name)

    def restore(self, checkpoint: ray.train.Checkpoint | None) -> None:
        """Continues from the run's latest checkpoint, where there is one; tells the driver which epoch comes next."""
        if checkpoint is not None:
            self._load(checkpoint)
        if self.rank == 0:
            self.hub.push.remote({"kind": "start", "epoch": self.next_epoch})

    def _load(self, checkpoint: ray.train.Checkpoint) -> None:
        with checkpoint.as_directory() as name:
            directory = Path(name)
            state = load_state(directory)
            check_continues(state, self.spec.model_config, self.spec.identity, self.options.epochs, str(directory))
            load_weights(directory / "best.safetensors", self.model)
            self.best = _copy_state(self.model)
            load_weights(directory / "model.safetensors", self.model)
            if self.average is not None:
                load_weights(directory / "average.safetensors", self.average.model)
            load_optimizer(directory / "optimizer.safetensors", self.optimizer)
        self.next_epoch, self.best_epoch = state.next_epoch, state.best_epoch
        self.best_score = state.best_score


def _copy_state(model: torch.nn.Module) -> Mapping[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _param_groups(model: torch.nn.Module, options: Any) -> list[dict[str, Any]]:
    """The model's own parameter groups, or two: matrices with weight decay; biases, norms and scalars without."""
    own = getattr(model, "param_groups", None)
    if own is not None:
        return own(options.learning_rate, options.weight_decay)
    decayed = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    plain = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    return [{"params": decayed, "weight_decay": options.weight_decay}, {"params": plain, "weight_decay": 0.0}]
