"""Has the tables of models, samplers and tasks, and the kinds of runs. A user's own component is named by its import path.

`package.module:Name` names a frozen dataclass: its fields are the options, and its method `build` makes the component.

    model:    build(inputs: Inputs) -> nn.Module       or an nn.Module itself, a class or an object (`jobs/tasks/build_model.py`); over `graphmill.models.primitives.graphs.Graphs`; predictions [r, out_dim] of the roots, or of the graphs
    sampler:  build(router: Router, num_ranks: int)    -> a `graphmill.samplers.drawing.protocol.Sampler`
    task:     build(inputs: Inputs) -> Task            a `graphmill.cluster.tasks.Task`

`--kind package.module:NAME` names a `Kind`, the kind of a run.

A class lists in GIVEN the fields that the run fills in. For a sampler these are seed, split_set, root_split, shuffle and encodings.
"""

import hashlib
import importlib.metadata
import inspect
import os
import re
import sys
import types
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from graphmill.cluster.options import CALLBACKS, nearest_callback
from graphmill.core.errors import ConfigError, quoted
from graphmill.jobs.config.reader import UsageError
from graphmill.models.gps.options import PositionOptions
from graphmill.models.options.features import Features
from graphmill.models.tokengt.options import TokenGTConfig
from graphmill.samplers.methods.registry import OBJECTS, SAMPLERS, load
from graphmill.storage.format.encoding_names import EncodingOptions

# (node type or relation, empty for a plain graph or a set; column; mean; deviation)
StandardColumn = tuple[str, int, float, float]
# (node type; column; column name; number of rows; digest of the categories)
EmbeddedColumn = tuple[str, int, str, int, str]
GIVEN_HERE: set[str] = set()
"""Import paths of objects that this process received from its user. They need no permission to be imported."""
OF_EDGES = "edge"  # in place of a relation, for the edges of a plain graph or of a set


@dataclass(frozen=True)
class Inputs:
    """The inputs of a model or a task that come from the data and the run."""

    node: Features = field(default_factory=Features)
    edge: Features = field(default_factory=Features)
    out_dim: int = 1
    task: Literal["node", "graph", "link"] = "graph"
    seed: int = 0
    encoding: str | None = None
    """The name of the stored positional encodings in batches."""
    node_dims: tuple[tuple[str, int], ...] = ()
    """(node type, number of feature columns or 0) for each type of a typed graph, in order. If set, `node` is the width of the relational layers."""
    relations: tuple[tuple[str, str, str], ...] = ()
    """(source type, name, target type) of each relation of a typed graph, in order."""
    edge_dims: tuple[int, ...] = ()
    """Number of edge features of each relation, 0 for none. Set only if the edge features of a typed graph are read. `edge` is then the width of the relational
    layers."""
    num_relations: int = 0
    """Number of relations of links in a knowledge graph, including the inverse relations. 0: links have no relations."""
    edge_weight: bool = False
    """Whether batches hold edge weights, which sums over neighbors use."""
    standard: tuple[StandardColumn, ...] = ()
    """Feature columns that the model standardises. Their means and deviations are stored with the model's weights. If a checkpoint is loaded, the model uses
    the means and deviations of the checkpoint."""
    standard_names: tuple[str, ...] = ()
    """Names of the first columns in `standard`."""
    embedded: tuple[EmbeddedColumn, ...] = ()
    """Columns of category indices. The model has a trained vector for each category; the sum of a node's vectors is appended to its features."""
    category_width: int = 0
    """Width of the trained vectors. 0: a plain graph has none."""
    categories: tuple[tuple[str, str, str], ...] = ()
    """(node type, name, digest of the categories) of each one-hot encoded column. Other data must have the same columns."""


