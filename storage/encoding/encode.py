"""Computes an encoding of a stored graph and publishes a snapshot with it. A stored encoding is not computed again.

A typed graph is encoded as one graph: the nodes of all types, one type after another, and the edges of all relations. Every type stores its nodes' rows.
The nodes of a type are in the order of original ids, so rows do not depend on partitions. The computation runs on one machine. An edge needs 12 bytes of
memory, 24 while the matrix is built; both double if the graph is not symmetric. Eigenvectors need about dim + 70 numbers of 8 bytes per node.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TypeVar

import numpy as np

from graphmill.core.errors import ConfigError, ConflictError
from graphmill.storage.encoding.spectral import laplacian_modes, symmetric_adjacency
from graphmill.storage.encoding.walk_returns import return_probabilities
from graphmill.storage.filesystem.filesystem_errors import one_line_errors
from graphmill.storage.filesystem.mapped_files import check_unchanged
from graphmill.storage.format.arrow_files import array_from_numpy, write_batch
from graphmill.storage.format.encoding_names import EncodingOptions, encoding_dim
from graphmill.storage.format.encodings import ALGORITHM_VERSION, COLUMN, find_encoding
from graphmill.storage.format.manifest import EncodingEntry, encoding_folders, parse_manifest
from graphmill.storage.format.source import Progress
from graphmill.storage.graph import GraphSnapshot
from graphmill.storage.snapshots.snapshot_writer import write_snapshot
from graphmill.storage.snapshots.snapshots import read_manifest

_TRIES = 10  # most attempts to publish; an attempt fails if another writer publishes while the rows are written
_Graph = TypeVar("_Graph", bound=GraphSnapshot)


def encode(
    graph: _Graph, options: EncodingOptions, report: Progress | None = None, *, overwrite: bool = False
) -> tuple[_Graph, bool]:
    """Returns the graph with the encoding, and whether this call computed the encoding. With `overwrite`, a stored encoding is computed again.

    Raises ConfigError if the encoding cannot be computed, DataError if the solver does not converge, FormatError if reading or writing fails.
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


def _edges(graph: GraphSnapshot, report: Progress) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the sources and destinations of all edges as ranks, and the rank of each node. Nodes are ranked by type, then by original id."""
    num_partitions = graph.manifest.num_partitions
    dtype = np.int32 if graph.manifest.num_nodes < 2**31 else np.int64
    first, rank = _first_rows(graph), np.empty(graph.manifest.num_nodes, dtype)
    rank_of = {}
    for name in graph.node_types:
        original_id = np.concatenate([graph.nodes(name).original_id(index) for index in range(num_partitions)])
        own = rank_of[name] = rank[first[name] : first[name] + len(original_id)]
        own[np.argsort(original_id, kind="stable")] = first[name] + np.arange(len(original_id), dtype=dtype)
    sources, destinations = [], []
    for relation in graph.relations:
        lists = graph.relation(relation)
        for index, (start, stop) in enumerate(pairwise(lists.offsets)):
            report("reading", index, num_partitions)
            partition = lists.partition(index)
            sources.append(rank_of[relation.source][partition.indices])
            destinations.append(np.repeat(rank_of[relation.target][start:stop], np.diff(partition.indptr)))
            check_unchanged()  # must run while the partition is still mapped
    no_edges = np.empty(0, dtype)
    return np.concatenate([no_edges, *sources]), np.concatenate([no_edges, *destinations]), rank


def _first_rows(graph: GraphSnapshot) -> dict[str, int]:
    """Returns the first row of each type in a table with the rows of all types, one type after another."""
    types = graph.manifest.node_types
    return dict(zip(types, accumulate((row.num_nodes for row in types.values()), initial=0), strict=False))


def store_encoding(graph: _Graph, name: str, rows: np.ndarray, provenance: Mapping[str, str] | None = None) -> _Graph:
    """Publishes a snapshot with this encoding and returns the new graph. `rows`: float32 [num_nodes, dim], in the order of node ids, type after type.

    Raises ConfigError if the rows have another shape, ConflictError if the newest snapshot now holds another graph, FormatError if writing fails. If two
    encodings are stored at the same time, both are kept.
    """
    expected = (graph.manifest.num_nodes, encoding_dim(name))
    if rows.shape != expected or rows.dtype != np.float32:
        raise ConfigError(f"{name}: expected float32 rows of shape {expected}, got {rows.dtype} {rows.shape}")
    rows = np.ascontiguousarray(rows)
    with write_snapshot(graph.url, overwrite=True) as writer:
        for node_type, first in _first_rows(graph).items():
            bounds = first + np.array(graph.manifest.node_types[node_type].partition_offsets)
            for folder, (start, stop) in zip(
                encoding_folders(graph.manifest, node_type), pairwise(bounds), strict=True
            ):
                relative = f"{folder}/{name}.arrow"
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
