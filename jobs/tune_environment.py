"""What Ray Tune takes from the environment alone, set while it runs. What the user has set wins."""

import contextlib
import os
from collections.abc import Iterator

_TUNE = {
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C raises KeyboardInterrupt, as everywhere here
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # a trial's run directory has its records
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a trial that failed has no score
    "TUNE_FORCE_TRIAL_CLEANUP_S": "30",  # ten minutes by default
    "RAY_AIR_NEW_OUTPUT": "0",  # the new one prints boxes at verbosity 0 too
}


@contextlib.contextmanager
def tune_environment() -> Iterator[None]:
    """Around `Tuner.fit`."""
    added = {name: value for name, value in _TUNE.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
