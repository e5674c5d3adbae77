"""Implements Performer's FAVOR+: softmax attention in O(T) time and memory by positive random features (arXiv:2009.14794).

    exp(q·k/√d) = E_w[φ(q)·φ(k)],   φ(x) = r^-½ exp(W x' - |x'|²/2),   x' = x d^-¼,   rows of W ~ N(0, I)
    out = φ(Q) (φ(K)ᵀ V) / (φ(Q) φ(K)ᵀ 1)

W's rows are orthogonal in blocks of d rows. The blocks are drawn uniformly: QR's columns times sign(diag R), because LAPACK's own signs
bias the estimator by 15 %. The rows get the lengths of independent Gaussian rows, because rows all of length √d bias the estimator too.

Exponents are shifted before exp so that the largest is 0: per query, and per (graph, head) over all real keys without padding.
The shifts cancel in the quotient if `epsilon` is 0. `epsilon` is added to each shifted exponential, as in Performer's code
(1e-4 there): every token then gives some weight to every other token, and outputs change by about 1e-2.

`released` uses the shifts of Performer's code, which its trained models require: the largest W x' instead of the largest exponent, also over
the padding's keys. The largest exponential is then at most e^(-|x'|²/2). For queries of large norm `epsilon` is larger than this bound, and attention
tends to the plain mean of the values, so the estimate of softmax attention is worse.

Features are float32 (float64 for float64 input) also under bf16 autocast, because rounding an exponent of 20 to 8 bits would change the
feature by 8 %.

Legend: B graphs, H heads, T tokens, D head width, R features, E value width.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

CHUNK_TOKENS = 16384


def default_num_features(head_width: int) -> int:
    """Returns ⌊D ln D⌋, at least 1, which is Performer's choice (76 for D = 24)."""
    return max(1, int(head_width * math.log(head_width)))


