"""Tests `graphmill mcp` as a real process over standard input and output, with the SDK's own client; and which paths and options a caller may name."""

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from graphmill.core.errors import ConfigError
from graphmill.jobs.agents.child_command import bounded, run_command
from graphmill.jobs.agents.root_folder import RootFolder, option_words
from graphmill.jobs.agents.tools import offered
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from tests.jobs.leaks.test_planted import label_column

pytest.importorskip("mcp")
Call = Callable[..., Awaitable[tuple[bool, str]]]
READING = {"list", "inspect", "plan", "status", "compare", "audit", "verify"}
OPTIONS = {
    "model": "sage",
    "model.num_layers": 1,
    "model.width": 8,
    "sampler": "neighbor",
    "sampler.fanouts": [3],
    "fit.epochs": 1,
}


def serve(folder: Path, *words: str, what: Callable[[Any, Call], Awaitable[None]]) -> None:
    """Starts a server on the folder and runs `what` with a client."""
    from mcp import StdioServerParameters
    from mcp.client.client import Client
    from mcp.client.stdio import stdio_client

    async def main() -> None:
        server = StdioServerParameters(command=sys.executable, args=["-m", "graphmill", "mcp", str(folder), *words])
        with anyio.fail_after(600):
            async with Client(stdio_client(server), read_timeout_seconds=300) as client:

                async def call(name: str, **arguments: Any) -> tuple[bool, str]:
                    result = await client.call_tool(name, arguments)
                    return bool(result.is_error), result.content[0].text

                await what(client, call)

    anyio.run(main)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    ingest(label_column(), str(tmp_path / "root/graphs/telling"), IngestOptions())
    return tmp_path / "root"


def test_a_server_reads_and_refuses_to_write(folder: Path) -> None:
    async def what(client: Any, call: Call) -> None:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(listed) == READING
        assert all(tool.annotations.read_only_hint for tool in listed.values())
        assert (await call("list", folder="graphs")) == (False, "graph or set  telling")
        failed, text = await call("inspect", graph="graphs/telling")
        assert not failed
        assert "400" in text
        failed, text = await call("inspect", graph="../other")
        assert failed
        assert "below the server's folder" in text
        failed, _ = await call("train", data="graphs/telling", run="runs/a")
        assert failed

    serve(folder, what=what)
    assert {path.name for path in folder.iterdir()} == {"graphs"}


@pytest.mark.long
def test_a_training_within_its_cost_is_planned_started_and_told(folder: Path) -> None:
    async def what(client: Any, call: Call) -> None:
        data = {"data": "graphs/telling", "options": OPTIONS}
        failed, text = await call("audit", target="graphs/telling")
        assert not failed
        assert text.startswith("exit status 1\n")
        assert "columns alone tell the label" in text
        failed, text = await call("plan", **data)
        assert not failed
        assert "CPU seconds in steps" in text
        failed, text = await call(
            "train", run="runs/dear", data="graphs/telling", options={**OPTIONS, "fit.epochs": 100_000}
        )
        assert failed
        assert "CPU seconds, which are left" in text
        failed, text = await call("train", run="runs/a", **data)
        assert (failed, text.startswith("started: runs/a")) == (False, True), text
        failed, text = await call("train", run="runs/b", **data)
        assert failed
        assert "runs/a is running" in text
        for _ in range(200):
            failed, text = await call("status", run="runs/a")
            assert not failed, text
            if "the process ended" in text:
                break
            await anyio.sleep(1)
        assert "the process ended with status 0" in text
        assert '"kind": "finish"' in text
        assert '"graph_hash"' in text
        assert "audit columns: leak" in text
        failed, text = await call("predict", run="runs/a", out="predicted")
        assert not failed, text
        assert (folder / "predicted").is_dir()
        failed, text = await call("compare", run="runs/a", other="runs/a")
        assert not failed
        assert "options that differ: 0" in text
        assert (await call("predict", run="runs/a", out="predicted"))[0]

    serve(folder, "--allow", "train", "predict", "--max-cpu-seconds", "300", what=what)
    assert not (folder / "runs/dear").exists()


def test_a_path_outside_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root/in").mkdir(parents=True)
    (tmp_path / "root/out").symlink_to("/etc")
    root = RootFolder((tmp_path / "root").resolve())
    assert root.there("in", "graph") == "in"
    for name in ("..", "in/../..", "/etc", "out/passwd", "s3://bucket/x", "-x", "~", ".", "simplecache::x"):
        with pytest.raises(ConfigError, match="below the server's folder"):
            root.inside(name, "graph")
    with pytest.raises(ConfigError, match="found no 'gone'"):
        root.there("gone", "graph")
    with pytest.raises(ConfigError, match="a new name"):
        root.free("in", "run")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("run.dir", "x"),
        ("data.path", "x"),
        ("servers.tls_key", "x"),
        ("ray.address", "x"),
        ("workers", 4),
        ("allow_import", True),
        ("fit.start_from", "x"),
        ("model", "package.module:Net"),
        ("model", "../x"),
        ("model", "a b"),
        ("sampler.fanouts", ["3", "--run.dir=x"]),
    ],
)
def test_an_option_that_may_name_a_file_a_host_or_code_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match="options: "):
        option_words({name: value})


def test_options_become_words() -> None:
    words = option_words(
        {"model": "geco", "fit.epochs": 3, "sampler.fanouts": [5, 5], "fit.ema_decay": None, "data.split_set": 1}
    )
    assert words == [
        *("--model", "geco", "--fit.epochs", "3", "--sampler.fanouts", "5", "5"),
        *("--fit.ema_decay", "none", "--data.split_set", "1"),
    ]


def test_tools_that_write_are_offered_only_where_they_are_allowed() -> None:
    assert set(offered(())) == READING
    assert set(offered(("train",))) == {*READING, "train"}


def test_a_command_is_limited_in_processor_time_and_in_output(tmp_path: Path) -> None:
    assert len(bounded("x" * 100_000)) < 21_000
    assert "left out" in bounded("x" * 100_000)
    with pytest.raises(ConfigError, match="at most 1 CPU seconds"):
        run_command(["doctor"], tmp_path, cpu_s=1, wait_s=300)
