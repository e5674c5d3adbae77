"""Pickles of plain data, in every protocol and file format, are read without an unpickler. Files that name other functions, and damaged files, are refused."""

import collections
import contextlib
import os
import pickle
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphmill.core.errors import DataError
from graphmill.storage.importers.files.pickle_reader import array, read_pickle, read_torch

PLAIN = (1.5, None, True, False, "hé", b"x\xff", 2**40, -5, -(2**70), 300, [], {}, {"a": [1, (2,)]}, ((), [()]))
ARRAYS = {
    "two axes": np.arange(6).reshape(2, 3),
    "by columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "big endian": np.array([1, 2**40], ">i8"),
    "bools": np.array([True, False]),
    "none": np.empty((0, 4), np.float32),
    "half": np.array([0.5], np.float16),
}
TENSORS = {
    "turned": torch.arange(6).view(2, 3).t(),
    "a part": torch.arange(6.0).view(2, 3)[:, 1:],
    "none": torch.zeros(0, 3),
    "one": torch.tensor(3, dtype=torch.int8),
    "bools": torch.tensor([True, False]),
    "wide": torch.ones(2, 3).expand(4, 2, 3),
}


@pytest.mark.parametrize("protocol", range(6))
def test_what_pickle_writes(tmp_path, protocol):
    lists = collections.defaultdict(list, {0: [3], 2: [1, 2]})
    matrix = sp.csr_matrix(np.eye(4, dtype=np.float32))
    value = [PLAIN, ARRAYS, TENSORS, lists, collections.OrderedDict(a=1), matrix, np.float32(2.5), [PLAIN] * 3]
    path = tmp_path / "some.pickle"
    path.write_bytes(pickle.dumps(value, protocol))
    plain, arrays, tensors, read_lists, ordered, read_matrix, number, again = read_pickle(path)
    assert plain == PLAIN
    assert again == [PLAIN] * 3
    assert read_lists == lists
    assert ordered == {"a": 1}
    assert number == 2.5
    np.testing.assert_array_equal(array(read_matrix).toarray(), np.eye(4))
    for expected, read in ((ARRAYS, arrays), (TENSORS, tensors)):
        assert list(read) == list(expected)
        for name, values in expected.items():
            values = np.asarray(values)
            np.testing.assert_array_equal(array(read[name]), values)
            assert array(read[name]).dtype == values.dtype


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("zipped", [False, True])
def test_what_torch_writes(tmp_path, protocol, zipped):
    path = tmp_path / "some.pt"
    whole = torch.arange(20)
    value = ([TENSORS, {"x": whole[:5], "y": whole[5:]}], (torch.tensor(3.0), 7))
    torch.save(value, path, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    (tensors, parts), (one, seven) = read_torch(path)
    for name, values in TENSORS.items():
        np.testing.assert_array_equal(array(tensors[name]), values.numpy())
    assert array(parts["y"]).tolist() == list(range(5, 20))
    assert (array(one), seven) == (3.0, 7)


class _Calls:
    def __reduce__(self):
        return os.system, ("touch /never",)


REFUSED = {
    "a function": (_Calls(), "posix.system, which is no part of plain data"),
    "a class": (Path("x"), r"PosixPath"),
    "a set": ({1, 2}, "opcode b'\\\\x8f'"),
    "objects": (np.array([None, 1], object), "plain numbers"),
    "a record": (np.zeros(2, [("a", "i4")]), "plain number"),
    "a complex number": (1j, "builtins.complex"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(tmp_path, case):
    value, message = REFUSED[case]
    path = tmp_path / "some.pickle"
    path.write_bytes(pickle.dumps(value, 4))
    with pytest.raises(DataError, match=message) as caught:
        read_pickle(path)
    assert str(caught.value).endswith("nothing in it was run")
    assert "\n" not in str(caught.value)


def _name(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def _dtype(name: str) -> bytes:
    return _name("numpy", "dtype") + _text(name) + b"\x89\x88\x87R"


def _crash() -> bytes:
    """Makes a pickle of an array of raw bytes, whose dtype is then changed to Python objects. Freeing the array would follow the bytes as pointers."""
    made = _name("numpy._core.multiarray", "_reconstruct") + _name("numpy", "ndarray") + b"K\x00\x85C\x01b\x87R"
    array = made + b"q\x02(K\x01K\x04\x85h\x01\x89C\x20" + b"AAAAAAAA" * 4 + b"tb"
    state = b"h\x01(K\x03" + _text("|") + _dtype("O8") + b"K\x01\x85\x86NNK\x08K\x01K\x3ftb0"
    return b"\x80\x02}(" + _text("train") + _dtype("V8") + b"q\x010" + array + state + b"u."


def test_a_file_that_crashes_an_unpickler_of_arrays_alone_is_refused(tmp_path):
    """The file names only numpy's array, dtype and `_reconstruct`, but kills a process that unpickles it."""
    path = tmp_path / "crash.pickle"
    path.write_bytes(_crash())
    unpickle = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"
    assert subprocess.run([sys.executable, "-c", unpickle, path], capture_output=True, timeout=600).returncode < 0
    with pytest.raises(DataError, match="an array of V8: expected plain numbers"):
        read_pickle(path)


@pytest.mark.parametrize("made", ["bytes", "an array", "a number"])
def test_text_becomes_no_more_bytes_than_the_file_has(tmp_path, made):
    path, text = tmp_path / "some.pickle", _text("a" * 1000) + b"q\x00"
    one = {
        "bytes": _name("_codecs", "encode") + b"h\x00" + _text("latin1") + b"\x86R",
        "an array": _name("numpy._core.numeric", "_frombuffer")
        + b"(h\x00"
        + _dtype("i1")
        + b"M\xe8\x03\x85"
        + _text("C")
        + b"tR",
        "a number": _name("numpy._core.multiarray", "scalar") + _dtype("i8") + b"h\x00\x86R",
    }[made]
    path.write_bytes(b"\x80\x02" + text + one + b".")
    read_pickle(path)
    path.write_bytes(b"\x80\x02" + text + 200 * one + b".")
    with pytest.raises(DataError, match="text that becomes more bytes than the file has"):
        read_pickle(path)


@pytest.mark.parametrize("zipped", [False, True])
def test_opcodes_can_be_bounded_also_those_of_pickles_within(tmp_path, zipped):
    path = tmp_path / "some.pt"
    torch.save([torch.arange(3), list(range(1000))], path, _use_new_zipfile_serialization=zipped)
    read_torch(path, 2_000)
    with pytest.raises(DataError, match="more opcodes than such a file needs"):
        read_torch(path, 900)
    inner = pickle.dumps([torch.arange(3)] * 5, 2)
    path.write_bytes(pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1, 2) * 2 + inner + pickle.dumps([], 2))
    with pytest.raises(DataError, match="more opcodes than such a file needs"):
        read_torch(path, 20)


def test_a_compressed_member_is_not_unpacked(tmp_path):
    path = tmp_path / "bomb.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * 10_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="a zip file that torch"):
            read_torch(path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_tensor_beyond_its_storage_is_refused(tmp_path):
    class Forged:
        def __reduce__(self):
            made = torch.arange(4)
            function, (storage, *rest) = made.__reduce_ex__(2)
            return function, (storage, 2, (3,), *rest[2:])

    path = tmp_path / "some.pickle"
    path.write_bytes(pickle.dumps([Forged()], 2))
    with pytest.raises(Exception, match="ends at 4 of 4 numbers"):
        array(read_pickle(path)[0])


WHOLE = pickle.dumps([PLAIN, ARRAYS, sp.csr_matrix(np.eye(2)), torch.arange(3)], 2)


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_any_changed_byte_is_read_or_refused(tmp_path_factory, place, byte):
    path = tmp_path_factory.mktemp("any") / "some.pickle"
    path.write_bytes(WHOLE[:place] + bytes([byte]) + WHOLE[place + 1 :])
    with contextlib.suppress(DataError):
        read_pickle(path)


def test_every_cut_is_refused(tmp_path):
    path = tmp_path / "some.pickle"
    for stop in range(0, len(WHOLE) - 1, 7):
        path.write_bytes(WHOLE[:stop])
        with pytest.raises(DataError):
            read_pickle(path)
