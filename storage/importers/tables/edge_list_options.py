"""Options for reading an edge list. They are in a separate module, so that a command line need not load Arrow."""

from dataclasses import dataclass, fields
from typing import Literal

from graphmill.core.errors import ConfigError

COMPRESSED = ("", ".gz", ".bz2", ".zst", ".xz")
TEXT_ENDINGS = tuple(kind + packed for kind in (".csv", ".tsv", ".txt") for packed in COMPRESSED)
TABLE_ENDINGS = (".parquet", ".arrow", ".feather", *TEXT_ENDINGS)
EDGE_ENDINGS = (*TABLE_ENDINGS, ".mtx", ".mtx.gz")
ENDINGS_SAID = ".parquet, .arrow, .feather, .csv, .tsv or .txt (the last three also .gz, .bz2, .zst, .xz)"


@dataclass(frozen=True)
class EdgeListOptions:
    """Options for the files of an edge list."""

    src: str = "src"
    """Column of an edge's source."""
    dst: str = "dst"
    """Column of an edge's destination. In a file without header, source and destination are the first two columns. If the file has neither of the default
    names, a usual pair of names is used, such as `source` and `target`, or `from` and `to`."""
    weight: str | None = None
    """Column of edge weights. In a file without header, `2` is the third column. None: edges have no weights."""
    time: str | None = None
    """Column of the times of edges. Times are whole numbers, or dates, which become microseconds since 1970. None: edges have no times."""
    edge_features: tuple[str, ...] = ()
    """Columns of features of edges: columns of numbers, or in Parquet one column of lists. If edges are merged into one, their features are summed."""
    header: bool | None = None
    """Whether the first line of a text file of edges has column names. None: it does if its first two fields are not numbers."""
    node_header: bool | None = None
    """Whether the first lines of text files of nodes have column names. None: a first line does if none of its fields is a value."""
    delimiter: str | None = None
    """Delimiter, one character. None: tab, comma, semicolon or space, the first of these that the first line has. A run of spaces is one delimiter. A
    run of tabs and spaces is also one delimiter, unless `delimiter` is set or the columns have names."""
    compact_ids: bool = False
    """Give the ids that occur the numbers 0, 1, 2 … in ascending order (strings: in order of appearance), and keep the original ids. Otherwise an id is a
    row number."""
    nodes: str | None = None
    """A table of nodes (Parquet, Arrow or text). Its columns of ids, features, labels, splits and times are found by their names. The options `features`,
    `labels` … take precedence."""
    ids: str | None = None
    """File with the ids of all nodes, each once. Edges refer to nodes by these ids, which are whole numbers or strings. The file is a table (with a column of
    ids, or one column), or a `.npy` of numbers. Files of node columns without ids have their rows in the same order."""
    id_column: str | None = None
    """Column of ids in all tables of nodes. Rows are joined by these ids, and may have any order. None: a column `id`, `node`, `node_id` …, else the only
    column whose name looks like ids (`user_id`), else rows are in the order of the nodes. none: no table has ids."""
    string_ids: bool | None = None
    """Whether ids are strings; then 007 is a string, too. None: ids are strings if their type in Parquet is, or if not all of `ids` are whole numbers."""
    num_nodes: int | None = None
    """Number of nodes. None: the number of rows of features or labels, else the highest id + 1."""
    features: str | None = None
    """A `.npy` [num_nodes, dim], or a table of numbers, lists of numbers, or text, which means categories. Rows are joined by the column of ids. Without ids,
    rows are in ascending order of the nodes' ids, or in the order of `ids`. An empty number becomes the mean of the training rows, with 1 in a separate
    feature."""
    feature_columns: tuple[str, ...] = ()
    """Columns of features. Empty: all columns that have no other role."""
    categories: tuple[str, ...] = ()
    """Columns of features that hold numbers, but are categories."""
    most_categories: int = 64
    """If a column has at most this number of categories, each category becomes a feature (one-hot). Otherwise the categories are hashed to this number of
    features."""
    embedding_columns: tuple[str, ...] = ()
    """Columns of categories that become one number each. A model has a trainable row for every category (--data.category_width)."""
    features_as: str | None = None
    """A stored graph. These tables, or typed tables (.yaml), reuse its categories, means and class names, so that predictions read tables in the same way as
    training did."""
    labels: str | None = None
    """A `.npy` [num_nodes], or a table (column `label`, or the only column) of numbers or text. The sorted values of text are the classes. A node without a row
    has no label."""
    label_columns: tuple[str, ...] = ()
    """Column of labels, or several columns if each node has several labels."""
    label_kind: Literal["auto", "class", "number", "several"] = "auto"
    """Kind of labels. auto: text, truth values and whole numbers are classes, and so are floats that are whole numbers from 0 with at most 1,000 distinct
    values; other numbers are real numbers. several: every column except the ids holds yes or no."""
    splits: str | None = None
    """A `.npy` [num_nodes] or [num_nodes, sets] of codes: 0 none, 1 train, 2 valid, 3 test. Or a table with columns of these codes, of their names, or of
    masks `train_mask`, `val_mask`, `test_mask`. A node without a row is in no split."""
    split_columns: tuple[str, ...] = ()
    """Columns of splits: one column for each split set, or masks."""
    node_times: str | None = None
    """A `.npy` [num_nodes], or a table (column `time`, or the only column), with rows in the order described for `features`. If edges have no times, an
    edge gets the later of the times of its two ends."""
    time_column: str | None = None
    """Column of the nodes' times."""
    undirected_once: bool = False
    """The file gives each undirected edge once, and ingestion adds the reverse."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, tuple) and isinstance(
                value, list | str
            ):  # Python users may give one name, or a list
                object.__setattr__(self, field.name, (value,) if isinstance(value, str) else tuple(value))
        if self.num_nodes is not None and self.num_nodes < 1:
            raise ConfigError(f"num_nodes must be at least 1, got {self.num_nodes}; set --edge-list.num-nodes")
        if self.most_categories < 1:
            raise ConfigError(
                f"most_categories must be at least 1, got {self.most_categories}; set --edge-list.most-categories"
            )
        if self.features_as is not None and self.embedding_columns:
            raise ConfigError(
                "embedding_columns: they are those of the graph of features_as; leave --edge-list.embedding-columns out"
            )
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise ConfigError(f"delimiter must be one character, got {self.delimiter!r}; set --edge-list.delimiter")
        if self.compact_ids and self.num_nodes is not None:
            raise ConfigError("num_nodes is counted under compact_ids; leave one of the two out")
        if self.ids is not None and (self.compact_ids or self.num_nodes is not None):
            raise ConfigError(
                "ids says which nodes there are; leave --edge-list.compact-ids and --edge-list.num-nodes out"
            )
        if self.string_ids and self.ids is None and self.nodes is None and not self.compact_ids:
            raise ConfigError(
                "string_ids: expected a file of the nodes' ids (--edge-list.ids), or --edge-list.compact-ids to number those that occur; got neither"
            )
