"""The message of every Graphmill error is one line of plain text, whatever values it contains, also after pickling."""

import pickle

import pytest

from graphmill.core import errors

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.GraphmillError)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("one\n  two\r\nthree", "one two three"),
        ("a \x1b[2Jb\x00", r"a \x1b[2Jb\x00"),
        ("name \udcff", r"name \udcff"),
        ("turned \u202egpj.exe", r"turned \u202egpj.exe"),
        ("Größe 3 × 4, \u00a0名前 👩\u200d🔬", "Größe 3 × 4, \u00a0名前 👩\u200d🔬"),
    ],
)
def test_messages_are_one_plain_line(kind: type[errors.GraphmillError], message: str, line: str) -> None:
    error = kind(message)
    assert str(error) == line
    assert str(pickle.loads(pickle.dumps(error))) == line  # noqa: S301 - our own bytes


@pytest.mark.parametrize("kind", KINDS)
def test_stage_and_owner_are_named_once_as_they_were_first_told(kind: type[errors.GraphmillError]) -> None:
    error = kind("gone").at("stage fetch, epoch 2", "rank 1").at("training", "rank 0")
    for one in (error, pickle.loads(pickle.dumps(error))):  # noqa: S301 - our own bytes
        assert str(one) == "stage fetch, epoch 2, rank 1: gone"
    assert str(kind("gone").at("training").at("run", "rank 0")) == "training, rank 0: gone"
    assert str(kind("gone").at("recording")) == "recording: gone"
