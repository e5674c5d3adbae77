"""Computes circular convolutions of any length N through transforms of a fast length L (docs/decisions/0011).

A transform is several times slower if its length has large prime factors. So the signal is padded with zeros to a fast L ≥ 2N - 1, and the
filter is repeated periodically over the lags -(N-1) … N-1. The first N positions of the product's inverse transform are then exactly the
circular convolution of length N.
"""

from torch import Tensor

_SHORT = 1 << 14  # positions that fit a processor's cache


def transform_length(num_positions: int) -> int:
    """Returns the length L of the transforms for N positions: the cheapest fast length L ≥ 2N - 1 if it costs less than N, else N.

    The cost per position includes the products with the features' spectra. Relative to a length that is a power of two, it is 1.4 for small factors, 2.8 for
    large factors, 5.5 for odd N. These costs are a compromise between measurements with MKL at N = 16 thousand and at a million (docs/decisions/0011). Short
    transforms, which fit a processor's cache, cost less. cuFFT also has kernels for small factors and Bluestein's algorithm for other factors.
    """
    if num_positions < 64 or _largest_prime(num_positions, 32) <= 31:
        return num_positions
    least, is_odd = 2 * num_positions - 1, num_positions % 2 == 1
    even_cost, odd_cost = (2.0, 2.8) if num_positions < _SHORT else (2.8, 5.5)
    best, best_cost = num_positions, (odd_cost if is_odd else even_cost) * num_positions
    for odd in (1, 3, 5, 9, 15, 25, 27, 45):
        length = odd << max((-(-least // odd) - 1).bit_length(), 1)
        small_factors = 1.1 if length <= 2 * _SHORT else 1.4
        cost = length * (1.0 if odd == 1 else small_factors)
        if cost < best_cost:
            best, best_cost = length, cost
    return best


def _largest_prime(number: int, enough: int) -> int:
    """Returns the largest prime factor. If this factor is above `enough`, the result may be another number above `enough`."""
    for prime in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31):
        while number % prime == 0 and number > prime:
            number //= prime
    return max(number, 2)


def repeat_lags(values_XN: Tensor, length: int) -> Tensor:
    """[…, L]: the values at the lags 0 … N-1 and, if L > N, the values at the lags -(N-1) … -1 in the last positions."""
    num = values_XN.shape[-1]
    if length == num:
        return values_XN
    wide_XL = values_XN.new_zeros(*values_XN.shape[:-1], length)
    wide_XL[..., :num] = values_XN
    wide_XL[..., length - num + 1 :] = values_XN[..., 1:]
    return wide_XL


def fold_lags(grad_XL: Tensor, num: int) -> Tensor:
    """The adjoint of `repeat_lags`."""
    length = grad_XL.shape[-1]
    if length == num:
        return grad_XL
    grad_XN = grad_XL[..., :num].contiguous()
    grad_XN[..., 1:] += grad_XL[..., length - num + 1 :]
    return grad_XN
