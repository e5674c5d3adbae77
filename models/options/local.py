"""Options of the trained local block of a model with a global one; the modules are in `graphmill.models.operators.local_blocks`."""

from dataclasses import dataclass
from typing import Any, Literal

from graphmill.core.option_checks import Count, Share, Size, check_fields

Block = Literal["lcb", "gcn", "sage", "gat", "gated-gcn", "appnp"]

READS_EDGES: tuple[Block, ...] = ("gcn", "sage", "gat", "gated-gcn")  # blocks that read features of edges


@dataclass(frozen=True)
class LocalOptions:
    """The local block, and how it joins the global block; the defaults are the papers' layers. Raises ValueError on values that cannot work."""

    block: Block = "lcb"
    """How a node reads its neighbors. lcb: GECO's [X, ÂX], without parameters; the others are convolutions."""
    join: Literal["serial", "gate", "top"] = "serial"
    """serial: the paper's layers. gate: every layer is L(H) + g ⊙ Global(L(H)). top: local layers first, global ones on top."""
    residual: Literal["none", "identity", "linear"] = "none"
    """Added to the local block: nothing, its input, or a linear map of it. With serial, linear is a path past the global block's gates."""
    norm: Literal["none", "layer", "batch"] = "layer"
    """After the local block; with serial, after both parts of the layer."""
    dropout: Share = 0.0
    """After each local block."""
    num_heads: Count = 4
    """gat: attention heads."""
    steps: Count = 10
    """appnp: how many times a layer propagates."""
    restart: Share = 0.1
    """appnp: share of its first state that a node keeps at each step."""
    gate_start: float = 0.01
    """gate: initial value of g, a learned factor per channel."""
    top_layers: Size = 1
    """top: global layers on top of num_layers local ones; 0: local layers alone."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def is_paper(self) -> bool:
        return self.join == "serial"

    def num_global(self, num_layers: int) -> int:
        """Global layers of a model of `num_layers`."""
        return self.top_layers if self.join == "top" else num_layers


def check_heads(options: Any) -> None:
    """Raises ValueError unless every head has equally many channels; `num_heads` is positive."""
    if options.width % options.num_heads:
        raise ValueError(
            f"width must be a multiple of num_heads, got {options.width} and {options.num_heads}; set num_heads"
        )


def check_local(config: Any) -> None:
    """Checks of a model's `local` that need its width. Raises ValueError."""
    local = config.local
    if local.block == "gat" and config.width % local.num_heads:
        raise ValueError(
            f"width must be a multiple of gat's heads, got {config.width} and {local.num_heads}; set local.num_heads"
        )


def check_joins(config: Any) -> None:
    """`check_local` for a model whose paper has no local block of this kind."""
    check_local(config)
    if config.local.is_paper and config.local != LocalOptions():
        raise ValueError(
            f"the paper's layers have no local block to choose, got {config.local.block} with join serial; set local.join to gate or top"
        )


def check_global(config: Any, why: str) -> None:
    """Raises ValueError if a model that needs a global layer has none; `why` says for what."""
    if config.local.join == "top" and not config.local.top_layers:
        raise ValueError(f"{why}, got local.top_layers 0; set it to at least 1")
