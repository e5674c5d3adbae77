"""A run's latest figures as Prometheus gauges: Ray exports them on the driver's node, beside its own metrics.

    ray_graphmill_epoch{run}                         epochs done, the part of the one under way included
    ray_graphmill_train_loss{run}                    of the last epoch
    ray_graphmill_valid_score{run, score}            of the last validation, by the score's name
    ray_graphmill_per_second{run, what}              roots, nodes, edges; of the last epoch
    ray_graphmill_epoch_seconds{run, part}           training, waiting, validation, checkpoints, the loader's stages; of the last epoch
    ray_graphmill_starts{run}                        starts of the workers: one, and one more after each fault

docs/grafana-board.json draws them.
"""

from collections.abc import Mapping
from typing import Any

from ray.util.metrics import Gauge

_RATES = ("roots", "nodes", "edges")


class LiveMetrics:
    """The gauges of one run."""

    def __init__(self, run: str) -> None:
        self._run, self._starts = run, 0
        self._epoch = Gauge("graphmill_epoch", "Epochs done, the part of the one under way included", ("run",))
        self._loss = Gauge("graphmill_train_loss", "Mean training loss of the last epoch", ("run",))
        self._score = Gauge("graphmill_valid_score", "Scores of the last validation", ("run", "score"))
        self._rate = Gauge("graphmill_per_second", "Throughput of the last epoch", ("run", "what"))
        self._seconds = Gauge("graphmill_epoch_seconds", "Where the last epoch's time went", ("run", "part"))
        self._start = Gauge("graphmill_starts", "Starts of the workers", ("run",))

    def update(self, record: Mapping[str, Any]) -> None:
        """Takes in what rank 0 reports."""
        run = {"run": self._run}
        kind = record["kind"]
        if kind == "start":
            self._starts += 1
            self._start.set(self._starts, run)
            self._epoch.set(record["epoch"], run)
        elif kind == "step":
            self._epoch.set(record["epoch"] + record["step"] / record["num_steps"], run)
        elif kind == "epoch":
            self._epoch.set(record["epoch"] + 1, run)
            self._loss.set(record["train_loss"], run)
            for name, value in record.items():
                if name.startswith("valid_"):
                    self._score.set(value, run | {"score": name.removeprefix("valid_")})
                elif name.removesuffix("_per_s") in _RATES and name.endswith("_per_s"):
                    self._rate.set(value, run | {"what": name.removesuffix("_per_s")})
                elif name.endswith("_s"):
                    self._seconds.set(value, run | {"part": name.removesuffix("_s")})
