"""What the user is told when training ends by an error."""

from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import OutOfMemoryError

from cluster.trainer import _cause
from storage.errors import ConfigError, GraphmillError, StageError

LOG = Path("run", "failure.log")
KILLED = """7 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 192.0.2.2) was 22.59GB used / 23.54GB limit
OOM kill reason: Memory usage 24040280064B exceeded threshold of 24012685312B (95.0% of 25276510208B limit)
Refer to the documentation on how to address the out of memory issue: a long text"""


class Failed(Exception):
    """Ray Train's error: the workers' failures by rank, or the controller's."""

    def __init__(
        self, worker_failures: dict[int, Exception] | None = None, controller: Exception | None = None
    ) -> None:
        super().__init__("Training failed")
        self.worker_failures, self.controller_failure = worker_failures or {}, controller


def said(**failures: Any) -> GraphmillError:
    error: Any = Failed(**failures)
    return _cause(error, LOG)


@pytest.mark.parametrize(
    "failures", [{"controller": OutOfMemoryError(KILLED)}, {"worker_failures": {1: OutOfMemoryError(KILLED)}}]
)
def test_too_little_memory_is_named_with_its_figures(failures: dict[str, Any]) -> None:
    error = said(**failures)
    assert type(error) is StageError
    assert str(error).startswith(
        "training failed: out of memory: 7 worker(s) were killed due to the node running low on memory."
    )
    assert "22.59GB used / 23.54GB limit" in str(error)
    assert str(LOG) in str(error)
    assert "\n" not in str(error)


def test_an_error_that_a_worker_raised_on_purpose_comes_first() -> None:
    error = said(worker_failures={0: ValueError("a"), 1: ConfigError("sampler: expected another")})
    assert type(error) is ConfigError
    assert str(error) == "sampler: expected another (worker 1)"


def test_any_other_is_named_by_its_last_line() -> None:
    assert str(said(worker_failures={0: ValueError("one\ntwo")})).startswith(
        "training failed: ValueError: two; the workers'"
    )
