"""Chooses open options from the statistics of the graph, by a table of rules. Each rule is a pure function that returns a value and its reason.

    open options, set options, GraphFacts ──choose──▶ {path: Choice}

docs/decisions/0042-automatic-defaults.md gives the reasons for the rules. A value that the user sets always wins. Rules are applied in the table's order. A
rule sees the user's values and the choices of all earlier rules.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from math import ceil, lcm
from typing import TYPE_CHECKING, Any

from graphmill.core.errors import ConfigError
from graphmill.core.summaries import counted
from graphmill.jobs.config.reader import to_tree
from graphmill.jobs.config.registry import find_kind
from graphmill.models.options.local import LocalOptions
from graphmill.samplers.vocabulary.options import DEFAULT_CHUNKS
from graphmill.samplers.vocabulary.rank_shares import num_chunk_batches, num_root_batches
from graphmill.storage.format.manifest import Manifest
from graphmill.storage.format.source import SPLIT_TRAIN, SourceInfo
from graphmill.storage.format.statistics import SplitStatistics

if TYPE_CHECKING:
    from graphmill.storage.format.graph_set_manifest import GraphSetManifest

_ONE_BATCH = 50_000  # a graph with at most this number of nodes is one batch
_FEW_EDGES = 2_000_000
# Bounds of "few labels": the share of nodes that train, and the training nodes of each class. With fewer, a model soon overfits.
_FEW, _FEW_PER_CLASS = 0.2, 100
_FEW_NEIGHBORS = 10
_ALIKE = 0.3  # adjusted homophily: below this, a mean over neighbors blurs the features
_SET_STEPS = 1_000  # minimum for a set of graphs
_SAMPLED_EVERY = 10  # approximate number of steps between two sampled scores
_FEWEST_EDGES = 40  # minimum number of directed edges between training nodes to measure homophily


@dataclass(frozen=True)
class GraphFacts:
    """The facts about a graph, or a set of graphs, that rules read."""

    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    """Number of classes. 2 if the labels are yes-or-no answers: each training node then has an answer for every label."""
    num_train: int
    """Number of training nodes, or of training graphs."""
    num_partitions: int = 1
    homophily: float | None = None
    """Homophily of the edges between training nodes, above chance. 1: every edge joins nodes of one class. 0: edges join nodes of one class as often as random
    pairs of training nodes do. None: there are too few edges between training nodes, or the homophily is not known."""
    is_set: bool = False
    """Whether the facts are about a set of graphs, not about one graph."""

    @property
    def train_per_class(self) -> float:
        return self.num_train / max(1, self.num_classes)

    @property
    def mean_degree(self) -> float:
        return self.num_edges / max(1, self.num_nodes)

    @property
    def train_share(self) -> float:
        return self.num_train / max(1, self.num_nodes)


def adjusted_homophily(split: SplitStatistics, *, by_weight: bool = False) -> float | None:
    """Returns (h - c) / (1 - c). h: share of the training edges that join two nodes of one class, weighted if the edges have weights. c: share of all pairs of
    training nodes whose two nodes have one class."""
    weighted, classes = split.weighted_homophily if by_weight else None, split.class_counts
    share = split.homophily if weighted is None else weighted
    if share is None or (split.num_training_edges or 0) < _FEWEST_EDGES:
        return None
    if classes is None:
        return share
    counts = classes[SPLIT_TRAIN]
    by_chance = sum(count * count for count in counts) / max(1, sum(counts)) ** 2
    return (share - by_chance) / (1 - by_chance) if by_chance < 1 else None


def graph_facts(manifest: Manifest, split_set: int, *, by_weight: bool = False) -> GraphFacts:
    """Facts about a stored graph, from the statistics in its manifest."""
    measured = manifest.measured
    split = measured.splits[split_set]
    return GraphFacts(
        num_nodes=manifest.num_nodes,
        num_edges=manifest.num_edges,
        num_features=manifest.feature_dim,
        num_classes={"answers": 2, "class": manifest.num_classes or 0}.get(str(manifest.label_kind), 0),
        num_train=split.num_labelled[SPLIT_TRAIN],
        num_partitions=manifest.num_partitions,
        homophily=adjusted_homophily(split, by_weight=by_weight),
    )


def set_facts(manifest: "GraphSetManifest") -> GraphFacts:
    """Facts about a stored set of graphs."""
    names, parts = manifest.split_names, manifest.measured.parts
    num_train = parts[1 + names.index("train")].num_graphs if "train" in names else manifest.num_graphs
    return GraphFacts(manifest.num_nodes, manifest.num_edges, 0, 0, num_train, is_set=True)


def expected_facts(source: SourceInfo, num_train: int, num_partitions: int) -> GraphFacts:
    """Facts about a graph that does not exist yet. Its homophily is not known."""
    classes = source.num_classes or 0
    return GraphFacts(source.num_nodes, source.num_edges or 0, source.feature_dim, classes, num_train, num_partitions)


@dataclass(frozen=True)
class Choice:
    """A value that a rule chose, and the reason."""

    value: Any
    reason: str


@dataclass(frozen=True)
class Setting:
    """The input of a rule: the facts and all options that are set or chosen so far."""

    graph: GraphFacts
    micro_batches: int
    options: Mapping[str, Any]
    """Every option that is set or chosen, by its path."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    """Options of the model's default recipe. Empty: rules choose the options, without a recipe."""

    def __getitem__(self, path: str) -> Any:
        return self.options.get(path)

    @property
    def keeps_recipe(self) -> bool:
        """Whether the recipe decides every option that does not depend on the number of steps of an epoch."""
        few = self.kind == 0 and not self.graph.is_set and self.graph.mean_degree < _FEW_NEIGHBORS  # for example Cora
        return bool(self.recipe) and not (few and self["model"] in _FEW_LABELS_AS_GECO)

    @property
    def kind(self) -> int:
        """Column of the rules' table. 0: few labels. 1: neighbors of the same class. 2: neighbors of other classes. 3: neighbors of other classes, few
        training nodes."""
        graph = self.graph
        is_few = graph.train_share < _FEW and graph.train_per_class < _FEW_PER_CLASS
        if graph.homophily is None or graph.homophily >= _ALIKE:
            return 0 if is_few else 1
        return 3 if is_few or graph.num_train < graph.num_features else 2

    @property
    def why(self) -> str:
        """The reason why the graph belongs to this column."""
        graph = self.graph
        few = f"{graph.num_train:,} training nodes" + f", {graph.train_per_class:,.0f} a class" * bool(
            graph.num_classes
        )
        if self.kind == 0:
            return f"few labels: {few}"
        if graph.homophily is None:
            return "neighbors taken to be alike: few edges join training nodes, labels are several or numbers, or the graph is not made yet"
        alike = f"neighbors {'are' if self.kind == 1 else 'are not'} alike: homophily {graph.homophily:.2f} beyond the classes' shares"
        if self.kind < 3:
            return alike
        return f"{alike}, {few} and {graph.num_features:,} features"


