"""Converts command-line words, or a tree of plain values, to frozen dataclasses. Every command, recipe and run record uses the same grammar.

    python jobs/train_nodes.py recipe.yaml --model geco --model.num_layers 3 --sampler.fanouts 15 10 5 --plan

A flag is `--a.b` and takes every word up to the next flag, so `-1` is a value. `-` and `_` in the name of a flag are the same. A flag of a whole group
(`--model geco`, `--workers 4`) sets the group's first field. `none` (or `auto`) means None if the field may be None. A single `none` is also an empty list. A
class may list in GIVEN the fields that the run fills in, and in FORMER the new names of renamed options.

Imports no package outside the standard library, so that `--help` is instant and benchmarks run with little more than torch.
"""

import ast
import inspect
import math
import numbers
import os
import re
import sys
import textwrap
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from graphmill.core.errors import ConfigError, UsageError, quoted
from graphmill.core.public_names import nearest
from graphmill.jobs.config.short_help import Option, show_help, take_topics

T = TypeVar("T")
_MOST_CHARACTERS = 4096  # longest text that an option takes, as for a path
HEAD = ""  # key of the value that is set for a whole group
Tree = dict[str, Any]
# Type hints are cached for each class: without the cache they took two thirds of the time to read a configuration.
_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)
_TRUE, _FALSE, _NOTHING = ("true", "yes", "on", "1"), ("false", "no", "off", "0"), ("none", "auto", "null")


class Words(list[str]):
    """The words after a flag, before conversion."""


class UnknownOption(UsageError):
    """Raised for an unknown flag. A caller that knows more flags than the class can suggest flags with a similar name."""

    option = ""


def parse(
    kind: type[T], description: str | None = None, positional: Sequence[str] = (), words: Sequence[str] | None = None
) -> T:
    """Parses `sys.argv` to a value of the dataclass `kind`. `positional`: fields that the words before the first flag set.

    Ends the process with status 0 after --help, and with status 2 and one line for a wrong flag or value. Raises ConfigError if the class's own checks fail.
    """
    words = sys.argv[1:] if words is None else list(words)
    words, topics = take_topics(words)
    try:
        if topics is not None:
            command = Path(sys.argv[0]).name
            usage = " ".join([command, *(name.upper() for name in positional)])
            show_help(
                description or inspect.getdoc(kind) or "", usage, options_of(kind, "", positional), topics, command
            )
        first, tree = read_words(words)
        if len(first) > len(positional):
            raise UsageError(f"unexpected {' '.join(first[len(positional) :])!r}: options are written --name value")
        return build(
            kind,
            {**dict(zip(positional, (Words([word]) for word in first), strict=False)), **tree},
            positional=positional,
        )
    except UnknownOption as error:
        complain(str(unknown(error.option, dict.fromkeys(leaves(kind), ""))))
    except UsageError as error:
        complain(str(error))


def complain(message: str) -> NoReturn:
    """Prints the error of the command line and ends the process with status 2."""
    print(f"error: {message}; --help lists all options", file=sys.stderr)
    sys.exit(2)


def read_words(words: Iterable[str]) -> tuple[list[str], Tree]:
    """(the words before the first flag, the tree of the flags). If a flag is given twice, the last value counts."""
    first: list[str] = []
    tree: Tree = {}
    values: list[str] = first
    for word in words:
        if not word.startswith("--") or word == "--":
            values.append(word)
            continue
        name, equals, value = word[2:].partition("=")
        node = tree
        *groups, leaf = name.replace("-", "_").split(".")
        for group in groups:
            under = node.setdefault(group, {})
            if not isinstance(under, dict):
                under = node[group] = {HEAD: under}
            node = under
        if isinstance(node.get(leaf), dict):
            node, leaf = node[leaf], HEAD
        node.pop(leaf, None)  # keeps the flags in the order of their last use
        values = node[leaf] = Words([value] if equals else [])
    return first, tree


def as_words(value: object, name: str) -> Any:
    """A Python value of the option `name` as command-line words, or the values of a mapping as words by name. Raises UsageError for a value that
    command-line words cannot express."""
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: as_words(item, f"{name}.{key}") for key, item in value.items()}
    words = Words()
    for item in value if isinstance(value, list | tuple) else (value,):
        if item is None or isinstance(item, bool):
            words.append(shown(item))
        elif isinstance(item, str | numbers.Real | os.PathLike):
            words.append(str(item))
        else:
            got = f"{type(item).__name__} in a {type(value).__name__}" if item is not value else type(value).__name__
            raise UsageError(
                f"{name}: expected text, a number, True, False, None, a list of them, or a mapping by names, got {got}"
            )
    return words or Words(["none"])


