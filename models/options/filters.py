"""Options of the implicit filter of GECO and Hyena (`graphmill.models.operators.filters`)."""

import math
from dataclasses import dataclass
from typing import Literal

from graphmill.core.option_checks import Count, Size, check_fields

FilterScale = Literal["none", "length", "sqrt_length"]


@dataclass(frozen=True)
class FilterConfig:
    """Options of the implicit filter FFN; raises ValueError on values that cannot work."""

    bands: Count = 3
    """Frequency bands of the positional code; the code has 2·bands + 1 features (3 for small graphs, 33 for large graphs)."""
    inner_width: Count = 64
    """Inner width of the FFN; 16 to 64 in Hyena."""
    num_inner_layers: Size = 2
    """Number of inner pairs of Linear and sine after the first pair."""
    frequency: float = 1.0
    """Initial value of ω in sin(ω·), 1 to 14."""
    trainable_frequency: bool = True
    """Train ω; its initial value is frequency."""
    symmetric: bool = False
    """Make filters symmetric: f[t] = f[N - t]. The paper mentions a "circular symmetry" but does not define it, and its algorithms do not need it."""
    scale: FilterScale = "none"
    """Scale of the filter. "none" is the paper's sum. "length" divides the filter by N and "sqrt_length" by √N; neither is in the paper. With "length" the convolution is a mean over nodes. Its magnitude then does not depend on N, so a model that was trained on batches can be evaluated on the whole graph."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not (math.isfinite(self.frequency) and self.frequency > 0):
            raise ValueError(
                f"frequency must be positive and finite, got {self.frequency}; set frequency, 1 to 14 are usual"
            )
