"""Reads and writes files of featurised chunks, from which shards are written. A file has one chunk. Its name has the chunk's number and a checksum, so that an
interrupted ingestion can continue.

A file with such a name is complete, which its checksum proves. It has the Arrow columns of a shard. The schema's metadata has the chunk's rejected rows.
"""

import hashlib
import json
import re
from dataclasses import asdict

import fsspec
import pyarrow as pa

from graphmill.core.errors import FormatError
from graphmill.storage.filesystem.filesystem_errors import one_line_errors
from graphmill.storage.filesystem.object_stores import list_names, put_file
from graphmill.storage.format.arrow_files import only_batch
from graphmill.storage.format.graph_set_manifest import Reject
from graphmill.storage.graph_sets.graph_set import shard_batch
from graphmill.storage.molecules.smiles_features import INDEX_DTYPE, Molecules

_NAME = re.compile(r"chunk-(\d{7})-([0-9a-f]{64})\.arrow")


def write_piece(filesystem: fsspec.AbstractFileSystem, folder: str, index: int, molecules: Molecules) -> str:
    """Writes one chunk's graphs. Returns the file's name, which depends only on the content. Raises FormatError if writing fails."""
    batch = shard_batch(molecules.graphs, INDEX_DTYPE, molecules.split, molecules.original_id, molecules.ids)
    rejects = json.dumps([asdict(reject) for reject in molecules.rejects])
    schema = batch.schema.with_metadata({"rejects": rejects})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(batch.replace_schema_metadata(schema.metadata))
    content = sink.getvalue().to_pybytes()
    name = f"chunk-{index:07d}-{hashlib.sha256(content).hexdigest()}.arrow"
    with one_line_errors(f"{folder}/{name}", "write this file"):
        put_file(filesystem, f"{folder}/{name}", content)
    return name


def list_pieces(filesystem: fsspec.AbstractFileSystem, folder: str) -> dict[int, str]:
    """Returns the names of the chunks' files, by chunk number."""
    with one_line_errors(folder, "list this directory"):
        matches = [_NAME.fullmatch(name) for name in list_names(filesystem, folder)]
    return {int(match[1]): match[0] for match in matches if match}


def remove_damaged(filesystem: fsspec.AbstractFileSystem, folder: str) -> None:
    """Removes files whose content does not match the checksum in their name. A power loss or a full disk may leave such files."""
    for name in list_pieces(filesystem, folder).values():
        try:
            read_piece(filesystem, folder, name)
        except FormatError:
            with one_line_errors(f"{folder}/{name}", "remove this file"):
                filesystem.rm_file(f"{folder}/{name}")


def read_piece(filesystem: fsspec.AbstractFileSystem, folder: str, name: str) -> tuple[pa.RecordBatch, list[Reject]]:
    """Reads one chunk's columns, without metadata, and its rejected rows. Raises FormatError if the content does not match the file's name."""
    where = f"{folder}/{name}"
    with one_line_errors(where, "read this file"):
        content = filesystem.cat_file(where)
    match, digest = _NAME.fullmatch(name), hashlib.sha256(content).hexdigest()
    if match is None or match[2] != digest:
        raise FormatError(f"{where}: expected the sha256 of its name, found {digest}; remove this file and run again")
    batch = only_batch(pa.BufferReader(content), where)
    rejects = [Reject(**reject) for reject in json.loads(batch.schema.metadata[b"rejects"])]
    return batch.replace_schema_metadata(None), rejects
