"""Random numbers as a pure function of a key and a counter. There is no state, so any chunk of numbers can be made in any order, on any machine.

`hash_counters` gives the SplitMix64 output at arbitrary positions (Steele, Lea, Flood, OOPSLA 2014, with the constants of Vigna's splitmix64.c).
`Permutation` shuffles 0 … n-1 without holding an array.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def _mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser, in place on a fresh uint64 array."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def hash_counters(key: int, counters: np.ndarray) -> np.ndarray:
    """Returns the SplitMix64 outputs (uint64) of stream `key` at the positions `counters` (any integer array, uint64 wrap-around)."""
    x = counters.astype(np.uint64)
    x += np.uint64(1)
    x *= np.uint64(_GOLDEN)
    x += np.uint64(key & _MASK)
    return _mix(x)


def derive_key(seed: int, *path: int) -> int:
    """Returns a 64-bit key for the purpose that `path` names. Keys of different purposes or seeds are independent."""
    key = seed & _MASK
    for step in (0, *path):  # the same as `hash_counters`, with Python's integers: ten times as fast for one number
        x = (key + ((step & _MASK) + 1) * _GOLDEN) & _MASK
        x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ x >> 27) * 0x94D049BB133111EB) & _MASK
        key = x ^ x >> 31
    return key


def unit_interval(hashes: np.ndarray) -> np.ndarray:
    """float64 in [0, 1), from the upper 53 bits of each hash; every machine gets exactly the same numbers."""
    return (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(frozen=True)
class Permutation:
    """A keyed bijection of 0 … size-1 in O(1) memory: `forward(x)` and `backward(y)` are inverse functions.

    Rounds of odd multiplication, addition and xor-shift permute the numbers below the next power of two. A result of `size` or more is permuted
    again until it is below `size` ("cycle walking", Black and Rogaway, CT-RSA 2002). This takes at most two steps on average.
    """

    size: int
    key: int

    @cached_property
    def _bits(self) -> int:
        return max(2, (self.size - 1).bit_length())

    @cached_property
    def _rounds(self) -> tuple[tuple[int, int, int], ...]:
        """(odd multiplier, its inverse, addend) of each round, modulo the power of two."""
        modulus = 1 << self._bits
        draws = [int(h) for h in hash_counters(self.key, np.arange(6, dtype=np.uint64))]
        rounds = []
        for multiplier_draw, addend_draw in zip(draws[0::2], draws[1::2], strict=True):
            # The low bits of a product depend only on low bits. Therefore the multiplier is taken from the high half of the drawn number.
            multiplier = ((multiplier_draw >> (64 - self._bits)) | 1) % modulus
            rounds.append((multiplier, pow(multiplier, -1, modulus), addend_draw % modulus))
        return tuple(rounds)

    @property
    def compiled_form(self) -> tuple[np.ndarray, np.uint64, np.uint64, np.uint64]:
        """Arguments for `forward` in a compiled loop: (multipliers and addends uint64 [rounds, 2], mask, shift, size)."""
        rounds = np.array([(multiplier, addend) for multiplier, _, addend in self._rounds], np.uint64)
        return (
            rounds,
            np.uint64((1 << self._bits) - 1),
            np.uint64((self._bits + 1) // 2),
            np.uint64(self.size),
        )

    def _forward_once(self, x: np.ndarray) -> np.ndarray:
        mask, shift = np.uint64((1 << self._bits) - 1), np.uint64((self._bits + 1) // 2)
        for multiplier, _, addend in self._rounds:
            x = (x * np.uint64(multiplier) + np.uint64(addend)) & mask
            x ^= x >> shift  # this step is its own inverse because shift >= bits / 2
        return x

    def _backward_once(self, x: np.ndarray) -> np.ndarray:
        mask, shift = np.uint64((1 << self._bits) - 1), np.uint64((self._bits + 1) // 2)
        for _, inverse, addend in reversed(self._rounds):
            x = x ^ (x >> shift)
            x = ((x - np.uint64(addend)) * np.uint64(inverse)) & mask
        return x

    def _walk(self, step, values: np.ndarray) -> np.ndarray:
        result = step(values.astype(np.uint64))
        outside = np.flatnonzero(result >= np.uint64(self.size))
        while outside.size:
            walked = step(result[outside])
            result[outside] = walked
            outside = outside[walked >= np.uint64(self.size)]
        return result.astype(np.int64)

    def forward(self, values: np.ndarray) -> np.ndarray:
        """int64 images of `values`, which lie in 0 … size-1."""
        return self._walk(self._forward_once, values)

    def backward(self, values: np.ndarray) -> np.ndarray:
        """int64 preimages of `values`, which lie in 0 … size-1."""
        return self._walk(self._backward_once, values)
