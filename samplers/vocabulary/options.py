"""Options of every sampler and of the loader. A user sets all fields except the fields in GIVEN, which the run fills in."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from graphmill.core import option_checks
from graphmill.core.errors import ConfigError
from graphmill.core.option_checks import Positive, check_options
from graphmill.samplers.vocabulary.messages import EdgeColumn, Scheme, WalkDirection
from graphmill.storage.format.encoding_names import check_encoding_names
from graphmill.storage.format.source import SPLIT_NONE, SPLIT_TEST, SPLIT_TRAIN, SPLITS, Relation

RootOrder = Literal["shuffled", "groups"]


def _repr_of(options: Any, unset: Mapping[str, Any], after: Mapping[str, tuple[str, ...]]) -> str:
    """The repr in the form of earlier versions, because a resumed run compares it. Inherited fields follow the own fields that `after` names.

    Fields that were added later are left out while they have the values of `unset`.
    """
    names, moved = [each.name for each in fields(options)], {name for group in after.values() for name in group}
    order = [name for own in names if own not in moved for name in (own, *after.get(own, ()))]
    values = [(name, getattr(options, name)) for name in order]
    content = ", ".join(f"{name}={value!r}" for name, value in values if name not in unset or value != unset[name])
    return f"{type(options).__name__}({content})"


def check_fields(options: Any, **least: float) -> None:
    """Raises ConfigError if a field has the wrong type, is smaller than its value in `least`, or names an encoding that cannot exist."""
    option_checks.check_fields(options, **least)
    check_encoding_names(getattr(options, "encodings", ()))


@dataclass(frozen=True, kw_only=True, repr=False)
class SamplerOptions:
    """Fields of every sampler that draws from one graph; the run fills them in."""

    GIVEN: ClassVar[tuple[str, ...]] = ("seed", "split_set", "shuffle", "encodings", "root_type")
    UNSET: ClassVar[Mapping[str, Any]] = {"root_type": None}  # `_repr_of`
    AFTER: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    seed: int = 0
    split_set: int = 0
    shuffle: bool = True
    """False: the same batches in every epoch; roots that are divided into batches ascend in permanent id."""
    encodings: tuple[str, ...] = ()
    """Stored encodings of the nodes (graphmill.storage.format.encodings), by name."""
    root_type: str | None = None
    """Type of the roots in a typed graph. None: the only type that has labels."""

    def __repr__(self) -> str:
        return _repr_of(self, self.UNSET, self.AFTER)


@dataclass(frozen=True, kw_only=True, repr=False)
class RootOptions(SamplerOptions):
    """Fields of every sampler whose roots are the nodes of one split."""

    GIVEN: ClassVar[tuple[str, ...]] = (*SamplerOptions.GIVEN, "root_split")
    root_split: int | None = SPLIT_TRAIN
    """Split code of the roots. None: all nodes. In a graph without splits all nodes are training nodes."""


_OF_ROOTS = ("seed", "split_set", "root_split", "shuffle")


@dataclass(frozen=True, repr=False)
class NeighborOptions(RootOptions):
    """Division of roots into batches."""

    UNSET: ClassVar = {"relation_fanouts": {}, "root_type": None}
    AFTER: ClassVar = {"edges": _OF_ROOTS, "features": ("encodings",), "relation_fanouts": ("root_type",)}
    fanouts: tuple[int, ...] = (15, 10, 5)
    """Neighbors per hop, for each relation; -1: all."""
    batch_size: int = 1024
    """Roots per batch."""
    root_order: RootOrder = "shuffled"
    """shuffled: a micro-batch has roots from the whole graph. groups: each micro-batch of a step has roots from its own share of the graph's locality groups,
    shuffled. Most of the rows that the micro-batch needs are then on one host."""
    edges: Literal["sampled", "induced"] = "sampled"
    """sampled: the edges that are drawn. induced: all edges among the nodes of the batch."""
    direction: WalkDirection = "in"
    """Neighbors of a node: the sources of its in-edges, the ends of its out-edges, or both. In a typed graph a relation's out-edges are the in-edges of its
    reverse."""
    scheme: Scheme = "uniform"
    """Method of drawing neighbors: uniform; by edge weight; by the neighbor's in-degree (at least 1); the last, most recent edges; or LABOR-0
    (arXiv:2210.13339): one coin per neighbor and hop. All nodes of the frontier share the coin, so they draw the same neighbors, and fanouts are expectations.
    In a graph of several relations, a relation without weights (or times) is drawn from uniformly."""
    time: Literal["all", "until", "before"] = "all"
    """all: edges of all times. until: at every hop, edges no later than the root's time (PyG's temporal sampling). before: edges earlier than the root's time.
    A node that is reached from roots of two times is in the batch twice. In a graph of several relations, all edges of a relation without times are used."""
    as_of: int | None = None
    """With time: one time for all roots. None: each root's own time, from the node table or its link."""
    recency_dim: int = 0
    """With time: number of cosines that are appended to each node's features. They encode the age of the newest edge by which the batch reaches the node, at
    the time of the node's root (graphmill.samplers.batches.recency)."""
    recency_unit: Positive = 1.0
    """The length of time that counts as 1 in these cosines: 86400 turns seconds into days. 16 cosines distinguish 1 to about 500 units, 100 cosines distinguish
    1 to about 10^10."""
    batch_dependency: int = 1
    """With scheme labor: number of consecutive steps that share their coins, and therefore most of their nodes (arXiv:2310.12403). The distribution of a single
    step is the same as with 1."""
    layer_dependency: bool = False
    """With scheme labor: all hops of a batch share their coins."""
    replace: bool = False
    """Draw each of the `fanout` neighbors independently, so that a neighbor may be drawn more than once."""
    edge_columns: tuple[EdgeColumn, ...] = ()
    """Columns of edges in the batch: "id", "weight", "time", "feature"; in a graph of several relations, for the relations that store them."""
    features: bool = True
    """Fetch node features."""
    relation_fanouts: Mapping[Relation, tuple[int, ...]] = field(default_factory=dict, hash=False)
    """In a typed graph, fanouts for single relations that replace `fanouts`, written as author--writes--paper=5,0. A 0 leaves the relation out of a hop."""

    def __post_init__(self) -> None:
        check_fields(self, batch_size=1, batch_dependency=1, recency_dim=0)
        if self.recency_dim and self.time == "all":
            raise ConfigError(
                f"recency_dim: expected time until or before beside it, got all and {self.recency_dim}; set --sampler.time"
            )
        if self.time == "all" and self.as_of is not None:
            raise ConfigError(
                f"as_of: expected time until or before beside it, got all and {self.as_of}; set --sampler.time"
            )
        if self.time != "all" and (self.edges == "induced" or self.scheme == "degree"):
            refused = "edges 'induced'" if self.edges == "induced" else "scheme 'degree'"
            raise ConfigError(
                f"time: expected sampled edges by another scheme than degree, for {refused} would look at edges of all times, got {self.time!r}; set time"
            )
        if self.scheme != "labor" and (self.batch_dependency > 1 or self.layer_dependency):
            raise ConfigError(
                f"batch_dependency and layer_dependency: expected them with scheme 'labor' alone, got {self.scheme!r}; set scheme"
            )
        by_relation = sorted((Relation.of(name), tuple(counts)) for name, counts in self.relation_fanouts.items())
        object.__setattr__(self, "relation_fanouts", dict(by_relation))
        for name, counts in (("fanouts", self.fanouts), *((str(each), own) for each, own in by_relation)):
            if not counts or any(count < -1 for count in counts):
                raise ConfigError(f"{name}: expected one count >= 0 (or -1: all) per hop, got {counts}; set fanouts")
            if len(counts) != len(self.fanouts):
                raise ConfigError(
                    f"{name}: expected as many hops as fanouts has, {len(self.fanouts)}, got {counts}; set relation_fanouts"
                )
            if self.replace and (self.scheme in ("labor", "last") or -1 in counts):
                raise ConfigError(
                    f"replace: expected a scheme other than 'labor' and 'last', and fanouts >= 0, got {self.scheme!r} and {counts}"
                )

    def fanout(self, relation: Relation, hop: int) -> int:
        return self.relation_fanouts.get(relation, self.fanouts)[hop]


