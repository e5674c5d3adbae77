"""The body of every node-classification job: prepare the graph, serve it, train on it, compare with the baselines, report."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cluster.checkpoint import DATA
from cluster.options import ServerOptions, TrainOptions, WorkerOptions
from cluster.partition_server import connect, partition_servers
from cluster.placement import place
from cluster.run_directory import RunDirectory
from cluster.session import ray_session
from cluster.tasks import Classification
from cluster.train_spec import TrainSpec, full_evaluation
from cluster.trainer import train
from cluster.training_data import NodeData, NodeSamplerOptions, OpenNodes
from jobs.run.baselines import Baselines, compute_baselines
from jobs.run.node_options import BatchOptions, NodeJobOptions
from jobs.run.option_checks import at_least, check_fanouts, check_training_options
from jobs.run.prepare_graph import prepare_graph, store_encoding
from jobs.run.progress import progress
from jobs.run.training_run import (
    check_resume,
    choose_run_dir,
    follow,
    kept_line,
    open_run,
    print_scores,
    run_summary,
    session_options,
    train_options,
    wants_bfloat16,
    worker_options,
)
from jobs.run.verdict import end_of_run, judge
from samplers.options import LoaderOptions, NeighborOptions, Node2SubgraphOptions, RandomPartitionOptions
from samplers.random_partition import count_chunks
from samplers.router import Router, local_router
from storage.arrow_files import is_local
from storage.encoding_names import EncodingOptions
from storage.errors import ConfigError
from storage.graph import StoredGraph
from storage.manifest import Manifest
from storage.source import SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID

if TYPE_CHECKING:
    from jobs.run.whole_graph import WholeGraphData

_RANDOM_CHUNKS = 4  # of a random cut, where --chunks is not given
_SPLITS = (("train", SPLIT_TRAIN), ("valid", SPLIT_VALID), ("test", SPLIT_TEST))


def run_node_job(
    job: str,
    options: NodeJobOptions,
    config: Mapping[str, Any],
    build_model: Callable[[Manifest], torch.nn.Module],
    model_config: Callable[[Manifest], Mapping[str, Any]],
    *,
    encoding: EncodingOptions | None = None,
    whole_graph: Callable[[StoredGraph], "WholeGraphData"] | None = None,
) -> int:
    """Runs the job and returns its exit status: 0, or 1 where the model does not beat the baselines and `--require-baselines` says it must.

    `config` is the resolved configuration, saved with the run. `build_model` runs on every worker: its module takes a TorchBatch and
    returns logits [num_roots, num_classes], or a StepOutput with them. `encoding` is put on every batch; where the graph does not
    have it stored, it is computed first.
    `whole_graph` makes the data of a run whose one batch is the whole graph, spread over the workers (`jobs.run.whole_graph`); the model
    then takes its shards in place of a TorchBatch.
    """
    if options.plan:
        from jobs.plan.node_plan import plan_node_run  # it builds on this module

        return plan_node_run(job, options, build_model, model_config, encoding, whole_graph)
    config = {name: value for name, value in config.items() if name != "plan"}
    started = time.monotonic()
    fit, run_options = options.fit, options.run
    parts = node_parts(job, options, is_whole=whole_graph is not None)
    fitted, run_dir = parts.fitted, parts.run_dir
    graph = prepare_graph(options.graph)
    data = None if whole_graph is None else whole_graph(graph)
    check_graph(graph, options, parts)
    names = () if encoding is None else (encoding.name,)
    training = replace(parts.training, encodings=names)
    evaluation = {split: replace(sampler, encodings=names) for split, sampler in parts.evaluation.items()}
    if encoding is not None:
        graph = store_encoding(graph, encoding)
    manifest = graph.manifest
    config["graph"] = asdict(replace(options.graph, snapshot=manifest.snapshot))  # a resume opens the same one
    task = Classification(manifest.num_classes or 0, fit.metric, fit.label_smoothing)
    the_model_config = model_config(manifest)
    identity = run_identity(graph, options, is_whole=data is not None)
    if run_options.resume is not None:
        check_resume(run_dir, the_model_config, identity, fit.epochs)
    print(
        f"graph {manifest.name}: {manifest.num_nodes:,} nodes, {manifest.num_edges:,} edges, "
        f"{manifest.num_partitions} partitions at {graph.url}",
        flush=True,
    )
    if options.batch.estimate is not None:
        print(f"scores are estimates: {options.batch.estimate}; {options.batch.kept}", flush=True)
    with ray_session(session_options(run_options)) as session, partition_servers(graph, parts.servers) as servers:
        where = "a local Ray" if session.is_ours else f"the Ray cluster at {session.address}"
        workers = place(parts.workers)
        if data is not None and session.is_ours and workers.device == "cpu":  # a GPU's worker looks at it itself
            data.check_memory(graph, workers.most)
        print(f"{manifest.num_partitions} partition servers up on {where}", flush=True)
        if wants_bfloat16(fit, workers):
            fitted = replace(fitted, precision="bfloat16")
        router = connect(servers)
        if workers != parts.workers or not is_local(graph.filesystem):
            placed = replace(parts, workers=workers)
            _check_splits(manifest, options, placed)
            _check_samplers(router, options, placed)
        if fit.class_weights == "balanced":
            task = replace(task, class_weight=_balanced_weights(manifest, options.graph.split_set))
        print("fitting the baselines (majority class, features only)", flush=True)
        baselines = compute_baselines(router, options.graph.split_set, fit.metric, fit.seed)
        with open_run(run_dir, run_options, config) as run:
            spec = TrainSpec(
                data=NodeData(servers) if data is None else data,
                build_model=lambda: build_model(manifest),
                task=task,
                model_config=the_model_config,
                identity=identity,
                sampler=training if data is None else data.roots()["train"],
                evaluation=evaluation if data is None else data.roots(),
                is_estimate=options.batch.estimate is not None,
                keep_best=options.batch.keeps_best,
                options=fitted,
                loader=parts.loader,
            )
            with progress("training") as bar:
                result = train(spec, workers, run, follow(bar, fit.epochs, fit.metric, "nodes"))
            summary = _summary(job, graph, options, baselines, result, run, time.monotonic() - started)
            run.write_summary(summary)
    _print_summary(summary)
    return end_of_run(summary, require_baselines=run_options.require_baselines)


@dataclass(frozen=True)
class NodeParts:
    """What the options alone decide."""

    training: NodeSamplerOptions
    evaluation: Mapping[str, NodeSamplerOptions]  # by split
    is_whole: bool  # the whole graph is the one batch, spread over the workers
    loader: LoaderOptions
    workers: WorkerOptions
    servers: ServerOptions
    fitted: TrainOptions
    run_dir: Path

    @property
    def drawn(self) -> tuple[NodeSamplerOptions, ...]:
        """The samplers that batches are drawn by."""
        return () if self.is_whole else (self.training, *self.evaluation.values())

    @property
    def num_roots(self) -> int:
        """How many labelled nodes the training split needs at least."""
        return 1 if self.is_whole else self.workers.num_workers or 1


def node_parts(job: str, options: NodeJobOptions, *, is_whole: bool) -> NodeParts:
    """Raises ConfigError, before anything is prepared, for options that cannot work."""
    check_training_options(options.fit, options.run, options.batch)
    _check_graph_options(options)
    if options.batch.select_by == "estimate" and options.batch.estimate is None:
        raise ConfigError(
            "select_by: 'estimate' expects scores that are estimates (--evaluation full with --eval-chunks above 1), these are exact; "
            "leave out --select-by"
        )
    if options.run.require_baselines and options.batch.estimate is not None:
        raise ConfigError(
            f"require_baselines: expected exact scores, got estimates ({options.batch.estimate}); score the whole graph in one chunk "
            "(--evaluation full --eval-chunks 1), or leave out --require-baselines"
        )
    if is_whole:
        _check_whole_graph(options)
    return NodeParts(
        training=train_sampler(options),
        evaluation=evaluation_samplers(options),
        is_whole=is_whole,
        loader=LoaderOptions(
            threads=options.batch.loader_threads, prefetch=options.batch.prefetch, timeout_s=options.run.batch_timeout_s
        ),
        workers=worker_options(options.run),
        servers=ServerOptions(
            timeout_s=options.run.server_timeout_s, verify=options.graph.verify, local_reads=options.run.local_reads
        ),
        fitted=train_options(options.fit),
        run_dir=choose_run_dir(job, options.run),
    )


def _check_graph_options(options: NodeJobOptions) -> None:
    """Raises ConfigError for a graph that cannot be, or that, being the embedded one, would not have what is asked of it."""
    at_least(options.graph, "split_set", 0)
    if options.graph.graph is not None:
        return
    if options.graph.split_set > 0:
        raise ConfigError(
            f"split_set: the embedded graph has one split, number 0, got {options.graph.split_set}; leave out --split-set"
        )
    if options.fit.metric == "rocauc":
        raise ConfigError("metric rocauc: expected 2 classes, the embedded graph has 47; pass --metric accuracy")


def _check_whole_graph(options: NodeJobOptions) -> None:
    """Raises ConfigError for options that mean nothing where the whole graph is the batch."""
    useless = [f.name for f in fields(BatchOptions) if getattr(options.batch, f.name) != f.default]
    useless += ["accumulate"] if options.fit.accumulate != 1 else []
    if useless:
        names = ", ".join("--" + name.replace("_", "-") for name in useless)
        raise ConfigError(f"--parallel graph: the whole graph is the one batch of an epoch; leave out {names}")


def train_sampler(options: NodeJobOptions) -> NodeSamplerOptions:
    """What the training split's batches are drawn by. Raises ConfigError where the options contradict each other."""
    batch = options.batch
    if batch.sampler != "random-partition":
        return _root_sampler(options, SPLIT_TRAIN, shuffle=True)
    if batch.evaluation == "sampled":
        raise ConfigError(
            "evaluation: 'sampled' needs the neighbor sampler or node2subgraph; set --sampler neighbor or --evaluation full"
        )
    chunks = _RANDOM_CHUNKS if batch.chunks is None and batch.cut == "random" else batch.chunks
    if chunks is not None and batch.chunks_per_batch > chunks >= 1:
        raise ConfigError(
            f"chunks_per_batch: expected 1 to the number of chunks ({chunks}), got {batch.chunks_per_batch}; set --chunks-per-batch"
        )
    return RandomPartitionOptions(
        num_chunks=chunks,
        seed=options.fit.seed,
        split_set=options.graph.split_set,
        chunks_per_batch=batch.chunks_per_batch,
        cut=batch.cut,
    )


