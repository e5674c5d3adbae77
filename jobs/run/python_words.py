"""In errors of a Python call, replaces command-line flags by Python arguments: `fit={"epochs": 3}` for `--fit.epochs 3`, `resume=…` for `--run.resume`."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import reduce
from operator import or_
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Never, get_args, get_origin

from graphmill.core.errors import GraphmillError, UsageError
from graphmill.jobs.cli.typed_commands import is_command, python_option, python_text
from graphmill.jobs.config.config import training_flags
from graphmill.jobs.config.reader import Words, convert, leaves

# Matches a quoted text or a command in a message, which stay unchanged, or a flag with the words after it.
_FLAGS = re.compile(
    r"(?<!\w)'[^']*'(?!\w)|(?:graphmill [a-z]|pip |python )[^;,)`]*|(?<![\w-])--([a-z]\w*(?:[.-]\w+)*)((?: (?!-)[\w.+-]*\w)*)"
)
_FREE = (str, Path, Any, Never)
_BEGIN, _END = "\ue000", "\ue001"  # around Python's words for a flag
_INGEST_NAMES = {"partitions": "num_partitions", "threads": "num_threads", "memory_mib": "memory_budget_bytes"}
_Dialect = tuple[Mapping[str, Any], Callable[[str, Any], str | None]]
"""(types of flags; a function from a flag and its value to the Python argument, which returns None if Python has no such option)."""


def speak_python(error: GraphmillError, call: str, values: Sequence[Any], said: Mapping[str, Any]) -> None:
    """Rewrites the error of `gm.CALL(*values, **said)`."""
    if not error.args:
        return
    message = spoken_here(str(error.args[0]), call, said)
    if call == "train" and values and not isinstance(values[0], str):  # the call itself stored the user's data
        message = re.sub(
            r"ingest it again with (.+?), options=gm\.IngestOptions\(overwrite=True\)",
            r"call gm.train with \1",
            message,
        )
    error.args = (message, *error.args[1:])


def spoken_here(message: str, call: str = "train", said: Mapping[str, Any] = MappingProxyType({})) -> str:
    """The message, with flags replaced by the arguments of `gm.CALL(…, **said)`. In a command: unchanged."""
    if is_command() or "--" not in message:
        return message
    misplaced: dict[str, Any] = {}
    if "; perhaps " in message:
        plain = {name: value for name, value in said.items() if isinstance(value, str | int | float | None)}
        misplaced = {name: value for name, value in plain.items() if name not in training_flags()}
    dialects = [*_dialects(call, misplaced)]

    def spoken(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0]
        flag, words = match[1].replace("-", "_"), match[2].split()
        if flag in misplaced:
            return f"{flag}={python_text(said[flag])}{match[2]}"
        for hints, python in dialects:
            if flag in hints:
                value, num_used = _value(words, hints[flag])
                if (text := python(flag, value)) is not None:
                    return " ".join([f"{_BEGIN}{text}{_END}", *words[num_used:]])
        # All other flags belong to a user's own component, or are misspelt.
        if flag.partition(".")[0] in training_flags():
            value, num_used = _value(words, int | float)
            return " ".join([f"{_BEGIN}{python_option(flag, value)}{_END}", *words[num_used:]])
        return match[0]

    # Flags in sequence are arguments, which commas separate.
    return _FLAGS.sub(spoken, message).replace(f"{_END} {_BEGIN}", ", ").replace(_BEGIN, "").replace(_END, "")


def _dialects(call: str, misplaced: Mapping[str, Any]) -> Iterator[_Dialect]:
    """The dialects that apply to the message: the dialect of the call, of training and of ingestion. `misplaced`: values that the caller passed without their
    group."""
    from graphmill.jobs.config.predict_options import PredictConfig
    from graphmill.jobs.ingest import IngestConfig
    from graphmill.jobs.run.evaluate import EvaluateConfig
    from graphmill.storage.ingestion.ingest_options import IngestOptions

    names = {field.name for field in fields(IngestOptions)}

    def of_training(flag: str, value: Any) -> str:
        return python_option(flag, misplaced.get(flag.rpartition(".")[2], value) if value is ... else value)

    def of_ingestion(flag: str, value: Any) -> str | None:
        group, _, leaf = flag.rpartition(".")
        if flag == "reverse_edges":
            leaf, value = "undirected", {"add": True, "keep": False}.get(value, ...)
        if flag == "memory_mib" and isinstance(value, int):
            value *= 2**20
        leaf = _INGEST_NAMES.get(leaf, leaf)
        word = f"{leaf}={python_text(value)}"
        if group == "edge_list" or (not group and call == "ingest_graphs"):
            return word
        if group == "links":
            word = f"links=LinkSplitOptions({word})"
        elif group == "split":
            return f"split=gm.SplitOptions({word})"
        return f"options=gm.IngestOptions({word})" if group == "links" or (leaf in names and not group) else None

    if call == "predict":
        yield leaves(PredictConfig), python_option
    if call == "evaluate":
        yield leaves(EvaluateConfig), python_option
    yield training_flags(), of_training
    yield {**leaves(IngestConfig), "split": str}, of_ingestion


def _value(words: Sequence[str], hint: Any) -> tuple[Any, int]:
    """(the value that these words begin with, its number of words). (`...`, 0) if there is no value, or if the type is free text: prose is never read as a
    value."""
    if hint is bool:
        return (words[0] == "yes", 1) if words[:1] in (["yes"], ["no"]) else (True, 0)
    kinds = [kind for kind in get_args(hint) if kind not in _FREE]
    if hint in _FREE or (get_origin(hint) is not Literal and kinds != [*get_args(hint)]):
        hint = reduce(or_, kinds) if kinds and get_origin(hint) is not tuple else Never
    for count in range(len(words), 0, -1):
        try:
            return convert(Words(words[:count]), hint, ""), count
        except UsageError:
            continue
    return ..., 0
