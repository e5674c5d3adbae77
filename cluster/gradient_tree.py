"""Sums over the micro-batches of a step along one fixed binary tree: the same bits, however many ranks compute them.

A step has V positions, a micro-batch each. The tree adds neighbors pair by pair, level by level; an odd last one moves up:

    V = 5:  ((0 + 1) + (2 + 3)) + 4

A rank has consecutive positions, and adds what the tree adds among them; what is left are its nodes. For the rest every bucket of gradients
is cut into a slice for each rank. A rank receives all nodes of its slice (all-to-all), adds them along the tree, and sends the sum to all
(all-gather). So one rank makes each addition, and all have its result. A rank with one node sends 2 (W - 1) / W of the gradients' bytes, as in
a ring all-reduce, in 2 rounds in place of 2 (W - 1).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from samplers.plans import own_positions

_BUCKET_BYTES = 4 << 20  # of gradients, exchanged while the backward pass makes the next ones
Value = TypeVar("Value")


@dataclass(frozen=True)
class Node(Generic[Value]):
    """The sum over the positions [start, stop)."""

    start: int
    stop: int
    value: Value


def fold(nodes: Iterable[Node[Value]], num_positions: int, add: Callable[[Value, Value], Value]) -> list[Node[Value]]:
    """What is left when all additions that the tree has among these nodes are made; each node begins where the one before it ends."""
    folded: list[Node[Value]] = []
    for node in nodes:
        while folded and _are_added(folded[-1].start, node.start, node.stop, num_positions):
            left = folded.pop()
            node = Node(left.start, node.stop, add(left.value, node.value))
        folded.append(node)
    return folded


def _are_added(start: int, middle: int, stop: int, num_positions: int) -> bool:
    """Whether the tree adds [start, middle) and [middle, stop)."""
    size = middle - start
    return size & (size - 1) == 0 and start % (2 * size) == 0 and stop == min(start + 2 * size, num_positions)


@dataclass(frozen=True)
class Seat:
    """A rank's part in a step of `num_positions` micro-batches."""

    rank: int
    num_ranks: int
    num_positions: int
    places: tuple[int, ...] = ()  # of the ranks in the order of positions; empty: they stand in their own order

    @property
    def place(self) -> int:
        return self.places[self.rank] if self.places else self.rank

    @property
    def positions(self) -> range:
        return self.positions_of_ranks[self.rank]

    @cached_property
    def positions_of_ranks(self) -> tuple[range, ...]:
        places = self.places or range(self.num_ranks)
        return tuple(own_positions(place, self.num_ranks, self.num_positions) for place in places)

    @cached_property
    def nodes_of_ranks(self) -> tuple[tuple[Node[None], ...], ...]:
        """The nodes that each rank is left with."""
        ranks = self.positions_of_ranks
        return tuple(tuple(self.fold((leaf(position, None) for position in own), _add_none)) for own in ranks)

    def fold(self, nodes: Iterable[Node[Value]], add: Callable[[Value, Value], Value]) -> list[Node[Value]]:
        return fold(nodes, self.num_positions, add)


def leaf(position: int, value: Value) -> Node[Value]:
    return Node(position, position + 1, value)


def _add_none(left: None, right: None) -> None:
    return None


class TreeSum:
    """One flat tensor's sum over all positions, under way. Making one, `share` and `end` are collective calls."""

    def __init__(self, seat: Seat, nodes: Sequence[Node[Tensor]]) -> None:
        """Begins the sum of this rank's nodes, whose length is a multiple of the number of ranks. The first one's memory is used for the sum."""
        self._seat, self._sum = seat, nodes[0].value
        self._work: dist.Work | None = None
        if seat.num_ranks == 1:
            return
        width = len(self._sum) // seat.num_ranks
        # Slice by slice, and of each all nodes.
        self._sent = (
            self._sum if len(nodes) == 1 else torch.stack([n.value.view(-1, width) for n in nodes], 1).flatten()
        )
        counts = [len(of_rank) * width for of_rank in seat.nodes_of_ranks]
        self._received = self._sum.new_empty(sum(counts))
        sent_counts = [len(nodes) * width] * seat.num_ranks
        self._work = dist.all_to_all_single(self._received, self._sent, counts, sent_counts, async_op=True)

    def share(self) -> None:
        """Waits for the nodes of this rank's slice, adds them, and begins to tell the others."""
        if self._work is None:
            return
        self._work.wait()
        nodes = [node for of_rank in self._seat.nodes_of_ranks for node in of_rank]
        slices = self._received.view(len(nodes), -1)
        received = [Node(node.start, node.stop, values) for node, values in zip(nodes, slices, strict=True)]
        (total,) = self._seat.fold(sorted(received, key=lambda node: node.start), Tensor.add_)
        self._work = dist.all_gather(
            list(self._sum.view(self._seat.num_ranks, -1).unbind()), total.value, async_op=True
        )

    def end(self) -> Tensor:
        """Waits for the sum."""
        if self._work is not None:
            self._work.wait()
        return self._sum