def _root_sampler(options: NodeJobOptions, split: int, *, shuffle: bool) -> NeighborOptions | Node2SubgraphOptions:
    """One split's roots through the sampler that the options name."""
    batch = options.batch
    common: dict[str, Any] = {
        "batch_size": batch.batch_size,
        "seed": options.fit.seed,
        "split_set": options.graph.split_set,
        "root_split": split,
        "shuffle": shuffle,
    }
    if batch.sampler == "node2subgraph":
        return Node2SubgraphOptions(
            max_hops=batch.max_hops, max_nodes=batch.max_nodes, fixed=batch.fixed_subgraphs, **common
        )
    check_fanouts(batch.fanouts)
    return NeighborOptions(fanouts=batch.fanouts, edges=batch.edges, **common)


def evaluation_samplers(options: NodeJobOptions) -> dict[str, NodeSamplerOptions]:
    """What each split is scored through."""
    batch = options.batch
    if batch.evaluation == "full":
        return {**full_evaluation(options.graph.split_set, batch.eval_chunks)}
    return {name: _root_sampler(options, code, shuffle=False) for name, code in _SPLITS}


def check_graph(graph: StoredGraph, options: NodeJobOptions, parts: NodeParts) -> None:
    """Raises ConfigError where the graph has not what the job needs.

    Samplers are tried where the graph's files are at hand; elsewhere once the servers are up.
    """
    manifest = graph.manifest
    if manifest.label_kind != "class":
        raise ConfigError(f"{graph.url}: expected class labels, the graph has {manifest.label_kind or 'none'}")
    if not manifest.feature_dim:
        raise ConfigError(
            f"{graph.url}: expected node features, the graph has none; ingest it with features (jobs/ingest.py --edge-list.features)"
        )
    if options.graph.split_set >= manifest.num_split_sets:
        raise ConfigError(
            f"{graph.url}: expected a split set below {manifest.num_split_sets}, got {options.graph.split_set}; set --split-set"
        )
    if options.fit.metric == "rocauc" and manifest.num_classes != 2:
        raise ConfigError(
            f"metric rocauc: expected 2 classes, the graph has {manifest.num_classes}; pass --metric accuracy"
        )
    if isinstance(parts.training, RandomPartitionOptions):
        count_chunks(parts.training, manifest)
    _check_splits(manifest, options, parts)
    if is_local(graph.filesystem):
        _check_samplers(local_router(graph), options, parts)


