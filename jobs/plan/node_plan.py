"""`--plan` of a node-classification job: its graph, samplers and model, looked at in this process (jobs/plan/run_plan.py has the rest)."""

from dataclasses import replace
from typing import Any

import torch

from cluster.placement import Resources
from cluster.training_data import OpenNodes
from jobs.plan.run_plan import (
    Line,
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
    try_batches,
)
from jobs.plan.scoring_plan import ON_TOP, Scoring, training_lines, try_pass, untried_lines
from jobs.run.config import RunConfig
from jobs.run.memory_check import available_bytes
from jobs.run.node_run import (
    check_run,
    node_inputs,
    resolve_nodes,
    whole_graph_data,
)
from jobs.run.node_task import node_task
from jobs.run.prepare_graph import find_graph, how_to_make, not_there_yet
from jobs.run.registry import PLACEHOLDERS
from jobs.run.resolve import SPLITS, Facts, ResolvedRun, resolve
from jobs.run.training_run import check_resume, choose_run_dir, known_resources
from samplers.options import DEFAULT_CHUNKS, RandomPartitionOptions
from samplers.plans import num_chunk_batches, num_root_batches
from samplers.router import local_router
from storage.arrow_files import is_local
from storage.encoding_names import EncodingOptions
from storage.encodings import find_encoding
from storage.errors import GraphmillError
from storage.graph import StoredGraph
from storage.manifest import Manifest

_SMALL = 5_000  # nodes: a batch of fewer is tried at once


def plan_nodes(job: str, config: RunConfig) -> int:
    """Prints the plan of `jobs.run.node_run.run_nodes`; 0. Raises what the run raises of its options alone."""
    process, resources = process_bytes(), known_resources(config)
    resolved = resolve(config, Facts(PLACEHOLDERS["nodes"], {}, resources))
    run_dir = choose_run_dir(job, config.run)
    graph = find_graph(config.data)
    problems: list[str] = []
    if graph is None:
        lines, parameters = _without_graph(process, resolved, resources)
    else:
        lines, parameters = [graph_line(graph), _encoding_line(graph, resolved.encoding)], None
        with refused(problems):
            resolved = resolve_nodes(config, graph, resources)
            check_run(graph, resolved)
        with refused(problems):
            if config.run.resume is not None and not problems:
                check_resume(run_dir, resolved.architecture, resolved.identity, config.fit.epochs)
        if not problems:  # a graph that cannot be trained on has no model either
            model = resolved.build_model()
            parameters = count_parameters(model)
            with refused(problems):
                told = _whole_graph_lines if resolved.is_full_graph else _sampled_lines
                lines += told(process, graph, resolved, model)
    lines += [ray_line(config.ray), *run_lines(run_dir, config, parameters)]
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


def _sampled_lines(process: int, graph: StoredGraph, resolved: ResolvedRun, model: torch.nn.Module) -> list[Line]:
    if not is_local(graph.filesystem):
        return [
            model_line(model),
            ("batch", f"not drawn: the graph lies at {graph.url}; plan with a copy on this machine to measure batches"),
        ]
    encoding, data, manifest = resolved.encoding, OpenNodes(local_router(graph)), graph.manifest
    missing = encoding is not None and find_encoding(graph, encoding.name) is None

    def readable(options: Any) -> Any:
        """Without an encoding that is not stored yet."""
        return replace(options, encodings=()) if missing else options

    def complete(batch: Any) -> Any:
        """With zeros for an encoding that is not stored yet."""
        if not missing or encoding is None:
            return batch
        zeros = torch.zeros(len(batch.node_id), encoding.dim)
        return replace(batch, encoding=zeros, encoding_names=(encoding.name,))

    evaluation = {split: readable(one) for split, one in resolved.evaluation.items()}
    return [
        ("splits", _split_text(manifest, resolved.config.data.split_set)),
        ("scoring", _scoring_text(resolved.config)),
        *training_lines(
            process,
            resolved,
            data,
            readable(resolved.training),
            evaluation,
            model,
            node_task(resolved, manifest),
            "roots",
            servers=manifest.num_partitions,
            smaller=_parts_of_whole(evaluation["valid"], manifest.num_nodes),
            complete=complete,
        ),
    ]


