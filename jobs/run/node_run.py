"""A run on the nodes of one graph: prepare the graph, serve it, train on it, compare with the baselines, report."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

from graphmill.cluster.checkpoints.checkpoint import DATA
from graphmill.cluster.data.training_data import OpenNodes, StoredNodes, TrainingData
from graphmill.cluster.embeddings.embeddings import OwnersHere, TableOwners, TableSpec
from graphmill.cluster.options import ServerOptions
from graphmill.cluster.process.subnormals import flushed_subnormals
from graphmill.cluster.ray.placement import Resources, cluster_resources
from graphmill.cluster.ray.session import ray_session
from graphmill.cluster.runs.run_store import RunStore
from graphmill.cluster.training.one_process import ProcessLauncher
from graphmill.cluster.training.train_session import Launcher
from graphmill.cluster.transport.tls import tls_context
from graphmill.core.errors import ConfigError
from graphmill.core.summaries import counted
from graphmill.jobs.baselines.link_baselines import compute_link_baselines
from graphmill.jobs.baselines.node_baselines import Baselines, begin_baselines, compute_baselines
from graphmill.jobs.baselines.tuned_baselines import train_classic
from graphmill.jobs.config.config import RunConfig
from graphmill.jobs.config.defaults import graph_facts
from graphmill.jobs.config.link_options import LinksOptions
from graphmill.jobs.config.registry import PLACEHOLDERS
from graphmill.jobs.config.standard_columns import with_standard_columns
from graphmill.jobs.config.stored_columns import edge_weights, unread
from graphmill.jobs.data.prepare_graph import prepare_any_graph, store_encoding
from graphmill.jobs.machine.this_machine import local_session
from graphmill.jobs.records.verdict import end_of_run
from graphmill.jobs.resolve.cross_checks import choose_run_dir
from graphmill.jobs.resolve.resolve import Facts, ResolvedRun, resolve
from graphmill.jobs.resolve.typed_facts import (
    NodeGraph,
    check_graph_kind,
    describe,
    predicted_nodes,
    typed_facts,
    typed_identity,
    typed_inputs,
    with_type,
)
from graphmill.jobs.run.graph_parallel import ShardMemory, WholeGraphData
from graphmill.jobs.run.training_run import (
    check_resume,
    copied_from,
    end_finished,
    finished_summary,
    known_resources,
    print_end,
    train_and_score,
)
from graphmill.jobs.tasks.link_task import check_links, graph_inputs, link_identity, ranking
from graphmill.jobs.tasks.model_inputs import StandardColumns
from graphmill.jobs.tasks.node_task import check_graph, check_splits, fits_labels, lacks_features, node_task
from graphmill.jobs.tasks.split_lacks import graph_lacks
from graphmill.samplers.access.router import Router
from graphmill.samplers.access.traffic import Traffic
from graphmill.samplers.access.typed_router import TypedRouter, whole_router
from graphmill.samplers.methods.random_partition import count_chunks
from graphmill.samplers.methods.registry import without_encodings
from graphmill.samplers.vocabulary.options import RandomPartitionOptions
from graphmill.storage.format.manifest import Manifest
from graphmill.storage.format.typed_manifest import TypedManifest
from graphmill.storage.graph import StoredGraph
from graphmill.storage.typed_graph import TypedGraph


@flushed_subnormals()
def run_nodes(job: str, config: RunConfig) -> int:
    """Trains, and returns the exit status: 0, or 1 where the model does not beat the baselines and `run.require_baselines` says it must."""
    started_s = time.monotonic()
    resources = known_resources(config)
    resolve(config, Facts(PLACEHOLDERS["nodes"], {}, resources))  # what needs no graph is refused at once
    run_dir = choose_run_dir(job, config.run)
    graph = prepare_any_graph(config.data)
    resolved = resolve_nodes(config, graph, resources)
    check_run(graph, resolved)
    if config.servers.range_reads and isinstance(graph, StoredGraph):
        graph = graph.features_by_range()
    if resolved.encoding is not None and isinstance(graph, StoredGraph):
        graph = store_encoding(graph, resolved.encoding)
    # A resume opens the same snapshot.
    asked = replace(config, data=replace(config.data, snapshot=graph.manifest.snapshot))
    config = replace(resolved.config, data=asked.data)
    resolved = replace(resolved, config=config)
    manifest, nodes, evaluation = graph.manifest, predicted_nodes(graph, config).manifest, config.evaluation
    memory = shard_memory(nodes, resolved) if resolved.is_full_graph else None
    if config.run.resume is not None:
        check_resume(run_dir, resolved)
        if (done := finished_summary(run_dir, resolved)) is not None:
            return end_finished(done, run_dir, config.run)
    print(f"graph {describe(graph)}{copied_from(manifest)}", flush=True)
    if left := unread(manifest, config, resolved.inputs):
        print(left, flush=True)
    lacks = graph_lacks(nodes, config.data.split_set) if config.links is None else []
    if lacks:
        print(f"splits lack: {'; '.join(lacks)}", flush=True)
    if resources is not None:  # else the cluster has a say
        resolved.print_choices()
    if evaluation.estimate is not None:
        print(f"scores are estimates: {evaluation.estimate}; {evaluation.kept}", flush=True)
    classic = train_classic(job, config, run_dir, run_nodes)
    prepare = _in_this_process if resolved.workers.launcher == "process" else _on_ray
    with prepare(graph, asked, resolved, memory, run_dir) as ready:
        task = node_task(ready.resolved.config, ready.resolved.inputs, nodes)
        constant = "mean" if config.task.name == "regression" else "majority class"
        told = f"{constant}, features only" if config.links is None else "common neighbors"
        print(f"fitting the baselines ({told})", flush=True)

        def fit() -> Baselines:
            if config.links is not None and isinstance(ready.router, Router):
                return compute_link_baselines(ready.router, ready.resolved.evaluation["test"], task)
            rows = ready.router if isinstance(ready.router, Router) else ready.router.nodes[nodes.name]
            standard, name = StandardColumns(ready.resolved.inputs.standard), nodes.name if resolved.is_typed else ""
            seen = None if config.data.standardise == "no" else partial(standard.rows, name=name)
            return compute_baselines(rows, config.data.split_set, task, config.fit.seed, seen) | classic

        fitted = begin_baselines(fit, alone=ready.resolved.workers.launcher == "process")
        described = {
            "graph": graph.url,
            "graph_hash": manifest.content_hash,
            "snapshot": manifest.snapshot,
            **({"lacks": lacks} if lacks else {}),
            **({} if config.links is None else {"predicted": "links"}),
            **({"node_type": nodes.name} if resolved.is_typed else {}),
            **({"standardised_columns": len(standard)} if (standard := resolved.inputs.standard) else {}),
            **({} if config.links or config.task.is_foreign else {"task": dict(vars(task))}),
        }
        summary = train_and_score(
            job,
            run_dir,
            ready.resolved,
            ready.launcher,
            task,
            ready.data if memory is None else WholeGraphData(ready.data, resolved.training, memory),
            resolved.training,
            resolved.evaluation,
            fitted,
            described,
            started_s,
            lambda: [{"kind": "traffic", "epoch": None, "of": "baselines", **ready.traffic.columns()}],
            table_spec(ready.resolved, manifest, ready.owners),
        )
    print_end(summary, run_dir)
    return end_of_run(summary, require_baselines=config.run.require_baselines)


@dataclass(frozen=True)
class _Ready:
    """A run whose graph can be read and whose workers can be started."""

    resolved: ResolvedRun
    launcher: Launcher
    router: Router | TypedRouter
    traffic: Traffic  # of this router
    data: TrainingData
    owners: TableOwners  # of embeddings, where the run has some


def table_spec(resolved: ResolvedRun, manifest: Manifest | TypedManifest, owners: TableOwners) -> TableSpec | None:
    """The table of the nodes' embeddings; None: the run has none."""
    options = resolved.config.embeddings
    if not options.width or isinstance(manifest, TypedManifest):
        return None
    return TableSpec(options, manifest.num_nodes, resolved.config.fit.seed, owners)


