"""Tests sources from tables of SMILES and from PCQM4Mv2's layout. Every row is in a chunk, or is rejected with its line."""

import gzip
import lzma

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet
import pytest

from graphmill.core.errors import ConfigError, DataError
from graphmill.storage.importers.columns.column_roles import NULLS
from graphmill.storage.molecules.molecule_source import hashed_split
from graphmill.storage.molecules.pcqm4mv2 import pcqm4mv2, read_split_dict
from graphmill.storage.molecules.smiles import SmilesTable, split_from_file
from graphmill.storage.molecules.smiles_options import SmilesOptions


def _table(path, text, **options):
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return SmilesTable(str(path), SmilesOptions(**options))


def _all(table, rows=1000):
    chunks = list(table.chunks(rows))
    return [smiles for chunk in chunks for smiles in chunk.smiles], chunks


@pytest.mark.parametrize("name", ["m.csv", "m.csv.gz"])
def test_the_one_other_column_is_the_target(tmp_path, name):
    table = _table(tmp_path / name, "smiles,gap\nCC,1.5\n\nCO,\nCN,nan\n")
    smiles, (chunk,) = _all(table)
    assert smiles == ["CC", "CO", "CN"]
    assert table.info.name == "m"
    assert table.info.target_names == ("gap",)
    np.testing.assert_array_equal(chunk.target, np.array([[1.5], [np.nan], [np.nan]], np.float32))
    assert chunk.row.tolist() == [0, 1, 2]
    assert chunk.line.tolist() == [2, 4, 5]
    assert chunk.split.tolist() == [hashed_split(each) for each in smiles]
    assert chunk.rejects == ()


def test_rows_that_cannot_be_read_are_rejected_with_their_line(tmp_path):
    table = _table(tmp_path / "m.csv", "smiles,y\nCC,1\nCO\nCN,abc\nCF,inf\nCCl,1e300\nCBr,2,3\nCI,4\n")
    smiles, (chunk,) = _all(table)
    assert smiles == ["CC", "CI"]
    assert chunk.row.tolist() == [0, 6]
    assert [(reject.line, reject.text) for reject in chunk.rejects] == [
        (3, "CO"),
        (4, "CN,abc"),
        (5, "CF,inf"),
        (6, "CCl,1e300"),
        (7, "CBr,2,3"),
    ]
    reasons = [reject.reason for reject in chunk.rejects]
    assert reasons[0] == "expected 2 fields, got 1"
    assert reasons[1] == "target 'abc' is not a number"
    assert reasons[2:4] == ["target 'inf' is not finite", "target '1e300' is not finite"]


