"""`--plan` of a prediction: its batches, model and files, looked at in this process (jobs/plan/run_plan.py has the rest)."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from cluster.prediction import Piece, PredictionSpec
from jobs.plan.run_plan import (
    Line,
    Tried,
    batch_line,
    count_parameters,
    memory_line,
    model_line,
    print_plan,
    process_bytes,
    refused,
    time_line,
)
from jobs.plan.scoring_plan import try_pass
from jobs.run.predict_options import PredictConfig
from jobs.run.prediction_subject import Served, Subject

_MORE = "starting Ray and writing the files come on top"


def plan_prediction(
    config: PredictConfig,
    subject: Subject,
    summary: Mapping[str, Any] | None,
    workers: int,
    plan: "Callable[[Served], tuple[PredictionSpec, tuple[list[Piece], np.ndarray]]]",
) -> None:
    """Prints what the prediction would do. `summary`: of predictions that are complete already; `plan`: see `jobs.predict`."""
    process = process_bytes()
    problems: list[str] = []
    model = subject.build_model()
    lines: list[Line] = [("data", subject.text), model_line(model)]
    if subject.estimate is not None:
        lines.append(("estimate", f"{subject.estimate}, as the run was scored; so are the predictions"))
    with refused(problems):
        spec, (pieces, ids) = plan(subject.look())
        lines += _lines(process, config, subject, model, spec, pieces, len(ids), workers)
    done = "complete already: nothing would be done" if summary is not None else "new, or the rest of what is there"
    place = "a local Ray" if config.address is None else f"the Ray cluster at {config.address}, which is not asked here"
    lines += [("out", f"{config.out}, {done}"), ("ray", place)]
    print_plan("predict", lines, problems)


def _lines(
    process: int,
    config: PredictConfig,
    subject: Subject,
    model: torch.nn.Module,
    spec: PredictionSpec,
    pieces: list[Piece],
    num_rows: int,
    workers: int,
) -> list[Line]:
    files = -(-num_rows // config.shard_rows)
    rows = ("rows", f"{num_rows:,} in {files:,} Parquet files of at most {config.shard_rows:,}")
    if subject.shard_bytes is not None:  # workers predict the whole graph together: memory by the formula
        memory = {"process": process, "shard": subject.shard_bytes(workers)}
        return [
            rows,
            ("batches", f"the whole graph over {workers} workers, once for each of {len(spec.splits)} splits"),
            memory_line(memory, workers, 0, config.object_store_gb),
            ("time", "not tried"),
        ]
    data = spec.data.open()
    tried, counts = [], []
    for split in spec.splits:
        sampler = data.sampler(split.sampler, split.num_ranks)
        counts.append((split.name, sampler.num_batches))
        try_pass(data, sampler, model, roots=data.ids)  # compiles what is compiled
        tried.append(try_pass(data, sampler, model, roots=data.ids))
    total = sum(count for _, count in counts)
    # Splits may have batches of different sizes: each counts by the number of its batches.
    mean = _mean(tried, [count for _, count in counts])
    ahead = min(spec.loader.prefetch, max(count for _, count in counts) - 1) * mean.num_bytes
    parameters = count_parameters(model)
    memory = {"process": process, "weights": 4 * parameters, "batches ahead": ahead, "a pass": mean.work_bytes}
    said = ", ".join(f"{name} {count:,}" for name, count in counts)
    return [
        rows,
        ("batches", f"{total:,} ({said}) in {len(pieces):,} pieces for {workers} workers"),
        batch_line(mean, "predicted"),
        memory_line(memory, workers, 0, config.object_store_gb),
        time_line(mean, -(-total // workers), workers, 0, spec.loader.threads, _MORE),
    ]


def _mean(tried: list[Tried], weights: list[int]) -> Tried:
    share = np.array(weights) / sum(weights)

    def mean(name: str) -> float:
        return float(sum(part * getattr(one, name) for part, one in zip(share, tried, strict=True)))

    return Tried(
        count=sum(one.count for one in tried),
        nodes=mean("nodes"),
        edges=mean("edges"),
        roots=mean("roots"),
        num_bytes=max(one.num_bytes for one in tried),
        draw_s=mean("draw_s"),
        step_s=mean("step_s"),
        work_bytes=max(one.work_bytes for one in tried),
    )
