"""Options of all samplers and of the loader. A user may set every field except the fields named in GIVEN, which the run sets."""

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
    """Returns the repr in the form of earlier versions, because a resumed run compares it. Inherited fields come after the fields that `after` names.

    A field that a later version added is left out if it has its value in `unset`.
    """
    names, moved = [each.name for each in fields(options)], {name for group in after.values() for name in group}
    order = [name for own in names if own not in moved for name in (own, *after.get(own, ()))]
    values = [(name, getattr(options, name)) for name in order]
    content = ", ".join(f"{name}={value!r}" for name, value in values if name not in unset or value != unset[name])
    return f"{type(options).__name__}({content})"


def check_fields(options: Any, **least: float) -> None:
    """Raises ConfigError if a field has the wrong type, is smaller than its lower bound in `least`, or has a name that no encoding can have."""
    option_checks.check_fields(options, **least)
    check_encoding_names(getattr(options, "encodings", ()))


@dataclass(frozen=True, kw_only=True, repr=False)
class SamplerOptions:
    """Fields of every sampler that draws from one graph. The run sets them."""

    GIVEN: ClassVar[tuple[str, ...]] = ("seed", "split_set", "shuffle", "encodings", "root_type")
    UNSET: ClassVar[Mapping[str, Any]] = {"root_type": None}  # see `_repr_of`
    AFTER: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    seed: int = 0
    split_set: int = 0
    shuffle: bool = True
    """False: the same batches in every epoch. Roots that are divided into batches are then in ascending order of permanent id."""
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
    """Options of the neighbor sampler: how roots are divided into batches, and how neighbors are drawn."""

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
    """Edges in the batch. sampled: the drawn edges. induced: all edges among the nodes of the batch."""
    direction: WalkDirection = "in"
    """Which nodes count as a node's neighbors: the sources of its in-edges (in), the ends of its out-edges (out), or both. In a typed graph, a relation's
    out-edges are the in-edges of its reverse relation."""
    scheme: Scheme = "uniform"
    """Method of drawing neighbors. uniform: with equal probability. weight: by edge weight. degree: by the neighbor's in-degree (at least 1). last: the most
    recent edges. labor: LABOR-0 (arXiv:2210.13339), which flips one coin per neighbor and hop. All nodes of a hop share these coins, so they tend to draw
    the same neighbors, and fanouts are only expected numbers. In a graph of several relations, draws are uniform in a relation without weights (or times)."""
    time: Literal["all", "until", "before"] = "all"
    """Which edges are used. all: edges of all times. until: at every hop, only edges up to the root's time (PyG's temporal sampling). before: only edges
    earlier than the root's time. If roots with two different times reach a node, the batch has the node twice. In a graph of several relations, all edges of a
    relation without times are used."""
    as_of: int | None = None
    """With time: one time for all roots. None: each root has the time of its node, or of its link."""
    recency_dim: int = 0
    """With time: number of cosines that are appended to each node's features. They encode an age: the root's time minus the time of the newest edge by which
    the batch reaches the node (graphmill.samplers.batches.recency)."""
    recency_unit: Positive = 1.0
    """Unit of ages in these cosines, in the unit of the graph's times. For example, 86400 turns seconds into days. 16 cosines distinguish ages of 1 to about
    500 units, 100 cosines ages of 1 to about 10^10 units."""
    batch_dependency: int = 1
    """With scheme labor: number of consecutive steps that share coins, and therefore most nodes (arXiv:2310.12403). It does not change the distribution of a
    single step."""
    layer_dependency: bool = False
    """With scheme labor: all hops of a batch use the same coin for a node."""
    replace: bool = False
    """Draw with replacement: the `fanout` draws are independent, so a neighbor may be drawn more than once."""
    edge_columns: tuple[EdgeColumn, ...] = ()
    """Edge columns in the batch: "id", "weight", "time", "feature". In a graph of several relations, a relation gives the columns that it stores."""
    features: bool = True
    """Fetch node features."""
    relation_fanouts: Mapping[Relation, tuple[int, ...]] = field(default_factory=dict, hash=False)
    """In a typed graph: other fanouts for single relations, such as author--writes--paper=5,0. A 0 leaves the relation out of the hop."""

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
                    f"{name}: expected a fan-out for each of the {len(self.fanouts)} hops of fanouts, got {counts}; set relation_fanouts"
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


