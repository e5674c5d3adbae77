"""Compares propagation with products of dense matrices: values and gradients of all kernels. Also tests refused inputs."""

import pytest
import torch

from graphmill.models.primitives.propagation import Adjacency, sum_rows_bag, sum_rows_csr

# A directed graph of 6 nodes: a self-loop (2→2), a repeated edge (0→1), an isolated node 4, and node 5 without in-edges.
EDGES = [(0, 1), (0, 1), (1, 0), (2, 2), (2, 0), (3, 2), (1, 3), (5, 3), (5, 0)]
NUM_NODES = 6


def csc(edges, num_nodes, dtype=torch.int64):
    """Returns indptr, indices, and for each edge its position in the lists."""
    order = sorted(range(len(edges)), key=lambda e: (edges[e][1], edges[e][0]))
    indices = torch.tensor([edges[e][0] for e in order], dtype=dtype)
    counts = torch.bincount(torch.tensor([d for _, d in edges], dtype=torch.int64), minlength=num_nodes)
    return torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]), indices, order


def dense(edges, weights, num_nodes, normalisation, degree=None):
    """The matrix Â in float64, computed by its definition. If `degree` is given, it is used instead of the sums of weights."""
    a = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    for (source, target), weight in zip(edges, weights, strict=True):
        a[target, source] += weight
    d_in, d_out = (a.sum(1), a.sum(0)) if degree is None else (degree.double(), degree.double())

    def inverse(d, power):
        return torch.tensor([float(v) ** power if v > 0 else 0.0 for v in d], dtype=torch.float64)

    if normalisation == "mean":
        return torch.diag(inverse(d_in, -1)) @ a
    if normalisation == "gcn":
        root = torch.diag((d_in + 1).rsqrt())
        return root @ (a + torch.eye(num_nodes, dtype=a.dtype)) @ root
    if normalisation == "sym":
        return torch.diag(inverse(d_in, -0.5)) @ a @ torch.diag(inverse(d_out, -0.5))
    return a


