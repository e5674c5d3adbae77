"""PPGT by Node2Subgraph: a breadth-first subgraph around every root, and a class token that looks at it.

    python jobs/arxiv_ppgt.py                                         the embedded synthetic graph
    python jobs/arxiv_ppgt.py --graph path/or/url                     a graph prepared by jobs/ingest.py
    python jobs/arxiv_ppgt.py --graph ogbn-arxiv --directed --width 192 --num-layers 10 --num-heads 8 --stem-hidden 192 \\
        --edge-width 96 --drop-path 0.5 --attention-dropout 0.5 --node-masking 0.5 --head-dropout 0.5 --layer-scale 1e-5 \\
        --max-nodes 100 --max-hops 10 --batch-size 64 --epochs 300 --warmup-epochs 10 --learning-rate 2e-3 \\
        --min-learning-rate 1e-6 --weight-decay 5e-2 --label-smoothing 0.15
    ray job submit --working-dir . -- python jobs/arxiv_ppgt.py

The third is the released setting for ogbn-arxiv (128 roots a step over two workers); it was not run to its end by this project, which had
no GPU for it. The first takes some 6.5 minutes on two cores and should end near a test accuracy of 0.84, where features alone reach 0.36.
Every split is scored through its own subgraphs, so the test costs as much per node as training: the embedded default is small.
"""

import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from jobs.run.command_line import parse
from jobs.run.exit_codes import run
from jobs.run.node_options import BatchOptions, GraphOptions, NodeFitOptions, NodeJobOptions
from jobs.run.resume import config_defaults
from jobs.run.run_models import NodeModel


@dataclass(frozen=True)
class ModelOptions:
    """PPGT (arXiv:2504.12588), the class-attention model for Node2Subgraph."""

    width: int = 64
    """Channels of node states."""

    num_layers: int = 3
    """Self-attention layers."""

    class_layers: int = 2
    """Layers in which the class token looks at the nodes."""

    num_heads: int = 4
    """Attention heads."""

    walk_steps: int = 5
    """Powers of the walk matrix, forward and backward."""

    dual_walks: bool = True
    """Walks over reversed edges too; of no use on undirected graphs."""

    stem_hidden: int = 64
    """Inner width of the pair stem."""

    edge_width: int = 32
    """Channels of pair states."""

    drop_path: float = 0.1
    """Stochastic depth, of whole subgraphs."""

    attention_dropout: float = 0.1
    """Dropout of attention weights."""

    node_masking: float = 0.3
    """Share of the nodes whose features are hidden in training."""

    head_dropout: float = 0.2
    """Before the last linear map."""

    input_dropout: float = 0.0
    """On the features."""

    layer_scale: float | None = None
    """First value of a learned factor on every branch; the released code has 1e-5."""

    readout: Literal["class_attention", "direct"] = "class_attention"
    """A class token, or the root's own state."""


@dataclass(frozen=True)
class Config(NodeJobOptions):
    """PPGT on a partitioned graph."""

    graph: GraphOptions = field(default_factory=lambda: replace(GraphOptions(), nodes=5_000))
    batch: BatchOptions = field(
        default_factory=lambda: BatchOptions(
            sampler="node2subgraph", evaluation="sampled", batch_size=64, max_hops=2, max_nodes=32
        )
    )
    fit: NodeFitOptions = field(default_factory=NodeFitOptions)
    model: ModelOptions = field(default_factory=ModelOptions)


def build_model_config(model: ModelOptions, in_dim: int, out_dim: int) -> Any:
    """The PPGTConfig for a graph's widths."""
    from models.options.features import Features
    from models.options.ppgt import arxiv

    return arxiv(node=Features(dim=in_dim), out_dim=out_dim, **asdict(model))


def node_model(config: Config) -> NodeModel:
    """What is trained, and what predicts afterwards. Raises ConfigError for options that cannot work."""
    from jobs.run.model_inputs import OverGraphs, checked_config, node_batch_graphs
    from models.ppgt import PPGT

    def model_config(in_dim: int, out_dim: Any) -> Any:
        return checked_config(lambda: build_model_config(config.model, in_dim, out_dim))

    model_config(1, 2)  # options that cannot work are refused before anything starts
    return NodeModel(
        build=lambda manifest: OverGraphs(
            PPGT(model_config(manifest.feature_dim, manifest.num_classes)), node_batch_graphs
        ),
        config=lambda manifest: asdict(model_config(manifest.feature_dim, manifest.num_classes)),
    )


def main() -> int:
    config = parse(Config, default=config_defaults(Config, sys.argv[1:]), prefixes=False)
    from jobs.run.node_job import run_node_job
    from storage.errors import ConfigError

    if config.batch.sampler != "node2subgraph" or config.batch.evaluation != "sampled":
        raise ConfigError(
            f"sampler: PPGT takes one subgraph per root, got {config.batch.sampler} with {config.batch.evaluation} evaluation; "
            "set --sampler node2subgraph --evaluation sampled"
        )

    model = node_model(config)
    return run_node_job(
        job=Path(__file__).stem,
        options=config,
        config=asdict(config),
        build_model=model.build,
        model_config=model.config,
    )


if __name__ == "__main__":
    run(main)
