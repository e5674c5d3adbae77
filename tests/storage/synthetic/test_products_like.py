import hashlib

import numpy as np
import pytest
from scipy.sparse import csr_array

from graphmill.core.errors import ConfigError
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions


def _edges(graph, chunk_edges=1 << 20):
    chunks = list(graph.edges(chunk_edges))
    return np.concatenate([c.src for c in chunks]), np.concatenate([c.dst for c in chunks])


def _nodes(graph, chunk_nodes=1 << 14):
    chunks = list(graph.nodes(chunk_nodes))
    return tuple(np.concatenate([getattr(c, name) for c in chunks]) for name in ("feature", "label", "split"))


@pytest.fixture(scope="module")
def default():
    graph = SyntheticGraph()
    return graph, *_edges(graph), *_nodes(graph)


def test_edges_are_symmetric_and_simple(default):
    graph, src, dst, *_ = default
    num_nodes = graph.info.num_nodes
    forward = np.sort(src * num_nodes + dst)
    assert np.all(src != dst)
    assert np.all(np.diff(forward) > 0)  # no node is drawn twice
    assert np.array_equal(forward, np.sort(dst * num_nodes + src))


def test_degrees_are_skewed_like_products(default):
    graph, _, dst, *_ = default
    degree = np.bincount(dst, minlength=graph.info.num_nodes)
    assert 40 < degree.mean() < 51
    assert np.median(degree) < 0.85 * degree.mean()
    assert degree.max() > 20 * degree.mean()
    assert degree.min() >= 1
    assert abs(graph.info.num_edges - len(dst)) < 0.15 * len(dst)


def test_homophily_classes_and_split(default):
    graph, src, dst, _, label, split = default
    assert 0.76 < (label[src] == label[dst]).mean() < 0.84
    counts = np.bincount(label, minlength=47)
    assert counts.min() > 0
    assert counts.max() > 20 * counts.min()
    community = graph._community_of(graph._rows.backward(np.arange(graph.info.num_nodes)))
    assert 0.89 < (label == community).mean() < 0.94  # the other labels are noise, which no classifier can learn
    assert np.bincount(split[:, 0]).tolist() == [0, 1600, 400, 18000]


def test_features_alone_are_not_enough(default):
    """A linear classifier on a node's features is far worse than the same classifier on the mean of the neighbours' features."""
    torch = pytest.importorskip("torch")
    graph, src, dst, feature, label, split = default
    degree = np.bincount(dst, minlength=len(feature))[:, None]
    mean = csr_array((np.ones(len(src), np.float32), (dst, src))) @ feature / degree.astype(np.float32)
    train, test = torch.from_numpy(split[:, 0] == 1), torch.from_numpy(split[:, 0] == 3)
    accuracy = {}
    for name, columns in (("alone", feature), ("neighbours", mean)):
        x, y = torch.from_numpy(columns / columns.std()), torch.from_numpy(label)
        torch.manual_seed(0)
        layer = torch.nn.Linear(graph.info.feature_dim, 47)
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.01, weight_decay=1e-3)
        for _ in range(150):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(layer(x[train]), y[train]).backward()
            optimizer.step()
        accuracy[name] = (layer(x[test]).argmax(1) == y[test]).float().mean().item()
    assert 0.33 < accuracy["alone"] < 0.6
    assert 0.78 < accuracy["neighbours"] < 0.92
    assert accuracy["neighbours"] > accuracy["alone"] + 0.3


@pytest.mark.parametrize("chunk", [1, 7, 1000, 10**9])
def test_chunks_do_not_matter(chunk):
    graph = SyntheticGraph(SyntheticOptions(num_nodes=300, num_classes=5, feature_dim=3, mean_degree=8))
    np.testing.assert_array_equal(_edges(graph, chunk), _edges(graph, 64))
    for one, other in zip(_nodes(graph, chunk), _nodes(graph, 64), strict=True):
        np.testing.assert_array_equal(one, other)
    assert all(len(c.src) <= max(2, chunk) for c in graph.edges(chunk))


def test_seed_is_the_graph():
    def digest(seed):
        graph = SyntheticGraph(SyntheticOptions(num_nodes=500, seed=seed))
        parts = (*_edges(graph), *_nodes(graph))
        return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()

    assert digest(0) == digest(0)
    assert digest(0) != digest(1)
    # The graph is the same on every machine and in every release. If it changes, GENERATOR_VERSION must change, too.
    assert digest(3) == "18b0979ec8054248b46efa32ae705203526b9e1439a6b90c76876a82ac8f2273"


def test_memory_does_not_grow_with_the_graph():
    import tracemalloc

    graph = SyntheticGraph(SyntheticOptions(num_nodes=100_000_000))
    tracemalloc.start()
    edges, nodes = graph.edges(1 << 18), graph.nodes(1 << 12)
    for _ in range(3):
        assert len(next(edges).src) == 1 << 18
        assert len(next(nodes).feature) == 1 << 12
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * 2**20


def test_small_graphs_have_every_class():
    graph = SyntheticGraph(SyntheticOptions(num_nodes=47, label_noise=0, cross_share=0))
    assert sorted(_nodes(graph)[1].tolist()) == list(range(47))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_nodes", 46),
        ("mean_degree", 1.5),
        ("num_classes", 0),
        ("feature_dim", 0),
        ("train_share", 0.99),
        ("train_share", 0.0),
        ("cross_share", 0.5),
        ("label_noise", -0.1),
    ],
)
def test_bad_options_are_named(name, value):
    with pytest.raises(ConfigError, match=name):
        SyntheticOptions(**{name: value})
