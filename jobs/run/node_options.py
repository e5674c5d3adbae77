"""Options that every node-classification job shares: which graph, which batches, and what the fit of nodes adds.

Plain values only: a job parses its options before it imports anything heavy, so `--help` is instant.
"""

from dataclasses import dataclass, field
from typing import Literal

from jobs.run.run_options import FitOptions, RunOptions


@dataclass(frozen=True)
class GraphOptions:
    """The graph."""

    graph: str | None = None
    """A prepared graph's path or fsspec URL, an OGB node set such as ogbn-products, or nothing: the embedded synthetic graph."""

    snapshot: int | None = None
    """Which snapshot of it; None: the newest. A run that is resumed keeps its own."""

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

    directed: bool = False
    """An OGB set whose edges have a direction (ogbn-arxiv): keep it; otherwise each edge gets its reverse, as in the literature."""

    split_set: int = 0
    """Which of the graph's splits, where it has several."""

    verify: bool = True
    """Check the graph's checksums before training."""


@dataclass(frozen=True)
class BatchOptions:
    """The batches."""

    sampler: Literal["random-partition", "neighbor", "node2subgraph"] = "random-partition"
    """random-partition: induced subgraphs of the chunks of a cut; neighbor: roots with sampled neighborhoods;
    node2subgraph: a breadth-first subgraph around each root."""

    chunks: int | None = None
    """random-partition: chunks per epoch; 1 is the whole graph as one batch. None: 4, or all partitions with --cut partitions."""

    chunks_per_batch: int = 1
    """random-partition: chunks whose union, edges between them included, is a batch."""

    cut: Literal["random", "partitions"] = "random"
    """random-partition: a fresh random cut each epoch, or the graph's partitions as chunks (ClusterGCN; see --partitioner metis)."""

    fanouts: tuple[int, ...] = (15, 10, 5)
    """neighbor: in-neighbors per hop, -1 for all."""

    batch_size: int = 1024
    """neighbor, node2subgraph: roots per batch and worker."""

    max_hops: int = 10
    """node2subgraph: layers around a root."""

    max_nodes: int = 100
    """node2subgraph: nodes of a subgraph at most."""

    fixed_subgraphs: bool = False
    """node2subgraph: the same subgraphs in every epoch."""

    edges: Literal["sampled", "induced"] = "sampled"
    """neighbor: keep the sampled edges, or all edges among the nodes found."""

    evaluation: Literal["full", "sampled"] = "full"
    """Score splits on the whole graph, or through the sampler of roots."""

    eval_chunks: int = 1
    """full evaluation: chunks, where the whole graph does not fit as one batch. Edges between chunks are left out: scores are estimates."""

    select_by: Literal["exact", "estimate"] = "exact"
    """What the kept weights are chosen by: exact: the best validation score, or where scores are estimates the last epoch;
    estimate: the best estimated validation score."""

    loader_threads: int = 1
    """Sampling threads per worker."""

    prefetch: int = 2
    """Batches that the loader works ahead."""

    @property
    def estimate(self) -> str | None:
        """Why scores are estimates; None: they are exact for what the sampler asks."""
        if self.evaluation != "full" or self.eval_chunks <= 1:
            return None
        return f"each split is scored in {self.eval_chunks} chunks, without the edges between them (--eval-chunks)"

    @property
    def keeps_best(self) -> bool:
        """Whether the weights of the best validation are kept, and not the last epoch's."""
        return self.estimate is None or self.select_by == "estimate"

    @property
    def kept(self) -> str:
        """Which weights a run keeps whose scores are estimates."""
        if self.keeps_best:
            return "the epoch with the best estimate is kept (--select-by estimate)"
        return "the last epoch is kept (--select-by estimate keeps the one with the best estimate)"


@dataclass(frozen=True)
class NodeFitOptions(FitOptions):
    """The fit."""

    label_smoothing: float = 0.1
    """Share of the target spread over all classes."""

    class_weights: Literal["none", "balanced"] = "none"
    """balanced: classes count equally in the loss, however many nodes they have."""

    metric: Literal["accuracy", "rocauc"] = "accuracy"
    """What selects the best epoch and is compared with the baselines."""


@dataclass(frozen=True)
class NodeJobOptions:
    """Everything that a node-classification job needs besides its model."""

    graph: GraphOptions = field(default_factory=GraphOptions)
    batch: BatchOptions = field(default_factory=BatchOptions)
    fit: NodeFitOptions = field(default_factory=NodeFitOptions)
    run: RunOptions = field(default_factory=RunOptions)

    plan: bool = False
    """Print what the run would use (batches, steps, memory, time), and what would be refused; start and write nothing."""
