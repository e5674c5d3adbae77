"""A graph of any size that resembles ogbn-products, generated from a seed while it is read. A node is a pure function of (seed, node), so memory holds one
chunk.

Internally nodes are ordered by community; the sizes of communities fall like 1/1, 1/2, 1/3 …. A keyed permutation scatters the nodes over the rows. A node
draws k neighbors (k is geometric) from its community or, sometimes, from any community. A neighbor's relative position in its community is lower than the
node's own, at about x² for a uniform x. So no pair is drawn from both sides. As in ogbn-products, most degrees are moderate, and large degrees follow a power
law of exponent 3. A label is the community, with some noise. Features are the community's centroid, with much noise.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np

from graphmill.core.counter_random import Permutation, derive_key, hash_counters, unit_interval
from graphmill.core.errors import ConfigError
from graphmill.storage.format.source import SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID, EdgeChunk, NodeChunk, SourceInfo

# Purposes of derived keys. Changing them, or the order of draws, changes every synthetic graph, so increase GENERATOR_VERSION then.
_ROWS, _SPLIT, _DEGREE, _MIXING, _DRAW, _CROSS, _LABEL, _OTHER_LABEL, _FEATURE, _CENTROID = range(10)
GENERATOR_VERSION = 1

_MAX_DRAWS = 4096  # most draws of a node; draw j of node i has the counter i * _MAX_DRAWS + j
_BLOCK_DRAWS = 1 << 16  # number of feature entries drawn at a time, so that temporary arrays stay in cache
_CLASS_TABLE_BITS = 14
_HUB_FLOOR = (
    # limits the density of draws at the first positions, so that hubs in a graph of millions of nodes have only thousands of neighbors
    0.01
)


@dataclass(frozen=True)
class SyntheticOptions:
    """Options of the graph `synthetic`. The defaults give the graph that `make run` uses."""

    num_nodes: int = 20_000
    """Number of nodes."""
    mean_degree: float = 50.0
    """Mean number of in-edges per node, with both directions of each pair. In small communities it is a little lower."""
    num_classes: int = 47
    """Number of classes. Each node has one class."""
    feature_dim: int = 100
    """Number of features."""
    train_share: float = 0.08
    """Share of the nodes that train."""
    valid_share: float = 0.02
    """Share of the nodes that validate. The remaining nodes are the test split."""
    cross_share: float = 0.05
    """Mean share of a node's draws that ignore communities. The share of a single node lies between 0 and three times this mean."""
    label_noise: float = 0.09
    """Share of the labels that are replaced by a random class, drawn by class size. No classifier can learn these labels."""
    feature_signal: float = 0.23
    """Standard deviation of a centroid's entries, relative to the noise."""
    seed: int = 0
    """The same seed gives the same graph."""

    def __post_init__(self) -> None:
        checks = (
            (1 <= self.num_classes <= 4096, "num_classes", "1 to 4096"),
            (self.num_classes <= self.num_nodes < 2**40, "num_nodes", f"num_classes = {self.num_classes} to 2**40 - 1"),
            (2 <= self.mean_degree <= 400, "mean_degree", "2 to 400"),
            (1 <= self.feature_dim <= 1 << 16, "feature_dim", "1 to 65536"),
            (self.train_share > 0, "train_share", "above 0"),
            (self.valid_share >= 0, "valid_share", "0 or more"),
            (self.train_share + self.valid_share <= 1, "train_share", "at most 1 together with valid_share"),
            (0 <= self.cross_share <= 1 / 3, "cross_share", "0 to 1/3"),
            (0 <= self.label_noise <= 1, "label_noise", "0 to 1"),
            (self.feature_signal >= 0, "feature_signal", "0 or more"),
        )
        for valid, name, expected in checks:
            if not valid:
                raise ConfigError(f"synthetic {name} must be {expected}, got {getattr(self, name)}")