@dataclass(frozen=True)
class Row:
    """One entry of a table."""

    options: str
    """Import path of the options' class."""
    build: str = ""
    """Import path of the network's or sampler's class; its constructor takes the options. jobs/tasks/node_task.py or graph_task.py makes a task."""
    layers_are_hops: bool = False
    """The number of sampled hops must equal the number of the model's layers."""
    takes_batches: bool = False
    """The model reads the loaders' batches instead of `graphmill.models.primitives.graphs.Graphs`."""
    over_graphs: str = ""
    """For a model that reads batches: import path of the same network over `graphmill.models.primitives.graphs.Graphs`."""
    takes_types: bool = False
    """The model works only on typed graphs and reads `graphmill.models.relational.network.TypedGraphs`."""
    graph_parallel: bool = False
    """The model can also be trained full-graph, sharded over the workers."""
    subject: str = ""
    """Import path of a task's `graphmill.jobs.subjects.subject.Subject`, if it differs from that of the kind."""


@dataclass(frozen=True)
class Kind:
    """A kind of runs: its options, models, samplers and tasks, and the class that opens its data. The first entry of each table is the default."""

    about: str
    """The kind in words for messages, such as "a run on many graphs"."""
    data: str
    """Import path of the class of `--data`, a frozen dataclass."""
    evaluation: str
    """Import path of the class of `--evaluation`. It has `estimate` and `keeps_best` of `graphmill.jobs.config.config.NodeEvaluationOptions`. For kinds
    other than one graph it also has `batches(options)`, which converts the sampler options of training to the sampler options of a split."""
    subject: str
    """Import path of the `graphmill.jobs.subjects.subject.Subject` class that opens the data."""
    models: Mapping[str, Row]
    samplers: Mapping[str, Row]
    tasks: Mapping[str, Row]
    inputs: Inputs = field(default_factory=Inputs)
    """Inputs that options are checked with before the data is known."""
    to_graphs: str = ""
    """Import path of a function, or of a class of such functions, that converts a batch to `graphmill.models.primitives.graphs.Graphs`. Empty: models read
    batches."""
    is_one_graph: bool = False
    """Batches hold the stored columns of one graph's nodes and edges: encodings, weights, edge features."""
    takes_own_samplers: bool = True
    """A user's own sampler can draw from data of this kind."""
    chosen: tuple[str, ...] | None = ()
    """Options that are chosen for the data if nobody sets them. None: `graphmill.jobs.config.defaults` lists them by model."""
    without: tuple[str, ...] = ("relational",)
    """Groups of options that runs of this kind do not have."""

    def table(self, group: str) -> Mapping[str, Row]:
        """The table for the group "model", "sampler" or "task"."""
        return cast(Mapping[str, Row], getattr(self, f"{group}s"))


def _classic(options: str) -> Row:
    return Row(
        f"graphmill.models.message_passing.options:{options}",
        "graphmill.models.message_passing.network:MessagePassing",
        layers_are_hops=True,
        graph_parallel=True,
    )


MODELS: dict[str, dict[str, Row]] = {
    "nodes": {
        "geco": Row(
            "graphmill.models.geco.options:GECOConfig",
            "graphmill.jobs.tasks.model_inputs:GECOClassifier",
            layers_are_hops=True,
            takes_batches=True,
            over_graphs="graphmill.models.geco.network:NodeGECO",
            graph_parallel=True,
        ),
        "primphormer": Row(
            "graphmill.models.primphormer.options:PrimphormerConfig", "graphmill.models.primphormer.network:Primphormer"
        ),
        "tokengt": Row("graphmill.models.tokengt.options:TokenGTConfig", "graphmill.models.tokengt.network:TokenGT"),
        "grit": Row("graphmill.models.grit.options:GRITConfig", "graphmill.models.grit.network:GRIT"),
        "ppgt": Row("graphmill.models.ppgt.options:PPGTConfig", "graphmill.models.ppgt.network:PPGT"),
        "polynormer": Row(
            "graphmill.models.polynormer.options:PolynormerConfig", "graphmill.models.polynormer.network:Polynormer"
        ),
        "sgformer": Row(
            "graphmill.models.sgformer.options:SGFormerConfig", "graphmill.models.sgformer.network:SGFormer"
        ),
        "sage": _classic("SAGEConfig"),
        "gcn": _classic("GCNConfig"),
        "gat": _classic("GATConfig"),
        "rsage": Row(
            "graphmill.models.relational.options:RSAGEConfig",
            "graphmill.models.relational.network:RSAGE",
            layers_are_hops=True,
            takes_types=True,
            graph_parallel=True,
        ),
    },
    "graphs": {
        "tokengt": Row("graphmill.models.tokengt.options:TokenGTConfig", "graphmill.models.tokengt.network:TokenGT"),
        "grit": Row("graphmill.models.grit.options:GRITConfig", "graphmill.models.grit.network:GRIT"),
        "ppgt": Row("graphmill.models.ppgt.options:PPGTConfig", "graphmill.models.ppgt.network:PPGT"),
        "geco": Row("graphmill.models.geco.options:GECOGraphsConfig", "graphmill.models.geco.graphs:GECOGraphs"),
        "primphormer": Row(
            "graphmill.models.primphormer.options:PrimphormerConfig", "graphmill.models.primphormer.network:Primphormer"
        ),
    },
}

