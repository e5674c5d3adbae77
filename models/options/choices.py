"""Names that options of several models choose from."""

from typing import Literal

Pool = Literal["sum", "mean", "max"]
Task = Literal["graph", "node", "link"]
Head = Literal["halving", "graphgym"]  # HalvingMLP | FullWidthMLP with UnitReLU
Local = Literal["gated_gcn", "gcn", "none"]
Normalisation = Literal["mean", "sum", "sym", "gcn"]
Permutation = Literal["static", "dynamic", "none"]
Urpe = Literal["phi", "one_plus_phi", "none"]
EdgeQuery = Literal["source", "target"]
