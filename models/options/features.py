"""Defines the kinds of features of nodes and edges, and the choices that options of several models share."""

from dataclasses import dataclass
from typing import Any, Literal

Pool = Literal["sum", "mean", "max"]
Task = Literal["graph", "node", "link"]
Head = Literal["halving", "graphgym"]  # HalvingMLP | FullWidthMLP with UnitReLU
Local = Literal["gated_gcn", "gine", "gcne", "gcn", "none"]
Normalisation = Literal["mean", "sum", "sym", "gcn"]
Permutation = Literal["static", "dynamic", "none"]
Urpe = Literal["phi", "one_plus_phi", "none"]
EdgeQuery = Literal["source", "target"]


@dataclass(frozen=True)
class Features:
    """Describes the columns of a feature row: categories (one vocabulary size per column), or `dim` numbers, or nothing (both empty).

    `atoms()` and `bonds()` are OGB's molecule features (ogb.utils.features, 1.3.6).
    """

    categories: tuple[int, ...] = ()
    dim: int = 0

    def __post_init__(self) -> None:
        if self.categories and self.dim:
            raise ValueError("features are categories or numbers, got both; set categories or dim")
        if self.dim < 0 or any(size < 1 for size in self.categories):
            raise ValueError(
                f"vocabularies and dim must be positive, got {self.categories}, {self.dim}; set categories"
            )

    @property
    def empty(self) -> bool:
        return not self.categories and not self.dim


def atoms() -> Features:
    """Returns OGB's nine atom columns."""
    return Features(categories=(119, 5, 12, 12, 10, 6, 6, 2, 2))


def bonds() -> Features:
    """Returns OGB's three bond columns."""
    return Features(categories=(5, 6, 2))


def check_numeric(options: Any, *names: str) -> None:
    """Raises ValueError if one of these options, which act on numeric node features, is set but the model reads no numeric features."""
    for name in names:
        if getattr(options, name) and not options.node.dim:
            off = "no" if getattr(options, name) is True else "0"
            raise ValueError(f"{name} acts on numeric features, and there are none; set {name} to {off}")
