"""Gives nodes their positions in order of first appearance, by a map and by a hash table. Both are compared with a dict."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.samplers.kernels.relabel import PositionMaps, Relabeler

NODES = st.lists(st.integers(0, 199), max_size=80)


@given(roots=st.lists(st.integers(0, 199), unique=True, max_size=20), queries=st.lists(NODES, max_size=5))
@pytest.mark.parametrize("dense", [False, True])
def test_positions_follow_first_appearance(dense: bool, roots: list[int], queries: list[list[int]]) -> None:
    maps = PositionMaps(200) if dense else None
    for dtype in (np.int64, np.int32):  # the second round reuses the map of the first
        relabeler = Relabeler(np.asarray(roots, dtype), maps)
        expected = {node: position for position, node in enumerate(roots)}
        for query in queries:
            found = relabeler.add(np.asarray(query, dtype))
            assert found.tolist() == [expected.setdefault(node, len(expected)) for node in query]
            assert found.dtype == np.int32
        assert relabeler.node.tolist() == list(expected)
        assert relabeler.num_nodes == len(expected)
        relabeler.close()


def test_ids_of_any_size_and_many_of_them() -> None:
    rng = np.random.default_rng(0)
    wide = np.unique(rng.integers(0, 2**62, 50_000))
    relabeler = Relabeler(wide[:10])
    mixed = rng.permutation(np.concatenate([wide, wide]))
    position = relabeler.add(mixed)
    np.testing.assert_array_equal(relabeler.node[position], mixed)
    assert relabeler.num_nodes == len(wide)


@pytest.mark.parametrize("dense", [False, True])
def test_a_repeated_root_is_refused(dense: bool) -> None:
    with pytest.raises(ValueError, match="expected distinct nodes, got node 7 twice"):
        Relabeler(np.array([3, 7, 5, 7]), PositionMaps(10) if dense else None)


def test_a_map_begins_anew_before_its_entries_are_used_up() -> None:
    maps, zeros = PositionMaps(10, last_entry=24), []
    for query in ([3, 7, 3], [7, 1], [9, 3, 7, 1], [1, 9], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [3, 1]):
        relabeler, table = Relabeler(np.array([5]), maps), Relabeler(np.array([5]))
        zeros.append(relabeler._zero)
        assert relabeler.add(np.array(query)).tolist() == table.add(np.array(query)).tolist()
        relabeler.close()
    assert zeros == [1, 4, 7, 12, 1, 11]


def test_no_map_above_its_bytes() -> None:
    assert PositionMaps(100, max_bytes=400).fits
    maps = PositionMaps(101, max_bytes=400)
    assert not maps.fits
    assert Relabeler(np.array([100]), maps).add(np.array([5, 100])).tolist() == [1, 0]
