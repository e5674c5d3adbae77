"""Tests the messages that a user sees when training ends with an error."""

from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import OutOfMemoryError

from graphmill.cluster.process.outcome import Failed
from graphmill.cluster.training.ray_train import _failure
from graphmill.core.errors import ConfigError, FormatError, GraphmillError, StageError

LOG = Path("run", "failure.log")
KILLED = """7 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 192.0.2.2) was 22.59GB used / 23.54GB limit
OOM kill reason: Memory usage 24040280064B exceeded threshold of 24012685312B (95.0% of 25276510208B limit)
Refer to the documentation on how to address the out of memory issue: a long text"""


class TrainingFailed(Exception):
    """Like the error of Ray Train. It has the failures of workers by rank, or the failure of the controller."""

    def __init__(
        self, worker_failures: dict[int, Exception] | None = None, controller: Exception | None = None
    ) -> None:
        super().__init__("Training failed")
        self.worker_failures, self.controller_failure = worker_failures or {}, controller


def said(**failures: Any) -> GraphmillError:
    error: Any = TrainingFailed(**failures)
    failed = _failure(error, LOG)
    assert failed.is_final is isinstance(failed.cause, ConfigError)
    return failed.error()


@pytest.mark.parametrize(
    ("failures", "owner"),
    [
        ({"controller": OutOfMemoryError(KILLED)}, "Ray Train's controller"),
        ({"worker_failures": {1: OutOfMemoryError(KILLED)}}, "rank 1"),
    ],
)
def test_too_little_memory_is_named_with_its_figures(failures: dict[str, Any], owner: str) -> None:
    error = said(**failures)
    assert type(error) is StageError
    assert str(error).startswith(
        f"training, {owner}: out of memory: 7 worker(s) were killed due to the node running low on memory."
    )
    assert "22.59GB used / 23.54GB limit" in str(error)
    assert str(LOG) in str(error)
    assert "\n" not in str(error)


def test_an_error_that_a_worker_raised_on_purpose_comes_first() -> None:
    error = said(worker_failures={0: ValueError("a"), 1: ConfigError("sampler: expected another")})
    assert type(error) is ConfigError
    assert str(error) == "training, rank 1: sampler: expected another"


def test_an_error_that_names_its_stage_and_owner_names_them_once() -> None:
    error = FormatError("part-00001/features.arrow: damaged").at("stage fetch, epoch 2, step 7", "rank 1")
    assert str(said(worker_failures={0: ValueError("lost"), 1: error})) == (
        "stage fetch, epoch 2, step 7, rank 1: part-00001/features.arrow: damaged"
    )


def test_why_no_attempt_is_left_ends_the_line() -> None:
    failed = Failed("training", "rank 0", StageError("it died"))
    assert type(failed.error("3 failures in a row")) is StageError
    assert str(failed.error("3 failures in a row")) == "training, rank 0: it died; given up after 3 failures in a row"


def test_any_other_is_named_by_its_last_line() -> None:
    assert str(said(worker_failures={0: ValueError("one\ntwo")})) == (
        f"training, rank 0: ValueError: two; the workers' tracebacks are in {LOG}"
    )