def draw_projection(
    num_features: int, head_width: int, generator: torch.Generator, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Returns W [R, D]: each block of D rows is a uniform (Haar) orthogonal matrix whose rows are scaled to the lengths of Gaussian rows.

    `generator` is a CPU generator, so the model's device does not change a draw.
    """
    blocks = -(-num_features // head_width)
    gauss = torch.randn(blocks, head_width, head_width, dtype=torch.float64, generator=generator)
    q, r = torch.linalg.qr(gauss)
    q = q * r.diagonal(dim1=1, dim2=2).sign().unsqueeze(1)
    rows_RD = q.reshape(blocks * head_width, head_width)[:num_features]
    length_R1 = torch.randn(num_features, head_width, dtype=torch.float64, generator=generator).norm(
        dim=1, keepdim=True
    )
    return (rows_RD * length_R1).to(dtype)


def exponents(x_BHTD: Tensor, projection_RD: Tensor) -> Tensor:
    """W x' - |x'|²/2, [B, H, T, R]: the logarithm of φ(x) √R. Float32, or float64 for float64 input."""
    dtype = torch.float64 if x_BHTD.dtype == torch.float64 else torch.float32
    with torch.autocast(x_BHTD.device.type, enabled=False):
        scaled_BHTD = x_BHTD.to(dtype) * x_BHTD.shape[-1] ** -0.25
        return scaled_BHTD @ projection_RD.to(dtype).t() - half_square(x_BHTD)


def half_square(x_BHTD: Tensor) -> Tensor:
    """|x'|²/2, [B, H, T, 1], in float32, or float64 for float64 input."""
    dtype = torch.float64 if x_BHTD.dtype == torch.float64 else torch.float32
    return (x_BHTD.to(dtype) * x_BHTD.shape[-1] ** -0.25).square().sum(-1, keepdim=True) / 2


class KeySummary(NamedTuple):
    """Holds the sums over tokens; attention needs nothing else from keys and values. Sums over parts of the tokens can be added."""

    values_BHRE: Tensor  # φ(K)ᵀ V
    weight_BHR: Tensor  # φ(K)ᵀ 1


def key_peak(k_BHTD: Tensor, projection_RD: Tensor, mask_BT: Tensor | None, released: bool = False) -> Tensor:
    """Returns [B, H, 1, 1]: the largest exponent of the real keys, -∞ without real keys. Takes no gradient.

    `released`: the largest W k', padding included.
    """
    with torch.no_grad():
        dtype = torch.float64 if k_BHTD.dtype == torch.float64 else torch.float32
        largest = k_BHTD.new_full((*k_BHTD.shape[:2], 1, 1), -math.inf, dtype=dtype)
        for part, mask in _chunks(k_BHTD, mask_BT):
            exponent = exponents(part, projection_RD)
            if released:
                exponent = exponent + half_square(part)
            elif mask is not None:
                exponent = exponent.masked_fill(~mask[:, None, :, None], -math.inf)
            largest = torch.maximum(largest, exponent.amax(dim=(2, 3), keepdim=True))
        return largest


def summarise_keys(
    k_BHTD: Tensor, v_BHTE: Tensor, projection_RD: Tensor, shift_BH11: Tensor, mask_BT: Tensor | None, epsilon: float
) -> KeySummary:
    """Returns φ(K)ᵀ V and φ(K)ᵀ 1 over the real keys, with exponents lowered by `shift`."""
    exponent = exponents(k_BHTD, projection_RD) - shift_BH11
    if mask_BT is not None:
        # The exponent is masked before exp, because a masked key can have any size and 0 · exp(…) is NaN if exp overflows.
        exponent = exponent.masked_fill(~mask_BT[:, None, :, None], 0)
    phi_BHTR = exponent.exp() + epsilon
    if mask_BT is not None:
        phi_BHTR = phi_BHTR * mask_BT[:, None, :, None].to(phi_BHTR.dtype)
        v_BHTE = v_BHTE.masked_fill(~mask_BT[:, None, :, None], 0)
    with torch.autocast(k_BHTD.device.type, enabled=False):
        return KeySummary(phi_BHTR.transpose(2, 3) @ v_BHTE.to(phi_BHTR.dtype), phi_BHTR.sum(2))


def read_summary(
    q_BHTD: Tensor, projection_RD: Tensor, summary: KeySummary, epsilon: float, released: bool = False
) -> Tensor:
    """[B, H, T, E] in q's dtype; 0 for a graph without keys."""
    exponent = exponents(q_BHTD, projection_RD)
    shift_BHT1 = exponent.detach().amax(-1, keepdim=True)
    if released:
        shift_BHT1 = shift_BHT1 + half_square(q_BHTD.detach())
    phi_BHTR = (exponent - shift_BHT1).exp() + epsilon
    with torch.autocast(q_BHTD.device.type, enabled=False):
        total_BHT1 = phi_BHTR @ summary.weight_BHR.unsqueeze(-1)
        empty = total_BHT1 == 0
        out_BHTE = (phi_BHTR @ summary.values_BHRE) / total_BHT1.masked_fill(empty, 1)
    return out_BHTE.to(q_BHTD.dtype)


def favor_attention(
    q_BHTD: Tensor,
    k_BHTD: Tensor,
    v_BHTE: Tensor,
    projection_RD: Tensor,
    mask_BT: Tensor | None = None,
    epsilon: float = 1e-4,
    *,
    released: bool = False,
    keys: "KeyLayout | None" = None,
) -> Tensor:
    """Estimates softmax attention: [B, H, T, E]. `mask_BT` is True for real keys; queries are never masked. `keys` defines how keys are
    spread over processes; None: all keys are in this process.

    Above CHUNK_TOKENS tokens, only one chunk's features exist at a time, and the backward pass computes the features again. Memory in
    addition to the inputs and the output is then O(CHUNK_TOKENS · R); time is still O(T · R · (D + E)).
    """
    peak = key_peak(k_BHTD, projection_RD, mask_BT, released)
    peak = peak if keys is None else keys.max(peak)
    shift = peak.masked_fill(peak == -math.inf, 0)  # takes no gradient, because the shift cancels

    def summarise(k_BHTD: Tensor, v_BHTE: Tensor, mask_BT: Tensor | None) -> KeySummary:
        return sum_keys(k_BHTD, v_BHTE, projection_RD, shift, mask_BT, epsilon)

    sums = summarise(k_BHTD, v_BHTE, mask_BT) if keys is None else keys.sum(k_BHTD, v_BHTE, mask_BT, summarise)
    return map_queries(q_BHTD, projection_RD, sums, epsilon, released)


class KeySums(Protocol):
    """A function that returns the sums over the given keys, such as `summarise_keys`."""

    def __call__(self, k_BHTD: Tensor, v_BHTE: Tensor, mask_BT: Tensor | None) -> KeySummary: ...


class KeyLayout(Protocol):
    """Describes how the keys are spread over processes."""

    def max(self, x: Tensor) -> Tensor:
        """Returns the largest value over processes."""
        ...

    def sum(self, k_BHTD: Tensor, v_BHTE: Tensor, mask_BT: Tensor | None, summarise: KeySums) -> KeySummary:
        """Returns the sums over all keys, from the sums over this process's keys."""
        ...


def sum_keys(
    k_BHTD: Tensor, v_BHTE: Tensor, projection_RD: Tensor, shift_BH11: Tensor, mask_BT: Tensor | None, epsilon: float
) -> KeySummary:
    """Calls `summarise_keys`, in chunks if there are many keys."""
    if k_BHTD.shape[2] <= CHUNK_TOKENS:
        return summarise_keys(k_BHTD, v_BHTE, projection_RD, shift_BH11, mask_BT, epsilon)
    sums: KeySummary | None = None
    for (k, mask), (v, _) in zip(_chunks(k_BHTD, mask_BT), _chunks(v_BHTE, None), strict=True):
        part = recomputed(summarise_keys, k, v, projection_RD, shift_BH11, mask, epsilon)
        sums = part if sums is None else KeySummary(sums[0] + part[0], sums[1] + part[1])
    assert sums is not None
    return sums


def map_queries(
    q_BHTD: Tensor, projection_RD: Tensor, summary: KeySummary, epsilon: float, released: bool = False
) -> Tensor:
    """Calls `read_summary`, in chunks if there are many queries."""
    if q_BHTD.shape[2] <= CHUNK_TOKENS:
        return read_summary(q_BHTD, projection_RD, summary, epsilon, released)
    parts = [recomputed(read_summary, q, projection_RD, summary, epsilon, released) for q, _ in _chunks(q_BHTD, None)]
    return torch.cat(parts, dim=2)


def _chunks(x_BHTD: Tensor, mask_BT: Tensor | None) -> list[tuple[Tensor, Tensor | None]]:
    # `split` is used because the gradient of each slice would be a tensor of all T tokens, which is quadratic in T for all slices together.
    parts = x_BHTD.split(CHUNK_TOKENS, dim=2) if x_BHTD.shape[2] else ()  # a worker may hold no token
    masks = [None] * len(parts) if mask_BT is None else mask_BT.split(CHUNK_TOKENS, dim=1)
    return list(zip(parts, masks, strict=True))


def recomputed(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls the function; the backward pass calls it again and keeps only its arguments until then."""
    if not torch.is_grad_enabled():
        return function(*arguments)
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)


class FavorAttention(nn.Module):
    """Is FAVOR+ with a projection W that all heads share. Training draws W anew every `redraw_interval` calls.

    W is a function of only (seed, calls // redraw_interval), so data-parallel workers and a resumed run draw the same
    W. W and the number of calls are buffers: both are in the state dict. `redraw_interval` 0 keeps the first W.
    Do not use this module under activation checkpointing, which would count each call twice (long inputs are recomputed in chunks anyway).
    """

    def __init__(
        self,
        head_width: int,
        num_features: int | None = None,
        *,
        epsilon: float = 1e-4,
        released: bool = False,
        redraw_interval: int = 1000,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.head_width = head_width
        self.num_features = default_num_features(head_width) if num_features is None else num_features
        self.epsilon, self.released = epsilon, released
        self.redraw_interval, self.seed = redraw_interval, seed
        self.projection_RD: Tensor
        self.num_calls: Tensor
        self.register_buffer("projection_RD", self._draw(0))
        self.register_buffer("num_calls", torch.zeros((), dtype=torch.int64))
        # Copy of `num_calls` on the host, read without a wait for the device; None after a load.
        self._calls: int | None = 0
        self.register_load_state_dict_post_hook(_forget_calls)

    def forward(
        self,
        q_BHTD: Tensor,
        k_BHTD: Tensor,
        v_BHTE: Tensor,
        mask_BT: Tensor | None = None,
        keys: KeyLayout | None = None,
    ) -> Tensor:
        if self.training and self.redraw_interval:
            self._count_call()
        return favor_attention(
            q_BHTD, k_BHTD, v_BHTE, self.projection_RD, mask_BT, self.epsilon, released=self.released, keys=keys
        )

    @torch.compiler.disable
    @torch.no_grad()
    def _count_call(self) -> None:
        calls = int(self.num_calls) if self._calls is None else self._calls
        if calls and calls % self.redraw_interval == 0:
            # W is replaced, not changed in place: an earlier call's autograd graph may still need the old W.
            self.projection_RD = self._draw(calls // self.redraw_interval).to(self.projection_RD)
        self.num_calls += 1
        self._calls = calls + 1

    def _draw(self, index: int) -> Tensor:
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + index) % (1 << 62))
        return draw_projection(self.num_features, self.head_width, generator)

    def extra_repr(self) -> str:
        return (
            f"head_width={self.head_width}, num_features={self.num_features}, epsilon={self.epsilon}, "
            f"redraw_interval={self.redraw_interval}"
        )


def _forget_calls(module: nn.Module, _: object) -> None:
    assert isinstance(module, FavorAttention)
    module._calls = None
