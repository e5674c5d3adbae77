"""`--plan` of a run on one graph: tries the run's samplers and model in this process. All other parts of the plan are in jobs/plan/run_plan.py."""

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import torch

from graphmill.cluster.data.training_data import OpenNodes, StoredNodes
from graphmill.cluster.embeddings.embeddings import with_columns
from graphmill.cluster.ray.placement import Resources
from graphmill.cluster.tasks import Task
from graphmill.core.errors import GraphmillError
from graphmill.core.summaries import counted, size
from graphmill.jobs.baselines.tuned_baselines import search
from graphmill.jobs.config.config import RunConfig
from graphmill.jobs.config.defaults import Setting, expected_facts, num_batches
from graphmill.jobs.config.stored_columns import edge_weights, unread
from graphmill.jobs.data.prepare_graph import how_to_make, not_there_yet
from graphmill.jobs.machine.memory_check import available_bytes
from graphmill.jobs.plan.batch_parts import BatchSize
from graphmill.jobs.plan.cost_model import Rates, all_reduce_bytes
from graphmill.jobs.plan.needs import Needs, requests_by_host, seen_needs
from graphmill.jobs.plan.run_plan import Plan, duration
from graphmill.jobs.plan.scoring_plan import PLANNED, Scoring, add_training, add_untried, on_top, planned_bytes, shared
from graphmill.jobs.plan.settings_search import Settings, Setup, search_settings, settings_table
from graphmill.jobs.plan.tries import Tried, Tries
from graphmill.jobs.resolve.resolve import Facts, ResolvedRun, resolve
from graphmill.jobs.resolve.typed_facts import NodeGraph, link_rows, predicted_nodes
from graphmill.jobs.subjects.graph_parallel import WholeGraphData, shard_memory
from graphmill.jobs.tasks.node_task import graph_inputs, num_rows
from graphmill.samplers.access.traffic import COLUMNS, Traffic
from graphmill.samplers.access.typed_router import whole_router
from graphmill.samplers.batches.typed_batch import node_tables, with_node_tables
from graphmill.samplers.drawing.protocol import Sampler
from graphmill.samplers.methods.registry import without_encodings
from graphmill.samplers.vocabulary.options import FullGraphOptions, NeighborOptions, RandomPartitionOptions
from graphmill.storage.format.dtypes import FeatureDtype
from graphmill.storage.format.encoding_names import EncodingOptions
from graphmill.storage.format.encodings import find_encoding
from graphmill.storage.format.feature_rows import FeatureRows
from graphmill.storage.format.manifest import NODE, Manifest
from graphmill.storage.format.source import SPLITS
from graphmill.storage.graph import StoredGraph

_GIGABIT = 1e9 / 8  # bytes per second
_LINKS = (1, 10)  # Gb/s
_MOST_POSITIONS = 16  # maximum number of positions in a step for which the plan counts the traffic of a batch
_LONGEST_LOOK_S = 2.5  # maximum processor time for drawing batches, to count which rows of other hosts they need
_CHUNK_NODES = 40_000  # a batch of all nodes is tried by a chunk of about this many of them


def plan_nodes(plan: Plan, graph: NodeGraph, resolved: ResolvedRun, task: Task) -> None:
    """Adds encoding, embeddings, splits, batches, memory and time to the plan."""
    baseline = resolved.config.baseline
    if left := unread(graph.manifest, resolved.config, resolved.inputs):
        plan.add("not read", left.partition(": ")[2])
    if resolved.encoding is not None:
        plan.add("encoding", _encoding_text(graph, resolved.encoding))
    plan.add_table(resolved, num_rows(graph.manifest, resolved.config.embeddings))
    if baseline.networks:
        tried = f"{baseline.configurations} of {len(search())} configurations each, trained before the run"
        plan.add("baselines", f"{', '.join(baseline.networks)}: {tried}")
    if "trees" in baseline.models:
        from graphmill.jobs.baselines.tree_baseline import node_tree_columns, plan_text

        own = predicted_nodes(graph, resolved.config).manifest.name if resolved.is_typed else NODE
        columns = node_tree_columns(whole_router(graph.whole()), own) if graph.is_here else None
        plan.add("trees", plan_text(baseline.configurations, columns))
    if resolved.is_full_graph:
        _add_whole_graph(plan, graph, resolved, task)
    else:
        _add_sampled(plan, graph.whole(), resolved, task)


def _encoding_text(graph: NodeGraph, encoding: EncodingOptions) -> str:
    if find_encoding(graph, encoding.name) is not None:
        return f"{encoding.name}, stored with the graph"
    ends = f" --which {encoding.which}" if encoding.kind == "laplacian" else ""
    made = f"graphmill encode {graph.url} {encoding.kind} --dim {encoding.dim}{ends}"
    return f"{encoding.name}, not stored yet: the first run computes it, or {made}; zeros stand for it here"


