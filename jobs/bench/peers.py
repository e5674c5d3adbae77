"""Times the samplers of DGL and PyG on a graph in .npy files: one CSC matrix, or one for each relation.

`jobs/bench/peer_process.py` runs this file with an interpreter that has the peer.

    DGL_BACKEND=pytorch <python with dgl 1.1.3> jobs/bench/peers.py dgl '{"folder": "…", "fanouts": [15, 10, 5], …}'
    <python with torch-geometric and torch-sparse, or pyg-lib for relations> jobs/bench/peers.py pyg '{…}'

Prints the table's rows as one line of JSON. Imports no module of Graphmill: any environment with the peer can run it.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple


class Rates(NamedTuple):
    """Rates of the fastest round."""

    batches_per_s: float
    edges_per_s: float  # millions
    edges_per_batch: float
    nodes_per_batch: float
    cpu_ms: float  # CPU time of this process per batch, in the round with the lowest CPU time


class Row(NamedTuple):
    """One row of the table."""

    what: str
    value: float | Rates | None  # None: not measured
    unit: str
    note: str = ""


def best_round(work: dict[str, Any], batches: Callable[[], Iterable[tuple[int, int]]]) -> Rates:
    """Times `batches`, an iterator of (edges, nodes) for each batch. The first `warmup` batches of a round do not count."""
    rounds, cpu_s = [], []
    for _ in range(work["rounds"]):
        start, cpu_start, num_batches, num_edges, num_nodes = time.perf_counter(), time.process_time(), 0, 0, 0
        for index, (edges, nodes) in enumerate(batches()):
            if index < work["warmup"]:
                start, cpu_start = time.perf_counter(), time.process_time()
            else:
                num_batches, num_edges, num_nodes = num_batches + 1, num_edges + edges, num_nodes + nodes
        seconds = time.perf_counter() - start
        cpu_s.append((time.process_time() - cpu_start) / num_batches)
        rates = num_batches / seconds, num_edges / seconds / 1e6
        rounds.append((*rates, num_edges / num_batches, num_nodes / num_batches))
    return Rates(*max(rounds), 1e3 * min(cpu_s))


def load(work: dict[str, Any], name: str) -> Any:
    import numpy as np
    import torch

    return torch.from_numpy(np.load(f"{work['folder']}/{name}.npy"))


def load_relations(work: dict[str, Any]) -> Iterator[tuple[tuple[str, str, str], Any, Any]]:
    """Yields each relation with its indptr and indices."""
    for relation in map(tuple, work["relations"]):
        name = "--".join(relation)
        yield relation, load(work, f"{name}.indptr"), load(work, f"{name}.indices").long()


def dgl_rows(work: dict[str, Any]) -> Iterator[Row]:
    import dgl
    import torch

    edge_ids = torch.empty(0, dtype=torch.int64)
    if "relations" in work:
        lists = {relation: ("csc", (*csc, edge_ids)) for relation, *csc in load_relations(work)}
        graph = dgl.heterograph(lists, num_nodes_dict=work["num_nodes"])
    else:
        graph = dgl.graph(("csc", (load(work, "indptr"), load(work, "indices"), edge_ids)))
    roots, root_type = load(work, "roots"), work.get("root_type", graph.ntypes[0])
    # DGL's list of fan-outs begins with the layer that is farthest from the roots. Every DGL batch has edge ids (edata[dgl.EID]) and relabelled blocks.
    sampler = dgl.dataloading.NeighborSampler(list(reversed(work["fanouts"])))
    for feature in ({}, {name: load(work, name) for name in work["features"]}) if work.get("features") else ({},):

        def batches(feature: dict[str, Any] = feature) -> Iterator[tuple[int, int]]:
            for some in roots:
                nodes, _, blocks = sampler.sample_blocks(graph, {root_type: some})
                rows = [feature[name][nodes[name]] for name in feature]
                assert all(map(len, rows))
                yield sum(block.num_edges() for block in blocks), blocks[0].num_src_nodes()

        for threads in work["threads"]:
            torch.set_num_threads(threads)
            rates = best_round(work, batches)
            note = f"edge ids and blocks; samples every node again per layer: {describe(rates)}"
            what = f"DGL {dgl.__version__} NeighborSampler{', features' if feature else ''}; {threads} threads"
            yield Row(what, rates, "M edges/s", note)


def pyg_rows(work: dict[str, Any]) -> Iterator[Row]:
    import torch
    import torch_geometric
    from torch_geometric.data import Data, HeteroData
    from torch_geometric.loader import NeighborLoader

    roots, name = load(work, "roots"), f"PyG {torch_geometric.__version__}"
    backend = "torch-sparse"
    torch.set_num_threads(1)
    for with_features in (False, True) if work.get("features") else (False,):
        if "relations" in work:
            backend = "pyg-lib" if torch_geometric.typing.WITH_PYG_LIB else backend
            data, options = HeteroData(), {"input_nodes": (work["root_type"], roots.flatten()), "is_sorted": True}
            for node_type, count in work["num_nodes"].items():
                data[node_type].num_nodes = count
                if with_features and node_type in work["features"]:
                    data[node_type].x = load(work, node_type)
            for relation, indptr, indices in load_relations(work):
                # Edges are in ascending order of target, so the loader has nothing to sort.
                data[relation].edge_index = torch.stack([indices, torch.repeat_interleave(indptr.diff())])
        else:
            from torch_sparse import SparseTensor

            indptr, indices = load(work, "indptr"), load(work, "indices")
            sizes, options = (len(indptr) - 1, len(indptr) - 1), {"input_nodes": roots.flatten()}
            # A row lists in-neighbors, like PyG's adj_t. Nothing is sorted or copied.
            adj_t = SparseTensor(rowptr=indptr, col=indices, sparse_sizes=sizes, is_sorted=True, trust_data=True)
            data = Data(adj_t=adj_t, num_nodes=sizes[0])
        for workers in (0, 2):  # 0: in this process, with one thread; 2: in two other processes
            options |= {"batch_size": roots.shape[1], "num_workers": workers, "persistent_workers": workers > 0}
            loader = NeighborLoader(data, work["fanouts"], **options)
            rates = best_round(work, sizes_of(loader))
            what = f"{name} NeighborLoader, {backend}{', features' if with_features else ''}; "
            what += f"{workers} worker processes" if workers else "in process"
            yield Row(what, rates, "M edges/s", f"edge ids and relabelling: {describe(rates)}")
    if "relations" not in work:
        yield from pyg_subgraph_rows(work, data, indptr, indices, roots, name)


def sizes_of(loader: Iterable[Any]) -> Callable[[], Iterator[tuple[int, int]]]:
    return lambda: ((batch.num_edges, batch.num_nodes) for batch in loader)


def pyg_subgraph_rows(
    work: dict[str, Any], data: Any, indptr: Any, indices: Any, roots: Any, name: str
) -> Iterator[Row]:
    import torch
    from torch_geometric.loader import ShaDowKHopSampler
    from torch_geometric.utils import k_hop_subgraph

    some, rounds = roots[0], []
    for _ in range(work["rounds"]):
        loader = ShaDowKHopSampler(data, depth=2, num_neighbors=10, node_idx=some, batch_size=len(some))
        start = time.perf_counter()
        batch = next(iter(loader))
        rounds.append((time.perf_counter() - start, batch.ptr[-1].item(), batch.adj_t.nnz()))
    seconds, nodes, edges = min(rounds)
    note = f"{nodes / len(some):.1f} nodes and {edges / len(some):.0f} induced edges each"
    yield Row(f"{name} ShaDowKHopSampler, depth 2, 10 neighbors", len(some) / seconds, "subgraphs/s", note)

    edge_index, calls = torch.stack([indices, torch.repeat_interleave(indptr.diff())]), []
    for root in some[:3]:  # only three calls, because each call reads all edges twice
        start = time.perf_counter()
        subset, *_ = k_hop_subgraph(int(root), 2, edge_index, relabel_nodes=True, num_nodes=data.num_nodes)
        calls.append((time.perf_counter() - start, len(subset)))
    seconds, nodes = min(calls)
    yield Row(f"{name} k_hop_subgraph, 2 hops", 1 / seconds, "subgraphs/s", f"{nodes:,} nodes in the fastest")


def describe(rates: Rates) -> str:
    return f"{rates.edges_per_batch:,.0f} edges and {rates.nodes_per_batch:,.0f} nodes a batch"


def main() -> None:
    rows = {"dgl": dgl_rows, "pyg": pyg_rows}[sys.argv[1]](json.loads(sys.argv[2]))
    print(json.dumps(list(rows)))


if __name__ == "__main__":
    main()
