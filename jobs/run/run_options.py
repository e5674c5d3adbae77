"""Options that every training job shares: how to fit, and where to run.

Plain values only: a job parses its options before it imports anything heavy, so `--help` is instant.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class FitOptions:
    """The fit."""

    epochs: int = 40
    """Passes over the training set."""

    learning_rate: float = 2e-3
    """Peak learning rate."""

    min_learning_rate: float = 0.0
    """Where the schedule ends."""

    weight_decay: float = 1e-2
    """AdamW's decay of weight matrices."""

    schedule: Literal["constant", "cosine", "linear", "poly"] = "cosine"
    """How the rate falls after the warm-up."""

    power: float = 1.0
    """Of the poly schedule: (1 - progress)^power."""

    warmup_epochs: int = 4
    """Epochs of linear warm-up."""

    warmup_steps: int | None = None
    """Optimizer steps of linear warm-up, in place of epochs."""

    accumulate: int = 1
    """Batches of every worker in one optimizer step."""

    clip_norm: float | None = 1.0
    """Largest gradient norm; None: no clipping."""

    ema_decay: float | None = None
    """Evaluate and keep a moving average of the weights with this decay, such as 0.999."""

    eval_every: int = 1
    """Epochs between validations."""

    checkpoint_every: int = 10
    """Epochs between checkpoints."""

    checkpoint_minutes: float | None = 10.0
    """The longest time without a checkpoint, within an epoch too; None: no bound."""

    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto: bfloat16 on GPUs, float32 on CPUs."""

    seed: int = 0
    """Of everything random."""


@dataclass(frozen=True)
class RunOptions:
    """The run."""

    workers: Literal["auto"] | int = "auto"
    """DDP workers; auto: one for each GPU, or 2 on CPUs."""

    min_workers: int | None = None
    """Elastic: go on with as few as this where nodes leave, and with more, up to --workers, where nodes join. Each change goes back to
    the latest end of an epoch that was saved (--checkpoint-every)."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """auto: GPUs where the cluster has any, with fewer workers than asked for where GPUs are fewer."""

    run_dir: str | None = None
    """Where the run is kept; the default is runs/<job>-<time>."""

    resume: str | None = None
    """A run's directory, to continue it; its own options are the defaults of the others."""

    address: str | None = None
    """A running Ray cluster (host:port or auto); the default starts a local Ray, or joins the job's cluster."""

    dashboard_port: int | None = None
    """Start a local Ray's dashboard on this port."""

    object_store_gb: float = 1.0
    """Shared memory of a local Ray."""

    local_reads: bool = True
    """Read partitions in process where their files lie on the worker's node; no: ask the partition's actor always."""

    server_timeout_s: float = 120.0
    """Longest wait for one answer of a partition server."""

    batch_timeout_s: float = 300.0
    """Longest wait for one batch."""

    require_baselines: bool = False
    """Exit with status 1 where the final score does not beat every baseline; without this it is a warning. Needs exact scores, no estimates."""

    track: tuple[Literal["mlflow", "wandb"], ...] = ()
    """Send configuration, epochs and scores there too; an extra each: pip install -e '.[mlflow]'."""

    track_project: str = "graphmill"
    """MLflow's experiment, W&B's project."""

    failures_per_hour: int = 3
    """Worker failures within any hour that are survived, by starting again from the latest checkpoint. Three in a row that get no further end
    the run in any case."""

    keep_checkpoints: int = 2
    """Checkpoints kept; the oldest goes first. With --min-workers the newest of an epoch's end stays beside them."""

    grace_s: float = 20.0
    """After SIGTERM: seconds to save a checkpoint before the job ends. Ctrl-C waits for it, and a second one does not."""
