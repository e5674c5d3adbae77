"""What one DDP worker does: epochs of steps, validation, checkpoints, and the exact test of the best weights.

Every rank takes equally many steps. The loss of a step is the mean over the roots of all ranks, however unevenly they hold them.
Dropout is seeded by (seed, epoch, step, rank) before each step, so a resumed run repeats the uninterrupted one exactly.
"""

import math
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
import torch.distributed as dist
from ray.train.torch import get_device
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from cluster.checkpoint import (
    TrainState,
    check_continues,
    load_optimizer,
    load_state,
    load_weights,
    save_checkpoint,
)
from cluster.partition_server import connect
from cluster.schedule import rate_factor
from cluster.scores import SplitScores, all_reduce_sum
from cluster.train_spec import TrainSpec, build_sampler
from samplers.loader import Loader
from samplers.minibatch import TorchBatch
from samplers.router import Router
from storage.counter_random import derive_key
from storage.errors import ConfigError, GraphmillError
from storage.manifest import Manifest

_STEP_REPORT_S = 0.25  # at most this often a step's progress goes to the driver
_DROPOUT = 0x64726F70  # "drop": keeps these seeds apart from the samplers'


class NonFiniteLossError(GraphmillError, FloatingPointError):
    """The loss became NaN or infinite."""


def train_worker(config: dict[str, Any]) -> dict[str, Any] | None:
    """Entry point of a Ray Train worker; `config` holds the TrainSpec and the metrics hub. Rank 0 returns the final scores."""
    # What every rank meets at the same place, and would meet again, ends in the ordinary way, so that Ray does not try it over.
    try:
        worker = _Worker(config["spec"], config["hub"])
        worker.restore()
    except ConfigError as error:
        return {"error": error}
    try:
        return worker.run()
    except NonFiniteLossError as error:
        return {"error": error}


def seed_dropout(seed: int, *position: int) -> None:
    """Seeds torch's global generators from a position, such as (epoch, step, rank)."""
    torch.manual_seed(derive_key(seed, _DROPOUT, *position) >> 1)


