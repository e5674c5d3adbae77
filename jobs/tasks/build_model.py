"""Builds the module that the trainer takes: from the name and options of a model, or from a plain `nn.Module` with a `forward` like PyG's models."""

import inspect
import sys
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import field, make_dataclass, replace
from functools import cache, partial
from types import UnionType
from typing import Any, Union, get_args, get_origin

import torch
from torch import Tensor, nn

from graphmill.core.errors import ConfigError
from graphmill.jobs.config.registry import Component, Inputs, find_kind, given_of, model_config
from graphmill.models.geco.options import GECOConfig
from graphmill.models.primitives.graphs import Graphs
from graphmill.models.relational.network import TypedGraphs
from graphmill.models.relational.options import RelationalConfig
from graphmill.samplers.methods.registry import load


def build_model(component: Component, kind: str, inputs: Inputs, relational: RelationalConfig | None = None) -> Any:
    """The module that the trainer takes: its input is a batch, its output a StepOutput. `relational`: layers before the model, for typed graphs."""
    from graphmill.jobs.tasks.model_inputs import OverGraphs, OverPairs, plain, with_penalty

    if inputs.node_dims:
        return _build_typed_model(component, inputs, relational or RelationalConfig())
    row = component.row("model", kind)
    made = component.options.build(inputs) if row is None else load(row.build)(model_config(component, inputs))
    path = find_kind(kind).to_graphs
    if not path or (getattr(component.options, "takes_batches", False) if row is None else row.takes_batches):
        return made
    to_graphs = own() if isinstance(own := load(path), type) else own
    predict = with_penalty if hasattr(made, "forward_with_penalty") else plain
    if inputs.task == "link":
        width = getattr(component.options, "width", None)
        if not isinstance(width, int):
            raise ConfigError(
                f"model: pairs need a model whose options have a width, {component.name} has none; add it"
            )
        return OverPairs(made, to_graphs, predict, width)
    return OverGraphs(made, to_graphs, predict)


def _build_typed_model(component: Component, inputs: Inputs, relational: RelationalConfig) -> Any:
    """Builds a model of typed graphs, or relational layers with a model of plain graphs after them. The second model reads the states of the relational
    layers."""
    from graphmill.jobs.tasks.model_inputs import OverGraphs, plain, typed_batch_graphs, with_penalty
    from graphmill.models.geco.network import param_groups
    from graphmill.models.relational.network import OverTypes

    row = component.row("model", "nodes")
    if row is None:
        network = component.options.build(inputs)
    else:
        network = load(row.over_graphs or row.build)(model_config(component, inputs))
    if getattr(component.options, "takes_batches", False):
        return network
    if component.takes_types:
        return OverGraphs(network, typed_batch_graphs)
    predict = with_penalty if hasattr(network, "forward_with_penalty") else plain
    layers = replace(relational, **given_of(RelationalConfig, inputs))
    model: Any = OverGraphs(OverTypes(layers, network), typed_batch_graphs, predict)
    if isinstance(component.options, GECOConfig):
        model.param_groups = partial(param_groups, model, filter_lr=component.options.filter_learning_rate)
    return model


# Maps the usual names of constructor parameters to the entry of the data that provides the value.
_OF_INPUTS = {
    **dict.fromkeys(
        ("in_channels", "in_dim", "in_features", "in_feats", "input_dim", "num_features", "num_node_features"), "in"
    ),
    **dict.fromkeys(("out_channels", "out_dim", "out_features", "out_feats", "output_dim", "num_classes"), "out"),
    **dict.fromkeys(("edge_dim", "num_edge_features"), "edge"),
    "metadata": "metadata",
}
_PLAIN = (int, float, bool, str)
# Arguments that the forward of a module may have. _WHOLE are single arguments: `graphs` as in Graphmill's models, `data` as in PyG, `batch` from the loader.
_TENSORS = ("x", "edge_index", "edge_weight", "edge_attr", "batch")
_TYPED = ("x_dict", "edge_index_dict", "edge_weight_dict", "edge_attr_dict")
_WHOLE = ("graphs", "data", "batch")
# PyG's models use these arguments to trim their layers. Trimming does not change the results of the roots.
_TRIMMING = ("batch_size", "num_sampled_nodes_per_hop", "num_sampled_edges_per_hop")


