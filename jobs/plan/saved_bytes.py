"""The memory that autograd holds between the forward and the backward pass."""

from collections.abc import Callable

import torch
from torch import Tensor


def saved_bytes(step: Callable[[], Tensor]) -> int:
    """What autograd keeps between forward and backward, each storage once."""
    # The tensors are held here, or a freed one's address could come again. Without their graph: an output that its own node keeps would
    # hold that node, and all of it would never be freed.
    seen: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.layout != torch.strided:  # a sparse matrix is an input, kept in any case
            return tensor
        kept = tensor.detach()
        seen[kept.untyped_storage().data_ptr()] = kept
        return kept

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        step()
    return sum(tensor.untyped_storage().nbytes() for tensor in seen.values())