def _add_sampled(plan: Plan, graph: NodeGraph, resolved: ResolvedRun, task: Task) -> None:
    model, encoding = resolved.build_model(), resolved.encoding
    manifest = predicted_nodes(graph, resolved.config).manifest
    is_links = resolved.config.links is not None
    if not graph.is_here:
        plan.add_model(model)
        plan.add(
            "batch", f"not drawn: the graph lies at {graph.url}; plan with a copy on this machine to measure batches"
        )
        return
    missing = encoding is not None and find_encoding(graph, encoding.name) is None
    embeddings = resolved.config.embeddings

    def readable(options: Any) -> Any:
        """The options without an encoding, if that encoding is not stored yet."""
        return without_encodings(options) if missing else options

    def complete(batch: Any) -> Any:
        """The batch with zeros in place of embeddings and of an encoding that is not stored yet."""
        tables = node_tables(batch)
        if embeddings.width:
            of_types = {name: tables[name] for name in embeddings.node_types or ("",)}
            batch = with_columns(
                batch, {name: torch.zeros(len(own.node_id), embeddings.width) for name, own in of_types.items()}
            )
        if not missing or encoding is None:
            return batch
        dim, batch = encoding.dim, replace(batch, encoding_names=(encoding.name,))
        encoded = {
            name: replace(own, encoding=torch.zeros(len(own.node_id), dim)) for name, own in node_tables(batch).items()
        }
        return with_node_tables(batch, encoded)

    plan.add(
        "splits", _split_text(link_rows(graph, resolved.config).manifest if is_links else manifest, resolved.config)
    )
    evaluation = {split: readable(options) for split, options in resolved.evaluation.items()}
    plan.add("scoring", _scoring_text(resolved.config, evaluation["valid"], plan.workers))
    traffic = Traffic(manifest.num_partitions)
    data = OpenNodes(whole_router(graph, watch=traffic.watch))
    tried, of_epoch = add_training(
        plan,
        resolved,
        Tries(data, model, complete),
        readable(resolved.training),
        evaluation,
        task,
        "links" if is_links else "roots",
        _chunk_of(evaluation["valid"], graph.manifest),
    )
    if plan.hosts == 1:
        return
    _add_traffic(plan, data.sampler(readable(resolved.training), plan.micro_batches), traffic)
    options = resolved.training
    if isinstance(graph, StoredGraph) and isinstance(options, NeighborOptions) and manifest.feature_rows is not None:
        needs = seen_needs(graph, readable(resolved.training), plan.micro_batches, _LONGEST_LOOK_S)
        _add_settings(plan, manifest, resolved, tried, of_epoch, needs)


def _add_traffic(plan: Plan, sampler: Sampler, traffic: Traffic) -> None:
    """Adds the bytes that a batch and the gradients move between hosts. Counts them on one batch of each position."""
    sampler.sample(0, 0)  # the first call also requests the list of roots
    before, far_of, requests = traffic.by_partition(), np.zeros(2), 0.0
    requests_at, bytes_at = (COLUMNS.index(name) for name in ("local_requests", "local_bytes"))
    host_of = np.arange(len(before)) * plan.hosts // len(before)
    positions = range(min(plan.micro_batches, _MOST_POSITIONS))
    for position in positions:
        last = traffic.by_partition()
        sampler.sample(0, position)
        asked = (traffic.by_partition() - last)[:, [requests_at, bytes_at]]
        # A host without a partition requests everything from other hosts.
        own_host, by_host = position * plan.hosts // plan.micro_batches, requests_by_host(asked[:, 0], host_of)
        requests += sum(by_host) / len(positions)
        far_requests = sum(of_host for host, of_host in enumerate(by_host) if host != own_host)
        far_of += np.array([far_requests, asked[host_of != own_host, 1].sum()]) / len(positions)
    num_bytes = (traffic.by_partition() - before).sum(axis=0)[bytes_at] / len(positions)
    reduced = all_reduce_bytes(plan.parameters or 0, plan.workers)
    # A link carries both directions at the same time: a host receives rows for its workers while it sends rows to other hosts.
    batches = plan.on_a_host(plan.workers) * plan.most_batches(plan.micro_batches)
    link_bytes = batches * far_of[1] + reduced
    plan.add(
        "traffic",
        f"a batch asks {requests:,.0f} times for {size(num_bytes)}; with partitions and workers spread evenly over {plan.hosts} hosts, "
        f"{far_of[0]:,.0f} times and {size(far_of[1])} of it between hosts; gradients {size(reduced)} a worker and step; "
        f"a host's link is busy for {duration(link_bytes / _GIGABIT)} of a step at 1 Gb/s, {duration(link_bytes / (10 * _GIGABIT))} at 10 Gb/s",
    )


