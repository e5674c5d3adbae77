"""One point of a scaling sweep: a fresh Ray, servers and workers, some steps of training, and what they cost. Started by scaling_sweep.

    python jobs/sweeps/scaling_point.py SETTINGS.json RESULT.json

The steps are those of every node job: its samplers, servers, loader and trainer (`cluster.trainer.train`), with the messages counted. Epoch 0
warms up (compiled kernels, connections, allocators) and does not count. An epoch begins with an empty loader, as in any run.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.run.exit_codes import run
from jobs.run.node_options import BatchOptions, GraphOptions, NodeFitOptions, NodeJobOptions
from jobs.run.run_options import RunOptions
from storage.errors import ConfigError, StageError

if TYPE_CHECKING:
    from torch import nn

    from cluster.options import ServerOptions
    from cluster.partition_server import PartitionServers
    from cluster.reporter import Record
    from cluster.session import Session
    from storage.graph import StoredGraph
    from storage.manifest import Manifest

SAMPLERS = ("neighbor", "random-partition", "node2subgraph")
MODELS = ("geco", "primphormer", "tokengt", "ppgt")
SCALINGS = ("weak", "strong")
PLACEMENTS = ("spread", "store")

_HUB_TIMEOUT_S = 30.0
_RESERVE_TIMEOUT_S = 60.0
_SERVERS_START_TIMEOUT_S = 300.0  # several Rays may share few cores; --point-timeout-s bounds it too


@dataclass(frozen=True)
class PointSettings:
    """All that a point's measures depend on, the machine aside; what a sweep knows it again by."""

    sampler: str = "neighbor"
    model: str = "geco"
    scaling: str = "weak"
    workers: int = 1
    partitions: int = 2
    nodes: int = 1  # Ray nodes
    placement: str = (
        "spread"  # servers spread over all nodes; or all on the first one, the "store", and no worker there
    )
    repeat: int = 0
    graph: str | None = None
    graph_nodes: int = 100_000
    partitioner: str = "random"
    batch_size: int = 512  # roots: of a worker's batch (weak), or of all workers' together (strong)
    chunks: int = 16  # of a random cut; strong scaling cuts it into `workers` times as many
    fanouts: tuple[int, ...] = (10, 5)
    width: int = 64
    layers: int = 2
    max_nodes: int = 32  # of a subgraph of node2subgraph
    steps: int = 20  # of an epoch, at most
    epochs: int = 2  # measured ones, after the one that warms up
    loader_threads: int = 1
    prefetch: int = 2
    cache_mb: int = 0
    local_reads: bool = True
    seed: int = 0
    address: str | None = None

    def __post_init__(self) -> None:
        for name, allowed in (
            ("sampler", SAMPLERS),
            ("model", MODELS),
            ("scaling", SCALINGS),
            ("placement", PLACEMENTS),
        ):
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name}: expected one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        for name in ("workers", "partitions", "nodes", "batch_size", "chunks", "steps", "epochs", "width", "layers"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.placement == "store" and self.nodes < 2:
            raise ConfigError(
                f"placement store: expected at least 2 nodes, the store and the workers', got {self.nodes}"
            )
        if self.sampler == "neighbor" and self.model == "geco" and len(self.fanouts) != self.layers:
            raise ConfigError(
                f"fanouts needs one entry per layer: {self.layers} layers, got {self.fanouts}; set --fanouts or --layers"
            )

    @property
    def roots_per_worker(self) -> int:
        """Roots of a worker's batch, of samplers of roots. Raises ConfigError where not every worker would have one."""
        if self.scaling == "weak":
            return self.batch_size
        if self.batch_size < self.workers:
            raise ConfigError(f"batch_size: expected a root per worker ({self.workers}), got {self.batch_size}")
        return self.batch_size // self.workers


@dataclass
class _Load:
    """Cores in use between the first and the last report of the measured steps: by this point's processes, by its servers, by all; and
    those that a virtual machine's host kept for others while somebody here wanted them (steal time)."""

    server_pids: frozenset[int] = frozenset()
    own_s: list[float] = field(default_factory=list)
    server_s: list[float] = field(default_factory=list)
    machine_s: list[float] = field(default_factory=list)
    stolen_s: list[float] = field(default_factory=list)
    time_s: list[float] = field(default_factory=list)

    def look(self, record: "Record") -> None:
        """For every record of the trainer."""
        if record["kind"] != "step" or record["epoch"] < 1:
            return
        import psutil

        own = servers = 0.0
        this = psutil.Process()
        for process in (this, *this.children(recursive=True)):
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            own += times.user + times.system
            if process.pid in self.server_pids:
                servers += times.user + times.system
        machine = psutil.cpu_times()
        self.own_s.append(own)
        self.server_s.append(servers)
        stolen = getattr(machine, "steal", 0.0)
        unused = machine.idle + getattr(machine, "iowait", 0.0) + stolen
        self.machine_s.append(sum(machine) - unused - _counted_twice(machine))
        self.stolen_s.append(stolen)
        self.time_s.append(time.monotonic())

    def cores(self) -> dict[str, float | None]:
        """Cores in use on average; None where the steps were too few to tell."""
        totals = {
            "own_cores": self.own_s,
            "server_cores": self.server_s,
            "machine_cores": self.machine_s,
            "stolen_cores": self.stolen_s,
        }
        if len(self.time_s) < 2 or self.time_s[-1] - self.time_s[0] < 0.5:
            return dict.fromkeys(totals)
        elapsed = self.time_s[-1] - self.time_s[0]
        return {name: (total[-1] - total[0]) / elapsed for name, total in totals.items()}


def _counted_twice(times: Any) -> float:
    """Linux has the guests' time in user and nice, too."""
    return getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)