def run_identity(graph: StoredGraph, options: NodeJobOptions, *, is_whole: bool) -> dict[str, Any]:
    """What a run may not change between its parts. Partitions are in it only where they are the chunks: else no batch depends on them."""
    batch, manifest = options.batch, graph.manifest
    partitioned = batch.sampler == "random-partition" and batch.cut == "partitions"
    averaged = {} if options.fit.ema_decay is None else {"ema_decay": options.fit.ema_decay}
    return {
        **averaged,
        **({"partitions": manifest.content_hash} if partitioned else {}),
        "graph": manifest.name,
        "num_nodes": manifest.num_nodes,
        "num_edges": manifest.num_edges,
        "split_set": options.graph.split_set,
        "metric": options.fit.metric,
        "seed": options.fit.seed,
        **({"parallel": "graph"} if is_whole else {"evaluation": _evaluation_text(options)}),
        DATA: manifest.measured.data_digest(options.graph.split_set),
    }


def _evaluation_text(options: NodeJobOptions) -> str:
    """All that scores depend on beside the weights: scores of different kinds must not compete for the best epoch."""
    batch = options.batch
    if batch.evaluation == "full":
        return f"full, {batch.eval_chunks} chunks" + ("" if batch.keeps_best else ", the last epoch kept")
    how = f"sampled, {batch.batch_size} roots"
    if batch.sampler == "node2subgraph":
        return f"{how}, {batch.max_hops} hops, {batch.max_nodes} nodes, fixed {batch.fixed_subgraphs}"
    return f"{how}, fanouts {' '.join(map(str, batch.fanouts))}, edges {batch.edges}"


