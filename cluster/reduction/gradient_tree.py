"""Sums tensors over the micro-batches of a step. The order of additions is the tree of `graphmill.cluster.reduction.position_tree`, so the sums have the same
bits for any number of ranks.

A rank first makes the tree's additions among its own positions. The remaining partial sums are called its nodes. Then every bucket of gradients is cut into
one slice per rank. A rank receives the nodes of all ranks for its slice (all-to-all), adds them along the tree, and sends the sum to all ranks (all-gather).
Each addition is made by one rank, and all ranks get its result. With W ranks, a rank with one node sends 2 (W - 1) / W of the gradients' bytes in 2 rounds.
A ring all-reduce sends the same number of bytes in 2 (W - 1) rounds.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from graphmill.cluster.reduction.position_tree import Node, Seat, leaf

# Size of a bucket of gradients; it is exchanged while the backward pass computes the next bucket
_BUCKET_BYTES = 4 << 20


class TreeSum:
    """The current sum of a flat tensor over all positions. The constructor, `share` and `end` are collective calls."""

    def __init__(self, seat: Seat, nodes: Sequence[Node[Tensor]]) -> None:
        """Begins the sum. The length of the nodes' tensors must be a multiple of the number of ranks. The sum is written to the memory of the first node."""
        self._seat, self._sum = seat, nodes[0].value
        self._work: dist.Work | None = None
        if seat.num_ranks == 1:
            return
        width = len(self._sum) // seat.num_ranks
        # Order: slice after slice; each slice holds the numbers of all nodes.
        self._sent = (
            self._sum if len(nodes) == 1 else torch.stack([n.value.view(-1, width) for n in nodes], 1).flatten()
        )
        counts = [len(of_rank) * width for of_rank in seat.nodes_of_ranks]
        self._received = self._sum.new_empty(sum(counts))
        sent_counts = [len(nodes) * width] * seat.num_ranks
        self._work = dist.all_to_all_single(self._received, self._sent, counts, sent_counts, async_op=True)

    def share(self) -> None:
        """Waits for all ranks' nodes of this rank's slice, adds them, and begins to send the sum to the other ranks."""
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
        """Waits for the sum and returns it."""
        if self._work is not None:
            self._work.wait()
        return self._sum


class _Gradients:
    """Gradients of all parameters: one flat tensor per bucket, and for each parameter a view into its bucket's tensor."""

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
    """Sums the gradients of a step over all its positions.

        for loss in losses_of_own_positions: tree.backward(loss)
        tree.end()  # every parameter's .grad is the sum over all positions

    If a micro-batch does not use a parameter, the parameter's gradient is 0 in that micro-batch. Buckets are exchanged during the rank's last backward
    pass, from the last layers to the first layers, in the same order on all ranks.
    """

    def __init__(self, model: nn.Module, seat: Seat) -> None:
        self._seat = seat
        self._buckets = _buckets([parameter for parameter in model.parameters() if parameter.requires_grad])
        self._bucket_of = {parameter: number for number, bucket in enumerate(self._buckets) for parameter in bucket}
        self._free: list[_Gradients] = []
        self._nodes: list[Node[_Gradients]] = []  # nodes of this step; the current backward pass fills the last node
        self._missing: list[set[nn.Parameter]] = []  # for each bucket, the parameters that have no gradient yet
        self._sums: list[TreeSum] = []
        self._next = self._seat.positions.start
        for parameter in self._bucket_of:
            parameter.register_post_accumulate_grad_hook(self._take)

    @property
    def num_bytes(self) -> int:
        """Size of the gradients of all parameters."""
        return sum(parameter.numel() * parameter.element_size() for parameter in self._bucket_of)

    def backward(self, loss: Tensor) -> None:
        """Makes the backward pass of this rank's next position. The last backward pass of a step is a collective call."""
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
        """Waits for the sums and sets the gradients. A collective call; call it after the step's last backward pass."""
        for tree_sum in self._sums:
            tree_sum.share()
        for tree_sum in self._sums:
            tree_sum.end()
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
        """Stores a parameter's gradient. Autograd calls this method when the gradient is computed."""
        if not self._missing or parameter.grad is None:  # a backward pass outside of the tree
            return
        assert isinstance(parameter, nn.Parameter)
        number = self._bucket_of[parameter]
        self._missing[number].remove(parameter)
        self._nodes[-1].value.views[parameter].copy_(parameter.grad)
        parameter.grad = None
        self._begin_sums(len(self._buckets))

    def _begin_sums(self, stop: int) -> None:
        """Begins the sums of the next buckets before `stop`. Ends at the first bucket in which a gradient is missing."""
        while self._is_last and len(self._sums) < stop and not self._missing[len(self._sums)]:
            number = len(self._sums)
            nodes = [Node(node.start, node.stop, node.value.flats[number]) for node in self._nodes]
            self._sums.append(TreeSum(self._seat, self._seat.fold(nodes, Tensor.add_)))

    def _add(self, left: _Gradients, right: _Gradients) -> _Gradients:
        self._free.append(right)
        return left.add_(right)


def _buckets(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Groups the parameters, from last to first, into lists of one type and device. Each list is at most a little larger than `_BUCKET_BYTES`."""
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
