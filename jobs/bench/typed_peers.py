"""DGL's and PyG's typed neighbor sampling on a CSC per relation in .npy files, timed: run by `jobs/bench/typed.py` with an interpreter that has the peer.

    DGL_BACKEND=pytorch <python with dgl 1.1.3> jobs/bench/typed_peers.py dgl '{"folder": "…", "fanouts": [10, 10], …}'
    <python with torch-geometric and torch-sparse or pyg-lib> jobs/bench/typed_peers.py pyg '{…}'

Prints the table's rows as one line of JSON. Imports nothing of ours, so that any environment with the peer will do.
"""

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

Row = tuple[
    str, float, float, float | None, str
]  # what, batches a second, millions of edges a second, ms of processor time a batch, note


def load(work: dict[str, Any], name: str) -> Any:
    import numpy as np
    import torch

    return torch.from_numpy(np.load(f"{work['folder']}/{name}.npy"))


def dgl_rows(work: dict[str, Any]) -> Iterator[Row]:
    import dgl
    import torch

    lists = {}
    for relation in map(tuple, work["relations"]):
        name = "--".join(relation)
        indptr, indices = load(work, f"{name}.indptr"), load(work, f"{name}.indices").long()
        lists[relation] = ("csc", (indptr, indices, torch.empty(0, dtype=torch.int64)))
    graph = dgl.heterograph(lists, num_nodes_dict=work["num_nodes"])
    feature = {name: load(work, name) for name in work["num_nodes"]}
    roots = load(work, "roots")
    # DGL lists fan-outs from the widest layer in; its edge ids and relabelled blocks come with every batch.
    sampler = dgl.dataloading.NeighborSampler(list(reversed(work["fanouts"])))
    for with_features in (False, True):
        for threads in work["threads"]:
            torch.set_num_threads(threads)
            best, cpu = (0.0, 0.0, 0, 0), float("inf")
            for _ in range(work["rounds"]):
                num_edges = num_nodes = 0
                for number, some in enumerate(roots):
                    if number == work["warmup"]:
                        start, begun, num_edges, num_nodes = time.perf_counter(), time.process_time(), 0, 0
                    nodes, _, blocks = sampler.sample_blocks(graph, {"paper": some})
                    if with_features:
                        rows = {name: feature[name][ids] for name, ids in nodes.items()}
                        assert rows["paper"].shape[0] == len(nodes["paper"])
                    num_edges += sum(block.num_edges() for block in blocks)
                    num_nodes += sum(map(len, nodes.values()))
                seconds, cpu = time.perf_counter() - start, min(cpu, time.process_time() - begun)
                best = max(best, (work["batches"] / seconds, num_edges / seconds / 1e6, num_edges, num_nodes))
            edges, nodes_a_batch = (count / work["batches"] for count in best[2:])
            note = f"edge ids and blocks; samples every node again per layer: {edges:,.0f} edges and {nodes_a_batch:,.0f} nodes a batch"
            what = f"DGL {dgl.__version__} NeighborSampler{', features' if with_features else ''}; {threads} threads"
            yield what, *best[:2], 1e3 * cpu / work["batches"], note


def pyg_rows(work: dict[str, Any]) -> Iterator[Row]:
    import torch
    import torch_geometric
    from torch_geometric.data import HeteroData
    from torch_geometric.loader import NeighborLoader

    backend = "pyg-lib" if torch_geometric.typing.WITH_PYG_LIB else "torch-sparse"
    roots = load(work, "roots")
    torch.set_num_threads(1)
    for with_features in (False, True):
        data = HeteroData()
        for name, count in work["num_nodes"].items():
            data[name].num_nodes = count
            if with_features:
                data[name].x = load(work, name)
        for relation in map(tuple, work["relations"]):
            name = "--".join(relation)
            indptr, indices = load(work, f"{name}.indptr"), load(work, f"{name}.indices").long()
            # Ascending in the target: the loader sorts nothing.
            data[relation].edge_index = torch.stack([indices, torch.repeat_interleave(indptr.diff())])
        for workers in (0, 2):  # in this process on one thread; in two more processes
            options = {"batch_size": roots.shape[1], "num_workers": workers, "persistent_workers": workers > 0}
            loader = NeighborLoader(
                data, work["fanouts"], input_nodes=("paper", roots.flatten()), is_sorted=True, **options
            )
            best, cpu = (0.0, 0.0, 0, 0), float("inf")
            for _ in range(work["rounds"]):
                start, begun, num_edges, num_nodes, counted = 0.0, 0.0, 0, 0, 0
                for index, batch in enumerate(loader):
                    if index == work["warmup"]:
                        start, begun = time.perf_counter(), time.process_time()
                    elif index > work["warmup"]:
                        counted, num_edges, num_nodes = (
                            counted + 1,
                            num_edges + batch.num_edges,
                            num_nodes + batch.num_nodes,
                        )
                seconds, cpu = time.perf_counter() - start, min(cpu, (time.process_time() - begun) / counted)
                best = max(
                    best, (counted / seconds, num_edges / seconds / 1e6, num_edges // counted, num_nodes // counted)
                )
            where = f"{workers} worker processes" if workers else "in process"
            note = f"edge ids and relabelling: {best[2]:,} edges and {best[3]:,} nodes a batch"
            kind = ", features" if with_features else ""
            yield (
                f"PyG {torch_geometric.__version__} NeighborLoader, {backend}{kind}; {where}",
                *best[:2],
                None if workers else 1e3 * cpu,
                note,
            )


def main() -> None:
    work = json.loads(sys.argv[2])
    rows = {"dgl": dgl_rows, "pyg": pyg_rows}[sys.argv[1]](work)
    print(json.dumps(list(rows)))


if __name__ == "__main__":
    main()
