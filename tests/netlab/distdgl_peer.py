"""Runs DistDGL on the same emulated hosts as Graphmill. It samples and fetches features, without a model. Each host has one server and one trainer.

    partition FOLDER GRAPH.npz HOSTS              GRAPH.npz: src, dst (int), feat [n, d], label [n], roots (ids of the training nodes)
    commands FOLDER HOSTS BATCH_SIZE EPOCHS       prints a line `HOST: COMMAND` for each server and client
    server FOLDER | client FOLDER BATCH_SIZE EPOCHS

It needs a separate environment: Python 3.11, torch==2.1.2, dgl==1.1.3, "numpy<2", scipy, networkx, requests, psutil,
tqdm, pandas, packaging, pyyaml, pydantic, "setuptools<70". All hosts can write to FOLDER. A client loads one epoch,
touches FOLDER/warmRANK and waits for FOLDER/go. Then it loads the measured epochs, prints a line of JSON, touches
FOLDER/doneRANK and waits for FOLDER/stop (`tests.netlab.links`).
"""

import json
import sys
import time
from pathlib import Path

FANOUTS = [5, 10, 15]  # DGL's order: the farthest hop first
PORT, LONGEST_S = 30050, 1200.0


def partition(folder: Path, graph: str, hosts: int) -> None:
    import dgl
    import numpy as np
    import torch

    arrays = np.load(graph)
    src, dst, roots = (torch.from_numpy(arrays[name].astype(np.int64)) for name in ("src", "dst", "roots"))
    whole = dgl.graph((src, dst), num_nodes=len(arrays["feat"]))
    del src, dst
    whole.ndata["feat"], whole.ndata["label"] = torch.from_numpy(arrays["feat"]), torch.from_numpy(arrays["label"])
    whole.ndata["train_mask"] = torch.zeros(whole.num_nodes(), dtype=torch.bool)
    whole.ndata["train_mask"][roots] = True
    dgl.distributed.partition_graph(whole, "g", hosts, str(folder / "parts"), part_method="random", num_hops=1)


def commands(folder: Path, hosts: int, batch_size: int, epochs: int) -> None:
    (folder / "hosts.txt").write_text("".join(f"10.77.0.{host + 1} {PORT}\n" for host in range(hosts)))
    common = (
        f"DGLBACKEND=pytorch DGL_NUM_SAMPLER=0 OMP_NUM_THREADS=1 DGL_NUM_CLIENT={hosts} DGL_CONF_PATH={folder}/parts/g.json "
        f"DGL_IP_CONFIG={folder}/hosts.txt DGL_NUM_SERVER=1 DGL_GRAPH_FORMAT=csc DGL_KEEP_ALIVE=0"
    )
    script = f"{sys.executable} {Path(__file__).resolve()}"
    for host in range(hosts):
        print(f"h{host}: env {common} DGL_ROLE=server DGL_SERVER_ID={host} {script} server {folder}")
    client = f"{script} client {folder} {batch_size} {epochs}"
    for host in range(hosts):
        print(f"h{host}: env {common} DGL_DIST_MODE=distributed DGL_ROLE=client DGL_GROUP_ID=0 {client}")


def serve(folder: Path) -> None:
    import dgl

    dgl.distributed.initialize(str(folder / "hosts.txt"))  # in a server, this call does not return


def load(folder: Path, batch_size: int, epochs: int) -> None:
    import dgl
    import torch

    torch.set_num_threads(1)
    dgl.distributed.initialize(str(folder / "hosts.txt"))
    graph = dgl.distributed.DistGraph("g", part_config=str(folder / "parts" / "g.json"))
    roots = dgl.distributed.node_split(graph.ndata["train_mask"], graph.get_partition_book(), force_even=True)
    sampler = dgl.dataloading.NeighborSampler(FANOUTS)
    loader = dgl.dataloading.DistNodeDataLoader(graph, roots, sampler, batch_size=batch_size, shuffle=True)

    def epoch() -> list[int]:
        found = []
        for nodes, seeds, _ in loader:
            _ = graph.ndata["feat"][nodes], graph.ndata["label"][seeds]
            found.append(len(nodes))
        return found

    epoch()
    (folder / f"warm{graph.rank()}").touch()
    wait_for(folder / "go")
    began = time.perf_counter()
    nodes = [count for _ in range(epochs) for count in epoch()]
    seconds = (time.perf_counter() - began) / len(nodes)
    print(json.dumps({"batches": len(nodes), "s_per_batch": seconds, "nodes": sum(nodes) / len(nodes)}), flush=True)
    (folder / f"done{graph.rank()}").touch()
    wait_for(folder / "stop")


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + LONGEST_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise SystemExit(f"{path}: not there after {LONGEST_S:.0f} s")
        time.sleep(0.02)


if __name__ == "__main__":
    verb, where, rest = sys.argv[1], Path(sys.argv[2]).resolve(), sys.argv[3:]
    where.mkdir(parents=True, exist_ok=True)
    if verb == "partition":
        partition(where, rest[0], int(rest[1]))
    elif verb == "commands":
        commands(where, *map(int, rest))
    elif verb == "server":
        serve(where)
    else:
        load(where, *map(int, rest))