@dataclass(frozen=True, repr=False)
class TypedNeighborOptions(NeighborOptions):
    """`NeighborOptions` with the default fanouts of a typed graph."""

    GIVEN: ClassVar = (*NeighborOptions.GIVEN, "features")
    UNSET: ClassVar = {}
    fanouts: tuple[int, ...] = (10, 10)
    """Neighbors per hop, for each relation; -1: all."""


_MOST_HOPS = (1 << 15) - 1


# Used by the samplers of one subgraph per root.
_UNSET: dict[str, Any] = {"relations": (), "root_type": None, "features": True}


@dataclass(frozen=True, repr=False)
class Node2SubgraphOptions(RootOptions):
    """Extent of a search, and division of roots into batches."""

    GIVEN: ClassVar = (*RootOptions.GIVEN, "by_weight", "features")
    UNSET: ClassVar = _UNSET
    AFTER: ClassVar = {"fixed": (*_OF_ROOTS, "encodings"), "relations": ("root_type",)}
    max_hops: int = 10
    """Layers around the root; 0: only the root."""
    max_nodes: int = 100
    """Largest number of nodes in a subgraph, over all types and including the root."""
    direction: WalkDirection = "both"
    """Direction of the search: against edges ("in"), along them ("out"), or either."""
    batch_size: int = 128
    """Roots per batch, one subgraph each."""
    root_order: RootOrder = "shuffled"
    """shuffled: a micro-batch has roots from the whole graph. groups: each micro-batch of a step has roots from its own share of the graph's locality groups,
    shuffled. Most of the rows that the micro-batch needs are then on one host."""
    fixed: bool = False
    """True: the same subgraphs in every epoch."""
    edge_columns: tuple[EdgeColumn, ...] = ()
    """Columns of edges in the batch: "id", "weight", "time", "feature"."""
    by_weight: bool = False
    """If a layer does not fit, its nodes are drawn by the weights of the edges that lead to them. Edges of weight 0 do not count; edges of a relation without
    weights have weight 1."""
    relations: tuple[str, ...] = ()
    """In a typed graph, the relations that the search uses, written as author--writes--paper; none: all relations. The batch has the edges of all relations."""
    features: bool = True
    """Fetch node features."""

    def __post_init__(self) -> None:
        check_fields(self, max_nodes=1, batch_size=1)
        object.__setattr__(self, "relations", _names(self.relations))
        check_options(self, {"max_hops": (0 <= self.max_hops <= _MOST_HOPS, f"0 to {_MOST_HOPS}")})


