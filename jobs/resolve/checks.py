"""Checks the options of a run against each other, before the data is opened. Each check is a function of the configuration and returns an error line, or
None."""

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from graphmill.cluster.options import TrainOptions
from graphmill.core.errors import ConfigError
from graphmill.jobs.config.config import NodeEvaluationOptions, RunConfig, config_tree, read_config
from graphmill.jobs.config.registry import GRAPH_PARALLEL, PLACEHOLDERS, find_kind, model_config, sharding
from graphmill.models.options.features import Features

if TYPE_CHECKING:
    from graphmill.cluster.runs.run_store import RunStore
    from graphmill.jobs.config.config import RunOptions
from graphmill.samplers.vocabulary.options import LoaderOptions, SubgraphOptions, TypedOptions


def _fanouts_are_layers(config: RunConfig) -> str | None:
    row, options = config.model.row("model", config.kind), config.sampler.options
    fanouts, layers = getattr(options, "fanouts", None), getattr(config.model.options, "num_layers", None)
    # Induced edges make one graph, which any number of layers can read.
    if (
        "model.num_layers" in config.open
        or row is None
        or not row.layers_are_hops
        or fanouts is None
        or config.run.parallel == "graph"
        or (isinstance(options, TypedOptions) and not row.takes_types)
        or getattr(options, "edges", "") == "induced"
        or len(fanouts) == layers
    ):
        return None
    return (
        f"fanouts needs one entry per layer: {layers} layers, got {fanouts}; set --sampler.fanouts or --model.num_layers, "
        "or --sampler.edges induced"
    )


def _hops_find_neighbors(config: RunConfig) -> str | None:
    fanouts = getattr(config.sampler.options, "fanouts", ())
    if getattr(config.sampler.options, "relation_fanouts", None):  # a fan-out of 0 then leaves out all other relations
        return None
    if all(fanout > 0 or fanout == -1 for fanout in fanouts):
        return None
    return f"fanouts: expected at least 1 per hop, or -1 for all neighbors, got {fanouts}; set --sampler.fanouts"


def _subgraphs_of_roots(config: RunConfig) -> str | None:
    if sharding(config.model.options) != "roots":
        return None
    own, options = config.model.is_foreign, config.sampler.options
    if config.evaluation.how == "sampled" and (own or isinstance(options, SubgraphOptions)):
        return None
    name = config.model.name if own else config.model.name.upper()
    typed = "typed-" if isinstance(options, TypedOptions) else ""
    return (
        f"sampler: {name} takes one subgraph per root, got {config.sampler.name} with {config.evaluation.how} evaluation; "
        f"set --sampler {typed}node2subgraph or {typed}ppr, and --evaluation sampled"
    )


def _sampled_scores_have_roots(config: RunConfig) -> str | None:
    if config.evaluation.how != "sampled":
        return None
    if config.sampler.is_foreign and not hasattr(config.sampler.options, "root_split"):
        return f"evaluation: 'sampled' needs a sampler with the field root_split, {config.sampler.name} has none; add it, or set --evaluation full"
    if config.sampler.name not in ("random-partition", "saint"):
        return None
    return "evaluation: 'sampled' needs a sampler of roots; set --sampler neighbor or --evaluation full"


def _patience_needs_scores_that_choose(config: RunConfig) -> str | None:
    if config.fit.patience is None or config.evaluation.keeps_best:
        return None
    return (
        f"patience: expected scores that choose the best epoch, got estimates ({config.evaluation.estimate}); set --fit.patience none, or "
        "--evaluation.select_by estimate"
    )


def _links_fit_the_rest(config: RunConfig) -> str | None:
    links, evaluation, sampler = config.links, config.evaluation, config.sampler.options
    if links is None:
        return None
    if config.run.parallel == "graph":
        return "--run.parallel graph: expected a task on nodes, got links; leave it out"
    if config.fit.steps is not None:
        return f"steps: a run on links counts epochs, got --fit.steps {config.fit.steps}; leave it out and set --fit.epochs"
    if config.baseline.models:
        return f"baseline: expected classification of nodes, got links and {' '.join(config.baseline.models)}; leave out --baseline"
    if getattr(sampler, "batch_size", None) != getattr(type(sampler), "batch_size", None):
        return "batch_size: a batch of links has --task.batch_size of them; leave out --sampler.batch_size"
    if evaluation.how == "full" and evaluation.chunks > 1:
        return f"chunks: links are scored on the whole graph in one chunk, or sampled, got {evaluation.chunks}; set --evaluation sampled"
    if evaluation.how == "sampled" and links.ranking == "all":
        return "ranking: 'all' nodes as rivals need the states of all, got sampled evaluation; set --evaluation full or --task.ranking sampled"
    return None


