"""Implements attention over a sparse set of pairs: Exphormer's expander graph, edges and virtual nodes, and BigBird's blocks.

    Exphormer (arXiv:2303.06147)   out_i = Σ_j exp(clamp(Σ_c q_i k_j E_ij / √d, ±5)) v_j / (Σ_j exp(…) + 10⁻⁶)
    BigBird   (arXiv:2007.14062)   out_i = W_O Σ_j softmax_j(q_i·k_j / √d) v_j

Sums run over the pairs j → i. Exphormer's pairs are the graph's edges, with E = W_E e_ij; an expander graph, whose pairs share one learned state; and pairs
between every node and each virtual node, with a state per virtual node and direction. The expander graph is a union of random Hamiltonian cycles, one of the
paper's constructions. A cycle visits the nodes of a graph in the order of a hash of (seed, cycle, id), so it depends on no other graph and is the same in every
epoch. A virtual node begins with a learned state and is then replaced by its own attention's output, layer by layer, as in the released code. Unlike there, no
cycle is drawn again for a larger spectral gap, and a graph of at most ten nodes is not completed.

BigBird cuts the nodes of a graph, in the order given, into blocks. A block attends to itself, the two blocks beside it, the first and the last block, and some
random blocks, drawn by a hash of (seed, block, graph's size); the first and the last block attend to all. A block that is drawn twice counts once.

Both cost O(pairs). Shapes: n nodes of B graphs, V virtual nodes, m = n + V B rows, E pairs, D width, H heads of C channels.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from graphmill.models.options.sparse import SparseOptions
from graphmill.models.primitives.graphs import Graphs
from graphmill.models.primitives.node_order import node_order
from graphmill.models.primitives.random_numbers import mix, mix_int, signed
from graphmill.models.primitives.segments import Grouping

_CLAMP = 5.0


@dataclass(frozen=True)
class Pairs:
    """Holds the pairs key → query that attention reads."""

    by_key: Grouping
    by_query: Grouping
    state_ED: Tensor | None = None
    """State of each pair; None: pairs have no states."""
    virtual_VD: Tensor | None = None
    """First states of the virtual nodes, V B rows after the nodes; None: there are none."""


def pair_lists(pair_index: Tensor, num_rows: int) -> tuple[Grouping, Grouping]:
    """Groups the pairs [2, E], key over query, by key and by query."""
    return Grouping(pair_index[0], num_rows), Grouping(pair_index[1], num_rows)


class ExpanderPairs(nn.Module):
    """Makes Exphormer's pairs of a batch, with the learned states that all layers share."""

    def __init__(self, options: SparseOptions, width: int) -> None:
        super().__init__()
        self.options = options
        count = options.virtual_nodes
        self.expander_D = nn.Parameter(torch.randn(width)) if options.cycles else None
        self.virtual_VD = nn.Parameter(torch.randn(count, width)) if count else None
        self.into_VD = nn.Parameter(torch.randn(count, width)) if count else None
        self.out_of_VD = nn.Parameter(torch.randn(count, width)) if count else None

    def forward(self, graphs: Graphs, e_ED: Tensor | None) -> Pairs:
        """`e_ED`: states of the graphs' edges."""
        indices: list[Tensor] = []
        states: list[Tensor] = []
        if self.options.edges:
            assert e_ED is not None
            indices.append(graphs.edge_index)
            states.append(e_ED)
        if self.expander_D is not None:
            indices.append(cycle_pairs(graphs, self.options.cycles, self.options.seed))
            states.append(self.expander_D.expand(indices[-1].shape[1], -1))
        first = None
        rows = graphs.num_nodes
        if self.virtual_VD is not None:
            assert self.into_VD is not None
            assert self.out_of_VD is not None
            node_n = torch.arange(graphs.num_nodes, device=graphs.node_ptr.device)
            for number in range(len(self.virtual_VD)):
                virtual_n = graphs.graph_of_node + rows
                indices += [torch.stack([node_n, virtual_n]), torch.stack([virtual_n, node_n])]
                states += [each[number].expand(len(node_n), -1) for each in (self.into_VD, self.out_of_VD)]
                rows += graphs.num_graphs
            first = self.virtual_VD.repeat_interleave(graphs.num_graphs, 0)
        wide = states[0].dtype
        return Pairs(*pair_lists(torch.cat(indices, 1), rows), torch.cat([each.to(wide) for each in states]), first)


def cycle_pairs(graphs: Graphs, cycles: int, seed: int) -> Tensor:
    """int64 [2, 2 n' cycles]: both directions of random Hamiltonian cycles of every graph. A graph of one node has no pairs; its n' is 0."""
    place_n = torch.arange(graphs.num_nodes, device=graphs.node_ptr.device)
    id_n = place_n - graphs.node_ptr[graphs.graph_of_node] if graphs.node_id is None else graphs.node_id
    indices = []
    for cycle in range(cycles):
        order_n = node_order(id_n, seed, layer=cycle)
        order_n = order_n[torch.argsort(graphs.graph_of_node[order_n], stable=True)]  # graph after graph
        end_n = torch.zeros_like(place_n, dtype=torch.bool)
        end_n[graphs.node_ptr[1:][graphs.size_B > 0] - 1] = True
        next_n = torch.where(end_n, graphs.node_ptr[graphs.graph_of_node], place_n + 1)
        pair = torch.stack([order_n, order_n[next_n]])
        pair = pair[:, pair[0] != pair[1]]
        indices += [pair, pair.flip(0)]
    return torch.cat(indices, 1) if indices else place_n.new_zeros(2, 0)


