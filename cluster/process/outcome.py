"""Defines the outcome of an attempt to train: finished, stopped or failed."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from graphmill.core.errors import ConfigError, DamageError, GraphmillError


@dataclass(frozen=True)
class Finished:
    """Outcome: all epochs are done."""

    summary: Mapping[str, Any]  # final scores, epoch of the kept weights, number of parameters, device


@dataclass(frozen=True)
class Stopped:
    """Outcome: the workers saved a checkpoint and ended, because the driver requested it, or because a worker's process was asked to leave."""

    epoch: int
    step: int = 0  # steps of this epoch that are done
    leaving: tuple[str, ...] = ()  # hosts of the ranks that were asked to leave

    @property
    def where(self) -> str:
        return f"epoch {self.epoch}" + (f", step {self.step}" if self.step else "")


@dataclass(frozen=True)
class Failed:
    """Outcome: a stage of the attempt failed."""

    stage: str
    owner: str  # owner of the stage: "rank 1", "Ray Train's controller"
    cause: GraphmillError
    is_final: bool = True  # another attempt would fail in the same way

    @classmethod
    def of(cls, error: GraphmillError, owner: str) -> "Failed":
        """Makes the outcome from an error that a worker raised on purpose. The error's stage and owner are kept if they are set."""
        return cls(
            error.stage or "training",
            error.owner or owner,
            error,
            is_final=isinstance(error, DamageError | ConfigError),
        )

    def error(self, given_up: str | None = None) -> GraphmillError:
        """Returns the error for the user: one line with stage, owner, cause and, if attempts were counted, the reason why no attempt is left."""
        line = str(self.cause.at(self.stage, self.owner))
        made = type(self.cause)(line if given_up is None else f"{line}; given up after {given_up}")
        made.__cause__ = self.cause.__cause__
        return made


Outcome = Finished | Stopped | Failed


@contextmanager
def located(stage: str, owner: str = "") -> Iterator[None]:
    """Adds stage and owner to a GraphmillError that is raised inside the block, unless the error has them already."""
    try:
        yield
    except GraphmillError as error:
        error.at(stage, owner)
        raise
