"""From a streamed source to a directory of Arrow partitions, in bounded memory.

Spool node rows (`graphmill.storage.ingestion.node_spool`) → assign rows to partitions → renumber → spill edges into buckets of consecutive destinations → sort each
bucket → write the partition's files (`graphmill.storage.ingestion.edge_ingestion`), which threads hash and sync meanwhile → publish a snapshot
(`graphmill.storage.snapshots.snapshot_writer`). Memory: 12 bytes per node (20 from 2^31
nodes on), 8 for times and 8 for labels (one for each of several), one for each split set and up to 9 for the statistics, plus `memory_budget_bytes`; features and edges pass through
scratch files in the snapshot's folder. The snapshot appears whole or not at all.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from graphmill.core.errors import ConfigError, DataError, FormatError, GraphmillError
from graphmill.storage.filesystem.filesystem_errors import one_line
from graphmill.storage.filesystem.urls import split_url
from graphmill.storage.format.arrow_files import write_batch
from graphmill.storage.format.manifest import EncodingEntry, Manifest, StoredLinks, parse_manifest, partition_dir
from graphmill.storage.format.source import GraphSource, Progress
from graphmill.storage.ingestion.edge_ingestion import EdgeIngestion
from graphmill.storage.ingestion.held_out_links import MessageEdges, without_held_out
from graphmill.storage.ingestion.ingest_options import IngestOptions
from graphmill.storage.ingestion.node_spool import NodeSpool
from graphmill.storage.ingestion.numbering import Numbering
from graphmill.storage.partitioning.partitioners import assign_partitions
from graphmill.storage.snapshots.snapshot_writer import SnapshotWriter, write_snapshot
from graphmill.storage.snapshots.snapshots import read_manifest
from graphmill.storage.splits.drawn_split import SplitSource


def ingest(
    source: GraphSource, url: str, options: IngestOptions | None = None, progress: Progress | None = None
) -> Manifest:
    """Writes `source` as partitions under `url`, as a snapshot of its own, and returns the manifest.

    Raises ConfigError where `url` already holds something (unless `overwrite` and it is a graph) or cannot be used, DataError where the
    source's data is not a valid graph, ConflictError where another writer published meanwhile, FormatError where writing fails. After an
    error `url` holds what it held before.
    """
    options = options or IngestOptions()
    check_sizes(source.info.name, source.info.num_nodes, options)
    if options.split and isinstance(source, SplitSource):
        source = source.with_split(options.split)
    source = without_held_out(source, options.links)
    with ingestion_writer(url, options) as writer:
        manifest = _written(source, options, writer, progress or (lambda *_: None))
        return writer.commit(replace(manifest, encodings=_kept_encodings(url, manifest.content_hash)))


@contextlib.contextmanager
def ingestion_writer(url: str, options: IngestOptions) -> Iterator[SnapshotWriter]:
    """A writer of one snapshot; what the disk refuses within the block is one line."""
    with write_snapshot(url, overwrite=options.overwrite, scratch=options.scratch) as writer:
        try:
            yield writer
        except GraphmillError:
            raise
        except OSError as error:  # a full disk, or a source's file that cannot be read
            named = f" ({error.filename})" if error.filename else ""
            raise FormatError(f"{url}: cannot prepare the graph: {one_line(error)}{named}") from error


def check_sizes(name: str, num_nodes: int, options: IngestOptions) -> None:
    """Raises DataError where there is no node, ConfigError where there are more partitions than nodes."""
    if num_nodes < 1:
        raise DataError(f"{name}: expected at least one node, got {num_nodes}")
    if options.num_partitions > num_nodes:
        raise ConfigError(
            f"num_partitions: expected at most one partition per node ({num_nodes}), got {options.num_partitions}; "
            "lower --partitions"
        )


def _kept_encodings(url: str, content_hash: str) -> Mapping[str, EncodingEntry]:
    """The encodings of the previous snapshot, if it holds the same graph."""
    filesystem, path = split_url(url)
    with contextlib.suppress(FormatError):  # there is none, or it is no single graph
        before = parse_manifest(*read_manifest(filesystem, path, url, None, ""))
        if before.content_hash == content_hash:
            return before.encodings
    return {}


def _written(source: GraphSource, options: IngestOptions, writer: SnapshotWriter, progress: Progress) -> Manifest:
    """Writes all files of a graph; the manifest has no encodings and no number yet."""
    nodes = NodeSpool(source, options, writer.scratch, progress)
    progress("assign", 0, None)
    assigned = assign_partitions(options.partitioner, source, options.num_partitions, options.seed, options.groups)
    numbering = Numbering.of(assigned, options.num_partitions)
    del assigned
    times = (nodes.columns.time,) * 2
    edges = EdgeIngestion(source, options, writer, progress, numbering, numbering, times, scratch=writer.scratch)
    statistics, edge_fields = edges.write(nodes.columns, nodes.feature_statistics)
    nodes.write(numbering, writer)
    links = _write_links(source, writer, numbering, edges, symmetric=edge_fields["symmetric"])
    progress("checksum", 0, None)
    provenance = {
        **(source.info.provenance or {}),
        "partitioner": options.partitioner,
        "seed": str(options.seed),
        **edges.provenance,
        **_links_told(source, options),
        **({"split": str(options.split)} if options.split else {}),
    }
    return Manifest(
        name=source.info.name,
        **nodes.manifest_fields(numbering),
        **edge_fields,
        links=links,
        statistics=statistics,
        files=writer.entries(),
        provenance=provenance,
    )


def _write_links(
    source: GraphSource, writer: SnapshotWriter, numbering: Numbering, edges: EdgeIngestion, *, symmetric: bool
) -> StoredLinks | None:
    """Writes links.arrow of every partition, the links from its own nodes; None where no edge was held out."""
    if not isinstance(source, MessageEdges):
        return None
    links = source.links(symmetric=symmetric)
    if (time := edges.time_of_ends(links.source, links.destination)) is not None:
        links = replace(links, time=time)
    owner = np.searchsorted(numbering.offsets, numbering.id_of_row[links.source], side="right") - 1
    for partition in range(numbering.num_partitions):
        own = links.take(np.flatnonzero(owner == partition))
        file = writer.files / partition_dir(partition) / "links.arrow"
        write_batch(file, own.columns())
        writer.add_file(file)
    return links.stored()


def _links_told(source: GraphSource, options: IngestOptions) -> dict[str, str]:
    """What the graph's provenance says of the links that are held out."""
    if not isinstance(source, MessageEdges):
        return {}
    split, repeated = options.links, source.num_repeated
    told = {"held_out": f"valid {split.valid:g}, test {split.test:g}, seed {split.seed}"}
    if split.by_time:
        told = {"held_out": f"edges later than {', '.join(map(str, source.ends_in_time))}"}
    elif not split.hold_out:
        told = {"held_out": "as published"}
    return told | ({"edges_that_are_held_out_links": str(repeated)} if repeated else {})