def _check_splits(manifest: Manifest, options: NodeJobOptions, parts: NodeParts) -> None:
    """Raises ConfigError where a split cannot be trained on or scored."""
    split = manifest.measured.splits[options.graph.split_set]
    for name, code in _SPLITS:
        labelled, size = split.num_labelled[code], split.num_nodes[code]
        needed = parts.num_roots if name == "train" else 1
        if labelled < needed:
            raise ConfigError(
                f"split {name}: expected at least {needed} labelled nodes (one root per worker), the graph has {labelled} "
                f"among {size}; lower --workers or ingest the graph with another split"
            )
        counts = split.class_counts[code] if split.class_counts else ()
        if options.fit.metric == "rocauc" and labelled in counts:
            raise ConfigError(
                f"split {name}: rocauc needs nodes of both classes, the graph has only class {counts.index(labelled)}; "
                "pass --metric accuracy or ingest the graph with another split"
            )


def _check_samplers(router: Router, options: NodeJobOptions, parts: NodeParts) -> None:
    """Raises ConfigError where a sampler's options do not fit the graph."""
    data = OpenNodes(router)
    for sampler_options in parts.drawn:
        data.sampler(sampler_options, parts.workers.num_workers or 1).num_batches  # noqa: B018 - checks its options


def _balanced_weights(manifest: Manifest, split_set: int) -> tuple[float, ...]:
    """Training nodes / (classes · nodes of the class), by class; 1 for a class without nodes."""
    classes = manifest.measured.splits[split_set].class_counts
    if classes is None:
        raise ConfigError(
            f"class weights: {manifest.name} has {manifest.num_classes} classes, more than are counted; "
            "set --class-weights none"
        )
    count = np.array(classes[SPLIT_TRAIN])
    weight = np.where(count > 0, count.sum() / (len(count) * np.maximum(count, 1)), 1.0)
    return tuple(weight.tolist())


def _summary(
    job: str,
    graph: StoredGraph,
    options: NodeJobOptions,
    baselines: Baselines,
    result: Mapping[str, Any],
    run: RunDirectory,
    wall_s: float,
) -> dict[str, Any]:
    metric = options.fit.metric
    scores = {split: values[metric] for split, values in result["scores"].items()}
    return {
        "job": job,
        "graph": graph.url,
        "graph_hash": graph.manifest.content_hash,
        "snapshot": graph.manifest.snapshot,
        **judge(metric, scores, asdict(baselines), estimate=options.batch.estimate),
        **run_summary(result, run, ("nodes_per_s", "edges_per_s")),
        "wall_s": wall_s,
    }


def _print_summary(summary: Mapping[str, Any]) -> None:
    print_scores(summary)
    print(
        f"\n{kept_line(summary)}, {summary['num_parameters']:,} parameters, "
        f"{summary['workers']} workers on {summary['device']}\n"
        f"{summary['nodes_per_s']:,.0f} nodes/s, {summary['edges_per_s']:,.0f} edges/s while training; "
        f"waited for batches {summary['wait_share']:.1%} of it; {summary['wall_s']:.0f} s in all\n"
        f"run directory: {summary['run_dir']}"
    )
