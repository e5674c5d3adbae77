"""Every error that Graphmill raises on purpose.

There is one root class. Each other class also derives from the builtin error that it refines, so callers may catch either. Each error has one message, which
says what was expected, what was found, and what to do. All errors can be pickled, so the user sees the whole error of a remote stage.
"""

import re
import reprlib
import unicodedata
from typing import Self

_MOST_CHARACTERS = 2000  # longest message
_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80
_short.maxlevel = 3


def quoted(value: object) -> str:
    """Returns the value's repr for a message. A long repr is cut: only its beginning and its end are kept."""
    return _short.repr(value)


def _commands(character: str) -> bool:
    """Whether a character controls a terminal or cannot be encoded: control codes, surrogates, and marks that change the direction of text."""
    turns = "\u202a" <= character <= "\u202e" or "\u2066" <= character <= "\u2069"
    return turns or unicodedata.category(character) in ("Cc", "Cs")


class GraphmillError(Exception):
    """Root of all errors that Graphmill raises on purpose. Jobs print them in one line and exit with 1."""

    stage = owner = ""  # stage and owner of the error: "stage sample, epoch 0, step 3", "rank 1"

    def at(self, stage: str, owner: str = "") -> Self:
        """Sets stage and owner of this error, and returns it. Values that were set before, closer to the cause, stay."""
        self.stage, self.owner = self.stage or stage, self.owner or owner
        return self

    def __str__(self) -> str:
        """Stage, owner and message in one line of plain text of bounded length. Terminal commands in names and values from files are escaped."""
        where = ", ".join(filter(None, (self.stage, self.owner)))
        text = f"{where}: {super().__str__()}" if where else super().__str__()
        if len(text) > _MOST_CHARACTERS:  # the end is kept, because it says what to do
            text = f"{text[: _MOST_CHARACTERS // 2]} … {text[-_MOST_CHARACTERS // 2 :]}"
        line = re.sub(r"\s*[\n\r\t\v\f\x1c-\x1e\x85\u2028\u2029]\s*", " ", text)
        return "".join(c.encode("unicode_escape").decode() if _commands(c) else c for c in line)


class ConfigError(GraphmillError, ValueError):
    """An option or an argument has an invalid value."""


class UsageError(ConfigError):
    """A flag is unknown, or a value has the wrong type. The command exits with status 2."""


class DataError(GraphmillError, ValueError):
    """The data of a source is not a valid graph: wrong ids, labels, splits or shapes, or numbers that are not finite."""


class FormatError(GraphmillError, OSError):
    """A stored graph or checkpoint is missing, truncated, corrupt, or of another format."""


class DamageError(FormatError):
    """The content of a stored file differs from its checksum in the manifest. Reading the file again does not help."""


class ConflictError(GraphmillError, FileExistsError):
    """Another writer published first. The files of both writers are intact."""


class MissingDependencyError(GraphmillError, ImportError):
    """This call requires an optional package that is not installed."""


class StageError(GraphmillError, RuntimeError):
    """A stage of the pipeline failed: sample, fetch, collate, or the owner of a partition. The message names the stage and the cause."""


class DeadlineError(GraphmillError, TimeoutError):
    """A wait reached its deadline."""


class ClusterLostError(StageError):
    """The cluster cannot be reached: it answers no request, not even the request to end its processes."""


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM. It unwinds the program like Ctrl-C; a command then exits with 143."""
