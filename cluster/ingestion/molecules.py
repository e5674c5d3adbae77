"""Ingests molecules into Arrow shards. The rows are featurised chunk by chunk, in this process or in Ray tasks. An interrupted ingestion can be continued.

The steps for a chunk: rows of the source → graphs with OGB's features → a piece in the destination, `pieces/<fingerprint>/`.
When all pieces exist, they are joined to shards in the order of the source, a snapshot is published, and the pieces are removed.
A chunk depends only on the source and the chunk size. Therefore the bytes do not depend on the workers, and pieces of a killed run are used again.
Pieces of another source, chunk size or RDKit version have another fingerprint.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
import pyarrow as pa
from fsspec.implementations.memory import MemoryFileSystem

from graphmill.cluster.options import MoleculeIngestOptions, SessionOptions
from graphmill.cluster.ray.session import ray_session
from graphmill.core.errors import ConfigError, ConflictError, DeadlineError, FormatError
from graphmill.storage.filesystem.fsync import remove_if_empty
from graphmill.storage.filesystem.urls import is_local, split_url
from graphmill.storage.format.graph_set_manifest import GraphSetManifest, Reject
from graphmill.storage.graph_sets.graph_set_writer import GraphSetInfo, write_graphs
from graphmill.storage.graph_sets.resplit import fill_parts, resplit
from graphmill.storage.molecules.featurised_chunks import list_pieces, read_piece, remove_damaged, write_piece
from graphmill.storage.molecules.molecule_source import HASHED, MoleculeRows, MoleculeSource
from graphmill.storage.molecules.smiles_features import (
    ATOMS,
    BONDS,
    INDEX_DTYPE,
    Featuriser,
    chemistry_versions,
    murcko_scaffold,
)
from graphmill.storage.snapshots.garbage import remove_files
from graphmill.storage.snapshots.journal import Lease
from graphmill.storage.snapshots.snapshot_writer import check_destination
from graphmill.storage.snapshots.snapshots import PIECES, last_number

if TYPE_CHECKING:
    from ray import ObjectRef

_PIECES_VERSION = 1
_CHUNK_ROWS = 10_000  # chunk size of a pass over the source
_SMALL_SET = 1000  # molecules; in a larger set the chance that the hash leaves a part empty is 1 in 10^45
_STOP_S = 10.0  # after an error: longest wait for running chunks to end, and again for hanging chunks to be killed
Progress = Callable[[str, int, int | None], None]  # stage, units done, total units (None: unknown)


def ingest_molecules(
    source: MoleculeSource,
    url: str,
    options: MoleculeIngestOptions | None = None,
    session: SessionOptions | None = None,
    progress: Progress | None = None,
) -> GraphSetManifest:
    """Writes the molecules of `source` under `url` and returns the manifest. `session`: the options for the connection to Ray, if Ray is needed.

    Raises ConfigError if `url` cannot be used, DataError if the source cannot be read or has no molecule, StageError if the workers of a chunk
    died too often, DeadlineError if no chunk finished in time, FormatError if writing fails. After an error the pieces stay, and the next call
    with the same source and url continues from them. Raises ConflictError if another process published at `url` in the meantime: both processes
    use the same pieces of a source, and the first process that publishes removes the pieces.
    """
    options = options or MoleculeIngestOptions()
    report = progress or (lambda *_: None)
    filesystem, path = split_url(url)
    if options.workers > 1 and isinstance(filesystem, MemoryFileSystem):
        raise ConfigError(f"{url}: memory:// is not shared by workers; choose another url, or --workers 1")
    check_destination(url, overwrite=options.overwrite)
    identity = (_PIECES_VERSION, source.info.identity, options.chunk_rows, chemistry_versions())
    fingerprint = hashlib.sha256(repr(identity).encode())
    relative = f"{PIECES}/{fingerprint.hexdigest()[:16]}"
    folder = f"{path}/{relative}"
    base = last_number(filesystem, path)
    lease = Lease(filesystem, folder)
    lease.begin()
    try:
        remove_damaged(filesystem, folder)  # an interrupted run may have left damaged pieces
        manifest = _ingest_pieces(
            source, url, options, session, report, _Pieces(source, options.chunk_rows, filesystem, folder)
        )
    except FormatError as error:
        newest = last_number(filesystem, path)
        if newest == base:
            raise
        raise ConflictError(
            f"{url}: another ingestion published snapshot {newest} meanwhile and removed the pieces that both used; that snapshot is "
            "whole, and nothing of this one was published; use it, or run again with --overwrite"
        ) from error
    finally:
        lease.release()
    remove_files(filesystem, path, relative)
    if is_local(filesystem):
        remove_if_empty(f"{path}/{PIECES}")
    return manifest


def _ingest_pieces(
    source: MoleculeSource,
    url: str,
    options: MoleculeIngestOptions,
    session: SessionOptions | None,
    report: Progress,
    pieces: _Pieces,
) -> GraphSetManifest:
    info, versions = source.info, chemistry_versions()
    _featurise_missing(pieces, options, session, report)
    rejects: list[Reject] = []
    stored = GraphSetInfo(
        name=info.name,
        node=ATOMS,
        edge=BONDS,
        index_dtype=INDEX_DTYPE,
        target_names=info.target_names,
        split_names=info.split_names,
        id_kind=info.id_kind,
        provenance={**info.provenance, **versions, "features": "ogb.utils.mol.smiles2graph"},
    )

    def shards() -> Iterable[pa.RecordBatch]:
        rejects.clear()
        return pieces.shards(options.shard_rows // options.chunk_rows, rejects, report)

    is_hashed, written = info.provenance.get("split") == HASHED, (stored, shards())
    if options.split:
        written = resplit(stored, shards, options.split, partial(_groups, source, murcko_scaffold))
    elif is_hashed and (info.num_rows or _SMALL_SET) < _SMALL_SET:
        written = fill_parts(stored, shards, partial(_groups, source, str.strip))
    # Rejected rows are reported by split only if the source itself publishes the split.
    reported = (replace(each, split=0) for each in rejects) if options.split or is_hashed else rejects
    return write_graphs(url, *written, reported, overwrite=options.overwrite, scratch=options.scratch)


def _groups(source: MoleculeSource, key: Callable[[str], str], row: np.ndarray) -> np.ndarray:
    """int64 [n]: group ids of these rows of the source (int64 [n]). Rows are in the same group if `key` returns the same for their SMILES."""
    numbers: dict[str, int] = {}
    rows, groups = [], list[int]()
    for chunk in source.chunks(_CHUNK_ROWS):
        rows.append(chunk.row)
        groups += [numbers.setdefault(key(smiles), len(numbers)) for smiles in chunk.smiles]
    return np.array(groups, np.int64)[np.searchsorted(np.concatenate(rows), row)]


class _Pieces:
    """The pieces of a source's chunks. Finds missing pieces, and joins all pieces."""

    def __init__(
        self, source: MoleculeSource, chunk_rows: int, filesystem: fsspec.AbstractFileSystem, folder: str
    ) -> None:
        self._source, self._chunk_rows, self._filesystem, self.folder = source, chunk_rows, filesystem, folder
        self._num_chunks = 0
        self.num_rows = source.info.num_rows

    @property
    def url(self) -> str:
        """Returns the folder's URL, which other processes can open."""
        return str(self._filesystem.unstrip_protocol(self.folder))

    def missing(self) -> Iterator[MoleculeRows]:
        """Yields the chunks that have no piece yet. Reads the source to its end."""
        names = list_pieces(self._filesystem, self.folder)
        for rows in self._source.chunks(self._chunk_rows):
            self._num_chunks = rows.index + 1
            if rows.index not in names:
                yield rows

    def shards(self, chunks_per_shard: int, rejects: list[Reject], progress: Progress) -> Iterator[pa.RecordBatch]:
        """Joins the pieces to shards, in order. Rejected rows are appended to `rejects`. Call this method after `missing` has ended."""
        names = list_pieces(self._filesystem, self.folder)
        for start in range(0, self._num_chunks, chunks_per_shard):
            batches = []
            for index in range(start, min(start + chunks_per_shard, self._num_chunks)):
                if index not in names:
                    raise FormatError(
                        f"{self.url}: expected a piece for each of {self._num_chunks} chunks, found none for chunk {index}; "
                        "all nodes must see this folder: choose a url on storage that they share"
                    )
                batch, refused = read_piece(self._filesystem, self.folder, names[index])
                batches.append(batch)
                rejects += refused
            yield pa.concat_batches(batches)
            progress("join", min(start + chunks_per_shard, self._num_chunks), self._num_chunks)


