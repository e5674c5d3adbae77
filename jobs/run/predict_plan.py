"""Prints the plan of a prediction (`--plan`): its batches, model and files, read in this process. jobs/plan/run_plan.py has the parts of every plan."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from graphmill.cluster.options import WorkerOptions
from graphmill.cluster.prediction.predictor import Piece, PredictionSpec
from graphmill.cluster.training.evaluation import deal_split
from graphmill.core.summaries import counted
from graphmill.jobs.config.predict_options import PredictConfig
from graphmill.jobs.plan.run_plan import Plan
from graphmill.jobs.plan.scoring_plan import shared
from graphmill.jobs.plan.tries import Tries, mean_of
from graphmill.jobs.subjects.subject import Prediction, Served

_MORE = "starting and writing the files come on top"


def plan_prediction(
    config: PredictConfig,
    subject: Prediction,
    summary: Mapping[str, Any] | None,
    placed: WorkerOptions,
    split: "Callable[[Served], tuple[PredictionSpec, tuple[list[Piece], np.ndarray]]]",
) -> int:
    """Prints the plan of the prediction. Returns the exit status, 1 if the prediction would be refused.

    `summary`: the summary of predictions that are already complete. `split`: see `graphmill.jobs.predict`.
    """
    workers = placed.most
    plan = Plan("predict", workers, config.ray.object_store_gb)
    plan.alone = placed.launcher == "process"
    model = subject.build_model()
    plan.add("data", subject.text)
    plan.add_model(model)
    if subject.estimate is not None:
        plan.add("estimate", f"{subject.estimate}, as the run was scored; so are the predictions")
    with plan.refused():
        spec, (pieces, ids) = split(subject.look())
        files = -(-len(ids) // config.shard_rows)
        plan.add("rows", f"{len(ids):,} in {files:,} Parquet files of at most {config.shard_rows:,}")
        if subject.shard_bytes is not None:  # memory by the formula
            plan.add("batches", f"the whole graph over {counted(workers, 'worker')}, once for all splits")
            plan.add_memory({"shard": subject.shard_bytes(workers)})
            plan.add("time", "not tried")
        elif subject.is_sharded:
            _add_full_graph(plan, model, spec)
        else:
            _add_batches(plan, model, spec, len(pieces))
    done = "complete already: nothing would be done" if summary is not None else "new, or the rest of what is there"
    plan.add("out", f"{config.out}, {done}")
    cluster = (
        "a local Ray"
        if config.ray.address is None
        else f"the Ray cluster at {config.ray.address}, which is not asked here"
    )
    plan.add("ray", "not started: this process is the one worker" if plan.alone else cluster)
    plan.print()
    return 1 if plan.problems else 0


def _add_full_graph(plan: Plan, model: torch.nn.Module, spec: PredictionSpec) -> None:
    """Adds one pass over the whole graph for all splits, measured in this process."""
    data = spec.data.open()
    tries, sampler = Tries(data, model), data.sampler(spec.splits[0].sampler, 1)
    tries.score(sampler, data.ids)  # the first call compiles
    tried = shared(tries.score(sampler, data.ids), plan.workers)
    plan.add("batches", f"the whole graph over {counted(plan.workers, 'worker')}, once for all splits")
    plan.add_batch(tried, "predicted")
    plan.add_memory({"weights": 4 * (plan.parameters or 0), "a pass": tried.work_bytes})
    plan.add_time(tried, 1, 0, spec.loader.threads, _MORE)


def _add_batches(plan: Plan, model: torch.nn.Module, spec: PredictionSpec, num_pieces: int) -> None:
    data = spec.data.open()
    tries, tried, counts, names = Tries(data, model), [], [], list[str]()
    batches = [(split.sampler, split.micro_batches) for split in spec.splits]
    for number, split in enumerate(spec.splits):
        if batches.index(batches[number]) < number:
            continue  # this split has the same batches as an earlier split, and both are predicted together
        names.append(
            " and ".join(
                other.name for other, same in zip(spec.splits, batches, strict=True) if same == batches[number]
            )
        )
        sampler, _ = deal_split(data, split.sampler, split.micro_batches, split.num_positions)
        counts.append(sampler.num_batches)
        tries.score(sampler, data.ids)  # the first call compiles
        tried.append(tries.score(sampler, data.ids))
    total, workers = sum(counts), plan.workers
    # Batch sizes may differ between splits: each split's measurement is weighted by its number of batches.
    mean = mean_of(tried, counts)
    by_split = ", ".join(f"{name} {count:,}" for name, count in zip(names, counts, strict=True))
    plan.add("batches", f"{total:,} ({by_split}) in {num_pieces:,} pieces for {counted(workers, 'worker')}")
    plan.add_batch(mean, "predicted")
    ahead = min(spec.loader.prefetch, max(counts) - 1) * mean.num_bytes
    plan.add_memory({"weights": 4 * (plan.parameters or 0), "batches ahead": ahead, "a pass": mean.work_bytes})
    plan.add_time(mean, -(-total // workers), 0, spec.loader.threads, _MORE)