@contextmanager
def _in_this_process(
    graph: NodeGraph, asked: RunConfig, resolved: ResolvedRun, memory: ShardMemory | None, run_dir: RunStore
) -> Iterator[_Ready]:
    for reason in resolved.reasons:
        print(reason, flush=True)
    if memory is not None and resolved.workers.device == "cpu":
        memory.check(1)
    servers, is_here, graph = resolved.config.servers, graph.is_here, graph.whole()
    with kept_on_disk(graph, servers) as kept:
        data = StoredNodes.of(kept, verify=servers.verify and kept is graph)
        traffic = Traffic(kept.num_partitions)
        router = data.open(traffic).router
        if not is_here:
            check_samplers(router, resolved)
        yield _Ready(resolved, ProcessLauncher(resolved.workers, run_dir), router, traffic, data, OwnersHere())


@contextmanager
def kept_on_disk(graph: NodeGraph, servers: ServerOptions) -> Iterator[NodeGraph]:
    """The whole graph on this host's disk, verified, where it is on an object store and the options name a folder for it; else itself."""
    cache = servers.disk_cache
    if cache is None or isinstance(graph, TypedGraph) or (kept := cache.copy_of(graph)) is graph:
        yield graph
        return
    with cache.holding(kept, range(kept.num_partitions)) as copied:
        num_bytes = sum(each.num_bytes for each in copied)
        print(f"graph {kept.manifest.name} at {kept.url}: {num_bytes:,} bytes copied there now", flush=True)
        yield kept


