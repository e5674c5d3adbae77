"""Files of `torch.save` in every protocol and container, read without an unpickler; and crafted ones, some of which crash an unpickler."""

import io
import pickle
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import DataError
from storage.importers.array_pickle import read_vectors

CASES = {
    "train": np.arange(300),
    "valid": np.array([5, 7], np.int32),
    "empty": np.array([], np.int64),
    "big endian": np.array([1, 2**40], ">i8"),
    "bytes": np.array([255, 0, 128], np.uint8),
    "every other": np.arange(20, dtype=np.uint16)[::2],
    "again": np.arange(300),
}
CASES["read only"] = np.arange(4)
CASES["read only"].flags.writeable = False
CASES["the same"] = CASES["train"]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("numpy_1", [False, True])
def test_what_torch_writes(tmp_path, protocol, zipped, numpy_1):
    path = tmp_path / "some.pt"
    torch.save(CASES, path, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    if numpy_1:  # whose modules had other names
        if zipped:
            with zipfile.ZipFile(path) as archive:
                content = archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))
        else:
            content = path.read_bytes()
        for module in (b"multiarray", b"numeric"):
            new, old = (b"numpy._core." + module, b"numpy.core." + module)
            content = content.replace(b"c" + new + b"\n", b"c" + old + b"\n")
            content = content.replace(bytes([len(new)]) + new, bytes([len(old)]) + old)
        if zipped:
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("archive/data.pkl", content)
        else:
            path.write_bytes(content)
    vectors = read_vectors(path)
    assert list(vectors) == list(CASES)
    for name, expected in CASES.items():
        np.testing.assert_array_equal(vectors[name], expected)
        assert vectors[name].dtype.str == expected.dtype.str


