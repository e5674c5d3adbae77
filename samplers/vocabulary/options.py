"""Options of every sampler and of the loader: those that a user chooses, and those that the run fills in (GIVEN)."""

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


def _repr_without(options: Any, **unset: Any) -> str:
    """A dataclass without these fields where they have these values: a run from before them compares its options when it resumes."""
    told = {one.name: getattr(options, one.name) for one in fields(options)}
    shown = ", ".join(f"{name}={value!r}" for name, value in told.items() if name not in unset or value != unset[name])
    return f"{type(options).__name__}({shown})"


def check_fields(options: Any, **least: float) -> None:
    """Raises ConfigError where a field has another type, is smaller than `least` says, or names an encoding that there cannot be."""
    option_checks.check_fields(options, **least)
    check_encoding_names(getattr(options, "encodings", ()))


@dataclass(frozen=True)
class NeighborOptions:
    """How roots become batches."""

    GIVEN: ClassVar[tuple[str, ...]] = ("seed", "split_set", "root_split", "shuffle", "encodings", "root_type")
    fanouts: tuple[int, ...] = (15, 10, 5)
    """Neighbors per hop, of each relation; -1: all."""
    batch_size: int = 1024
    """Roots per batch."""
    root_order: RootOrder = "shuffled"
    """shuffled: a micro-batch has roots from anywhere; groups: each of a step's micro-batches has those of its own share of the graph's locality
    groups, shuffled, so that most of what it needs lies on one host."""
    edges: Literal["sampled", "induced"] = "sampled"
    """Edges drawn, or all edges among the nodes found."""
    seed: int = 0
    split_set: int = 0
    root_split: int | None = SPLIT_TRAIN
    """None: all nodes; in a graph without splits all nodes train."""
    shuffle: bool = True
    """False: roots in ascending permanent id, and the same draws in every epoch."""
    direction: WalkDirection = "in"
    """neighbors: sources of in-edges, ends of out-edges, or both."""
    scheme: Scheme = "uniform"
    """Uniform; by edge weight; by the neighbor's in-degree (at least 1); the last, most recent edges; or LABOR-0 (arXiv:2210.13339): one coin per neighbor and hop, shared by all nodes of the frontier, so that they draw the same ones: fanouts are then expectations. Of several relations one without weights (or times) draws uniformly."""
    time: Literal["all", "until", "before"] = "all"
    """Edges of all times; at every hop those until the root's time, that included (PyG's temporal sampling); or those before it. A node that is
    reached from roots of two times is there twice. Of several relations one without times has edges of all times."""
    as_of: int | None = None
    """With time: the time of every root. None: its own, of the node table or of its link."""
    recency_dim: int = 0
    """With time: so many cosines beside each node's features of how long before its root's time the newest edge was by which the batch reaches it (graphmill.samplers.batches.recency)."""
    recency_unit: Positive = 1.0
    """Of the times, how much counts as 1 in these cosines: 86400 makes days of seconds. 16 cosines tell apart 1 to some 500 units, 100 about 10^10."""
    batch_dependency: int = 1
    """With scheme labor: so many consecutive steps share their coins, and so most of their nodes (arXiv:2310.12403). A step by itself is drawn as with 1."""
    layer_dependency: bool = False
    """With scheme labor: all hops of a batch share their coins."""
    replace: bool = False
    """Draw each of the `fanout` neighbors independently."""
    edge_columns: tuple[EdgeColumn, ...] = ()
    """What the batch holds of each edge: "id", "weight", "time", "feature"; of several relations, in those that have it."""
    features: bool = True
    """Fetch node features."""
    encodings: tuple[str, ...] = ()
    """Stored encodings of the nodes (graphmill.storage.format.encodings), by name."""
    relation_fanouts: Mapping[Relation, tuple[int, ...]] = field(default_factory=dict, hash=False)
    """Of a typed graph, those of some relations in place of `fanouts`, as author--writes--paper=5,0; 0 leaves the relation out of a hop."""
    root_type: str | None = None
    """Of a typed graph, the roots' type; none: the only type that has labels."""

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
            what = "edges 'induced'" if self.edges == "induced" else "scheme 'degree'"
            raise ConfigError(
                f"time: expected sampled edges by another scheme than degree, for {what} would look at edges of all times, got {self.time!r}; set time"
            )
        if self.scheme != "labor" and (self.batch_dependency > 1 or self.layer_dependency):
            raise ConfigError(
                f"batch_dependency and layer_dependency: expected them with scheme 'labor' alone, got {self.scheme!r}; set scheme"
            )
        given = {Relation.of(name): tuple(counts) for name, counts in self.relation_fanouts.items()}
        of_relations = dict(sorted(given.items()))
        object.__setattr__(self, "relation_fanouts", of_relations)
        for name, counts in {"fanouts": self.fanouts, **{str(one): own for one, own in of_relations.items()}}.items():
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

    def __repr__(self) -> str:
        return _repr_without(self, relation_fanouts={}, root_type=None)

    def fanout(self, relation: Relation, hop: int) -> int:
        return self.relation_fanouts.get(relation, self.fanouts)[hop]