Rule = Callable[[Setting], Choice]


def choose(
    open_options: Collection[str],
    options: Mapping[str, Any],
    graph: GraphFacts,
    micro_batches: int,
    recipe: Mapping[str, Any] | None = None,
) -> dict[str, Choice]:
    """A choice for every open option, by its path. `recipe`: options of the default recipe of a model for which `has_recipe` is true.

    Raises ConfigError if `fit.steps` cannot be converted to epochs.
    """
    known, chosen = dict(options), dict[str, Choice]()
    left_open = set(open_options) | ({"fit.epochs"} if options.get("fit.steps") is not None else set())
    for path in left_open:
        known.pop(path, None)
    for path, rule in RULES.items():
        if path in left_open:
            at = Setting(graph, micro_batches, known, recipe or {})
            chosen[path] = _as_in_recipe(path, at) if at.keeps_recipe and path not in _BESIDE_A_RECIPE else rule(at)
            known[path] = chosen[path].value
    return chosen


def steps_per_epoch(at: Setting) -> int | None:
    """Optimizer steps of an epoch. None: the sampler's options do not determine the number."""
    if at["run.parallel"] == "graph":
        return 1
    batches = num_batches(at)
    return None if batches is None else batches // at.micro_batches


def num_batches(at: Setting) -> int | None:
    """Number of batches of an epoch over all workers. None: the sampler's options do not determine the number."""
    graph, micro_batches = at.graph, at.micro_batches
    sampler = at["sampler"]
    if sampler == "random-partition":
        whole = DEFAULT_CHUNKS if at["sampler.cut"] in (None, "random") else graph.num_partitions
        groups = ceil((at["sampler.num_chunks"] or whole) / at["sampler.chunks_per_batch"])
        return num_chunk_batches(groups, micro_batches)
    if sampler in ("neighbor", "node2subgraph", "ppr", "typed-neighbor", "typed-node2subgraph", "typed-ppr"):
        # Another check refuses a graph with fewer training nodes than micro-batches.
        return num_root_batches(max(graph.num_train, micro_batches), at["sampler.batch_size"], micro_batches)
    if sampler == "saint":
        num_samples = at["sampler.batches_per_epoch"] or ceil(max(graph.num_train, 1) / at["sampler.num_walks"])
        return ceil(num_samples / micro_batches) * micro_batches
    if sampler == "graph-batches" and at["sampler.max_graphs"]:
        # A lower bound: graphs of different sizes, and graphs larger than a budget, need further batches.
        return ceil(max(graph.num_train, 1) / (at["sampler.max_graphs"] * micro_batches)) * micro_batches
    return None


