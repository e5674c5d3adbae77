"""Options of a prediction."""

from dataclasses import dataclass, field
from typing import Literal

from graphmill.cluster.options import SessionOptions
from graphmill.core.option_checks import Count, Positive, Size, check_fields
from graphmill.storage.importers.tables.edge_list_options import EdgeListOptions
from graphmill.storage.molecules.smiles_options import SmilesOptions

# options that apply only if `graph` is a file
FILE_OPTIONS = {"reverse_edges": "auto", "edge_list": EdgeListOptions(), "table": SmilesOptions()}


@dataclass(frozen=True)
class PredictConfig:
    """Predict with a finished run."""

    run: str
    """The run's directory."""
    out: str
    """The folder of predictions: a path or an fsspec URL that all workers can write. It must be absent, empty, or written by the same command before."""
    graph: str | None = None
    """The graph or set to predict; the default is the data of the run. This may also be a file of edges, of typed tables (.yaml) or of SMILES, in the format of
    ingest. Such a file is first stored in OUT/_data. It needs no labels, targets or splits."""
    reverse_edges: Literal["auto", "add", "keep"] = "auto"
    """Reverse edges of a file of edges or typed tables, with the values of ingest. auto, for typed tables: as in the run's graph."""
    other_graph: bool = False
    """Predict a graph or set that the run was not trained on."""
    split: str = "all"
    """Splits to predict: all, train, valid, test (or another name that the set's splits have), or none. none: nodes or graphs that are in no split."""
    embeddings: bool = False
    """Also write the states that the model's head reads, if the model has a head."""
    top_k: Count = 10
    """For a run on links: number of best destinations of each node. Nodes to which the node already has an edge are left out."""
    relation: str | None = None
    """For a run on links in a knowledge graph: the relation to search destinations for. "inverse of …" searches sources."""
    parallel: Literal["auto", "data", "graph"] = "auto"
    """Division of the work among workers. graph: the whole graph is one batch, and its nodes are divided among the workers (of geco, sage, gcn, gat, rsage;
    on CPUs). data: every worker has its own batches. auto: as the run was trained."""
    workers: Count | None = None
    """Number of workers, each with a CPU or a GPU. none: a run that was scored on the full graph uses the number of workers that the run had, limited by this
    machine's cores. Any other run uses one worker for each GPU. On CPUs it uses one worker if this process predicts (see launcher), otherwise 2."""
    launcher: Literal["auto", "process", "ray"] = "auto"
    """Place of the workers. process: this process is the only worker, without Ray. ray: workers are Ray actors. auto: as the run was trained, but ray if
    there is a cluster to join or the data does not fit in memory."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Device of the workers. auto: GPUs if the cluster has any. With fewer GPUs than requested workers, fewer workers are started."""
    allow_import: bool = False
    """Import and run the user's own model, sampler or task that the run names."""
    verify: bool = True
    """First verify the checksums of the data."""
    shard_rows: Count = 250_000
    """Number of rows in each Parquet file."""
    piece_batches: Count = 32
    """Maximum number of batches in one piece. An interruption costs each worker at most one piece of work."""
    restarts: Size = 3
    """Maximum number of restarts of a worker that died. If the workers divide the whole graph among them, no worker is restarted."""
    deadline_s: Positive = 600.0
    """Maximum wait for the next finished piece of Ray's workers."""
    submission: str | None = None
    """Also write OGB's files into this folder. For pcqm4mv2: the files of its leaderboard (y_pred_pcqm4m-v2_test-dev.npz, …). Otherwise y_true and y_pred of
    each split, in the form that OGB's Evaluator reads."""
    ogb_root: str = "data/ogb"
    """With --submission: folder of PCQM4Mv2. Its split_dict.pt lists the official rows."""
    plan: bool = False
    """Print what the prediction would use and what would be refused. Start and write nothing."""
    edge_list: EdgeListOptions = field(default_factory=EdgeListOptions)
    table: SmilesOptions = field(default_factory=SmilesOptions)
    ray: SessionOptions = field(default_factory=SessionOptions)

    def __post_init__(self) -> None:
        check_fields(self)
