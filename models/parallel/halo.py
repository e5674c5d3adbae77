"""Computes ÂX with a range of the rows on each worker. The exchange of rows is planned once; then every product makes one exchange.

The sources of a worker's in-edges are the worker's own rows and rows of peers (the halo). In a product the worker receives the halo's rows
and sums over each list of sources in the list's order, like a single process. So every number of workers makes the same additions. Rows are
sent one block of columns at a time, so that even a halo as large as the graph takes bounded memory. The next block arrives while one block is
summed. The gradient is sent in the other direction: sums for the halo's sources go back to the rows' owners. If A = Aᵀ, the gradient is the
same product again. Rows of half precision are sent in half precision; sums are float32.

Shapes: n rows here, H halo rows, X = n + H source rows, S rows to send, D channels, E edges into the rows here, W workers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from graphmill.models.options.features import Normalisation
from graphmill.models.parallel.collectives import Arriving, Peers
from graphmill.models.parallel.global_terms import ShardedNodes
from graphmill.models.parallel.shards import Shards
from graphmill.models.primitives.propagation import (
    Propagate,
    SourceLists,
    check_propagation,
    group_by_row,
    row_factors,
    sum_rows,
)
from graphmill.models.primitives.segments import Grouping

# Size and minimum width of a block of columns of the X rows. A narrower block would read each list for only a few numbers.
BLOCK_BYTES = 32 << 20
LEAST_COLUMNS = 32


@dataclass(frozen=True)
class HaloPlan:
    """Holds the rows that a worker sends to each peer, and the count of rows that the worker receives from each peer."""

    send_row_S: Tensor  # int64 [S]: own rows, peer by peer; several peers may get one row
    send: tuple[int, ...]  # by peer: number of rows to send; 0 for this worker itself
    receive: tuple[int, ...]  # by peer: number of rows to receive; halo rows are sorted by global id

    @property
    def num_halo(self) -> int:
        return sum(self.receive)


def plan_halo(halo_H: Tensor, shards: Shards, peers: Peers) -> HaloPlan:
    """Makes the plan for a worker that needs the rows `halo_H`: int64, ascending global ids of peers' rows. Makes two small all-to-alls."""
    bounds = torch.tensor(shards.bounds, device=halo_H.device)
    receive_W = torch.searchsorted(halo_H, bounds).diff()
    ones = [1] * peers.size
    send_W = peers.start_all_to_all(receive_W, ones, ones, "plan").wait()
    send, receive = tuple(send_W.tolist()), tuple(receive_W.tolist())
    send_id_S = peers.start_all_to_all(halo_H, receive, send, "plan").wait()
    return HaloPlan(send_id_S - shards.range(peers.rank)[0], send, receive)


class Halo:
    """Holds the X rows that contain the sources of this worker's in-edges: own rows first, then peers' rows by ascending global id.

    The constructor, `extend` and `reduce` are collective calls.
    """

    def __init__(self, source_id: Tensor, shards: Shards, peers: Peers) -> None:
        """`source_id` [E]: global ids."""
        start, stop = shards.range(peers.rank)
        self.peers, self.num_nodes = peers, stop - start
        is_halo_N = torch.zeros(shards.total, dtype=torch.bool, device=source_id.device)
        is_halo_N[source_id] = True
        is_halo_N[start:stop] = False
        halo_H = is_halo_N.nonzero().squeeze(1)
        del is_halo_N
        self.plan = plan_halo(halo_H, shards, peers)
        self.num_rows = self.num_nodes + len(halo_H)
        most = torch.tensor([self.num_rows], device=peers.device)
        self.most_rows = int(peers.max(most, "plan"))  # largest X of any worker; all use its column blocks
        # int32 halves the index traffic; it is possible only if the row starts fit too.
        dtype = torch.int32 if max(source_id.numel(), self.num_rows) < 2**31 else torch.int64
        row_N = torch.empty(shards.total, dtype=dtype, device=source_id.device)
        row_N[start:stop] = torch.arange(self.num_nodes, dtype=dtype, device=source_id.device)
        row_N[halo_H] = torch.arange(self.num_nodes, self.num_rows, dtype=dtype, device=source_id.device)
        self.row_E = row_N[source_id]  # position of each edge's source in the X rows

    def extend(self, x_nD: Tensor) -> Tensor:
        """[n, …] → [X, …]: own rows, then the halo's rows."""
        return _Extend.apply(x_nD, self, False)

    def reduce(self, x_XD: Tensor) -> Tensor:
        """[X, …] → [n, …]: for each row, the row's owner gets the sum of all workers' values. This is the gradient of `extend`."""
        return _Extend.apply(x_XD, self, True)

    def start(self, x_nD: Tensor) -> Arriving:
        """Sends to each peer the rows that the peer needs; returns own rows and the received halo rows as [X, …]."""
        plan, x_XD = self.plan, x_nD.new_empty(self.num_rows, *x_nD.shape[1:])
        x_XD[: self.num_nodes] = x_nD
        sent, halo_HD = x_nD.index_select(0, plan.send_row_S), x_XD[self.num_nodes :]
        return Arriving(x_XD, self.peers.start_all_to_all(sent, plan.send, plan.receive, "halo", halo_HD))

    def add_back(self, x_HD: Tensor, into_nD: Tensor) -> None:
        """Sends the halo's rows to the rows' owners, and adds the received rows to `into_nD`."""
        plan = self.plan
        arriving = self.peers.start_all_to_all(x_HD, plan.receive, plan.send, "halo")
        # One peer at a time: the rows of one peer are distinct, so the order of additions is the same on every device.
        for row, part in zip(plan.send_row_S.split(plan.send), arriving.wait().split(plan.send), strict=True):
            into_nD.index_add_(0, row, part.to(into_nD.dtype))


