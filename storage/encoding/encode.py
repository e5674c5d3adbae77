"""Computes an encoding of a stored graph and publishes a snapshot with it; an encoding that is stored already is not computed again.

Edges are taken in the order of original ids, so the rows do not depend on partitions. Runs on one machine; memory: 12 bytes per edge (24
while the matrix is built, twice that if the graph is not symmetric), and about dim + 70 numbers of 8 bytes per node for eigenvectors.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np

from graphmill.core.errors import ConfigError, ConflictError
from graphmill.storage.encoding.spectral import laplacian_modes, symmetric_adjacency
from graphmill.storage.encoding.walk_returns import return_probabilities
from graphmill.storage.filesystem.filesystem_errors import one_line_errors
from graphmill.storage.filesystem.mapped_files import check_unchanged
from graphmill.storage.format.arrow_files import array_from_numpy, write_batch
from graphmill.storage.format.encoding_names import EncodingOptions, encoding_dim
from graphmill.storage.format.encodings import ALGORITHM_VERSION, COLUMN, find_encoding
from graphmill.storage.format.manifest import EncodingEntry, parse_manifest, partition_dir
from graphmill.storage.format.source import Progress
from graphmill.storage.graph import StoredGraph
from graphmill.storage.snapshots.snapshot_writer import write_snapshot
from graphmill.storage.snapshots.snapshots import read_manifest

_TRIES = 10  # other writers may publish while the rows are written


def encode(
    graph: StoredGraph, options: EncodingOptions, report: Progress | None = None, *, overwrite: bool = False
) -> tuple[StoredGraph, bool]:
    """The graph with the encoding, and whether it was computed just now; `overwrite` computes it in any case.

    Raises ConfigError where it cannot be computed, DataError where the solver does not converge, FormatError where reading or
    writing fails.
    """
    if not overwrite and find_encoding(graph, options.name) is not None:
        return graph, False
    report = report or (lambda *_: None)
    started = time.perf_counter()
    source, destination, rank = _edges(graph, report)
    num_nodes = graph.manifest.num_nodes
    provenance = {}
    if options.kind == "laplacian":
        adjacency = symmetric_adjacency(source, destination, num_nodes)
        del source, destination
        vectors, values = laplacian_modes(adjacency, options.dim, options.which, report)
        rows = vectors.astype(np.float32)
        provenance["eigenvalues"] = " ".join(f"{value:.9g}" for value in values)
    else:
        rows = return_probabilities(source, destination, num_nodes, options.dim, report)
    report("writing", 0, graph.manifest.num_partitions)
    provenance["elapsed_s"] = f"{time.perf_counter() - started:.1f}"
    return store_encoding(graph, options.name, rows[rank], provenance), True


def _edges(graph: StoredGraph, report: Progress) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All edges as ranks of original ids, source and destination; and the rank of each node."""
    num_partitions = graph.manifest.num_partitions
    partitions = []
    for index in range(num_partitions):
        report("reading", index, num_partitions)
        partitions.append(graph.partition(index))
    original_id = np.concatenate([partition.original_id for partition in partitions])
    dtype = np.int32 if len(original_id) < 2**31 else np.int64
    rank = np.empty(len(original_id), dtype)
    rank[np.argsort(original_id, kind="stable")] = np.arange(len(original_id), dtype=dtype)
    source = np.concatenate([rank[partition.indices] for partition in partitions])
    destination = [
        np.repeat(rank[start:stop], np.diff(partition.indptr))
        for partition, (start, stop) in zip(partitions, pairwise(graph.offsets), strict=True)
    ]
    check_unchanged()  # `partitions` are mapped as yet
    return source, np.concatenate(destination), rank


def store_encoding(
    graph: StoredGraph, name: str, rows: np.ndarray, provenance: Mapping[str, str] | None = None
) -> StoredGraph:
    """Publishes a snapshot that has float32 rows [num_nodes, dim], in the order of node ids, as this encoding; returns that graph.

    Raises ConfigError where the shape does not fit, ConflictError where the newest snapshot is another graph by now, FormatError where
    writing fails. Two encodings that are stored at once are both kept.
    """
    expected = (graph.manifest.num_nodes, encoding_dim(name))
    if rows.shape != expected or rows.dtype != np.float32:
        raise ConfigError(f"{name}: expected float32 rows of shape {expected}, got {rows.dtype} {rows.shape}")
    rows = np.ascontiguousarray(rows)
    with write_snapshot(graph.url, overwrite=True) as writer:
        for index in range(graph.manifest.num_partitions):
            start, stop = graph.offsets[index : index + 2]
            relative = f"{partition_dir(index)}/encodings/{name}.arrow"
            with one_line_errors(str(writer.files / relative), "write this file"):
                (writer.files / relative).parent.mkdir(parents=True)
                write_batch(writer.files / relative, {COLUMN: array_from_numpy(rows[start:stop])})
            writer.add(relative)
        entry = EncodingEntry(ALGORITHM_VERSION, writer.entries(), dict(provenance or {}))
        for _ in range(_TRIES):
            writer.rebase()
            newest = parse_manifest(*read_manifest(graph.filesystem, graph.path, graph.url, None, ""))
            if newest.content_hash != graph.manifest.content_hash:
                raise ConflictError(
                    f"{graph.url}: expected the graph that was encoded (content {graph.manifest.content_hash[:12]}) as its newest "
                    f"snapshot, found another ({newest.content_hash[:12]}); encode that one"
                )
            encodings = {**newest.encodings, name: entry}
            try:
                return replace(graph, manifest=writer.commit(replace(newest, encodings=encodings)))
            except ConflictError:
                continue
    raise ConflictError(f"{graph.url}: other writers published {_TRIES} snapshots while {name} was to be; run again")
