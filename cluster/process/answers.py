"""The answers of remote calls, actors' and tasks': a value within a deadline, or an error of ours."""

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
    """The value of a call to an actor or task, which errors call `who`.

    Raises the GraphmillError that the call raised; DeadlineError with the advice; StageError for a defect or, with `died`, if the process is
    gone. `again` ends a StageError's message.
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
    """The values of calls, at most `deadline_s` from now; None for a call that failed or was late."""
    ray.wait(list(references), num_returns=len(references), timeout=deadline_s)
    values = []
    for reference in references:
        try:
            values.append(ray.get(reference, timeout=0))
        except (GetTimeoutError, RayError):
            values.append(None)
    return values
