"""After which epochs the workers tell what grows with partitions and ranks: after each of the first 32, then ever more rarely.

A run of n epochs tells it about 16 ln(n / 32) + 32 times, 160 times in 100,000 epochs. What is told are sums since the last time, so nothing is
left out; a fault costs at most what the last sixteenth of the epochs would have told.
"""

_SHARE = 16


def is_recorded(epoch: int) -> bool:
    """Whether the epoch, counted from 0, is one of those: the same on all ranks, and after a resume."""
    told = 1
    while told <= epoch:
        told += max(1, told // _SHARE)
    return told == epoch + 1