# For the samplers that make one subgraph per root.
_UNSET: dict[str, Any] = {"relations": (), "root_type": None, "features": True}


@dataclass(frozen=True, repr=False)
class Node2SubgraphOptions(RootOptions):
    """Options of Node2Subgraph: the extent of each search, and how roots are divided into batches."""

    GIVEN: ClassVar = (*RootOptions.GIVEN, "by_weight", "features")
    UNSET: ClassVar = _UNSET
    AFTER: ClassVar = {"fixed": (*_OF_ROOTS, "encodings"), "relations": ("root_type",)}
    max_hops: int = 10
    """Number of layers around the root. 0: the subgraph is only the root."""
    max_nodes: int = 100
    """Largest number of nodes in a subgraph. Nodes of all types and the root count."""
    direction: WalkDirection = "both"
    """Direction of the search: against edges ("in"), along them ("out"), or either."""
    batch_size: int = 128
    """Roots per batch, one subgraph each."""
    root_order: RootOrder = "shuffled"
    """shuffled: a micro-batch has roots from the whole graph. groups: each micro-batch of a step has roots from its own share of the graph's locality groups,
    shuffled. Most of the rows that the micro-batch needs are then on one host."""
    fixed: bool = False
    """True: every epoch uses the same subgraphs."""
    edge_columns: tuple[EdgeColumn, ...] = ()
    """Columns of edges in the batch: "id", "weight", "time", "feature"."""
    by_weight: bool = False
    """If not all nodes of a layer fit, draw them by the weights of the edges that lead to them. Edges of weight 0 do not count. In a relation without weights,
    every edge has weight 1."""
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
    """Checks names of distinct relations. Raises ConfigError if a value is not the name of a relation."""
    return tuple(dict.fromkeys(str(Relation.of(name)) for name in relations))


Cut = Literal["random", "partitions", "within"]
DEFAULT_CHUNKS = 4


@dataclass(frozen=True, repr=False)
class RandomPartitionOptions(SamplerOptions):
    """Options of the random-partition sampler: how the graph is cut into chunks."""

    GIVEN: ClassVar = (*SamplerOptions.GIVEN, "root_splits")
    AFTER: ClassVar = {
        "num_chunks": ("seed", "split_set"),
        "root_splits": ("shuffle", "encodings"),
        "corrected": ("root_type",),
    }
    num_chunks: int | None = None
    """Number of chunks. None: 4 if `cut` is random, otherwise the number of the graph's partitions. If `cut` is within, every partition has the same number of
    chunks."""
    root_splits: tuple[int, ...] | None = (SPLIT_TRAIN,)
    """Nodes with one of these split codes are roots. None: all nodes. In a graph without splits all nodes are training nodes."""
    edge_columns: tuple[EdgeColumn, ...] = ()
    """Columns of edges in the batch: "id", "weight", "time", "feature"."""
    chunks_per_batch: int = 1
    """Largest number of chunks in a batch. If num_chunks is not a multiple of this number, batches get about equal numbers of chunks."""
    cut: Cut = "random"
    """random: all nodes are cut at random. partitions: the chunks are the stored partitions. within: each stored partition is cut at random, so a batch is read
    from one partition."""
    corrected: bool = False
    """Weight the messages of neighbors in the batch, so that sums and means over in-edges estimate the sums and means in the whole graph (uniform vertex
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
    """Options of the full graph as one batch: all nodes with all their in-edges. Several ranks divide the nodes. A rank's shard is a range of stored nodes."""

    split_set: int = 0
    root_splits: tuple[int, ...] = (SPLIT_TRAIN,)
    """Nodes with one of these split codes are roots."""
    encodings: tuple[str, ...] = ()
    """Stored encodings of the nodes (graphmill.storage.format.encodings), by name."""
    num_blocks: int = 1
    """Nodes are divided into this many even blocks. Each shard ends at the end of a block, so sums by blocks are the same for any number of ranks."""
    alone: Literal["batch", "shard"] = "batch"
    """With one rank: whether the batch is a minibatch, with nodes in ascending order of permanent id, or one shard."""
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
    """Options of an evaluation that scores all splits on the whole graph as one batch, or on fixed chunks of the graph. Chunks give an estimate, because edges
    between chunks are missing.

    The options are the same for all splits, because each batch is scored for all of them. With `num_blocks`, several ranks divide the batch into shards.
    `alone` is the form of the batch if there is one rank.
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
    """Options of PPR: the random walk, the accuracy, and how roots are divided into batches."""

    GIVEN: ClassVar = (*RootOptions.GIVEN, "by_weight", "features")
    UNSET: ClassVar = _UNSET
    AFTER: ClassVar = {"root_order": (*_OF_ROOTS, "encodings"), "relations": ("root_type",)}
    alpha: float = 0.15
    """Probability that a walk ends, at each step."""
    epsilon: float = 0.0001
    """A node is pushed only if its residual divided by its degree is at least this value."""
    top_k: int = 64
    """Largest number of nodes in a subgraph. Nodes of all types count, except the root."""
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
    """Draw a walk's steps in proportion to edge weights instead of uniformly. In a relation without weights, every edge has weight 1."""
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
SubgraphOptions = Node2SubgraphOptions | PprOptions  # options of samplers that make one subgraph per root