def _add_settings(
    plan: Plan, manifest: Manifest, resolved: ResolvedRun, tried: Tried, of_epoch: int, needs: Needs
) -> None:
    """Adds two results to the plan: the share of a batch's rows that hosts still send if rows are kept by plan, and the settings with the cheapest step."""
    config, rows = resolved.config, manifest.feature_rows
    assert rows is not None
    loader = config.loader
    now = Settings(plan.workers, loader.cache_bytes, loader.plan_bytes, rows.dtype, loader.shared_bytes)
    # If rows are not dense, their size in another type is known only after ingestion.
    types = get_args(FeatureDtype) if rows.layout == "dense" else ()
    smaller = [FeatureRows(rows.dim, dtype) for dtype in types]
    setup = Setup(
        needs=needs,
        micro_batches=plan.micro_batches,
        num_batches=of_epoch,
        num_epochs=resolved.fit.epochs,
        hosts=plan.hosts,
        cores=plan.cores,
        most_workers=plan.most_workers(resolved.workers),
        num_parameters=plan.parameters or 0,
        rates=replace(Rates(), train_step_s=tried.step_s, train_node_s=0.0, load_node_s=tried.draw_s / tried.nodes),
        loader_threads=loader.threads,
        row_bytes={rows.dtype: rows.row_bytes}
        | {one.dtype: one.row_bytes for one in smaller if one.row_bytes < rows.row_bytes},
        free_bytes=plan.free_bytes,
        host_bytes=lambda settings: plan.host_bytes(
            plan.parts | {PLANNED: planned_bytes(settings.cache_bytes, settings.plan_bytes)},
            settings.workers,
            settings.shared_bytes,
        ),
    )
    if loader.cache_bytes:
        host = setup.host(plan.workers)
        needed, fetched = sum(host.rows) / len(host.rows), setup.fetched_rows(now)
        room, row_bytes = min(1.0, setup.room(now) / host.num_nodes), needs.column_bytes + rows.row_bytes
        share = fetched / needed if needed else 0.0
        sharing = f" and {size(loader.shared_bytes)} that its workers share" if loader.shared_bytes else ""
        plan.add(
            "rows by plan",
            f"room for {room:.0%} of the rows on other hosts{sharing}: of a batch's {size(needed * row_bytes)} about {share:.0%} "
            f"travel, {size(fetched * row_bytes)}, and draws share their requests",
        )
    for gigabits in _LINKS:
        for line in settings_table(search_settings(setup, now, gigabits), setup, now, gigabits, size):
            plan.add("settings", line)