_ON_NODES = {
    "classification": Row("graphmill.cluster.options:NodeClassificationOptions"),
    "binary": Row("graphmill.cluster.options:NodeBinaryOptions"),
    "regression": Row("graphmill.cluster.options:NodeRegressionOptions"),
    "links": Row("graphmill.jobs.config.link_options:LinksOptions", subject="graphmill.jobs.subjects.links:Links"),
}

_ON_GRAPHS = {
    "regression": Row("graphmill.cluster.options:RegressionOptions"),
    "binary": Row("graphmill.cluster.options:BinaryOptions"),
    "classes": Row("graphmill.cluster.options:ClassesOptions"),
    "nodes": Row("graphmill.cluster.options:NodesOptions"),
    "pairs": Row("graphmill.cluster.options:PairsOptions"),
}

KINDS = {
    "nodes": Kind(
        about="a run on the nodes of one graph",
        data="graphmill.jobs.config.config:NodeDataOptions",
        evaluation="graphmill.jobs.config.config:NodeEvaluationOptions",
        subject="graphmill.jobs.subjects.nodes:Nodes",
        models=MODELS["nodes"],
        samplers={name: Row(*paths) for name, paths in SAMPLERS.items()},
        tasks=_ON_NODES,
        inputs=Inputs(node=Features(dim=1), out_dim=2, task="node"),
        to_graphs="graphmill.jobs.tasks.model_inputs:NodeBatchGraphs",
        is_one_graph=True,
        chosen=None,
        without=(),
    ),
    "graphs": Kind(
        about="a run on many graphs",
        data="graphmill.jobs.config.config:GraphSetOptions",
        evaluation="graphmill.jobs.config.config:GraphEvaluationOptions",
        subject="graphmill.jobs.subjects.graphs:Graphs",
        models=MODELS["graphs"],
        samplers={
            "graph-batches": Row(
                "graphmill.samplers.vocabulary.options:GraphBatchOptions",
                "graphmill.samplers.methods.graph_batches:GraphBatchSampler",
            )
        },
        tasks=_ON_GRAPHS,
        inputs=Inputs(node=Features(categories=(2,))),
        to_graphs="graphmill.jobs.tasks.model_inputs:graph_batch_graphs",
        takes_own_samplers=False,
        chosen=("fit.epochs", "fit.warmup_epochs"),
    ),
}

TABLES = {group: {name: kind.table(group) for name, kind in KINDS.items()} for group in ("model", "sampler", "task")}

GRAPH_PARALLEL = ", ".join(name for name, row in MODELS["nodes"].items() if row.graph_parallel)

# Inputs that options are checked with before the data is known.
PLACEHOLDERS = {name: kind.inputs for name, kind in KINDS.items()}