@dataclass(frozen=True)
class _ByDegree:
    """A rule's value for graphs with a low mean degree, and its value for graphs with a high mean degree."""

    few: Any
    many: Any


def _by_kind(few: Any, alike: Any, other: Any, by_heart: Any) -> Rule:
    """A rule that depends on `Setting.kind` and, if the value is a `_ByDegree`, on the mean degree."""

    def rule(at: Setting) -> Choice:
        value = (few, alike, other, by_heart)[at.kind]
        return _by_degree(at, value.few, value.many) if isinstance(value, _ByDegree) else Choice(value, at.why)

    return rule


def _always(value: Any) -> Rule:
    return lambda at: Choice(value, "on every graph")


def _num_layers(at: Setting) -> Choice:
    if _hops(at):
        return Choice(_hops(at), f"one local layer for each of the {_hops(at)} hops that are sampled")
    if at.kind == 2:
        return _by_degree(at, 8, 4)
    if at.kind == 0:
        return Choice(1 if at["model.local.block"] == "appnp" else 2, at.why)
    if at.kind == 3:
        return Choice(2, at.why)
    return Choice(2 if at["model.local.block"] == "gat" else 3, at.why)


def _hops(at: Setting) -> int:
    """Number of sampled hops. Each hop has a separate edge list. 0: the batch is one graph with one edge list."""
    fanouts = at["sampler.fanouts"]
    return len(fanouts) if fanouts is not None and at["sampler.edges"] != "induced" else 0


def _block(at: Setting) -> Choice:
    # With few labels, a single layer that reaches ten steps is a good choice, because it has few weights. GAT stores a few numbers for each head and edge.
    if at["sampler.corrected"]:  # the correction holds for sums over neighbors, not for GAT's weighted sums
        return Choice("gcn", "its sums over neighbors can be corrected for a chunk")
    if _hops(at):
        return Choice("gcn", f"{counted(_hops(at), 'hop')} of sampled neighbors")
    if at.kind == 0:
        # PageRank steps do not read edge features.
        return Choice("gcn" if at["data.edge_features"] else "appnp", at.why)
    if at["model.local.join"] == "top":
        return Choice("sage", at.why)
    fits = at["model.width"] is None or not at["model.width"] % at["model.local.num_heads"]
    return Choice("gat" if at.kind == 1 and _is_small(at) and fits else "gcn", at.why)


