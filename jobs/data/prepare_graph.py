"""Opens the stored graph for `--data`: a prepared graph, an OGB set or the synthetic default. An OGB set and the default are prepared by the first run only."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from graphmill.core.errors import ConfigError, ConflictError, FormatError
from graphmill.jobs.cli.progress import progress
from graphmill.jobs.config.config import NodeDataOptions
from graphmill.storage.format.encoding_names import EncodingOptions
from graphmill.storage.format.encodings import find_encoding
from graphmill.storage.format.source import GraphSource, SourceInfo
from graphmill.storage.graph import PLAIN_OR_TYPED, StoredGraph, TypedGraph, open_graph
from graphmill.storage.snapshots.snapshots import has_graph

if TYPE_CHECKING:  # most runs make no graph
    from graphmill.storage.synthetic.products_like import SyntheticGraph

_Kind = TypeVar("_Kind", StoredGraph, TypedGraph)


@overload
def prepare_graph(options: NodeDataOptions) -> StoredGraph | TypedGraph: ...


@overload
def prepare_graph(options: NodeDataOptions, *, kind: type[_Kind]) -> _Kind: ...


def prepare_graph(options: NodeDataOptions, *, kind: Any = PLAIN_OR_TYPED) -> Any:
    """Opens the graph that the options name. A graph that the job prepares is stored in `folder`, and the next run opens it again.

    Raises FormatError if the stored data is not a graph of this kind.
    """
    graph = find_graph(options, kind=kind)
    if graph is not None:
        return graph
    name, target = _place(options)
    undirected = None  # None: the source decides
    if options.path is None:
        source: GraphSource = _synthetic(options)
    else:
        from graphmill.storage.importers.public.ogb_links import ogb_link_graph
        from graphmill.storage.importers.public.ogb_nodes import is_directed, ogb_graph

        # The literature uses citation graphs as undirected graphs. ogbn-products already stores both directions of each edge.
        undirected = (not options.directed and is_directed(options.path)) or None
        read = ogb_link_graph if options.path.startswith("ogbl-") else ogb_graph
        source = read(options.path, Path(options.folder) / "ogb")
    from graphmill.storage.ingestion.ingest import IngestOptions, ingest

    with progress(f"preparing {name}") as bar, unless_another_was_first(str(target)):
        ingest(
            source,
            str(target),
            IngestOptions(
                num_partitions=options.partitions,
                partitioner=options.partitioner,
                seed=options.graph_seed,
                undirected=undirected,
                links=options.links,
            ),
            bar.stage,
        )
    return find_graph(options, kind=kind) or open_graph(str(target), kind=StoredGraph)


@contextlib.contextmanager
def unless_another_was_first(url: str) -> Iterator[None]:
    """Ignores an error of the block if another job has prepared the same graph in the meantime."""
    try:
        yield
    except (ConflictError, ConfigError):
        if not has_graph(url):
            raise


def find_graph(options: NodeDataOptions, *, kind: Any = PLAIN_OR_TYPED) -> StoredGraph | TypedGraph | None:
    """The stored graph. None: the job must prepare it first."""
    if options.path is not None and not options.path.startswith(("ogbn-", "ogbl-")):
        from graphmill.storage.importers.public.data_sets import check_ingested

        check_ingested(options.path)
        return open_graph(options.path, options.snapshot, kind=kind)
    if options.partitions < 1:
        raise ConfigError(f"partitions: expected at least 1, got {options.partitions}; set --data.partitions")
    name, target = _place(options)
    source = _synthetic(options) if options.path is None else None
    if not has_graph(str(target)):
        return None
    graph = open_graph(str(target), options.snapshot, kind=StoredGraph)
    if source is not None and not (
        dict(source.info.provenance or {}).items() <= dict(graph.manifest.provenance).items()
    ):
        raise FormatError(
            f"{target}: expected the graph {name}, found one made by another version or with other options; "
            "remove it or pass another --data.folder"
        )
    return graph


def not_there_yet(options: NodeDataOptions) -> tuple[SourceInfo, dict[str, int]] | None:
    """(source, sizes of splits) if the embedded graph is not made yet. None for any other graph."""
    if options.path is not None:
        return None
    source = _synthetic(options)
    train, valid = (round(options.nodes * share) for share in (source.options.train_share, source.options.valid_share))
    return source.info, {"train": train, "valid": valid, "test": options.nodes - train - valid}


def how_to_make(options: NodeDataOptions) -> str:
    """The command that prepares the graph like the first run of a job."""
    target = _place(options)[1]
    kept = f"{target} --partitions {options.partitions} --partitioner {options.partitioner} --seed {options.graph_seed}"
    links = options.links
    if links.valid + links.test:
        kept += f" --links.valid {links.valid:g} --links.test {links.test:g} --links.seed {links.seed}"
    if options.path is None:
        made = f"--synthetic.num-nodes {options.nodes} --synthetic.seed {options.graph_seed}"
        return f"graphmill ingest synthetic {kept} {made}"
    edges = " --reverse-edges keep" if options.directed else ""
    return f"graphmill ingest {options.path} {kept} --ogb-root {Path(options.folder) / 'ogb'}{edges}"


def _place(options: NodeDataOptions) -> tuple[str, Path]:
    """(name, folder) of a graph that the job prepares."""
    name = options.path or f"synthetic-{options.nodes}-seed{options.graph_seed}"
    kept = "-directed" if options.directed and options.path is not None else ""
    links = options.links
    if links.valid + links.test:
        kept += f"-links{links.valid:g}-{links.test:g}-seed{links.seed}"
    return name, Path(options.folder) / f"{name}{kept}-{options.partitioner}{options.partitions}"


def _synthetic(options: NodeDataOptions) -> "SyntheticGraph":
    from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions

    try:
        return SyntheticGraph(SyntheticOptions(num_nodes=options.nodes, seed=options.graph_seed))
    except ConfigError as error:
        raise ConfigError(f"{error}; set --data.nodes") from None


def store_encoding(graph: StoredGraph | TypedGraph, options: EncodingOptions) -> StoredGraph | TypedGraph:
    """The graph with this encoding. An encoding that is not stored yet is computed and published as a new snapshot."""
    from graphmill.storage.encoding.encode import encode

    origin = graph.manifest.origin
    if origin is not None and find_encoding(graph, options.name) is None:
        raise ConfigError(
            f"{graph.url}: expected {options.name} in the copy on the hosts' disks, found none; "
            f"graphmill encode {origin} {options.kind} --dim {options.dim}, then place {origin} there again"
        )
    with progress(f"encoding {graph.manifest.name} ({options.name})") as bar:
        encoded, _ = encode(graph, options, bar.stage)
    return replace(encoded, by_range=graph.by_range)