@dataclass(frozen=True, repr=False)
class SaintOptions(RootOptions):
    """Options of GraphSAINT: the walks of a batch, and the accuracy of estimated frequencies. Walks start at roots, and only roots have a loss."""

    AFTER: ClassVar = {"batches_per_epoch": (*_OF_ROOTS, "encodings"), "edge_columns": ("root_type",)}
    num_walks: int = 2000
    """Number of roots drawn per batch."""
    walk_length: int = 2
    """Number of steps of a walk."""
    num_presamples: int = 200
    """Number of batches drawn before training, to estimate how often each node and edge is in a batch (T in the paper)."""
    direction: WalkDirection = "both"
    """Direction of a step: against edges ("in"), along them ("out"), or either."""
    batches_per_epoch: int | None = None
    """Number of batches in an epoch, over all ranks. None: the number with which each root is drawn once on average."""
    edge_columns: tuple[EdgeColumn, ...] = ()
    """Columns of edges in the batch: "id", "weight", "time", "feature"."""

    def __post_init__(self) -> None:
        check_fields(self, num_walks=1, walk_length=0, num_presamples=1, batches_per_epoch=1)


TrainNegatives = Literal["uniform", "degree", "in_batch", "fixed"]


@dataclass(frozen=True)
class LinkOptions:
    """Options of batches of links: how links are divided into batches, and how negatives are drawn."""

    around: Any
    """Options of the sampler that draws a batch around the links' ends."""
    splits: tuple[int, ...] = (SPLIT_TRAIN,)
    """Codes of the splits whose links are in the batches."""
    batch_size: int | None = 1024
    """Links per batch. None: all links in one batch, and every node is a root."""
    negatives: TrainNegatives | Literal["all"] = "uniform"
    """Where negatives come from. fixed: stored negatives; if `shuffle` is False, all of them. all: a link's destination is ranked among all nodes, without the
    known neighbors of its source."""
    num_negatives: int = 1
    """Number of negatives drawn for each link."""
    exclude_own: bool = True
    """Remove from the batch's edges the links that the batch predicts, and their reverses."""
    relation: str | None = None
    """In a typed graph: the relation of the links. None: the relation whose links are held out."""
    seed: int = 0
    shuffle: bool = True
    """False: every epoch has the links in ascending order, and the same negatives."""

    def __post_init__(self) -> None:
        check_fields(self, batch_size=1, num_negatives=1)
        if self.shuffle and self.negatives == "all":
            raise ConfigError("negatives: expected uniform, degree, in_batch or fixed in training, got 'all'")