def _is_small(at: Setting) -> bool:
    """Whether the graph is no larger than the graphs on which blocks and widths were compared."""
    return at.graph.num_nodes <= _ONE_BATCH and at.graph.num_edges <= _FEW_EDGES


def _as_in_recipe(path: str, at: Setting) -> Choice:
    return Choice(at.recipe[path], f"the default recipe of {at['model']}, {at.why}")


def _layer_local(at: Setting) -> Choice:
    # Primphormer reads neighbors either in its own layer, or in a local block that joins in another way than "serial".
    if at["model.local.join"] != "serial":
        return Choice("none", "neighbors are heard by --model.local")
    if at["data.edge_features"] or _gates_edges(at):
        return Choice("gated_gcn", "it reads features of edges, and positions between their ends")
    return Choice(at.recipe["model.layer.local"], "the paper's layers")


def _join(at: Setting) -> Choice:
    if at["model.layer.local"] not in (None, "none") or at["model.attention"] == "none" or _gates_edges(at):
        return Choice("serial", "the paper's layers hear neighbors")
    if at["model"] == "geco" and (at["model.block"], at["model.jump"], at["model.norm"]) != ("geco", "last", "post"):
        return Choice("serial", "what is said of block, jump or norm is of the paper's layers")
    if at.keeps_recipe:
        asks = _asks_for_local_blocks(at)
        return Choice("gate", "something is said of --model.local") if asks else _as_in_recipe("model.local.join", at)
    if at.kind != 2 or _hops(at) or not _is_small(at):
        return Choice("gate", at.why)
    # On a small graph of this kind, gates in many layers overfit.
    return _by_degree(at, "top", "gate")


def _gates_edges(at: Setting) -> bool:
    return at["model.position.kind"] == "stable_laplacian"


def _asks_for_local_blocks(at: Setting) -> bool:
    """Whether an option of the local blocks differs from its default."""
    values = to_tree(LocalOptions())
    return any(at[f"model.local.{name}"] not in (None, value) for name, value in values.items() if name != "join")


def _by_degree(at: Setting, few: Any, many: Any) -> Choice:
    """Chooses between the value for few neighbors and the value for many. If nodes have few neighbors, distant nodes reveal the class."""
    is_few = at.graph.mean_degree < _FEW_NEIGHBORS
    return Choice(few if is_few else many, f"{at.why}, {at.graph.mean_degree:,.0f} neighbors a node")


def _width(at: Setting) -> Choice:
    graph, width, why = at.graph, 64, at.why
    if at.keeps_recipe:
        width, why = at.recipe["model.width"], _as_in_recipe("model.width", at).reason
    elif at.kind > 0:
        # On small graphs a width of 128 reaches no better validation score than 64, and a step takes 2.3 times as long (measured on Amazon-Photo).
        width = 64 if _is_small(at) else (128 if at.kind >= 2 else 256)
        why = f"{why}, {graph.num_nodes:,} nodes and {graph.num_edges:,} edges"
    heads = at["model.local.num_heads"] if at["model.local.block"] == "gat" else 1
    heads = lcm(heads, at["model.num_heads"] or 1)
    return Choice(ceil(width / heads) * heads, why if width % heads == 0 else f"{why}, a multiple of {heads} heads")