def _featurise_missing(
    pieces: _Pieces, options: MoleculeIngestOptions, session: SessionOptions | None, progress: Progress
) -> None:
    missing = pieces.missing()
    if options.workers == 1:
        for rows in missing:
            featurise_piece(rows, pieces.url)
            progress("featurise", (rows.index + 1) * options.chunk_rows, pieces.num_rows)
        return
    first = next(missing, None)
    if first is None:  # all pieces exist from an earlier run, so Ray is not needed
        return
    session = session or SessionOptions()
    if session.num_cpus is None:
        session = replace(session, num_cpus=options.workers)
    warm = ("rdkit.Chem", "graphmill.storage.molecules.smiles_features", __name__)
    with ray_session(session, warm) as ray_of_tasks:
        tasks = _Tasks(pieces.url, options)
        try:
            tasks.start(first)
            for rows in missing:
                if len(tasks.running) >= 2 * options.workers:
                    progress("featurise", tasks.wait() * options.chunk_rows, pieces.num_rows)
                tasks.start(rows)
            while tasks.running:
                progress("featurise", tasks.wait() * options.chunk_rows, pieces.num_rows)
        finally:
            if not ray_of_tasks.is_ours:  # a Ray that this process started ends its tasks when it stops
                tasks.stop()


def featurise_piece(rows: MoleculeRows, folder_url: str) -> str:
    """Featurises one chunk, writes its piece and returns the file's name."""
    filesystem, folder = split_url(folder_url)
    return write_piece(filesystem, folder, rows.index, _featuriser().featurise(rows))