@dataclass(frozen=True, repr=False)
class TypedNode2SubgraphOptions(Node2SubgraphOptions):
    """`Node2SubgraphOptions` with the default direction of a typed graph."""

    UNSET: ClassVar = {}
    direction: WalkDirection = "in"
    """Direction of the search: against edges ("in"), along them ("out"), or either."""


def _names(relations: tuple[str, ...]) -> tuple[str, ...]:
    """Checks the names of distinct relations. Raises ConfigError for a value that is not the name of a relation."""
    return tuple(dict.fromkeys(str(Relation.of(name)) for name in relations))


Cut = Literal["random", "partitions", "within"]
DEFAULT_CHUNKS = 4


@dataclass(frozen=True, repr=False)
class RandomPartitionOptions(SamplerOptions):
    """Method of cutting the graph."""

    GIVEN: ClassVar = (*SamplerOptions.GIVEN, "root_splits")
    AFTER: ClassVar = {
        "num_chunks": ("seed", "split_set"),
        "root_splits": ("shuffle", "encodings"),
        "corrected": ("root_type",),
    }
    num_chunks: int | None = None
    """Number of chunks. None: 4 with cut random, otherwise the number of the graph's partitions. With cut within, each partition has the same number of
    chunks."""
    root_splits: tuple[int, ...] | None = (SPLIT_TRAIN,)
    """Nodes with one of these split codes are roots. None: all nodes. In a graph without splits all nodes are training nodes."""
    edge_columns: tuple[EdgeColumn, ...] = ()
    """Columns of edges in the batch: "id", "weight", "time", "feature"."""
    chunks_per_batch: int = 1
    """Largest number of chunks in a batch. If num_chunks is not a multiple of it, chunks are divided evenly."""
    cut: Cut = "random"
    """random: all nodes are cut at random. partitions: the chunks are the stored partitions. within: each stored partition is cut at random, so a batch is read
    from one partition."""
    corrected: bool = False
    """Neighbors in the batch also represent the neighbors that are not in it: sums and means over in-edges estimate those of the whole graph (uniform vertex
    sampling, arXiv:2604.02651)."""

    def __post_init__(self) -> None:
        check_fields(self, num_chunks=1)
        if self.corrected and self.cut == "partitions":
            raise ConfigError(
                "corrected: expected a cut at random (random or within), got the stored partitions; set cut"
            )
        codes = (SPLIT_TRAIN,) if self.root_splits is None else self.root_splits
        if not codes or not all(SPLIT_NONE <= code <= SPLIT_TEST for code in codes):
            raise ConfigError(f"root_splits: expected codes of no split, train, valid or test, got {self.root_splits}")