def find_kind(name: str) -> Kind:
    """Graphmill's kind of this name, or a user's own kind. Raises ConfigError if the name is neither."""
    if name in KINDS:
        return KINDS[name]
    own = _load_own("kind", name, KINDS)
    if not isinstance(own, Kind):
        raise ConfigError(f"kind: expected {name} to be a Kind; see jobs/config/registry.py")
    return own


def _load_own(group: str, name: str, known: Iterable[str]) -> Any:
    """Imports the object at an import path. Raises UsageError if the name is not such a path."""
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", name):
        raise UsageError(
            f"{group}: expected one of {', '.join(known)}, or package.module:Name of your own, got {quoted(name)}; set --{group}"
        )
    if sys.path[0] not in ("", os.getcwd()):  # `python -m` adds this folder too, and so does Ray for its workers
        sys.path.insert(0, os.getcwd())
    return load(name)


@dataclass(frozen=True)
class Component:
    """A component's name, from a table or an import path, with its options."""

    name: str
    options: Any

    @property
    def is_foreign(self) -> bool:
        """Whether the component is a user's own, named by its import path."""
        return ":" in self.name

    @property
    def takes_types(self) -> bool:
        """Whether the component is a model that works only on typed graphs. No relational layers come before such a model."""
        row = self.row("model", "nodes")
        return getattr(self.options, "takes_types", False) if row is None else row.takes_types

    def row(self, group: str, kind: str) -> Row | None:
        """The component's row of its table. None: the component is a user's own."""
        return find_kind(kind).table(group).get(self.name)


def options_class(group: str, kind: str, name: str) -> type:
    """The class of a component's options. Raises ConfigError if the name is neither in a table nor an import path."""
    table = find_kind(kind).table(group)
    if name in table:
        return load(table[name].options)
    own = _load_own(group, name, table)
    if group == "sampler" and not find_kind(kind).takes_own_samplers:
        raise ConfigError(
            f"sampler: your own draw from one graph, many graphs have {', '.join(table)}, got {name}; leave it out"
        )
    module = getattr(sys.modules.get("torch.nn"), "Module", ())
    if group == "model" and (isinstance(own, module) or (isinstance(own, type) and issubclass(own, module))):
        return load("graphmill.jobs.tasks.build_model:module_options")(own)
    if not (isinstance(own, type) and is_dataclass(own) and callable(getattr(own, "build", None))):
        plain = ", or an nn.Module" if group == "model" else ""
        raise ConfigError(
            f"{group}: expected {name} to be a frozen dataclass with a method build{plain}; see jobs/config/registry.py"
        )
    return own


def model_config(component: Component, inputs: Inputs) -> Any:
    """The model's options, with the fields that come from the data filled in. Raises ConfigError if the options contradict each other."""
    try:
        options = component.options
        position = getattr(options, "position", None)
        if inputs.encoding is not None and position is not None:
            options = replace(options, position=replace(position, stored=inputs.encoding))
        return replace(options, **given_of(type(options), inputs))
    except ValueError as error:
        raise ConfigError(str(error)) from None


def given_of(kind: type, inputs: Inputs) -> dict[str, Any]:
    """The values of the fields that these options take from the data."""
    values = {
        "node": inputs.node,
        "edge": inputs.edge,
        "in_dim": inputs.node.dim,
        "edge_dim": inputs.edge.dim,
        "out_dim": inputs.out_dim,
        "task": inputs.task,
        "seed": inputs.seed,
        "encoding": inputs.encoding,
        "node_dims": dict(inputs.node_dims),
        "relations": inputs.relations,
        "edge_dims": inputs.edge_dims,
    }
    return {name: values[name] for name in getattr(kind, "GIVEN", ()) if name in values}


def stored_encoding(options: Any) -> EncodingOptions | None:
    """The stored positional encoding that a model on the nodes of one graph reads from its batches."""
    if isinstance(options, TokenGTConfig) and options.identifier == "laplacian":
        return EncodingOptions("laplacian", options.identifier_dim, options.laplacian_ends)
    position = getattr(options, "position", None)
    if not isinstance(position, PositionOptions):
        return None
    kind = position.kind
    if kind in ("laplacian_linear", "stable_laplacian"):
        return EncodingOptions("laplacian", position.num_steps)
    return EncodingOptions("rwse", position.num_steps) if kind == "random_walk" else None


