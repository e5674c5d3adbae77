"""PyG's samplers on a CSC in .npy files, timed: run by `jobs/bench/sampling.py` with an interpreter that has torch-sparse.

    <python with torch-geometric and torch-sparse> jobs/bench/pyg_peer.py '{"folder": "…", "fanouts": [15, 10, 5], …}'

Prints one line of JSON: the NeighborLoader's seconds and edges per number of workers, ShaDow's and k_hop_subgraph's subgraphs per
second. Imports nothing of ours, so that any environment with PyG will do.
"""

import json
import sys
import time


def main() -> None:
    import numpy as np
    import torch
    import torch_geometric
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader, ShaDowKHopSampler
    from torch_geometric.utils import k_hop_subgraph
    from torch_sparse import SparseTensor

    work = json.loads(sys.argv[1])
    indptr = torch.from_numpy(np.load(f"{work['folder']}/indptr.npy"))
    indices = torch.from_numpy(np.load(f"{work['folder']}/indices.npy"))
    roots = torch.from_numpy(np.load(f"{work['folder']}/roots.npy"))  # [batches, batch_size]
    num_nodes, batch_size = len(indptr) - 1, roots.shape[1]
    # Rows list in-neighbors: what PyG calls adj_t. Nothing is sorted or copied.
    adj_t = SparseTensor(
        rowptr=indptr, col=indices, sparse_sizes=(num_nodes, num_nodes), is_sorted=True, trust_data=True
    )
    torch.set_num_threads(1)

    loaders = []
    for workers in (0, 2):  # in this process on one thread; in two more processes
        data = Data(adj_t=adj_t, num_nodes=num_nodes)
        rounds = []
        for _ in range(work["rounds"]):
            loader = NeighborLoader(
                data,
                work["fanouts"],
                input_nodes=roots.flatten(),
                batch_size=batch_size,
                num_workers=workers,
                persistent_workers=workers > 0,
            )
            start, num_edges = 0.0, 0
            for index, batch in enumerate(loader):
                if index == work["warmup"]:
                    start = time.perf_counter()
                elif index > work["warmup"]:
                    num_edges += batch.e_id.numel()
            rounds.append([time.perf_counter() - start, num_edges])
        loaders.append({"workers": workers, "rounds": rounds})

    some = roots[0]
    shadow = []
    for _ in range(work["rounds"]):
        loader = ShaDowKHopSampler(
            Data(adj_t=adj_t, num_nodes=num_nodes), depth=2, num_neighbors=10, node_idx=some, batch_size=batch_size
        )
        start = time.perf_counter()
        batch = next(iter(loader))
        shadow.append([time.perf_counter() - start, len(some), batch.ptr[-1].item(), batch.adj_t.nnz()])

    edge_index = torch.stack([indices, torch.repeat_interleave(indptr.diff())])
    k_hop = []
    for root in some[:3]:  # each call reads all edges twice
        start = time.perf_counter()
        subset, _, _, _ = k_hop_subgraph(int(root), 2, edge_index, relabel_nodes=True, num_nodes=num_nodes)
        k_hop.append([time.perf_counter() - start, 1, len(subset)])
    found = {"version": torch_geometric.__version__, "loaders": loaders, "shadow": shadow, "k_hop": k_hop}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
