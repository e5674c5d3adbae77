"""Tests splits with given shares. Sizes and strata are as in scikit-learn, groups stay whole, and no part is empty by chance."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import train_test_split

from graphmill.core.errors import ConfigError, DataError
from graphmill.storage.format.source import SPLIT_NONE, SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID
from graphmill.storage.graph import open_graph
from graphmill.storage.importers.memory.array_graph import ArrayGraph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.splits.drawn_split import draw_split, part_sizes
from graphmill.storage.splits.split_options import SplitOptions

PARTS = (SPLIT_TRAIN, SPLIT_VALID, SPLIT_TEST)
PERCENTS = st.tuples(st.integers(1, 98), st.integers(1, 98)).filter(lambda both: sum(both) < 100)


def shares_of(percents) -> tuple[float, ...]:
    valid, test = percents
    return (1 - valid / 100 - test / 100, valid / 100, test / 100)


def sizes_of(codes) -> list[int]:
    return [int((codes == part).sum()) for part in PARTS]


@given(st.integers(2, 400), PERCENTS)
def test_sizes_are_those_of_train_test_split(count, percents):
    shares = shares_of(percents)
    train, valid, test = part_sizes(count, shares)
    assert train + valid + test == count
    assert min(train, valid) >= 1
    for share, size in ((shares[1], valid), (shares[2], test)):
        wanted = int(np.ceil(share * count))
        assert size == wanted or (size < wanted and train == 1)
        if wanted < count and size == wanted:
            assert size == len(train_test_split(np.arange(count), test_size=share)[1])
    if count >= 10 and shares[0] > 0.3:
        assert size == wanted


@given(st.integers(2, 60), PERCENTS, st.integers(0, 5))
def test_every_chosen_row_is_in_one_part_and_a_part_is_never_empty_by_chance(count, percents, seed):
    chosen = np.arange(2 * count) % 2 == 0
    codes = draw_split("g", SplitOptions(shares=shares_of(percents), seed=seed), chosen, None)
    assert (codes[~chosen] == SPLIT_NONE).all()
    assert sizes_of(codes[chosen]) == part_sizes(count, shares_of(percents))


@given(st.lists(st.integers(2, 60), min_size=2, max_size=6), PERCENTS, st.integers(0, 3))
def test_strata_are_those_of_scikit_learn_within_one_row(counts, percents, seed):
    label = np.repeat(np.arange(len(counts)) * 3, counts)
    label = np.random.default_rng(seed).permutation(label)
    shares = shares_of(percents)
    sizes = part_sizes(len(label), shares)
    codes = draw_split("g", SplitOptions(shares=shares, by="label", seed=seed), np.ones(len(label), bool), label)
    assert sizes_of(codes) == sizes
    kept = np.flatnonzero(codes != SPLIT_TEST)
    for rows, held_out in ((np.arange(len(label)), SPLIT_TEST), (kept, SPLIT_VALID)):
        size = int((codes[rows] == held_out).sum())
        classes, count = np.unique(label[rows], return_counts=True)
        if size < len(classes) or len(rows) - size < len(classes) or count.min() < 2:
            continue  # scikit-learn refuses these shares
        other = train_test_split(rows, test_size=size, stratify=label[rows], random_state=seed)[1]
        ours, theirs = (
            np.array([(label[of] == one).sum() for one in classes]) for of in (rows[codes[rows] == held_out], other)
        )
        assert np.abs(ours - theirs).max() <= 1


@given(st.lists(st.integers(1, 30), min_size=2, max_size=25), PERCENTS, st.integers(0, 3))
def test_groups_are_whole_and_none_of_the_parts_is_empty(counts, percents, seed):
    group = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    options = SplitOptions(shares=shares_of(percents), by="scaffold", seed=seed)
    codes = draw_split("g", options, np.ones(len(group), bool), group)
    assert all(len(set(codes[group == one])) == 1 for one in range(len(counts)))
    wanted = 2 if part_sizes(len(group), options.shares)[2] == 0 or len(counts) == 2 else 3
    assert len(set(codes)) == wanted
    if set(counts) == {1}:
        assert sizes_of(codes) == part_sizes(len(group), options.shares)


def test_a_seed_is_a_split_and_another_is_another():
    draws = [
        draw_split("g", SplitOptions(shares=(0.5, 0.3, 0.2), seed=seed), np.ones(100, bool), None) for seed in (1, 1, 2)
    ]
    assert np.array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])
    assert sizes_of(draws[0]) == sizes_of(draws[2]) == [50, 30, 20]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shares": (0.8, 0.1)}, "shares: expected two or three shares above 0 that add up to 1"),
        ({"shares": (0.8, 0.2, 0.0)}, "shares: expected two or three shares above 0"),
        ({"shares": (0.5, 0.5), "by_time": (0.5, 0.6)}, "without by_time"),
        ({"by": "label"}, "by: expected --split.shares beside it"),
    ],
)
def test_shares_that_make_no_sense(options, message):
    with pytest.raises(ConfigError, match=message):
        SplitOptions(**options)


def stored(source, url, **split):
    ingest(source, str(url), IngestOptions(num_partitions=2, overwrite=True, split=SplitOptions(**split)))
    graph, codes = open_graph(str(url)), {}
    for part in graph.partitions(verify=True):
        codes |= dict(zip(part.original_id.tolist(), part.split[0].tolist(), strict=True))
    return graph.manifest, np.array([codes[node] for node in sorted(codes)])


def test_nodes_of_any_source_are_split_after_their_labels_are_known(tmp_path):
    label = np.repeat([0, 1, -1], [40, 20, 5])
    ends = np.arange(65), (np.arange(65) + 1) % 65
    source = ArrayGraph("nodes", 65, *ends, label=label, node_time=np.arange(65), split=np.ones((65, 2), np.int8))
    manifest, codes = stored(source, tmp_path / "g", shares=(0.8, 0.1, 0.1), by="label", seed=3)
    assert manifest.num_split_sets == 1
    assert manifest.provenance["split"] == "0.8 0.1 0.1 by label, seed 3"
    assert manifest.measured.splits[0].class_counts == ((0, 0), (32, 16), (4, 2), (4, 2))
    assert sizes_of(codes) == [48, 6, 6]
    assert (codes[60:] == 0).all()
    assert np.array_equal(codes, stored(source, tmp_path / "g", shares=(0.8, 0.1, 0.1), by="label", seed=3)[1])
    _, by_time = stored(source, tmp_path / "g", shares=(0.7, 0.2, 0.1), by="time")
    assert np.array_equal(by_time, stored(source, tmp_path / "g", by_time=(0.7, 0.9))[1])
    assert sizes_of(by_time) == [42, 12, 6]
    bare = ArrayGraph("bare", 65, *ends)
    assert sizes_of(stored(bare, tmp_path / "bare", shares=(0.5, 0.5))[1]) == [32, 33, 0]
    for other, by, message in (
        (bare, "label", "bare: split by label: expected nodes of one class each; set --split.by random"),
        (source, "scaffold", "nodes: split by scaffold: expected molecules"),
        (bare, "time", "expected nodes with times"),
    ):
        with pytest.raises((ConfigError, DataError), match=message):
            stored(other, tmp_path / by, shares=(0.5, 0.5), by=by)
    with pytest.raises(DataError, match="expected two rows with a label or target at least, got 1 rows"):
        stored(
            ArrayGraph("one", 3, *ends[:0], np.zeros(0, int), np.zeros(0, int), label=np.array([0, -1, -1])),
            tmp_path / "one",
            shares=(0.5, 0.5),
        )
