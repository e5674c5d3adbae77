"""An option of a wrong type is refused, and the message names it. A value of another permitted type that is equal gives equal options."""

import re
from dataclasses import dataclass, field

import numpy as np
import pytest

from graphmill.core.errors import ConfigError
from graphmill.core.option_checks import Amount, Count, Positive, Share, Size, check_fields, check_options
from graphmill.samplers.vocabulary.options import (
    GraphBatchOptions,
    LoaderOptions,
    NeighborOptions,
    Node2SubgraphOptions,
    PprOptions,
    RandomPartitionOptions,
    SaintOptions,
)

INTEGERS = {
    NeighborOptions: ("batch_size", "seed", "split_set", "root_split"),
    Node2SubgraphOptions: ("max_hops", "max_nodes", "batch_size", "seed", "split_set", "root_split"),
    PprOptions: ("top_k", "batch_size", "seed", "split_set", "root_split"),
    SaintOptions: (
        "num_walks",
        "walk_length",
        "num_presamples",
        "batches_per_epoch",
        "seed",
        "split_set",
        "root_split",
    ),
    RandomPartitionOptions: ("num_chunks", "seed", "split_set"),
    GraphBatchOptions: ("max_graphs", "max_nodes", "max_edges", "max_node_pairs", "seed"),
    LoaderOptions: ("threads", "prefetch", "max_bytes"),
}
EACH = [(kind, name) for kind, names in INTEGERS.items() for name in names]


@pytest.mark.parametrize(("kind", "name"), EACH)
def test_integers(kind, name):
    for wrong in (2.5, 1.0, True, np.True_, "2", np.float32(1), [1], 2**70, -(2**70)):
        with pytest.raises(ConfigError, match=f"^{name}: expected an integer"):
            kind(**{name: wrong})
    given = {"max_graphs": 1} if kind is GraphBatchOptions else {}
    assert repr(kind(**given | {name: np.int16(2)})) == repr(kind(**given | {name: 2}))


@pytest.mark.parametrize(("kind", "name"), [(NeighborOptions, "fanouts"), (RandomPartitionOptions, "root_splits")])
def test_tuples_of_integers(kind, name):
    expected = kind(**{name: (2, 1)})
    for same in ([2, 1], np.array([2, 1]), (np.int64(2), np.int8(1))):
        found = kind(**{name: same})
        assert found == expected
        assert repr(found) == repr(expected)
        assert hash(found) == hash(expected)
    for wrong in (5, "22", {2, 1}, np.array(5), np.array([[2]]), *([None] if name == "fanouts" else [])):
        with pytest.raises(ConfigError, match=f"^{name}: expected a tuple of integers"):
            kind(**{name: wrong})
    for wrong in ((2.5,), (True,), (1, "2"), (2**70,), ([1],), (1, [1, 2])):
        with pytest.raises(ConfigError, match=f"^{name}: expected an integer"):
            kind(**{name: wrong})


@pytest.mark.parametrize(
    ("kind", "name"), [(PprOptions, "alpha"), (PprOptions, "epsilon"), (GraphBatchOptions, "bucket_ratio")]
)
def test_numbers(kind, name):
    given = {"max_graphs": 1} if kind is GraphBatchOptions else {}
    for wrong in ("0.5", True, None, [0.5]):
        with pytest.raises(ConfigError, match=f"^{name}: expected a number"):
            kind(**given | {name: wrong})
    value = 1.5 if kind is GraphBatchOptions else 0.5
    assert repr(kind(**given | {name: np.float64(value)})) == repr(kind(**given | {name: value}))


WORDS = [
    *((kind, "direction") for kind in (NeighborOptions, Node2SubgraphOptions, PprOptions, SaintOptions)),
    *((NeighborOptions, name) for name in ("edges", "scheme", "edge_columns")),
    (RandomPartitionOptions, "cut"),
    (GraphBatchOptions, "oversize"),
]


@pytest.mark.parametrize(("kind", "name"), WORDS)
def test_words(kind, name):
    given = {"max_graphs": 1} if kind is GraphBatchOptions else {}
    wrong = ("mass",) if name == "edge_columns" else "mass"
    with pytest.raises(ConfigError, match=f"^{name}: expected one of .*, got 'mass'; set {name}"):
        kind(**given | {name: wrong})


@pytest.mark.parametrize(
    ("kind", "name"), [(NeighborOptions, "batch_size"), (SaintOptions, "batches_per_epoch"), (LoaderOptions, "threads")]
)
def test_least_values(kind, name):
    with pytest.raises(ConfigError, match=f"^{name}: expected at least 1, got 0; set {name}"):
        kind(**{name: 0})


def test_any_seed_of_64_bits():
    for seed in (0, 2**64 - 1, np.uint64(2**64 - 1), -(2**63)):
        assert type(NeighborOptions(seed=seed).seed) is int


@dataclass(frozen=True)
class _Bounded:
    count: Count | None = 1
    size: Size = 0
    amount: Amount = 0.0
    positive: Positive | None = None
    share: Share = 0
    any_of: int | str = "a"
    counts: tuple[Count, ...] = (1,)
    inner: LoaderOptions = field(default_factory=LoaderOptions)

    def __post_init__(self) -> None:
        check_fields(self)


@pytest.mark.parametrize(
    ("name", "least", "wrong", "expected"),
    [
        ("count", 1, [0], "at least 1"),
        ("size", 0, [-1], "at least 0"),
        ("amount", 0, [-1e-9, float("nan")], "at least 0"),
        ("positive", 1e-9, [0, -1, float("inf"), float("nan")], "more than 0"),
        ("share", 0, [-1e-9, 1, float("nan")], "0 or more and less than 1"),
    ],
)
def test_bounds_of_a_type(name, least, wrong, expected):
    assert getattr(_Bounded(**{name: least}), name) == least
    for value in wrong:
        with pytest.raises(ConfigError, match=f"^{name}: expected {expected}, got {value}.*; set {name}$"):
            _Bounded(**{name: value})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"counts": ()}, "counts: expected at least 1, got ()"),
        ({"counts": (2, 0)}, "counts: expected at least 1, got 0"),
        ({"inner": "wide"}, "inner: expected a LoaderOptions, got 'wide'"),
    ],
)
def test_bounds_of_a_tuple_and_nested_options(given, message):
    assert _Bounded(counts=[2, 3]).counts == (2, 3)
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}; set {next(iter(given))}$"):
        _Bounded(**given)


def test_none_and_unions_are_what_they_are():
    assert (_Bounded(count=None).count, _Bounded().share, _Bounded(any_of=3).any_of) == (None, 0.0, 3)
    assert type(_Bounded().share) is float
    check_options(_Bounded(), {"count": (True, "")})
    with pytest.raises(ConfigError, match=r"^count: expected two, got 1; set count$"):
        check_options(_Bounded(), {"count": (False, "two")})