@dataclass(frozen=True)
class FullGraphOptions:
    """All nodes, each with all its in-edges. Several ranks divide the nodes: a rank's shard is a range of stored nodes."""

    split_set: int = 0
    root_splits: tuple[int, ...] = (SPLIT_TRAIN,)
    """Nodes with one of these split codes are roots."""
    encodings: tuple[str, ...] = ()
    """Stored encodings of the nodes (graphmill.storage.format.encodings), by name."""
    num_blocks: int = 1
    """Number of even blocks of nodes. Each shard ends at the end of a block, so sums by blocks are the same for any number of ranks."""
    alone: Literal["batch", "shard"] = "batch"
    """Form of a single rank's batch: a minibatch with nodes ascending in permanent id, or one shard."""
    edge_columns: tuple[EdgeColumn, ...] = ()
    """Columns of edges in the batch: "id", "weight", "time", "feature"."""
    root_type: str | None = None
    """Type of the roots in a typed graph. None: the only type that has labels."""

    def __repr__(self) -> str:
        return _repr_of(self, {"root_type": None}, {})


def full_evaluation(
    split_set: int,
    num_chunks: int = 1,
    encodings: tuple[str, ...] = (),
    num_blocks: int | None = None,
    alone: Literal["batch", "shard"] = "batch",
    edge_columns: tuple[EdgeColumn, ...] = (),
) -> dict[str, RandomPartitionOptions | FullGraphOptions]:
    """Options that score all splits on the whole graph as one batch, or on fixed chunks of it. Chunks give an estimate, without the edges between chunks.

    All splits have the same options, because each batch is scored for all of them. With `num_blocks` several ranks divide the batch into shards. `alone` is the
    form of a single rank's batch.
    """
    codes = tuple(SPLITS.values())
    options: RandomPartitionOptions | FullGraphOptions
    if num_blocks is None or num_chunks > 1:
        options = RandomPartitionOptions(
            num_chunks=num_chunks,
            split_set=split_set,
            root_splits=codes,
            shuffle=False,
            encodings=encodings,
            edge_columns=edge_columns,
        )
    else:
        options = FullGraphOptions(split_set, codes, encodings, num_blocks, alone, edge_columns)
    return dict.fromkeys(SPLITS, options)


