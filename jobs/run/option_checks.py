"""What is wrong with options, found before anything is prepared or started; each message names the option as it is typed.

What only the graph can tell (a split, a number of classes) is checked when it is open. The parts that are configured check themselves
too, under their own names: here a user is told which option to set.
"""

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.run.run_options import FitOptions, RunOptions
from jobs.run.trackers import check_trackers
from storage.errors import ConfigError

if TYPE_CHECKING:
    from jobs.run.graph_options import GraphFitOptions

_MIN_OBJECT_STORE_GB = 80 / 1024  # Ray refuses less than 75 MB


def check_training_options(fit: FitOptions, run: RunOptions, batch: Any) -> None:
    """Raises ConfigError where a training job's options cannot work, whatever its data."""
    for options, name, least in (
        (run, "failures_per_hour", 0),
        (batch, "loader_threads", 1),
        (batch, "prefetch", 1),
        (fit, "warmup_epochs", 0),
        (fit, "warmup_steps", 0),
        (fit, "weight_decay", 0),
    ):
        at_least(options, name, least)
    check_trackers(run.track)
    more_than_0(run, "server_timeout_s")
    more_than_0(run, "batch_timeout_s")
    check_object_store(run.object_store_gb)
    if run.dashboard_port is not None and not 1 <= run.dashboard_port <= 65535:
        raise ConfigError(f"dashboard_port: expected 1 to 65535, got {run.dashboard_port}; set --dashboard-port")
    smoothing = getattr(fit, "label_smoothing", 0.0)
    if not 0 <= smoothing < 1:
        raise ConfigError(
            f"label_smoothing: expected 0 or more and less than 1, got {smoothing}; set --label-smoothing"
        )
    if run.address is not None and "://" in run.address:
        raise ConfigError(
            f"address: expected a cluster's host:port, or auto, got {run.address}; a URL is for `ray job submit --address {run.address}`"
        )
    if "://" in (run.run_dir or run.resume or ""):
        raise ConfigError(
            f"run_dir: expected a path that all nodes write, got the URL {run.run_dir or run.resume}; set --run-dir"
        )
    if run.run_dir is not None and run.resume is None:
        check_writable(Path(run.run_dir), "--run-dir")


def check_graph_fit(fit: "GraphFitOptions") -> None:
    """Raises ConfigError where the task, the loss and the metric of many graphs do not go together."""
    known = {"regression": ("mae", "rmse"), "binary": ("rocauc", "ap"), "classes": ("accuracy", "rocauc")}[fit.task]
    if fit.metric not in ("auto", *known):
        raise ConfigError(
            f"metric: expected auto, {' or '.join(known)} for --task {fit.task}, got {fit.metric}; set --metric or --task"
        )
    more_than_0(fit, "huber_delta")


def check_object_store(gigabytes: float) -> None:
    """Raises ConfigError for less shared memory than a local Ray starts with."""
    if not (math.isfinite(gigabytes) and gigabytes >= _MIN_OBJECT_STORE_GB):
        raise ConfigError(f"object_store_gb: expected at least 0.08, got {gigabytes}; set --object-store-gb")


def check_fanouts(fanouts: tuple[int, ...]) -> None:
    """Raises ConfigError for a hop that would find no neighbor."""
    if not all(fanout > 0 or fanout == -1 for fanout in fanouts):
        raise ConfigError(
            f"fanouts: expected at least 1 per hop, or -1 for all neighbors, got {fanouts}; set --fanouts"
        )


def check_writable(folder: Path, option: str) -> None:
    """Raises ConfigError where a folder, which need not exist, cannot be made or written; makes nothing."""
    existing = existing_part(folder)
    if not existing.is_dir():
        raise ConfigError(f"{folder}: expected a folder, {existing} is a file; set {option}")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"{folder}: expected a folder that can be written, {existing} cannot; set {option}")


def existing_part(path: Path) -> Path:
    """The path, or the nearest of the folders above it that is there."""
    existing = path.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    return existing


def check_device(device: str) -> None:
    """Raises ConfigError for a device that torch does not know or have."""
    import torch

    try:
        known = torch.device(device)
    except RuntimeError:
        raise ConfigError(f"device: expected cpu or cuda, got {device!r}; set --device cpu") from None
    if known.type == "cuda" and (known.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device: {device} is not there, PyTorch sees {torch.cuda.device_count()}; set --device cpu")
    if known.type not in ("cpu", "cuda"):
        raise ConfigError(f"device: expected cpu or cuda, got {device!r}; set --device cpu")


def at_least(options: Any, name: str, least: float) -> None:
    """Raises ConfigError where an option that is set is less than `least`."""
    value = getattr(options, name)
    if value is not None and not value >= least:
        raise ConfigError(f"{name}: expected at least {least}, got {value}; set {flag(name)}")


def all_at_least_1(options: Any, name: str) -> None:
    """Raises ConfigError where a list of numbers is empty, or has one below 1."""
    values = getattr(options, name)
    if not values or not min(values) >= 1:
        raise ConfigError(f"{name}: expected numbers of at least 1, got {values}; set {flag(name)}")


def more_than_0(options: Any, name: str) -> None:
    """Raises ConfigError where an option is not a number above 0."""
    value = getattr(options, name)
    if not value > 0:
        raise ConfigError(f"{name}: expected more than 0, got {value}; set {flag(name)}")


def flag(name: str) -> str:
    """The option of a field: `grace_s` is set by --grace-s."""
    return "--" + name.replace("_", "-")
