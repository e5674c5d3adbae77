"""Options that every node-classification job shares: which graph, which batches, how to fit, where to run.

Plain values only: a job parses its options before it imports anything heavy, so `--help` is instant.
"""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class GraphOptions:
    """The graph."""

    graph: str | None = None
    """A prepared graph's path or fsspec URL, an OGB node set such as ogbn-products, or nothing: the embedded synthetic graph."""

    nodes: int = 20_000
    """Size of the embedded synthetic graph."""

    graph_seed: int = 0
    """Seed of the embedded synthetic graph and of the partitioner; --seed is the training's."""

    partitions: int = 2
    """Partitions of a graph that the job prepares itself."""

    partitioner: Literal["random", "range", "ldg", "metis"] = "ldg"
    """How a graph that the job prepares itself is partitioned."""

    data_dir: str = "data"
    """Where prepared graphs are kept, and where OGB's raw files are looked for."""

    split_set: int = 0
    """Which of the graph's splits, where it has several."""

    verify: bool = True
    """Check the graph's checksums before training."""


@dataclass(frozen=True)
class BatchOptions:
    """The batches."""

    sampler: Literal["random-partition", "neighbor"] = "random-partition"
    """random-partition: induced subgraphs of a fresh random cut each epoch; neighbor: roots with sampled neighborhoods."""

    chunks: int = 4
    """random-partition: chunks per epoch; 1 is the whole graph as one batch."""

    fanouts: tuple[int, ...] = (15, 10, 5)
    """neighbor: in-neighbors per hop, -1 for all."""

    batch_size: int = 1024
    """neighbor: roots per batch and worker."""

    edges: Literal["sampled", "induced"] = "sampled"
    """neighbor: keep the sampled edges, or all edges among the nodes found."""

    evaluation: Literal["full", "sampled"] = "full"
    """Score splits on the whole graph, or through the neighbor sampler."""

    eval_chunks: int = 1
    """full evaluation: chunks, where the whole graph does not fit as one batch."""

    loader_threads: int = 1
    """Sampling threads per worker."""

    prefetch: int = 2
    """Batches that the loader works ahead."""


@dataclass(frozen=True)
class FitOptions:
    """The fit."""

    epochs: int = 40
    """Passes over the training roots."""

    learning_rate: float = 2e-3
    """Peak learning rate."""

    weight_decay: float = 1e-2
    """AdamW's decay of weight matrices."""

    schedule: Literal["constant", "cosine", "linear"] = "cosine"
    """How the rate falls after the warm-up."""

    warmup_epochs: int = 4
    """Epochs of linear warm-up."""

    clip_norm: float | None = 1.0
    """Largest gradient norm; none: no clipping."""

    label_smoothing: float = 0.1
    """Share of the target spread over all classes."""

    metric: Literal["accuracy", "rocauc"] = "accuracy"
    """What selects the best epoch and is compared with the baselines."""

    eval_every: int = 1
    """Epochs between validations."""

    checkpoint_every: int = 10
    """Epochs between checkpoints."""

    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto: bfloat16 on GPUs, float32 on CPUs."""

    seed: int = 0
    """Of everything random."""


@dataclass(frozen=True)
class RunOptions:
    """The run."""

    workers: int = 2
    """DDP workers."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """auto: GPUs where the cluster has one per worker."""

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

    server_timeout_s: float = 60.0
    """Longest wait for one answer of a partition server."""

    batch_timeout_s: float = 300.0
    """Longest wait for one batch."""

    max_failures: int = 3
    """Worker failures survived by restarting from the latest checkpoint."""


@dataclass(frozen=True)
class NodeJobOptions:
    """Everything that a node-classification job needs besides its model."""

    graph: GraphOptions = field(default_factory=GraphOptions)
    batch: BatchOptions = field(default_factory=BatchOptions)
    fit: FitOptions = field(default_factory=FitOptions)
    run: RunOptions = field(default_factory=RunOptions)
