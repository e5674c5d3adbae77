"""Implements the communication of workers that share a graph: differentiable all-to-alls and sums, with counts of the sent bytes.

Gradients are derivatives of the sum of all workers' losses. Each worker calls backward on its own part of the loss. Then the workers' parts of each
parameter's gradient are added up. All workers must make the same calls in the same order; every wait ends at the process group's timeout.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import compress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Peers:
    """Represents the workers of one process group, as seen by one worker. A single worker (`Peers()`) sends nothing and needs no group.

    `device` holds the tensors to send: nccl sends from this process's GPU, gloo from host memory.
    `sent_bytes` counts the bytes that this worker sent to other workers, by kind of traffic. A sum over all workers counts like a ring
    all-reduce: 2 (W - 1) / W times the size of the tensor.
    """

    def __init__(self, group: Any = None, rank: int = 0, size: int = 1, device: torch.device | None = None) -> None:
        self.group, self.rank, self.size = group, rank, size
        self.device = torch.device("cpu") if device is None else device
        self.sent_bytes: Counter[str] = Counter()

    @classmethod
    def of_group(cls, group: Any = None) -> "Peers":
        """Returns all workers of a process group (None: the default group), or only this process if no group has been set up."""
        if not dist.is_initialized():
            return cls()
        on_gpu = dist.get_backend(group) == "nccl"
        device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else None
        return cls(group, dist.get_rank(group), dist.get_world_size(group), device)

    def start_all_to_all(
        self, x: Tensor, send: Sequence[int], receive: Sequence[int], kind: str, out: Tensor | None = None
    ) -> "Arriving":
        """Starts to send the rows of x [Σ send, …] and returns at once: the first send[0] rows go to worker 0, the next send[1] rows to worker 1, and so on.
        Takes no gradient.

        `out` [Σ receive, …]: gets the rows that arrive; a single worker gets x itself.
        """
        if self.size == 1:
            return Arriving(x, None)
        row_bytes = x[0:1].numel() * x.element_size() if x.shape[0] else 0
        self.sent_bytes[kind] += (sum(send) - send[self.rank]) * row_bytes
        if out is None:
            out = x.new_empty((sum(receive), *x.shape[1:]))
        work = dist.all_to_all_single(out, x.contiguous(), list(receive), list(send), group=self.group, async_op=True)
        return Arriving(out, work)

    def all_to_all(self, x: Tensor, send: Sequence[int], receive: Sequence[int], kind: str) -> Tensor:
        """Sends the rows of x [Σ send, …]: the first send[0] rows to worker 0, and so on. Returns the received rows, ordered by sender. Differentiable."""
        return x if self.size == 1 else _AllToAll.apply(x, self, tuple(send), tuple(receive), kind)

    def sum(self, x: Tensor, kind: str = "sums") -> Tensor:
        """Returns the sum over workers, on each worker; half precision is added up in float32. Differentiable."""
        return x if self.size == 1 else _Sum.apply(x, self, kind)

    def sum_blocks(self, x: Tensor, blocks: Sequence[int], kind: str = "sums") -> Tensor:
        """Returns the sum [1, …] over all workers' rows, on each worker; worker w holds the sums of blocks[w] blocks of rows.

        Blocks are added up in their order, so the sum has the same bits for any distribution of the blocks over workers. Half precision is added up in
        float32. Differentiable.
        """
        return _SumBlocks.apply(x, self, tuple(blocks), kind)

    @torch.no_grad()
    def max(self, x: Tensor, kind: str = "sums") -> Tensor:
        """Returns the elementwise maximum over workers, on each worker; takes no gradient."""
        if self.size == 1:
            return x
        x = x.clone()
        self._count_ring(x, kind)
        dist.all_reduce(x, dist.ReduceOp.MAX, group=self.group)
        return x

    @torch.no_grad()
    def gather(self, x: Tensor, sizes: Sequence[int], kind: str = "plan") -> Tensor:
        """Returns all workers' rows in worker order; worker w holds sizes[w] rows. Takes no gradient."""
        send = [sizes[self.rank]] * self.size
        return self.start_all_to_all(x.repeat(self.size, *[1] * (x.dim() - 1)), send, sizes, kind).wait()

    def _count_ring(self, x: Tensor, kind: str) -> None:
        self.sent_bytes[kind] += 2 * (self.size - 1) * x.numel() * x.element_size() // self.size


class Arriving:
    """Represents rows that other workers are sending to this worker."""

    def __init__(self, out: Tensor, work: Any) -> None:
        self._out, self._work = out, work

    def wait(self) -> Tensor:
        """Waits for the rows and returns them; raises RuntimeError at the group's timeout, or if a peer is gone."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        return self._out


class _AllToAll(torch.autograd.Function):
    """Sends rows; the backward pass sends the rows' gradients back."""

    @staticmethod
    def forward(ctx, x: Tensor, peers: Peers, send: tuple[int, ...], receive: tuple[int, ...], kind: str) -> Tensor:
        ctx.peers, ctx.send, ctx.receive, ctx.kind = peers, send, receive, kind
        return peers.start_all_to_all(x, send, receive, kind).wait()

    @staticmethod
    def backward(ctx, grad: Tensor):
        return _AllToAll.apply(grad, ctx.peers, ctx.receive, ctx.send, ctx.kind), None, None, None, None


class _Sum(torch.autograd.Function):
    """Sums over workers. Every worker's loss may depend on the sum, so the gradient of one worker's part is the sum of all workers' gradients."""

    @staticmethod
    def forward(ctx, x: Tensor, peers: Peers, kind: str) -> Tensor:
        ctx.peers, ctx.kind = peers, kind
        wide = torch.promote_types(x.dtype, torch.float32) if x.is_floating_point() else x.dtype
        total = x.to(wide, copy=True, memory_format=torch.contiguous_format)
        peers._count_ring(total, kind)
        dist.all_reduce(total, group=peers.group)
        return total.to(x.dtype)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return _Sum.apply(grad, ctx.peers, ctx.kind), None, None


class _SumBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, peers: Peers, blocks: tuple[int, ...], kind: str) -> Tensor:
        ctx.peers, ctx.num_rows, ctx.kind = peers, x.shape[0], kind
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return peers.gather(wide, blocks, kind).sum(0, keepdim=True).to(x.dtype)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return ctx.peers.sum(grad, ctx.kind).expand(ctx.num_rows, *grad.shape[1:]), None, None, None


def sum_gradients(parameters: Sequence[torch.nn.Parameter], peers: Peers) -> None:
    """Adds up all workers' parts of the gradients, on each worker, in place. Makes one collective call per dtype and one small call.

    A worker may have no gradient for a parameter. If no worker has a gradient for the parameter, its gradient stays None.
    """
    if peers.size == 1:
        return
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    has_part = [parameter.grad is not None for parameter in parameters]
    present = peers.max(torch.tensor(has_part, dtype=torch.uint8, device=peers.device), "plan")
    for parameter in compress(parameters, present.tolist()):
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        by_dtype.setdefault(parameter.grad.dtype, []).append(parameter.grad)
    for grads in by_dtype.values():
        flat = peers.sum(torch.cat([grad.flatten() for grad in grads]), "gradients")
        for grad, part in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(part.view_as(grad))