@functools.lru_cache(maxsize=1)
def _featuriser() -> Featuriser:
    """Returns the featuriser for all chunks of this process. It is made once, because it caches rows and importing RDKit is slow."""
    return Featuriser()


class _Tasks:
    """Featurises chunks in Ray tasks. Every wait has a deadline. The number of retries of a chunk is limited."""

    def __init__(self, folder_url: str, options: MoleculeIngestOptions) -> None:
        import ray

        self._options, self._folder_url, self._num_done = options, folder_url, 0
        self.running: dict[ObjectRef, MoleculeRows] = {}
        # Ray gives a dead worker's task to another worker; an error that the task raises is final.
        self._task: Any = ray.remote(num_cpus=1, max_retries=options.retries, retry_exceptions=False)(featurise_piece)

    def start(self, rows: MoleculeRows) -> None:
        self.running[self._task.remote(rows, self._folder_url)] = rows

    def stop(self) -> None:
        """Ends the tasks after an error: waits for running tasks, so that the next call can use their pieces, and kills tasks that hang."""
        import ray

        # If a task ends while Ray kills its worker, the worker may get another task, which dies too. Therefore a task that may still end is not killed.
        hanging, timeout_s = list(self.running), min(_STOP_S, self._options.deadline_s)
        if hanging:
            _, hanging = ray.wait(hanging, num_returns=len(hanging), timeout=timeout_s)
        for ref in hanging:
            ray.cancel(ref, force=True)
        if hanging:
            ray.wait(hanging, num_returns=len(hanging), timeout=_STOP_S)
        self.running.clear()

    def wait(self) -> int:
        """Waits until one task has finished. Returns the number of finished tasks so far."""
        import ray

        from graphmill.cluster.process.answers import answer

        deadline_s = self._options.deadline_s
        ready, _ = ray.wait(list(self.running), num_returns=1, timeout=deadline_s)
        if not ready:
            waiting = sorted(_first_line(rows) for rows in self.running.values())
            raise DeadlineError(
                f"featurising: expected a finished chunk within {deadline_s:g} s, got none of {len(waiting)} from line {waiting[0]} on; "
                "the cluster has no free CPU, or a molecule takes too long: raise --deadline_s, or run again to go on"
            )
        rows = self.running.pop(ready[0])
        died = f"the worker died {self._options.retries + 1} times"
        again = "; a molecule may crash RDKit, or memory is short; run again to go on"
        who = f"featurising the rows from line {_first_line(rows)} on"
        answer(ready[0], who, deadline_s, "raise --deadline_s", died=died, again=again)
        self._num_done += 1
        return self._num_done


def _first_line(rows: MoleculeRows) -> int:
    return int(rows.line[0]) if len(rows.line) else rows.rejects[0].line