@contextmanager
def _on_ray(
    graph: NodeGraph, asked: RunConfig, resolved: ResolvedRun, memory: ShardMemory | None, run_dir: RunStore
) -> Iterator[_Ready]:
    from graphmill.cluster.data.served_nodes import ServedNodes
    from graphmill.cluster.embeddings.server import served_owners
    from graphmill.cluster.serving.partition_server import connect_any, server_group
    from graphmill.cluster.training.ray_train import RayTrainLauncher

    config, manifest, before = resolved.config, graph.manifest, resolved.workers
    print("starting Ray and the partition servers", flush=True)
    with (
        ray_session(local_session(config.workers, config.ray)) as session,
        server_group(graph, config.servers) as group,
    ):
        where = "a local Ray" if session.is_ours else f"the Ray cluster at {session.address}"
        resolved = resolve_nodes(asked, graph, cluster_resources(before))
        if not session.is_ours:
            resolved.print_choices()
        for reason in resolved.reasons:
            print(reason, flush=True)
        # A GPU's worker looks at its memory itself.
        if memory is not None and session.is_ours and resolved.workers.device == "cpu":
            memory.check(resolved.workers.most)
        placed = group.where()
        print(
            f"{counted(manifest.num_partitions, 'partition server')} up on {where}{placed and ': '}{placed}", flush=True
        )
        servers, traffic = group.running(), Traffic(manifest.num_partitions)
        router = connect_any(servers, traffic.watch)
        if resolved.workers != before or not graph.is_here:
            if config.links is None:
                nodes = predicted_nodes(graph, config).manifest
                check_splits(nodes, config.data.split_set, config.metric, num_roots(resolved))
            check_samplers(router, resolved)

        def renewed(wait_s: float, say: Callable[[str], None]) -> TrainingData:
            nodes = ServedNodes(group.running(wait_s, say))
            return nodes if memory is None else WholeGraphData(nodes, resolved.training, memory)

        launcher = RayTrainLauncher(resolved.workers, run_dir, renewed, group.full_disks)
        table = table_spec(resolved, manifest, OwnersHere())
        with (
            nullcontext(OwnersHere())
            if table is None
            else served_owners(table, resolved.micro_batches, config.servers) as owners
        ):
            yield _Ready(resolved, launcher, router, traffic, ServedNodes(servers), owners)


def resolve_nodes(config: RunConfig, graph: NodeGraph, resources: Resources | None) -> ResolvedRun:
    """The run on this graph. Raises ConfigError where the two do not fit."""
    check_graph_kind(config, graph)
    if isinstance(graph, TypedGraph):
        return _resolve_typed(config, graph, resources)
    manifest, links = graph.manifest, config.links
    if links is not None:
        check_links(graph, links, 1, config.embeddings.width)
        return _resolve_links(config, graph, links, resources)
    _check_targets(config, graph)
    # Partitions are in it only where they are the chunks, or cut into them: else no batch depends on them.
    partitioned = getattr(config.sampler.options, "cut", "random") != "random"
    identity = {
        **({"partitions": manifest.content_hash} if partitioned else {}),
        "graph": manifest.name,
        "num_nodes": manifest.num_nodes,
        "num_edges": manifest.num_edges,
        "split_set": config.data.split_set,
        DATA: manifest.measured.data_digest(config.data.split_set),
    }
    facts = graph_facts(manifest, config.data.split_set, by_weight=config.data.edge_weight != "no")
    inputs, weights = graph_inputs(manifest, config), edge_weights(manifest, config)
    inputs = with_standard_columns(inputs, [manifest], config.data)
    return resolve(config, Facts(inputs, identity, resources, manifest.num_bytes, facts, weights))


