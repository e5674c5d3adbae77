"""Learning rates as a pure function of the step, so that a resumed run needs no scheduler state."""

import math

from graphmill.cluster.options import Schedule


def rate_factor(
    step: int,
    num_steps: int,
    warmup_steps: int,
    schedule: Schedule,
    floor: float = 0.0,
    power: float = 1.0,
) -> float:
    """Factor on the peak rate at `step`: linear warm-up from 1 / warmup_steps, then the schedule down to `floor`.

    "poly" is (1 - progress)^power, of which "linear" is power 1.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "constant":
        return 1.0
    progress = min(1.0, (step - warmup_steps) / max(1, num_steps - warmup_steps))
    if schedule == "cosine":
        shape = 0.5 * (1.0 + math.cos(math.pi * progress))
    else:
        shape = (1.0 - progress) ** (power if schedule == "poly" else 1.0)
    return floor + (1.0 - floor) * shape
