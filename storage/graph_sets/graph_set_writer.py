"""Writes many small graphs as a snapshot of shards. The snapshot becomes visible as a whole, or not at all."""

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from graphmill.core.errors import DataError
from graphmill.storage.format.arrow_files import write_batch
from graphmill.storage.format.graph_set_manifest import (
    NO_FEATURES,
    REJECTS_NAME,
    GraphSetManifest,
    Reject,
    RowSchema,
    shard_file,
)
from graphmill.storage.format.source import check_class_names
from graphmill.storage.snapshots.snapshot_writer import SnapshotWriter, write_snapshot
from graphmill.storage.statistics.graph_set_measures import GraphSetMeasure


@dataclass(frozen=True)
class GraphSetInfo:
    """The properties that all graphs of a set share. `GraphSetManifest` describes the fields."""

    name: str
    node: RowSchema = NO_FEATURES
    edge: RowSchema = NO_FEATURES
    index_dtype: str = "uint16"
    target_names: tuple[str, ...] = ()
    split_names: tuple[str, ...] = ()
    labelled: str | None = None
    num_classes: int | None = None
    class_names: tuple[str, ...] = ()
    id_kind: str | None = None
    provenance: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        is_target = self.labelled is None and len(self.target_names) == 1
        check_class_names(self.name, self.class_names, len(self.class_names) if is_target else self.num_classes)


def write_graphs(
    url: str,
    info: GraphSetInfo,
    shards: Iterable[pa.RecordBatch],
    rejects: Iterable[Reject] = (),
    *,
    overwrite: bool = False,
    scratch: str | None = None,
    narrowed: Callable[[GraphSetInfo], GraphSetInfo] = lambda info: info,
) -> GraphSetManifest:
    """Writes each batch as a shard. A batch has the columns of `graphmill.storage.graph_sets.graph_set.shard_batch`. Memory holds one batch at a time.

    `rejects` are read after all shards. Then `narrowed` may reduce the schemas and classes of the info to the values that occurred. `scratch` is a local
    directory for the files before they are uploaded to a remote `url`. Raises ConfigError if `url` cannot be used, DataError if there is no graph,
    ConflictError if another writer published first, FormatError if writing fails.
    """
    with write_snapshot(url, overwrite=overwrite, scratch=scratch) as writer:
        return writer.commit(_write(writer, info, shards, rejects, narrowed))


def _write(
    writer: SnapshotWriter,
    info: GraphSetInfo,
    shards: Iterable[pa.RecordBatch],
    rejects: Iterable[Reject],
    narrowed: Callable[[GraphSetInfo], GraphSetInfo],
) -> GraphSetManifest:
    offsets = [0]
    measure = GraphSetMeasure(len(info.target_names), info.split_names, info.node, info.edge)
    for index, batch in enumerate(shards):
        file = writer.files / shard_file(index)
        file.parent.mkdir()
        write_batch(file, dict(zip(batch.schema.names, batch.columns, strict=True)))
        writer.add(shard_file(index))
        offsets.append(offsets[-1] + batch.num_rows)
        measure.add(batch)
    refused = list(rejects)
    if not offsets[-1]:
        first = (
            f"; the first of {len(refused)} rejected rows: line {refused[0].line}: {refused[0].reason}"
            if refused
            else ""
        )
        raise DataError(f"{info.name}: expected at least one graph, got none{first}")
    if refused:
        with open(writer.files / REJECTS_NAME, "w", newline="", encoding="utf-8") as stream:
            table = csv.writer(stream, lineterminator="\n")
            table.writerow(("line", "text", "reason"))
            table.writerows((reject.line, reject.text, reject.reason) for reject in refused)
        writer.add(REJECTS_NAME)
    statistics, lost = measure.result(), Counter(reject.split for reject in refused)
    sizes = [part.num_graphs + lost[code] for code, part in enumerate(statistics.parts)]
    rejected = [f"{name} {lost[i]:,} of {sizes[i]:,}" for i, name in enumerate(info.split_names, 1) if lost[i]]
    if rejected:
        info = replace(info, provenance={**info.provenance, "rejected": ", ".join(rejected)})
    return GraphSetManifest(
        **vars(narrowed(info)),
        num_graphs=offsets[-1],
        num_nodes=statistics.nodes.total,
        num_edges=statistics.edges.total,
        graph_offsets=tuple(offsets),
        num_rejected=len(refused),
        statistics=statistics,
        files=writer.entries(),
    )
