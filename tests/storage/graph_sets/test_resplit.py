"""Tests splits that are drawn for sets of graphs, and tables of molecules in which the split by hash leaves a part empty."""

from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from graphmill.core.errors import ConfigError, DataError
from graphmill.storage.graph_sets.graph_set import open_graphs, shard_batch
from graphmill.storage.graph_sets.graph_set_writer import GraphSetInfo, write_graphs
from graphmill.storage.graph_sets.packed_graphs import PackedGraphs
from graphmill.storage.graph_sets.resplit import resplit
from graphmill.storage.splits.split_options import SplitOptions

TARGET = np.array([0, 1, 1, np.nan, 0, 1, 1, 1, 0, 1, 1, 0], np.float32)


def batches(target=TARGET[:, None]):
    for first in (0, 5):
        own = slice(first, 5 if not first else len(TARGET))
        count = len(TARGET[own])
        graphs = PackedGraphs(
            np.full(count, 2), np.full(count, 1), np.tile([[0], [1]], count).astype(np.int32), None, None, target[own]
        )
        yield shard_batch(graphs, "uint16", np.ones(count, np.int8), np.arange(20)[own])


INFO = GraphSetInfo("toy", target_names=("y",), split_names=("official",))


def test_a_set_is_split_by_its_classes(tmp_path):
    options = SplitOptions(shares=(0.4, 0.3, 0.3), by="label", seed=1)
    write_graphs(str(tmp_path / "toy"), *resplit(INFO, batches, options))
    graphs = open_graphs(str(tmp_path / "toy"))
    assert graphs.split_names == ("train", "valid", "test")
    assert graphs.manifest.provenance["split"] == "0.4 0.3 0.3 by label, seed 1"
    assert graphs.unsplit().tolist() == [3]
    of_part = {name: graphs.target[graphs.split(name), 0].tolist() for name in graphs.split_names}
    assert {name: len(own) for name, own in of_part.items()} == {"train": 3, "valid": 4, "test": 4}
    assert all(0 < own.count(0) < len(own) for own in of_part.values())


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"by": "scaffold"}, "or scaffold for molecules; set --split.by"),
        ({"by": "time"}, "split 0.5 0.5 by time: expected random, label"),
        ({"by": "label"}, "split 0.5 0.5 by label, seed 0: expected random, label for one target of classes"),
    ],
)
def test_splits_that_a_set_cannot_have(split, message):
    with pytest.raises(ConfigError, match=message):
        resplit(INFO, partial(batches, TARGET[:, None] / 2), SplitOptions(shares=(0.5, 0.5), **split))
    with pytest.raises(DataError, match="got 0 rows; leave --split out"):
        resplit(INFO, partial(batches, TARGET[:, None] * np.nan), SplitOptions(shares=(0.5, 0.5)))


def table_of(path, rows):
    pytest.importorskip("rdkit")
    pytest.importorskip("ogb")
    from graphmill.storage.molecules.smiles import SmilesTable

    path.write_text("\n".join(["smiles,y", *rows]) + "\n")
    return SmilesTable(str(path))


def ingested(table, url, **split):
    from graphmill.cluster.ingestion.molecules import ingest_molecules
    from graphmill.cluster.options import MoleculeIngestOptions

    ingest_molecules(table, str(url), MoleculeIngestOptions(chunk_rows=7, shard_rows=14, split=SplitOptions(**split)))
    return open_graphs(str(url))


@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("count", [2, 3, 5, 10])
def test_a_small_table_always_trains_and_validates(tmp_path, first, count):
    from graphmill.storage.molecules.molecule_source import hashed_split

    texts = ["C" * (1 + n % 7) + "O" * (n // 7) for n in range(7 * first, 7 * first + count)]
    rows = [f"{text},{n}" for n, text in enumerate(texts)] + ["C1CC,5"] + [f"{text}N," for text in texts]
    graphs = ingested(table_of(tmp_path / "m.csv", rows), tmp_path / "set")
    known = ~np.isnan(graphs.target[:, 0])
    codes = np.zeros(len(graphs), int)
    for code, name in enumerate(graphs.split_names, 1):
        codes[graphs.split(name)] = code
    assert {1, 2} <= set(codes[known].tolist())
    by_hash = [hashed_split(text) for text in texts]
    if {1, 2} <= set(by_hash):
        assert codes[known].tolist() == by_hash
        assert "filled" not in graphs.manifest.provenance
    else:
        assert np.bincount(codes[known], minlength=4)[1:].tolist() == [count - 1 - (count > 2), 1, int(count > 2)]
        assert graphs.manifest.provenance["split"] == "sha256 of the SMILES, 80/10/10"
        assert graphs.manifest.provenance["filled"].startswith("0.8 0.1 0.1 of distinct molecules")


def test_equal_molecules_stay_in_one_part_and_one_alone_is_not_divided(tmp_path):
    graphs = ingested(table_of(tmp_path / "m.csv", ["C,1", "CC,2", "C,3", "CC,4"]), tmp_path / "set")
    parts = {name: graphs.target[graphs.split(name), 0].tolist() for name in ("train", "valid")}
    assert sorted(parts.values()) == [[1, 3], [2, 4]]
    alone = ingested(table_of(tmp_path / "one.csv", ["C,1", "C,2"]), tmp_path / "one")
    assert "filled" not in alone.manifest.provenance


def test_molecules_are_split_by_their_scaffolds(tmp_path):
    from rdkit import Chem
    from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmiles

    rings = ["c1ccccc1", "C1CC1", "C1CCCC1", "c1ccncc1", "C1CCOC1", ""]
    texts = [f"{'C' * (n // 6 + 1)}{rings[n % 6]}" for n in range(60)] + ["C1CC"]
    table = table_of(tmp_path / "m.csv", [f"{text},{n}" for n, text in enumerate(texts)])
    graphs = ingested(table, tmp_path / "set", shares=(0.6, 0.2, 0.2), by="scaffold")
    scaffolds = {}
    for name in graphs.split_names:
        rows = graphs.original_id[graphs.split(name)]
        scaffolds[name] = {MurckoScaffoldSmiles(mol=Chem.MolFromSmiles(texts[row])) for row in rows}
        assert len(rows) == 10 * len(scaffolds[name])
    assert [len(own) for own in scaffolds.values()] == [4, 1, 1]
    assert len(set.union(*scaffolds.values())) == 6
    drawn = ingested(table, tmp_path / "random", shares=(0.8, 0.1, 0.1), seed=1)
    assert [len(drawn.split(name)) for name in drawn.split_names] == [48, 6, 6]


def test_the_default_split_says_the_same_of_all_sources_of_molecules(tmp_path):
    from graphmill.storage.molecules.enumerated_molecules import EnumeratedMolecules
    from graphmill.storage.molecules.molecule_source import HASHED

    assert table_of(tmp_path / "m.csv", ["C,1"]).info.provenance["split"] == HASHED
    assert EnumeratedMolecules(5).info.provenance["split"] == HASHED


def test_another_split_changes_no_other_column():
    batch = next(batches())
    again = list(resplit(INFO, batches, SplitOptions(shares=(0.5, 0.5)))[1])
    assert again[0].drop_columns(["split", "target"]).equals(batch.drop_columns(["split", "target"]))
    assert sum(pa.compute.sum(one["split"]).as_py() for one in again) == 5 * 1 + 6 * 2
