"""Stable and expressive positions equal a slow version of the formula. They do not depend on the sign and basis of eigenvectors."""

import torch
from torch import Tensor

from graphmill.models.encodings.laplacian import laplacian_eigenvectors
from graphmill.models.ends.stable_expressive import StableExpressive
from graphmill.models.primitives.graphs import Graphs


def rings(*sizes: int) -> Graphs:
    """Rings with one additional node as a tail. Eigenvalues of a ring come in pairs."""
    ptr = torch.tensor([0, *sizes]).cumsum(0)
    edges = []
    for start, n in zip(ptr[:-1].tolist(), sizes, strict=True):
        ring = [(start + i, start + (i + 1) % (n - 1)) for i in range(n - 1)] if n > 3 else []
        edges += ring + ([(start, start + n - 1)] if n > 1 else [])
    edge_index = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).t()
    return Graphs(ptr, torch.cat([edge_index, edge_index.flip(0)], dim=1), node_id=torch.arange(int(ptr[-1])))


def encoder(modes: int = 8) -> StableExpressive:
    torch.manual_seed(0)
    return StableExpressive(modes, 3, channels=4, num_layers=2).double()


def slow(layer: StableExpressive, graphs: Graphs) -> Tensor:
    """The positions of one graph. Makes one matrix per channel, then applies a GIN over the nodes to each column of the matrices."""
    vectors, values = laplacian_eigenvectors(graphs, layer.modes, dtype=torch.float64)
    phi_Ck = layer.phi(values[0].unsqueeze(1)).t()
    h = torch.stack([vectors @ torch.diag(phi_k) @ vectors.t() for phi_k in phi_Ck], dim=2)  # [i, j, C]
    n = graphs.num_nodes
    adjacency = torch.zeros(n, n).double()
    adjacency[graphs.edge_index[1], graphs.edge_index[0]] = 1
    for mlp, epsilon in zip(layer.rho, layer.epsilon, strict=True):
        h = torch.stack([mlp((1 + epsilon) * h[:, j] + adjacency @ h[:, j]) for j in range(n)], dim=1)
    return layer.out(h.sum(1))


def test_the_batch_is_the_formula_graph_by_graph() -> None:
    layer = encoder()
    with torch.no_grad():
        layer.epsilon.copy_(torch.tensor([0.3, -0.2]))
    out = layer(rings(6, 1, 9))
    expected = torch.cat([slow(layer, rings(size)) for size in (6, 1, 9)])
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-10)


def test_sign_and_basis_do_not_matter() -> None:
    triangles = rings(4, 4)  # below, these two components are one disconnected graph
    graphs = Graphs(torch.tensor([0, 8]), triangles.edge_index, node_id=torch.arange(8))
    layer = encoder(8)
    vectors, values = laplacian_eigenvectors(graphs, 8, dtype=torch.float64)
    out = layer.encode(vectors, values, graphs)
    rotation = torch.linalg.qr(torch.randn(2, 2).double())[0]
    pairs = [(k, k + 1) for k in range(7) if abs(values[0, k] - values[0, k + 1]) < 1e-9]
    assert pairs
    turned = -vectors.clone()
    first = list(pairs[0])
    turned[:, first] = turned[:, first] @ rotation
    assert not torch.allclose(turned.abs(), vectors.abs())
    torch.testing.assert_close(layer.encode(turned, values, graphs), out, rtol=1e-10, atol=1e-11)


def test_permutation() -> None:
    layer, graphs, order = encoder(16), rings(9), torch.randperm(9)
    moved = Graphs(graphs.node_ptr, torch.argsort(order)[graphs.edge_index], node_id=graphs.node_id)
    torch.testing.assert_close(layer(moved), layer(graphs)[order], rtol=1e-9, atol=1e-10)


def test_empty_batches() -> None:
    layer = encoder()
    assert layer(rings()).shape == (0, 3)
    assert torch.isfinite(layer(rings(1, 2))).all()
