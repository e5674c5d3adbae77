"""A named model with its options, as the module that the trainer takes."""

from dataclasses import replace
from functools import partial
from typing import Any

from graphmill.core.errors import ConfigError
from graphmill.jobs.config.registry import Component, Inputs, find_kind, given_of, model_config
from graphmill.models.geco.options import GECOConfig
from graphmill.models.relational.options import RelationalConfig
from graphmill.samplers.methods.registry import load


def build_model(component: Component, kind: str, inputs: Inputs, relational: RelationalConfig | None = None) -> Any:
    """The module that the trainer takes: a batch in, a StepOutput out. `relational`: of a typed graph, the layers before the model."""
    from graphmill.jobs.tasks.model_inputs import OverGraphs, OverPairs, plain, with_penalty

    if inputs.node_dims:
        return _build_typed_model(component, inputs, relational or RelationalConfig())
    row = component.row("model", kind)
    made = component.options.build(inputs) if row is None else load(row.build)(model_config(component, inputs))
    path = find_kind(kind).to_graphs
    if not path or (row is not None and row.takes_batches):
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
    """A model of typed graphs, or relational layers and a model of plain ones over their states."""
    from graphmill.jobs.tasks.model_inputs import OverGraphs, plain, typed_batch_graphs, with_penalty
    from graphmill.models.geco.network import param_groups
    from graphmill.models.relational.network import OverTypes

    row = component.row("model", "nodes")
    if row is None:
        network = component.options.build(inputs)
    else:
        network = load(row.over_graphs or row.build)(model_config(component, inputs))
    if row is not None and row.takes_types:
        return OverGraphs(network, typed_batch_graphs)
    predict = with_penalty if hasattr(network, "forward_with_penalty") else plain
    layers = replace(relational, **given_of(RelationalConfig, inputs))
    model: Any = OverGraphs(OverTypes(layers, network), typed_batch_graphs, predict)
    if isinstance(component.options, GECOConfig):
        model.param_groups = partial(param_groups, model, filter_lr=component.options.filter_learning_rate)
    return model
