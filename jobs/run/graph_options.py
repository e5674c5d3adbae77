"""Options that every job over many graphs shares: which graphs, which batches, and what the fit of graphs adds.

Plain values only: a job parses its options before it imports anything heavy, so `--help` is instant.
"""

from dataclasses import dataclass, field
from typing import Literal

from jobs.run.run_options import FitOptions, RunOptions


@dataclass(frozen=True)
class GraphSetOptions:
    """The graphs."""

    data: str | None = None
    """A prepared set's path or fsspec URL, a CSV file of SMILES and target, or nothing: the embedded molecules."""

    snapshot: int | None = None
    """Which snapshot of it; None: the newest. A run that is resumed keeps its own."""

    molecules: int = 4_000
    """Size of the embedded set."""

    target: str | None = None
    """Which of the set's targets, by name; the default is all of them."""

    data_dir: str = "data"
    """Where sets that the job prepares are kept."""


@dataclass(frozen=True)
class GraphBatchingOptions:
    """The batches."""

    batch_size: int = 64
    """Graphs per batch and worker."""

    batch_nodes: int = 0
    """Most nodes per batch and worker; 0: no bound."""

    batch_pairs: int = 0
    """Most node pairs (nodes² summed over graphs) per batch and worker; 0: no bound."""

    bucket_ratio: float | None = None
    """Largest over smallest graph that may meet in a batch; 0: any. Default: 1.2; 4 for primphormer."""

    eval_batch_size: int = 256
    """Graphs per batch and worker where splits are scored."""

    loader_threads: int = 1
    """Loading threads per worker."""

    prefetch: int = 4
    """Batches that the loader works ahead."""


@dataclass(frozen=True)
class GraphFitOptions(FitOptions):
    """The fit."""

    epochs: int = 30
    """Passes over the training set."""

    learning_rate: float = 1e-3
    """Peak learning rate."""

    warmup_epochs: int = 2
    """Epochs of linear warm-up."""

    task: Literal["regression", "binary", "classes"] = "regression"
    """What the targets are: numbers; yes and no (several at once may be asked); or one of several classes. Unknown ones are NaN."""

    loss: Literal["l1", "mse", "huber"] = "l1"
    """Of a regression, on targets standardised by the training split."""

    huber_delta: float = 1.0
    """Of the huber loss, in standard deviations."""

    metric: Literal["auto", "mae", "rmse", "rocauc", "ap", "accuracy"] = "auto"
    """What selects the best epoch and is compared with the baselines; auto: mae, rocauc for binary targets, accuracy for classes."""

    label_smoothing: float = 0.0
    """Share of the answer that is spread over all possible ones."""

    class_weights: Literal["none", "balanced"] = "none"
    """balanced: classes (or yes and no) count equally in the loss, however many graphs they have."""


@dataclass(frozen=True)
class GraphJobOptions:
    """Everything that a job over many graphs needs besides its model."""

    graphs: GraphSetOptions = field(default_factory=GraphSetOptions)
    batch: GraphBatchingOptions = field(default_factory=GraphBatchingOptions)
    fit: GraphFitOptions = field(default_factory=GraphFitOptions)
    run: RunOptions = field(default_factory=RunOptions)

    plan: bool = False
    """Print what the run would use (batches, steps, memory, time), and what would be refused; start and write nothing."""
