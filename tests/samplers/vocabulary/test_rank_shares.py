"""Tests how an epoch is divided: every root occurs exactly once, and all ranks take the same number of steps."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.core.errors import ConfigError
from graphmill.samplers.vocabulary.rank_shares import chunk_share, even_split, num_chunk_batches, num_root_batches


@given(count=st.integers(0, 10**12), parts=st.integers(1, 50))
def test_shares_follow_each_other_and_differ_by_one_at_most(count: int, parts: int) -> None:
    bounds = [even_split(count, parts, part) for part in range(parts)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == count
    assert all(before[1] == after[0] for before, after in pairwise(bounds))
    sizes = {stop - start for start, stop in bounds}
    assert max(sizes) - min(sizes) <= 1


@given(roots=st.integers(1, 5000), batch_size=st.integers(1, 600), num_ranks=st.integers(1, 9))
def test_every_root_once_per_epoch_in_equal_steps(roots: int, batch_size: int, num_ranks: int) -> None:
    if roots < num_ranks:
        with pytest.raises(
            ConfigError, match=f"got {roots} roots for {num_ranks} ranks; lower --fit.micro_batches"
        ) as refused:
            num_root_batches(roots, batch_size, num_ranks)
        assert "\n" not in str(refused.value)
        return
    batches = num_root_batches(roots, batch_size, num_ranks)
    assert batches > 0
    assert batches % num_ranks == 0
    sizes = [stop - start for start, stop in (even_split(roots, batches, batch) for batch in range(batches))]
    assert sum(sizes) == roots
    assert min(sizes) >= 1
    # A batch may have one root more than `batch_size`, but only if a rank would otherwise have no roots.
    assert max(sizes) <= batch_size or (max(sizes) == batch_size + 1 and batches == roots // num_ranks * num_ranks)


def test_no_root_at_all() -> None:
    with pytest.raises(ConfigError, match="got 0 roots for 1 ranks"):
        num_root_batches(0, 10, 1)


@given(num_chunks=st.integers(1, 60), num_ranks=st.integers(1, 17), roots=st.integers(0, 40))
def test_every_chunk_and_root_once_over_all_ranks(num_chunks: int, num_ranks: int, roots: int) -> None:
    batches = num_chunk_batches(num_chunks, num_ranks)
    assert batches % num_ranks == 0
    assert batches // num_ranks == -(-num_chunks // num_ranks)
    covered: dict[int, list[tuple[int, int]]] = {}
    for batch in range(batches):
        share = chunk_share(batch, num_chunks, num_ranks)
        assert 0 <= share.part < share.parts
        covered.setdefault(share.chunk, []).append((share.part, share.parts))
    assert sorted(covered) == list(range(num_chunks))
    for chunk, shares in covered.items():
        parts = len(shares)
        assert shares == [(part, parts) for part in range(parts)], chunk
        taken = [root for part in range(parts) for root in range(*even_split(roots, parts, part))]
        assert taken == list(range(roots))


@given(num_chunks=st.integers(1, 60), num_ranks=st.integers(1, 17))
def test_shared_chunks_are_shared_evenly(num_chunks: int, num_ranks: int) -> None:
    batches = num_chunk_batches(num_chunks, num_ranks)
    last = [chunk_share(batch, num_chunks, num_ranks).parts for batch in range(batches - num_ranks, batches)]
    assert max(last) - min(last) <= 1
    assert all(chunk_share(batch, num_chunks, num_ranks).parts == 1 for batch in range(batches - num_ranks))
