"""Compares what a run has taken with what `--plan` promised (`--run.promise`), and computes what the run has cost."""

from collections.abc import Mapping, Sequence
from typing import Any

from graphmill.jobs.records.run_record import Run, is_number

_NAMES = ("memory_mib", "batch_cpu_s", "whole_s")
_TEXTS = ("{:,.0f} MiB a worker", "{:.3g} s of processor time a batch", "{:,.3g} s of training and scoring")


def taken(run: Run, workers: int) -> tuple[float | None, float | None, float | None]:
    """(MiB of the largest worker's own memory, processor seconds of a step with its batch, seconds of training and scoring). None: not recorded.

    Own memory excludes pages of mapped files, which the system may take back.
    """
    own = [event.get("own_bytes") for event in run.told("memory")]
    peaks = [peak for column in own if isinstance(column, list) for peak in column if is_number(peak)]
    epochs = [epoch for epoch in run.epochs if is_number(epoch.get("cpu_s")) and is_number(epoch.get("batches"))]
    batches = sum(float(epoch["batches"]) for epoch in epochs) / workers
    batch_s = sum(float(epoch["cpu_s"]) for epoch in epochs) / batches if batches else None
    whole_s = sum(float(epoch.get("train_s", 0.0)) + float(epoch.get("eval_s", 0.0)) for epoch in run.epochs)
    return max(peaks) / 2**20 if peaks else None, batch_s, whole_s or None


def kept_promise(promise: Sequence[float], share: float, run: Run, workers: int) -> dict[str, Any]:
    """Entries of the summary: for each promised figure [promised, taken]. `share`: share of the epochs that the run has made; a run that ended early is compared
    with this share of the promised time."""
    if not promise:
        return {}
    memory, batch, whole = promise
    expected = memory, batch, whole * share
    return {
        "promise": {
            name: list(pair) for name, pair in zip(_NAMES, zip(expected, taken(run, workers), strict=True), strict=True)
        }
    }


def cost_of(price_per_hour: float, wall_s: float, run: Run) -> dict[str, float]:
    """Entries of the summary: the cost of the machines with workers, for the whole job."""
    hosts = len({rank.host for rank in run.ranks}) or 1
    return {"cost": price_per_hour * hosts * wall_s / 3600} if price_per_hour else {}


def promise_lines(summary: Mapping[str, Any]) -> list[str]:
    """Lines for the end of a run: the promised figures, the taken figures, and the cost. Empty without a promise and a price."""
    lines = []
    if pairs := summary.get("promise"):
        rows = [pairs[name] for name in _NAMES]
        promised = [text.format(expected) for text, (expected, _) in zip(_TEXTS, rows, strict=True)]
        lines.append(f"promised   {', '.join(promised)} (--plan)")
        figures = [
            "not recorded" if found is None else f"{text.format(found)} ({found / expected - 1:+.0%})"
            for text, (expected, found) in zip(_TEXTS, rows, strict=True)
        ]
        lines.append(f"taken      {', '.join(figures)}")
    if "cost" in summary:
        lines.append(f"cost       {summary['cost']:,.2f}")
    return lines