@dataclass(frozen=True, repr=False)
class PprOptions(RootOptions):
    """The random walk, its accuracy, and division of roots into batches."""

    GIVEN: ClassVar = (*RootOptions.GIVEN, "by_weight", "features")
    UNSET: ClassVar = _UNSET
    AFTER: ClassVar = {"root_order": (*_OF_ROOTS, "encodings"), "relations": ("root_type",)}
    alpha: float = 0.15
    """Probability that a walk ends at each step."""
    epsilon: float = 0.0001
    """A node is not pushed if its residual divided by its degree is smaller than this value."""
    top_k: int = 64
    """Largest number of nodes over all types, not counting the root."""
    direction: WalkDirection = "in"
    """Direction of a walk's steps: against edges ("in"), along them ("out"), or either."""
    batch_size: int = 128
    """Roots per batch, one subgraph each."""
    root_order: RootOrder = "shuffled"
    """shuffled: a micro-batch has roots from the whole graph. groups: each micro-batch of a step has roots from its own share of the graph's locality groups,
    shuffled. Most of the rows that the micro-batch needs are then on one host."""
    edge_columns: tuple[EdgeColumn, ...] = ()
    """Columns of edges in the batch: "id", "weight", "time", "feature"."""
    by_weight: bool = False
    """A walk steps along edges in proportion to their weights instead of uniformly; edges of a relation without weights have weight 1."""
    relations: tuple[str, ...] = ()
    """In a typed graph, the relations that walks use, written as author--writes--paper; none: all relations. The batch has the edges of all relations."""
    features: bool = True
    """Fetch node features."""

    def __post_init__(self) -> None:
        check_fields(self, top_k=0, batch_size=1)
        object.__setattr__(self, "relations", _names(self.relations))
        rows = {
            "alpha": (0 < self.alpha <= 1, "above 0 and at most 1"),
            "epsilon": (1e-9 <= self.epsilon < 1, "at least 1e-9 and below 1"),
        }
        check_options(self, rows)


TypedOptions = TypedNeighborOptions | TypedNode2SubgraphOptions
SubgraphOptions = Node2SubgraphOptions | PprOptions  # one per root


@dataclass(frozen=True, repr=False)
class SaintOptions(RootOptions):
    """The walks of a batch, and the accuracy of the estimated frequencies. Walks start at roots, and the loss is over roots."""

    AFTER: ClassVar = {"batches_per_epoch": (*_OF_ROOTS, "encodings"), "edge_columns": ("root_type",)}
    num_walks: int = 2000
    """Roots drawn per batch."""
    walk_length: int = 2
    """Steps of a walk."""
    num_presamples: int = 200
    """Batches drawn before training to estimate the probability of each node and edge (T in the paper)."""
    direction: WalkDirection = "both"
    """Direction of a step: against edges ("in"), along them ("out"), or either."""
    batches_per_epoch: int | None = None
    """Batches of an epoch over all ranks. None: the number that draws each root once on average."""
    edge_columns: tuple[EdgeColumn, ...] = ()
    """Columns of edges in the batch: "id", "weight", "time", "feature"."""

    def __post_init__(self) -> None:
        check_fields(self, num_walks=1, walk_length=0, num_presamples=1, batches_per_epoch=1)


TrainNegatives = Literal["uniform", "degree", "in_batch", "fixed"]


@dataclass(frozen=True)
class LinkOptions:
    """Division of links into batches, and the method of drawing negatives."""

    around: Any
    """Options of the sampler that draws a batch around the links' ends."""
    splits: tuple[int, ...] = (SPLIT_TRAIN,)
    """Codes of the splits whose links are in the batches."""
    batch_size: int | None = 1024
    """Links per batch. None: all links in one batch, and every node is a root."""
    negatives: TrainNegatives | Literal["all"] = "uniform"
    """fixed: stored negatives, all of them if `shuffle` is False. all: a link's destination is ranked among all nodes except the known neighbors of its
    source."""
    num_negatives: int = 1
    """Negatives drawn for each link."""
    exclude_own: bool = True
    """Leave the batch's own links, and their reverses, out of the batch's edges."""
    relation: str | None = None
    """In a typed graph, the relation of the links. None: the relation whose links are held out."""
    seed: int = 0
    shuffle: bool = True
    """False: links in ascending order, and the same negatives in every epoch."""

    def __post_init__(self) -> None:
        check_fields(self, batch_size=1, num_negatives=1)
        if self.shuffle and self.negatives == "all":
            raise ConfigError("negatives: expected uniform, degree, in_batch or fixed in training, got 'all'")