def _chunk_of(options: Any, manifest: Manifest) -> tuple[RandomPartitionOptions, BatchSize] | None:
    """(sampler options for a chunk of a batch of all nodes, size of that batch). None for small batches and for batches around roots."""
    if isinstance(options, FullGraphOptions):
        options = RandomPartitionOptions(
            1, options.root_splits, split_set=options.split_set, shuffle=False, encodings=options.encodings
        )
    if not isinstance(options, RandomPartitionOptions) or options.num_chunks is None:
        return None
    chunks = options.num_chunks  # an edge is in a chunk if both of its ends are
    times = manifest.num_nodes // (chunks * _CHUNK_NODES)
    if times < 2:
        return None
    relations = manifest.edge_types.items() if manifest.is_typed else [(None, manifest)]
    edges = {relation: row.num_edges // chunks**2 for relation, row in relations}
    return replace(options, num_chunks=times * chunks), BatchSize(manifest.num_nodes // chunks, edges)


def _split_text(manifest: Manifest, config: RunConfig) -> str:
    if config.links is not None and manifest.links is not None:
        held_out = (f"{name} {manifest.links.positives[SPLITS[name]]:,}" for name in ("valid", "test"))
        return f"{', '.join(held_out)} links held out"
    split, counts = manifest.measured.splits[config.data.split_set], []
    for name, code in SPLITS.items():
        labelled, num_nodes = split.num_labelled[code], split.num_nodes[code]
        counts.append(f"{name} {labelled:,}" + ("" if labelled == num_nodes else f" of {num_nodes:,}"))
    return f"{', '.join(counts)} labelled nodes"


def _scoring_text(config: RunConfig, valid: Any, workers: int) -> str:
    evaluation: Any = config.evaluation
    if evaluation.estimate is not None:
        return f"estimates: {evaluation.estimate}; {evaluation.kept}"
    if evaluation.how == "sampled":
        return "every split through its own roots' subgraphs"
    is_spread = isinstance(valid, FullGraphOptions) and workers > 1
    how = f", its nodes spread over {counted(workers, 'worker')}" if is_spread else " as one batch"
    return f"all splits by one pass over the whole graph{how}"


def _add_whole_graph(plan: Plan, graph: NodeGraph, resolved: ResolvedRun, task: Task) -> None:
    """Adds the plan of a graph-parallel run: memory and traffic by `graphmill.models.parallel_cost`, and time if one process can hold the graph."""
    from graphmill.models.parallel.shards import Shards
    from graphmill.models.parallel_cost import sent_bytes

    manifest, fit, workers = graph.manifest, resolved.fit, plan.workers
    memory = shard_memory(manifest, resolved)
    model = resolved.build_model()
    plan.add_model(model)
    needed = memory.check(workers)
    rows = Shards.even(manifest.num_nodes, workers)
    sent = [sent_bytes(one, rows, 0, 0, 0, symmetric=manifest.symmetric) for one in memory.layers]
    plan.add(
        "batch",
        f"the whole graph, about {manifest.num_nodes // workers:,} nodes on each of {counted(workers, 'worker')}",
    )
    plan.add_all_steps(f"1 an epoch, {fit.epochs:,}", 1, fit)
    plan.add(
        "traffic",
        f"{size(sum(sum(of_kind.values()) for of_kind in sent))} sent by a worker in a step, and rows of nodes with neighbors on other workers",
    )
    plan.add_memory({"shard": needed})
    chunk = _chunk_of(resolved.training, manifest)
    if not graph.is_here or (chunk is None and memory.worker_bytes(1) > available_bytes() // 2):
        plan.add("time", "not tried: the graph is elsewhere, or one process of this machine cannot hold it")
        return

    def kept(tried: Tried) -> Tried:
        """A worker's share of the time. Excludes the drawing, because a shard is drawn only once."""
        return replace(shared(tried, workers), draw_s=0.0)

    valid = resolved.evaluation["valid"]
    if chunk is None:
        opened = WholeGraphData(StoredNodes.of(graph, verify=False), resolved.training, memory).open()
        tries = Tries(opened, model)
        tried, passed = tries.train(opened.sampler(resolved.training, 1), task), tries.score(opened.sampler(valid, 1))
    else:
        data, of_valid = OpenNodes(whole_router(graph)), _chunk_of(valid, manifest)
        assert of_valid is not None
        tries = Tries(data, model)
        tried = tries.train(data.sampler(chunk[0], 1), task, chunk[1])
        passed = tries.score(data.sampler(of_valid[0], 1), size=of_valid[1])
    scoring = Scoring(kept(passed), 1, 0)
    more = f"{scoring.text(plan, fit, 1)}; tried by one process; {on_top(plan)}"
    plan.add_time(kept(tried), 1, fit.epochs, 1, more, scoring.whole_s(plan, fit, 1))


def plan_without_graph(plan: Plan, resolved: ResolvedRun, resources: Resources | None) -> None:
    """Adds the facts that are known before the graph exists. Only the options of a synthetic graph give its counts."""
    config, graph = resolved.config, resolved.config.data
    expected = not_there_yet(graph)
    made = f"not there yet: the first run makes it, or {how_to_make(graph)}"
    if expected is None:
        plan.add("graph", f"{graph.path}, {made}")
        return
    source, roots = expected
    counts = f"{source.num_nodes:,} nodes, about {source.num_edges:,} edges, {source.feature_dim} features"
    plan.add("graph", f"{source.name}, {made}; {counts}, {source.num_classes} classes")
    if resolved.encoding is not None:
        plan.add("encoding", f"{resolved.encoding.name}: the first run computes it")
    facts = expected_facts(source, roots["train"], graph.partitions)
    expected_bytes = 4 * source.num_nodes * (source.feature_dim + 8) + 4 * (source.num_edges or 0)
    known = facts if config.links is None else None
    resolved = resolve(
        config, Facts(graph_inputs(source, config), {}, resources, expected_bytes, known, edge_weights(source, config))
    )
    plan.place(resolved, graph.partitions)
    plan.add_chosen(resolved)
    held_out = f"links held out: {graph.links.valid:.0%} of the pairs valid, {graph.links.test:.0%} test"
    of_nodes = ", ".join(f"{name} about {count:,}" for name, count in roots.items())
    plan.add("splits", of_nodes if config.links is None else held_out)
    plan.add_model(resolved.build_model())
    if config.links is not None:
        plan.add("steps", "the sampler tells them once the graph is there")
        add_untried(plan, resolved, "graph")
        return
    try:
        setting = Setting(facts, resolved.micro_batches, resolved.config.options())
        expected_batches = resolved.micro_batches if resolved.is_full_graph else num_batches(setting)
    except GraphmillError as error:
        plan.add("steps", " ".join(str(error).split()))
    else:
        if expected_batches is None:
            plan.add("steps", "the sampler tells them once the graph is there")
        else:
            plan.add_steps(expected_batches, resolved.fit)
    add_untried(plan, resolved, "graph")
