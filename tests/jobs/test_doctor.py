"""Tests each check of jobs/doctor.py on a healthy machine, and on a machine that lacks what the check requires."""

import http.server
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from graphmill.cluster.ray.node_checks import open_beyond_loopback
from graphmill.jobs.doctor import DoctorConfig, RayCheckOptions, check_all, check_token, main
from graphmill.jobs.plan import machine_checks
from graphmill.storage.format.source import Relation, TypedSource
from graphmill.storage.importers.memory.array_graph import array_edges, array_nodes
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from tests.job_in_process import run_job
from tests.listed_graph import random_listed_graph
from tests.stored_files import stored_file

REPOSITORY = Path(__file__).resolve().parents[2]


def doctor(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "jobs/doctor.py", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=600)


def found(findings, name: str) -> list[machine_checks.Finding]:
    return [finding for finding in findings if finding.name == name]


@pytest.fixture
def url(tmp_path: Path) -> str:
    ingest(random_listed_graph(40, 160), str(tmp_path / "graph"))
    return str(tmp_path / "graph")


def test_a_healthy_machine_and_graph_pass(url, tmp_path):
    findings = list(
        check_all(
            DoctorConfig(
                graph=url, store=str(tmp_path / "out"), run_dir=tmp_path / "runs", ray=RayCheckOptions(check=False)
            )
        )
    )
    assert not [finding for finding in findings if finding.verdict == "fail"]
    assert "40 nodes" in found(findings, "graph")[0].message
    assert "every checksum" in found(findings, "graph")[0].message
    # The checks remove all files that they wrote.
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "out").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".graphmill")]


def test_a_typed_graph_is_checked_too(tmp_path):
    label, split = np.array([0, 1, 0]), np.array([[1], [2], [0]], np.int8)
    nodes = {"paper": array_nodes("paper", 3, label=label, split=split), "author": array_nodes("author", 2)}
    writes = {Relation("author", "writes", "paper"): array_edges("writes", src=np.array([0, 1]), dst=np.array([2, 0]))}
    ingest(TypedSource("typed", nodes, writes), str(tmp_path / "graph"), IngestOptions(num_partitions=1))
    findings = list(machine_checks.check_graph(str(tmp_path / "graph"), quick=False))
    assert [(each.name, each.verdict) for each in findings] == [("graph", "ok"), ("splits", "warn")]
    assert "5 nodes, 2 edges, 1 partitions; every checksum matches" in findings[0].message
    assert "class" in findings[1].message


def test_the_share_of_huge_pages_is_named(url, monkeypatch):
    assert not found(machine_checks.check_graph(url, quick=False), "huge pages")  # a small graph
    monkeypatch.setattr(machine_checks, "_LEAST_HUGE_BYTES", 0)
    monkeypatch.setattr("graphmill.storage.filesystem.mapped_files.huge_bytes", lambda: (3 * 2**29, 2 * 2**30))
    (finding,) = found(machine_checks.check_graph(url, quick=False), "huge pages")
    assert finding.verdict == "ok"
    assert finding.message.startswith("75 % of the 2.0 GiB that are mapped for partition 0")


def test_one_changed_byte_fails(url):
    file = stored_file(url, "part-00000/topology.arrow")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    done = run_job(main, ["--graph", url, "--ray", "no"])
    assert done.returncode == 1
    line = next(line for line in done.stdout.splitlines() if line.startswith("fail"))
    assert "topology.arrow" in line
    assert "sha256" in line or "corrupt" in line
    assert "1 failed" in done.stderr


def test_no_graph_fails_and_quick_reads_less(url, tmp_path, monkeypatch):
    assert found(machine_checks.check_graph(str(tmp_path), quick=False), "graph")[0].verdict == "fail"
    monkeypatch.setattr("graphmill.storage.graph.StoredGraph.verify", lambda graph: pytest.fail("it was read"))
    assert found(machine_checks.check_graph(url, quick=True), "graph")[0].verdict == "ok"


