"""The order of nodes is a permutation, depends only on ids and seeds, and equals a plain implementation of SplitMix64."""

import torch

from graphmill.models.primitives.node_order import Order, node_order

MASK = (1 << 64) - 1


def splitmix(state):
    state = (state + 0x9E3779B97F4A7C15) & MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


def test_equals_unsigned_splitmix_in_python():
    # The published first outputs of SplitMix64 for the state 0.
    assert splitmix(0) == 0xE220A8397B1DCDAF
    node_id = torch.tensor([0, 1, 2, 3, 10**12, 2**62, 77, 5])
    key = splitmix(splitmix(splitmix(9) ^ 4) ^ 2)
    words = [splitmix((key + (i - 1) * 0x9E3779B97F4A7C15) & MASK) for i in node_id.tolist()]
    expected = sorted(range(len(words)), key=lambda row: words[row])
    assert node_order(node_id, 9, epoch=4, layer=2).tolist() == expected


def test_is_a_permutation_that_depends_on_each_of_seed_epoch_and_layer():
    node_id = torch.arange(1000)
    base = node_order(node_id, 0)
    assert torch.equal(base.sort().values, node_id)
    others = [node_order(node_id, 1), node_order(node_id, 0, epoch=1), node_order(node_id, 0, layer=1)]
    for order in [*others, node_id]:
        assert (order == base).float().mean() < 0.02  # independent orders agree at about one position
    assert torch.equal(base[Order.of(base).inverse_N], node_id)


def test_relative_order_survives_any_batching():
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 2**40, (500,), generator=generator).unique()
    whole = ids[node_order(ids, 3)]
    batch = ids[torch.randperm(ids.numel(), generator=generator)[:200]]
    kept = whole[torch.isin(whole, batch)]
    assert torch.equal(batch[node_order(batch, 3)], kept)


def test_looks_uniform():
    # Over 400 seeds, the mean position of each id is within 5 standard errors of the middle, as for uniform positions.
    node_id = torch.arange(50)
    positions = torch.stack([Order.of(node_order(node_id, seed)).inverse_N for seed in range(400)]).double()
    standard_error = (50**2 / 12) ** 0.5 / 400**0.5
    assert (positions.mean(0) - 24.5).abs().max() < 5 * standard_error


def test_equal_ids_keep_their_order_and_empty_works():
    assert node_order(torch.tensor([7, 7, 7]), 0).tolist() == [0, 1, 2]
    assert node_order(torch.zeros(0, dtype=torch.int64), 0).numel() == 0