@dataclass(frozen=True)
class TypedNeighborOptions(NeighborOptions):
    """The same with the default of a typed graph."""

    GIVEN: ClassVar = (*NeighborOptions.GIVEN, "root_type", "features")
    fanouts: tuple[int, ...] = (10, 10)
    """Neighbors per hop, of each relation; -1: all."""


_MOST_HOPS = (1 << 15) - 1


@dataclass(frozen=True)
class Node2SubgraphOptions:
    """How far a search goes, and how roots become batches."""

    GIVEN: ClassVar = ("seed", "split_set", "root_split", "shuffle", "by_weight", "encodings", "root_type", "features")
    max_hops: int = 10
    """Layers around the root; 0: the root alone."""
    max_nodes: int = 100
    """Nodes of a subgraph at most, of all types, the root among them."""
    direction: WalkDirection = "both"
    """Of the search: against edges ("in"), along them ("out"), or either."""
    batch_size: int = 128
    """Roots per batch, one subgraph each."""
    root_order: RootOrder = "shuffled"
    """shuffled: a micro-batch has roots from anywhere; groups: each of a step's micro-batches has those of its own share of the graph's locality
    groups, shuffled, so that most of what it needs lies on one host."""
    fixed: bool = False
    """True: the same subgraphs in every epoch."""
    seed: int = 0
    split_set: int = 0
    root_split: int | None = SPLIT_TRAIN
    """None: all nodes; in a graph without splits all nodes train."""
    shuffle: bool = True
    """False: roots in ascending permanent id, and the same subgraphs in every epoch."""
    encodings: tuple[str, ...] = ()
    """Stored encodings of the nodes (graphmill.storage.format.encodings), by name."""
    edge_columns: tuple[EdgeColumn, ...] = ()
    """What the batch holds of each edge: "id", "weight", "time", "feature"."""
    by_weight: bool = False
    """Of a layer that does not fit, a node is taken by the weights of the edges that lead to it; an edge of weight 0 is none, one of a relation without weights has 1."""
    relations: tuple[str, ...] = ()
    """Of a typed graph, those to search over, as author--writes--paper; none: all. Edges in the batch are those of all relations."""
    root_type: str | None = None
    """Of a typed graph, the roots' type; none: the only type that has labels."""
    features: bool = True
    """Fetch node features."""

    def __post_init__(self) -> None:
        check_fields(self, max_nodes=1, batch_size=1)
        object.__setattr__(self, "relations", _names(self.relations))
        check_options(self, {"max_hops": (0 <= self.max_hops <= _MOST_HOPS, f"0 to {_MOST_HOPS}")})

    def __repr__(self) -> str:
        return _repr_without(self, relations=(), root_type=None, features=True)


@dataclass(frozen=True)
class TypedNode2SubgraphOptions(Node2SubgraphOptions):
    """The same with the default of a typed graph."""

    direction: WalkDirection = "in"
    """Of the search: against edges ("in"), along them ("out"), or either."""


def _names(relations: tuple[str, ...]) -> tuple[str, ...]:
    """Of distinct relations. Raises ConfigError for what is no relation's name."""
    return tuple(dict.fromkeys(str(Relation.of(name)) for name in relations))


Cut = Literal["random", "partitions", "within"]
DEFAULT_CHUNKS = 4


@dataclass(frozen=True)
class RandomPartitionOptions:
    """How the graph is cut."""

    GIVEN: ClassVar = ("seed", "split_set", "root_splits", "shuffle", "encodings", "root_type")
    num_chunks: int | None = None
    """None: 4 of a random cut, else the graph's partitions. Within these: equally many of each."""
    seed: int = 0
    split_set: int = 0
    root_splits: tuple[int, ...] | None = (SPLIT_TRAIN,)
    """Nodes with one of these codes are roots. None: all nodes; in a graph without splits all nodes train."""
    shuffle: bool = True
    """False: the same cut, or the same groups of partitions, in every epoch."""
    encodings: tuple[str, ...] = ()
    """Stored encodings of the nodes (graphmill.storage.format.encodings), by name."""
    edge_columns: tuple[EdgeColumn, ...] = ()
    """What the batch holds of each edge: "id", "weight", "time", "feature"."""
    chunks_per_batch: int = 1
    """At most; dealt evenly where num_chunks is no multiple of it."""
    cut: Cut = "random"
    """Of all nodes at random; the stored partitions; or of each stored partition at random ("within"): a batch is read from one partition alone."""
    corrected: bool = False
    """Neighbors in the batch count for those that are not: sums and means over in-edges estimate the whole graph's (uniform vertex sampling, arXiv:2604.02651)."""
    root_type: str | None = None
    """Of a typed graph, the roots' type; none: the only type that has labels."""

    def __post_init__(self) -> None:
        check_fields(self, num_chunks=1)
        if self.corrected and self.cut == "partitions":
            raise ConfigError(
                "corrected: expected a cut at random (random or within), got the stored partitions; set cut"
            )
        codes = (SPLIT_TRAIN,) if self.root_splits is None else self.root_splits
        if not codes or not all(SPLIT_NONE <= code <= SPLIT_TEST for code in codes):
            raise ConfigError(f"root_splits: expected codes of no split, train, valid or test, got {self.root_splits}")

    def __repr__(self) -> str:
        return _repr_without(self, root_type=None)


