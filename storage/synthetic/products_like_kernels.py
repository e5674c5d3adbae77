"""The compiled inner loop of the synthetic graph (`graphmill.storage.synthetic.products_like`). It computes the pairs that each node draws.

Operations on integers and float64 are in the same order as in `graphmill.core.counter_random`, so every machine draws the same pairs.
"""

import numpy as np

from graphmill.core.compile_cache import compiled
from graphmill.core.counter_kernels import hash64, permuted

_ELEVEN = np.uint64(11)
_UNIT = 2.0**-53


@compiled
def _unit(hashed):
    """Maps one hash to the unit interval, like `counter_random.unit_interval`."""
    return np.float64(hashed >> _ELEVEN) * _UNIT


@compiled
def draw_pairs(
    node, keys, threshold, cross_scale, offset, class_table, class_mask, hub_floor, max_draws, permutation, a, b, filled
):
    """Computes the distinct pairs that the nodes `node`, node + 1, … draw. Writes the rows of their two nodes to a[filled:] and b[filled:].

    Stops after the last node, or before a node whose draws, at most `max_draws`, might not fit. Returns the next node and the new `filled`.

    keys: uint64 [4] (degree, mixing, draw, cross); offset: int64 [num_classes + 1]; class_table: int64 [2^k], class_mask = 2^k - 1;
    permutation: (rounds uint64 [r, 2], mask, shift, size) of the rows; a, b: int64.
    """
    rounds, mask, shift, size = permutation
    num_nodes = offset[-1]
    community = np.searchsorted(offset, node, side="right") - 1
    drawn = np.empty(max_draws, np.int64)
    while node < num_nodes and filled + max_draws <= len(a):
        while offset[community + 1] <= node:
            community += 1
        quantile = _unit(hash64(keys[0], np.uint64(node)))
        num_draws = 1
        while num_draws <= len(threshold) and threshold[num_draws - 1] <= quantile:
            num_draws += 1
        mixing = _unit(hash64(keys[1], np.uint64(node)))
        cross_below = cross_scale * (mixing * mixing)
        position, own_size = node - offset[community], offset[community + 1] - offset[community]
        own_share = (position + 1) / own_size
        kept = 0
        for j in range(num_draws):
            counter = node * max_draws + j
            # The scale of popularity is divided into strata. One draw per stratum gives the same distribution with far fewer repeated pairs.
            x = (j + _unit(hash64(keys[2], np.uint64(counter)))) / num_draws
            cross = hash64(keys[3], np.uint64(counter))
            # The index of the class uses the hash's lowest bits. The decision whether to mix communities uses the highest bits.
            if _unit(cross) < cross_below:
                target_class = class_table[np.int64(cross & class_mask)]
                target_size = offset[target_class + 1] - offset[target_class]
                reach = (position + 1) * (target_size / own_size)
            else:
                target_class, target_size = community, own_size
                reach = np.float64(position)
            target_position = np.int64(x * (hub_floor + (1.0 - hub_floor) * x) * reach)
            if target_position >= target_size:
                continue
            # In the order of (position / size, class), a node draws only earlier nodes, so no pair is drawn by both of its nodes.
            target_share = (target_position + 1) / target_size
            if not (target_share < own_share or (target_share == own_share and target_class < community)):
                continue
            target = offset[target_class] + target_position
            # Draws are nearly in order, so an insertion moves few entries. If the target is already there, the pair is a repetition.
            place = kept
            while place > 0 and drawn[place - 1] > target:
                place -= 1
            if place > 0 and drawn[place - 1] == target:
                continue
            for k in range(kept, place, -1):
                drawn[k] = drawn[k - 1]
            drawn[place] = target
            kept += 1
        if kept:
            owner = permuted(node, rounds, mask, shift, size)
            for k in range(kept):
                a[filled + k] = owner
                b[filled + k] = permuted(drawn[k], rounds, mask, shift, size)
            filled += kept
        node += 1
    return node, filled


@compiled
def both_directions(a, b, count, src, dst):
    """Writes the first `count` pairs in both directions: a → b, then b → a for each pair. So an edge's position in the stream does not depend on
    chunks."""
    for i in range(count):
        src[2 * i], dst[2 * i] = a[i], b[i]
        src[2 * i + 1], dst[2 * i + 1] = b[i], a[i]
