"""Tests the emulated hosts, with one training run on two of them."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions
from tests.disturbed_job import epochs, events
from tests.netlab.hosts import DISK, Hosts, why_not
from tests.netlab.ray_hosts import REPOSITORY, RayHosts

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
]
SMALL = (
    *("--model.width", "16", "--model.num_layers", "2", "--sampler", "neighbor"),
    *("--sampler.fanouts", "4", "3", "--fit.epochs", "2", "--workers", "2"),
)
SAY = "import socket; print(socket.create_connection(('h0', 7000), 3).recv(9).decode())"
LISTEN = "import socket; s = socket.create_server(('', 7000)); print(flush=True)\nwhile True: s.accept()[0].sendall(b'hello')"


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


@pytest.fixture
def two(shared: Path) -> Iterator[Hosts]:
    with Hosts(2, shared=[shared, REPOSITORY]) as hosts:  # the checkout has the compiled loops
        yield hosts


def test_hosts_have_links_that_can_be_cut_and_disks_that_outlive_a_power_cut(two: Hosts) -> None:
    def said(host: str, *command: str) -> str:
        return two.run(host, command, capture_output=True, text=True).stdout.strip()

    server = two.popen("h0", [sys.executable, "-I", "-c", LISTEN], stdout=-1)
    assert server.stdout is not None
    server.stdout.readline()
    hello = (sys.executable, "-I", "-c", SAY)
    assert said("h1", "hostname") == "h1"
    assert said("h1", *hello) == "hello"
    two.cut("h1")
    assert said("h1", *hello) == ""
    two.heal("h1")
    assert said("h1", *hello) == "hello"
    for folder in (DISK, "/tmp"):
        said("h1", "touch", f"{folder}/here")
    two.power_off("h1")
    two.power_on("h1")
    assert said("h1", "ls", DISK) == "here\nhome"
    assert "here" not in said("h1", "ls", "/tmp").split()
    assert said("h0", "ls", DISK) == "home"
    assert said("h1", *hello) == "hello"
    sent, received = two.bytes()["h1"]
    assert 0 < sent < 100_000
    assert 0 < received < 100_000


@pytest.mark.ray
def test_a_run_on_two_hosts_reads_partitions_from_their_own_disks(two: Hosts, shared: Path) -> None:
    begun = time.monotonic()
    origin, placed, run = shared / "origin", f"{DISK}/graph", shared / "run"
    ingest(SyntheticGraph(SyntheticOptions(num_nodes=1500)), str(origin), IngestOptions(num_partitions=2))
    cluster = RayHosts(two)
    cluster.start()

    place = cluster.job("ingest", str(origin), placed, "--place", "hosts")
    done = cluster.run("h0", place, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "h0 (10.77.0.1): partitions 0," in done.stdout
    assert "h1 (10.77.0.2): partitions 1," in done.stdout
    for host, partition in (("h0", 0), ("h1", 1)):
        theirs = {path.parent.name for path in two.disk(host).rglob("*.arrow")}
        assert theirs == {f"part-{partition:05d}"}

    before = two.bytes()["h1"]
    job = cluster.job("products_geco", "--data", placed, "--run.dir", str(run), *SMALL)
    done = cluster.run("h0", job, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        "partition servers up on the Ray cluster at 10.77.0.1:6379: partitions 0 on h0 (10.77.0.1), 1 on h1 (10.77.0.2)"
        in done.stdout
    )
    assert len(epochs(run)) == 2
    traffic = [event for event in events(run) if event["kind"] == "traffic" and event["of"] == "epochs"]
    assert all(
        count > 0 for event in traffic for name in ("local_requests", "remote_requests") for count in event[name]
    )
    counted = sum(sum(event["received_bytes"]) for event in traffic)
    on_link = sum(two.bytes()["h1"]) - sum(before)
    assert 0 < counted < on_link
    print(json.dumps({"seconds": round(time.monotonic() - begun), "counted": counted, "on_link": on_link}))
