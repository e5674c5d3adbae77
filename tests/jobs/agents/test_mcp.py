"""Tests `graphmill mcp` as a real process over standard input and output, with the SDK's own client; and which paths and options a caller may name."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from graphmill.core.errors import ConfigError
from graphmill.jobs.agents.child_command import EndedError, bounded, run_command, start_command
from graphmill.jobs.agents.root_folder import RootFolder, option_words, settable, takes_text
from graphmill.jobs.agents.tools import Session, offered
from graphmill.jobs.config.config import training_flags, typed_flags
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
        ("sampler.fanouts", ["3", "--data", "out"]),
        ("fit.start_from=/outside/w", []),
        ("fit.start_from=/outside/w", 1),
        ("model.name=evil:Net", []),
        ("model.name", "geco"),
        ("fit.epochs", []),
        ("fit..epochs", 3),
        ("-fit.epochs", 3),
        ("model", "-h"),
        ("fit.optimizer", "mine"),
        ("fit.callbacks", "mine"),
        ("data.folder", "x"),
        ("loader.no_such", 1),
    ],
)
def test_an_option_that_may_name_a_file_a_host_or_code_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match="options: "):
        option_words({name: value})


def test_options_become_words() -> None:
    words = option_words(
        {"model": "geco", "fit.epochs": 3, "sampler.fanouts": [5, -1], "fit.ema-decay": None, "data.split_set": 1}
    )
    assert words == [
        *("--model", "geco", "--fit.epochs", "3", "--sampler.fanouts", "5", "-1"),
        *("--fit.ema_decay", "none", "--data.split_set", "1"),
    ]


def test_no_option_that_takes_a_path_a_url_or_code_may_be_set() -> None:
    """Every option of every training: one that takes free text is refused for a path, a URL and an import path, and for a plain word, too, unless it is known to
    name something within the data."""
    kinds: dict[str, list[Any]] = {}
    for flag, kind in typed_flags():
        kinds.setdefault(flag, []).append(kind)
    assert len(kinds) > 250
    assert set(training_flags()) <= {*kinds, "kind", "allow_import"}
    for flag in kinds:
        for value in ("/etc/passwd", "s3://bucket/x", "package.module:Net", "../x", "~/x", "host:1"):
            with pytest.raises(ConfigError, match="options: "):
                option_words({flag: value})
    text = {flag for flag, own in kinds.items() if any(map(takes_text, own))}
    assert {"fit.start_from", "data.path", "fit.callbacks", "servers.disk_cache_dir", "run.dir", "ray.address"} <= text
    names = {flag for flag in text & settable().keys() if settable()[flag] is None}
    assert names == {
        *("task.target", "task.node_type", "task.relation", "sampler.relations", "embeddings.node_types"),
        *("fit.freeze", "fit.rates"),
    }


@pytest.mark.parametrize("named", ["config", "summary", "receipt", "link"])
@pytest.mark.parametrize("place", ["s3://bucket/graph", "{outside}", "link-to-outside"])
def test_data_that_a_run_names_outside_the_folder_is_refused(named: str, place: str, tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", (tmp_path / "root").resolve()
    outside.mkdir()
    (root / "run").mkdir(parents=True)
    (root / "graph").mkdir()
    (root / "link-to-outside").symlink_to(outside)

    def write(path: str) -> None:
        files = {"config": ("config.json", {"data": {"path": path}}), "summary": ("summary.json", {"graph": path})}
        files["receipt"] = "receipt.jsonl", {"kind": "start", "data": {"url": path}}
        if named in files:
            name, body = files[named]
            (root / "run" / name).write_text(json.dumps(body, separators=(",", ":")) + "\n")

    session = Session(RootFolder(root), 10, 10)
    write("graph")
    assert session.folder.closed("run", "run") == "run"
    write(place.format(outside=outside))
    if named == "link":
        (root / "run/data").symlink_to(outside)
    calls: list[Callable[[], str]] = [
        *(lambda: session.verify("run"), lambda: session.audit("run"), lambda: session.status("run")),
        *(lambda: session.compare("run", "run"), lambda: session.predict("run", "out"), lambda: session.plan("run")),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match="expected data below the server's folder"):
            call()


def test_a_command_that_reaches_a_limit_is_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(RootFolder(tmp_path.resolve()), 100, 10)
    (tmp_path / "run").mkdir()

    def reach(*_: Any, **__: Any) -> Any:
        assert session.lock.locked()
        raise EndedError("too long", 40.0)

    monkeypatch.setattr("graphmill.jobs.agents.tools.run_command", reach)
    for left, call in (
        (60, lambda: session.predict("run", "out")),
        (20, lambda: session.verify("run")),
        (-20, lambda: session.train("run", "new")),
    ):
        with pytest.raises(ConfigError, match="too long"):
            call()
        assert session.left_s == left
    with pytest.raises(ConfigError, match="got none; raise --max-cpu-seconds"):
        session.verify("run")


def test_a_log_that_exists_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "run.log").touch()
    (tmp_path / "graph").mkdir()
    with pytest.raises(ConfigError, match=r"run\.log: cannot be made \(File exists\)"):
        start_command(["doctor"], tmp_path, tmp_path / "run.log", cpu_s=1)
    with pytest.raises(ConfigError, match=r"expected a new name, got 'run\.log'"):
        Session(RootFolder(tmp_path.resolve()), 10, 10).train("graph", "run")
    with pytest.raises(ConfigError, match="below the server's folder"):
        Session(RootFolder(tmp_path.resolve()), 10, 10).train("graph", "./--overwrite")


def test_a_reading_command_ends_with_the_server(tmp_path: Path) -> None:
    """The server is killed while a command runs, which here is a program that sleeps."""
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$1" = -I ] && exec {sys.executable} "$@"\necho $$ > {tmp_path}/id\nexec sleep 300\n'
    )
    python.chmod(0o755)
    code = (
        "import sys; from pathlib import Path; from graphmill.jobs.agents.child_command import run_command\n"
        "sys.executable = sys.argv[2]; run_command(['inspect_graph'], Path(sys.argv[1]), cpu_s=60, wait_s=60)"
    )
    deadline = time.monotonic() + 60
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(python)]) as server:
        while not (tmp_path / "id").exists() or not (tmp_path / "id").read_text().endswith("\n"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        child = int((tmp_path / "id").read_text())
        assert _runs(child)
        server.send_signal(signal.SIGKILL)
    while _runs(child):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_tools_that_write_are_offered_only_where_they_are_allowed() -> None:
    assert set(offered(())) == READING
    assert set(offered(("train",))) == {*READING, "train"}


def test_a_command_is_limited_in_processor_time_and_in_output(tmp_path: Path) -> None:
    assert len(bounded("x" * 100_000)) < 21_000
    assert "left out" in bounded("x" * 100_000)
    with pytest.raises(EndedError, match="at most 1 CPU seconds") as told:
        run_command(["doctor"], tmp_path, cpu_s=1, wait_s=300)
    assert 0.5 < told.value.used_s < 10
    with pytest.raises(EndedError, match=r"within 0\.5 s") as told:
        run_command(["doctor"], tmp_path, cpu_s=60, wait_s=0.5)
    assert told.value.used_s > 0