def _num_chunks(at: Setting) -> Choice:
    nodes, least = at.graph.num_nodes, at["sampler.chunks_per_batch"] or 1
    if at["sampler.cut"] == "partitions":
        return Choice(None, f"the graph's {at.graph.num_partitions} partitions")
    if at["run.parallel"] == "graph":
        return Choice(None, "the whole graph is the one batch (--run.parallel graph)")
    num_chunks = ceil(nodes / _ONE_BATCH)
    if at["sampler.cut"] == "within":
        each = ceil(num_chunks / at.graph.num_partitions)
        return Choice(
            each * at.graph.num_partitions, f"{nodes:,} nodes in {at.graph.num_partitions} partitions, {each} of each"
        )
    if at.keeps_recipe and num_chunks <= DEFAULT_CHUNKS:  # in TokenGT, each edge of a chunk is a token
        return Choice(max(DEFAULT_CHUNKS, least), "the default recipe's chunks")
    if num_chunks <= 1:
        shared = f"; each of a step's {at.micro_batches} micro-batches takes it whole, for its share of the training nodes: more workers save no time"
        return Choice(least, f"{nodes:,} nodes are one batch{shared if at.micro_batches > 1 else ''}")
    return Choice(max(num_chunks, least), f"{nodes:,} nodes, at most {_ONE_BATCH:,} in a chunk")


def _epochs(at: Setting) -> Choice:
    each, asked = steps_per_epoch(at), at["fit.steps"]
    least = at.recipe["fit.epochs"] if at.keeps_recipe and asked is None else 0
    if each is None:
        if asked is not None:
            raise ConfigError(
                f"steps: the sampler {at['sampler']} does not say how many batches an epoch has, got {asked} steps; set --fit.epochs"
            )
        return Choice(least or 40, "the sampler does not say how many batches an epoch has")
    steps = asked or (_SET_STEPS if at.graph.is_set else (1000, 500, 1000, 1000)[at.kind])
    why = f"{at.graph.num_train:,} training graphs" if at.graph.is_set else at.why
    target = f"{steps:,} steps ({why})" if asked is None else f"--fit.steps {steps:,}"
    if each * least >= steps:
        return Choice(least, f"the recipe's epochs, at least {target}, {each:,} in an epoch")
    return Choice(ceil(steps / each), f"{target}, {each:,} in an epoch")