def _the_past_is_sampled(config: RunConfig) -> str | None:
    options = config.sampler.options
    if getattr(options, "time", "all") == "all":
        return None
    if config.links is not None and (options.time, options.as_of) != ("before", None):
        return f"time: links expect 'before', without as_of, for a link is an edge of its own time, got {options.time!r}; set --sampler.time before"
    if config.evaluation.how == "full":
        return f"time: {options.time!r} expects scores through the sampler, for the whole graph has edges of all times; set --evaluation sampled"
    if config.baseline.models:
        return (
            f"baseline: expected edges of all times, which {' '.join(config.baseline.models)} would hear, got --sampler.time {options.time}; "
            "leave out --baseline"
        )
    return None


def _baselines_need_exact_scores(config: RunConfig) -> str | None:
    if not config.run.require_baselines or config.evaluation.estimate is None:
        return None
    return (
        f"require_baselines: expected exact scores, got estimates ({config.evaluation.estimate}); score the whole graph in one chunk "
        "(--evaluation full --evaluation.chunks 1), or leave out --run.require_baselines"
    )


def _whole_graph_has_no_batches(config: RunConfig) -> str | None:
    if config.run.parallel != "graph":
        return None
    row = config.model.row("model", config.kind)
    if row is None or not row.graph_parallel:
        return f"--run.parallel graph: expected a model that can be spread over workers ({GRAPH_PARALLEL}), got {config.model.name}; set --model"
    usual = read_config(config_tree("nodes", {"model": config.model.name}))
    defaults: dict[str, tuple[object, ...]] = {
        "--sampler": (config.sampler, usual.sampler),
        "--evaluation": (config.evaluation, NodeEvaluationOptions(), usual.evaluation),
        "--loader": (config.loader, LoaderOptions()),
        "--fit.micro_batches": (config.fit.micro_batches, TrainOptions().micro_batches),
    }
    useless = [flag for flag, (value, *usual_ones) in defaults.items() if value not in usual_ones]
    if not useless:
        return None
    return f"--run.parallel graph: the whole graph is the one batch of an epoch; leave out {', '.join(useless)}"


def _shards_hear_their_neighbors(config: RunConfig) -> str | None:
    local = getattr(config.model.options, "local", None)
    if config.run.parallel != "graph" or local is None:
        return None
    if getattr(config.model.options, "block", "geco") == "hyena":
        return "--run.parallel graph: expected GECO's own block, hyena computes all nodes in one process; set --model.block geco"
    if local.block in ("gated-gcn", "gatv2"):
        return f"--run.parallel graph: expected a local block that keeps no row of an edge (lcb, gcn, sage, gat, gin, appnp), got {local.block}; set --model.local.block"
    return None


def _virtual_nodes_are_normalised(config: RunConfig) -> str | None:
    many = config.sampler.is_foreign or isinstance(config.sampler.options, SubgraphOptions)
    if not getattr(config.model.options, "virtual_node", False) or many:
        return None
    return (
        f"virtual_node: expected batches of several graphs, for the one virtual node of a graph has no variance to normalise by, got --sampler {config.sampler.name}; "
        "leave out --model.virtual_node"
    )


def _embeddings_fit_the_rest(config: RunConfig) -> str | None:
    if not config.embeddings.width:
        return None
    conflicts = {
        "--run.parallel graph": config.run.parallel == "graph",
        "--fit.ema_decay": config.fit.ema_decay is not None,
        "--fit.start_from": config.fit.start_from is not None,
        "--baseline": bool(config.baseline.models),
    }
    for flag, is_set in conflicts.items():
        if is_set:
            return f"width: a table of embeddings goes without {flag}, got both; leave out one of them"
    from graphmill.cluster.runs.run_store import RunStore  # loads pyarrow

    for place in (config.run.dir, config.run.resume):
        if place is not None and not RunStore(place).is_local:
            return (
                f"{place}: expected a run's directory in a folder, where the owners of embeddings write their rows, got one on an object store; "
                "set --run.dir to a folder that all hosts write"
            )
    if config.workers.keep_checkpoints < 2:
        return "keep_checkpoints: expected at least 2 with embeddings, whose owners may begin at the checkpoint before the newest, got 1; set --workers.keep_checkpoints 2"
    return None


def _is_of_one_graph(config: RunConfig) -> str | None:
    about = find_kind(config.kind).about
    if config.embeddings.width:
        return f"width: expected the nodes of one graph, got {about} and --embeddings.width {config.embeddings.width}; leave it out"
    if config.baseline.networks:
        return f"baseline: expected the nodes of one graph, or trees, got {about} and {' '.join(config.baseline.networks)}; leave out --baseline"
    if config.servers.label_selector:
        return f"label_selector: expected one graph, whose partitions servers hold, got {about}; leave out --servers.label_selector"
    if config.servers.range_reads:
        return f"range_reads: expected the nodes of one graph, whose features stay on its store, got {about}; leave out --servers.range_reads"
    return None


