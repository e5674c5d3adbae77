"""Options for the ingestion of one graph. Imports only the standard library, so that `ingest --help` is instant."""

from dataclasses import dataclass, field
from typing import Literal

from graphmill.core.option_checks import Count, Share, check_fields, check_options
from graphmill.storage.format.dtypes import FeatureDtype
from graphmill.storage.splits.split_options import TWO_SHARES, SplitOptions, are_shares

Partitioner = Literal["random", "range", "ldg", "metis"]

# A partition has up to 5 mapped files. Linux limits a process to 65,530 mappings, including those of libraries (vm.max_map_count).
MAX_PARTITIONS = 10_000

NO_REVERSE = "none"  # a value of `LinkSplitOptions.reverse`


@dataclass(frozen=True)
class LinkSplitOptions:
    """Options of the edges that are held out for link prediction. The stored graph has neither these edges nor their reverses."""

    valid: Share = 0.0
    """Share of the pairs of connected nodes that is held out for validation."""
    test: Share = 0.0
    """Share of the pairs of connected nodes that is held out for test."""
    seed: int = 0
    """Seed of the draw. Whether a pair is held out depends only on the seed and the pair's two nodes."""
    by_time: tuple[float, ...] = ()
    """Two shares, which replace valid and test. With 0.8 0.9, the first 80 % of the edges in order of time are for training, the next 10 % for validation, and
    the rest for test."""
    relation: str | None = None
    """In a typed graph, the relation whose edges are held out, written as SOURCE--NAME--TARGET. None: the only relation."""
    reverse: str | None = None
    """The relation that has the reverses of these edges. The reverses of held-out edges are removed from this relation, and a batch passes no message along the
    reverses of its links. None: rev_NAME, if it exists. none: no relation has reverses."""

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
    """Options for turning a source into partitions."""

    num_partitions: int = 1
    partitioner: Partitioner = "random"
    """Partitioner. random and range: equal shares, without reading edges. ldg: a streaming greedy method that cuts fewer edges. metis: cuts the fewest edges,
    but needs the graph in memory."""
    groups: Count | None = None
    """Number of locality groups that ldg and metis find. A partition is a range of groups, and training roots may be drawn by groups. None: 16 groups for each
    partition, at least 64; in a small graph, one group for each partition; in a typed graph or with one partition, no groups."""
    seed: int = 0
    """Seed of the partitioner. The seed of a synthetic graph is another option."""
    undirected: bool | None = None
    """True: add every edge's reverse, and merge equal edges into one with the sum of their weights and features (a self-loop counts twice), like PyG's
    `to_undirected`. None: the source decides."""
    drop_duplicates: bool = False
    """Keep only the first of several equal edges, with the weight and features of the first edge."""
    drop_self_loops: bool = False
    """Leave out edges from a node to itself."""
    edge_ids: bool = False
    """Store each edge's position in the source."""
    out_edges: bool = False
    """Also store lists of out-edges, if they differ from the lists of in-edges. In a typed graph, only for relations within one type."""
    feature_dtype: FeatureDtype = "float32"
    """Number type of stored and sent features. int8: each row has a scale, and the error of a number is at most 1/254 of the row's largest number. With any
    type, rows that are mostly zeros, or only zeros and ones, take less space."""
    allow_nonfinite: bool = False
    """Accept NaN and infinite features instead of refusing them."""
    num_classes: Count | None = None
    """Number of classes. Labels must be lower than this number. Default: the number that the source gives, else the largest label plus one."""
    overwrite: bool = False
    """Publish a new snapshot of the graph at the url. Old snapshots and open graphs stay until jobs/prune.py removes them."""
    memory_budget_bytes: int = 1 << 30
    """Memory for chunks and buckets. Ingestion needs about 20 bytes per node in addition."""
    num_threads: Count | None = None
    """Number of threads that group and sort edges. If the memory budget is too small for them, fewer are used. Default: one per core."""
    scratch: str | None = None
    """Local directory for temporary files. Default: the graph's folder, or the system's temporary directory if the url is remote."""
    links: LinkSplitOptions = field(default_factory=LinkSplitOptions)
    split: SplitOptions = field(default_factory=SplitOptions)

    def __post_init__(self) -> None:
        check_fields(self)
        rows = {
            "num_partitions": (1 <= self.num_partitions <= MAX_PARTITIONS, f"1 to {MAX_PARTITIONS}"),
            "memory_budget_bytes": (self.memory_budget_bytes >= 1 << 24, "at least 16 MiB"),
        }
        check_options(self, rows)