@dataclass(frozen=True)
class TopLinkOptions:
    """The best destinations of every node."""

    around: Any
    """Options of the sampler that makes a batch of all nodes."""
    top_k: int = 10
    """Destinations per node. The node itself is left out, and so are the nodes to which it has an edge."""
    relation: int | None = None
    """In a knowledge graph, the index of the links' relation."""
    links_of: str | None = None
    """In a typed graph, the relation of the links, like `LinkOptions.relation`."""

    def __post_init__(self) -> None:
        check_fields(self, top_k=1)


@dataclass(frozen=True)
class GraphBatchOptions:
    """Budgets of one batch; 0: no bound. At least one budget must be set."""

    GIVEN: ClassVar = ("seed", "shuffle")
    max_graphs: int = 0
    """Largest number of graphs in a batch."""
    max_nodes: int = 0
    """Largest number of nodes of a batch's graphs."""
    max_edges: int = 0
    """Largest number of edges of a batch's graphs."""
    max_node_pairs: int = 0
    """Largest sum of nodes² over a batch's graphs, which is the cost of dense attention."""
    bucket_ratio: float = 1.2
    """Largest ratio of the sizes of two graphs in a batch; inf: any ratio."""
    oversize: Literal["error", "alone"] = "error"
    """Treatment of a graph that exceeds a budget: "error", or "alone" for a batch with only this graph."""
    seed: int = 0
    shuffle: bool = True
    """False: the same batches in every epoch, small graphs first."""

    def __post_init__(self) -> None:
        check_fields(self, bucket_ratio=1)
        budgets = {name: getattr(self, name) for name in ("max_graphs", "max_nodes", "max_edges", "max_node_pairs")}
        if not any(budgets.values()) or any(value < 0 for value in budgets.values()):
            raise ConfigError(f"graph batches: expected budgets >= 0 and one above 0, got {budgets}; set max_nodes")


@dataclass(frozen=True)
class LoaderOptions:
    """Threads of the loader, and bounds on the batches that it prepares in advance."""

    threads: int = 1
    """Threads that draw batches, in addition to the thread that trains."""
    prefetch: int = 2
    """Batches finished or under way, in addition to the batch in use; at least one per thread."""
    max_bytes: int = 1 << 30
    """Largest total size of these batches in bytes. An unfinished batch counts as the largest so far, and one batch is always allowed."""
    cache_bytes: int = 0
    """Bytes of kept rows of other machines' partitions. A row is kept until the last batch drawn in advance that needs it. 0: every batch fetches all its
    rows."""
    plan_bytes: int = 1 << 30
    """With cache_bytes: bytes of batches drawn in advance, without their rows. These batches determine which rows are needed next."""
    shared_bytes: int = 0
    """With cache_bytes and several workers on a host: bytes of the other machines' rows that these workers need most. The rows are in memory that the workers
    share as long as they live."""
    kept_bytes: int = 1 << 28
    """Bytes of evaluation batches that stay in a worker's memory (on a GPU, the GPU's) from the first batch on. They are the same in every evaluation."""
    timeout_s: Positive = 300.0
    """Longest time to wait for one batch, in seconds."""
    close_timeout_s: Positive = 30.0
    """Longest time to wait for working threads when the loader is closed, in seconds."""

    def __post_init__(self) -> None:
        check_fields(
            self, threads=1, prefetch=1, max_bytes=0, cache_bytes=0, plan_bytes=0, shared_bytes=0, kept_bytes=0
        )
        needs_plan = {"shared_bytes": (not self.shared_bytes or self.cache_bytes > 0, "0 without --loader.cache_bytes")}
        check_options(self, needs_plan)