def build(
    kind: type[T],
    tree: Mapping[str, Any],
    path: str = "",
    given: Mapping[str, Any] | None = None,
    positional: Sequence[str] = (),
) -> T:
    """Builds a value of the dataclass `kind`. `path`: prefix of the flags of its fields. `given`: values of the fields that the run fills in.

    Raises UsageError for unknown names and values of a wrong type, ConfigError for values that the class refuses.
    """
    hints, names, former = _hints(kind), option_names(kind), getattr(kind, "FORMER", {})
    tree = _named(kind, tree)
    for name in tree:
        if name in former:
            raise UsageError(f"--{path}{name} is now --{path}{former[name]}")
        if name not in names:
            raise unknown(flag_of(f"{path}{name}", tree[name]), dict.fromkeys(leaves(kind, path), ""))
    values = {name: convert(value, hints[name], path + name) for name, value in tree.items()}
    missing = [
        f.name
        for f in _fields(kind)
        if f.default is MISSING and f.default_factory is MISSING and f.name not in {**values, **(given or {})}
    ]
    if missing:
        flags = " ".join(name.upper() if name in positional else f"--{path}{name}" for name in missing)
        raise UsageError(f"missing {flags}")
    try:
        return kind(**{**(given or {}), **values})
    except ValueError as error:
        raise ConfigError(named_flags(str(error), names, path)) from None


def _named(kind: type, tree: Mapping[str, Any]) -> Tree:
    """The tree, in which the value of a whole group has become the value of the group's first field. If the tree sets both, the last value counts."""
    if HEAD not in tree:
        return dict(tree)
    return {name if name != HEAD else option_names(kind)[0]: value for name, value in tree.items()}


def take(kind: type, tree: Mapping[str, Any], path: str) -> tuple[Any, Tree]:
    """(value of the option `path` in the tree, or MISSING; the tree without this option). `kind`: the dataclass that has the option."""
    name, _, inner = path.partition(".")
    tree = _named(kind, tree)
    if name not in tree:
        return MISSING, tree
    if not inner:
        return tree.pop(name), tree
    under, group = tree[name], _hints(kind)[name]
    value, rest = take(group, under if isinstance(under, Mapping) else {HEAD: under}, inner)
    return value, {**tree, name: rest}


def named_flags(message: str, names: Sequence[str], path: str) -> str:
    """A component's error message, in which the full flag replaces the advice `set NAME`."""

    def flag(match: re.Match[str]) -> str:
        name = match[1].replace("-", "_")
        return f"set --{path}{name}" if name.split(".")[0] in names else match[0]

    return re.sub(r"\bset (?:--)?([a-z_]\w*(?:[.-]\w+)*)", flag, message)


def flag_of(name: str, value: Any) -> str:
    """The first flag in a tree's entry. For an unknown group: the complete flag."""
    while isinstance(value, Mapping) and (inner := next(iter(value), HEAD)) != HEAD:
        name, value = f"{name}.{inner}", value[inner]
    return name


def unknown(name: str, known: Mapping[str, str], said_of: str = "") -> UnknownOption:
    """The error for the unknown flag `name`, with the nearest known flags. `known`: each flag with its owner; the owner is empty if the flag can be used
    here. `said_of`: the component that has no such flag."""
    advice = ""
    if owner := known.get(name):
        advice = f"; it belongs to {owner}"
    elif len(name) < 100 and (near := nearest(name, known)):
        advice = f"; perhaps {' or '.join(f'--{flag}' + (known[flag] and f' of {known[flag]}') for flag in near)}"
    error = UnknownOption(f"unknown option --{name}{said_of and f' of {said_of}'}{advice}")
    error.option = name
    return error


def _fields(kind: Any) -> tuple[Field[Any], ...]:
    return fields(kind)


def option_names(kind: type) -> list[str]:
    """The fields that a user may set, in order."""
    given = getattr(kind, "GIVEN", ())
    return [f.name for f in _fields(kind) if f.name not in given]


def leaves(kind: type, path: str = "") -> dict[str, Any]:
    """All flags of a class and its groups, each with its type."""
    hints, flags = _hints(kind), dict[str, Any]()
    for name in option_names(kind):
        hint = hints[name]
        flags |= leaves(hint, f"{path}{name}.") if is_dataclass(hint) else {f"{path}{name}": hint}  # type: ignore[arg-type]
    return flags


