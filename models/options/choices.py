"""Names that options of several models choose from."""

from typing import Literal

Pool = Literal["sum", "mean", "max"]
POOLS: tuple[str, ...] = ("sum", "mean", "max")
Task = Literal["graph", "node", "link"]
TASKS: tuple[str, ...] = ("graph", "node", "link")
Head = Literal["halving", "graphgym"]  # HalvingMLP | GraphGymMLP
HEADS: tuple[str, ...] = ("halving", "graphgym")
Local = Literal["gated_gcn", "gcn", "none"]
LOCALS: tuple[str, ...] = ("gated_gcn", "gcn", "none")
Normalisation = Literal["mean", "sum", "sym"]
NORMALISATIONS: tuple[str, ...] = ("mean", "sum", "sym")
Urpe = Literal["phi", "one_plus_phi", "none"]
URPES: tuple[str, ...] = ("phi", "one_plus_phi", "none")
EdgeQuery = Literal["source", "target"]
EDGE_QUERIES: tuple[str, ...] = ("source", "target")
