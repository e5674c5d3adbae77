"""Orders locality groups by recursive bisection. Groups that are near in this order are near in the graph.

The set of groups is cut into two halves of about equal size with few edges between them. Each half is cut in the same way, down to single groups
(Kernighan and Lin, Bell System Technical Journal 49(2), 1970; Fiduccia and Mattheyses, DAC 1982). A half is grown from one of several start groups, as METIS
does on its coarsest graph (SIAM J. Sci. Comput. 20(1), 1998). A range of consecutive groups is then about as local as a partition that was made for this
size, so any number of partitions can be ranges of groups. Only whole numbers are compared, so every machine finds the same order.
"""

import numpy as np

_STARTS = 4  # number of start groups from which a half is grown; the best result is used
_PASSES = 8  # most passes of moves to improve one bisection
_PATIENCE = 64  # a pass ends after this many moves without a better cut
_SLACK = 50  # a half may differ from half of the total size by 1/_SLACK of the total, or by the size of a group
_NEVER = np.iinfo(np.int64).min


def order_groups(links: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Returns the groups in their order, int64 [groups].

    links: int64 [groups, groups], number of edges between each two groups, in either direction. size: int64 [groups], number of nodes in each group.
    """
    links = links + links.T
    np.fill_diagonal(links, 0)
    order: list[int] = []
    waiting = [np.arange(len(size))]
    while waiting:
        groups = waiting.pop()
        if len(groups) == 1:
            order.append(int(groups[0]))
            continue
        is_left = _bisect(links[np.ix_(groups, groups)], size[groups])
        waiting += [groups[~is_left], groups[is_left]]
    return np.array(order, np.int64)


def even_ranges(size: np.ndarray, num_ranges: int) -> np.ndarray:
    """Cuts items, in their order, into ranges of about equal total size. Returns the first item of each range, and the number of items, int64 [num_ranges + 1].

    No range is empty, so there must be at least as many items as ranges. Each bound is as near to its ideal position as the other ranges allow.
    """
    ends = np.concatenate([[0], np.cumsum(size)])
    even = ends[-1] * np.arange(num_ranges + 1) / num_ranges
    after = np.clip(np.searchsorted(ends, even), 1, len(size))
    bounds = after - (even - ends[after - 1] <= ends[after] - even)
    number = np.arange(num_ranges + 1)
    # Each bound is at least one more than the bound before it.
    bounds = np.maximum.accumulate(np.maximum(bounds, number) - number) + number
    return np.minimum(bounds, len(size) - num_ranges + number)


def _bisect(links: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Cuts two or more groups into halves. Returns for each group whether it is in the left half, bool [groups]."""
    best, fewest = np.zeros(len(size), bool), None
    for start in _starts(links):
        is_left = _refine(links, size, _grow(links, size, start))
        cut = int(links[is_left][:, ~is_left].sum())
        if fewest is None or cut < fewest:
            best, fewest = is_left, cut
    return best


def _starts(links: np.ndarray) -> list[int]:
    """Chooses groups that are far apart. First the group with the fewest links, then repeatedly the group with the smallest share of links to chosen groups."""
    degree = np.maximum(links.sum(0), 1)
    starts = [int(np.argmin(degree))]
    near = links[starts[0]].copy()
    while len(starts) < min(_STARTS, len(links)):
        share = near / degree
        share[starts] = np.inf
        starts.append(int(np.argmin(share)))
        near += links[starts[-1]]
    return starts


def _grow(links: np.ndarray, size: np.ndarray, start: int) -> np.ndarray:
    """Grows a half from the group `start`. Repeatedly adds the group that cuts the fewest edges, until the half is large enough. Never adds the last group."""
    degree, inside = links.sum(0), np.zeros(len(size), np.int64)
    is_left = np.zeros(len(size), bool)
    group, held, half = start, 0, int(size.sum()) // 2
    while True:
        is_left[group] = True
        held += int(size[group])
        inside += links[group]
        if held >= half or is_left.sum() + 1 == len(size):
            return is_left
        group = int(np.argmax(np.where(is_left, _NEVER, 2 * inside - degree)))


def _refine(links: np.ndarray, size: np.ndarray, is_left: np.ndarray) -> np.ndarray:
    """Improves a bisection in passes. In a pass every group moves at most once, and the group that saves most edges moves first. The next pass begins with the
    best state of this pass."""
    total = int(size.sum())
    slack = max(total // _SLACK, int(size.max()))
    for _ in range(_PASSES):
        side, best, saved, most, since = is_left.copy(), None, 0, 0, 0
        inside = links[side].sum(0)
        gain = np.where(side, -1, 1) * (2 * inside - links.sum(0))
        held, may_move = int(size[side].sum()), np.ones(len(size), bool)
        while since < _PATIENCE:
            # Twice the allowed difference between the size of a half and half of the total size.
            off = np.abs(2 * np.where(side, held - size, held + size) - total)
            fits = may_move & ((off <= 2 * slack) | (off < abs(2 * held - total)))
            if not fits.any():
                break
            group = int(np.argmax(np.where(fits, gain, _NEVER)))
            saved, since = saved + int(gain[group]), since + 1
            held += int(-size[group] if side[group] else size[group])
            side[group] = not side[group]
            may_move[group] = False
            gain += 2 * np.where(side == side[group], -links[group], links[group])
            if saved > most and 0 < side.sum() < len(size) and abs(2 * held - total) <= 2 * slack:
                best, most, since = side.copy(), saved, 0
        if best is None:
            break
        is_left = best
    return is_left