def convert(value: Any, hint: Any, name: str) -> Any:
    """Converts `value`, command-line words or a value of a recipe, to the type `hint`. Raises UsageError with the flag's name if the type does not fit."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _one_of(value, arguments, name)
    if is_dataclass(hint):
        if isinstance(value, hint if isinstance(hint, type) else ()):
            return value
        tree = {HEAD: value} if not isinstance(value, Mapping) else value
        made: Any = hint
        return build(made, tree, f"{name}.")
    if origin is tuple:
        items = value if isinstance(value, (list, tuple)) else [value]
        if len(items) == 1 and isinstance(items[0], str) and arguments[0] in (int, float):
            items = items[0].split(",")
        if arguments[-1] is Ellipsis:
            return () if items == ["none"] else tuple(convert(item, arguments[0], name) for item in items)
        if len(items) != len(arguments):
            raise _refused(name, f"{len(arguments)} values", value)
        return tuple(convert(item, kind, name) for item, kind in zip(items, arguments, strict=True))
    if origin is Mapping:
        return _mapping(value, arguments[1], name)
    if isinstance(value, Words):
        if hint is bool and not value:
            return True
        if len(value) != 1:
            raise _refused(name, _type_text(hint), value)
        value = value[0]
    if origin is Literal:
        return _literal(value, arguments, name)
    return _plain(value, hint, name)


def _one_of(value: Any, kinds: tuple[Any, ...], name: str) -> Any:
    """The value converted to the first type that accepts it. None and text are tried last."""
    if type(None) in kinds:
        word = value[0] if isinstance(value, Words) and len(value) == 1 else value
        is_own_word = any(get_origin(kind) is Literal and word in get_args(kind) for kind in kinds)
        if not is_own_word and (word is None or (isinstance(word, str) and word.lower() in _NOTHING)):
            return None
    others = sorted((kind for kind in kinds if kind is not type(None)), key=lambda kind: kind is str)
    for kind in others:
        try:
            return convert(value, kind, name)
        except UsageError:
            if len(others) == 1:
                raise
    raise _refused(name, " or ".join(_type_text(kind) for kind in others), value)


def _mapping(value: Any, hint: Any, name: str) -> dict[str, Any]:
    """A mapping by name, from a recipe's mapping or from words NAME=1,2."""
    if isinstance(value, Mapping) and HEAD in value:  # a flag overrides a recipe's mapping
        value = value[HEAD]
    if isinstance(value, Mapping):
        return {str(key): convert(inner, hint, f"{name}.{key}") for key, inner in value.items()}
    words = value if isinstance(value, list | tuple) else [] if value is None else [value]
    pairs = [str(word).partition("=") for word in words if words not in (["none"], ["None"])]
    if not all(key and equals for key, equals, _ in pairs):
        raise _refused(name, "NAME=1,2 for each name", value)
    return {key: convert(Words(words_of.split(",")), hint, f"{name} {key}") for key, _, words_of in pairs}


def _literal(value: Any, allowed: tuple[Any, ...], name: str) -> Any:
    for choice in allowed:
        if value == choice or (
            isinstance(value, str)
            and (value == str(choice) or value.replace("-", "_") == str(choice).replace("-", "_"))
        ):
            return choice
    raise _refused(name, f"one of {', '.join(map(str, allowed))}", value)


def _plain(value: Any, hint: Any, name: str) -> Any:
    if hint in (Any, str, Path) and isinstance(value, str) and (len(value) > _MOST_CHARACTERS or "\0" in value):
        raise _refused(name, f"at most {_MOST_CHARACTERS} characters, none of them zero", value)
    if hint is Any or (hint is str and isinstance(value, str)):
        return value
    if hint is Path and isinstance(value, (str, Path)):
        return Path(value)
    if hint is bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in (*_TRUE, *_FALSE):
            return value.lower() in _TRUE
    elif hint in (int, float) and not isinstance(value, bool):
        try:
            number = hint(value) if isinstance(value, str) else value
            if isinstance(number, (int, float)) and (
                hint is float or (number == math.floor(number) and abs(number) < 2**64)
            ):
                return hint(number)
        except (ValueError, OverflowError):
            pass
    elif hint is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)  # YAML reads `path: 2024` as a number
    raise _refused(name, _type_text(hint), value)