def _resolve_typed(config: RunConfig, graph: TypedGraph, resources: Resources | None) -> ResolvedRun:
    if config.embeddings.width:
        raise ConfigError(
            f"{graph.url}: embeddings: expected a graph of one type, got a typed one; leave out --embeddings.width"
        )
    if config.data.edge_features:
        raise ConfigError(
            f"{graph.url}: edge_features: expected a graph of one type, got a typed one; leave out --data.edge_features"
        )
    config, manifest, split_set = with_type(config, graph), graph.manifest, config.data.split_set
    predicted = predicted_nodes(graph, config)
    _check_targets(config, predicted)
    nodes = predicted.manifest
    facts = Facts(
        with_standard_columns(typed_inputs(manifest, nodes, config), manifest.types.values(), config.data),
        typed_identity(manifest, nodes.name, split_set),
        resources,
        manifest.num_bytes,
        typed_facts(manifest, nodes, split_set),
        edge_weights(manifest, config),
    )
    return resolve(config, facts)


def _check_targets(config: RunConfig, graph: StoredGraph) -> None:
    """Raises ConfigError where the graph has not the labels, features and splits of which the run's options are made."""
    manifest, split_set, width = graph.manifest, config.data.split_set, config.embeddings.width
    fits = fits_labels(manifest, config.task)
    if split_set >= manifest.num_split_sets or not fits or lacks_features(manifest, width):
        check_graph(graph, split_set, config.task, config.metric, 1, width)


def _resolve_links(
    config: RunConfig, graph: StoredGraph, links: LinksOptions, resources: Resources | None
) -> ResolvedRun:
    manifest = graph.manifest
    identity = {
        "graph": manifest.name,
        "num_nodes": manifest.num_nodes,
        "num_edges": manifest.num_edges,
        **link_identity(manifest, links),
        DATA: manifest.measured.graph_digest[:16],
    }
    chosen = replace(config.task, options=replace(links, ranking=ranking(manifest, links)))
    inputs, weights = graph_inputs(manifest, config), edge_weights(manifest, config)
    inputs = with_standard_columns(inputs, [manifest], config.data)
    facts = Facts(inputs, identity, resources, manifest.num_bytes, weights=weights)
    return resolve(replace(config, task=chosen), facts)


def num_roots(resolved: ResolvedRun) -> int:
    """How many labelled nodes the training split needs at least."""
    return 1 if resolved.is_full_graph else resolved.micro_batches


def check_run(graph: NodeGraph, resolved: ResolvedRun) -> None:
    """Raises ConfigError where the graph has not what the run needs, or this host lacks the certificates of its servers.

    Samplers are tried where the graph's files are at hand; elsewhere once the servers are up.
    """
    config, nodes = resolved.config, predicted_nodes(graph, resolved.config)
    if config.servers.tls and resolved.workers.launcher != "process":
        tls_context(is_server=True)
    if config.links is not None:
        check_links(nodes, config.links, num_roots(resolved), config.embeddings.width)
    else:
        split_set, width = config.data.split_set, config.embeddings.width
        check_graph(nodes, split_set, config.task, config.metric, num_roots(resolved), width)
        node_task(config, resolved.inputs, nodes.manifest)  # refuses what its options and the labels do not agree on
    if isinstance(resolved.training, RandomPartitionOptions):
        count_chunks(resolved.training, nodes.manifest)
    if graph.is_here:
        check_samplers(whole_router(graph), resolved)


def check_samplers(router: Router | TypedRouter, resolved: ResolvedRun) -> None:
    """Raises ConfigError where a sampler's options do not fit the graph."""
    if resolved.is_full_graph:
        return
    data = OpenNodes(router)
    for options in (resolved.training, *resolved.evaluation.values()):
        data.sampler(without_encodings(options), resolved.micro_batches).num_batches  # noqa: B018 - checks its options


def shard_memory(manifest: Manifest, resolved: ResolvedRun, *, training: bool = True) -> ShardMemory:
    """Of a run whose one batch is the whole graph, or of its prediction."""
    return ShardMemory.of(manifest, resolved.model_config, training=training)