def block_pairs(graphs: Graphs, options: SparseOptions) -> Pairs:
    """BigBird's pairs of a batch; a graph of few nodes has all pairs."""
    size, device = options.block, graphs.node_ptr.device
    blocks_B = (graphs.size_B + size - 1) // size
    first_B = blocks_B.cumsum(0) - blocks_B
    total = int(blocks_B.sum())
    graph_b = torch.repeat_interleave(torch.arange(graphs.num_graphs, device=device), blocks_B, output_size=total)
    block_b = torch.arange(total, device=device) - first_B[graph_b]  # within the graph
    count_b = blocks_B[graph_b]
    counter_br = torch.arange(total, device=device)[:, None] * 0 + block_b[:, None] * 2**20
    counter_br = counter_br + torch.arange(options.random_blocks, device=device)
    drawn_br = mix(counter_br + signed(mix_int(options.seed))) & (2**62 - 1)
    columns = [block_b - 1, block_b, block_b + 1, torch.zeros_like(block_b), count_b - 1]
    near_bc = torch.cat([torch.stack(columns, 1), drawn_br % count_b[:, None]], 1)
    is_there_bc = (near_bc >= 0) & (near_bc < count_b[:, None])
    query, key = torch.arange(total, device=device)[:, None].expand_as(near_bc), near_bc + first_B[graph_b][:, None]
    code = (query * total + key)[is_there_bc]
    all_b, last_b = torch.arange(total, device=device), (first_B + blocks_B - 1)[graph_b]
    code = torch.unique(torch.cat([code, first_B[graph_b] * total + all_b, last_b * total + all_b]))
    query_p, key_p = code // max(total, 1), code % max(total, 1)
    place = torch.arange(size, device=device)
    start_b, stop_b = graphs.node_ptr[graph_b] + block_b * size, graphs.node_ptr[1:][graph_b]
    query_pss = (start_b[query_p][:, None, None] + place[:, None]).expand(-1, -1, size)
    key_pss = (start_b[key_p][:, None, None] + place).expand(-1, size, -1)
    real = (query_pss < stop_b[query_p][:, None, None]) & (key_pss < stop_b[key_p][:, None, None])
    return Pairs(*pair_lists(torch.stack([key_pss[real], query_pss[real]]), graphs.num_nodes))


class SparseAttention(nn.Module):
    """Is multi-head attention over the given pairs; see the module's docstring for both forms."""

    def __init__(self, width: int, num_heads: int, reads_states: bool) -> None:
        """`reads_states`: Exphormer's form; else BigBird's."""
        super().__init__()
        self.num_heads, self.scale = num_heads, 1 / math.sqrt(width // num_heads)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.state = nn.Linear(width, width, bias=False) if reads_states else None
        self.out = None if reads_states else nn.Linear(width, width)

    def forward(self, x_nD: Tensor, pairs: Pairs, virtual_VD: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Returns (the nodes' output [n, D], the virtual nodes' next states [V B, D] or None). `virtual_VD`: their states; None: the first ones."""
        virtual_VD = pairs.virtual_VD if virtual_VD is None else virtual_VD
        rows_mD = x_nD if virtual_VD is None else torch.cat([x_nD, virtual_VD.to(x_nD.dtype)])
        q_mHC, k_mHC, v_mHC = (each.unflatten(1, (self.num_heads, -1)) for each in self.qkv(rows_mD).chunk(3, dim=1))
        product_EHC = pairs.by_key.spread(k_mHC) * pairs.by_query.spread(q_mHC)
        if self.state is not None:
            assert pairs.state_ED is not None
            product_EHC = product_EHC * self.state(pairs.state_ED.to(x_nD.dtype)).unflatten(1, (self.num_heads, -1))
        score_EH = product_EHC.sum(2) * self.scale
        if self.state is not None:
            weight_EH = score_EH.clamp(-_CLAMP, _CLAMP).exp()
        else:
            # The largest score of each query is subtracted: this changes no attention weight, and no exponential overflows.
            index_EH = pairs.by_query.group_E.unsqueeze(1).expand_as(score_EH)
            lowest_mH = score_EH.new_full((len(rows_mD), self.num_heads), -math.inf)
            largest_mH = lowest_mH.scatter_reduce(0, index_EH, score_EH.detach(), "amax")
            weight_EH = (score_EH - largest_mH[pairs.by_query.group_E]).exp()
        total_mHC = pairs.by_key.carry(v_mHC, weight_EH, pairs.by_query)
        out_mD = (
            total_mHC / (pairs.by_query.sum(weight_EH) + (1e-6 if self.out is None else 0.0)).unsqueeze(2)
        ).flatten(1)
        if self.out is not None:
            out_mD = self.out(out_mD)
        return out_mD[: len(x_nD)], None if virtual_VD is None else out_mD[len(x_nD) :]