def _warmup_epochs(at: Setting) -> Choice:
    if at["model"] not in (*_CHOSEN_FOR, *_HAVE_RECIPES) and not at.graph.is_set:
        return Choice(at["fit.epochs"] // 10, f"a tenth of {at['fit.epochs']:,} epochs")
    if not at.keeps_recipe:
        return Choice(0, "none was needed with these rates")
    epochs, of_recipe = at["fit.epochs"], at.recipe["fit.epochs"]
    share = at.recipe["fit.warmup_epochs"] / of_recipe
    return Choice(min(round(share * epochs), epochs // 10), f"the recipe's share of {epochs:,} epochs")


def _eval_every(at: Setting) -> Choice:
    each = steps_per_epoch(at) or 1
    if at["evaluation.how"] == "sampled":
        # Each scored node needs a separate subgraph, like a training node.
        return Choice(
            ceil(_SAMPLED_EVERY / each),
            f"about {_SAMPLED_EVERY} steps between sampled scores, {counted(each, 'step')} in an epoch",
        )
    # A validation takes a third of the time of a full-graph step.
    return Choice((1, 2, 2, 2)[at.kind] if each == 1 else 1, f"{counted(each, 'step')} in an epoch")


def _patience(at: Setting) -> Choice:
    each = (steps_per_epoch(at) or 1) * at["fit.eval_every"]
    steps = (100, 100, 200, 200)[at.kind]
    if at["evaluation.chunks"] != 1 and at["evaluation.select_by"] == "exact":
        return Choice(None, "scores are estimates, which choose no epoch")
    # With a schedule that ends at the last epoch, scores still improve late.
    least = 10 if at.keeps_recipe else 5
    validations = ceil(steps / each)
    span = f"about {steps} steps" if validations >= least else f"the fewest validations, one each {each:,} steps,"
    return Choice(max(least, validations), f"{span} without a better score")


def _local(rule: Rule, paper: Any) -> Rule:
    """A rule of the local block. If the options ask for the paper's layers, the rule keeps them."""
    return lambda at: Choice(paper, "the paper's layers") if at["model.local.join"] == "serial" else rule(at)


_RESIDUAL = _by_kind("none", "linear", "linear", "linear")
_NORM = _by_kind(_ByDegree("none", "layer"), "layer", _ByDegree("batch", "layer"), "layer")
_DROPOUT = _by_kind(0.5, 0.5, _ByDegree(0.2, 0.5), 0.5)
RULES: Mapping[str, Rule] = {
    "sampler.num_chunks": _num_chunks,
    "model.local.join": _join,
    "model.layer.local": _layer_local,
    "model.local.block": _local(_block, "lcb"),
    "model.num_layers": _num_layers,
    "model.width": _width,
    "model.local.residual": _local(_RESIDUAL, "none"),
    "model.local.norm": _local(_NORM, "layer"),
    "model.local.dropout": _local(_DROPOUT, 0.0),
    "model.residual": _RESIDUAL,
    "model.norm": _NORM,
    "model.dropout": _DROPOUT,
    "model.input_dropout": _by_kind(0.5, 0.0, 0.0, 0.0),
    "task.label_smoothing": _always(0.0),
    "fit.optimizer": _always("adam"),
    "fit.learning_rate": _by_kind(0.01, 0.005, _ByDegree(0.01, 0.003), 0.01),
    "fit.weight_decay": _by_kind(5e-4, 5e-5, 0.0, 5e-4),
    "fit.schedule": _always("constant"),
    "fit.epochs": _epochs,
    "fit.warmup_epochs": _warmup_epochs,
    "fit.eval_every": _eval_every,
    "fit.patience": _patience,
}
_CLASSIC = ("gcn", "gat", "sage")
_HAVE_RECIPES = ("tokengt", "primphormer", "grit", "ppgt", "polynormer", "sgformer", "rsage")
_CHOSEN_FOR = ("geco", *_CLASSIC)  # the rules were measured with these models
_OF_ANY_MODEL = ("sampler.num_chunks", "fit.epochs", "fit.warmup_epochs", "fit.eval_every", "fit.patience")
_BESIDE_A_RECIPE = (*_OF_ANY_MODEL, "model.layer.local", "model.local.join", "model.width")
_FEW_LABELS_AS_GECO = ("tokengt", "primphormer")
_MEASURED_FOR_THEM = (
    "model.local.join",
    "model.local.block",
    "model.num_layers",
    "model.width",
    "model.local.norm",
    "model.local.dropout",
    "model.input_dropout",
    "task.label_smoothing",
    "fit.optimizer",
    "fit.learning_rate",
    "fit.weight_decay",
    "fit.schedule",
)


def has_recipe(kind: str, model: str) -> bool:
    """Whether an option that no rule chooses keeps the value of the model's default recipe."""
    return find_kind(kind).chosen is not None or model in _HAVE_RECIPES


def rule_paths(kind: str, model: str) -> tuple[str, ...]:
    """The options that rules choose for this model and this kind of data if the user does not set them.

    The rules were measured with GECO and the classic models (gcn, gat, sage). TokenGT and Primphormer use these rules only on graphs with few labels. Rules
    that depend on the steps of an epoch apply to every model, including a user's own model. GECO has another rule for `norm` than the classic models.
    """
    if (chosen := find_kind(kind).chosen) is not None:
        return chosen
    if model in _HAVE_RECIPES:
        own = ("model.layer.local",) if model == "primphormer" else ()
        more = _MEASURED_FOR_THEM if model in _FEW_LABELS_AS_GECO else ()
        return tuple(path for path in RULES if path in (*_OF_ANY_MODEL, *more, *own))
    if model not in _CHOSEN_FOR:
        return _OF_ANY_MODEL
    others = ("model.layer.local", *(("model.residual", "model.norm") if model == "geco" else ()))
    return tuple(path for path in RULES if path not in others)
