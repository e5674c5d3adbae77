"""Tests the ingestion of molecules. The bytes do not depend on the number of workers, an interrupted ingestion continues, and every wait has a limit."""

import gzip
import os
import time

import numpy as np
import pytest

import graphmill.cluster.ingestion.molecules as molecule_ingest
from graphmill.cluster.ingestion.molecules import ingest_molecules
from graphmill.cluster.options import MoleculeIngestOptions
from graphmill.core.errors import ConfigError, ConflictError, DataError, DeadlineError, FormatError, StageError
from graphmill.storage.format.graph_set_manifest import Reject
from graphmill.storage.graph_sets.graph_set import open_graphs
from graphmill.storage.molecules.smiles import SmilesTable
from graphmill.storage.snapshots.journal import CLOCK_MARGIN_S, LEASE_S
from graphmill.storage.snapshots.prune import prune
from graphmill.storage.snapshots.snapshots import has_graph
from tests.stored_files import contents

pytest.importorskip("rdkit")
pytest.importorskip("ogb")

BAD = {7: "C(C)(C)(C)(C)C", 31: "C1CC", 44: ""}  # molecules in three different chunks of ten


def _smiles(row):
    return BAD.get(row, "C" * (row % 9 + 1) + "O" * (row % 2))


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "molecules.csv.gz"
    path.write_bytes(gzip.compress("\n".join(["smiles,y", *(f"{_smiles(n)},{n}" for n in range(55)), ""]).encode()))
    return SmilesTable(str(path))


def _options(**options):
    return MoleculeIngestOptions(chunk_rows=10, shard_rows=25, **options)


@pytest.fixture
def counted(monkeypatch):
    """The numbers of the chunks that this process has featurised so far."""
    chunks, featurise = [], molecule_ingest.featurise_piece

    def counting(rows, folder):
        chunks.append(rows.index)
        return featurise(rows, folder)

    monkeypatch.setattr(molecule_ingest, "featurise_piece", counting)
    return chunks


def test_rows_become_graphs_and_bad_ones_are_listed(table, tmp_path):
    url = str(tmp_path / "out")
    steps = []
    manifest = ingest_molecules(table, url, _options(), progress=lambda *step: steps.append(step))
    graphs = open_graphs(url)
    graphs.verify()
    assert graphs.manifest == manifest
    assert manifest.num_graphs == 52
    assert manifest.graph_offsets == (0, 19, 38, 52)  # two chunks in each shard
    good = [row for row in range(55) if row not in BAD]
    assert graphs.original_id.tolist() == good
    np.testing.assert_array_equal(graphs.target[:, 0], np.array(good, np.float32))
    assert graphs.num_nodes.tolist() == [len(_smiles(row)) for row in good]
    reasons = graphs.rejects()
    assert [reject.line for reject in reasons] == [9, 33, 46]
    assert reasons[1] == Reject(33, "C1CC", "not SMILES")
    assert sum(len(graphs.split(name)) for name in graphs.split_names) == 52
    assert manifest.provenance["source"] == "molecules.csv.gz"
    assert {"rdkit", "ogb", "source_sha256", "split", "features"} <= set(manifest.provenance)
    assert ("featurise", 60, 55) in steps
    assert not (tmp_path / "out" / "pieces").exists()


@pytest.mark.ray
def test_the_same_bytes_for_any_workers(shared_ray, table, tmp_path):
    ingest_molecules(table, str(tmp_path / "one"), _options())
    for workers in (2, 3):
        url = tmp_path / f"by{workers}"
        ingest_molecules(table, str(url), _options(workers=workers))
        assert contents(url) == contents(tmp_path / "one")


class _Interrupted(Exception):
    pass


def _interrupt_at(chunk, monkeypatch, table, url):
    """Ingests the table, and interrupts the ingestion at this chunk."""
    featurise = molecule_ingest.featurise_piece

    def interrupted(rows, folder):
        if rows.index == chunk:
            raise _Interrupted
        return featurise(rows, folder)

    with monkeypatch.context() as patch:
        patch.setattr(molecule_ingest, "featurise_piece", interrupted)
        with pytest.raises(_Interrupted):
            ingest_molecules(table, str(url), _options())