def _type_text(hint: Any) -> str:
    words = {int: "an integer", float: "a number", str: "text", bool: "yes or no", Path: "a path"}
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    return words.get(hint, getattr(hint, "__name__", str(hint)))


def _refused(name: str, expected: str, value: Any) -> UsageError:
    got = " ".join(value) if isinstance(value, Words) else value
    return UsageError(f"--{name}: expected {expected}, got {'nothing' if got == '' else quoted(got)}")


def to_tree(value: Any) -> Any:
    """Plain values, only of the fields that a user may set. `build` makes an equal value from them."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: to_tree(getattr(value, name)) for name in option_names(type(value))}
    if isinstance(value, tuple | list):
        return [to_tree(inner) for inner in value]
    if isinstance(value, Mapping):
        return {str(name): to_tree(inner) for name, inner in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinity
    return str(value) if isinstance(value, Path) else value


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> Tree:
    """`under`, overridden by the values of `over`, group by group. Overridden names move to the end."""
    merged = dict(under)
    for name, value in over.items():
        old = merged.pop(name, None)
        if isinstance(value, Mapping) and old is not None:
            old = old if isinstance(old, Mapping) else {HEAD: old}
            merged[name] = merge(old, value)
        elif isinstance(old, Mapping) and not isinstance(value, Mapping):
            merged[name] = {**{inner: kept for inner, kept in old.items() if inner != HEAD}, HEAD: value}
        else:
            merged[name] = value
    return merged


def options_of(
    kind: type, path: str, positional: Sequence[str] = (), values: Any = None, chosen: Collection[str] = ()
) -> list[Option]:
    """The options of a class, groups last. `values`: an instance; its fields are shown as the defaults. `chosen`: options whose values the run chooses."""
    hints, docs, options, groups = _hints(kind), field_docs(kind), list[Option](), list[Option]()
    named = {f.name: f for f in _fields(kind)}
    for name in option_names(kind):
        hint, option = hints[name], named[name]
        if is_dataclass(hint):
            inner: Any = None if values is None else getattr(values, name)
            kind_of: Any = hint
            groups += options_of(kind_of, f"{path}{name}.", values=inner, chosen=chosen)
            continue
        default: str | None = None
        if f"{path}{name}" in chosen:
            default = "auto: chosen for the graph"
        elif values is not None:
            default = shown(getattr(values, name))
        elif option.default is not MISSING:
            default = shown(option.default)
        elif option.default_factory is not MISSING:
            default = shown(option.default_factory())
        flag = name.upper() if name in positional else f"{path}{name}"
        text = " ".join(docs.get(name, "").split())
        options.append(Option(flag, _metavar(hint), text, default, path.removesuffix("."), _choices(hint)))
    return options + groups


def _choices(hint: Any) -> tuple[str, ...]:
    """All values of a type, if the type has few values. For a union: all values of the first type that has few."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return tuple(map(str, arguments))
    if origin in (Union, types.UnionType, tuple):
        return _choices(arguments[0])
    return ("yes", "no") if hint is bool else ()


def shown(value: Any) -> str:
    """An option's value in command-line syntax."""
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, Mapping):
        return " ".join(f"{name}={shown(each).replace(' ', ',')}" for name, each in value.items()) or "none"
    return {None: "none", True: "yes", False: "no"}[value] if isinstance(value, bool | None) else str(value)


def _metavar(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        named = [_metavar(argument).removesuffix("|none") for argument in arguments if argument is not type(None)]
        return "|".join([*named, "none"] if type(None) in arguments else named)
    if origin is Literal:
        return "{" + ",".join(map(str, arguments)) + "}"
    if origin is tuple:
        return f"{_metavar(arguments[0])} …|none" if arguments[-1] is Ellipsis else " ".join(map(_metavar, arguments))
    if origin is Mapping:
        return f"NAME={_metavar(arguments[1]).replace(' ', ',')} …"
    return {int: "INT", float: "FLOAT", str: "TEXT", bool: "[yes|no]", Path: "PATH"}.get(hint, "")


def field_docs(kind: type) -> dict[str, str]:
    """The docstring below each field, for a dataclass and its base classes."""
    docs: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if not is_dataclass(owner):
            continue
        try:
            (defined,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        except (OSError, TypeError):  # a class without a source file, such as a class of a notebook
            continue
        for field, under in pairwise(defined.body if isinstance(defined, ast.ClassDef) else []):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(under, ast.Expr)
                and isinstance(under.value, ast.Constant)
            ):
                docs[ast.unparse(field.target)] = str(under.value.value)
    return docs
