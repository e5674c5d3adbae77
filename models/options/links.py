"""Options of the decoders that score links; they are in `graphmill.models.ends.link_decoders`."""

from dataclasses import dataclass
from typing import Literal

from graphmill.core.option_checks import Count, Share, check_fields


@dataclass(frozen=True)
class LinkDecoderOptions:
    """Options of the decoder, which computes the score of a link from the states of the link's two nodes."""

    kind: Literal["mlp", "dot", "distmult", "transe"] = "mlp"
    """mlp: a perceptron over the product of the states, as in OGB's examples; dot: the dot product, which learns slowly at first; distmult
    (arXiv:1412.6575): a weight for each channel; transe (NeurIPS 2013): a distance after a translation. Only transe distinguishes a link from its reverse."""
    width: Count = 128
    """Width of the states."""
    num_layers: Count = 2
    """mlp: number of linear maps."""
    dropout: Share = 0.0
    """mlp: dropout after each layer except the last."""

    def __post_init__(self) -> None:
        check_fields(self)
