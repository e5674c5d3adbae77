"""Defines options of the trained local block of a model that also has a global block; the modules are in `graphmill.models.operators.local_blocks`."""

from dataclasses import dataclass
from typing import Any, Literal

from graphmill.core.option_checks import Count, Share, Size, check_fields

Block = Literal["lcb", "gcn", "sage", "gat", "gatv2", "gin", "gated-gcn", "appnp"]

READS_EDGES: tuple[Block, ...] = (
    "gcn",
    "sage",
    "gat",
    "gatv2",
    "gin",
    "gated-gcn",
)  # blocks that read features of edges


@dataclass(frozen=True)
class LocalOptions:
    """Options of the local block and of how it joins the global block. The defaults are the papers' layers. Raises ValueError on values that cannot work."""

    block: Block = "lcb"
    """Kind of the local block. lcb: GECO's [X, ÂX], without parameters; the other kinds are convolutions."""
    join: Literal["serial", "gate", "top"] = "serial"
    """serial: the paper's layers. gate: every layer is L(H) + g ⊙ Global(L(H)). top: local layers first, then global layers."""
    residual: Literal["none", "identity", "linear"] = "none"
    """Added to the block: nothing, the block's input, or a linear map of the input. With serial, linear adds a path around the global block's gates."""
    norm: Literal["none", "layer", "batch"] = "layer"
    """Norm after the local block; with serial, after both parts of the layer."""
    dropout: Share = 0.0
    """Dropout after each local block."""
    num_heads: Count = 4
    """gat, gatv2: number of attention heads."""
    steps: Count = 10
    """appnp: propagation steps of a layer."""
    restart: Share = 0.1
    """appnp: share of a node's first state in the node's state after each step."""
    gate_start: float = 0.01
    """gate: initial value of g, a learned factor per channel."""
    top_layers: Size = 1
    """top: number of global layers on top of num_layers local layers; 0: only local layers."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def is_paper(self) -> bool:
        return self.join == "serial"

    def num_global(self, num_layers: int) -> int:
        """Global layers of a model of `num_layers`."""
        return self.top_layers if self.join == "top" else num_layers


def check_heads(options: Any) -> None:
    """Raises ValueError unless every head has the same number of channels; `num_heads` is positive."""
    if options.width % options.num_heads:
        raise ValueError(
            f"width must be a multiple of num_heads, got {options.width} and {options.num_heads}; set num_heads"
        )


def check_local(config: Any) -> None:
    """Checks the options in a model's `local` that depend on the model's width. Raises ValueError."""
    local = config.local
    if local.block in ("gat", "gatv2") and config.width % local.num_heads:
        raise ValueError(
            f"width must be a multiple of {local.block}'s heads, got {config.width} and {local.num_heads}; set local.num_heads"
        )


def check_joins(config: Any) -> None:
    """Calls `check_local`, and raises ValueError if a local block is set with join serial. For models whose paper has no local block to choose."""
    check_local(config)
    if config.local.is_paper and config.local != LocalOptions():
        raise ValueError(
            f"the paper's layers have no local block to choose, got {config.local.block} with join serial; set local.join to gate or top"
        )


def check_global(config: Any, why: str) -> None:
    """Raises ValueError if a model that needs a global layer has no global layer; `why` is the reason in the message."""
    if config.local.join == "top" and not config.local.top_layers:
        raise ValueError(f"{why}, got local.top_layers 0; set it to at least 1")