class _Gradients:
    """Gradients of all parameters: a flat tensor for each bucket, and a view into it for each parameter."""

    def __init__(self, buckets: Sequence[Sequence[nn.Parameter]], num_ranks: int) -> None:
        self.flats: list[Tensor] = []
        self.views: dict[nn.Parameter, Tensor] = {}
        for parameters in buckets:
            length = sum(parameter.numel() for parameter in parameters)
            flat = parameters[0].new_zeros(-(-length // num_ranks) * num_ranks)
            start = 0
            for parameter in parameters:
                self.views[parameter] = flat[start : start + parameter.numel()].view(parameter.shape)
                start += parameter.numel()
            self.flats.append(flat)

    def add_(self, other: "_Gradients") -> "_Gradients":
        for ours, theirs in zip(self.flats, other.flats, strict=True):
            ours.add_(theirs)
        return self


class GradientTree:
    """The gradients of a step, over all its positions.

        for loss in losses_of_own_positions: tree.backward(loss)
        tree.end()  # every parameter's .grad is the sum over all positions

    A parameter that a micro-batch does not use has a gradient of 0 there. While the rank's last backward pass goes on, buckets are exchanged
    from the last layers to the first, in the same order on all ranks.
    """

    def __init__(self, model: nn.Module, seat: Seat) -> None:
        self._seat = seat
        self._buckets = _buckets([parameter for parameter in model.parameters() if parameter.requires_grad])
        self._bucket_of = {parameter: number for number, bucket in enumerate(self._buckets) for parameter in bucket}
        self._free: list[_Gradients] = []
        self._nodes: list[Node[_Gradients]] = []  # of this step, the one under way last
        self._missing: list[set[nn.Parameter]] = []  # in each bucket, from the backward pass under way
        self._sums: list[TreeSum] = []
        self._next = self._seat.positions.start
        for parameter in self._bucket_of:
            parameter.register_post_accumulate_grad_hook(self._take)

    @property
    def num_bytes(self) -> int:
        """Of the gradients of all parameters."""
        return sum(parameter.numel() * parameter.element_size() for parameter in self._bucket_of)

    def backward(self, loss: Tensor) -> None:
        """The backward pass of this rank's next position. Its last one in a step is a collective call."""
        if self._next == self._seat.positions.start:
            self._begin_step()
        own = self._free.pop() if self._free else _Gradients(self._buckets, self._seat.num_ranks)
        self._nodes.append(leaf(self._next, own))
        self._missing = [set(bucket) for bucket in self._buckets]
        self._next += 1
        loss.backward()
        for number, missing in enumerate(self._missing):
            for parameter in missing:
                own.views[parameter].zero_()
            missing.clear()
            self._begin_sums(number + 1)
        self._missing = []
        if not self._is_last:
            self._nodes = self._seat.fold(self._nodes, self._add)

    def end(self) -> None:
        """Waits for the sums. A collective call, after the step's last backward pass."""
        for one in self._sums:
            one.share()
        for one in self._sums:
            one.end()
        for parameter, gradient in self._nodes[0].value.views.items():
            parameter.grad = gradient
        self._next = self._seat.positions.start

    @property
    def _is_last(self) -> bool:
        return self._next == self._seat.positions.stop

    def _begin_step(self) -> None:
        for parameter in self._bucket_of:
            parameter.grad = None
        self._free += [node.value for node in self._nodes]
        self._nodes, self._sums = [], []

    def _take(self, parameter: Tensor) -> None:
        """A gradient is done: autograd calls this."""
        if not self._missing or parameter.grad is None:  # somebody else's backward pass
            return
        assert isinstance(parameter, nn.Parameter)
        number = self._bucket_of[parameter]
        self._missing[number].remove(parameter)
        self._nodes[-1].value.views[parameter].copy_(parameter.grad)
        parameter.grad = None
        self._begin_sums(len(self._buckets))

    def _begin_sums(self, stop: int) -> None:
        """Begins the sums of the next buckets whose gradients are all there, as long as there are such before `stop`."""
        while self._is_last and len(self._sums) < stop and not self._missing[len(self._sums)]:
            number = len(self._sums)
            nodes = [Node(node.start, node.stop, node.value.flats[number]) for node in self._nodes]
            self._sums.append(TreeSum(self._seat, self._seat.fold(nodes, Tensor.add_)))

    def _add(self, left: _Gradients, right: _Gradients) -> _Gradients:
        self._free.append(right)
        return left.add_(right)


def _buckets(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """The parameters from the last to the first, in lists of one type and device that are not much larger than `_BUCKET_BYTES`."""
    buckets: list[list[nn.Parameter]] = []
    size = 0
    for parameter in reversed(parameters):
        last = buckets[-1][-1] if buckets else None
        is_other = last is not None and (last.dtype, last.device) != (parameter.dtype, parameter.device)
        if last is None or is_other or size >= _BUCKET_BYTES:
            buckets.append([])
            size = 0
        buckets[-1].append(parameter)
        size += parameter.numel() * parameter.element_size()
    return buckets
