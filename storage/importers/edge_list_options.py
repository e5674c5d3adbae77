"""Options for reading an edge list, apart from the reader: a command line names them without loading Arrow."""

from dataclasses import dataclass

from storage.errors import ConfigError

EDGE_ENDINGS = (".parquet", ".csv", ".csv.gz", ".txt", ".txt.gz", ".tsv", ".tsv.gz", ".mtx", ".mtx.gz")


@dataclass(frozen=True)
class EdgeListOptions:
    """How to read the files of an edge list."""

    src: str = "src"
    dst: str = "dst"
    """Columns of the edge file; where it has no header, the first two columns are meant."""
    weight: str | None = None
    """Column with edge weights (in a file without header: `2` is the third column); None: no weights."""
    time: str | None = None
    """Column with the times of edges: whole numbers, or in Parquet dates, which become microseconds since 1970; None: no times."""
    header: bool | None = None
    """Whether a text file of edges starts with column names; None: it does if its first two fields are not numbers."""
    node_header: bool | None = None
    """Whether the text files of features, labels and splits start with column names; None: they do if no field there is a value."""
    delimiter: str | None = None
    """One character; None: the first of tab, comma, semicolon and space in the first line. A run of spaces is one delimiter; so
    is a run of tabs and spaces, unless it is set or the columns have names."""
    compact_ids: bool = False
    """Number the ids that occur 0, 1, 2 … in ascending order and keep the originals; else ids are rows as they are."""
    num_nodes: int | None = None
    """None: the rows of features or labels, else the highest id + 1."""
    features: str | None = None
    """`.npy` [num_nodes, dim], Parquet (a list column, or every column a feature) or CSV (every column a feature), rows in ascending id."""
    labels: str | None = None
    """`.npy` [num_nodes], Parquet or CSV (column `label`, or the only one), rows in ascending id."""
    splits: str | None = None
    """`.npy` [num_nodes] or [num_nodes, sets] of 0 none, 1 train, 2 valid, 3 test; Parquet or CSV: such or named columns."""
    node_times: str | None = None
    """`.npy` [num_nodes], Parquet or CSV (column `time`, or the only one), rows in ascending id. Without times of edges, an edge is as old as the
    younger of its ends."""
    undirected_once: bool = False
    """The file gives each undirected edge once: ingestion adds the reverse."""

    def __post_init__(self) -> None:
        if self.num_nodes is not None and self.num_nodes < 1:
            raise ConfigError(f"num_nodes must be at least 1, got {self.num_nodes}; set --edge-list.num-nodes")
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise ConfigError(f"delimiter must be one character, got {self.delimiter!r}; set --edge-list.delimiter")
        if self.compact_ids and self.num_nodes is not None:
            raise ConfigError("num_nodes is counted under compact_ids; leave one of the two out")