@pytest.mark.parametrize(
    ("text", "options", "roles", "ids"),
    [
        ("cid,smiles\n101,C\n103,CC\n102,CCC\n", {}, "targets none; id cid; unused none", [101, 103, 102]),
        ("smiles,mol_id,y\nC,7,1\nCC,5,2\n", {}, "targets y; id mol_id; unused none", [7, 5]),
        ("code,smiles,y\nA-1,C,1\nNA,CC,2\n", {}, "targets y; id code; unused none", ["A-1", "NA"]),
        ("id,smiles,y\n007,C,1\n008,CC,2\n", {}, "targets y; id id; unused none", ["007", "008"]),
        (",smiles,y\n0,C,1\n1,CC,2\n", {}, "targets y; id ''; unused none", [0, 1]),
        ("Molecule Name,smiles\nx,C\ny,CC\n", {}, "targets none; id Molecule Name; unused none", ["x", "y"]),
        # The id is the first of several possible columns. A column with repeated values, missing values or fractions is not possible.
        ("name,chembl_id,smiles\na,C1,C\na,C2,CC\n", {}, "targets none; id chembl_id; unused name", ["C1", "C2"]),
        ("id,smiles,y\n4,C,1\n4,CC,2\n", {}, "targets y; id none; unused id", None),
        ("id,smiles,y\n4,C,1\n,CC,2\n", {}, "targets y; id none; unused id", None),
        ("id,smiles,y\n0.5,C,1\n1.5,CC,2\n", {}, "targets y; id none; unused id", None),
        ("inchi,smiles,cid\n1S/CH4,C,4\n1S/C2H6,CC,5\n", {}, "targets none; id cid; unused inchi", [4, 5]),
        # A column of numbers whose name is not the name of an id is a target, even if the numbers are whole and distinct.
        ("smiles,y\nC,1\nCC,2\n", {}, "targets y; id none; unused none", None),
        ("smiles,y\nC,1\nCC,x\n", {}, "targets y; id none; unused none", None),
        ("id,smiles,y\n4,C,1\n5,CC,2\n", {"targets": ("id",)}, "targets id; id none; unused y", None),
        ("id,smiles,y\n4,C,1\n5,CC,2\n", {"id": None}, "targets y; id none; unused id", None),
        ("a,smiles,y\n4,C,1\n5,CC,2\n", {"id": "a"}, "targets y; id a; unused none", [4, 5]),
        ("a,smiles,y\n4,C,1\n5,CC,2\n", {"id": "a", "targets": ("y",)}, "targets y; id a; unused none", [4, 5]),
        ("smiles,note\nC,new\nCC,new\n", {}, "targets none; id none; unused note", None),
    ],
)
def test_the_roles_of_columns(tmp_path, text, options, roles, ids):
    table = _table(tmp_path / "m.csv", text, **options)
    assert table.info.columns == roles
    assert ("columns" in table.info.provenance) == ("id none; unused none" not in roles)
    (chunk,) = table.chunks(10)
    assert (None if chunk.ids is None else chunk.ids.to_pylist()) == ids
    assert table.info.id_kind == (None if ids is None else "number" if isinstance(ids[0], int) else "string")
    assert chunk.target.shape[1] == len(table.info.target_names)
    has_split = bool(table.info.target_names)  # without targets there is nothing to learn, so no split is drawn
    assert (chunk.split > 0).tolist() == [has_split] * len(chunk.row)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (
            "a,smiles\nx,C\nx,CC\n",
            {"id": "a"},
            "column 'a': expected another id in every row, got that of an earlier row",
        ),
        ("a,smiles\nx,C\n,CC\n", {"id": "a"}, "column 'a': expected another id in every row, got an empty field"),
        ("a,smiles\nx,C\n", {"id": "b"}, "id: expected a column of a, got 'b'; set --table.id"),
        ("a,smiles\n1,C\n", {"id": "a", "targets": ("a",)}, "id: expected a column of"),
        ("smiles,y,y\nC,1,2\n", {}, "expected one column 'y'"),
        (
            "smiles,a,b\nC,1,2\n",
            {},
            "expected the names of the target columns, which may be any of a, b; set --table.targets",
        ),
        ("smi,a\nC,1\n", {}, "expected one column 'smiles', the header has smi, a"),
        ("smiles,a\nC,1\n", {"targets": ("b",)}, "expected one column 'b'"),
        ("smiles,smiles\nC,1\n", {}, "expected one column 'smiles'"),
        ("C,1\n", {"header": False, "smiles": "2"}, "expected one column '2', there are the columns 0, 1"),
        ("", {}, "got an empty file"),
        ("\n\n", {}, "got an empty file"),
    ],
)
def test_columns_that_are_missing_or_ambiguous_are_refused(tmp_path, text, options, message):
    with pytest.raises((ConfigError, DataError), match=message):
        _table(tmp_path / "m.csv", text, **options)


@pytest.mark.parametrize("null", NULLS)
def test_nulls_of_every_program_are_missing_targets_and_no_part(tmp_path, null):
    table = _table(tmp_path / "m.csv", f"smiles,y,part\nCC,{null},{null}\nCO,1.5,train\n", split_column="part")
    _, (chunk,) = _all(table)
    assert chunk.rejects == ()
    np.testing.assert_array_equal(chunk.target, np.array([[np.nan], [1.5]], np.float32))
    assert chunk.split.tolist() == [0, 1]