@cache
def module_options(own: Any) -> type:
    """The options class of a plain module. If `own` is a class, it gets an option for each constructor parameter that the data does not provide. If `own` is an
    object, it gets no options.

    Raises ConfigError if the data provides no value for a required argument of `forward`. Prints a warning for arguments that keep their default.
    """
    takes = _Arguments(own)
    if takes.unfilled:
        known = ", ".join(takes.known)
        print(
            f"warning: {takes.module}.forward: {', '.join(takes.unfilled)}: always the default; what is filled: {known}",
            file=sys.stderr,
        )
    fields = [] if isinstance(own, nn.Module) else _constructor_fields(own)
    kept: dict[str, Any] = {
        "__doc__": (inspect.getdoc(own) or "").partition("\n")[0],
        "build": lambda options, inputs: _built(own, options, inputs),
        "takes_types": takes.is_typed,
        "takes_batches": takes.whole == "batch",
    }
    if not takes.whole:
        kept |= {"reads_weights": takes.has("edge_weight"), "reads_edges": takes.has("edge_attr")}
    return make_dataclass(takes.module, fields, frozen=True, namespace=kept)


def _constructor_fields(own: type) -> list[Any]:
    fields: list[Any] = []
    for name, parameter in inspect.signature(own).parameters.items():
        if name in _OF_INPUTS or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        has_default = parameter.default is not parameter.empty
        hint = _hint(parameter.annotation, parameter.default if has_default else None)
        if hint is None and not has_default:
            raise ConfigError(
                f"{own.__name__}: {name}: expected a parameter of int, float, bool or str, or one with a default, got {parameter.annotation}"
            )
        if hint is not None:
            default = tuple(parameter.default) if isinstance(parameter.default, list) else parameter.default
            fields.append((name, hint, field(default=default)) if has_default else (name, hint))
    return fields


def _hint(annotation: Any, default: Any) -> Any:
    """The type of an option; None if a command line cannot give such a value."""
    types = {plain.__name__: plain for plain in _PLAIN}
    annotation = types.get(annotation, annotation) if isinstance(annotation, str) else annotation
    if annotation in _PLAIN:
        return annotation
    if isinstance(default, _PLAIN):
        return type(default)
    if isinstance(default, tuple | list) or get_origin(annotation) in (tuple, list):
        return tuple[int | float | str, ...]
    if get_origin(annotation) in (Union, UnionType):
        known = [one for one in get_args(annotation) if one in (*_PLAIN, type(None))]
        return Union[tuple(known)] if len(known) == len(get_args(annotation)) else None  # noqa: UP007
    return int | float | str | None if annotation is inspect.Parameter.empty and default is None else None


