"""A typed source as partitions: each type of nodes and each relation goes the way of a plain graph's (`graphmill.storage.ingestion.node_spool`, `graphmill.storage.ingestion.edge_ingestion`), one after the other, into one snapshot."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from graphmill.core.errors import ConfigError
from graphmill.storage.format.manifest import GraphPart, Manifest
from graphmill.storage.format.source import (
    EdgeChunk,
    EdgeSource,
    NodeSource,
    Progress,
    Relation,
    SourceInfo,
    TypedSource,
)
from graphmill.storage.format.typed_manifest import TypedManifest, check_names
from graphmill.storage.ingestion.edge_ingestion import EdgeIngestion
from graphmill.storage.ingestion.ingest import check_sizes, ingestion_writer
from graphmill.storage.ingestion.ingest_options import MAX_PARTITIONS, IngestOptions, LinkSplitOptions, SplitOptions
from graphmill.storage.ingestion.node_spool import NodeSpool
from graphmill.storage.ingestion.numbering import Numbering
from graphmill.storage.partitioning.partitioners import Assignment, assign_types
from graphmill.storage.snapshots.snapshot_writer import SnapshotWriter
from graphmill.storage.statistics.graph_measures import statistics_without_edges

REVERSE = "rev_"  # begins the name of a relation that was added, as PyG's ToUndirected has it


def ingest_typed(
    source: TypedSource, url: str, options: IngestOptions | None = None, progress: Progress | None = None
) -> TypedManifest:
    """Writes `source` as partitions under `url`, as a snapshot of its own, and returns the manifest. Errors as `graphmill.storage.ingestion.ingest.ingest`.

    Every type is cut about evenly. With `undirected` a relation of one type has the reverses of its edges among them, and any other a
    relation rev_NAME beside it.
    """
    options, one_way, progress = options or IngestOptions(), source, progress or (lambda *_: None)
    if options.undirected:
        source = with_reverse_relations(source)
    _check(source, options)
    with ingestion_writer(url, options) as writer:
        progress("assign", 0, None)
        assigned = assign_types(options.partitioner, one_way, options.num_partitions, options.seed)
        return writer.commit(_written(source, assigned, options, writer, progress))


def with_reverse_relations(source: TypedSource) -> TypedSource:
    """With a relation rev_NAME for each relation NAME between two types. Raises ConfigError where there is one already."""
    added: dict[Relation, EdgeSource] = {}
    for each, edges in source.relations.items():
        if each.source == each.target:
            continue
        reverse = Relation(each.target, REVERSE + each.name, each.source)
        if reverse in source.relations:
            raise ConfigError(
                f"{source.name}: {each} has its reverse {reverse} already: expected edges one way; pass --reverse-edges keep"
            )
        added[reverse] = _Reversed(edges)
    return replace(source, relations={**source.relations, **added})


@dataclass(frozen=True)
class _Reversed:
    """The edges of a relation, from target to source."""

    edges_of: EdgeSource

    @property
    def info(self) -> SourceInfo:
        return replace(self.edges_of.info, name=f"{self.edges_of.info.name}, reversed")

    def edges(self, chunk_edges: int) -> Iterator[EdgeChunk]:
        for chunk in self.edges_of.edges(chunk_edges):
            yield replace(chunk, src=chunk.dst, dst=chunk.src)


def _is_split(nodes: NodeSource, options: IngestOptions) -> bool:
    """Whether the options draw a split of these nodes: of those with times, or with labels."""
    return nodes.info.has_node_time if options.split.time_shares else nodes.info.has_label


def _check(source: TypedSource, options: IngestOptions) -> None:
    """Everything that can be refused before data is read."""
    name, types = source.name, source.nodes
    check_names(tuple(types), tuple(source.relations), name)
    for node_type, nodes in types.items():
        if nodes.info.num_nodes < 1:
            check_sizes(f"{name}: {node_type}", nodes.info.num_nodes, options)
    check_sizes(name, max((nodes.info.num_nodes for nodes in types.values()), default=0), options)
    parts = len(types) + len(source.relations)
    if options.num_partitions * parts > MAX_PARTITIONS:
        raise ConfigError(
            f"{name}: num_partitions: expected at most {MAX_PARTITIONS // parts} with {parts} types and relations, whose files a process maps, got "
            f"{options.num_partitions}; lower --partitions"
        )
    if options.groups:
        raise ConfigError(f"{name}: groups: expected none for a typed graph, got {options.groups}; leave them out")
    if options.out_edges:
        raise ConfigError(
            f"{name}: out_edges: expected none for a typed graph, whose out-edges are a relation of their own; pass --reverse-edges add"
        )
    if options.links != LinkSplitOptions():
        raise ConfigError(f"{name}: links: expected a graph of one type of nodes, got a typed one; leave --links out")
    labelled = [node_type for node_type, nodes in types.items() if nodes.info.has_label]
    if options.num_classes is not None and len(labelled) != 1:
        raise ConfigError(
            f"{name}: num_classes: expected one type with labels, found {', '.join(labelled) or 'none'}; leave --num-classes out"
        )
    if options.split and not any(_is_split(nodes, options) for nodes in types.values()):
        wanted = "times" if options.split.time_shares else "labels"
        raise ConfigError(
            f"{name}: split {options.split}: expected a type whose nodes have {wanted}, found none; leave --split out"
        )
    for each, edges in source.relations.items():
        if each.source != each.target and (edges.info.undirected_once or edges.info.symmetric):
            raise ConfigError(
                f"{name}: {each}: expected directed edges between two types, the source says undirected ones"
            )


def _written(
    source: TypedSource,
    assigned: dict[str, Assignment],
    options: IngestOptions,
    writer: SnapshotWriter,
    progress: Progress,
) -> TypedManifest:
    spools: dict[str, NodeSpool] = {}
    numberings: dict[str, Numbering] = {}
    types: dict[str, Manifest] = {}
    relations: dict[Relation, Manifest] = {}
    for node_type, nodes in source.nodes.items():
        scratch = writer.scratch / node_type
        scratch.mkdir()
        of_type = options if nodes.info.has_label else replace(options, num_classes=None)
        of_type = of_type if _is_split(nodes, options) else replace(of_type, split=SplitOptions())
        spool = spools[node_type] = NodeSpool(nodes, of_type, scratch, progress)
        numbering = numberings[node_type] = Numbering.of(assigned.pop(node_type), options.num_partitions)
        spool.write(numbering, writer, node_type)
        types[node_type] = Manifest(
            name=node_type,
            num_edges=0,
            **spool.manifest_fields(numbering),
            statistics=statistics_without_edges(spool.columns, spool.feature_statistics),
            part=GraphPart(node_type, None),
        )
    done: dict[str, set[str]] = {}
    for each, edge_source in source.relations.items():
        scratch = writer.scratch / str(each)
        scratch.mkdir()
        sources, targets, nodes_of = numberings[each.source], numberings[each.target], spools[each.target]
        times = (spools[each.source].columns.time, nodes_of.columns.time)
        edges = EdgeIngestion(
            edge_source, options, writer, progress, sources, targets, times, scratch=scratch, folder=str(each)
        )
        statistics, fields = edges.write(nodes_of.columns, nodes_of.feature_statistics)
        row = types[each.target]
        relations[each] = replace(
            row, name=str(each), **fields, statistics=statistics, part=GraphPart(str(each), sources.num_nodes)
        )
        for key, value in edges.provenance.items():
            done.setdefault(key, set()).add(value)
    progress("checksum", 0, None)
    provenance = {
        **source.provenance,
        "partitioner": options.partitioner,
        "seed": str(options.seed),
        **({"split": str(options.split)} if options.split else {}),
        **{key: " or ".join(sorted(values)) for key, values in done.items()},
        **({"reverse_edges_added": "true"} if options.undirected else {}),  # as relations of their own, too
    }
    return TypedManifest(source.name, types, relations, writer.entries(), provenance)