@pytest.mark.parametrize("text", ["1_000", "1_0.5", "1,5", "1 000", "0x10"])
def test_numbers_are_those_of_the_other_readers(tmp_path, text):
    table = _table(tmp_path / "m.csv", f'smiles,y\nCC,"{text}"\nCO,2\n')
    smiles, (chunk,) = _all(table)
    assert smiles == ["CO"]
    assert [reject.reason for reject in chunk.rejects] == [f"target '{text}' is not a number"]


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 100])
def test_chunks_have_a_fixed_number_of_rows(tmp_path, rows):
    text = "smiles,y\n" + "".join(f"{'C' * n},{'x' if n % 5 == 0 else n}\n" for n in range(1, 15))
    table = _table(tmp_path / "m.csv", text)
    chunks = list(table.chunks(rows))
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert [len(chunk.row) + len(chunk.rejects) for chunk in chunks] == [
        min(rows, 14 - start) for start in range(0, 14, rows)
    ]
    kept = np.concatenate([chunk.row for chunk in chunks]).tolist()
    assert kept == [row for row in range(14) if (row + 1) % 5]


@pytest.mark.parametrize(
    ("text", "options", "target"),
    [
        ("1\tC\t2\n3\tCC\t4\n", {"delimiter": "tab", "smiles": "1", "targets": ("2", "0")}, [[2, 1], [4, 3]]),
        ("C\nCC\n", {"smiles": "0"}, [[], []]),
    ],
)
def test_tables_without_header(tmp_path, text, options, target):
    smiles, (chunk,) = _all(_table(tmp_path / "m.smi", text, header=False, **options))
    assert smiles == ["C", "CC"]
    assert chunk.target.tolist() == target
    assert chunk.line.tolist() == [1, 2]


def test_extension_stays_with_the_smiles(tmp_path):
    table = _table(tmp_path / "m.csv", 'smiles,y\n"CC |(0,0,0;1,0,0)|",1\n')
    assert _all(table)[0] == ["CC |(0,0,0;1,0,0)|"]


def test_split_by_a_column(tmp_path):
    text = "smiles,y,part\nC,1,train\nCC,1,val\nCCC,1,Valid\nCCCC,1,test\nCCCCC,1,\nCCCCCC,1,dev2\n"
    table = _table(tmp_path / "m.csv", text, split_column="part")
    _, (chunk,) = _all(table)
    assert chunk.split.tolist() == [1, 2, 2, 3, 0]
    assert chunk.rejects[0].reason == "split 'dev2' is none of train, valid and test"
    assert table.info.target_names == ("y",)
    assert table.info.split_names == ("train", "valid", "test")


def test_split_by_a_file(tmp_path):
    np.savez(tmp_path / "split.npz", train=np.array([0, 3]), val=np.array([1]), test=np.array([4]))
    text = "smiles,y\nC,1\nCC,1\nCCC,1\nCCCC,x\nCCCCC,1\n"
    table = _table(tmp_path / "m.csv", text, split_file=str(tmp_path / "split.npz"))
    chunks = list(table.chunks(2))
    # row 3 is rejected, and its row number is not given to another row
    assert np.concatenate([chunk.split for chunk in chunks]).tolist() == [1, 2, 0, 3]
    short = _table(tmp_path / "short.csv", "smiles,y\nC,1\n", split_file=str(tmp_path / "split.npz"))
    with pytest.raises(DataError, match="up to 4, got 1 rows; the split is of another table"):
        list(short.chunks(2))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"train": [0, 1], "test": [1]}, "part 'test': expected each row in one part and once"),
        ({"train": [0, 0]}, "part 'train': expected each row in one part and once"),
        ({"train": [-1]}, "expected row numbers"),
        ({"train": [0.5]}, "expected row numbers"),
        ({"train": [0], "other": [1]}, "expected arrays train, valid .* found train, other"),
    ],
)
def test_split_files_that_make_no_sense(tmp_path, arrays, message):
    np.savez(tmp_path / "split.npz", **{name: np.array(rows) for name, rows in arrays.items()})
    with pytest.raises(DataError, match=message):
        split_from_file(str(tmp_path / "split.npz"))


