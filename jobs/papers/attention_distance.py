"""Measures how far each head of a trained TokenGT looks: the mean distance in hops, weighted by attention (arXiv:2207.02505, figure 4).

    python -m graphmill.jobs.papers.attention_distance --run runs/pcqm4mv2-lap --data graphs/pcqm4mv2 --graphs 1000

The distance of two tokens is the length of the shortest path between their nodes: an edge's token has two nodes, and the nearest pair counts. Attention to
special tokens, and between parts of a graph that no path joins, is left out, and the rest is divided by its sum. For each head the mean is over the queries of a
graph, then over the graphs. The paper does not define the distance of an edge's token.

You should see a table of layers and heads. results.md, results.json and distances.svg, a dot for each head over the layers, are written to --out. A run whose
attention is Performer also works, since its weights are computed for small graphs.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from graphmill.core.errors import ConfigError
from graphmill.core.option_checks import Count, check_fields
from graphmill.jobs.bench.results import check_results, keep, table
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class DistanceConfig:
    """Measure the attention distances of a run's heads."""

    run: str
    """The directory of a finished run of TokenGT on many graphs."""
    data: str
    """A stored set of graphs with the run's features; its first graphs are measured."""
    graphs: Count = 100
    """Number of graphs."""
    out: Path = Path("runs/attention_distance")
    """Folder of the table and the drawing."""

    def __post_init__(self) -> None:
        check_fields(self)


def token_distances(edge_index: "Tensor", num_nodes: int) -> "Tensor":
    """[T, T]: distances in hops of the n node tokens and then the E edge tokens, edges in the given order; infinite where there is no path."""
    import torch

    length_NN = torch.full((num_nodes, num_nodes), float("inf"))
    reached_NN = torch.eye(num_nodes, dtype=torch.bool)
    step_NN = torch.zeros(num_nodes, num_nodes)
    step_NN[edge_index[0], edge_index[1]] = 1
    for length in range(num_nodes):
        length_NN[reached_NN & length_NN.isinf()] = length
        reached_NN = (reached_NN.float() @ step_NN) > 0
    nodes = torch.arange(num_nodes)
    first, second = (torch.cat([nodes, ends]) for ends in edge_index)
    return torch.stack([length_NN[a][:, b] for a in (first, second) for b in (first, second)]).amin(0)


def head_distances(weights: "list[Tensor]", distance_TT: "Tensor") -> np.ndarray:
    """[layers, heads]: mean distances of one graph, from its weights [1, H, S + T, S + T] per layer with S special tokens first."""
    import torch

    count = len(distance_TT)
    reached_TT = distance_TT.isfinite()
    rows = []
    for weights_1HXX in weights:
        own_HTT = weights_1HXX[0, :, -count:, -count:] * reached_TT
        share_HTT = own_HTT / own_HTT.sum(2, keepdim=True).clamp_min(torch.finfo(own_HTT.dtype).tiny)
        rows.append((share_HTT * distance_TT.where(reached_TT, 0.0)).sum(2).mean(1).numpy())
    return np.stack(rows)


def main() -> None:
    config = parse(DistanceConfig, __doc__)
    check_results(config.out)
    import torch

    from graphmill.jobs.papers.drawings import write_dots
    from graphmill.jobs.run.trained_model import load_model
    from graphmill.storage.graph_sets.graph_set import open_graphs

    model, store = load_model(config.run), open_graphs(config.data)
    count = min(config.graphs, len(store.num_nodes))
    sums, measured = None, 0
    for index in range(count):
        packed = store.fetch(np.array([index]))
        num_nodes = int(packed.num_nodes[0])
        if not num_nodes:
            continue
        edge_index = torch.from_numpy(packed.edge_index.astype(np.int64))
        order = torch.argsort(edge_index[0], stable=True)  # the model's tokens are ordered by source
        edge_index = edge_index[:, order]
        columns = {} if packed.edge_feature is None else {"edge_attr": torch.from_numpy(packed.edge_feature)[order]}
        with torch.no_grad():
            weights = model.attention(
                None if packed.node_feature is None else torch.from_numpy(packed.node_feature), edge_index, **columns
            )
        found = head_distances(weights, token_distances(edge_index, num_nodes))
        sums, measured = found if sums is None else sums + found, measured + 1
    if sums is None:
        raise ConfigError(
            f"data: expected graphs with nodes, {config.data} has none among its first {count}; set --data"
        )
    mean = sums / measured
    columns_of = {"layer": "", **{f"head {head}": ".2f" for head in range(mean.shape[1])}}
    text = "\n".join(table(columns_of, [(layer, *row) for layer, row in enumerate(mean)]))
    keep(config.out, config, text, results={f"layer {layer}": list(map(float, row)) for layer, row in enumerate(mean)})
    write_dots(config.out / "distances.svg", {"mean attention distance in hops, by layer": mean.tolist()})
    print(text)


if __name__ == "__main__":
    run(main)
