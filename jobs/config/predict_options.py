"""What a prediction is told."""

from dataclasses import dataclass, field
from typing import Literal

from graphmill.cluster.options import SessionOptions
from graphmill.core.option_checks import Count, Positive, Size, check_fields
from graphmill.storage.importers.tables.edge_list_options import EdgeListOptions
from graphmill.storage.molecules.smiles_options import SmilesOptions

FILE_OPTIONS = {"reverse_edges": "auto", "edge_list": EdgeListOptions(), "table": SmilesOptions()}  # of a file alone


@dataclass(frozen=True)
class PredictConfig:
    """Predict with a finished run."""

    run: str
    """The run's directory."""
    out: str
    """The folder of predictions: a path or an fsspec URL that all workers see. Absent, empty, or of the same command before."""
    graph: str | None = None
    """Where the graph or set lies; the default is where the run had it. Also a file, as ingest reads it, of edges, of typed tables (.yaml) or of SMILES: it is stored in OUT/_data first,
    and needs no labels, targets or splits."""
    reverse_edges: Literal["auto", "add", "keep"] = "auto"
    """Of a file of edges or typed tables, as in ingest; auto, of typed tables: as the run's graph was made."""
    other_graph: bool = False
    """Predict a graph or set that is not the one of the training."""
    split: str = "all"
    """all, or one of: train, valid, test (or as the set names them), and none: what is in no split."""
    embeddings: bool = False
    """Add the states that the model's head reads, where it has one."""
    top_k: Count = 10
    """Of a run on links: the best destinations of each node, without those that it has an edge to."""
    relation: str | None = None
    """Of a run on links in a knowledge graph: the relation by which destinations are to be found ("inverse of …": by which nodes are found that end here)."""
    parallel: Literal["auto", "data", "graph"] = "auto"
    """graph: the whole graph is one batch, its nodes spread over the workers (of geco, sage, gcn, gat; on CPUs); data: every worker has its own batches;
    auto: as the run was trained."""
    workers: Count | None = None
    """Each with a CPU, or with a GPU; none: of a run scored on the full graph as many as it had, at most this machine's cores; else one for each
    GPU; on CPUs one where this process predicts (see launcher), else 2."""
    launcher: Literal["auto", "process", "ray"] = "auto"
    """process: this process is the one worker, without Ray; ray: workers are Ray's actors; auto: as the run was trained, but ray where a cluster is
    there to be joined or the data does not fit in memory."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """auto: GPUs where the cluster has any, with fewer workers than asked for where GPUs are fewer."""
    allow_import: bool = False
    """Import and run the model, sampler or task of its own that the run names, if it names one."""
    verify: bool = True
    """Check the data's checksums first."""
    shard_rows: Count = 250_000
    """Rows of one Parquet file."""
    piece_batches: Count = 32
    """Batches of one piece at most: what an interruption costs each worker."""
    restarts: Size = 3
    """How often a worker that died is started again; none where they predict the whole graph together."""
    deadline_s: Positive = 600.0
    """Longest wait for the next finished piece of Ray's workers."""
    submission: str | None = None
    """Also write OGB's files into this folder: of pcqm4mv2 those of its leaderboard (y_pred_pcqm4m-v2_test-dev.npz, …), else y_true and y_pred of each
    split, as OGB's Evaluator takes them."""
    ogb_root: str = "data/ogb"
    """With --submission: where PCQM4Mv2 lies, whose split_dict.pt has the official rows."""
    plan: bool = False
    """Print what the prediction would use, and what would be refused; start and write nothing."""
    edge_list: EdgeListOptions = field(default_factory=EdgeListOptions)
    table: SmilesOptions = field(default_factory=SmilesOptions)
    ray: SessionOptions = field(default_factory=SessionOptions)

    def __post_init__(self) -> None:
        check_fields(self)