@dataclass(frozen=True)
class FullGraphOptions:
    """All nodes, each with all its in-edges. Several ranks share them: each has a shard, the rows of a range of stored nodes."""

    split_set: int = 0
    root_splits: tuple[int, ...] = (SPLIT_TRAIN,)
    """Nodes with one of these codes are roots."""
    encodings: tuple[str, ...] = ()
    """Stored encodings of the nodes (graphmill.storage.format.encodings), by name."""
    num_blocks: int = 1
    """Shards end where one of so many even blocks of nodes does: sums by blocks are then the same for any number of ranks."""
    alone: Literal["batch", "shard"] = "batch"
    """What a single rank has: a minibatch, nodes ascending in permanent id, or the one shard."""
    edge_columns: tuple[EdgeColumn, ...] = ()
    """What the batch holds of each edge: "id", "weight", "time", "feature"."""
    root_type: str | None = None
    """Of a typed graph, the roots' type; none: the only type that has labels."""

    def __repr__(self) -> str:
        return _repr_without(self, root_type=None)


def full_evaluation(
    split_set: int,
    num_chunks: int = 1,
    encodings: tuple[str, ...] = (),
    num_blocks: int | None = None,
    alone: Literal["batch", "shard"] = "batch",
    edge_columns: tuple[EdgeColumn, ...] = (),
) -> dict[str, RandomPartitionOptions | FullGraphOptions]:
    """Scores all splits on the whole graph as one batch, or on fixed chunks of it: an estimate, without the edges between chunks.

    The options of all splits are the same: each batch is scored for all of them. With `num_blocks` several ranks share the batch as shards,
    and `alone` says what a single one has.
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


@dataclass(frozen=True)
class PprOptions:
    """What a walk is, how exactly to follow it, and how roots become batches."""

    GIVEN: ClassVar = ("seed", "split_set", "root_split", "shuffle", "by_weight", "encodings", "root_type", "features")
    alpha: float = 0.15
    """Chance that a walk ends at each step."""
    epsilon: float = 0.0001
    """Residual per degree that is left alone."""
    top_k: int = 64
    """Nodes beside the root, at most, of all types."""
    direction: WalkDirection = "in"
    """Of a walk's steps: against edges ("in"), along them ("out"), or either."""
    batch_size: int = 128
    """Roots per batch, one subgraph each."""
    root_order: RootOrder = "shuffled"
    """shuffled: a micro-batch has roots from anywhere; groups: each of a step's micro-batches has those of its own share of the graph's locality
    groups, shuffled, so that most of what it needs lies on one host."""
    seed: int = 0
    split_set: int = 0
    root_split: int | None = SPLIT_TRAIN
    """None: all nodes; in a graph without splits all nodes train."""
    shuffle: bool = True
    """False: roots in ascending permanent id."""
    encodings: tuple[str, ...] = ()
    """Stored encodings of the nodes (graphmill.storage.format.encodings), by name."""
    edge_columns: tuple[EdgeColumn, ...] = ()
    """What the batch holds of each edge: "id", "weight", "time", "feature"."""
    by_weight: bool = False
    """A walk steps along an edge by its weight, in place of each alike; an edge of a relation without weights has 1."""
    relations: tuple[str, ...] = ()
    """Of a typed graph, those to walk over, as author--writes--paper; none: all. Edges in the batch are those of all relations."""
    root_type: str | None = None
    """Of a typed graph, the roots' type; none: the only type that has labels."""
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

    def __repr__(self) -> str:
        return _repr_without(self, relations=(), root_type=None, features=True)


TypedOptions = TypedNeighborOptions | TypedNode2SubgraphOptions
SubgraphOptions = Node2SubgraphOptions | PprOptions  # one per root


