"""Waits for the answers of calls to Ray's actors and tasks. An answer is a value within a deadline, or a GraphmillError."""

from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from graphmill.core.errors import DeadlineError, GraphmillError, StageError


def answer(
    reference: ray.ObjectRef,
    who: str,
    deadline_s: float,
    advice: str = "free its machine",
    *,
    died: str = "the server is gone",
    again: str = "",
) -> Any:
    """Returns the value of a call to an actor or task. Errors name the actor or task `who`.

    Raises the GraphmillError that the call raised; DeadlineError, with `advice`, if no answer comes in time; StageError for any other error of the
    call; StageError, with `died`, if the process is gone. The message of a StageError ends with `again`.
    """
    try:
        return ray.get(reference, timeout=deadline_s)
    except GetTimeoutError:
        raise DeadlineError(f"{who}: no answer within {deadline_s:g} s; see `ray list actors`, or {advice}") from None
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, GraphmillError):
            raise type(cause)(f"{who}: {cause}") from error
        raise StageError(f"{who}: {type(cause).__name__}: {cause}{again}") from error
    except RayError as error:
        text = " ".join(str(error).split())[:300]
        raise StageError(f"{who}: {died} ({type(error).__name__}): {text}{again}") from error


def answers_in_time(references: Sequence[ray.ObjectRef], deadline_s: float) -> list[Any]:
    """Waits at most `deadline_s` for all calls in total, and returns their values. The value is None for a call that failed or was late."""
    ray.wait(list(references), num_returns=len(references), timeout=deadline_s)
    values = []
    for reference in references:
        try:
            values.append(ray.get(reference, timeout=0))
        except (GetTimeoutError, RayError):
            values.append(None)
    return values