def test_a_row_number_takes_no_memory(tmp_path):
    """A table of codes for all rows up to the largest row number would take 4 EiB."""
    np.savez(tmp_path / "split.npz", train=np.array([0, 2**62]), val=np.array([1]), test=np.array([2]))
    table = _table(tmp_path / "m.csv", "smiles,y\nC,1\nCC,1\nCCC,1\n", split_file=str(tmp_path / "split.npz"))
    with pytest.raises(DataError, match="up to 4611686018427387904, got 3 rows; the split is of another table"):
        list(table.chunks(10))


def test_split_file_that_is_a_pickle_or_absent(tmp_path):
    np.savez(tmp_path / "split.npz", train=np.array([{}], dtype=object))
    for path in (tmp_path / "split.npz", tmp_path / "none.npz", __file__):
        with pytest.raises(DataError, match=r"expected (a plain array|an \.npz archive)|no such file"):
            split_from_file(str(path))


def test_options_that_make_no_sense():
    with pytest.raises(ConfigError, match="delimiter must be one character"):
        SmilesOptions(delimiter="::")
    with pytest.raises(ConfigError, match="a split column or a split file"):
        SmilesOptions(split_column="a", split_file="b")
    with pytest.raises(ConfigError, match="distinct"):
        SmilesOptions(targets=("a", "a"))


