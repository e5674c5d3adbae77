"""Options of a split that ingestion draws. Imports only the standard library, so that `ingest --help` is instant."""

from dataclasses import dataclass
from typing import Literal

from graphmill.core.option_checks import check_options

TWO_SHARES = "two shares between 0 and 1, in ascending order (0.8 0.9)"


@dataclass(frozen=True)
class SplitOptions:
    """Options of a split of nodes, or of the graphs of a set. The split replaces the split of the source."""

    by_time: tuple[float, ...] = ()
    """Two shares. With 0.8 0.9, the first 80 % of the nodes in order of time train, the next 10 % validate, and the rest test. Nodes with equal times are in
    one part. If nodes have labels, only labelled nodes are split."""
    shares: tuple[float, ...] = ()
    """Shares of rows that train, validate and test, such as 0.8 0.1 0.1, or 0.8 0.2 without a test part. The sum must be 1. Rows without label and target are
    in no part. Parts have the same sizes as in scikit-learn's train_test_split. At least one row validates."""
    by: Literal["random", "label", "scaffold", "time"] = "random"
    """Method of the split. random: drawn with --split.seed. label: drawn separately from each class. scaffold: all molecules with the same Murcko scaffold are
    in one part, and the largest groups train. time: in order of time, like by_time."""
    seed: int = 0
    """Seed of the draw. The result depends only on this seed and on a row's position in the source."""

    def __post_init__(self) -> None:
        shares = self.shares
        fine = len(shares) in (2, 3) and min(shares) > 0 and abs(sum(shares) - 1) < 1e-9
        expected = "two or three shares above 0 that add up to 1 (0.8 0.1 0.1), without by_time"
        by_time = (not self.by_time or are_shares(self.by_time), TWO_SHARES)
        rows = {"by_time": by_time, "shares": (not shares or (fine and not self.by_time), expected)}
        check_options(self, rows | {"by": (self.by == "random" or bool(shares), "--split.shares beside it")})

    @property
    def time_shares(self) -> tuple[float, ...]:
        """For a split by time: the share up to which nodes train, and the share up to which nodes validate. Empty for other splits."""
        drawn = (self.shares[0], round(sum(self.shares[:2]), 12)) if self.by == "time" else ()
        return self.by_time or drawn

    def __bool__(self) -> bool:
        return bool(self.by_time or self.shares)

    def __str__(self) -> str:
        shares = " ".join(map(str, self.shares or self.by_time))
        return f"{shares} by {'time' if self.by_time else self.by}" + (
            "" if self.time_shares else f", seed {self.seed}"
        )


def are_shares(by_time: tuple[float, ...]) -> bool:
    return len(by_time) == 2 and 0 < by_time[0] < by_time[1] < 1
