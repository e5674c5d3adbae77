"""Averages the buffers that a forward pass changes (BatchNorm's running statistics) over a step's micro-batches.

Every position starts with the buffers from the beginning of the step. At the end of the step the buffers become the mean of the positions' buffers. The
mean is added along the tree (`graphmill.cluster.reduction.gradient_tree`), so any number of ranks gets the same bits. Sums are computed in float64, because
there the mean of equal float32 numbers is exact.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from graphmill.cluster.reduction.gradient_tree import TreeSum
from graphmill.cluster.reduction.position_tree import Seat, leaf


class BufferMean:
    """Computes the mean of the buffers that a checkpoint holds. With one position it does nothing.

    buffers.begin_step()
    for position in own_positions:
        buffers.begin_position(); …forward…; changed = buffers.look(); …backward…; buffers.keep(position)
    buffers.end(changed by any position)
    """

    def __init__(self, model: nn.Module, seat: Seat, device: torch.device) -> None:
        parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        tensors = {name for name, value in model.state_dict().items() if isinstance(value, Tensor)}
        self._names = [] if seat.num_positions == 1 else sorted(tensors - parameters)
        self._model, self._seat = model, seat
        self._changed = torch.zeros(len(self._names), dtype=torch.float64, device=device)
        self._start: dict[str, Tensor] = {}
        self._kept: list[tuple[int, dict[str, Tensor]]] = []

    def begin_step(self) -> None:
        self._start, self._kept = self._copies(), []
        self._changed.zero_()

    def begin_position(self) -> None:
        """Restores the buffers from the beginning of the step. Call it before a forward pass."""
        if self._kept and self._names:
            self._load(self._start)

    def look(self) -> Tensor:
        """float64 [buffers]: above 0 if this rank's positions have changed the buffer. Call it after a forward pass."""
        if self._names:
            state = self._model.state_dict()
            self._changed += torch.stack([(state[name] != self._start[name]).any() for name in self._names])
        return self._changed

    def keep(self, position: int) -> None:
        """Copies the position's buffers. Call it after the backward pass, because recomputed layers may change buffers during the backward pass."""
        self._kept.append((position, self._copies()))

    def end(self, changed: Sequence[float]) -> None:
        """Sets each buffer that any position has changed to its mean. A collective call if a buffer has changed."""
        names = [name for name, count in zip(self._names, changed, strict=True) if count]
        if not names:
            return
        leaves = [leaf(position, self._row([kept[name] for name in names])) for position, kept in self._kept]
        total = TreeSum(self._seat, self._seat.fold(leaves, Tensor.add_))
        total.share()
        mean, start = total.end() / self._seat.num_positions, 0
        means = {}
        for name in names:
            old = self._start[name]
            means[name] = mean[start : start + old.numel()].view(old.shape).to(old.dtype)
            start += old.numel()
        self._load(means)

    def _row(self, tensors: Sequence[Tensor]) -> Tensor:
        """Returns all numbers of the tensors in one row, padded with zeros to a multiple of the number of ranks."""
        row = torch.cat([tensor.flatten().double() for tensor in tensors])
        return nn.functional.pad(row, (0, -len(row) % self._seat.num_ranks))

    def _copies(self) -> dict[str, Tensor]:
        state = self._model.state_dict() if self._names else {}
        return {name: state[name].clone() for name in self._names}

    def _load(self, buffers: dict[str, Tensor]) -> None:
        """Loads the buffers by the model's `load_state_dict`, because a module may react to it (FavorAttention counts its calls)."""
        self._model.load_state_dict(buffers, strict=False)