def step_loss(logits: torch.Tensor, label: torch.Tensor, label_smoothing: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(sum of cross-entropies, number of labelled roots) of one rank's roots; label -1 does not count."""
    total = functional.cross_entropy(
        logits.float(), label, ignore_index=-1, reduction="sum", label_smoothing=label_smoothing
    )
    return total, (label >= 0).sum()


class _Worker:
    """One rank's run."""

    def __init__(self, spec: TrainSpec, hub: Any) -> None:
        context = ray.train.get_context()
        self.rank, self.world_size = context.get_world_rank(), context.get_world_size()
        self.spec, self.options, self.hub = spec, spec.options, hub
        self.device = get_device()
        self.router: Router = connect(spec.servers)
        self.manifest: Manifest = self.router.manifest
        torch.manual_seed(spec.options.seed)
        self.model = spec.build_model(self.manifest).to(self.device)
        device_ids = [self.device] if self.device.type == "cuda" else None
        self.ddp = DistributedDataParallel(self.model, device_ids=device_ids) if dist.is_initialized() else self.model
        self.optimizer = torch.optim.AdamW(
            _param_groups(self.model, spec.options), lr=spec.options.learning_rate, foreach=self.device.type == "cuda"
        )
        self.peak_rates = [group["lr"] for group in self.optimizer.param_groups]
        self.next_epoch, self.best_epoch, self.best_score = 0, -1, -math.inf
        self.best = _copy_state(self.model)

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
        sampler = build_sampler(self.router, sampler_options, self.world_size)
        return Loader(sampler, self.spec.loader, rank=self.rank, num_ranks=self.world_size, device=self.device)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.options.precision == "bfloat16")

    def _train_epoch(self, loader: Loader, epoch: int) -> dict[str, float]:
        """Trains one epoch; returns its mean loss and throughput over all ranks."""
        self.ddp.train()
        options, num_steps = self.options, loader.num_steps
        # Sums over the epoch: loss, roots, nodes, edges.
        sums = torch.zeros(4, dtype=torch.float64, device=self.device)
        waited, start, reported = loader.stats.wait_s, time.perf_counter(), 0.0
        for step, batch in enumerate(loader.epoch(epoch)):
            factor = rate_factor(
                epoch * num_steps + step,
                options.epochs * num_steps,
                options.warmup_epochs * num_steps,
                options.schedule,
            )
            for group, peak in zip(self.optimizer.param_groups, self.peak_rates, strict=True):
                group["lr"] = peak * factor
            seed_dropout(options.seed, epoch, step, self.rank)
            loss, count = self._step(batch)
            sums += torch.stack(
                [loss, count, count.new_tensor(len(batch.node_id)), count.new_tensor(len(batch.indices))]
            )
            now = time.perf_counter()
            if self.rank == 0 and now - reported > _STEP_REPORT_S:
                reported = now
                self.hub.push.remote({"kind": "step", "epoch": epoch, "step": step + 1, "num_steps": num_steps})
        train_s = time.perf_counter() - start
        sums = all_reduce_sum(sums)
        loss_sum, roots, nodes, edges = (float(value) for value in sums)
        if not math.isfinite(loss_sum):
            raise NonFiniteLossError(
                f"the loss of epoch {epoch} is {loss_sum}; lower --learning-rate (now {options.learning_rate}), set --clip-norm, "
                "or check the features with: python jobs/inspect_graph.py <graph> --verify"
            )
        return {
            "train_loss": loss_sum / max(roots, 1.0),
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "train_s": train_s,
            "wait_s": loader.stats.wait_s - waited,
            "roots": roots,
            "nodes_per_s": nodes / train_s,
            "edges_per_s": edges / train_s,
        }

    def _step(self, batch: TorchBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """One optimizer step; returns this rank's summed loss and root count, as float64 scalars."""
        options = self.options
        assert batch.y is not None
        with self._autocast():
            logits = self.ddp(batch)
        loss, count = step_loss(logits, batch.y[batch.root_index], options.label_smoothing)
        total = all_reduce_sum(count.double())
        # DDP averages gradients over ranks: this makes the average the gradient of the mean over all roots.
        (loss * (self.world_size / max(float(total), 1.0))).backward()
        if float(total) == 0:  # no labelled root on any rank: nothing to learn, and no decay either
            self.optimizer.zero_grad(set_to_none=True)
            return loss.detach().double(), count.double()
        if options.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), options.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach().double(), count.double()

    def _validate(self, loader: Loader, epoch: int) -> dict[str, float]:
        start = time.perf_counter()
        scores = self._evaluate(loader)
        score = scores[self.options.metric]
        if score > self.best_score:
            self.best_score, self.best_epoch, self.best = score, epoch, _copy_state(self.model)
        named = {f"valid_{name}": value for name, value in scores.items() if name != "count"}
        return {**named, "best_epoch": self.best_epoch, "eval_s": time.perf_counter() - start}

    @torch.no_grad()
    def _evaluate(self, loader: Loader) -> dict[str, float]:
        """Scores of a split, each of its nodes counted once."""
        self.model.eval()
        scores = SplitScores(self.device, binary=self.manifest.num_classes == 2)
        for batch in loader.epoch(0):
            assert batch.y is not None
            with self._autocast():
                logits = self.model(batch)
            scores.update(logits, batch.y[batch.root_index])
        return scores.compute()

    def _final_scores(self) -> dict[str, Any]:
        """Scores of all splits with the best weights."""
        self.model.load_state_dict(self.best)
        scores = {}
        for split, sampler_options in self.spec.evaluation.items():
            with self._loader(sampler_options) as loader:
                scores[split] = self._evaluate(loader)
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
            best_score=self.best_score if self.best_epoch >= 0 else None,
            identity=self.spec.identity,
            model_config=self.spec.model_config,
        )
        with tempfile.TemporaryDirectory(prefix="graphmill-checkpoint-") as directory:
            save_checkpoint(Path(directory), state, self.model.state_dict(), self.best, self.optimizer)
            checkpoint = ray.train.Checkpoint.from_directory(directory)
            ray.train.report(metrics, checkpoint=checkpoint, checkpoint_dir_name=name)

    def restore(self) -> None:
        """Continues from the run's latest checkpoint, where there is one; tells the driver which epoch comes next."""
        checkpoint = ray.train.get_checkpoint()
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
            load_optimizer(directory / "optimizer.safetensors", self.optimizer)
        self.next_epoch, self.best_epoch = state.next_epoch, state.best_epoch
        self.best_score = -math.inf if state.best_score is None else state.best_score


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