def _parts_of_whole(valid: Any, num_nodes: int) -> list[RandomPartitionOptions]:
    """Of scoring on the whole graph, an eighth and a quarter of its batch; none where the batch is small, or draws by roots."""
    if (
        not isinstance(valid, RandomPartitionOptions)
        or valid.num_chunks is None
        or num_nodes < _SMALL * valid.num_chunks
    ):
        return []
    return [replace(valid, num_chunks=times * valid.num_chunks) for times in (8, 4)]


def _split_text(manifest: Manifest, split_set: int) -> str:
    split, counts = manifest.measured.splits[split_set], []
    for name, code in SPLITS.items():
        labelled, size = split.num_labelled[code], split.num_nodes[code]
        counts.append(f"{name} {labelled:,}" + ("" if labelled == size else f" of {size:,}"))
    return f"{', '.join(counts)} labelled nodes"


def _scoring_text(config: RunConfig) -> str:
    how: Any = config.evaluation
    if how.estimate is not None:
        return f"estimates: {how.estimate}; {how.kept}"
    if how.how == "sampled":
        return "every split through its own roots' subgraphs"
    return "every split on the whole graph as one batch"


def _whole_graph_lines(process: int, graph: StoredGraph, resolved: ResolvedRun, model: torch.nn.Module) -> list[Line]:
    """Where the whole graph is the batch: memory and traffic by `models.parallel.cost`; time, where one process can hold it."""
    from models.parallel.cost import sent_bytes
    from models.parallel.shards import Shards

    config, data = resolved.config, whole_graph_data(graph, resolved)
    manifest, fit, workers = graph.manifest, resolved.fit, resolved.workers.most
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
            {"process": process, "shard": needed}, workers, manifest.num_partitions, config.ray.object_store_gb
        ),
    ]
    if not is_local(graph.filesystem) or data.worker_bytes(graph, 1) > available_bytes() // 2:
        return [*lines, ("time", "not tried: one process of this machine cannot hold the whole graph")]
    opened = data.open()
    task = node_task(resolved, manifest)
    tried = try_batches(opened, opened.sampler(data.roots()["train"], 1), model, task)
    share = replace(tried, step_s=tried.step_s / workers, draw_s=0.0)
    passed = try_pass(opened, opened.sampler(data.roots()["valid"], 1), model)
    passed = replace(passed, step_s=passed.step_s / workers, draw_s=0.0)
    scoring = Scoring(passed, dict.fromkeys(data.roots(), 1), is_scaled=False)
    more = f"{scoring.text(workers, fit, 1)}; tried whole, by one process; {ON_TOP}"
    return [*lines, time_line(share, 1, workers, fit.epochs, 1, more)]


def _without_graph(process: int, resolved: ResolvedRun, resources: Resources | None) -> tuple[list[Line], int | None]:
    """What is known before the graph is made: of the embedded one its options tell the counts, of others nothing does."""
    config, encoding = resolved.config, resolved.encoding
    graph = config.data
    expected = not_there_yet(graph)
    made = f"not there yet: the first run makes it, or {how_to_make(graph)}"
    if expected is None:
        return [("graph", f"{graph.path}, {made}")], None
    source, roots = expected
    counts = f"{source.num_nodes:,} nodes, about {source.num_edges:,} edges, {source.feature_dim} features"
    lines = [("graph", f"{source.name}, {made}; {counts}, {source.num_classes} classes")]
    if encoding is not None:
        lines.append(("encoding", f"{encoding.name}: the first run computes it"))
    resolved = resolve(config, Facts(node_inputs(source), {}, resources))
    model = resolved.build_model()
    parameters, workers = count_parameters(model), resolved.workers.most
    lines += [("splits", ", ".join(f"{name} about {count:,}" for name, count in roots.items())), model_line(model)]
    try:
        lines.append(steps_line(_expected_batches(resolved, roots["train"], graph.partitions), workers, resolved.fit))
    except GraphmillError as error:
        lines.append(("steps", " ".join(str(error).split())))
    lines += untried_lines(process, resolved, parameters, "graph", graph.partitions)
    return lines, parameters


def _expected_batches(resolved: ResolvedRun, num_roots: int, partitions: int) -> int:
    training, workers = resolved.training, resolved.workers.most
    if resolved.is_full_graph:
        return workers
    if isinstance(training, RandomPartitionOptions):
        chunks = training.num_chunks or (partitions if training.cut == "partitions" else DEFAULT_CHUNKS)
        return num_chunk_batches(-(-chunks // training.chunks_per_batch), workers)
    return num_root_batches(num_roots, training.batch_size, workers)