@dataclass(frozen=True)
class TopLinkOptions:
    """Options of a search for the best destinations of every node."""

    around: Any
    """Options of the sampler that makes a batch of all nodes."""
    top_k: int = 10
    """Number of destinations per node. The node itself, and the nodes to which it has an edge, are left out."""
    relation: int | None = None
    """In a knowledge graph: the index of the relation of the links."""
    links_of: str | None = None
    """In a typed graph, the relation of the links, like `LinkOptions.relation`."""

    def __post_init__(self) -> None:
        check_fields(self, top_k=1)


@dataclass(frozen=True)
class GraphBatchOptions:
    """Budgets of a batch of graphs. 0 means no bound; at least one budget must be set."""

    GIVEN: ClassVar = ("seed", "shuffle")
    max_graphs: int = 0
    """Largest number of graphs in a batch."""
    max_nodes: int = 0
    """Largest total number of nodes in a batch."""
    max_edges: int = 0
    """Largest total number of edges in a batch."""
    max_node_pairs: int = 0
    """Largest sum of (number of nodes)² over the graphs of a batch. This sum is proportional to the cost of dense attention."""
    bucket_ratio: float = 1.2
    """Largest ratio of the sizes of two graphs in a batch; inf: any ratio."""
    oversize: Literal["error", "alone"] = "error"
    """If a graph alone exceeds a budget. error: raise an error. alone: put it into a batch without other graphs."""
    pair_negatives: Literal["stored", "drawn"] = "stored"
    """Pairs of nodes that are no links, in training. stored: the set's own. drawn: one for each link, from the link's first node to a node without a link from it,
    drawn anew each epoch (GraphGPS's resample_negative)."""
    seed: int = 0
    shuffle: bool = True
    """False: every epoch has the same batches, small graphs first."""

    def __post_init__(self) -> None:
        check_fields(self, bucket_ratio=1)
        budgets = {name: getattr(self, name) for name in ("max_graphs", "max_nodes", "max_edges", "max_node_pairs")}
        if not any(budgets.values()) or any(value < 0 for value in budgets.values()):
            raise ConfigError(f"graph batches: expected budgets >= 0 and one above 0, got {budgets}; set max_nodes")


@dataclass(frozen=True)
class LoaderOptions:
    """Options of the loader: its threads, and bounds on the batches that it prepares in advance."""

    threads: int = 1
    """Threads that draw batches, in addition to the thread that trains."""
    prefetch: int = 2
    """Largest number of batches that are begun or waiting, not counting the batch in use. At least one per thread."""
    max_bytes: int = 1 << 30
    """Largest total size of these batches, in bytes. An unfinished batch counts as the largest so far. One batch is always allowed."""
    cache_bytes: int = 0
    """Memory for rows that were fetched from other machines, in bytes. A row is kept as long as a batch that is drawn in advance needs it. 0: every batch
    fetches all its rows."""
    plan_bytes: int = 1 << 30
    """With cache_bytes: memory for batches that are drawn in advance, without their rows, in bytes. They determine which rows are needed next."""
    shared_bytes: int = 0
    """With cache_bytes and several workers on a host: size of the memory that these workers share, in bytes. It holds the rows of other machines that they need
    most often, as long as the workers live."""
    kept_bytes: int = 1 << 28
    """Memory for evaluation batches that a worker keeps, in bytes. On a GPU it is GPU memory. The first batches are kept; every evaluation has the same
    batches."""
    timeout_s: Positive = 300.0
    """Longest time to wait for one batch, in seconds."""
    close_timeout_s: Positive = 30.0
    """Longest time to wait for the loader's threads when it is closed, in seconds."""

    def __post_init__(self) -> None:
        check_fields(
            self, threads=1, prefetch=1, max_bytes=0, cache_bytes=0, plan_bytes=0, shared_bytes=0, kept_bytes=0
        )
        needs_plan = {"shared_bytes": (not self.shared_bytes or self.cache_bytes > 0, "0 without --loader.cache_bytes")}
        check_options(self, needs_plan)
