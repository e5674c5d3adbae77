"""Options of the GPS hybrid layer and of what stands before it (arXiv:2205.12454); the modules are in `models.gps` and `models.gps_ends`."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from models.options.choices import HEADS, LOCALS, POOLS, TASKS, Local
from models.options.features import Features


@dataclass(frozen=True)
class GPSOptions:
    """Options of one hybrid layer; raises ValueError on values that cannot work."""

    local: Local = "gated_gcn"
    mlp: Literal["plain", "residual"] = "plain"
    norm: Literal["batch", "layer", "none"] = "batch"
    activation: Literal["relu", "gelu"] = "relu"
    dropout: float = 0.0
    """After both blocks, twice in the MLP, and on GatedGCN's edge states."""
    mlp_ratio: int = 2

    def __post_init__(self) -> None:
        choices: dict[str, tuple[str, ...]] = {
            "local": LOCALS,
            "mlp": ("plain", "residual"),
            "norm": ("batch", "layer", "none"),
            "activation": ("relu", "gelu"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}; set {name}")
        if not (0 <= self.dropout < 1):
            raise ValueError(f"dropout must lie in [0, 1), got {self.dropout}; set dropout")
        if self.mlp_ratio < 1:
            raise ValueError(f"mlp_ratio must be at least 1, got {self.mlp_ratio}; set mlp_ratio")


EncodingKind = Literal["none", "laplacian", "laplacian_linear", "stable_laplacian", "stable_expressive", "random_walk"]
KINDS: tuple[str, ...] = (
    "none",
    "laplacian",
    "laplacian_linear",
    "stable_laplacian",
    "stable_expressive",
    "random_walk",
)


@dataclass(frozen=True)
class PositionOptions:
    """Which position encoding, and how wide; raises ValueError on values that cannot work."""

    GIVEN: ClassVar = ("stored",)
    kind: EncodingKind = "none"
    dim: int = 16
    """P."""
    steps: int | None = None
    """Eigenvectors, or steps of the walk; None: as many as dim."""
    stored: str | None = None
    """Take `graphs.encodings[stored]` rather than compute (needs steps columns, or more)."""
    reverse: bool = False
    """random_walk: return probabilities over reversed edges too, for directed graphs."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"position kind must be one of {', '.join(KINDS)}, got {self.kind!r}; set kind")
        for name, value in (("dim", self.dim), ("steps", self.num_steps)):
            if value < 1:
                raise ValueError(f"position {name} must be at least 1, got {value}; set {name}")
        if self.reverse and (self.kind != "random_walk" or self.stored is not None):
            raise ValueError("reverse goes with the kind random_walk, computed; leave it out")
        if self.stored is not None and self.kind in ("laplacian", "stable_expressive"):
            raise ValueError(
                f"stored encodings have no eigenvalues, which {self.kind} needs; set kind to laplacian_linear"
            )

    @property
    def num_steps(self) -> int:
        return self.dim if self.steps is None else self.steps

    @property
    def channels(self) -> int:
        """P of the node states that the encoding takes."""
        return 0 if self.kind in ("none", "stable_laplacian") else self.dim

    @property
    def gates(self) -> bool:
        return self.kind == "stable_laplacian"


def check_ends(out_dim: int, task: str, pool: str, head: str, head_layers: int, width: int, num_layers: int) -> None:
    """Raises ValueError on values that cannot work; shared by the configs of the models."""
    for name, value in (
        ("out_dim", out_dim),
        ("head_layers", head_layers),
        ("width", width),
        ("num_layers", num_layers),
    ):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}; set {name}")
    for name, got, allowed in (("task", task, TASKS), ("pool", pool, POOLS), ("head", head, HEADS)):
        if got not in allowed:
            raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {got!r}; set {name}")


def check_stem(
    node: Features, edge: Features, width: int, position: PositionOptions, local: Local, input_dropout: float
) -> None:
    """Raises ValueError where a `Stem` and the layers' local block do not fit each other or the features."""
    if width <= position.channels:
        raise ValueError(
            f"the encoding leaves no channel for the features: width {width}, encoding {position.channels}; "
            "set a smaller position dim"
        )
    if local != "gated_gcn" and not edge.empty:
        raise ValueError("edge features are read by GatedGCN only; set edge to Features(), or local to gated_gcn")
    if local != "gated_gcn" and position.gates:
        raise ValueError("a stable_laplacian encoding gates GatedGCN's edges; set local to gated_gcn, or another kind")
    if input_dropout and not node.dim:
        raise ValueError("input_dropout acts on numeric features, and there are none; set input_dropout to 0")