def test_an_interrupted_ingestion_does_only_what_is_missing(table, tmp_path, monkeypatch, counted):
    ingest_molecules(table, str(tmp_path / "whole"), _options())
    assert counted == [0, 1, 2, 3, 4, 5]
    counted.clear()
    _interrupt_at(3, monkeypatch, table, tmp_path / "out")
    assert not has_graph(str(tmp_path / "out"))
    assert counted == [0, 1, 2]
    counted.clear()
    ingest_molecules(table, str(tmp_path / "out"), _options())
    assert counted == [3, 4, 5]
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def _pieces(tmp_path):
    return sorted((tmp_path / "out" / "pieces").glob("*/chunk-*"))


def test_damaged_pieces_are_made_again(table, tmp_path, monkeypatch, counted):
    _interrupt_at(3, monkeypatch, table, tmp_path / "out")
    first, second, _ = _pieces(tmp_path)
    first.write_bytes(first.read_bytes()[:-100])
    second.write_bytes(b"")
    (second.parent / f".{second.name}.1a2b3c4d").write_bytes(b"half a piece")
    counted.clear()
    ingest_molecules(table, str(tmp_path / "out"), _options())
    assert counted == [0, 1, 3, 4, 5]
    open_graphs(str(tmp_path / "out")).verify()


def test_pieces_of_another_source_or_chunk_size_are_not_taken(table, tmp_path, monkeypatch, counted):
    _interrupt_at(3, monkeypatch, table, tmp_path / "out")
    other = tmp_path / "other.csv"
    other.write_text("smiles,y\n" + "CC,1\n" * 12)
    counted.clear()
    ingest_molecules(SmilesTable(str(other)), str(tmp_path / "out"), _options())
    assert counted == [0, 1]
    graphs = open_graphs(str(tmp_path / "out"))
    assert len(graphs) == 12
    # The interrupted ingestion may still continue, so `prune` keeps its files until its lease ends.
    left = _pieces(tmp_path)
    assert len(left) == 3
    folder = f"pieces/{left[0].parent.name}"
    assert prune(graphs.url, keep=1).held == (folder,)
    assert prune(graphs.url, keep=1, now=time.time() + LEASE_S + CLOCK_MARGIN_S + 1).orphans == (folder,)
    assert not left[0].parent.exists()
    graphs.verify()


def test_a_piece_that_vanishes_is_named(table, tmp_path, monkeypatch):
    monkeypatch.setattr(molecule_ingest, "featurise_piece", lambda rows, folder: "written on another machine's disk")
    with pytest.raises(
        FormatError, match=r"expected a piece for each of 6 chunks, found none for chunk 0; all nodes must"
    ):
        ingest_molecules(table, str(tmp_path / "out"), _options())


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("stage", ["featurise", "join"])
def test_of_two_ingestions_of_one_source_the_later_one_says_what_to_do(table, tmp_path, stage, overwrite):
    url, options = str(tmp_path / "out"), _options(overwrite=overwrite)
    first = []

    def other(at, *_):
        """When this ingestion reaches the stage `stage`, runs a second ingestion from start to end."""
        if at == stage and not first:
            first.append(None)
            first.append(ingest_molecules(table, url, options))

    # Without --overwrite, this ingestion may find the graph of the other ingestion before it notices its missing pieces.
    with pytest.raises(
        (ConflictError, ConfigError), match=r"found a graph; pass --overwrite|run again with --overwrite"
    ):
        ingest_molecules(table, url, options, progress=other)
    graphs = open_graphs(url)
    graphs.verify()
    assert graphs.manifest == first[1]
    assert ingest_molecules(table, url, _options(overwrite=True)).snapshot == 2


