"""A typed graph of any size that resembles ogbn-mag: papers, authors, institutions, fields of study, and four relations. It is generated from a seed while it
is read.

Node i of each type has the class i modulo the number of classes. With probability `homophily`, an edge has a target of the source's class, else a target of
any class. The positions of source and target are about x² for a uniform x. So most degrees are moderate, and large degrees follow a power law. As in ogbn-mag,
papers have features (the centroid of their class with noise), labels (their class with some noise) and splits. Other types have features if the options ask
for them. A node or an edge is a pure function of the seed and its number.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from graphmill.core.counter_random import derive_key, hash_counters, unit_interval
from graphmill.core.option_checks import check_options
from graphmill.storage.format.source import (
    SPLIT_TEST,
    SPLIT_TRAIN,
    SPLIT_VALID,
    EdgeChunk,
    NodeChunk,
    Relation,
    SourceInfo,
    TypedSource,
)
from graphmill.storage.synthetic.products_like import noisy_rows, normal_rows

# Purposes of derived keys. Changing them changes every generated graph, so increase GENERATOR_VERSION then.
_CENTROID, _FEATURE, _LABEL, _OTHER_LABEL, _SPLIT, _EDGE = range(6)
GENERATOR_VERSION = 1

# Counts of ogbn-mag, from Hu et al., "Open Graph Benchmark", arXiv:2005.00687, table 2, and from its files.
TYPES = {"author": 1_134_649, "field_of_study": 59_965, "institution": 8_740, "paper": 736_389}
RELATIONS = {
    Relation("author", "affiliated_with", "institution"): 1_043_998,
    Relation("author", "writes", "paper"): 7_145_660,
    Relation("paper", "cites", "paper"): 5_416_271,
    Relation("paper", "has_topic", "field_of_study"): 7_505_078,
}
_TRAIN, _VALID = 0.855, 0.088  # shares of the papers up to 2017, and of the papers of 2018
_LABEL_NOISE = 0.1
_BLOCK_EDGES = 1 << 19  # number of edges drawn at a time; each takes about 100 bytes
_SIGNAL = 0.23  # standard deviation of a centroid's entries; the standard deviation of the noise is 1


@dataclass(frozen=True)
class SyntheticMagOptions:
    """Options of the graph `synthetic-mag`."""

    scale: float = 1.0
    """Size of the graph relative to ogbn-mag, which has 1.9 million nodes and 21 million edges."""
    feature_dim: int = 128
    """Number of features."""
    features: Literal["paper", "all"] = "paper"
    """Types that have features. all: every type, as in ogbn-mag with added embeddings for the other types."""
    num_classes: int = 349
    """Number of classes of papers, at most the number of papers."""
    homophily: float = 0.5
    """Share of the edges that are drawn between nodes of the same class. Other edges may also join nodes of the same class, by chance."""
    seed: int = 0
    """The same seed gives the same graph."""

    def __post_init__(self) -> None:
        check_options(
            self,
            {
                "scale": (1e-5 <= self.scale <= 1000, "0.00001 to 1000"),
                "feature_dim": (1 <= self.feature_dim <= 1 << 16, "1 to 65536"),
                "num_classes": (1 <= self.num_classes <= 4096, "1 to 4096"),
                "homophily": (0 <= self.homophily <= 1, "0 to 1"),
            },
        )

    def scaled(self, count: int) -> int:
        return max(1, round(count * self.scale))


def synthetic_mag(options: SyntheticMagOptions | None = None) -> TypedSource:
    """Makes the typed source for these options."""
    options = options or SyntheticMagOptions()
    sizes = {name: options.scaled(count) for name, count in TYPES.items()}
    nodes = {name: _Nodes(options, name, size, number) for number, (name, size) in enumerate(sizes.items())}
    relations = {
        relation: _Edges(
            relation, options, number, options.scaled(count), sizes[relation.source], sizes[relation.target]
        )
        for number, (relation, count) in enumerate(RELATIONS.items())
    }
    provenance = {name: str(value) for name, value in asdict(options).items()}
    return TypedSource(
        f"synthetic-mag:{options.scale:g}",
        nodes,
        relations,
        {"generator_version": str(GENERATOR_VERSION), **provenance},
    )


@dataclass(frozen=True)
class _Nodes:
    """Generates the nodes of one type. Only papers have labels and splits."""

    options: SyntheticMagOptions
    name: str
    num_nodes: int
    number: int
    """Number of the type. It makes features differ between types."""

    @property
    def _is_paper(self) -> bool:
        return self.name == "paper"

    @property
    def _num_classes(self) -> int:
        return min(self.options.num_classes, self.num_nodes)

    @cached_property
    def info(self) -> SourceInfo:
        return SourceInfo(
            name=self.name,
            num_nodes=self.num_nodes,
            feature_dim=self.options.feature_dim if self._is_paper or self.options.features == "all" else 0,
            has_label=self._is_paper,
            num_classes=self._num_classes if self._is_paper else None,
            num_split_sets=int(self._is_paper),
        )

    def nodes(self, chunk_nodes: int) -> Iterator[NodeChunk]:
        if not self.info.feature_dim:
            yield NodeChunk()
            return
        for start in range(0, self.num_nodes, chunk_nodes):
            node = np.arange(start, min(start + chunk_nodes, self.num_nodes))
            of_papers = {"label": self._labels(node), "split": self._splits(node)} if self._is_paper else {}
            yield NodeChunk(feature=self._features(node), **of_papers)

    def _key(self, *purpose: int) -> int:
        return derive_key(self.options.seed, *purpose)

    def _draws(self, purpose: int, node: np.ndarray) -> np.ndarray:
        return unit_interval(hash_counters(self._key(purpose), node))

    @cached_property
    def _centroid(self) -> np.ndarray:
        """Centroid of each class, float32 [num_classes, feature_dim]."""
        return normal_rows(self._key(_CENTROID), np.arange(self._num_classes), self.options.feature_dim) * np.float32(
            _SIGNAL
        )

    def _features(self, node: np.ndarray) -> np.ndarray:
        key = self._key(_FEATURE) if self._is_paper else self._key(_FEATURE, self.number)
        return noisy_rows(key, node, self._centroid[node % self._num_classes])

    def _labels(self, paper: np.ndarray) -> np.ndarray:
        other = (self._draws(_OTHER_LABEL, paper) * self._num_classes).astype(np.int64)
        return np.where(self._draws(_LABEL, paper) < _LABEL_NOISE, other, paper % self._num_classes)

    def _splits(self, paper: np.ndarray) -> np.ndarray:
        share = self._draws(_SPLIT, paper)
        code = np.where(share < _TRAIN, SPLIT_TRAIN, np.where(share < _TRAIN + _VALID, SPLIT_VALID, SPLIT_TEST))
        return code.astype(np.int8)[:, None]


class _Edges:
    def __init__(
        self,
        relation: Relation,
        options: SyntheticMagOptions,
        number: int,
        num_edges: int,
        num_sources: int,
        num_targets: int,
    ) -> None:
        self._options, self._num_sources, self._num_targets = options, num_sources, num_targets
        self._key = derive_key(options.seed, _EDGE, number)
        self.info = SourceInfo(name=str(relation), num_nodes=num_targets, num_edges=num_edges)

    def edges(self, chunk_edges: int) -> Iterator[EdgeChunk]:
        assert self.info.num_edges is not None
        step = min(chunk_edges, _BLOCK_EDGES)
        for start in range(0, self.info.num_edges, step):
            edge = np.arange(start, min(start + step, self.info.num_edges))
            first, second, same = (unit_interval(hash_counters(self._key, 3 * edge + draw)) for draw in range(3))
            src = (first * first * self._num_sources).astype(np.int64)
            dst = (second * second * self._num_targets).astype(np.int64)
            # The target becomes the nearest node of the source's class, if there is one.
            num_classes = min(self._options.num_classes, self._num_targets)
            near = dst - dst % num_classes + src % num_classes
            near = np.where(near < self._num_targets, near, near - num_classes)
            yield EdgeChunk(src, np.where(same < self._options.homophily, near, dst))
