"""DGL's and PyG's samplers on a CSC in .npy files, timed: run by `jobs/bench/sampling.py` with an interpreter that has the peer.

    DGL_BACKEND=pytorch <python with dgl 1.1.3> jobs/bench/peers.py dgl '{"folder": "…", "fanouts": [15, 10, 5], …}'
    <python with torch-geometric and torch-sparse> jobs/bench/peers.py pyg '{…}'

Prints the table's rows as one line of JSON. Imports nothing of ours, so that any environment with the peer will do.
"""

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

Row = tuple[str, float, str, str]  # what, value, unit, note


def dgl_rows(work: dict[str, Any], indptr: Any, indices: Any, roots: Any) -> Iterator[Row]:
    import dgl
    import torch

    graph = dgl.graph(("csc", (indptr, indices, torch.empty(0, dtype=indptr.dtype))))
    # DGL lists fan-outs from the widest layer in; its edge ids (edata[dgl.EID]) and relabelled blocks come with every batch.
    sampler = dgl.dataloading.NeighborSampler(list(reversed(work["fanouts"])))
    for threads in work["threads"]:
        torch.set_num_threads(threads)
        for some in roots[: work["warmup"]]:
            sampler.sample_blocks(graph, some)
        rates = []
        for _ in range(work["rounds"]):
            start, num_edges = time.perf_counter(), 0
            for some in roots[work["warmup"] :]:
                num_edges += sum(block.num_edges() for block in sampler.sample_blocks(graph, some)[2])
            rates.append(num_edges / (time.perf_counter() - start))
        note = (
            f"edge ids and blocks; samples every node again per layer: {num_edges / work['batches']:,.0f} edges a batch"
        )
        yield f"DGL {dgl.__version__} NeighborSampler; {threads} threads", max(rates) / 1e6, "M edges/s", note


def pyg_rows(work: dict[str, Any], indptr: Any, indices: Any, roots: Any) -> Iterator[Row]:
    import torch
    import torch_geometric
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader, ShaDowKHopSampler
    from torch_geometric.utils import k_hop_subgraph
    from torch_sparse import SparseTensor

    num_nodes, batch_size, name = len(indptr) - 1, roots.shape[1], f"PyG {torch_geometric.__version__}"
    # Rows list in-neighbors: what PyG calls adj_t. Nothing is sorted or copied.
    adj_t = SparseTensor(
        rowptr=indptr, col=indices, sparse_sizes=(num_nodes, num_nodes), is_sorted=True, trust_data=True
    )
    data = Data(adj_t=adj_t, num_nodes=num_nodes)
    torch.set_num_threads(1)
    for workers in (0, 2):  # in this process on one thread; in two more processes
        rates = []
        for _ in range(work["rounds"]):
            options = {"batch_size": batch_size, "num_workers": workers, "persistent_workers": workers > 0}
            start, num_edges = 0.0, 0
            for index, batch in enumerate(
                NeighborLoader(data, work["fanouts"], input_nodes=roots.flatten(), **options)
            ):
                if index == work["warmup"]:
                    start = time.perf_counter()
                elif index > work["warmup"]:
                    num_edges += batch.e_id.numel()
            rates.append(num_edges / (time.perf_counter() - start))
        where = f"{workers} worker processes" if workers else "in process"
        what = f"{name} NeighborLoader, torch-sparse; {where}"
        yield what, max(rates) / 1e6, "M edges/s", "edge ids and relabelling"

    some, rounds = roots[0], []
    for _ in range(work["rounds"]):
        loader = ShaDowKHopSampler(data, depth=2, num_neighbors=10, node_idx=some, batch_size=batch_size)
        start = time.perf_counter()
        batch = next(iter(loader))
        rounds.append((time.perf_counter() - start, batch.ptr[-1].item(), batch.adj_t.nnz()))
    seconds, nodes, edges = min(rounds)
    note = f"{nodes / len(some):.1f} nodes and {edges / len(some):.0f} induced edges each"
    yield f"{name} ShaDowKHopSampler, depth 2, 10 neighbors", len(some) / seconds, "subgraphs/s", note

    edge_index, calls = torch.stack([indices, torch.repeat_interleave(indptr.diff())]), []
    for root in some[:3]:  # each call reads all edges twice
        start = time.perf_counter()
        subset, _, _, _ = k_hop_subgraph(int(root), 2, edge_index, relabel_nodes=True, num_nodes=num_nodes)
        calls.append((time.perf_counter() - start, len(subset)))
    seconds, nodes = min(calls)
    yield f"{name} k_hop_subgraph, 2 hops", 1 / seconds, "subgraphs/s", f"{nodes:,} nodes in the fastest"


def main() -> None:
    import numpy as np
    import torch

    work = json.loads(sys.argv[2])
    arrays = [torch.from_numpy(np.load(f"{work['folder']}/{name}.npy")) for name in ("indptr", "indices", "roots")]
    rows = {"dgl": dgl_rows, "pyg": pyg_rows}[sys.argv[1]](work, *arrays)
    print(json.dumps(list(rows)))


if __name__ == "__main__":
    main()