class _Arguments:
    """The arguments of the `forward` of a module, or of a class of modules."""

    def __init__(self, own: Any) -> None:
        self.module = own.__name__ if isinstance(own, type) else type(own).__name__
        parameters = [
            parameter
            for parameter in inspect.signature(own.forward).parameters.values()
            if parameter.name != "self" and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        self.needed = [parameter.name for parameter in parameters if parameter.default is parameter.empty]
        self.whole = self.needed[0] if len(self.needed) == 1 and self.needed[0] in _WHOLE else ""
        self.has_epoch = "epoch" in [parameter.name for parameter in parameters]
        self.names = [parameter.name for parameter in parameters if parameter.name in (*_TENSORS, *_TYPED)]
        # PyG's `to_hetero` makes a GraphModule, whose x and edge_index are mappings.
        self.is_typed = "x_dict" in self.needed or isinstance(own, torch.fx.GraphModule)
        own_epoch = ("epoch",) if self.whole in ("graphs", "batch") else ()
        self.known = (self.whole, *own_epoch) if self.whole else _TYPED if "x_dict" in self.needed else _TENSORS
        self.unfilled = [parameter.name for parameter in parameters if parameter.name not in (*self.known, *_TRIMMING)]
        unknown = [name for name in self.needed if name not in (*_TENSORS, *_TYPED)]
        if not self.whole and (unknown or not {"x", "x_dict"} & set(self.needed)):
            raise ConfigError(
                f"{self.module}.forward: expected x, edge_index and as it needs them edge_weight, edge_attr, batch; or x_dict, edge_index_dict; or one of "
                f"{', '.join(_WHOLE)} alone; got {', '.join(self.needed) or 'nothing'}"
            )

    def has(self, name: str) -> bool:
        """Whether `forward` takes the argument `name`, as a tensor or as a mapping by type."""
        return bool({name, f"{name}_dict"} & set(self.names))

    def of(self, graphs: Graphs | TypedGraphs) -> dict[str, Any]:
        """The keyword arguments for a call of `forward`."""
        if self.whole:
            return {self.whole: _as_data(graphs) if self.whole == "data" else graphs}
        values = _mappings(graphs) if isinstance(graphs, TypedGraphs) else self._tensors(graphs)
        taken = {name: values.get(name) for name in self.names}
        return {name: value for name, value in taken.items() if value is not None or name in self.needed}

    def _tensors(self, graphs: Graphs) -> dict[str, Tensor | None]:
        tensors = {name: getattr(graphs, name) for name in ("x", "edge_index", "edge_attr")}
        is_needed = "batch" in self.needed or graphs.num_graphs > 1 or graphs.root_index is None
        batch = graphs.graph_of_node if "batch" in self.names and is_needed else None
        return {**tensors, "edge_weight": graphs.edge_coefficient, "batch": batch}

    def check(self, inputs: Inputs) -> None:
        """Raises ConfigError if `forward` needs something that the data or the run does not provide."""
        has_features = any(inputs.edge_dims) or not (inputs.node_dims or inputs.edge.empty)
        lacks = {
            "edge_weight": (not inputs.edge_weight, "weights of edges; ingest some, or give it a default"),
            "edge_attr": (not has_features, "features of edges; set --data.edge_features, or give it a default"),
        }
        lacks |= {f"{name}_dict": lack for name, lack in lacks.items()}
        if missing := [f"{name}: expected {lacks[name][1]}" for name in self.needed if lacks.get(name, (0, ""))[0]]:
            raise ConfigError(f"{self.module}.forward: {'; '.join(missing)}")
        is_typed = bool(inputs.node_dims)
        if self.is_typed != is_typed and (self.is_typed or self.whole == "data"):
            wanted, got = ("several types of nodes", "one type") if self.is_typed else ("one type of nodes", "several")
            raise ConfigError(
                f"{self.module}.forward takes {', '.join(self.needed)}: expected a graph of {wanted}, got one of {got}"
            )
        bare = [name for name, dim in inputs.node_dims if not dim] if self.is_typed else []
        if bare:
            raise ConfigError(
                f"{self.module}.forward: x_dict: expected features of every type, {', '.join(bare)} has none; ingest some"
            )
        if inputs.task == "graph" and not self.whole and "batch" not in self.names:
            raise ConfigError(
                f"{self.module}.forward: expected the argument batch, by which it gives a row for each graph, got {', '.join(self.needed)}"
            )


def _mappings(graphs: TypedGraphs) -> dict[str, Any]:
    edges = {}
    for (source, name, target), (indptr, indices) in graphs.edges.items():
        row_E = torch.repeat_interleave(indptr.diff().long(), output_size=len(indices))
        edges[source, name, target] = torch.stack([indices.long(), row_E])
    arguments = {"x": dict(graphs.x), "edge_index": edges}
    arguments |= {"edge_weight": dict(graphs.weight) or None, "edge_attr": dict(graphs.edge_attr) or None}
    return arguments | {f"{name}_dict": value for name, value in arguments.items()}


def _versions(graphs: Any) -> dict[str, int]:
    """PyTorch's counters of in-place changes, for all tensors of a batch that have such a counter."""
    tensors: dict[str, Any] = {}
    for name in ("x", "edge_coefficient", "weight", "edge_attr"):
        value = getattr(graphs, name, None)
        tensors |= {f"{name}[{key!r}]": x for key, x in value.items()} if isinstance(value, Mapping) else {name: value}
    return {name: x._version for name, x in tensors.items() if x is not None and not x.is_inference()}


def _as_data(graphs: Any) -> Any:
    from torch_geometric.data import Data

    columns = {name: getattr(graphs, name) for name in ("x", "edge_index", "edge_attr", "root_index")}
    columns |= {"edge_weight": graphs.edge_coefficient, "n_id": graphs.node_id, **graphs.encodings}
    data = Data(**{name: value for name, value in columns.items() if value is not None})
    data.num_nodes, data.batch, data.ptr = graphs.num_nodes, graphs.graph_of_node, graphs.node_ptr
    return data


def _built(own: Any, options: Any, inputs: Inputs) -> nn.Module:
    """Converts a user's module to the form that the trainer takes. If `own` is an object, it is copied with its weights."""
    takes = _Arguments(own)
    takes.check(inputs)
    if isinstance(own, nn.Module):
        module = deepcopy(own)
    else:
        by_role = {
            "in": inputs.node.dim or len(inputs.node.categories),
            "out": inputs.out_dim,
            "edge": inputs.edge.dim or len(inputs.edge.categories) or None,
            "metadata": ([name for name, _ in inputs.node_dims], [tuple(each) for each in inputs.relations]),
        }
        filled = [name for name in inspect.signature(own).parameters if name in _OF_INPUTS]
        values = {name: by_role[_OF_INPUTS[name]] for name in filled} | vars(options)
        try:
            module = own(**values)
        except (TypeError, ValueError) as error:
            arguments = ", ".join(f"{name}={value!r}" for name, value in values.items())
            raise ConfigError(f"{takes.module}({arguments}): {' '.join(str(error).split())}") from None
    if any(map(nn.parameter.is_lazy, (*module.parameters(), *module.buffers()))):
        with torch.no_grad():
            module(**takes.of(_smallest(inputs)))
    is_our_own = takes.whole == "batch" or (takes.whole == "graphs" and takes.has_epoch)
    return module if is_our_own else PlainModule(module, takes, inputs)


def _smallest(inputs: Inputs) -> Graphs | TypedGraphs:
    """A small graph with two nodes of each type and an edge of each relation. Lazy modules get their sizes from this graph."""
    pair, no_rows = torch.arange(2), {name: torch.zeros(2, dim) for name, dim in inputs.node_dims}
    if inputs.node_dims:
        edges = {each: (torch.arange(3), pair) for each in inputs.relations}
        weights = {each: torch.ones(2) for each in inputs.relations if inputs.edge_weight}
        attrs = {
            each: torch.zeros(2, dim) for each, dim in zip(inputs.relations, inputs.edge_dims, strict=False) if dim
        }
        types = dict.fromkeys(no_rows, pair)
        return TypedGraphs(types, no_rows, edges, inputs.node_dims[0][0], pair, weight=weights, edge_attr=attrs)
    node, edge = (
        torch.zeros(2, len(each.categories), dtype=torch.int64) if each.categories else torch.zeros(2, each.dim)
        for each in (inputs.node, inputs.edge)
    )
    weight = torch.ones(2) if inputs.edge_weight else None
    attr = None if inputs.edge.empty else edge
    return Graphs(torch.tensor([0, 2]), torch.stack([pair, pair.flip(0)]), node, attr, pair, edge_coefficient=weight)


class PlainModule(nn.Module):
    """A model over `Graphs` or `TypedGraphs` that calls a user's module with the tensors that the module's `forward` names."""

    def __init__(self, module: nn.Module, takes: _Arguments, inputs: Inputs) -> None:
        super().__init__()
        self.module = module
        self._takes, self._of_graphs, self._out_dim = takes, inputs.task == "graph", inputs.out_dim

    def forward(self, graphs: Any, epoch: int = 0) -> Tensor:
        """[r, out_dim]: a row for each graph or for each root. The rows of roots are taken from the rows that the module returns for all nodes.

        Raises ConfigError if the result of the module has another shape, or if the module changes its inputs in place.
        """
        before = _versions(graphs)
        out = self.module(**self._takes.of(graphs))
        if changed := [name for name, version in _versions(graphs).items() if version != before[name]]:
            raise ConfigError(
                f"{self._takes.module}.forward changes {', '.join(changed)} in place, which later passes read again; write x = x * 2, not x *= 2"
            )
        num_nodes = graphs.num_nodes
        if isinstance(graphs, TypedGraphs):
            out = out[graphs.root_type] if isinstance(out, Mapping) else out
            num_nodes = num_nodes[graphs.root_type]
        rows = graphs.num_graphs if self._of_graphs else num_nodes
        if self._takes.whole == "graphs" and graphs.root_index is not None:
            rows = len(graphs.root_index)
        if isinstance(out, Tensor) and out.ndim == 1 and self._out_dim == 1:
            out = out[:, None]
        if not isinstance(out, Tensor) or out.shape != (rows, self._out_dim):
            got = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
            unit = "graph" if self._of_graphs else "node"
            raise ConfigError(
                f"{self._takes.module}.forward: expected a tensor [{rows}, {self._out_dim}], a row for each {unit} with the outputs of the task, got {got}"
            )
        is_root = self._takes.whole == "graphs" or self._of_graphs or graphs.root_index is None
        return out if is_root else out[graphs.root_index]
