"""Tests whether one head of attention can attend only to the neighbors k steps away: GRIT's first experiment (arXiv:2305.17589, section 4.1).

    python -m graphmill.jobs.papers.hop_attention                              20 small molecules that are embedded, three kinds, k = 1, 2, 3: about ten minutes on one core
    python -m graphmill.jobs.papers.hop_attention --data graphs/zinc           graphs of a stored set, as in the paper (ZINC)
    python -m graphmill.jobs.papers.hop_attention --kinds grit --hops 3

One layer with one head reads positions and no features. For each graph a new layer learns the matrix (Aᵏ > 0), each row divided by its sum. The loss is
the mean absolute error. GRIT uses its conditional scores over random walks. Graphormer uses dot products of degree embeddings and a bias for each
length of a shortest path. Uniform gives every node the same weight and needs no training.

You should see an error of 0 with GRIT for every k, and a much larger error with uniform. Graphormer's error is 0 for k = 1, because the distance alone decides
in this case. The error grows with k. It is lower than in the paper, which has another baseline. The paper's errors for k = 1, 2, 3, on 20 graphs of ZINC with
2,000 epochs each, are: GRIT .001, .001, .007; Graphormer .043, .034, .025; mean pooling .083, .080, .069; SAN, which this job does not have, .044, .042, .029.
results.md and results.json are written to --out. The paper does not specify the following. Here widths are 64, Adam starts at 1e-3 with a cosine to 0, and a
row without neighbors k steps away does not count.
"""

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from graphmill.core.errors import ConfigError
from graphmill.core.option_checks import Count, Positive, check_fields
from graphmill.jobs.bench.results import check_results, keep, table
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse

if TYPE_CHECKING:
    from torch import Tensor, nn

    from graphmill.models.primitives.graphs import Graphs

Kind = Literal["grit", "graphormer", "uniform"]
PUBLISHED = {
    "grit": {1: 0.001, 2: 0.001, 3: 0.007},
    "graphormer": {1: 0.043, 2: 0.034, 3: 0.025},
    "uniform": {1: 0.083, 2: 0.080, 3: 0.069},
}
_DEGREES, _LENGTHS = 16, 32


@dataclass(frozen=True)
class HopConfig:
    """Learn the attention to nodes k steps away."""

    data: str | None = None
    """A stored set of graphs; none: the embedded molecules."""
    kinds: tuple[Kind, ...] = get_args(Kind)
    """Attentions to compare."""
    hops: tuple[Count, ...] = (1, 2, 3)
    """Values of k."""
    graphs: Count = 20
    """Number of graphs; the largest of the set's first thousand are used."""
    steps: Count = 2000
    """Training steps for each graph."""
    lr: Positive = 1e-3
    """Adam's initial learning rate; it falls to 0 by a cosine."""
    width: Count = 64
    """Channels of a node's state."""
    walk_steps: Count = 21
    """GRIT's K, channels of walk probabilities."""
    seed: int = 0
    """The same seed gives the same table."""
    out: Path = Path("runs/hop_attention")
    """Folder of the table."""

    def __post_init__(self) -> None:
        check_fields(self)


def read_graphs(data: str | None, count: int) -> "list[Graphs]":
    """Returns the largest graphs of the set's first thousand, one by one and without features. Raises ConfigError if the set has too few graphs."""
    import torch

    from graphmill.jobs.config.config import GraphSetOptions
    from graphmill.jobs.data.prepare_molecules import prepare_molecules
    from graphmill.models.primitives.graphs import Graphs

    store = prepare_molecules(GraphSetOptions(path=data, molecules=1000), None)
    sizes = store.num_nodes[:1000]
    if len(sizes) < count:
        raise ConfigError(f"graphs: expected at most the set's {len(sizes)}, got {count}; set --graphs")
    graphs = []
    for index in np.argsort(-sizes, kind="stable")[:count]:
        packed = store.fetch(np.array([index]))
        num_nodes = int(packed.num_nodes[0])
        edges = torch.from_numpy(packed.edge_index.astype(np.int64))
        graphs.append(Graphs(torch.tensor([0, num_nodes]), edges, node_id=torch.arange(num_nodes)))
    return graphs


def hop_targets(graphs: "Graphs", hops: int) -> "Tensor":
    """Returns the matrix (Aᵏ > 0) of one graph, each row divided by its sum; a row of zeros stays unchanged."""
    import torch

    adjacency_NN = graphs.padding.adjacency(torch.float32)[0]
    reached_NN = torch.linalg.matrix_power(adjacency_NN, hops) > 0
    return reached_NN / reached_NN.sum(1, keepdim=True).clamp(min=1)


