"""Compares a replayed step with its record: bit for bit on the same kind of processor, else within a bound.

Another kind of processor sums in another order, so numbers differ in their last digits, and training enlarges the differences step by step. The bound of a
loss or norm x is `BOUND` (1 + min(k, 90) / 10) max(1, |x|), k steps after the replay's beginning. What was drawn must be equal on any processor. A
comparison within the bound finds gross changes alone, therefore it is never called verified.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from graphmill.cluster.receipts.chain import EACH, Entry, Start, TensorDigests

BOUND = 1e-3
_GROWS = 90  # steps after which the bound grows no further: it is 10⁻² there


def bound_after(steps: int) -> float:
    """The largest relative difference that is allowed, so many steps after the beginning of a replay."""
    return BOUND * (1 + min(steps, _GROWS) / 10)


def is_within(recorded: float, found: float, bound: float) -> bool:
    """Whether two numbers differ by at most the bound. A number that is not finite has an equal alone."""
    if not (math.isfinite(recorded) and math.isfinite(found)):
        return recorded == found or (math.isnan(recorded) and math.isnan(found))
    return abs(recorded - found) <= bound * max(1.0, abs(recorded))


@dataclass(frozen=True)
class Difference:
    """The first difference between a replayed step and its record, or between the steps of two runs."""

    number: int  # of the step, counted from 0 over the whole run
    epoch: int
    step: int
    part: str  # what differs first: "batches", "loss", "gradient", "weights"
    tensor: str  # name of the first tensor that differs; empty: not known
    reason: str

    def __str__(self) -> str:
        named = f" of {self.tensor}" if self.tensor else ""
        return f"step {self.number} (epoch {self.epoch}, step {self.step}): the {self.part}{named} differ{'' if self.part == 'batches' else 's' * (self.part != 'weights')}: {self.reason}"


def first_tensor(recorded: TensorDigests, found: TensorDigests, names: Sequence[str]) -> str:
    """The name of the first tensor whose digest differs, and the number of further ones."""
    differing = [name for i, name in enumerate(names) if recorded.of(i) != found.of(i)]
    if not differing:
        return "" if len(recorded.each) == len(found.each) == EACH * len(names) else "another list of tensors"
    more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
    return f"{differing[0]}{more}"


def compare(
    recorded: Entry, found: Entry, start: Start, number: int, bound: float | None
) -> tuple[Difference | None, float]:
    """(the difference, the largest relative difference of loss and norms). `bound`: the largest relative difference that is allowed; None: no bit may differ."""

    def differ(part: str, reason: str, tensor: str = "") -> Difference:
        return Difference(number, recorded.epoch, recorded.step, part, tensor, reason)

    if recorded.ids != found.ids:
        return differ("batches", f"ids with the digest {recorded.ids} are recorded, {found.ids} are drawn"), 0.0
    pairs = [("loss", recorded.loss, found.loss), ("gradient", recorded.norm, found.norm)]
    if recorded.mark is not None and found.mark is not None:
        pairs.append(("weights", recorded.mark.weights.norm, found.mark.weights.norm))
    largest = max(0.0 if is_within(a, b, 0.0) else abs(a - b) / max(1.0, abs(a)) for _, a, b in pairs)
    if bound is not None:
        for part, a, b in pairs:
            if not is_within(a, b, bound):
                what = {"loss": "", "gradient": "a norm of ", "weights": "a norm of "}[part]
                return differ(part, f"{what}{a!r} is recorded, {b!r} is computed; the bound is {bound:.1e}"), largest
        return None, largest
    if recorded.loss != found.loss:
        return differ("loss", f"{recorded.loss!r} is recorded, {found.loss!r} is computed"), largest
    if recorded.mark is not None and found.mark is not None:
        for part, kept, made, names in (
            ("gradient", recorded.mark.gradients, found.mark.gradients, start.trained),
            ("weights", recorded.mark.weights, found.mark.weights, start.tensors),
        ):
            if kept.whole != made.whole:
                reason = f"the digest {kept.whole[:12]} is recorded, {made.whole[:12]} is computed"
                return differ(part, reason, first_tensor(kept, made, names)), largest
    if recorded.norm != found.norm:
        return differ("gradient", f"a norm of {recorded.norm!r} is recorded, {found.norm!r} is computed"), largest
    return None, largest
