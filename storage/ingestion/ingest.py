"""Ingests a streamed source into a directory of Arrow partitions, in bounded memory. A plain graph has one type of nodes and one relation.

For nodes, it spools the rows of each type (`graphmill.storage.ingestion.node_spool`), assigns rows to partitions, gives new ids, and writes the files of
nodes. For each relation, it spills the edges into buckets of consecutive destinations, sorts each bucket, and writes the files of edges
(`graphmill.storage.ingestion.edge_ingestion`). The last step publishes a snapshot (`graphmill.storage.snapshots.snapshot_writer`). Meanwhile other threads
hash and sync the files.

Memory per node: 12 bytes (20 from 2^31 nodes on), 8 bytes for times, 8 bytes for labels (1 byte for each label if there are several), 1 byte for each split
set, and up to 9 bytes for the statistics. In addition, ingestion uses `memory_budget_bytes`. Features and edges pass through scratch files in the snapshot's
folder. The snapshot becomes visible as a whole, or not at all.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from graphmill.core.errors import FormatError
from graphmill.core.process_memory import keep_freed_memory
from graphmill.storage.filesystem.urls import split_url
from graphmill.storage.format.arrow_files import write_batch
from graphmill.storage.format.manifest import (
    EDGE,
    NODE,
    EncodingEntry,
    GraphPart,
    Manifest,
    StoredLinks,
    Tables,
    parse_manifest,
    partition_dir,
)
from graphmill.storage.format.source import GraphSource, Progress, TypedSource
from graphmill.storage.ingestion.edge_ingestion import EdgeIngestion
from graphmill.storage.ingestion.held_out_links import MessageEdges, without_held_out, without_held_out_edges
from graphmill.storage.ingestion.ingest_options import IngestOptions, SplitOptions
from graphmill.storage.ingestion.node_spool import NodeSpool
from graphmill.storage.ingestion.numbering import Numbering
from graphmill.storage.ingestion.typed_sources import (
    check_sizes,
    check_typed,
    is_split,
    plain_source,
    with_drawn_splits,
    with_reverse_relations,
)
from graphmill.storage.partitioning.partitioners import assign_partitions, assign_types
from graphmill.storage.snapshots.snapshot_writer import SnapshotWriter, write_snapshot
from graphmill.storage.snapshots.snapshots import read_manifest
from graphmill.storage.splits.drawn_split import SplitSource
from graphmill.storage.statistics.graph_measures import statistics_without_edges


def ingest(
    source: GraphSource | TypedSource, url: str, options: IngestOptions | None = None, progress: Progress | None = None
) -> Manifest:
    """Writes `source` as partitions of a new snapshot under `url`, and returns the manifest.

    Several types or relations become a typed graph, and the nodes of every type are divided about equally over partitions. One type and one relation become a
    plain graph. With `undirected`, a relation within one type gets the reverses of its edges, and any other relation NAME gets a reverse relation rev_NAME.
    Raises ConfigError if `url` cannot be used or is not empty (a graph is allowed with `overwrite`), DataError if the source's data is not a valid
    graph, ConflictError if another writer published in the meantime, FormatError if writing fails. After an error `url` has the same content as before.
    """
    options, plain = options or IngestOptions(), None
    keep_freed_memory()  # each chunk of edges takes the memory of the one before it
    source = plain_source(with_drawn_splits(source, options) if isinstance(source, TypedSource) else source)
    if isinstance(source, TypedSource):
        check_typed(with_reverse_relations(source) if options.undirected else source, options)
        one_way = without_held_out_edges(source, options)
        source = with_reverse_relations(one_way) if options.undirected else one_way
    else:
        check_sizes(source.info.name, source.info.num_nodes, options)
        drawn = source.with_split(options.split) if options.split and isinstance(source, SplitSource) else source
        plain = without_held_out(drawn, options.links)
        source = one_way = TypedSource(plain.info.name, {NODE: plain}, {EDGE: plain}, plain.info.provenance or {})
    with write_snapshot(url, overwrite=options.overwrite, scratch=options.scratch) as writer:
        manifest = _written(source, one_way, plain, options, writer, progress or (lambda *_: None))
        return writer.commit(replace(manifest, encodings=_kept_encodings(url, manifest.content_hash)))


def _kept_encodings(url: str, content_hash: str) -> Mapping[str, EncodingEntry]:
    """Returns the encodings of the previous snapshot if it has the same graph, else an empty dictionary."""
    filesystem, path = split_url(url)
    with contextlib.suppress(FormatError):  # there is no previous snapshot, or it is a set of graphs
        before = parse_manifest(*read_manifest(filesystem, path, url, None, ""))
        if before.content_hash == content_hash:
            return before.encodings
    return {}


def _written(
    source: TypedSource,
    one_way: TypedSource,
    plain: GraphSource | None,
    options: IngestOptions,
    writer: SnapshotWriter,
    progress: Progress,
) -> Manifest:
    """Writes all files of a graph. The returned manifest does not have encodings or a snapshot number yet. `one_way`: the source without added reverse
    relations. `plain`: the source of a plain graph, whose files are not in folders of types and relations; None for a typed graph."""
    is_typed, spools = plain is None, dict[str, NodeSpool]()
    for name, nodes in source.nodes.items():
        of_type = options
        if is_typed:
            of_type = options if nodes.info.has_label else replace(options, num_classes=None)
            of_type = of_type if is_split(nodes, options) else replace(of_type, split=SplitOptions())
        spools[name] = NodeSpool(nodes, of_type, writer, progress, name if is_typed else "")
    progress("assign", 0, None)
    name, count, seed = options.partitioner, options.num_partitions, options.seed
    if plain is None:
        assigned = assign_types(name, one_way, count, seed, options.groups)
    else:
        assigned = {NODE: assign_partitions(name, plain, count, seed, options.groups)}
    numberings: dict[str, Numbering] = {}
    tables, done = Tables({}, {}), dict[str, set[str]]()
    for name, spool in spools.items():
        numbering = numberings[name] = Numbering.of(assigned.pop(name), options.num_partitions)
        spool.write(numbering)
        measured = statistics_without_edges(spool.columns, spool.feature_statistics) if is_typed else None
        tables.node_types[name] = Manifest(
            name, num_edges=0, **spool.manifest_fields(numbering), statistics=measured, part=GraphPart(name, None)
        )
    for each, edge_source in source.relations.items():
        sources, targets, nodes_of = numberings[each.source], numberings[each.target], spools[each.target]
        times, folder = (spools[each.source].columns.time, nodes_of.columns.time), str(each) if is_typed else ""
        edges = EdgeIngestion(edge_source, options, writer, progress, sources, targets, times, folder)
        measured, fields = edges.write(nodes_of.columns, nodes_of.feature_statistics)
        links = _write_links(source, edges, writer, symmetric=fields["symmetric"])
        part = GraphPart(str(each), sources.num_nodes)
        tables.edge_types[each] = replace(
            tables.node_types[each.target], name=part.name, **fields, links=links, statistics=measured, part=part
        )
        for key, value in edges.provenance.items():
            done.setdefault(key, set()).add(value)
    progress("checksum", 0, None)
    provenance = {
        **source.provenance,
        "partitioner": options.partitioner,
        "seed": str(options.seed),
        **{key: " or ".join(sorted(values)) for key, values in done.items()},
        # also true if reverse relations were added
        **({"reverse_edges_added": "true"} if options.undirected else {}),
        **_links_provenance(source, options),
        **({"split": str(options.split)} if options.split else {}),
    }
    if is_typed:
        return Manifest.of_tables(source.name, tables, files=writer.entries(), provenance=provenance)
    row = tables.edge_types[EDGE]
    return replace(row, name=source.name, part=None, files=writer.entries(), provenance=provenance)


def _write_links(
    source: TypedSource, edges: EdgeIngestion, writer: SnapshotWriter, *, symmetric: bool
) -> StoredLinks | None:
    """Writes links.arrow for every partition. It has the links whose source node is in the partition. Returns None if no edge of the relation was held out."""
    held, numbering = edges.source, edges.sources
    if not isinstance(held, MessageEdges):
        return None
    links = held.links(symmetric=symmetric)
    if (time := edges.time_of_ends(links.source, links.destination)) is not None:
        links = replace(links, time=time)
    owner = np.searchsorted(numbering.offsets, numbering.id_of_row[links.source], side="right") - 1
    for partition in range(numbering.num_partitions):
        own = links.take(np.flatnonzero(owner == partition))
        file = writer.files / partition_dir(partition) / edges.folder / "links.arrow"
        write_batch(file, own.columns())
        writer.add(file)
    return links.stored(str(held.reverse) if held.reverse in source.relations else "")


def _links_provenance(source: TypedSource, options: IngestOptions) -> dict[str, str]:
    """Describes, for the manifest's provenance, how links were held out."""
    held = next((edges for edges in source.relations.values() if isinstance(edges, MessageEdges)), None)
    if held is None:
        return {}
    split, repeated = options.links, held.num_repeated
    facts = {"held_out": f"valid {split.valid:g}, test {split.test:g}, seed {split.seed}"}
    if split.by_time:
        facts = {"held_out": f"edges later than {', '.join(map(str, held.ends_in_time))}"}
    elif not split.hold_out:
        facts = {"held_out": "as published"}
    return facts | ({"edges_that_are_held_out_links": str(repeated)} if repeated else {})
