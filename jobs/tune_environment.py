"""What Ray and Ray Tune take from the environment alone, set while a sweep runs. What the user has set wins."""

import contextlib
import os
from collections.abc import Iterator, Mapping

_TUNE = {
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C raises KeyboardInterrupt, as everywhere here
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # a trial's run directory has its records
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a trial that failed has no score
    "TUNE_FORCE_TRIAL_CLEANUP_S": "30",  # ten minutes by default
    "RAY_AIR_NEW_OUTPUT": "0",  # the new one prints boxes at verbosity 0 too
}
_PROCESSES_PER_CPU = 4  # a trial's servers, hub and controllers ask for no CPU


def tune_environment() -> contextlib.AbstractContextManager[None]:
    """Around `Tuner.fit`."""
    return _set(_TUNE)


def more_startups(num_cpus: int) -> contextlib.AbstractContextManager[None]:
    """Around a local Ray's start: without it Ray warns that so many processes start on so few CPUs."""
    return _set({"RAY_worker_maximum_startup_concurrency": str(_PROCESSES_PER_CPU * num_cpus)})


@contextlib.contextmanager
def _set(values: Mapping[str, str]) -> Iterator[None]:
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
