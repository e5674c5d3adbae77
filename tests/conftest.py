"""Fixtures for all tests: the folder of real data sets, and one Ray head node. Also sets a separate Ray token for this test run."""

import gc
import os
import secrets
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.ray_head import RayHead, one_at_a_time, start_ray_head, why_too_slow_for_ray

REPOSITORY = Path(__file__).resolve().parent.parent


def _use_own_ray_token() -> tempfile.TemporaryDirectory[str]:
    """Sets a separate Ray token. Ray reads RAY_AUTH_MODE only at its first import, so this function runs before any test module is imported."""
    folder = tempfile.TemporaryDirectory(prefix="graphmill-token-")
    token_file = Path(folder.name, "token")
    token_file.touch(mode=0o600)
    token_file.write_text(secrets.token_hex(32))
    os.environ.pop("RAY_AUTH_TOKEN", None)  # it would override the file
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(token_file), RAY_USAGE_STATS_ENABLED="0")
    # Tests must not use a Ray cluster that the developer uses.
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        os.environ.pop(name, None)
    return folder


_TOKEN_FOLDER = _use_own_ray_token()

# Several test processes share the cores. With torch's default number of threads, tests would take two to five times as
# long, because threads wait for one another. This must be set before torch is imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"

# A shell makes background commands ignore Ctrl-C, and child processes inherit this. Jobs under test must react to
# Ctrl-C, so restore the default.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


_FAILED: list[str] = []
_SLOW = "why_too_slow_for_ray"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long", action="store_true", help="all tests, also those marked `long`, and more examples of each property"
    )
    parser.addoption(
        "--fault-times",
        type=int,
        default=1,
        help="how often in a row each fault strikes, of the tests that take `strike`",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Makes hypothesis run fewer examples in the gate."""
    # An example may take any time, and several examples may share the folder of a fixture.
    usual = settings(deadline=None, suppress_health_check=list(HealthCheck))
    settings.register_profile("gate", usual, max_examples=25)
    settings.register_profile("all", usual, max_examples=200)
    settings.load_profile("all" if config.getoption("long") else "gate")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "strike" in metafunc.fixturenames:
        metafunc.parametrize("strike", range(metafunc.config.getoption("fault_times")))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("long") and not any(item.nodeid in config.args for item in items):
        long = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    # If this process is connected to a Ray, a job joins that Ray and takes ten times as long. So the tests of a file that
    # need no Ray run first.
    files = {path: place for place, path in enumerate(dict.fromkeys(item.path for item in items))}
    items.sort(key=lambda item: (files[item.path], "shared_ray" in getattr(item, "fixturenames", ())))
    if hasattr(config, "workerinput"):
        # If there are several test processes, they take files in this order. Files with Ray tests take longest, so they come first.
        files = {item.path for item in items if item.get_closest_marker("ray")}
        items.sort(key=lambda item: item.path not in files)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test that needs Ray if this machine is too slow for Ray. Never skips Ray's core tests, a test that is given by name, or a test in a run of all
    tests."""
    needs_ray = item.get_closest_marker("ray") or "ray_head" in getattr(item, "fixturenames", ())
    asked_for = (
        item.config.getoption("long") or item.nodeid in item.config.args or item.get_closest_marker("core") is not None
    )
    if needs_ray and not asked_for and (reason := _told(item.config)):
        pytest.skip(reason)


def _told(config: pytest.Config) -> str | None:
    return config.workerinput[_SLOW] if hasattr(config, "workerinput") else why_too_slow_for_ray()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """If there are several test processes, the main process checks once whether the machine is too slow, and tells the others."""
    node.workerinput[_SLOW] = why_too_slow_for_ray()


def pytest_collection_finish() -> None:
    """Excludes all objects that exist after the imports from garbage collection. Otherwise each full collection would take half a second."""
    gc.collect()
    gc.freeze()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        said = crash.message if crash else str(report.longrepr)
        _FAILED.append(f"{report.nodeid} ({report.when}): " + " | ".join(said.split("\n")[:3])[:300])


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """Prints the names of failed tests again at the end of the output, because a reader may see only the end of a long log."""
    for line in _FAILED:
        print(f"FAILED {line}")


@pytest.fixture(scope="session", autouse=True)
def _remove_ray_token() -> Iterator[None]:
    yield
    _TOKEN_FOLDER.cleanup()


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets: GRAPHMILL_TEST_DATA, or `shared/data` next to the checkout."""
    named = os.environ.get("GRAPHMILL_TEST_DATA")
    folder = Path(named) if named else REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data sets at {folder}; set GRAPHMILL_TEST_DATA to a folder that has them")
    return folder


@pytest.fixture(scope="session")
def compiled_loops(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What partition servers answer with. In a fresh checkout each partition server would compile the same loops, all at once: on a loaded machine for longer than a
    request waits."""
    from graphmill.samplers.access.partition_owner import open_parts
    from graphmill.samplers.access.warm_up import warm_up
    from graphmill.storage.graph import open_graph
    from graphmill.storage.ingestion.ingest import IngestOptions, ingest
    from tests.listed_graph import random_listed_graph

    url = str(tmp_path_factory.mktemp("warm") / "graph")
    with one_at_a_time():
        ingest(random_listed_graph(20, 100), url, IngestOptions(num_partitions=1))
        graph = open_graph(url)
        warm_up(open_parts(graph, [0]), graph, 0)


@pytest.fixture(scope="session")
def ray_head(compiled_loops: None) -> Iterator[RayHead]:
    """One real head node. All tests of this process use it, except tests that need a separate Ray."""
    with start_ray_head(num_cpus=4) as head:
        yield head


@pytest.fixture(scope="module")
def shared_ray(ray_head: RayHead) -> Iterator[None]:
    """Connects this process to the shared head node until the module's tests have ended. Jobs that run in this process use the connection."""
    from graphmill.cluster.options import SessionOptions
    from graphmill.cluster.ray.session import LOCAL_RAY_ENVIRONMENT, environment_defaults, ray_session

    # Like a Ray that a job starts, the head listens only on this machine.
    with environment_defaults(LOCAL_RAY_ENVIRONMENT), ray_session(SessionOptions(address=ray_head.address)):
        yield
