"""What a worker's call answers: its value, or an error of ours. Predictions and ingestion ask their workers by it."""

from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from graphmill.core.errors import DeadlineError, GraphmillError, StageError


def answer(reference: ray.ObjectRef, call: str, deadline_s: float, died: str, advice: str) -> Any:
    """The value of a call that `ray.wait` has found ready; its bytes may still be on their way, for at most `deadline_s`.

    Raises what the worker raised on purpose, DeadlineError, or StageError: for a defect, or, with `died` and `advice`, where the worker is gone.
    """
    try:
        return ray.get(reference, timeout=deadline_s)
    except GetTimeoutError as error:
        raise DeadlineError(f"{call}: expected a result within {deadline_s:g} s, got none") from error
    except RayTaskError as error:
        if isinstance(error.cause, GraphmillError):
            raise error.cause from error
        raise StageError(f"{call}: {type(error.cause).__name__}: {error.cause}; run again to go on") from error
    except RayError as error:
        raise StageError(f"{call}: {died} ({type(error).__name__}); {advice}; run again to go on") from error
