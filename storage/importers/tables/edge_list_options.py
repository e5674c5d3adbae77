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
    """Column of an edge's destination. Without header, source and destination are the first two columns; with other names, a usual pair such as `source`, `target` or `from`, `to`."""
    weight: str | None = None
    """Column with edge weights (in a file without header `2` is the third column); None: no weights."""
    time: str | None = None
    """Column with the times of edges: whole numbers, or dates, which become microseconds since 1970; None: no times."""
    edge_features: tuple[str, ...] = ()
    """Columns with features of edges: numbers, or in Parquet one column of lists. Edges that are merged into one have their features summed."""
    header: bool | None = None
    """Whether a text file of edges starts with column names; None: it does if its first two fields are not numbers."""
    node_header: bool | None = None
    """Whether text files of node columns start with column names; None: they do if no field in the first line is a value."""
    delimiter: str | None = None
    """Delimiter, one character; None: the first of tab, comma, semicolon and space in the first line. A run of spaces is one delimiter, and so
    is a run of tabs and spaces, unless `delimiter` is set or the columns have names."""
    compact_ids: bool = False
    """Number the ids that occur 0, 1, 2 … in ascending order (strings in order of appearance) and keep the originals; otherwise ids are rows."""
    nodes: str | None = None
    """One table of nodes (Parquet, Arrow or text), whose columns are recognised by name: ids, features, label, split and time. The options `features`, `labels` … take precedence."""
    ids: str | None = None
    """File of the ids by which edges name nodes, whole numbers or strings, each once: a table (the column of ids, or the only column), or `.npy` for numbers. Files of node columns without ids have the same rows."""
    id_column: str | None = None
    """Column of ids in all tables of nodes, by which their rows are joined, in any order. None: a column `id`, `node`, `node_id` …, else the only column that looks like ids (`user_id`), else rows are taken as they come; none: no table has ids."""
    string_ids: bool | None = None
    """Whether ids are strings, 007 too; None: they are if Parquet says so, or if not all of `ids` are whole numbers."""
    num_nodes: int | None = None
    """Number of nodes; None: the rows of features or labels, else the highest id + 1."""
    features: str | None = None
    """`.npy` [num_nodes, dim], or a table of numbers, lists of numbers, or text, which is categories. Rows are joined by the column of ids, else they are in the order of ascending id, or as in `ids`. An empty number becomes the mean of the training rows, and 1 in a separate feature."""
    feature_columns: tuple[str, ...] = ()
    """Columns of features; empty: all columns that have no other role."""
    categories: tuple[str, ...] = ()
    """Columns of features that are categories although they hold numbers."""
    most_categories: int = 64
    """A column of up to so many categories becomes a feature for each (one-hot); more categories are hashed to so many features."""
    embedding_columns: tuple[str, ...] = ()
    """Columns of categories that become one number each; a model has a trainable row for every category (--data.category_width)."""
    features_as: str | None = None
    """A stored graph whose categories, means and class names these tables reuse, so that predictions read tables as training did. Also for typed tables (.yaml)."""
    labels: str | None = None
    """`.npy` [num_nodes], or a table (column `label`, or the only one) of numbers or text, whose sorted values are the classes. A node without a row has no label."""
    label_columns: tuple[str, ...] = ()
    """Columns of labels: one, or several for several labels of each node."""
    label_kind: Literal["auto", "class", "number", "several"] = "auto"
    """Kind of labels. auto: text, truth values and whole numbers are classes (at most 1,000 different whole floats from 0, too), other numbers are real numbers; several: yes or no in every column except the ids."""
    splits: str | None = None
    """`.npy` [num_nodes] or [num_nodes, sets] of codes 0 none, 1 train, 2 valid, 3 test; or a table with columns of such codes, of names, or masks `train_mask`, `val_mask`, `test_mask`. A node without a row is in no split."""
    split_columns: tuple[str, ...] = ()
    """Columns of splits, one for each set, or masks."""
    node_times: str | None = None
    """`.npy` [num_nodes], or a table (column `time`, or the only one), rows as in `features`. Without times of edges, an edge is as old as the
    younger of its ends."""
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
