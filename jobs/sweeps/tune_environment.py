"""What Ray Tune takes from the environment alone, set while it runs. What the user has set wins."""

from contextlib import AbstractContextManager

from cluster.session import environment_defaults

_TUNE = {
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C raises KeyboardInterrupt, as everywhere here
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # a trial's run directory has its records
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a trial that failed has no score
    "TUNE_FORCE_TRIAL_CLEANUP_S": "30",  # ten minutes by default
    "RAY_AIR_NEW_OUTPUT": "0",  # the new one prints boxes at verbosity 0 too
}


def tune_environment() -> AbstractContextManager[None]:
    """Around `Tuner.fit`."""
    return environment_defaults(_TUNE)