@given(st.dictionaries(st.text(max_size=300), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=300), max_size=30))
def test_any_dictionary_in_any_protocol(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("any") / "some.pt"
    for protocol in (2, 3, 4, 5):
        torch.save({name: np.array(rows, np.int64) for name, rows in content.items()}, path, pickle_protocol=protocol)
        assert {name: rows.tolist() for name, rows in read_vectors(path).items()} == content


def _name(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _int(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def _text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def _bytes(value: bytes) -> bytes:
    return b"B" + struct.pack("<I", len(value)) + value


def _dtype(name: str) -> bytes:
    return _name("numpy", "dtype") + _text(name) + b"\x89\x88\x87R"


VECTOR = (
    _name("numpy._core.multiarray", "_reconstruct")
    + _name("numpy", "ndarray")
    + _int(0)
    + b"\x85"
    + _bytes(b"b")
    + b"\x87R"
)


def _crash() -> bytes:
    """A vector of opaque items, whose dtype becomes one of Python objects after its bytes are in place: freeing it follows them."""
    array = VECTOR + b"q\x02" + b"(" + _int(1) + _int(4) + b"\x85h\x01\x89" + _bytes(b"AAAAAAAA" * 4) + b"tb"
    subarray = _dtype("O8") + _int(1) + b"\x85\x86"
    state = b"h\x01(" + _int(3) + _text("|") + subarray + b"NN" + _int(8) + _int(1) + _int(63) + b"tb0"
    return b"}(" + _text("train") + _dtype("V8") + b"q\x010" + array + state + b"u."


def _write(path: Path, content: bytes, zipped: bool = False) -> Path:
    if zipped:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", content)
    else:
        path.write_bytes(pickle.dumps(1, 2) * 3 + content)
    return path


def test_a_file_that_crashes_an_unpickler_of_arrays_alone(tmp_path):
    """It names numpy's array, dtype and `_reconstruct`, no other function, and kills the process that unpickles it."""
    path = _write(tmp_path / "crash.pt", b"\x80\x02" + _crash())
    unpickle = "import pickle, sys; f = open(sys.argv[1], 'rb'); [pickle.load(f) for _ in range(4)]"
    assert subprocess.run([sys.executable, "-c", unpickle, path], capture_output=True, timeout=60).returncode < 0
    read = "import sys, pathlib; from storage.importers.array_pickle import read_vectors; read_vectors(pathlib.Path(sys.argv[1]))"
    run = subprocess.run(
        [sys.executable, "-c", read, path], capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2]
    )
    assert run.returncode == 1
    assert "DataError" in run.stderr.splitlines()[-1]


REFUSED = {
    "another function": (_name("os", "system") + b"N.", "found os.system, which is no part of an array"),
    "an opcode of classes": (b"}" + _name("numpy", "ndarray") + b")\x81.", "found NEWOBJ"),
    "a persistent id": (_text("a") + b"Q.", "found BINPERSID"),
    "an extension": (b"\x82\x01.", "found EXT1"),
    "a list": (b"].", "found EMPTY_LIST"),
    "a number": (_int(3) + b".", "found int"),
    "a number in the dictionary": (b"}" + _text("a") + _int(3) + b"s.", "found int under 'a'"),
    "an array without content": (b"}" + _text("a") + VECTOR + b"s.", "an array without content under 'a'"),
    "nothing": (b".", "nothing is there"),
    "no mark": (b"}u.", "needs a mark"),
    "below a mark": (b"}(" + b"\x85.", "nothing is there"),
    "objects": (_dtype("O8") + b".", "not those of an array of integers"),
    "real numbers": (_dtype("f8") + b".", "not those of an array of integers"),
    "a made array": (_name("numpy", "ndarray") + _int(2**31 - 1) + b"\x85\x85R.", "arguments"),
    "a length that is not there": (
        b"}" + _text("a") + VECTOR + b"(" + _int(1) + _int(2**30) + b"\x85" + _dtype("i8") + b"\x89" + _bytes(b"12345678") + b"tbs.",
        "expected 1073741824 numbers of 8 bytes, found 8 bytes",
    ),
    "two dimensions": (
        VECTOR + b"(" + _int(1) + _int(1) + _int(1) + b"\x86" + _dtype("i8") + b"\x89" + _bytes(b"12345678") + b"tb.",
        "one dimension",
    ),
    "bytes that are not there": (b"\x8e" + struct.pack("<Q", 2**62) + b"1", "but only 1 remain"),
    "no stop": (b"}", "cut short"),
    "too many opcodes": (b"N0" * 10 + b"N" * 20_000 + b".", "found POP|more than 10000 opcodes"),
    "an endless dictionary": (b"}q\x00" + _text("a") + b"h\x00s.", "found dict under 'a'"),
    "text as bytes, over and over": (
        _text("a" * 1000) + b"q\x00" + 200 * (_name("_codecs", "encode") + b"h\x00" + _text("latin1") + b"\x86R") + b".",
        "becomes more bytes than the file has",
    ),
    "a crash": (_crash(), "not those of an array of integers"),
}  # fmt: skip


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("case", REFUSED)
def test_refused(tmp_path, case, zipped):
    content, message = REFUSED[case]
    path = _write(tmp_path / "some.pt", b"\x80\x02" + content, zipped)
    with pytest.raises(DataError, match=message) as caught:
        read_vectors(path)
    assert "\n" not in str(caught.value)


def test_a_compressed_member_is_not_unpacked(tmp_path):
    path = tmp_path / "bomb.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * 10_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="neither compressed nor encrypted"):
            read_vectors(path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_every_cut_of_a_file_is_refused(tmp_path):
    whole = io.BytesIO()
    torch.save({"a": np.arange(3)}, whole, _use_new_zipfile_serialization=False)
    content = whole.getvalue()
    end = content.index(b"u.") + 1 if b"u." in content else len(content) - 20
    for stop in range(end):
        with pytest.raises(DataError):
            read_vectors(_cut(tmp_path, content[:stop]))


def _cut(folder: Path, content: bytes) -> Path:
    (folder / "cut.pt").write_bytes(content)
    return folder / "cut.pt"