def sharding(options: Any) -> str | None:
    """The method by which several workers evaluate a model, from the field `sharding` of its options.

    "rows": each worker computes a range of the whole graph's nodes. The model must read other nodes only through `adjacency`, `by_source`, `by_destination` and
    `by_graph`. "roots": each worker computes the subgraphs of its roots; the model accepts no other batches. None: each worker computes the whole graph. Raises
    ConfigError for any other value.
    """
    word = getattr(options, "sharding", None)
    if word not in ("rows", "roots", None):
        raise ConfigError(f"{type(options).__name__}.sharding: expected 'rows', 'roots' or None, got {word!r}")
    return word


def named(value_here: Any, before: Any = None) -> Any:
    """A tree in which import paths replace classes, functions and objects. An object without an import path gets a path that is valid only in this process.

    `before`: the same part of the tree of a run that already used these objects.
    """
    if isinstance(value_here, Mapping):
        old_tree = before if isinstance(before, Mapping) else {}
        return {name: named(value, old_tree.get(name)) for name, value in value_here.items()}
    if isinstance(value_here, list | tuple) and type(value_here) in (list, tuple):
        olds = [*(before if isinstance(before, list) else ()), *[None] * len(value_here)]
        return [named(value, old) for value, old in zip(value_here, olds, strict=False)]
    is_object = (
        callable(value_here) or any(hasattr(value_here, name) for name in CALLBACKS) or nearest_callback(value_here)
    )
    if not is_object or is_dataclass(value_here):
        return value_here
    name = getattr(value_here, "__qualname__", type(value_here).__name__)
    path = f"{getattr(value_here, '__module__', None)}:{name}"
    if getattr(sys.modules.get(path.partition(":")[0]), name, None) is not value_here:
        old = before.get("name") if isinstance(before, Mapping) else before
        held = old.partition(":")[2] if isinstance(old, str) and old.startswith(f"{OBJECTS}:") else ""
        held = held or re.sub(r"\W", "_", name) + f"_{uuid.uuid4().hex[:8]}"
        setattr(sys.modules.setdefault(OBJECTS, types.ModuleType(OBJECTS)), held, value_here)
        path = f"{OBJECTS}:{held}"
    GIVEN_HERE.add(path)
    return path


def saved_by(run: str, advice: str = "start one without --run.resume") -> dict[str, Any]:
    """The content of a run's config.json, not checked. Raises FormatError with the advice if the folder has no config.json."""
    from graphmill.cluster.runs.run_directory import load_config  # loads pyarrow
    from graphmill.cluster.runs.run_store import RunStore

    return load_config(RunStore(run), advice)


def give_model(run: str, model: Any) -> None:
    """Registers `model` as a replacement for the model object that another process passed to the run. None: does nothing."""
    if model is not None:
        named({"model": model}, saved_by(run))


def in_this_process(path: str) -> bool:
    """Whether an import path is valid only in this process."""
    return path.startswith((f"{OBJECTS}:", "__main__:"))


def origin(path: str) -> Mapping[str, str]:
    """Distribution, version and source hash of a user's own component or kind, stored with the run. Empty for our components."""
    if ":" not in path:
        return {}
    own = load(path)
    if in_this_process(path) or path.startswith("torch."):  # its source may have changed when the run is resumed
        return {"path": path}
    module = sys.modules[own.__module__ if isinstance(own, type) else path.partition(":")[0]]
    package = module.__name__.partition(".")[0]
    names = importlib.metadata.packages_distributions().get(package, [])
    source = inspect.getsourcefile(module)
    described = {
        "path": path,
        "source_hash": hashlib.sha256(Path(source).read_bytes()).hexdigest() if source else "",
    }
    if names:
        described |= {"distribution": names[0], "version": importlib.metadata.version(names[0])}
    return described
