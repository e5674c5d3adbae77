"""Options of the ingestion of one graph. Needs Python alone, so that `ingest --help` is instant."""

from dataclasses import dataclass, field
from typing import Literal

from graphmill.core.option_checks import Count, Share, check_fields, check_options
from graphmill.storage.format.dtypes import FeatureDtype
from graphmill.storage.splits.split_options import TWO_SHARES, SplitOptions, are_shares

Partitioner = Literal["random", "range", "ldg", "metis"]

# A partition has up to 5 mapped files, and a process can have 65,530 mappings, libraries included (Linux's vm.max_map_count).
MAX_PARTITIONS = 10_000

NO_REVERSE = "none"  # as `LinkSplitOptions.reverse`


@dataclass(frozen=True)
class LinkSplitOptions:
    """Edges to hold out for link prediction: the stored graph has neither these edges nor their reverses."""

    valid: Share = 0.0
    """Share of the pairs of joined nodes for validation."""
    test: Share = 0.0
    """Share of the pairs for test."""
    seed: int = 0
    """Seed of the draw, which is a pure function of the seed and the pair's two nodes."""
    by_time: tuple[float, ...] = ()
    """Two shares, such as 0.8 0.9, instead of valid and test: edges after the first 80 % by time validate, edges after 90 % test."""
    relation: str | None = None
    """The relation of a typed graph whose edges are held out, as SOURCE--NAME--TARGET. None: its only relation."""
    reverse: str | None = None
    """The relation with the reverses of these edges: it loses them too, and training hides them. None: rev_NAME if it exists; none: no relation of the source."""

    def __post_init__(self) -> None:
        check_fields(self)
        rows = {"test": (self.valid + self.test < 1, "with valid less than 1")}
        drawn = self.valid + self.test > 0
        by_time = (
            not self.by_time or (are_shares(self.by_time) and not drawn),
            f"{TWO_SHARES}, without valid and test",
        )
        check_options(self, rows | {"by_time": by_time})

    @property
    def hold_out(self) -> bool:
        """Whether the options hold any edges out."""
        return self.valid + self.test > 0 or bool(self.by_time)


@dataclass(frozen=True)
class IngestOptions:
    """How a source becomes partitions."""

    num_partitions: int = 1
    partitioner: Partitioner = "random"
    """random and range: equal shares without a look at edges; ldg: streaming greedy, fewer cut edges; metis: fewest cut edges, holds the graph in memory."""
    groups: Count | None = None
    """Number of locality groups that ldg and metis find: partitions are ranges of groups, and training roots may be drawn by groups. None: 16 for each
    partition, at least 64; a small graph has one for each partition; a typed graph and a graph of one partition have none."""
    seed: int = 0
    """Seed of the partitioner; a synthetic graph has another seed."""
    undirected: bool | None = None
    """True: add every edge's reverse and merge equal edges, with summed weights and features (a self-loop counts twice), as PyG's
    `to_undirected` does; None: as the source says."""
    drop_duplicates: bool = False
    """Keep the first of several equal edges, with its weight and features."""
    drop_self_loops: bool = False
    """Leave out edges from a node to itself."""
    edge_ids: bool = False
    """Store each edge's position in the source."""
    out_edges: bool = False
    """Store lists of out-edges, too, if they differ from the in-edges; in a typed graph for relations within one type."""
    feature_dtype: FeatureDtype = "float32"
    """Type of stored and sent features. int8: a scale for each row, errors of at most 1/254 of the row's largest number. Rows of mostly zeros,
    or of zeros and ones only, are stored in less room with any type."""
    allow_nonfinite: bool = False
    """Take NaN and infinite features instead of refusing them."""
    num_classes: Count | None = None
    """Number of classes; labels outside are refused. Default: the source's number, else one more than the largest label."""
    overwrite: bool = False
    """Publish a new snapshot of the graph at the url. Old snapshots and open graphs stay until jobs/prune.py removes them."""
    memory_budget_bytes: int = 1 << 30
    """Memory for chunks and buckets, in addition to about 20 bytes per node."""
    num_threads: Count | None = None
    """Threads that group and sort edges, as far as the budget allows. Default: one per core."""
    scratch: str | None = None
    """Local directory for temporary files. Default: the graph's folder, or the system's directory if the url is remote."""
    links: LinkSplitOptions = field(default_factory=LinkSplitOptions)
    split: SplitOptions = field(default_factory=SplitOptions)

    def __post_init__(self) -> None:
        check_fields(self)
        rows = {
            "num_partitions": (1 <= self.num_partitions <= MAX_PARTITIONS, f"1 to {MAX_PARTITIONS}"),
            "memory_budget_bytes": (self.memory_budget_bytes >= 1 << 24, "at least 16 MiB"),
        }
        check_options(self, rows)
