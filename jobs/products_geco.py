"""GECO on a products-like graph: partitioned, served by Ray actors, trained by DDP workers.

    python jobs/products_geco.py                                  the embedded synthetic graph, about 2 minutes on 2 cores
    python jobs/products_geco.py --graph path/or/url              a graph prepared by jobs/ingest.py
    python jobs/products_geco.py --graph ogbn-products            OGB's set, once its files are under data/ogb
    python jobs/products_geco.py --parallel graph                 the whole graph as one batch, its nodes spread over the workers
    ray job submit --working-dir . -- python jobs/products_geco.py

Expect a test accuracy far above the features-only baseline on the embedded graph, whose labels are noisy on purpose: see
docs/performance.md for measured figures.
"""

import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from jobs.run.command_line import parse
from jobs.run.exit_codes import run
from jobs.run.node_options import NodeJobOptions
from jobs.run.resume import config_defaults
from jobs.run.run_models import NodeModel, WholeGraphModel


@dataclass(frozen=True)
class ModelOptions:
    """GECO (arXiv:2406.12059)."""

    width: int = 128
    """Channels of every layer."""

    layers: int = 3
    """GECO layers."""

    order: int = 2
    """Global convolutions per layer."""

    propagation: Literal["mean", "sum", "sym"] = "mean"
    """Normalisation of the adjacency in the local block."""

    permutation: Literal["static", "dynamic"] = "static"
    """One node order for the whole run, or a fresh one per epoch and layer."""

    dropout: float = 0.3
    """After both blocks of a layer and inside the FFN."""

    input_dropout: float = 0.3
    """On the features."""

    filter_learning_rate: float | None = 1e-2
    """Rate of the implicit filters; none: the common rate."""

    filter_scale: Literal["length", "sqrt_length", "none"] = "length"
    """Divide the filters by N, by its root, or not at all as the paper has it, which does not train on graphs of this size."""

    filter_bands: int = 3
    """Frequency bands of the filters' positional code."""

    filter_width: int = 64
    """Inner width of the filters' FFN."""

    norm: Literal["post", "pre"] = "post"
    """Where the layers' LayerNorms stand; the paper's is post."""

    hops: int = 1
    """Powers of the adjacency in the local block; the paper's is 1."""

    jump: Literal["last", "sum"] = "last"
    """What the head reads: the last layer (the paper), or the sum of all."""

    skip: bool = False
    """Hyena's per-channel skip past each convolution; not in GECO's equations. Good on the public sets tried, not on the embedded one."""

    output_projection: bool = False
    """A linear map after the global block, as in Hyena; not in the paper."""

    recompute: bool = False
    """Keep of a layer its input alone and compute the rest again in the backward pass: less memory, a third more time."""


@dataclass(frozen=True)
class Config(NodeJobOptions):
    """GECO on a partitioned graph."""

    model: ModelOptions = field(default_factory=ModelOptions)

    parallel: Literal["data", "graph"] = "data"
    """data: every worker has its own batches; graph: the whole graph is the one batch of an epoch, its nodes spread over the workers."""


def build_model_config(model: ModelOptions, seed: int, in_dim: int, out_dim: int) -> Any:
    """The GECOConfig for a graph's widths."""
    from models.geco import FilterConfig
    from models.options.geco import GECOConfig

    return GECOConfig(
        in_dim=in_dim,
        out_dim=out_dim,
        width=model.width,
        num_layers=model.layers,
        order=model.order,
        propagation=model.propagation,
        permutation=model.permutation,
        dropout=model.dropout,
        input_dropout=model.input_dropout,
        norm=model.norm,
        hops=model.hops,
        jump=model.jump,
        skip=model.skip,
        output_projection=model.output_projection,
        recompute=model.recompute,
        filter=FilterConfig(bands=model.filter_bands, inner_width=model.filter_width, scale=model.filter_scale),
        seed=seed,
    )


def node_model(config: Config) -> NodeModel:
    """What is trained, and what predicts afterwards."""
    from jobs.run.geco_classifier import GECOClassifier, GECOShardClassifier
    from jobs.run.whole_graph import WholeGraphData

    rate = config.model.filter_learning_rate
    return NodeModel(
        build=lambda manifest: GECOClassifier(_geco_config(config, manifest), rate),
        config=lambda manifest: architecture(_geco_config(config, manifest)),
        whole=WholeGraphModel(
            build=lambda manifest: GECOShardClassifier(_geco_config(config, manifest), rate),
            data=lambda graph: WholeGraphData.of(graph, config.graph.split_set, _geco_config(config, graph.manifest)),
        ),
    )


def architecture(config: Any) -> dict[str, Any]:
    """What a checkpoint has to agree with: all of a GECOConfig but how it is computed."""
    return {name: value for name, value in asdict(config).items() if name != "recompute"}


def _geco_config(config: Config, manifest: Any) -> Any:
    return build_model_config(config.model, config.fit.seed, manifest.feature_dim, manifest.num_classes)


def main() -> int:
    config = parse(Config, default=config_defaults(Config, sys.argv[1:]), prefixes=False)
    from jobs.run.node_job import run_node_job
    from storage.errors import ConfigError

    model = node_model(config)
    whole = model.whole if config.parallel == "graph" else None
    fanouts = config.batch.fanouts
    # With all edges among the nodes found, any number of hops makes a graph for any number of layers.
    sampled = config.batch.sampler == "neighbor" and config.batch.edges == "sampled"
    if sampled and len(fanouts) != config.model.layers:
        raise ConfigError(
            f"fanouts needs one entry per layer: {config.model.layers} layers, got {fanouts}; "
            "set --fanouts or --layers, or --edges induced"
        )
    try:
        build_model_config(config.model, config.fit.seed, 1, 2)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return run_node_job(
        job=Path(__file__).stem,
        options=config,
        config=asdict(config),
        build_model=model.build if whole is None else whole.build,
        model_config=model.config,
        whole_graph=None if whole is None else whole.data,
    )


if __name__ == "__main__":
    run(main)
