"""Writes many small graphs as a directory of shards; it appears whole or not at all."""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from storage.arrow_files import file_entry, is_local, split_url, write_batch
from storage.errors import ConfigError, DataError, FormatError, GraphmillError
from storage.filesystem_errors import one_line, one_line_errors
from storage.graph_set_manifest import NO_FEATURES, REJECTS_NAME, GraphSetManifest, Reject, RowSchema, shard_file
from storage.manifest import MANIFEST_NAME
from storage.publish import check_destination, publish
from storage.scratch import remove_orphans, scratch_directory


@dataclass(frozen=True)
class GraphSetInfo:
    """What all graphs of a set have in common. See `GraphSetManifest` for the fields."""

    name: str
    node: RowSchema = NO_FEATURES
    edge: RowSchema = NO_FEATURES
    index_dtype: str = "uint16"
    target_names: tuple[str, ...] = ()
    split_names: tuple[str, ...] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)


def prepare_destination(url: str, *, overwrite: bool = False) -> None:
    """ConfigError where nothing may be written at `url`. Removes what killed writers left beside it."""
    filesystem, path = split_url(url)
    if is_local(filesystem):
        remove_orphans(Path(path).parent, Path(path).name, Path(path))
    with one_line_errors(url, "use this destination", ConfigError):
        check_destination(filesystem, path, url, overwrite=overwrite)


def write_graphs(
    url: str,
    info: GraphSetInfo,
    shards: Iterable[pa.RecordBatch],
    rejects: Iterable[Reject] = (),
    *,
    overwrite: bool = False,
    scratch: str | None = None,
) -> GraphSetManifest:
    """Writes each batch (columns of `storage.graph_store.shard_batch`) as a shard; holds one of them at a time.

    `rejects` are read after all shards. `scratch`: a local directory for the files before they are at `url`; None: beside it.
    Raises ConfigError where `url` cannot be used, DataError where there is no graph, FormatError where writing fails.
    """
    prepare_destination(url, overwrite=overwrite)
    filesystem, path = split_url(url)
    parents = [Path(scratch)] if scratch else []
    parents += [Path(path).parent] if is_local(filesystem) else []
    for parent in parents:
        with one_line_errors(str(parent), "make this directory", ConfigError):
            parent.mkdir(parents=True, exist_ok=True)
    with scratch_directory(parents[0] if parents else None, Path(path).name) as folder:
        staged = folder / "graph"
        staged.mkdir()
        try:
            manifest = _write(staged, info, shards, rejects)
        except GraphmillError:
            raise
        except OSError as error:  # a full disk, for example
            raise FormatError(f"{url}: cannot prepare the graphs: {one_line(error)}") from error
        publish(staged, filesystem, path, manifest)
    return manifest


def _write(
    staged: Path, info: GraphSetInfo, shards: Iterable[pa.RecordBatch], rejects: Iterable[Reject]
) -> GraphSetManifest:
    offsets, num_nodes, num_edges = [0], 0, 0
    for index, batch in enumerate(shards):
        file = staged / shard_file(index)
        file.parent.mkdir()
        write_batch(file, dict(zip(batch.schema.names, batch.columns, strict=True)))
        offsets.append(offsets[-1] + batch.num_rows)
        num_nodes += len(batch.column("nodes").flatten())
        num_edges += len(batch.column("edges").flatten())
    refused = list(rejects)
    if not offsets[-1]:
        first = (
            f"; the first of {len(refused)} rejected rows: line {refused[0].line}: {refused[0].reason}"
            if refused
            else ""
        )
        raise DataError(f"{info.name}: expected at least one graph, got none{first}")
    if refused:
        with open(staged / REJECTS_NAME, "w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(("line", "text", "reason"))
            writer.writerows((reject.line, reject.text, reject.reason) for reject in refused)
    written = [path for path in sorted(staged.rglob("*")) if path.is_file()]
    manifest = GraphSetManifest(
        name=info.name,
        num_graphs=offsets[-1],
        num_nodes=num_nodes,
        num_edges=num_edges,
        graph_offsets=tuple(offsets),
        node=info.node,
        edge=info.edge,
        index_dtype=info.index_dtype,
        target_names=info.target_names,
        split_names=info.split_names,
        num_rejected=len(refused),
        files={path.relative_to(staged).as_posix(): file_entry(path) for path in written},
        provenance=info.provenance,
    )
    (staged / MANIFEST_NAME).write_text(manifest.to_json())
    return manifest
