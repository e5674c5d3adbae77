"""What training and scoring cost a run, for its `--plan`: batches tried here, a validation batch tried or scaled from a part of one."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from cluster.options import TrainOptions
from cluster.tasks import Task, step_output
from cluster.training_data import OpenData
from jobs.plan.run_plan import (
    Line,
    Tried,
    batch_line,
    count_parameters,
    duration,
    growth_bytes,
    memory_line,
    model_line,
    num_bytes_of,
    one_thread,
    step_seconds,
    steps_line,
    time_line,
    training_memory,
    try_batches,
)
from jobs.run.memory_check import available_bytes
from jobs.run.resolve import ResolvedRun
from samplers.protocol import Sampler

_LONGEST_TRY_S = 30.0  # a plan takes no longer than about this for a pass
ON_TOP = "starting Ray and the baselines come on top"


@dataclass(frozen=True)
class Scoring:
    """What it takes to score each split."""

    tried: Tried  # `work_bytes`: drawing the batch, the batch itself, and the pass
    batches: Mapping[str, int]  # of a worker, by split
    is_scaled: bool  # from a quarter of the batch: the whole one would take too long, or too much memory, for a plan

    def memory(self, prefetch: int) -> dict[str, int]:
        """Bytes of a worker while it scores, on top of what training has taken: the C library keeps what was freed."""
        ahead = min(prefetch, max(self.batches.values()) - 1) * self.tried.num_bytes
        return {"scoring": self.tried.work_bytes + ahead}

    def text(self, workers: int, fit: TrainOptions, threads: int) -> str:
        """Of the time line: one validation, and all of them with the final scores."""
        step = step_seconds(self.tried, workers, threads)
        validation, count = (
            self.batches["valid"] * step,
            -(-fit.epochs // fit.eval_every),
        )  # the last epoch is always validated
        how = "scaled from a quarter of one" if self.is_scaled else "one tried"
        whole = count * validation + sum(self.batches.values()) * step
        return f"a validation about {duration(validation)} ({how}), {count:,} of them and the final scores about {duration(whole)}"


def training_lines(
    process: int,
    resolved: ResolvedRun,
    data: OpenData,
    training: Any,
    evaluation: Mapping[str, Any],
    model: torch.nn.Module,
    task: Task,
    unit: str,
    *,
    servers: int = 0,
    smaller: Sequence[Any] = (),
    complete: Callable[[Any], Any] = lambda batch: batch,
) -> list[Line]:
    """Model, steps, batch, memory and time of a run whose batches can be drawn here. `training`, `evaluation`, `smaller`: samplers' options."""
    fit, workers, loader = resolved.fit, resolved.workers.most, resolved.config.loader
    sampler = data.sampler(training, workers)
    tried = try_batches(data, sampler, model, task, complete=complete)
    scored = {split: data.sampler(options, workers) for split, options in evaluation.items()}
    parts = [data.sampler(options, workers) for options in smaller]
    scoring = plan_scoring(data, scored, workers, model, parts, complete)
    memory = training_memory(process, count_parameters(model), tried, fit, loader, workers)
    memory |= scoring.memory(loader.prefetch)
    more = f"{scoring.text(workers, fit, loader.threads)}; {ON_TOP}"
    return [
        model_line(model),
        steps_line(sampler.num_batches, workers, fit),
        batch_line(tried, unit),
        memory_line(memory, workers, servers, resolved.config.ray.object_store_gb),
        time_line(tried, sampler.num_batches // workers, workers, fit.epochs, loader.threads, more),
    ]


def untried_lines(process: int, resolved: ResolvedRun, parameters: int, what: str, servers: int = 0) -> list[Line]:
    """Batch and memory of a run whose graph or set (`what`) is not there yet."""
    memory = training_memory(process, parameters, None, resolved.fit, resolved.config.loader, resolved.workers.most)
    return [
        ("batch", f"drawn and timed once the {what} is there, as is scoring; neither is in the memory yet"),
        memory_line(memory, resolved.workers.most, servers, resolved.config.ray.object_store_gb),
    ]


def plan_scoring(
    data: OpenData,
    samplers: Mapping[str, Sampler],
    workers: int,
    model: torch.nn.Module,
    smaller: Sequence[Sampler],
    complete: Callable[[Any], Any],
) -> Scoring:
    """Tries a batch of "valid". `samplers`: by split. `complete`: see `jobs.plan.run_plan.try_batches`.

    `smaller`: samplers of an eighth and of a quarter of that batch, or none. They are tried before it, and where it would be too much for a plan, what
    they say stands for it.
    """
    batches = {split: sampler.num_batches // workers for split, sampler in samplers.items()}
    if smaller:
        try_pass(data, smaller[0], model, complete)  # compiles what is compiled
        eighth, quarter = (try_pass(data, sampler, model, complete) for sampler in smaller)
        whole = extrapolated(eighth, quarter)
        if whole.draw_s + whole.step_s > _LONGEST_TRY_S or whole.work_bytes > available_bytes() // 2:
            return Scoring(whole, batches, is_scaled=True)
    return Scoring(try_pass(data, samplers["valid"], model, complete), batches, is_scaled=False)


def try_pass(
    data: OpenData,
    sampler: Sampler,
    model: torch.nn.Module,
    complete: Callable[[Any], Any] = lambda batch: batch,
    roots: Callable[[Any], Any] | None = None,
) -> Tried:
    """The first batch, drawn and passed through the model once, without gradients, by one thread.

    `roots` lists what is predicted of a batch, by default its targets.
    """
    listed = data.target if roots is None else roots
    model.eval()
    tried: list[Tried] = []

    def work() -> None:
        started = time.process_time()
        batch = complete(data.collate(sampler.sample(0, 0)))
        drawn = time.process_time()
        with torch.no_grad():
            step_output(model(batch))
        done = time.process_time()
        nodes, edges = data.sizes(batch)
        tried.append(Tried(1, nodes, edges, len(listed(batch)), num_bytes_of(batch), drawn - started, done - drawn, 0))

    with one_thread():
        grown = growth_bytes(work)
    return replace(tried[0], work_bytes=grown)


def extrapolated(eighth: Tried, quarter: Tried) -> Tried:
    """The whole batch, of what an eighth and a quarter of its nodes cost: twice the nodes cost `ratio` times as much, each time.

    The ratio is 2 for what grows with the nodes, and 4 for what grows with the edges inside a chunk; what was measured lies between.
    """

    def at(name: str) -> float:
        small, large = getattr(eighth, name), getattr(quarter, name)
        ratio = min(max(large / max(small, 1e-9), 2.0), 4.0)
        return float(large * ratio**2)

    return replace(
        quarter,
        nodes=at("nodes"),
        edges=at("edges"),
        num_bytes=int(at("num_bytes")),
        draw_s=at("draw_s"),
        step_s=at("step_s"),
        work_bytes=int(at("work_bytes")),
    )
