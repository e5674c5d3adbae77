"""Pickles of plain data in every protocol and container, read without an unpickler; what names anything else, or is damaged, is refused."""

import collections
import contextlib
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import DataError
from storage.importers.plain_pickle import array, read_pickle, read_torch

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
