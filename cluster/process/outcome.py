"""How an attempt to train ends: one of three values."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from graphmill.core.errors import DamageError, GraphmillError


@dataclass(frozen=True)
class Finished:
    """All epochs are done."""

    summary: Mapping[str, Any]  # final scores, the epoch whose weights were kept, number of parameters, device


@dataclass(frozen=True)
class Stopped:
    """A checkpoint was saved and the workers ended, because the driver asked for it."""

    where: str  # "epoch 3, step 5"


@dataclass(frozen=True)
class Failed:
    """A stage failed."""

    stage: str
    owner: str  # whose stage: "rank 1", "Ray Train's controller"
    cause: GraphmillError
    is_final: bool = True  # another attempt would fail in the same way

    @classmethod
    def of(cls, error: GraphmillError, owner: str) -> "Failed":
        """What a worker raised on purpose, which may know its stage and owner better."""
        return cls(error.stage or "training", error.owner or owner, error, is_final=isinstance(error, DamageError))

    def error(self, given_up: str | None = None) -> GraphmillError:
        """What the user is shown: one line with stage, owner, cause and, where attempts were counted, why none is left."""
        line = str(self.cause.at(self.stage, self.owner))
        made = type(self.cause)(line if given_up is None else f"{line}; given up after {given_up}")
        made.__cause__ = self.cause.__cause__
        return made


Outcome = Finished | Stopped | Failed


@contextmanager
def located(stage: str, owner: str = "") -> Iterator[None]:
    """Gives a GraphmillError from inside this stage and owner, unless the error knows them already."""
    try:
        yield
    except GraphmillError as error:
        error.at(stage, owner)
        raise