@pytest.mark.parametrize("normalisation", ["mean", "sum", "sym", "gcn"])
def test_given_degrees_stand_for_those_of_the_edges(normalisation):
    weights = [0.5 + 0.25 * i for i in range(len(EDGES))]
    indptr, indices, order = csc(EDGES, NUM_NODES)
    degree = torch.tensor([7, 3, 9, 4, 0, 2])
    adjacency = Adjacency(indptr, indices, torch.tensor([weights[e] for e in order]).double(), degree=degree)
    x = torch.randn(NUM_NODES, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    y = adjacency.propagate(x, normalisation)
    (grad,) = torch.autograd.grad(y.sum(), x)
    matrix = dense(EDGES, weights, NUM_NODES, normalisation, degree)
    torch.testing.assert_close(y, matrix @ x, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(grad, matrix.t() @ torch.ones_like(y), rtol=1e-13, atol=1e-13)
    with pytest.raises(ValueError, match="degree needs one number per node: 6 nodes"):
        Adjacency(indptr, indices, degree=degree[1:])


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("normalisation", ["mean", "sum", "sym", "gcn"])
def test_equals_the_dense_matrix_forward_and_backward(normalisation, weighted, index_dtype):
    weights = [0.5 + 0.25 * i for i in range(len(EDGES))] if weighted else [1.0] * len(EDGES)
    indptr, indices, order = csc(EDGES, NUM_NODES, index_dtype)
    edge_weight = torch.tensor([weights[e] for e in order], dtype=torch.float64) if weighted else None
    adjacency = Adjacency(indptr, indices, edge_weight)
    matrix = dense(EDGES, weights, NUM_NODES, normalisation)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NUM_NODES, 3, dtype=torch.float64, generator=generator, requires_grad=True)
    upstream = torch.randn(NUM_NODES, 3, dtype=torch.float64, generator=generator)

    y = adjacency.propagate(x, normalisation)
    (grad,) = torch.autograd.grad(y, x, upstream)

    torch.testing.assert_close(y, matrix @ x, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(grad, matrix.t() @ upstream, rtol=1e-13, atol=1e-13)
    for alone in (4, 5):  # node 4 has no edges; node 5 has only an out-edge
        assert torch.equal(y[alone], x[alone].detach() if normalisation == "gcn" else torch.zeros_like(y[alone]))


@pytest.mark.parametrize("normalisation", ["mean", "sum", "sym", "gcn"])
def test_gradcheck_and_gradgradcheck(normalisation):
    indptr, indices, order = csc(EDGES, NUM_NODES)
    weight = torch.tensor([0.5 + 0.1 * e for e in order], dtype=torch.float64)
    adjacency = Adjacency(indptr, indices, weight)
    x = torch.randn(NUM_NODES, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: adjacency.propagate(v, normalisation), (x,))
    assert torch.autograd.gradgradcheck(lambda v: adjacency.propagate(v, normalisation), (x,))


def test_kernels_agree():
    generator = torch.Generator().manual_seed(2)
    edges = torch.randint(0, 50, (400, 2), generator=generator).tolist()
    indptr, indices, _ = csc([tuple(e) for e in edges], 50)
    x = torch.randn(50, 8, generator=generator)
    for weight in (None, torch.rand(400, generator=generator)):
        rows = Adjacency(indptr, indices, weight).rows(transposed=False)
        torch.testing.assert_close(sum_rows_bag(rows, x), sum_rows_csr(rows, x), rtol=1e-5, atol=1e-5)


def test_symmetric_and_handed_over_transposes_equal_the_built_one():
    pairs = [(0, 1), (1, 2), (2, 3), (0, 3), (1, 1)]
    edges = pairs + [(b, a) for a, b in pairs if a != b]
    indptr, indices, _ = csc(edges, 5)
    indptr_t, indices_t, _ = csc([(b, a) for a, b in EDGES], NUM_NODES)
    built = Adjacency(*csc(EDGES, NUM_NODES)[:2])
    cases = [
        (Adjacency(indptr, indices), Adjacency(indptr, indices, symmetric=True)),
        (built, Adjacency(*csc(EDGES, NUM_NODES)[:2], transposed=(indptr_t, indices_t, None))),
    ]
    for plain, other in cases:
        x = torch.randn(plain.num_nodes, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        x.requires_grad_()
        for normalisation in ("mean", "sum", "sym", "gcn"):
            y, z = plain.propagate(x, normalisation), other.propagate(x, normalisation)
            torch.testing.assert_close(y, z)
            torch.testing.assert_close(*(torch.autograd.grad(v.square().sum(), x)[0] for v in (y, z)))


@pytest.mark.parametrize("num_nodes", [0, 1, 3])
def test_no_edges_give_zero_rows_and_gradients(num_nodes):
    adjacency = Adjacency(torch.zeros(num_nodes + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int32))
    for normalisation in ("mean", "sum", "sym"):
        x = torch.ones(num_nodes, 2, requires_grad=True)
        y = adjacency.propagate(x, normalisation)
        y.sum().backward()
        assert torch.equal(y, torch.zeros(num_nodes, 2))
        assert torch.equal(x.grad, torch.zeros(num_nodes, 2))


def test_refusals_name_expected_and_got():
    indptr, indices = torch.tensor([0, 1, 2]), torch.tensor([1, 0])
    with pytest.raises(ValueError, match=r"indices must lie in \[0, 2\), got 0 to 2"):
        Adjacency(indptr, torch.tensor([2, 0]))
    with pytest.raises(ValueError, match=r"must rise from 0 to the number of edges 2, got 0 to 3"):
        Adjacency(torch.tensor([0, 1, 3]), indices)
    with pytest.raises(ValueError, match="falling step"):
        Adjacency(torch.tensor([0, 2, 1, 2]), indices)
    with pytest.raises(ValueError, match="int32 or int64"):
        Adjacency(indptr, indices.float())
    with pytest.raises(ValueError, match=r"one floating-point number per edge: 2 edges"):
        Adjacency(indptr, indices, torch.ones(3))
    with pytest.raises(ValueError, match=r"transposed needs 2 rows and 2 edges"):
        Adjacency(indptr, indices, transposed=(torch.tensor([0, 1, 1]), torch.tensor([0]), None))
    adjacency = Adjacency(indptr, indices)
    with pytest.raises(ValueError, match=r"one row per node: 2 nodes, got shape \(3, 1\)"):
        adjacency.propagate(torch.ones(3, 1))
    with pytest.raises(ValueError, match="mean, sum, sym, gcn, got 'max'"):
        adjacency.propagate(torch.ones(2, 1), "max")