class SyntheticGraph:
    """A `GraphSource` that generates the graph with these options."""

    def __init__(self, options: SyntheticOptions | None = None) -> None:
        self.options = SyntheticOptions() if options is None else options

    @cached_property
    def info(self) -> SourceInfo:
        options = self.options
        provenance = {name: str(value) for name, value in asdict(options).items()}
        return SourceInfo(
            name=f"synthetic:{options.num_nodes}",
            num_nodes=options.num_nodes,
            num_edges=int(options.num_nodes * options.mean_degree),
            feature_dim=options.feature_dim,
            has_label=True,
            symmetric=True,
            num_classes=options.num_classes,
            num_split_sets=1,
            provenance={"generator_version": str(GENERATOR_VERSION), **provenance},
        )

    def edges(self, chunk_edges: int) -> Iterator[EdgeChunk]:
        """Yields both directions of every pair, each once. There are no self-loops. The order of edges does not depend on `chunk_edges`."""
        # imported here, so that only code that reads edges waits for numba's compiler
        from graphmill.storage.synthetic.products_like_kernels import both_directions, draw_pairs

        keys = np.array([self._key(purpose) for purpose in (_DEGREE, _MIXING, _DRAW, _CROSS)], np.uint64)
        fixed = (
            keys,
            self._degree_threshold,
            3.0 * self.options.cross_share,
            self._offset,
            self._class_table,
            np.uint64((1 << _CLASS_TABLE_BITS) - 1),
            _HUB_FLOOR,
            _MAX_DRAWS,
            self._rows.compiled_form,
        )
        chunk_pairs = max(1, chunk_edges // 2)
        a, b = (np.empty(chunk_pairs + _MAX_DRAWS, np.int64) for _ in range(2))
        node = filled = 0
        while node < self.options.num_nodes or filled:
            while node < self.options.num_nodes and filled < chunk_pairs:
                node, filled = draw_pairs(node, *fixed, a, b, filled)
            count = min(chunk_pairs, filled)
            src, dst = (np.empty(2 * count, np.int64) for _ in range(2))
            both_directions(a, b, count, src, dst)
            filled -= count
            a[:filled], b[:filled] = a[count : count + filled].copy(), b[count : count + filled].copy()
            if count:
                yield EdgeChunk(src=src, dst=dst)

    def nodes(self, chunk_nodes: int) -> Iterator[NodeChunk]:
        for start in range(0, self.options.num_nodes, chunk_nodes):
            node = self._rows.backward(np.arange(start, min(start + chunk_nodes, self.options.num_nodes)))
            yield NodeChunk(feature=self._features(node), label=self._labels(node), split=self._splits(node))

    # In the methods below, node i is the i-th node in the order of (community, position).

    def _key(self, *purpose: int) -> int:
        return derive_key(self.options.seed, *purpose)

    @cached_property
    def _rows(self) -> Permutation:
        return Permutation(self.options.num_nodes, self._key(_ROWS))

    @cached_property
    def _split_order(self) -> Permutation:
        return Permutation(self.options.num_nodes, self._key(_SPLIT))

    @cached_property
    def _offset(self) -> np.ndarray:
        """The first node of each community, and the number of nodes, int64 [num_classes + 1]. Every community has at least one node."""
        num_classes = self.options.num_classes
        weight = 1.0 / np.arange(1, num_classes + 1)
        spare = self.options.num_nodes - num_classes
        extra = np.floor(np.cumsum(weight) / weight.sum() * spare + 0.5).astype(np.int64)
        extra[-1] = spare
        return np.concatenate([[0], extra + np.arange(1, num_classes + 1)])

    @cached_property
    def _class_table(self) -> np.ndarray:
        """A table of classes. A uniformly drawn entry is a class with probability proportional to its size."""
        size = 1 << _CLASS_TABLE_BITS
        middle = (np.arange(size) * 2 + 1) * (self.options.num_nodes / (2 * size))
        return np.searchsorted(self._offset, middle, side="right").astype(np.int64) - 1

    @cached_property
    def _degree_threshold(self) -> np.ndarray:
        """Probabilities P(k <= 1), P(k <= 2), … of the geometric number k of draws, float64."""
        stay = 1.0 - 2.0 / self.options.mean_degree if self.options.mean_degree > 2 else 0.0
        reach = np.cumprod(np.full(_MAX_DRAWS - 2, stay))
        return 1.0 - reach[: 1 + np.count_nonzero(reach > 2.0**-40)]

    @cached_property
    def _centroid(self) -> np.ndarray:
        """Centroid of each class, float32 [num_classes, feature_dim]."""
        rows = normal_rows(self._key(_CENTROID), np.arange(self.options.num_classes), self.options.feature_dim)
        return rows * np.float32(self.options.feature_signal)

    def _community_of(self, node: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._offset, node, side="right") - 1

    def _labels(self, node: np.ndarray) -> np.ndarray:
        noisy = unit_interval(hash_counters(self._key(_LABEL), node)) < self.options.label_noise
        other = hash_counters(self._key(_OTHER_LABEL), node) >> np.uint64(64 - _CLASS_TABLE_BITS)
        return np.where(noisy, self._class_table[other.astype(np.int64)], self._community_of(node)).astype(np.int64)

    def _splits(self, node: np.ndarray) -> np.ndarray:
        num_train = max(1, int(self.options.num_nodes * self.options.train_share))
        num_valid = int(self.options.num_nodes * self.options.valid_share)
        place = self._split_order.forward(node)
        split = np.full(len(node), SPLIT_TEST, dtype=np.int8)
        split[place < num_train + num_valid] = SPLIT_VALID
        split[place < num_train] = SPLIT_TRAIN
        return split[:, None]

    def _features(self, node: np.ndarray) -> np.ndarray:
        return noisy_rows(self._key(_FEATURE), node, self._centroid[self._community_of(node)])


def noisy_rows(key: int, node: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Adds the noise of these nodes to `rows` (float32 [n, dim]) in place, and returns `rows`."""
    rows_at_once = max(1, _BLOCK_DRAWS // rows.shape[1])
    for start in range(0, len(node), rows_at_once):
        block = slice(start, start + rows_at_once)
        rows[block] += normal_rows(key, node[block], rows.shape[1])
    return rows


def normal_rows(key: int, node: np.ndarray, dim: int) -> np.ndarray:
    """Draws float32 [n, dim] with mean 0 and variance 1, as sums of four uniform 16-bit integers (Irwin-Hall). The result is the same on every machine."""
    hashes = hash_counters(key, node[:, None] * dim + np.arange(dim))
    lanes = hashes.view(np.uint16).reshape(*hashes.shape, 4)
    total = lanes[..., 0].astype(np.int32)
    for lane in (1, 2, 3):
        total += lanes[..., lane]
    total -= 2 * 0xFFFF
    return total.astype(np.float32) * np.float32((3.0 / (2**32 - 1)) ** 0.5)