def test_a_folder_that_cannot_be_written(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    (finding,) = machine_checks.check_folder("run directory", file / "runs")
    assert finding.verdict == "fail"
    assert str(file) in finding.message
    (finding,) = machine_checks.check_store("nosuch://bucket/x")
    assert finding.verdict == "fail"


def test_little_disk_memory_and_shared_memory_are_said(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(machine_checks.shutil, "disk_usage", lambda path: usage._replace(free=2**20))
    monkeypatch.setattr(machine_checks, "available_bytes", lambda: 2**30)
    assert [f.verdict for f in machine_checks.check_folder("run directory", tmp_path)] == ["warn"]
    assert [f.verdict for f in machine_checks.check_memory(2**30)] == ["warn", "warn"]


class Raylet:
    """A process as psutil gives it, with the command line of Ray's raylet."""

    def __init__(self, port: int, name: str = "raylet", user: int | None = None) -> None:
        user = os.getuid() if user is None else user
        words = ["raylet", "--node_ip_address=127.0.0.1", f"--dashboard_agent_command=agent.py --listen-port={port}"]
        self.info = {"name": name, "cmdline": words, "uids": SimpleNamespace(real=user)}


def answer_health(status: int) -> http.server.HTTPServer:
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/api/healthz" else 404)
            self.end_headers()

        def log_message(self, *words: object) -> None: ...

    server = http.server.HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.mark.parametrize(("status", "verdict"), [(200, "ok"), (503, "fail")])
def test_health_asks_the_ray_node_of_this_user(status, verdict, monkeypatch):
    with answer_health(status) as server:
        port = server.server_address[1]
        others = [Raylet(1, name="plasma"), Raylet(1, user=os.getuid() + 1), Raylet(0)]
        monkeypatch.setattr(psutil, "process_iter", lambda names: [*others, Raylet(port)])
        findings = list(check_all(DoctorConfig(health=True)))
        server.shutdown()
    assert [finding.name for finding in findings] == ["memory", "shared memory", "ray node"]
    assert findings[-1].verdict == verdict
    assert f"127.0.0.1:{port}" in findings[-1].message


@pytest.mark.ray
def test_health_of_a_real_node(ray_head):
    (raylet,) = [each for each in ray_head.process.children(recursive=True) if each.name() == "raylet"]
    (port,) = re.findall(r"--listen-port=(\d+)", " ".join(raylet.cmdline()))
    healthy = machine_checks.Finding("ray node", "ok", f"healthy at 127.0.0.1:{port}")
    assert healthy in list(machine_checks.check_ray_node())


def test_few_open_files_and_a_taken_port_are_said(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, 1024))
    (finding,) = machine_checks.check_open_files()
    assert finding.verdict == "warn"
    assert "ulimit -n 1024" in finding.message
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("127.0.0.1", 8265))
            server.listen()
        except OSError:
            pass  # The Ray of another user already uses the port, which is enough for this test.
        messages = [f.message for f in machine_checks.check_loopback() if f.verdict == "warn"]
    assert any("8265" in message for message in messages)
    assert any("no_proxy" in message for message in messages)


def test_a_missing_and_an_old_package_fail(monkeypatch):
    monkeypatch.setattr(
        machine_checks, "requires", lambda name: ["nosuchpackage>=1", "numpy>=999", "scipy", "x; extra == 'dev'"]
    )
    messages = [f.message for f in machine_checks.check_versions() if f.verdict == "fail"]
    assert len(messages) == 2
    assert "nosuchpackage>=1 is missing" in messages[0]
    assert "numpy>=999" in messages[1]


def test_a_container_s_share_of_the_cores(tmp_path, monkeypatch):
    limit = tmp_path / "cpu.max"
    monkeypatch.setattr(machine_checks, "_CPU_LIMIT", limit)
    limit.write_text("50000 100000\n")
    assert [f.verdict for f in machine_checks.check_cores()] == ["warn"]
    limit.write_text("max 100000\n")
    assert [f.verdict for f in machine_checks.check_cores()] == ["ok"]


def test_a_token_that_others_can_read(tmp_path, monkeypatch):
    token = tmp_path / "token"
    token.touch(mode=0o600)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    assert [f.verdict for f in check_token()] == ["ok"]
    token.chmod(0o644)
    (finding,) = check_token()
    assert finding.verdict == "fail"
    assert f"has mode 0644; run: chmod go-rwx {token}" in finding.message
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
    (finding,) = check_token()
    assert finding.verdict == "ok"
    assert finding.message.startswith("no file")


def test_sockets_that_others_can_connect_to_are_found():
    with socket.create_server(("0.0.0.0", 0)) as everywhere, socket.create_server(("127.0.0.1", 0)):
        (found,) = open_beyond_loopback(psutil.Process())
        assert found.startswith(f"0.0.0.0:{everywhere.getsockname()[1]} (")


@pytest.mark.ray
def test_ray_starts_and_its_node_answers(tmp_path):
    done = doctor("--run-dir", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    assert ["ok", "ray"] in [line[:2] for line in lines]
    assert any(line[1] == "node" and "clock" in line[2] for line in lines)
    assert ["ok", "ports", "all sockets of a local Ray listen on the loopback address"] in lines


def test_a_cluster_that_is_not_there_fails(tmp_path):
    done = run_job(main, ["--run-dir", str(tmp_path), "--ray.address", "127.0.0.1:1"])
    assert done.returncode == 1
    assert "no Ray cluster answers at 127.0.0.1:1" in done.stdout


@pytest.mark.long
def test_loops_are_made_once_and_a_partition_server_compiles_none_after_that(url, tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "loops"))
    options = ("--compile", "--ray.check", "no")
    first, second = doctor(*options), doctor(*options)
    assert " 0 were there" in first.stdout
    assert "loops          0 compiled" in second.stdout
    entries = set((tmp_path / "loops").rglob("*.nbc"))
    serve = (
        "import sys; from graphmill.samplers.access.partition_owner import open_parts; "
        "from graphmill.samplers.access.warm_up import warm_up; from graphmill.storage.graph import open_graph; "
        "graph = open_graph(sys.argv[1]); warm_up(open_parts(graph, [0]), graph, 0)"
    )
    subprocess.run([sys.executable, "-c", serve, url], cwd=REPOSITORY, check=True, timeout=600)
    assert set((tmp_path / "loops").rglob("*.nbc")) == entries
