"""Publishes a run's latest figures as Prometheus gauges. Ray exports the gauges on the driver's node, together with Ray's own metrics.

    ray_graphmill_epoch{run}, ray_graphmill_valid_score{run, score} …

docs/grafana-board.json is a Grafana dashboard of these gauges.
"""

from collections.abc import Mapping
from typing import Any

from ray.util.metrics import Gauge

_RATES = ("roots", "nodes", "edges")
_GAUGES: dict[str, tuple[str, str]] = {  # name: (description, a tag in addition to the run)
    "epoch": ("Epochs done, the part of the one under way included", ""),
    "train_loss": ("Mean training loss of the last epoch", ""),
    "valid_score": ("Scores of the last validation", "score"),
    "per_second": ("Throughput of the last epoch: roots, nodes, edges", "what"),
    "epoch_seconds": ("Where the last epoch's time went: training, waiting, validation, checkpoints, loading", "part"),
    "starts": ("Starts of the workers: one, and one more after each fault", ""),
}


class LiveMetrics:
    """The gauges of one run."""

    def __init__(self, run: str) -> None:
        self._run, self._starts = run, 0
        self._gauges = {
            name: Gauge(f"graphmill_{name}", description, ("run", tag) if tag else ("run",))
            for name, (description, tag) in _GAUGES.items()
        }

    def update(self, record: Mapping[str, Any]) -> None:
        """Updates the gauges from a record of rank 0."""
        kind = record["kind"]
        if kind == "start":
            self._starts += 1
            self._set("starts", self._starts)
            self._set("epoch", record["epoch"])
        elif kind == "step":
            self._set("epoch", record["epoch"] + record["step"] / record["num_steps"])
        elif kind == "epoch":
            self._set("epoch", record["epoch"] + 1)
            self._set("train_loss", record["train_loss"])
            for name, value in record.items():
                if name.startswith("valid_"):
                    self._set("valid_score", value, score=name.removeprefix("valid_"))
                elif name.removesuffix("_per_s") in _RATES and name.endswith("_per_s"):
                    self._set("per_second", value, what=name.removesuffix("_per_s"))
                elif name.endswith("_s"):
                    self._set("epoch_seconds", value, part=name.removesuffix("_s"))

    def _set(self, gauge: str, value: float, **tags: str) -> None:
        self._gauges[gauge].set(value, {"run": self._run} | tags)
