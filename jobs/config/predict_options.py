"""Options of a prediction."""

from dataclasses import dataclass, field
from typing import Literal

from graphmill.cluster.options import SessionOptions
from graphmill.core.option_checks import Count, Positive, Size, check_fields
from graphmill.storage.importers.tables.edge_list_options import EdgeListOptions
from graphmill.storage.molecules.smiles_options import SmilesOptions

FILE_OPTIONS = {"reverse_edges": "auto", "edge_list": EdgeListOptions(), "table": SmilesOptions()}  # for a file alone


@dataclass(frozen=True)
class PredictConfig:
    """Predict with a finished run."""

    run: str
    """The run's directory."""
    out: str
    """The folder of predictions: a path or an fsspec URL that all workers see. Absent, empty, or written by the same command before."""
    graph: str | None = None
    """The graph or set to predict; the default is the run's. Also a file of edges, of typed tables (.yaml) or of SMILES, as ingest reads it: it is stored in
    OUT/_data first, and needs no labels, targets or splits."""
    reverse_edges: Literal["auto", "add", "keep"] = "auto"
    """Reverse edges of a file of edges or typed tables, as in ingest; auto, for typed tables: as the run's graph was made."""
    other_graph: bool = False
    """Predict a graph or set other than the training's."""
    split: str = "all"
    """all, or one of: train, valid, test (or as the set names them), and none: nodes or graphs in no split."""
    embeddings: bool = False
    """Add the states that the model's head reads, if it has a head."""
    top_k: Count = 10
    """Run on links: number of best destinations of each node, without the nodes that it has an edge to."""
    relation: str | None = None
    """Run on links in a knowledge graph: the relation by which destinations are searched ("inverse of …": by which the sources are searched)."""
    parallel: Literal["auto", "data", "graph"] = "auto"
    """graph: the whole graph is one batch, its nodes spread over the workers (of geco, sage, gcn, gat, rsage; on CPUs); data: every worker has its own batches;
    auto: as the run was trained."""
    workers: Count | None = None
    """Number of workers, each with a CPU or a GPU; none: for a run scored on the full graph the run's number, at most this machine's cores; else one for each
    GPU; on CPUs one if this process predicts (see launcher), else 2."""
    launcher: Literal["auto", "process", "ray"] = "auto"
    """process: this process is the one worker, without Ray; ray: workers are Ray's actors; auto: as the run was trained, but ray if there is a cluster to join
    or the data does not fit in memory."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """auto: GPUs if the cluster has any, with fewer workers than asked for if GPUs are fewer."""
    allow_import: bool = False
    """Import and run the user's own model, sampler or task that the run names."""
    verify: bool = True
    """Check the data's checksums first."""
    shard_rows: Count = 250_000
    """Rows of one Parquet file."""
    piece_batches: Count = 32
    """Most batches of one piece: the work that each worker loses at an interruption."""
    restarts: Size = 3
    """Most restarts of a worker that died; none if the workers predict the whole graph together."""
    deadline_s: Positive = 600.0
    """Longest wait for the next finished piece of Ray's workers."""
    submission: str | None = None
    """Also write OGB's files into this folder: for pcqm4mv2 its leaderboard's files (y_pred_pcqm4m-v2_test-dev.npz, …), else y_true and y_pred of each split, as
    OGB's Evaluator takes them."""
    ogb_root: str = "data/ogb"
    """With --submission: folder of PCQM4Mv2, whose split_dict.pt has the official rows."""
    plan: bool = False
    """Print what the prediction would use, and what would be refused; start and write nothing."""
    edge_list: EdgeListOptions = field(default_factory=EdgeListOptions)
    table: SmilesOptions = field(default_factory=SmilesOptions)
    ray: SessionOptions = field(default_factory=SessionOptions)

    def __post_init__(self) -> None:
        check_fields(self)