def graph_options(settings: PointSettings, data_dir: str) -> GraphOptions:
    """The graph of a point."""
    return GraphOptions(
        graph=settings.graph,
        nodes=settings.graph_nodes,
        partitions=settings.partitions,
        partitioner=settings.partitioner,  # type: ignore[arg-type]  # prepare_graph refuses what it does not know
        data_dir=data_dir,
        verify=False,
    )


def job_options(settings: PointSettings, data_dir: str, run_dir: str) -> NodeJobOptions:
    """The options of the node job whose steps this point measures."""
    return NodeJobOptions(
        graph=graph_options(settings, data_dir),
        batch=BatchOptions(
            sampler=settings.sampler,  # type: ignore[arg-type]
            chunks=settings.chunks * (settings.workers if settings.scaling == "strong" else 1),
            fanouts=settings.fanouts,
            batch_size=settings.roots_per_worker,
            max_hops=settings.layers,
            max_nodes=settings.max_nodes,
            loader_threads=settings.loader_threads,
            prefetch=settings.prefetch,
        ),
        fit=NodeFitOptions(
            epochs=1 + settings.epochs,
            schedule="constant",
            warmup_epochs=0,
            eval_every=1 + settings.epochs,
            checkpoint_every=1 + settings.epochs,
            precision="float32",
            seed=settings.seed,
        ),
        run=RunOptions(
            workers=settings.workers,
            device="cpu",
            run_dir=run_dir,
            address=settings.address,
            object_store_gb=0.1,
            local_reads=settings.local_reads,
            failures_per_hour=0,
        ),
    )


def build_model(settings: PointSettings, manifest: "Manifest") -> "nn.Module":
    """The model as its own job builds it, of the sweep's width and depth."""
    from jobs.run.model_inputs import OverGraphs, checked_config, node_batch_graphs, with_penalty

    in_dim, out_dim = manifest.feature_dim, manifest.num_classes or 1
    width, layers = settings.width, settings.layers
    if settings.model == "geco":
        from jobs import products_geco
        from jobs.run.geco_classifier import GECOClassifier

        geco = products_geco.ModelOptions(width=width, layers=layers)
        return GECOClassifier(
            checked_config(lambda: products_geco.build_model_config(geco, settings.seed, in_dim, out_dim)),
            geco.filter_learning_rate,
        )
    if settings.model == "primphormer":
        from jobs import products_primphormer
        from models.primphormer import Primphormer

        primphormer = products_primphormer.ModelOptions(width=width, num_layers=layers)
        config = checked_config(lambda: products_primphormer.build_model_config(primphormer, in_dim, out_dim, None))
        return OverGraphs(Primphormer(config), node_batch_graphs, with_penalty)
    if settings.model == "tokengt":
        from jobs import products_tokengt
        from models.tokengt import TokenGT

        # Random signs: eigenvectors of the whole graph would be computed and stored first.
        tokengt = products_tokengt.ModelOptions(
            width=width, num_layers=layers, identifier="near_orf", identifier_dim=64
        )
        config = checked_config(
            lambda: products_tokengt.build_model_config(tokengt, settings.seed, in_dim, out_dim, None)
        )
        return OverGraphs(TokenGT(config), node_batch_graphs)
    from jobs import arxiv_ppgt
    from models.ppgt import PPGT

    if settings.sampler != "node2subgraph":
        raise ConfigError(f"ppgt takes one subgraph per root, got the sampler {settings.sampler}")
    ppgt = replace(arxiv_ppgt.ModelOptions(), width=width, num_layers=layers)
    return OverGraphs(
        PPGT(checked_config(lambda: arxiv_ppgt.build_model_config(ppgt, in_dim, out_dim))), node_batch_graphs
    )


