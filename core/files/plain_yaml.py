"""Reads YAML of plain values: one document of bounded size and depth, without anchors, aliases and tags; all keys are text.

Aliases are refused because nested aliases multiply: with six levels of nine aliases each, a file of 300 bytes becomes half a million values.
"""

from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer

from graphmill.core.errors import ConfigError
from graphmill.core.files.small_files import read_small

_MOST_BYTES, _MOST_LEVELS = 2**20, 20


if yaml.__with_libyaml__:

    class _Loader(Composer, yaml.CSafeLoader):
        """Parses events with libyaml, which reads a list of 100,000 numbers in a fifth of PyYAML's time. Composes nodes with PyYAML because its composer can be
        extended."""

        def __init__(self, text: str) -> None:
            yaml.CSafeLoader.__init__(self, text)
            Composer.__init__(self)

else:  # this PyYAML was built from source on a machine without libyaml
    _Loader = yaml.SafeLoader  # type: ignore[misc]  # the two definitions of _Loader have no common base class


class _PlainLoader(_Loader):
    _level = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None or getattr(event, "tag", None) is not None:
            self._refuse("plain values, without anchors (&), aliases (*) and tags (!): write each value out", event)
        if self._level == _MOST_LEVELS:
            self._refuse(f"at most {_MOST_LEVELS} levels", event)
        is_name = isinstance(parent, yaml.MappingNode) and index is None
        if is_name and not isinstance(event, yaml.ScalarEvent):
            self._refuse("a name before the colon", event)
        self._level += 1
        node = super().compose_node(parent, index)
        self._level -= 1
        if is_name:  # keys such as 1, on and null are text, too
            node.tag = "tag:yaml.org,2002:str"
        return node

    def _refuse(self, expected: str, event: yaml.Event) -> None:
        raise yaml.YAMLError(f"line {event.start_mark.line + 1}: expected {expected}")


def compose_yaml(path: Path) -> yaml.Node | None:
    """Returns the document's nodes with their line numbers; None for an empty file. Raises the errors of `read_yaml`."""
    return _read(path, _PlainLoader.get_single_node)


def read_yaml(path: Path) -> Any:
    """Returns the document's value. Raises ConfigError if the file is not plain YAML, FileNotFoundError if it is missing."""
    return _read(path, _PlainLoader.get_single_data)


def _read(path: Path, read: Any) -> Any:
    try:
        loader = _PlainLoader(read_small(path, _MOST_BYTES).decode())
        try:
            return read(loader)
        finally:
            loader.dispose()
    except FileNotFoundError:
        raise
    # ValueError: bytes that are not text, a number with thousands of digits, or month 13 in a date.
    except (OSError, ValueError, OverflowError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read as YAML ({' '.join(str(error).split())[:200]})") from None