def test_what_cannot_work_is_said_before_any_work(table, tmp_path, counted):
    ingest_molecules(table, str(tmp_path / "out"), _options())
    counted.clear()
    with pytest.raises(ConfigError, match="pass --overwrite"):
        ingest_molecules(table, str(tmp_path / "out"), _options())
    with pytest.raises(ConfigError, match="memory:// is not shared by workers"):
        ingest_molecules(table, "memory://out", _options(workers=2))
    for name, value in (("workers", 0), ("shard_rows", 9), ("deadline_s", 0), ("retries", -1)):
        with pytest.raises(ConfigError, match=f"; set {name}$"):
            MoleculeIngestOptions(**{"chunk_rows": 10, name: value})
    assert counted == []


def test_nothing_but_rejects_is_refused(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("smiles,y\nx,1\ny,2\n")
    with pytest.raises(
        DataError, match="expected at least one graph, got none; the first of 2 rejected rows: line 2: not SMILES"
    ):
        ingest_molecules(SmilesTable(str(path)), str(tmp_path / "out"), _options())
    assert not has_graph(str(tmp_path / "out"))


def _patch_task(monkeypatch, featurise):
    monkeypatch.setattr(molecule_ingest, "featurise_piece", featurise)


@pytest.mark.ray
@pytest.mark.slow
def test_workers_that_die_raise_or_hang(shared_ray, table, tmp_path, monkeypatch):
    """Three cases on one Ray. A worker that dies once is replaced. A worker that always dies ends the ingestion. A worker that hangs ends at its deadline."""
    featurise, marks = molecule_ingest.featurise_piece, str(tmp_path / "marks")
    os.mkdir(marks)

    def dies_once(rows, folder):  # a nested function, because Ray pickles it by value
        if rows.index == 2:
            try:
                os.mkdir(f"{marks}/died")
            except FileExistsError:
                return featurise(rows, folder)
            os._exit(1)
        return featurise(rows, folder)

    def always_dies(rows, folder):
        if rows.index == 2:
            os.mkdir(f"{marks}/{os.getpid()}")
            os._exit(1)
        return featurise(rows, folder)

    def raises(rows, folder):
        if rows.index == 1:
            raise FormatError("disk full")
        return featurise(rows, folder)

    def breaks(rows, folder):
        raise KeyError("a defect")

    def hangs(rows, folder):
        import time

        time.sleep(120)

    ingest_molecules(table, str(tmp_path / "whole"), _options())
    for featurise_piece, retries, error, message in (
        (always_dies, 1, StageError, r"rows from line 22 on: the worker died 2 times \(WorkerCrashedError\)"),
        (raises, 0, FormatError, r"^featurising the rows from line \d+ on: disk full$"),
        (breaks, 0, StageError, "rows from line .* on: KeyError: 'a defect'"),
    ):
        _patch_task(monkeypatch, featurise_piece)
        with pytest.raises(error, match=message) as caught:
            ingest_molecules(table, str(tmp_path / featurise_piece.__name__), _options(workers=2, retries=retries))
        assert "\n" not in str(caught.value)
    assert len(os.listdir(marks)) == 2
    # After an error, running tasks are not killed but finish: another ingestion may get their workers next. The next call uses their pieces.
    assert {int(piece.name.split("-")[1]) for piece in (tmp_path / "raises").glob("pieces/*/chunk-*")} >= {0, 2, 3}
    _patch_task(monkeypatch, hangs)
    with pytest.raises(DeadlineError, match=r"expected a finished chunk within 3 s, got none of \d from line"):
        ingest_molecules(table, str(tmp_path / "hung"), _options(workers=2, deadline_s=3))
    assert not any(has_graph(str(tmp_path / name)) for name in ("always_dies", "raises", "breaks", "hung"))
    _patch_task(monkeypatch, dies_once)
    ingest_molecules(table, str(tmp_path / "died"), _options(workers=2, retries=1))
    assert os.path.exists(f"{marks}/died")
    assert contents(tmp_path / "died") == contents(tmp_path / "whole")
