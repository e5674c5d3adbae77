"""`--plan` of a node-classification job: its graph, samplers and model, looked at in this process (jobs/plan/run_plan.py has the rest)."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from cluster.tasks import Classification
from cluster.training_data import NodeSamplerOptions, OpenNodes
from jobs.plan.run_plan import (
    Line,
    batch_line,
    count_parameters,
    memory_line,
    model_line,
    print_plan,
    process_bytes,
    ray_line,
    refused,
    run_lines,
    size,
    steps_line,
    time_line,
    training_memory,
    try_batches,
)
from jobs.plan.scoring_plan import Scoring, plan_scoring, try_pass
from jobs.run.memory_check import available_bytes
from jobs.run.node_job import NodeParts, check_graph, node_parts, run_identity
from jobs.run.node_options import NodeJobOptions
from jobs.run.prepare_graph import find_graph, how_to_make, not_there_yet
from jobs.run.training_run import check_resume
from samplers.options import RandomPartitionOptions
from samplers.plans import num_chunk_batches, num_root_batches
from samplers.router import local_router
from storage.arrow_files import is_local
from storage.encoding_names import EncodingOptions
from storage.encodings import find_encoding
from storage.errors import GraphmillError
from storage.graph import StoredGraph
from storage.source import SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID, SourceInfo

if TYPE_CHECKING:
    from jobs.run.whole_graph import WholeGraphData
    from storage.manifest import Manifest

_SPLITS = (("train", SPLIT_TRAIN), ("valid", SPLIT_VALID), ("test", SPLIT_TEST))
_SMALL = 5_000  # nodes: a batch of fewer is tried at once
_MORE = "starting Ray and the baselines come on top"


def plan_node_run(
    job: str,
    options: NodeJobOptions,
    build_model: "Callable[[Manifest], torch.nn.Module]",
    model_config: "Callable[[Manifest], Mapping[str, Any]]",
    encoding: EncodingOptions | None,
    whole_graph: "Callable[[StoredGraph], WholeGraphData] | None",
) -> int:
    """Prints the plan of `jobs.run.node_job.run_node_job` by the same arguments; 0. Raises what the run raises of its options alone."""
    process = process_bytes()
    parts = node_parts(job, options, is_whole=whole_graph is not None)
    graph = find_graph(options.graph)
    problems: list[str] = []
    if graph is None:
        lines, parameters = _without_graph(process, options, parts, build_model, encoding)
    else:
        with refused(problems):
            check_graph(graph, options, parts)
        with refused(problems):
            if options.run.resume is not None:
                identity = run_identity(graph, options, is_whole=parts.is_whole)
                check_resume(parts.run_dir, model_config(graph.manifest), identity, options.fit.epochs)
        lines, parameters = [graph_line(graph), _encoding_line(graph, encoding)], None
        if not problems:  # a graph that cannot be trained on has no model either
            model = build_model(graph.manifest)
            parameters = count_parameters(model)
            with refused(problems):
                if whole_graph is not None:
                    lines += _whole_graph_lines(process, graph, options, parts, model, whole_graph(graph))
                else:
                    lines += _sampled_lines(process, graph, options, parts, model, encoding)
    lines += [ray_line(options.run), *run_lines(parts.run_dir, options.fit, options.run, parameters)]
    print_plan(job, [line for line in lines if line[1]], problems)
    return 0


def graph_line(graph: StoredGraph) -> Line:
    m = graph.manifest
    num_bytes = sum(entry.num_bytes for entry in m.files.values())
    return (
        "graph",
        f"{m.name} at {graph.url}: {m.num_nodes:,} nodes, {m.num_edges:,} edges, {m.feature_dim} features, {m.num_classes or 'no'} "
        f"classes, {m.num_partitions} partitions, {size(num_bytes)}",
    )


def _encoding_line(graph: StoredGraph, encoding: EncodingOptions | None) -> Line:
    if encoding is None:
        return "encoding", ""
    if find_encoding(graph, encoding.name) is not None:
        return "encoding", f"{encoding.name}, stored with the graph"
    which = f" --which {encoding.which}" if encoding.kind == "laplacian" else ""
    made = f"python jobs/encode.py {graph.url} {encoding.kind} --dim {encoding.dim}{which}"
    return "encoding", f"{encoding.name}, not stored yet: the first run computes it, or {made}; zeros stand for it here"


def _sampled_lines(
    process: int,
    graph: StoredGraph,
    options: NodeJobOptions,
    parts: NodeParts,
    model: torch.nn.Module,
    encoding: EncodingOptions | None,
) -> list[Line]:
    if not is_local(graph.filesystem):
        return [
            model_line(model),
            ("batch", f"not drawn: the graph lies at {graph.url}; plan with a copy on this machine to measure batches"),
        ]
    fit, workers = options.fit, parts.workers.most
    router = local_router(graph)
    stored = encoding is not None and find_encoding(graph, encoding.name) is not None
    training = (
        replace(parts.training, encodings=(encoding.name,)) if encoding is not None and stored else parts.training
    )
    data = OpenNodes(router)
    sampler = data.sampler(training, workers)
    task = Classification(graph.manifest.num_classes or 0, fit.metric, fit.label_smoothing)

    def complete(batch: Any) -> Any:
        return batch if encoding is None or stored else _zeros(batch, encoding)

    tried = try_batches(data, sampler, model, task, complete=complete)
    # With the encodings that can be read here, as the training's sampler has them.
    evaluation = {split: replace(one, encodings=training.encodings) for split, one in parts.evaluation.items()}
    scored = {split: data.sampler(one, workers) for split, one in evaluation.items()}
    smaller = [data.sampler(one, workers) for one in _parts_of_whole(evaluation["valid"], graph.manifest.num_nodes)]
    scoring = plan_scoring(data, scored, workers, model, smaller=smaller, complete=complete)
    memory = training_memory(process, count_parameters(model), tried, fit, parts.loader, workers)
    memory |= scoring.memory(parts.loader.prefetch)
    threads = parts.loader.threads
    return [
        ("splits", _split_text(graph.manifest, options.graph.split_set)),
        ("scoring", _scoring_text(options)),
        model_line(model),
        steps_line(sampler.num_batches, workers, fit),
        batch_line(tried, "roots"),
        memory_line(memory, workers, graph.manifest.num_partitions, options.run.object_store_gb),
        time_line(
            tried,
            sampler.num_batches // workers,
            workers,
            fit.epochs,
            threads,
            f"{scoring.text(workers, fit, threads)}; {_MORE}",
        ),
    ]


def _parts_of_whole(valid: NodeSamplerOptions, num_nodes: int) -> list[RandomPartitionOptions]:
    """Of scoring on the whole graph, an eighth and a quarter of its batch; none where the batch is small, or draws by roots."""
    if (
        not isinstance(valid, RandomPartitionOptions)
        or valid.num_chunks is None
        or num_nodes < _SMALL * valid.num_chunks
    ):
        return []
    return [replace(valid, num_chunks=times * valid.num_chunks) for times in (8, 4)]


def _zeros(batch: Any, encoding: EncodingOptions) -> Any:
    zeros = torch.zeros(len(batch.node_id), encoding.dim)
    return replace(batch, encoding=zeros, encoding_names=(encoding.name,))


def _split_text(manifest: "Manifest", split_set: int) -> str:
    split, counts = manifest.measured.splits[split_set], []
    for name, code in _SPLITS:
        labelled, size = split.num_labelled[code], split.num_nodes[code]
        counts.append(f"{name} {labelled:,}" + ("" if labelled == size else f" of {size:,}"))
    return f"{', '.join(counts)} labelled nodes"


def _scoring_text(options: NodeJobOptions) -> str:
    batch = options.batch
    if batch.estimate is not None:
        return f"estimates: {batch.estimate}; {batch.kept}"
    if batch.evaluation == "sampled":
        return "every split through its own roots' subgraphs"
    return "every split on the whole graph as one batch"


def _whole_graph_lines(
    process: int,
    graph: StoredGraph,
    options: NodeJobOptions,
    parts: NodeParts,
    model: torch.nn.Module,
    data: "WholeGraphData",
) -> list[Line]:
    """Where the whole graph is the batch: memory and traffic by `models.parallel.cost`; time, where one process can hold it."""
    from models.parallel.cost import sent_bytes
    from models.parallel.shards import Shards

    manifest, fit, workers = graph.manifest, options.fit, parts.workers.most
    needed = data.check_memory(graph, workers)
    sent = sent_bytes(data.model, Shards.even(manifest.num_nodes, workers), 0, 0, 0, symmetric=manifest.symmetric)
    lines = [
        model_line(model),
        ("batch", f"the whole graph, about {manifest.num_nodes // workers:,} nodes on each of {workers} workers"),
        ("steps", f"1 an epoch, {fit.epochs:,} in {fit.epochs:,} epochs"),
        (
            "traffic",
            f"{size(sum(sent.values()))} sent by a worker in a step, and rows of nodes with neighbors on other workers",
        ),
        memory_line(
            {"process": process, "shard": needed}, workers, manifest.num_partitions, options.run.object_store_gb
        ),
    ]
    if not is_local(graph.filesystem) or data.worker_bytes(graph, 1) > available_bytes() // 2:
        return [*lines, ("time", "not tried: one process of this machine cannot hold the whole graph")]
    opened = data.open()
    task = Classification(manifest.num_classes or 0, fit.metric, fit.label_smoothing)
    tried = try_batches(opened, opened.sampler(data.roots()["train"], 1), model, task)
    share = replace(tried, step_s=tried.step_s / workers, draw_s=0.0)
    passed = try_pass(opened, opened.sampler(data.roots()["valid"], 1), model)
    passed = replace(passed, step_s=passed.step_s / workers, draw_s=0.0)
    scoring = Scoring(passed, dict.fromkeys(data.roots(), 1), is_scaled=False)
    more = f"{scoring.text(workers, fit, 1)}; tried whole, by one process; {_MORE}"
    return [*lines, time_line(share, 1, workers, fit.epochs, 1, more)]


def _without_graph(
    process: int,
    options: NodeJobOptions,
    parts: NodeParts,
    build_model: "Callable[[Manifest], torch.nn.Module]",
    encoding: EncodingOptions | None,
) -> tuple[list[Line], int | None]:
    """What is known before the graph is made: of the embedded one its options tell the counts, of others nothing does."""
    expected = not_there_yet(options.graph)
    made = f"not there yet: the first run makes it, or {how_to_make(options.graph)}"
    if expected is None:
        return [("graph", f"{options.graph.graph}, {made}")], None
    source, roots = expected
    lines = [_expected_line(source, made)]
    if encoding is not None:
        lines.append(("encoding", f"{encoding.name}: the first run computes it"))
    anyhow: Any = source  # has the widths that a manifest has
    model = build_model(anyhow)
    parameters, workers = count_parameters(model), parts.workers.most
    lines += [("splits", ", ".join(f"{name} about {count:,}" for name, count in roots.items())), model_line(model)]
    try:
        lines.append(
            steps_line(_expected_batches(parts, roots["train"], options.graph.partitions), workers, options.fit)
        )
    except GraphmillError as error:
        lines.append(("steps", " ".join(str(error).split())))
    memory = training_memory(process, parameters, None, options.fit, parts.loader, workers)
    lines += [
        ("batch", "drawn and timed once the graph is there, as is scoring; neither is in the memory yet"),
        memory_line(memory, workers, options.graph.partitions, options.run.object_store_gb),
    ]
    return lines, parameters


def _expected_line(source: SourceInfo, made: str) -> Line:
    return (
        "graph",
        f"{source.name}, {made}; {source.num_nodes:,} nodes, about {source.num_edges:,} edges, {source.feature_dim} features, "
        f"{source.num_classes} classes",
    )


def _expected_batches(parts: NodeParts, num_roots: int, partitions: int) -> int:
    training, workers = parts.training, parts.workers.most
    if parts.is_whole:
        return workers
    if isinstance(training, RandomPartitionOptions):
        chunks = training.num_chunks or partitions
        return num_chunk_batches(-(-chunks // training.chunks_per_batch), workers)
    return num_root_batches(num_roots, training.batch_size, workers)
