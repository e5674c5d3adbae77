"""ÂX where each worker has a range of the rows: who needs which rows is planned once, then every product is one all-to-all.

A worker's in-edges divide into those whose source is its own and those whose source is a peer's (the halo). In a product it sends
the rows that peers need, sums over its own sources meanwhile, and adds the halo's rows when they have arrived. The gradient goes
the other way: first sums for the halo's sources, which are sent back to their owners. Where A = Aᵀ, it is the same product again.
Rows of half precision travel as they are; what is added up is added up in float32.

Shapes: n rows here, H halo rows, S rows to send, D channels, E edges into the rows here, W workers.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from models.options.choices import Normalisation
from models.parallel.collectives import Arriving, Peers
from models.parallel.shards import Shards
from models.propagation import Propagate, SourceLists, check_propagation, power_or_zero, sum_rows


@dataclass(frozen=True)
class HaloPlan:
    """Which rows a worker sends to each peer, and how many it gets from each."""

    send_row_S: Tensor  # int64 [S]: own rows, peer by peer; a row may go to several
    send: tuple[int, ...]  # by peer, 0 for oneself
    receive: tuple[int, ...]  # by peer; the halo's rows ascend in global id

    @property
    def num_halo(self) -> int:
        return sum(self.receive)


def plan_halo(halo_H: Tensor, shards: Shards, peers: Peers) -> HaloPlan:
    """The plan for a worker that needs the rows `halo_H`: int64, ascending global ids of its peers. Two small all-to-alls."""
    bounds = torch.tensor(shards.bounds, device=halo_H.device)
    receive_W = torch.searchsorted(halo_H, bounds).diff()
    ones = [1] * peers.size
    send_W = peers.start_all_to_all(receive_W, ones, ones, "plan").wait()
    send, receive = tuple(send_W.tolist()), tuple(receive_W.tolist())
    wanted_S = peers.start_all_to_all(halo_H, receive, send, "plan").wait()
    return HaloPlan(wanted_S - shards.range(peers.rank)[0], send, receive)


class ShardedAdjacency:
    """The in-edges of this worker's rows; `propagate` as `models.propagation.Adjacency` has it, for the whole graph.

    `indptr` [n + 1] and `source_id` [E] are the CSC arrays of the worker's range, sources as global ids. Building it and every
    call of `propagate` are collective. `symmetric=True` promises that the whole A = Aᵀ, weights included.
    """

    def __init__(
        self,
        indptr: Tensor,
        source_id: Tensor,
        shards: Shards,
        peers: Peers,
        edge_weight: Tensor | None = None,
        *,
        symmetric: bool = False,
    ) -> None:
        """Raises ValueError where the arrays are not those of the worker's range."""
        start, stop = shards.range(peers.rank)
        _check(indptr, source_id, shards, peers)
        self.peers, self._symmetric = peers, symmetric
        self.num_nodes, self.num_edges = stop - start, source_id.numel()
        is_own_E = (source_id >= start) & (source_id < stop)
        counted = torch.zeros(source_id.numel() + 1, dtype=torch.int64, device=source_id.device)
        torch.cumsum(is_own_E, 0, out=counted[1:])
        own_ptr = counted[indptr.long()]
        del counted
        remote = source_id[~is_own_E].long()
        halo_H, position = torch.unique(remote, return_inverse=True)
        del remote
        self.plan = plan_halo(halo_H, shards, peers)
        weights = (None, None) if edge_weight is None else (edge_weight[is_own_E], edge_weight[~is_own_E])
        self._own = _lists(own_ptr, source_id[is_own_E] - start, weights[0], self.num_nodes)
        self._halo = _lists(indptr.long() - own_ptr, position, weights[1], self.plan.num_halo)
        self._back: tuple[SourceLists, SourceLists] | None = None
        self._factors: dict[tuple[str, torch.dtype], tuple[Tensor | None, Tensor | None]] = {}

    def propagate(self, x_nD: Tensor, normalisation: Normalisation = "mean") -> Tensor:
        """Returns this worker's rows of ÂX [n, D] for its rows of X."""
        check_propagation(x_nD, self.num_nodes, normalisation)
        return Propagate.apply(x_nD, self, normalisation, False)

    def multiply(self, x_nD: Tensor, normalisation: str, transposed: bool) -> Tensor:
        """ÂX or ÂᵀX, without a gradient."""
        with torch.autocast(x_nD.device.type, enabled=False):
            left, right = self.factors(normalisation, torch.promote_types(x_nD.dtype, torch.float32))
            if transposed:
                left, right = right, left
            x_nD = x_nD if right is None else (x_nD * right).to(x_nD.dtype)
            y_nD = self.product(x_nD, transposed)
            if normalisation == "gcn":
                y_nD = y_nD + x_nD
            return (y_nD if left is None else y_nD.mul_(left)).to(x_nD.dtype)

    def product(self, x_nD: Tensor, transposed: bool) -> Tensor:
        """AX or AᵀX [n, D] in at least float32, without factors and without a gradient."""
        return self._gathered(x_nD) if not transposed or self._symmetric else self._scattered(x_nD)

    def factors(self, normalisation: str, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
        """The row factors (left, right) [n, 1] with Â = diag(left) A diag(right); None stands for ones."""
        key = (normalisation, dtype)
        if key not in self._factors:
            left = right = None
            if normalisation != "sum":
                wide = torch.float64 if self._own.indptr.device.type == "cpu" else torch.float32
                ones = torch.ones(self.num_nodes, 1, dtype=wide, device=self._own.indptr.device)
                degree = self.product(ones, transposed=False)
                if normalisation == "gcn":
                    left = right = (degree + 1).to(dtype).rsqrt()
                else:
                    left = power_or_zero(degree, -1.0 if normalisation == "mean" else -0.5).to(dtype)
                if normalisation == "sym":
                    right = power_or_zero(self.product(ones, transposed=True), -0.5).to(dtype)
            self._factors[key] = (left, right)
        return self._factors[key]

    def _start(self, x_nD: Tensor) -> Arriving:
        plan = self.plan
        return self.peers.start_all_to_all(x_nD[plan.send_row_S], plan.send, plan.receive, "halo")

    def _gathered(self, x_nD: Tensor) -> Tensor:
        arriving = self._start(x_nD)
        wide = torch.promote_types(x_nD.dtype, torch.float32)
        y_nD = sum_rows(self._own, x_nD.to(wide))
        return y_nD.add_(sum_rows(self._halo, arriving.wait().to(wide)))

    def _scattered(self, x_nD: Tensor) -> Tensor:
        if self._back is None:
            self._back = (self._own.reversed(self.num_nodes), self._halo.reversed(self.plan.num_halo))
        own, halo = self._back
        plan = self.plan
        wide_nD = x_nD.to(torch.promote_types(x_nD.dtype, torch.float32))
        sent_HD = sum_rows(halo, wide_nD).to(x_nD.dtype)
        arriving = self.peers.start_all_to_all(sent_HD, plan.receive, plan.send, "halo")
        y_nD = sum_rows(own, wide_nD)
        # One peer at a time: its rows are distinct, so that the order of additions is fixed on every device.
        for row, part in zip(plan.send_row_S.split(plan.send), arriving.wait().split(plan.send), strict=True):
            y_nD.index_add_(0, row, part.to(y_nD.dtype))
        return y_nD


def _lists(indptr: Tensor, indices: Tensor, weight: Tensor | None, num_columns: int) -> SourceLists:
    # int32 halves the index traffic; it holds while row starts fit too.
    dtype = torch.int32 if max(indices.numel(), num_columns) < 2**31 else torch.int64
    return SourceLists(indptr.to(dtype), indices.to(dtype), weight)


def _check(indptr: Tensor, source_id: Tensor, shards: Shards, peers: Peers) -> None:
    if shards.num_workers != peers.size:
        raise ValueError(f"shards must be one per worker: {peers.size} workers, got {shards.num_workers} shards")
    start, stop = shards.range(peers.rank)
    if indptr.shape != (stop - start + 1,) or source_id.dim() != 1:
        raise ValueError(
            f"a shard's adjacency needs indptr [{stop - start + 1}] for its rows {start} to {stop} and source_id [E], got "
            f"shapes {tuple(indptr.shape)} and {tuple(source_id.shape)}"
        )
    if source_id.device.type == "cpu":
        if int(indptr[0]) != 0 or int(indptr[-1]) != source_id.numel() or bool((indptr.diff() < 0).any()):
            raise ValueError(
                f"indptr must rise from 0 to the shard's {source_id.numel()} edges; cut it from the graph's"
            )
        if source_id.numel() and not 0 <= int(source_id.min()) <= int(source_id.max()) < shards.total:
            raise ValueError(f"source ids must lie in [0, {shards.total}); pass ids of the whole graph")
