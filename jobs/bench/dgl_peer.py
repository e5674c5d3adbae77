"""DGL's NeighborSampler on a CSC in .npy files, timed: run by `jobs/bench/sampling.py` with an interpreter that has dgl 1.1.3.

    DGL_BACKEND=pytorch <python with dgl> jobs/bench/dgl_peer.py '{"folder": "…", "fanouts": [15, 10, 5], …}'

Prints one line of JSON: seconds and edges of each thread count. Imports nothing of ours, so that any environment with DGL will do.
"""

import json
import sys
import time


def main() -> None:
    import dgl
    import numpy as np
    import torch

    work = json.loads(sys.argv[1])
    indptr = torch.from_numpy(np.load(f"{work['folder']}/indptr.npy", mmap_mode="c"))
    indices = torch.from_numpy(np.load(f"{work['folder']}/indices.npy", mmap_mode="c"))
    roots = torch.from_numpy(np.load(f"{work['folder']}/roots.npy"))  # [batches, batch_size]
    graph = dgl.graph(("csc", (indptr, indices, torch.empty(0, dtype=indptr.dtype))))
    # DGL lists fan-outs from the widest layer in; its edge ids (edata[dgl.EID]) and relabelled blocks come with every batch.
    sampler = dgl.dataloading.NeighborSampler(list(reversed(work["fanouts"])))
    results = []
    for threads in work["threads"]:
        torch.set_num_threads(threads)
        for some in roots[: work["warmup"]]:
            sampler.sample_blocks(graph, some)
        rounds = []
        for _ in range(work["rounds"]):
            start, num_edges = time.perf_counter(), 0
            for some in roots[work["warmup"] :]:
                _, _, blocks = sampler.sample_blocks(graph, some)
                num_edges += sum(block.num_edges() for block in blocks)
            rounds.append([time.perf_counter() - start, num_edges])
        results.append({"threads": threads, "rounds": rounds})
    print(json.dumps({"version": dgl.__version__, "torch": torch.__version__, "results": results}))


if __name__ == "__main__":
    main()