class _Extend(torch.autograd.Function):
    """Computes `extend` or `reduce`. The gradient of `extend` is `reduce`, and the gradient of `reduce` is `extend`."""

    @staticmethod
    def forward(ctx, x: Tensor, halo: Halo, reducing: bool) -> Tensor:
        ctx.halo, ctx.reducing = halo, reducing
        if not reducing:
            return halo.start(x).wait()
        y = x[: halo.num_nodes].to(torch.promote_types(x.dtype, torch.float32), copy=True)
        halo.add_back(x[halo.num_nodes :], y)
        return y.to(x.dtype)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return _Extend.apply(grad, ctx.halo, not ctx.reducing), None, None


class HaloGrouping:
    """Is the `graphmill.models.primitives.segments.Grouping` of edges by source node. The source's row may belong to a peer."""

    def __init__(self, halo: Halo) -> None:
        self._halo = halo
        self.num_groups = halo.num_nodes

    @property
    def group_E(self) -> Tensor:
        """[E]: index of the source in own rows and halo rows."""
        return self._halo.row_E

    @cached_property
    def _rows(self) -> Grouping:
        return Grouping(self._halo.row_E.long(), self._halo.num_rows)

    def spread(self, x_nD: Tensor) -> Tensor:
        """[n, D] → [E, D]: each edge gets its source's value; a collective call."""
        return self._rows.spread(self._halo.extend(x_nD))

    def sum(self, x_ED: Tensor) -> Tensor:
        """[E, D] → [n, D]: the sum over the edges of all workers; a collective call."""
        return self._halo.reduce(self._rows.sum(x_ED))

    def carry(self, x_nKC: Tensor, weight_EK: Tensor, to: Grouping) -> Tensor:
        """[n, K, C] → [T, K, C]: like the method of `Grouping`; a collective call."""
        return self._rows.carry(self._halo.extend(x_nKC), weight_EK, to)


class ShardedAdjacency:
    """Holds the in-edges of this worker's rows. `propagate` does the same as in `graphmill.models.primitives.propagation.Adjacency`, over the whole graph.

    `indptr` [n + 1] and `source_id` [E] are the CSC arrays of the worker's range; sources are global ids. The constructor and every
    call of `propagate` are collective. `symmetric=True` promises A = Aᵀ for the whole graph, weights included. Blocks that read features of
    edges find them in `edge_feature` [E, F].
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
        edge_feature: Tensor | None = None,
    ) -> None:
        """Raises ValueError if the arrays do not fit the worker's range."""
        _check(indptr, source_id, shards, peers)
        self.peers, self._symmetric, self.edge_feature = peers, symmetric, edge_feature
        self.all_rows = ShardedNodes(shards, peers, indptr.device)
        self.halo = Halo(source_id, shards, peers)
        self.num_nodes, self.num_edges = self.halo.num_nodes, source_id.numel()
        self._rows = SourceLists(indptr.to(self.halo.row_E.dtype), self.halo.row_E, edge_weight)
        self._columns: SourceLists | None = None
        self._factors: dict[tuple[str, torch.dtype], tuple[Tensor | None, Tensor | None]] = {}

    @property
    def plan(self) -> HaloPlan:
        return self.halo.plan

    @property
    def edge_weight(self) -> Tensor | None:
        return self._rows.weight

    @cached_property
    def by_source(self) -> HaloGrouping:
        """The edges in the order of the lists, grouped by source node."""
        return HaloGrouping(self.halo)

    @cached_property
    def by_destination(self) -> Grouping:
        """The same edges, grouped by destination node; all destinations are rows of this worker."""
        return group_by_row(self._rows)

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
        """Returns the row factors (left, right) [n, 1] with Â = diag(left) A diag(right); None means ones."""
        key = (normalisation, dtype)
        if key not in self._factors:
            self._factors[key] = row_factors(normalisation, dtype, self._degree)
        return self._factors[key]

    def _degree(self, transposed: bool) -> Tensor:
        """[n, 1]; a collective call."""
        wide = torch.float64 if self._rows.indptr.device.type == "cpu" else torch.float32
        ones = torch.ones(self.num_nodes, 1, dtype=wide, device=self._rows.indptr.device)
        return self.product(ones, transposed)

    def _gathered(self, x_nD: Tensor) -> Tensor:
        wide = torch.promote_types(x_nD.dtype, torch.float32)
        if self.peers.size == 1:
            return sum_rows(self._rows, x_nD.to(wide))
        parts = []
        for x_XC in self._blocks(x_nD):
            parts.append(sum_rows(self._rows, x_XC.to(wide)))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _blocks(self, x_nD: Tensor) -> Iterator[Tensor]:
        """Yields own rows and halo rows, one block of columns after another; the next block is already being sent."""
        column_bytes = max(self.halo.most_rows * max(x_nD.element_size(), 4), 1)
        blocks = x_nD.split(max(BLOCK_BYTES // column_bytes, LEAST_COLUMNS), dim=1)
        arriving = self.halo.start(blocks[0])
        for place in range(len(blocks)):
            x_XC = arriving.wait()
            if place + 1 < len(blocks):
                arriving = self.halo.start(blocks[place + 1])
            yield x_XC

    def _scattered(self, x_nD: Tensor) -> Tensor:
        if self._columns is None:
            self._columns = self._rows.reversed(self.halo.num_rows)
        y_XD = sum_rows(self._columns, x_nD.to(torch.promote_types(x_nD.dtype, torch.float32)))
        y_nD = y_XD[: self.num_nodes].clone()
        self.halo.add_back(y_XD[self.num_nodes :].to(x_nD.dtype), y_nD)
        return y_nD


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
