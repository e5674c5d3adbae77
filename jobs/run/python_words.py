"""Errors of a Python call name Python's words in place of flags: `fit={"epochs": 3}` for `--fit.epochs 3`, `resume=…` for `--run.resume`."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import reduce
from operator import or_
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Never, get_args, get_origin

from graphmill.core.errors import GraphmillError, UsageError
from graphmill.jobs.cli.typed_commands import is_command, python_option, python_text
from graphmill.jobs.config.reader import Words, convert, leaves

# A command in a message, which stays; or a flag with the words after it.
_FLAGS = re.compile(
    r"(?:graphmill [a-z]|pip |python )[^;,)`]*|(?<![\w-])--([a-z]\w*(?:[.-]\w+)*)((?: (?!-)[\w.+-]*\w)*)"
)
_FREE = (str, Path, Any, Never)
_INGEST_NAMES = {"partitions": "num_partitions", "threads": "num_threads", "memory_mib": "memory_budget_bytes"}
_Speller = Callable[[str, Sequence[str]], tuple[str, int] | None]
"""(Python's words for a flag, how many of the words behind it they contain); None: another call's flag."""


def speak_python(error: GraphmillError, call: str, said: Mapping[str, Any]) -> None:
    """Rewrites the error of `gm.CALL(…, **said)`."""
    if error.args:
        error.args = (spoken_here(str(error.args[0]), call, said), *error.args[1:])


def spoken_here(message: str, call: str = "train", said: Mapping[str, Any] = MappingProxyType({})) -> str:
    """The message with flags in a command, with Python's words for them in `gm.CALL(…, **said)`."""
    if is_command() or "--" not in message:
        return message
    misplaced = said if "; perhaps " in message else {}
    spellers = [*filter(None, [_of_call(call)]), _of_training(misplaced), _of_ingestion(call)]

    def spoken(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0]
        flag, words = match[1].replace("-", "_"), match[2].split()
        if flag in misplaced:
            return f"{flag}={python_text(said[flag])}{match[2]}"
        for speller in spellers:
            if (spelled := speller(flag, words)) is not None:
                text, num_used = spelled
                return " ".join([text, *words[num_used:]])
        return match[0]

    return _FLAGS.sub(spoken, message)


def _of_call(call: str) -> _Speller | None:
    """The words of a call whose arguments are the options of a command."""
    from graphmill.jobs.config.predict_options import PredictConfig
    from graphmill.jobs.run.evaluate import EvaluateConfig

    commands: dict[str, Any] = {"predict": PredictConfig, "evaluate": EvaluateConfig}
    if call not in commands:
        return None
    hints = leaves(commands[call])

    def speller(flag: str, words: Sequence[str]) -> tuple[str, int] | None:
        if flag not in hints:
            return None
        value, num_used = _value(words, hints[flag])
        return python_option(flag, value), num_used

    return speller


def _of_training(misplaced: Mapping[str, Any]) -> _Speller:
    """The words of `train`. `misplaced`: what was said without a group, whose values count in the right place."""
    from graphmill.jobs.config.config import training_flags

    hints = training_flags()

    def speller(flag: str, words: Sequence[str]) -> tuple[str, int] | None:
        group, _, option = flag.partition(".")
        if group not in hints:
            return None
        value, num_used = _value(words, hints.get(flag, int | float))
        leaf = option.rpartition(".")[2]
        return python_option(flag, misplaced.get(leaf, value) if value is ... else value), num_used

    return speller


def _of_ingestion(call: str) -> _Speller:
    from graphmill.jobs.ingest import IngestConfig
    from graphmill.storage.ingestion.ingest_options import IngestOptions

    hints, names = leaves(IngestConfig), {field.name for field in fields(IngestOptions)}

    def speller(flag: str, words: Sequence[str]) -> tuple[str, int] | None:
        if flag == "split":
            return "split=…", 0
        if flag not in hints:
            return None
        (group, _, leaf), (value, num_used) = flag.rpartition("."), _value(words, hints[flag])
        if flag == "reverse_edges":
            leaf, value = "undirected", {"add": True, "keep": False}.get(value, ...)
        leaf = _INGEST_NAMES.get(leaf, leaf)
        word = f"{leaf}={python_text(value)}"
        if group == "split":
            return f"split=gm.SplitOptions({word})", num_used
        if group == "links":
            return f"options=gm.IngestOptions(links=LinkSplitOptions({word}))", num_used
        if not group and call == "ingest_graphs":
            return word, num_used
        if group == "edge_list":
            return word, num_used
        return (f"options=gm.IngestOptions({word})", num_used) if leaf in names and not group else None

    return speller


def _value(words: Sequence[str], hint: Any) -> tuple[Any, int]:
    """(the value at the beginning of these words, the number of its words). Prose is no value; `...` and 0: there is no value, or free text."""
    if hint is bool:
        return (words[0] == "yes", 1) if words[:1] in (["yes"], ["no"]) else (True, 0)
    arguments = [one for one in get_args(hint) if one not in _FREE]
    if hint in _FREE or (get_origin(hint) is not Literal and arguments != [*get_args(hint)]):
        hint = reduce(or_, arguments) if arguments and get_origin(hint) is not tuple else Never
    for count in range(len(words), 0, -1):
        try:
            return convert(Words(words[:count]), hint, ""), count
        except UsageError:
            continue
    return ..., 0