def test_files_missing_truncated_or_of_another_kind(tmp_path):
    with pytest.raises(DataError, match=r"none\.csv: no such file"):
        SmilesTable(str(tmp_path / "none.csv"))
    whole = gzip.compress(b"smiles,y\n" + b"".join(b"%s,1\n" % (b"C" * n) for n in range(1, 500)))
    (tmp_path / "cut.csv.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "plain.csv.gz").write_bytes(b"smiles,y\nC,1\n")
    for name in ("cut.csv.gz", "plain.csv.gz"):
        with pytest.raises(DataError, match=f"{name}: cannot read this file"):
            SmilesTable(str(tmp_path / name))
    (tmp_path / "latin.csv").write_bytes(b"smiles,y\nC,1\n\xe4\xf6,2\n")
    with pytest.raises(DataError, match=r"latin\.csv: line \d+: expected UTF-8 text"):
        list(SmilesTable(str(tmp_path / "latin.csv")).chunks(10))


def test_identity_follows_content_and_options_not_the_file(tmp_path):
    text = "smiles,y\nC,1\n"
    plain, packed = _table(tmp_path / "m.csv", text), _table(tmp_path / "m.csv.gz", text)
    assert plain.info.identity == packed.info.identity
    assert _table(tmp_path / "n.csv", text + "CC,1\n").info.identity != plain.info.identity
    assert _table(tmp_path / "n.csv", text, targets=("y",), split_column="y").info.identity != plain.info.identity


def _pcqm4mv2(root, count=40, release=False):
    """Writes a tiny set in the real layout, in the same way as OGB."""
    import torch

    folder = root / "pcqm4m-v2"
    (folder / "raw").mkdir(parents=True)
    parts = {
        "train": np.arange(0, count - 8),
        "valid": np.arange(count - 8, count - 4),
        "test-dev": np.arange(count - 4, count - 2),
        "test-challenge": np.arange(count - 2, count),
    }
    rows = [f"{n},{'C' * (n + 1)},{'' if n >= count - 4 else n / 8}" for n in range(count)]
    (folder / "raw" / "data.csv.gz").write_bytes(
        gzip.compress("\n".join(["idx,smiles,homolumogap", *rows, ""]).encode())
    )
    torch.save(parts, folder / "split_dict.pt", pickle_protocol=4)
    if release:
        (folder / "RELEASE_v1.txt").touch()
    return folder, parts


def test_pcqm4mv2_without_a_release_file_does_not_ask(tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked on stdin"))
    folder, parts = _pcqm4mv2(tmp_path)
    for root in (tmp_path, folder):
        table = pcqm4mv2(root)
        assert table.info.name == "pcqm4mv2"
        assert table.info.split_names == ("train", "valid", "test-dev", "test-challenge")
        assert table.info.target_names == ("homolumogap",)
        smiles, (chunk,) = _all(table)
        assert smiles == ["C" * (n + 1) for n in range(40)]
        for code, name in enumerate(parts, 1):
            np.testing.assert_array_equal(np.flatnonzero(chunk.split == code), parts[name])
        np.testing.assert_array_equal(np.isnan(chunk.target[:, 0]), np.arange(40) >= 36)
        np.testing.assert_array_equal(chunk.target[:36, 0], np.arange(36) / 8)


def test_pcqm4mv2_with_training_molecules_held_out(tmp_path):
    """Tests the split that GRIT and PPGT use for the real set. It is drawn as in GraphGPS's code."""
    _, parts = _pcqm4mv2(tmp_path)
    table = pcqm4mv2(tmp_path, holdout=5)
    assert table.info.split_names == ("train", "valid", "test")
    _, (chunk,) = _all(table)
    drawn = np.random.default_rng(seed=42).permutation(parts["train"])
    expected = {1: drawn[5:], 2: drawn[:5], 3: parts["valid"], 0: np.arange(36, 40)}
    for code, rows in expected.items():
        np.testing.assert_array_equal(np.flatnonzero(chunk.split == code), np.sort(rows))
    with pytest.raises(DataError, match="expected fewer than the 32 training molecules, got 32"):
        pcqm4mv2(tmp_path, holdout=32)


def test_pcqm4mv2_agrees_with_ogb(tmp_path, monkeypatch):
    pytest.importorskip("rdkit")
    import functools
    import sys

    import torch

    monkeypatch.setitem(sys.modules, "outdated", None)
    lsc = pytest.importorskip("ogb.lsc.pcqm4mv2")
    _pcqm4mv2(tmp_path, release=True)
    dataset = lsc.PCQM4Mv2Dataset(root=str(tmp_path), only_smiles=True)
    # changes torch.load for OGB's own call
    monkeypatch.setattr(torch, "load", functools.partial(torch.load, weights_only=False))
    theirs = dataset.get_idx_split()
    monkeypatch.undo()
    smiles, (chunk,) = _all(pcqm4mv2(tmp_path))
    assert smiles == dataset.graphs
    np.testing.assert_array_equal(chunk.target[:, 0], dataset.labels.astype(np.float32))
    for code, name in enumerate(theirs, 1):
        np.testing.assert_array_equal(np.flatnonzero(chunk.split == code), theirs[name])


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("old_format", [False, True])
def test_split_dict_of_any_age(tmp_path, protocol, old_format):
    """The file may be written by numpy 1, whose functions had other names, and in torch's old file format, which was not a zip file."""
    import torch

    parts = {name: np.arange(3) + 3 * n for n, name in enumerate(("train", "valid", "test-dev", "test-challenge"))}
    path = tmp_path / "split_dict.pt"
    torch.save(parts, path, pickle_protocol=protocol, _use_new_zipfile_serialization=not old_format)
    if old_format and protocol == 2:
        content = path.read_bytes()
        assert b"numpy._core.multiarray" in content
        path.write_bytes(content.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"))
    for name, rows in read_split_dict(path).items():
        np.testing.assert_array_equal(rows, parts[name])


class _Evil:
    def __reduce__(self):
        import os

        return os.mkdir, ("evil-was-here",)


def test_split_dict_that_would_run_code_is_refused(tmp_path, monkeypatch):
    import torch

    monkeypatch.chdir(tmp_path)
    folder, parts = _pcqm4mv2(tmp_path)
    torch.save({**parts, "train": _Evil()}, folder / "split_dict.pt")
    with pytest.raises(
        DataError, match=r"split_dict\.pt: expected a pickle of plain data and arrays, found posix\.mkdir"
    ) as caught:
        pcqm4mv2(tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "evil-was-here").exists()


def test_pcqm4mv2_that_is_absent_or_incomplete(tmp_path):
    import torch

    with pytest.raises(DataError, match=r"raw/data\.csv\.gz and split_dict\.pt missing at .*unpack https://"):
        pcqm4mv2(tmp_path)
    folder, parts = _pcqm4mv2(tmp_path)
    del parts["test-dev"]
    torch.save(parts, folder / "split_dict.pt")
    with pytest.raises(DataError, match="expected the parts train, valid, test-dev, test-challenge, found train"):
        pcqm4mv2(tmp_path)
    parts = _pcqm4mv2(tmp_path / "other")[1]
    torch.save(parts, folder / "split_dict.pt")
    whole = (folder / "split_dict.pt").read_bytes()
    for broken in (b"nonsense", b"", whole[: len(whole) // 2], b"PK" + whole[2:60]):
        (folder / "split_dict.pt").write_bytes(broken)
        with pytest.raises(DataError, match="expected a pickle of plain data and arrays"):
            pcqm4mv2(tmp_path)
    for part, message in (
        (np.zeros(3), r"part train: expected row numbers, found float64 of shape \[3\]"),
        (np.zeros((3, 1), np.int64), r"part train: expected row numbers, found int64 of shape \[3, 1\]"),
        ([1, 2], "part train: an array: expected an array, found list"),
    ):
        torch.save({**parts, "train": part}, folder / "split_dict.pt")
        with pytest.raises(DataError, match=message):
            pcqm4mv2(tmp_path)
    (folder / "split_dict.pt").unlink()
    with pytest.raises(DataError, match=r": split_dict\.pt missing"):
        pcqm4mv2(tmp_path)


def test_enumerated_molecules_are_always_the_same_and_valid():
    pytest.importorskip("rdkit")
    from rdkit import Chem

    from graphmill.storage.molecules.enumerated_molecules import EnumeratedMolecules

    first, second = EnumeratedMolecules(300), EnumeratedMolecules(300)
    assert first.info == second.info
    (one,), (two,) = first.chunks(1000), second.chunks(1000)
    assert one.smiles == two.smiles
    np.testing.assert_array_equal(one.target, two.target)
    assert len(set(one.smiles)) == 300
    assert all(Chem.CanonSmiles(each) == each for each in one.smiles)
    assert one.target.std() > 0.5
    assert EnumeratedMolecules(20).info.identity != first.info.identity
    assert [chunk.index for chunk in first.chunks(100)] == [0, 1, 2]
    np.testing.assert_array_equal(np.concatenate([chunk.target for chunk in first.chunks(70)]), one.target)
    with pytest.raises(ConfigError, match="count"):
        EnumeratedMolecules(0)


@pytest.mark.parametrize("packed", ["", ".gz", ".bz2", ".xz", ".zst"])
def test_part_files_of_any_kind_are_the_same_table(tmp_path, packed):
    rows = [("CCO", 1.5, 9), ("CC", None, 4), ("not one", 2.0, 7), ("CN", -3.25, 12)]
    table = pa.table(dict(zip(("smiles", "y", "cid"), map(list, zip(*rows, strict=True)), strict=True)))
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "_SUCCESS").touch()
    for part, some in enumerate((table.slice(0, 1), table.slice(1))):
        pa_parquet.write_table(some, tmp_path / f"part-{part}.parquet")
        with pa.output_stream(
            str(tmp_path / "text"), compression={".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}.get(packed)
        ) as stream:
            pa_csv.write_csv(some, stream)
        content = (tmp_path / "text").read_bytes()
        (folder / f"part-{part}.csv{packed}").write_bytes(lzma.compress(content) if packed == ".xz" else content)
    read = [
        list(SmilesTable(str(path), SmilesOptions(targets=("y",))).chunks(9))
        for path in (folder, tmp_path / "part-*.parquet")
    ]
    for chunk in (one for (one,) in read):
        assert chunk.smiles == ["CCO", "CC", "not one", "CN"]
        assert chunk.ids.to_pylist() == [9, 4, 7, 12]
        assert chunk.line.tolist() == [2, 4, 5, 6]
        np.testing.assert_array_equal(chunk.target[:, 0], np.array([1.5, np.nan, 2.0, -3.25], np.float32))
