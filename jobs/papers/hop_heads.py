"""The attentions that GRIT's first experiment compares: each is one layer with one head, and `model(graphs)` returns the attention [N, N] of one graph.

grit          GRIT's conditional scores over random walks
graphormer    dot products of degree embeddings, and a bias for each length of a shortest path
transformer   dot products of return probabilities (RWSE)
san           SAN (arXiv:2106.03893): a transformer over each node's eigenvectors and eigenvalues makes its state; edges and other pairs have their own keys,
              queries and softmax, and share 1 / (1 + γ) and γ / (1 + γ) of the attention, with a learned γ
egt           EGT (arXiv:2108.03348): states from the adjacency's singular vectors; softmax(clip(q·k / √D, ±5) + b_ij) ⊙ σ(g_ij), b and g linear in a
              state of whether i and j are joined
uniform       the same weight for every node
"""

import torch
from torch import Tensor, nn

from graphmill.models.encodings.laplacian import laplacian_eigenvectors
from graphmill.models.encodings.random_walk import random_walk_probabilities
from graphmill.models.grit.attention import BiasAttention, ConditionalAttention
from graphmill.models.grit.options import GRITConfig
from graphmill.models.primitives.graphs import Graphs

_DEGREES, _LENGTHS = 16, 32
_VECTORS = 10  # eigenvectors of SAN, singular vectors of EGT


def _options(width: int, walk_steps: int) -> GRITConfig:
    return GRITConfig(width=width, num_heads=1, num_layers=1, rrwp_steps=walk_steps, attention_dropout=0.0)


class GRITHead(nn.Module):
    def __init__(self, width: int, walk_steps: int) -> None:
        super().__init__()
        self.steps = walk_steps
        self.absolute, self.relative = (nn.Linear(walk_steps, width, bias=False) for _ in range(2))
        self.attention = ConditionalAttention(_options(width, walk_steps))

    def forward(self, graphs: Graphs) -> Tensor:
        walks_NNK = random_walk_probabilities(graphs, self.steps)[0]
        x_ND, e_NND = self.absolute(walks_NNK.diagonal().t()), self.relative(walks_NNK)
        layer = self.attention
        weight_NND, bias_NND = layer.edge(e_NND).chunk(2, dim=2)
        t_NND = (layer.query(x_ND).unsqueeze(1) + layer.key(x_ND).unsqueeze(0)) * weight_NND
        # The slope of ρ is unbounded at 0; the 1e-12 bounds it, and ρ(0) stays 0.
        rho_NND = t_NND.sign() * (t_NND.abs() + 1e-12).sqrt()
        return torch.einsum("ijc,chq->ij", torch.relu(rho_NND + bias_NND), layer.score).softmax(1)


class GraphormerHead(nn.Module):
    def __init__(self, width: int, walk_steps: int) -> None:
        super().__init__()
        self.width = width
        self.degree, self.length = nn.Embedding(_DEGREES, width), nn.Embedding(_LENGTHS + 1, width)
        self.attention = BiasAttention(_options(width, walk_steps))

    def forward(self, graphs: Graphs) -> Tensor:
        reached_NNK = random_walk_probabilities(graphs, _LENGTHS)[0] > 0
        length_NN = reached_NNK.int().argmax(dim=2).where(reached_NNK.any(dim=2), _LENGTHS)
        x_ND = self.degree(graphs.by_source.size_S.clamp_max(_DEGREES - 1))
        layer = self.attention
        score_NN = layer.query(x_ND) @ layer.key(x_ND).t() / self.width**0.5
        return (score_NN + layer.bias(self.length(length_NN))[..., 0]).softmax(1)


class TransformerHead(nn.Module):
    def __init__(self, width: int, walk_steps: int) -> None:
        super().__init__()
        self.steps, self.width = walk_steps, width
        self.state = nn.Linear(walk_steps, width)
        self.query, self.key = (nn.Linear(width, width) for _ in range(2))

    def forward(self, graphs: Graphs) -> Tensor:
        x_ND = self.state(random_walk_probabilities(graphs, self.steps)[0].diagonal().t())
        return (self.query(x_ND) @ self.key(x_ND).t() / self.width**0.5).softmax(1)


class SANHead(nn.Module):
    def __init__(self, width: int, walk_steps: int) -> None:
        super().__init__()
        self.width = width
        self.pair = nn.Linear(2, width)
        self.positions = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.query, self.key = (nn.ModuleList(nn.Linear(width, width) for _ in range(2)) for _ in range(2))
        self.edge = nn.Parameter(torch.ones(2, width))  # a factor of each channel, for edges and for other pairs
        self.gamma = nn.Parameter(torch.zeros(()))

    def forward(self, graphs: Graphs) -> Tensor:
        vectors_NK, values_1K = laplacian_eigenvectors(graphs, _VECTORS)
        pairs_NK2 = torch.stack([vectors_NK, values_1K.expand_as(vectors_NK)], 2)
        is_there_K = torch.arange(vectors_NK.shape[1]) < graphs.num_nodes
        x_ND = self.positions(self.pair(pairs_NK2[:, is_there_K])).sum(1)
        adjacency_NN = graphs.padding.adjacency()[0] > 0
        shares = []
        for place, allowed_NN in enumerate((adjacency_NN, ~adjacency_NN)):
            score_NN = (self.query[place](x_ND) * self.edge[place]) @ self.key[place](x_ND).t() / self.width**0.5
            lowest = torch.finfo(score_NN.dtype).min / 2  # a row without such a pair stays finite, and is set to 0
            shares.append(score_NN.masked_fill(~allowed_NN, lowest).softmax(1) * allowed_NN)
        gamma = nn.functional.softplus(self.gamma)
        return (shares[0] + gamma * shares[1]) / (1 + gamma)


class EGTHead(nn.Module):
    def __init__(self, width: int, walk_steps: int) -> None:
        super().__init__()
        self.width = width
        self.state = nn.Linear(2 * _VECTORS, width)
        self.query, self.key = (nn.Linear(width, width) for _ in range(2))
        self.edge = nn.Embedding(2, width)
        self.bias, self.gate = nn.Linear(width, 1), nn.Linear(width, 1)

    def forward(self, graphs: Graphs) -> Tensor:
        adjacency_NN = graphs.padding.adjacency()[0]
        left_NN, size_N, right_NN = torch.linalg.svd(adjacency_NN)
        code_N2K = torch.stack([left_NN, right_NN.t()], 1)[..., :_VECTORS] * size_N[:_VECTORS].sqrt()
        code_N2K = nn.functional.pad(code_N2K, (0, _VECTORS - code_N2K.shape[2]))
        x_ND = self.state(code_N2K.flatten(1))
        e_NND = self.edge(adjacency_NN.long())
        score_NN = (self.query(x_ND) @ self.key(x_ND).t() / self.width**0.5).clamp(-5, 5)
        return (score_NN + self.bias(e_NND)[..., 0]).softmax(1) * torch.sigmoid(self.gate(e_NND)[..., 0])


class UniformHead(nn.Module):
    def __init__(self, width: int, walk_steps: int) -> None:
        super().__init__()

    def forward(self, graphs: Graphs) -> Tensor:
        return torch.full((graphs.num_nodes, graphs.num_nodes), 1 / graphs.num_nodes)


HEADS: dict[str, type[nn.Module]] = {
    "grit": GRITHead,
    "graphormer": GraphormerHead,
    "transformer": TransformerHead,
    "san": SANHead,
    "egt": EGTHead,
    "uniform": UniformHead,
}