def _embedded_graph_has_47_classes(config: RunConfig) -> str | None:
    if config.data.path is not None:
        return None
    if config.task.name in ("binary", "regression"):
        return f"task {config.task.name}: expected nodes with other labels, the embedded graph's have one class; set --task classification"
    if config.metric != "rocauc":
        return None
    return "metric rocauc: expected 2 classes, the embedded graph has 47; set --task.metric accuracy"


def _chunks_per_batch(config: RunConfig) -> str | None:
    options = config.sampler.options
    chunks = getattr(options, "num_chunks", None)
    together = getattr(options, "chunks_per_batch", 1)
    if chunks is None or together <= chunks:
        return None
    return f"chunks_per_batch: expected 1 to the number of chunks ({chunks}), got {together}; set --sampler.chunks_per_batch"


def _sums_can_be_corrected(config: RunConfig) -> str | None:
    if not getattr(config.sampler.options, "corrected", False) or config.model.is_foreign or config.sampler.is_foreign:
        return None
    block = getattr(config.model.options, "local", None)
    name = config.model.name
    if name in ("geco", "sage", "gcn", "rsage") and getattr(block, "block", "lcb") not in ("gat", "gatv2", "gated-gcn"):
        return None
    model = f"{name} with --model.local {block.block}" if name == "geco" and block is not None else name
    return (
        f"corrected: expected a model that sums over neighbors (geco, sage, gcn, rsage), got {model}, which weighs them itself; "
        "set --sampler.corrected no"
    )


def _edges_are_read(config: RunConfig) -> str | None:
    if not config.data.edge_features or (
        config.model.is_foreign and getattr(config.model.options, "reads_edges", True)
    ):
        return None
    if config.model.is_foreign:
        return f"--data.edge_features: expected a model that reads features of edges, got {config.model.name}, whose forward has no edge_attr; add it"
    if config.run.parallel == "graph":
        return "--data.edge_features: expected batches, got --run.parallel graph, which sums over neighbors alone; leave out one of them"
    if getattr(config.sampler.options, "corrected", False):
        return "corrected: expected sums over neighbors, got models that read each edge (--data.edge_features); set --sampler.corrected no"
    name, options = config.model.name, config.model.options
    if not {"edge", "edge_dim", "edge_dims"} & set(options.GIVEN):
        return f"--data.edge_features: expected a model that reads features of edges, got {name}; set --model sage, gcn, gat, geco, grit, ppgt, tokengt or primphormer"
    if "model.local.block" in config.open:  # a later step chooses a block that reads edge features
        return None
    try:
        model_config(config.model, replace(PLACEHOLDERS["nodes"], edge=Features(dim=1)))
    except ConfigError as error:
        return f"--data.edge_features: {error}"
    return None


def _trackers_are_installed(config: RunConfig) -> str | None:
    from graphmill.jobs.records.trackers import missing_tracker

    return missing_tracker(config.run.track)


OF_ONE_GRAPH = (
    _hops_find_neighbors,
    _fanouts_are_layers,
    _subgraphs_of_roots,
    _sampled_scores_have_roots,
    _links_fit_the_rest,
    _the_past_is_sampled,
    _patience_needs_scores_that_choose,
    _baselines_need_exact_scores,
    _whole_graph_has_no_batches,
    _shards_hear_their_neighbors,
    _chunks_per_batch,
    _sums_can_be_corrected,
    _virtual_nodes_are_normalised,
    _embeddings_fit_the_rest,
    _edges_are_read,
    _embedded_graph_has_47_classes,
    _trackers_are_installed,
)
OF_OTHERS = (
    _hops_find_neighbors,
    _fanouts_are_layers,
    _patience_needs_scores_that_choose,
    _baselines_need_exact_scores,
    _whole_graph_has_no_batches,
    _chunks_per_batch,
    _sums_can_be_corrected,
    _is_of_one_graph,
    _trackers_are_installed,
)


def choose_run_dir(job: str, options: "RunOptions") -> "RunStore":
    """The run's directory. Raises before any work if the directory cannot be used."""
    from graphmill.cluster.runs.run_directory import check_free, load_config  # loads pyarrow
    from graphmill.cluster.runs.run_store import RunStore

    if options.resume is not None:
        place = RunStore(options.resume)
        load_config(place)
        return place
    place = RunStore(options.dir or f"runs/{job}-{time.strftime('%Y%m%d-%H%M%S')}")
    place.check_bucket()
    check_free(place)
    return place


def check_device(device: str) -> None:
    """Raises ConfigError for a device that torch does not know or that this machine does not have."""
    import torch

    try:
        known = torch.device(device)
    except RuntimeError:
        raise ConfigError(f"device: expected cpu or cuda, got {device!r}; set --device cpu") from None
    if known.type == "cuda" and (known.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device: {device} is not there, PyTorch sees {torch.cuda.device_count()}; set --device cpu")
    if known.type not in ("cpu", "cuda"):
        raise ConfigError(f"device: expected cpu or cuda, got {device!r}; set --device cpu")
