"""Options of the ingestion of one graph; needs Python alone, so that `ingest --help` is instant."""

from dataclasses import dataclass, field
from typing import Literal

from graphmill.core.option_checks import Count, Share, check_fields, check_options
from graphmill.storage.format.dtypes import FeatureDtype
from graphmill.storage.splits.split_options import TWO_SHARES, SplitOptions, are_shares

Partitioner = Literal["random", "range", "ldg", "metis"]

# A partition has up to 5 mapped files, and a process can have 65,530 mappings (Linux's vm.max_map_count), its libraries included.
MAX_PARTITIONS = 10_000

NO_REVERSE = "none"  # as `LinkSplitOptions.reverse`


@dataclass(frozen=True)
class LinkSplitOptions:
    """Edges to be held out, for link prediction: they are no edges of the stored graph, nor are their reverses."""

    valid: Share = 0.0
    """Share of the pairs of joined nodes that validate."""
    test: Share = 0.0
    """Share that test."""
    seed: int = 0
    """Which these are is a pure function of it and the pair's two nodes."""
    by_time: tuple[float, ...] = ()
    """Two shares, 0.8 0.9, in place of valid and test: the edges after the first 80 % by time validate, those after 90 % test."""
    relation: str | None = None
    """Of a typed graph: SOURCE--NAME--TARGET, whose edges are held out. None: its only relation."""
    reverse: str | None = None
    """The relation with the reverses of these edges: it loses them too, and training hides them. None: rev_NAME, where there is one; none: no relation of the source."""

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
        """Whether any edges are to be held out."""
        return self.valid + self.test > 0 or bool(self.by_time)


@dataclass(frozen=True)
class IngestOptions:
    """How a source becomes partitions."""

    num_partitions: int = 1
    partitioner: Partitioner = "random"
    """random and range: equal shares, edges unseen; ldg: streaming greedy, fewer cut edges; metis: fewest, in memory."""
    groups: Count | None = None
    """Locality groups that ldg and metis find: partitions are ranges of them, and training roots may be drawn by them. None: 16 for each
    partition, at least 64; of a graph of few nodes the partitions are the groups, and one partition has none."""
    seed: int = 0
    """Of the partitioner; a synthetic graph has a seed of its own."""
    undirected: bool | None = None
    """True: add every edge's reverse and merge equal edges, with summed weights and features (those of a self-loop count twice), as PyG's
    `to_undirected` does; None: what the source says of itself."""
    drop_duplicates: bool = False
    """Keep the first of several equal edges, with its own weight and features."""
    drop_self_loops: bool = False
    """Leave out edges from a node to itself."""
    edge_ids: bool = False
    """Store each edge's position in the source."""
    out_edges: bool = False
    """Store lists of out-edges too, where they differ from the in-edges."""
    feature_dtype: FeatureDtype = "float32"
    """How features are stored and travel. int8: a scale for each row, errors of at most 1/254 of the row's largest number. Rows of mostly zeros,
    or of zeros and ones alone, take less room by themselves, whatever the type."""
    allow_nonfinite: bool = False
    """Take NaN and infinite features instead of refusing them."""
    num_classes: Count | None = None
    """Number of classes; labels outside are refused. Default: what the source says, else one more than the largest label."""
    overwrite: bool = False
    """Publish a new snapshot of the graph at the url. The old ones stay, open graphs too, until jobs/prune.py removes them."""
    memory_budget_bytes: int = 1 << 30
    """For chunks and buckets, besides about 20 bytes per node."""
    num_threads: Count | None = None
    """Threads that group and sort edges, as far as the budget allows. Default: one per core."""
    scratch: str | None = None
    """Local directory for temporary files; default: in the graph's folder, or the system's where the url is remote."""
    links: LinkSplitOptions = field(default_factory=LinkSplitOptions)
    split: SplitOptions = field(default_factory=SplitOptions)

    def __post_init__(self) -> None:
        check_fields(self)
        rows = {
            "num_partitions": (1 <= self.num_partitions <= MAX_PARTITIONS, f"1 to {MAX_PARTITIONS}"),
            "memory_budget_bytes": (self.memory_budget_bytes >= 1 << 24, "at least 16 MiB"),
        }
        check_options(self, rows)