@dataclass(frozen=True)
class SaintOptions:
    """Walks of a batch, and how well their frequencies are known."""

    GIVEN: ClassVar = ("seed", "split_set", "root_split", "shuffle", "encodings", "root_type")
    num_walks: int = 2000
    """Roots drawn per batch."""
    walk_length: int = 2
    """Steps of a walk."""
    num_presamples: int = 200
    """Batches drawn before training, by which a node's probability is estimated (T in the paper)."""
    direction: WalkDirection = "both"
    """Of a step: against edges ("in"), along them ("out"), or either."""
    batches_per_epoch: int | None = None
    """Over all ranks; None: as many as draw each root once on average."""
    seed: int = 0
    split_set: int = 0
    root_split: int | None = SPLIT_TRAIN
    """Walks start at these nodes, and the loss is over these. None: all nodes; in a graph without splits all nodes train."""
    shuffle: bool = True
    """False: the same batches in every epoch."""
    encodings: tuple[str, ...] = ()
    """Stored encodings of the nodes (graphmill.storage.format.encodings), by name."""
    edge_columns: tuple[EdgeColumn, ...] = ()
    """What the batch holds of each edge: "id", "weight", "time", "feature"."""
    root_type: str | None = None
    """Of a typed graph, the roots' type; none: the only type that has labels."""

    def __post_init__(self) -> None:
        check_fields(self, num_walks=1, walk_length=0, num_presamples=1, batches_per_epoch=1)

    def __repr__(self) -> str:
        return _repr_without(self, root_type=None)


TrainNegatives = Literal["uniform", "degree", "in_batch", "fixed"]


@dataclass(frozen=True)
class LinkOptions:
    """How links become batches, and what they are told from."""

    around: Any
    """Options of the sampler that makes a batch around the links' ends."""
    splits: tuple[int, ...] = (SPLIT_TRAIN,)
    """Their links, by code."""
    batch_size: int | None = 1024
    """Links of a batch; None: all in one batch, and every node is a root."""
    negatives: TrainNegatives | Literal["all"] = "uniform"
    """fixed: those that are stored, all of them where `shuffle` is False; all: a link's destination is ranked among all nodes but those that its
    source is known to be joined with."""
    num_negatives: int = 1
    """Drawn for each link."""
    exclude_own: bool = True
    """Leave the batch's own links, and their reverses, out of its edges."""
    relation: str | None = None
    """Of a typed graph: the relation whose links these are; None: the one of which links are held out."""
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
    """Of each node; those that it has an edge to, and itself, are left out."""
    relation: int | None = None
    """Of a knowledge graph: the number of the links' relation."""
    links_of: str | None = None
    """Of a typed graph, as `LinkOptions.relation`."""

    def __post_init__(self) -> None:
        check_fields(self, top_k=1)


@dataclass(frozen=True)
class GraphBatchOptions:
    """Budgets of one batch; 0: no such bound. At least one must be set."""

    GIVEN: ClassVar = ("seed", "shuffle")
    max_graphs: int = 0
    """Graphs of one batch."""
    max_nodes: int = 0
    """Nodes of all graphs."""
    max_edges: int = 0
    """Edges of all graphs."""
    max_node_pairs: int = 0
    """Nodes² of all graphs: what dense attention costs."""
    bucket_ratio: float = 1.2
    """Largest over smallest graph that may meet in a batch; inf: any."""
    oversize: Literal["error", "alone"] = "error"
    """A graph beyond a budget: "error", or "alone" for a batch of its own."""
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
    """How far and how wide the loader works ahead."""

    threads: int = 1
    """Threads that draw batches, beside the one that trains."""
    prefetch: int = 2
    """Batches finished or under way beyond the one in use; at least one per thread."""
    max_bytes: int = 1 << 30
    """The same in bytes, unfinished ones as large as the largest so far; one batch is always allowed."""
    cache_bytes: int = 0
    """Of rows of other machines' partitions, kept while a batch that is drawn ahead needs them; 0: every batch fetches all of its own."""
    plan_bytes: int = 1 << 30
    """With cache_bytes: of batches drawn ahead, before their rows are there. As far as that reaches, it is known which row is needed next."""
    shared_bytes: int = 0
    """With cache_bytes, and several workers on a host: of rows of other machines that these need most, in memory that they share, for as long as they live."""
    kept_bytes: int = 1 << 28
    """Of a worker's evaluation batches, which are the same every time: up to this they stay in its memory (its GPU's) from the first one on."""
    timeout_s: Positive = 300.0
    """Longest wait for one batch."""
    close_timeout_s: Positive = 30.0
    """Longest wait for threads at work when the loader is closed."""

    def __post_init__(self) -> None:
        check_fields(
            self, threads=1, prefetch=1, max_bytes=0, cache_bytes=0, plan_bytes=0, shared_bytes=0, kept_bytes=0
        )
        needs_plan = {"shared_bytes": (not self.shared_bytes or self.cache_bytes > 0, "0 without --loader.cache_bytes")}
        check_options(self, needs_plan)
