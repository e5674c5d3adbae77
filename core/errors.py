"""Every error that Graphmill raises on purpose.

One root class; each leaf is also the builtin that it refines, so callers may catch either. Each takes one message: expected, found, and what to do. All
survive pickling, so an error of a remote stage reaches the user whole.
"""

import re
import reprlib
import unicodedata
from typing import Self

_MOST_CHARACTERS = 2000  # of a message
_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80
_short.maxlevel = 3


def quoted(value: object) -> str:
    """The value's repr for a message; a long repr is cut to its beginning and end."""
    return _short.repr(value)


def _commands(character: str) -> bool:
    """Whether a character acts on a terminal or cannot be encoded: control codes, surrogates, and marks that change the direction of text."""
    turns = "\u202a" <= character <= "\u202e" or "\u2066" <= character <= "\u2069"
    return turns or unicodedata.category(character) in ("Cc", "Cs")


class GraphmillError(Exception):
    """Root of all errors that Graphmill raises on purpose. Jobs print them in one line and exit with 1."""

    stage = owner = ""  # the place of the error: "stage sample, epoch 0, step 3", "rank 1"

    def at(self, stage: str, owner: str = "") -> Self:
        """This error with its stage and owner; values that were set closer to the source stay."""
        self.stage, self.owner = self.stage or stage, self.owner or owner
        return self

    def __str__(self) -> str:
        """Stage, owner and message in one line of plain text of bounded length. Names and values from files may contain terminal commands: these are escaped."""
        where = ", ".join(filter(None, (self.stage, self.owner)))
        text = f"{where}: {super().__str__()}" if where else super().__str__()
        if len(text) > _MOST_CHARACTERS:  # the end says what to do
            text = f"{text[: _MOST_CHARACTERS // 2]} … {text[-_MOST_CHARACTERS // 2 :]}"
        line = re.sub(r"\s*[\n\r\t\v\f\x1c-\x1e\x85\u2028\u2029]\s*", " ", text)
        return "".join(c.encode("unicode_escape").decode() if _commands(c) else c for c in line)


class ConfigError(GraphmillError, ValueError):
    """An option or an argument has a value that cannot work."""


class UsageError(ConfigError):
    """An unknown flag, or a value of the wrong type: exit status 2."""


class DataError(GraphmillError, ValueError):
    """A source's data is not a valid graph: ids, labels, splits, shapes, finite numbers."""


class FormatError(GraphmillError, OSError):
    """A stored graph or checkpoint is missing, truncated, corrupt, or of another format."""


class DamageError(FormatError):
    """A stored file holds other bytes than its manifest names. Another attempt to read it fails, too."""


class ConflictError(GraphmillError, FileExistsError):
    """Another writer was first; both writers' files are intact."""


class MissingDependencyError(GraphmillError, ImportError):
    """This call needs an optional package that is not installed."""


class StageError(GraphmillError, RuntimeError):
    """A stage of the pipeline (sample, fetch, collate, a partition's owner) failed; the message names stage and cause."""


class DeadlineError(GraphmillError, TimeoutError):
    """A wait reached its deadline."""


class ClusterLostError(StageError):
    """The cluster is gone: it answers no request, not even to end what runs there."""


class Terminated(KeyboardInterrupt):
    """SIGTERM: unwinds a program as Ctrl-C does; a command then exits with 143."""