def build_model(kind: Kind, config: HopConfig, seed: int) -> "nn.Module":
    """Makes one layer with one head; `model(graphs)` returns the attention [N, N]."""
    import torch
    from torch import nn

    from graphmill.models.encodings.random_walk import random_walk_probabilities
    from graphmill.models.grit.attention import BiasAttention, ConditionalAttention
    from graphmill.models.grit.options import GRITConfig

    options = GRITConfig(
        width=config.width, num_heads=1, num_layers=1, rrwp_steps=config.walk_steps, attention_dropout=0.0
    )

    class GRITHead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.absolute, self.relative = (nn.Linear(config.walk_steps, config.width, bias=False) for _ in range(2))
            self.attention = ConditionalAttention(options)

        def forward(self, graphs: "Graphs") -> "Tensor":
            walks_NNK = random_walk_probabilities(graphs, config.walk_steps)[0]
            x_ND, e_NND = self.absolute(walks_NNK.diagonal().t()), self.relative(walks_NNK)
            layer = self.attention
            weight_NND, bias_NND = layer.edge(e_NND).chunk(2, dim=2)
            t_NND = (layer.query(x_ND).unsqueeze(1) + layer.key(x_ND).unsqueeze(0)) * weight_NND
            # The slope of ρ is unbounded at 0; the 1e-12 bounds it, and ρ(0) stays 0.
            rho_NND = t_NND.sign() * (t_NND.abs() + 1e-12).sqrt()
            return torch.einsum("ijc,chq->ij", torch.relu(rho_NND + bias_NND), layer.score).softmax(1)

    class GraphormerHead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.degree, self.length = nn.Embedding(_DEGREES, config.width), nn.Embedding(_LENGTHS + 1, config.width)
            self.attention = BiasAttention(options)

        def forward(self, graphs: "Graphs") -> "Tensor":
            reached_NNK = random_walk_probabilities(graphs, _LENGTHS)[0] > 0
            length_NN = reached_NNK.int().argmax(dim=2).where(reached_NNK.any(dim=2), _LENGTHS)
            x_ND = self.degree(graphs.by_source.size_S.clamp_max(_DEGREES - 1))
            layer = self.attention
            score_NN = layer.query(x_ND) @ layer.key(x_ND).t() / config.width**0.5
            return (score_NN + layer.bias(self.length(length_NN))[..., 0]).softmax(1)

    class UniformHead(nn.Module):
        def forward(self, graphs: "Graphs") -> "Tensor":
            return torch.full((graphs.num_nodes, graphs.num_nodes), 1 / graphs.num_nodes)

    torch.manual_seed(seed)
    return {"grit": GRITHead, "graphormer": GraphormerHead, "uniform": UniformHead}[kind]()


def fit(kind: Kind, config: HopConfig, graphs: "Graphs", hops: int, seed: int) -> tuple[float, float]:
    """Returns (mean absolute error, R²) after the last step, over the rows that have neighbors."""
    import torch

    model, target_NN = build_model(kind, config, seed), hop_targets(graphs, hops)
    counts = target_NN.any(dim=1)
    target_RN = target_NN[counts]
    parameters = list(model.parameters())
    if parameters:
        optimizer = torch.optim.Adam(parameters, lr=config.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.steps)
        for _ in range(config.steps):
            optimizer.zero_grad()
            (model(graphs)[counts] - target_RN).abs().mean().backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        error_RN = model(graphs)[counts] - target_RN
    spread = (target_RN - target_RN.mean()).square().sum()
    return float(error_RN.abs().mean()), float(1 - error_RN.square().sum() / spread)


def main() -> None:
    config = parse(HopConfig, __doc__)
    check_results(config.out)
    graphs = read_graphs(config.data, config.graphs)
    results, rows = {}, []
    for kind in config.kinds:
        for hops in config.hops:
            began = time.perf_counter()
            # A graph without two nodes k steps apart has no target.
            fits = [
                fit(kind, config, one, hops, config.seed + number)
                for number, one in enumerate(graphs)
                if hop_targets(one, hops).any()
            ]
            if not fits:
                continue
            errors, squares = zip(*fits, strict=True)
            spread = statistics.stdev(errors) if len(errors) > 1 else 0.0
            published = PUBLISHED[kind].get(hops, "")
            row = (
                kind,
                hops,
                statistics.fmean(errors),
                spread,
                statistics.fmean(squares),
                published,
                time.perf_counter() - began,
            )
            rows.append(row)
            results[f"{kind} {hops}"] = {
                "mae": row[2],
                "std": row[3],
                "r2": row[4],
                "graphs": len(fits),
                "seconds": row[6],
            }
            print(f"{kind}, k = {hops}: MAE {row[2]:.4f} ± {row[3]:.4f}, R² {row[4]:.3f}", flush=True)
    columns = {"attention": "", "k": "", "MAE": ".4f", "±": ".4f", "R²": ".3f", "paper's MAE": "", "seconds": ".0f"}
    text = "\n".join(table(columns, rows))
    keep(config.out, config, text, results=results)
    print(text)


if __name__ == "__main__":
    run(main)