@contextmanager
def placed(
    settings: PointSettings, graph: "StoredGraph", options: "ServerOptions", folder: Path
) -> Iterator[tuple["Session", "PartitionServers"]]:
    """A Ray with the nodes of this point, and the servers where its placement has them."""
    from cluster.local_raylets import local_raylets
    from cluster.options import MIN_OBJECT_STORE_GB, SessionOptions
    from cluster.partition_server import partition_servers
    from cluster.session import ray_session

    of_workers = settings.nodes - 1 if settings.placement == "store" else settings.nodes
    cpus = -(-settings.workers // of_workers)
    session_options = SessionOptions(
        address=settings.address or "local",
        num_cpus=1 if settings.placement == "store" else cpus,
        num_gpus=0,
        object_store_gb=MIN_OBJECT_STORE_GB,
    )
    with ExitStack() as stack:
        session = stack.enter_context(ray_session(session_options))
        if settings.placement == "store":
            stack.enter_context(_reserved_cpu())
            servers = stack.enter_context(partition_servers(graph, options))
        stack.enter_context(local_raylets(session, settings.nodes - 1, folder / "raylets.log", num_cpus=cpus))
        if settings.placement != "store":
            servers = stack.enter_context(partition_servers(graph, options))
        yield session, servers


@contextmanager
def _reserved_cpu() -> Iterator[None]:
    """Keeps the only CPU of the only node, so that no worker comes to the store."""
    import ray
    from ray.util import placement_group, remove_placement_group

    group = placement_group([{"CPU": 1}], strategy="STRICT_PACK")
    ray.get(group.ready(), timeout=_RESERVE_TIMEOUT_S)
    try:
        yield
    finally:
        remove_placement_group(group)


def measure(settings: PointSettings, data_dir: str, folder: Path) -> dict[str, Any]:
    """Runs the point; its logs and checkpoints go to `folder`."""
    import numpy as np

    from cluster.options import ServerOptions
    from cluster.run_directory import RunDirectory
    from cluster.tasks import Classification
    from cluster.train_spec import TrainSpec
    from cluster.trainer import train
    from jobs.run.node_job import train_sampler
    from jobs.run.prepare_graph import prepare_graph
    from jobs.run.training_run import train_options, worker_options
    from jobs.sweeps.message_counts import CountsHub, MeasuredNodes, evaluation_of
    from samplers.options import LoaderOptions, RandomPartitionOptions
    from samplers.random_partition import count_chunks

    options = job_options(settings, data_dir, str(folder / "run"))
    graph = prepare_graph(options.graph)
    manifest = graph.manifest
    sampler = train_sampler(options)
    if isinstance(sampler, RandomPartitionOptions):
        count_chunks(sampler, manifest)
    build_model(settings, manifest)  # refused here, not on every worker
    server_options = ServerOptions(
        start_timeout_s=_SERVERS_START_TIMEOUT_S,
        verify=False,
        local_reads=settings.local_reads,
        cache_bytes=settings.cache_mb * 2**20,
    )
    load = _Load()
    with placed(settings, graph, server_options, folder) as (session, servers):
        import ray

        load.server_pids = frozenset(info.pid for info in servers.infos)
        actor: Any = ray.remote(num_cpus=0)(CountsHub)
        hub = actor.remote()
        spec = TrainSpec(
            data=MeasuredNodes(servers, hub, settings.steps),
            build_model=lambda: build_model(settings, manifest),
            task=Classification(manifest.num_classes or 1),
            model_config=asdict(settings),
            identity={"seed": settings.seed},
            sampler=sampler,
            evaluation=evaluation_of(sampler),
            options=train_options(options.fit),
            loader=LoaderOptions(threads=settings.loader_threads, prefetch=settings.prefetch),
        )
        run_directory = RunDirectory.create(folder / "run", asdict(settings))
        result = train(spec, worker_options(options.run), run_directory, load.look)
        epochs = run_directory.metrics()
        ranks = ray.get(hub.records.remote(), timeout=_HUB_TIMEOUT_S)
        nodes = sum(node["Alive"] for node in ray.nodes())
        ray.kill(hub, no_restart=True)
    found = measures(settings, result, epochs, ranks, load.cores())
    return {
        **found,
        "ray_nodes": nodes,
        "raylets_on_one_machine": session.is_ours,
        "graph": manifest.name,
        "graph_edges": manifest.num_edges,
        "degrees": degree_bins(graph),
        "feature_dim": manifest.feature_dim,
        "feature_bytes": manifest.feature_dim * np.dtype(manifest.feature_dtype).itemsize,
        "index_bytes": np.dtype(manifest.index_dtype).itemsize,
    }


def degree_bins(graph: "StoredGraph") -> tuple[list[float], list[float]]:
    """(degrees, numbers of nodes) of the graph's in-edges, for the cost model."""
    import numpy as np

    from jobs.plan.cost_model import Degrees

    bins = Degrees.of(np.concatenate([np.diff(partition.indptr) for partition in graph.partitions(verify=False)]))
    return bins.degree.tolist(), bins.count.tolist()


def measures(
    settings: PointSettings,
    result: Mapping[str, Any],
    epochs: list[dict[str, Any]],
    ranks: list[Mapping[str, Any]],
    cores: Mapping[str, float | None],
) -> dict[str, Any]:
    """What the measured epochs (all but the first) cost.

    `epochs` are the trainer's records, `ranks` what every worker counted up to the end of each epoch.
    """
    by_rank = {(record["rank"], record["epoch"]): record for record in ranks}
    expected = settings.workers * (1 + settings.epochs)
    if len(by_rank) != expected or len(epochs) != 1 + settings.epochs:
        raise StageError(
            f"expected {expected} reports of workers and {1 + settings.epochs} epochs, got {len(by_rank)} "
            f"and {len(epochs)}"
        )
    first, last = ([by_rank[rank, epoch] for rank in range(settings.workers)] for epoch in (0, settings.epochs))
    counted = epochs[1:]
    seconds = sum(epoch["train_s"] for epoch in counted)
    steps = last[0]["steps"] * settings.epochs
    batches = steps * settings.workers

    def per_batch(name: str) -> float:
        return sum(b[name] - a[name] for a, b in zip(first, last, strict=True)) / batches

    num_parameters = result["num_parameters"]
    return {
        "steps": steps,
        "seconds": seconds,
        "step_s": seconds / steps,
        "fastest_step_s": min(epoch["train_s"] for epoch in counted) / last[0]["steps"],
        "roots_per_s": sum(epoch["roots"] for epoch in counted) / seconds,
        "nodes_per_s": sum(epoch["nodes_per_s"] * epoch["train_s"] for epoch in counted) / seconds,
        "edges_per_s": sum(epoch["edges_per_s"] * epoch["train_s"] for epoch in counted) / seconds,
        "roots_per_batch": sum(epoch["roots"] for epoch in counted) / batches,
        "nodes_per_batch": sum(epoch["nodes_per_s"] * epoch["train_s"] for epoch in counted) / batches,
        "edges_per_batch": sum(epoch["edges_per_s"] * epoch["train_s"] for epoch in counted) / batches,
        "wait_s": sum(epoch["wait_s"] for epoch in counted),
        "wait_share": sum(epoch["wait_s"] for epoch in counted) / seconds,
        "remote_requests_per_batch": per_batch("remote_requests"),
        "sent_bytes_per_batch": per_batch("sent_bytes"),
        "received_bytes_per_batch": per_batch("received_bytes"),
        "local_bytes_per_batch": per_batch("local_bytes"),
        "train_cpu_s_per_batch": per_batch("train_thread_s"),
        "worker_cpu_s_per_step": per_batch("process_s") * settings.workers,
        "peak_bytes_per_worker": max(record["peak_bytes"] for record in last),
        "own_bytes_per_worker": max(record["own_bytes"] for record in last),
        "torch_threads": max(record["torch_threads"] for record in last),
        "worker_nodes": len({record["node_id"] for record in last}),
        "num_parameters": num_parameters,
        **cores,
        "cores": os.cpu_count(),
    }


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if len(arguments) != 2:
        raise ConfigError("expected SETTINGS.json and RESULT.json; jobs/scaling_sweep.py starts this")
    source, target = map(Path, arguments)
    wanted = json.loads(source.read_text())
    settings = settings_of(wanted["settings"])
    found = measure(settings, wanted["data_dir"], target.resolve().parent)
    target.write_text(json.dumps(found) + "\n")
    return 0


def settings_of(values: Mapping[str, Any]) -> PointSettings:
    """From what JSON has made of them."""
    return PointSettings(**{**values, "fanouts": tuple(values["fanouts"])})


if __name__ == "__main__":
    run(main)
