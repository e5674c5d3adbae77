"""Checks a machine before a run. Each check yields findings: what the machine has, whether that is enough, and what to do if it is not.

Nothing here needs Ray. A check removes all files that it writes and closes its sockets.
"""

import os
import platform
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.request import urlopen

from graphmill.core.errors import GraphmillError
from graphmill.core.parallel_map import num_cores
from graphmill.jobs.machine.memory_check import available_bytes

if TYPE_CHECKING:
    from graphmill.storage.graph import StoredGraph

Verdict = Literal["ok", "warn", "fail"]

_LEAST_OPEN_FILES = 4096  # a local Ray with a few workers opens about a thousand files
_LEAST_DISK_BYTES = 2**30
_LEAST_MEMORY_BYTES = 2 * 2**30
_LEAST_HUGE_BYTES = 64 * 2**20  # smaller graphs lie in caches
_CLOCK_S = 2.0
_ANSWER_S = 10.0  # of a Ray node that is asked whether it is healthy
_SHARED_MEMORY = Path("/dev/shm")
_CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")
_NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
_PROBE_BYTES = 8 * 2**20


class Finding(NamedTuple):
    """The outcome of one check, printed as one line."""

    name: str
    verdict: Verdict
    message: str


def _warned(name: str, problem: str | None, fine: str) -> Finding:
    """Returns a finding: a warning with the problem if there is one, otherwise the message `fine`."""
    return Finding(name, "ok", fine) if problem is None else Finding(name, "warn", problem)


def check_versions() -> Iterator[Finding]:
    """Checks Python and every package that Graphmill requires (without its extras)."""
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    try:
        wanted = requires("graphmill") or []
    except PackageNotFoundError:
        yield Finding("packages", "fail", "graphmill is not installed in this environment; run: pip install -e .")
        return
    from packaging.requirements import Requirement  # torch and Ray both require it

    installed: list[str] = []
    problems: list[str] = []
    for requirement in map(Requirement, wanted):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            has = version(requirement.name)
        except PackageNotFoundError:
            problems.append(f"{requirement} is missing; run: pip install -e .")
            continue
        installed.append(f"{requirement.name} {has}")
        if not requirement.specifier.contains(has, prereleases=True):
            problems.append(f"expected {requirement}, found {has}; run: pip install -e . -c constraints.txt")
    for problem in problems:
        yield Finding("packages", "fail", problem)
    if not problems:
        yield Finding("packages", "ok", ", ".join(installed))


def check_cores() -> Iterator[Finding]:
    """Checks the cores that this process may use, and the container's limit if it is lower."""
    cores = num_cores()
    quota, _, period = _CPU_LIMIT.read_text().strip().partition(" ") if _CPU_LIMIT.exists() else ("max", "", "")
    allowed = int(quota) / int(period) if quota != "max" and period else cores
    problem = f"{cores} cores, of which the container may use {allowed:g}: set OMP_NUM_THREADS and --workers by that"
    yield _warned("cores", problem if allowed < cores else None, f"{cores}")


def check_memory(object_store_bytes: int) -> Iterator[Finding]:
    """Checks the free memory for a run with its object store, and the shared memory that holds the object store."""
    free = available_bytes()
    needed = object_store_bytes + _LEAST_MEMORY_BYTES
    fine = f"{_gib(free)} free"
    short = f"{fine}, of which {_gib(needed)} are wanted for a driver, a worker and the object store; set --ray.object_store_gb"
    yield _warned("memory", short if free < needed else None, fine)
    if not _SHARED_MEMORY.is_dir():
        yield Finding(
            "shared memory", "warn", f"no {_SHARED_MEMORY}: the object store will be a file on disk, and slow"
        )
        return
    shared = shutil.disk_usage(_SHARED_MEMORY).free
    short = (
        f"{_SHARED_MEMORY} has {_gib(shared)} free, the object store wants {_gib(object_store_bytes)}: Ray will use the disk, "
        "and be slow; set --ray.object_store_gb, or give the container more (docker run --shm-size)"
    )
    yield _warned(
        "shared memory", short if shared < object_store_bytes else None, f"{_gib(shared)} free in {_SHARED_MEMORY}"
    )


def check_ray_node() -> Iterator[Finding]:
    """Asks the Ray nodes of this user on this machine, in a container its only one, whether they answer. A machine without Ray has no finding."""
    import psutil

    for raylet in psutil.process_iter(["name", "uids", "cmdline"]):
        words = " ".join(raylet.info["cmdline"] or ())
        address, port = re.search(r"--node_ip_address=(\S+)", words), re.search(r"--listen-port=([1-9]\d*)", words)
        uids = raylet.info["uids"]
        if raylet.info["name"] != "raylet" or uids is None or uids.real != os.getuid() or not (address and port):
            continue
        where = f"{address[1]}:{port[1]}"
        try:
            with urlopen(f"http://{where}/api/healthz", timeout=_ANSWER_S):  # on a head also of the cluster's state
                yield Finding("ray node", "ok", f"healthy at {where}")
        except OSError as error:
            yield Finding("ray node", "fail", f"not healthy at {where} ({error}); start Ray on this node again")


def check_folder(name: str, folder: Path) -> Iterator[Finding]:
    """Checks free space and permissions of a folder (or of the parent, if the folder does not exist yet), and whether its file system renames and syncs."""
    from graphmill.storage.filesystem.outputs import existing_part

    existing = existing_part(folder)
    if not existing.is_dir():
        yield Finding(name, "fail", f"{existing} is not a directory; choose another folder")
        return
    try:
        began, earliest = time.perf_counter(), time.time()
        with tempfile.TemporaryDirectory(prefix=".graphmill-doctor-", dir=existing) as probe:
            first, second = Path(probe) / "a", Path(probe) / "b"
            with first.open("wb") as file:
                file.write(bytes(_PROBE_BYTES))
                file.flush()
                os.fsync(file.fileno())
            os.replace(first, second)
            seconds = time.perf_counter() - began
            modified, latest = second.stat().st_mtime, time.time()
            skew = modified - min(max(modified, earliest), latest)  # 0 if `modified` lies between the two
    except OSError as error:
        yield Finding(name, "fail", f"cannot write in {existing} ({error.strerror}); choose another folder")
        return
    free = shutil.disk_usage(existing).free
    rate = _PROBE_BYTES / 2**20 / seconds
    fine = f"{existing}: {_gib(free)} free, 8 MiB synced at {rate:.0f} MiB/s"
    short = f"{fine}, which checkpoints may fill; make room, or choose another folder"
    yield _warned(name, short if free < _LEAST_DISK_BYTES else None, fine)
    if abs(skew) > _CLOCK_S:
        yield Finding(
            name, "warn", f"the clock of the file system in {existing} is {skew:+.0f} s off; synchronise it (NTP)"
        )


def check_open_files() -> Iterator[Finding]:
    """Checks the limit of open files. The sockets of Ray's processes count as open files."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = soft != resource.RLIM_INFINITY and soft < _LEAST_OPEN_FILES
    problem = f"limit {soft}, a Ray of several workers needs {_LEAST_OPEN_FILES}; run: ulimit -n {hard}"
    yield _warned("open files", problem if low else None, f"limit {soft}")


def check_loopback() -> Iterator[Finding]:
    """Checks that this process can listen on and connect to the loopback address, the only address on which a local Ray listens."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(5)
            with socket.create_connection(server.getsockname(), timeout=5) as client:
                accepted, _ = server.accept()
                with accepted:
                    client.sendall(b"graphmill")
                    accepted.settimeout(5)
                    answered = accepted.recv(9) == b"graphmill"
    except OSError as error:
        yield Finding("ports", "fail", f"127.0.0.1 does not answer ({error}); a firewall or sandbox blocks loopback")
        return
    yield Finding("ports", "ok" if answered else "fail", "loopback answers" if answered else "loopback changes data")
    for port, use in ((6379, "`ray start --head`"), (8265, "Ray's dashboard and `ray job submit`")):
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                yield Finding("ports", "warn", f"port {port} ({use}) is in use: another Ray, or give another port")
    proxies = sorted(name for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY") if os.environ.get(name))
    exempt = {host.strip() for name in ("no_proxy", "NO_PROXY") for host in os.environ.get(name, "").split(",")}
    if proxies and not exempt & {"127.0.0.1", "*"}:
        yield Finding(
            "ports",
            "warn",
            f"{proxies[0]} is set and no_proxy lacks 127.0.0.1: `ray job submit` would ask the proxy; export no_proxy=127.0.0.1,localhost",
        )


def check_gpu() -> Iterator[Finding]:
    """Checks the GPUs that PyTorch sees, and finds a driver that this build of PyTorch cannot use."""
    import torch

    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            bf16 = "bfloat16" if torch.cuda.is_bf16_supported() else "no bfloat16"
            name = torch.cuda.get_device_name(index)
            yield Finding("gpu", "ok", f"{index}: {name}, {_gib(free)} of {_gib(total)} free, {bf16}")
        return
    problem = f"there is an NVIDIA driver, but PyTorch {torch.__version__} sees no GPU; install its CUDA build (docs/guides/start.md, GPUs)"
    fine = f"none; PyTorch {torch.__version__} trains on the CPU"
    yield _warned("gpu", problem if _NVIDIA_DRIVER.exists() else None, fine)


def check_store(url: str) -> Iterator[Finding]:
    """Checks that a file can be written, read back and removed under an fsspec URL."""
    from uuid import uuid4

    from graphmill.storage.filesystem.filesystem_errors import one_line_errors
    from graphmill.storage.filesystem.object_stores import check_bucket
    from graphmill.storage.filesystem.urls import is_local, split_url

    content = b"graphmill"
    try:
        filesystem, path = split_url(url)
        if is_local(filesystem):
            yield from check_folder("store", Path(path))
            return
        where = f"{path}/.graphmill-doctor-{uuid4().hex}"
        with one_line_errors(url, "write, read and remove a file"):
            began = time.perf_counter()
            check_bucket(filesystem, path, url)
            filesystem.pipe_file(where, content)
            try:
                same = filesystem.cat_file(where) == content
            finally:
                filesystem.rm_file(where)
            seconds = time.perf_counter() - began
    except GraphmillError as error:
        yield Finding("store", "fail", str(error))
        return
    fine = Finding("store", "ok", f"{url}: written, read and removed in {seconds * 1000:.0f} ms")
    yield fine if same else Finding("store", "fail", f"{url}: what was read is not what was written")


def check_graph(url: str, quick: bool) -> Iterator[Finding]:
    """Checks that a stored graph or set of graphs opens and that (unless `quick`) all its checksums match."""
    from graphmill.jobs.tasks.graph_task import set_lacks
    from graphmill.jobs.tasks.node_task import graph_lacks
    from graphmill.storage.format.graph_set_manifest import GraphSetManifest
    from graphmill.storage.graph import StoredGraph, open_graph
    from graphmill.storage.graph_sets.graph_set import StoredGraphs

    try:
        stored = open_graph(url)
        manifest = stored.manifest
        if isinstance(manifest, GraphSetManifest):
            described = f"{manifest.num_graphs:,} graphs, {manifest.num_nodes:,} nodes"
        else:
            described = (
                f"{manifest.num_nodes:,} nodes, {manifest.num_edges:,} edges, {manifest.num_partitions} partitions"
            )
        if not quick:
            began = time.perf_counter()
            stored.verify()
            seconds = max(time.perf_counter() - began, 1e-9)
            num_bytes = sum(entry.num_bytes for entry in manifest.files.values())
            described += f"; every checksum matches, {num_bytes / 2**20 / seconds:.0f} MiB/s"
    except GraphmillError as error:
        yield Finding("graph", "fail", str(error))
        return
    yield Finding("graph", "ok", f"{url}: {described}")
    if not quick and isinstance(stored, StoredGraph):
        yield from check_huge_pages(stored)
    if isinstance(stored, StoredGraphs):
        lacks = set_lacks(stored)
    else:
        lacks = [each for row in stored.manifest.node_types.values() for each in graph_lacks(row, 0)]
    if lacks:
        yield Finding("splits", "warn", f"{url} lacks: {'; '.join(lacks)}")


def make_loops() -> Iterator[Finding]:
    """Compiles the loops that runs on graphs of usual types call: ingests small graphs, plain and typed, samples them by every sampler, and answers every usual
    request of a partition server. A later process on this machine, or a container of this image, loads the loops."""
    from graphmill.core.compile_cache import kept_loops
    from graphmill.samplers.access.partition_owner import open_parts
    from graphmill.samplers.access.typed_router import whole_router
    from graphmill.samplers.access.warm_up import warm_up
    from graphmill.samplers.methods.registry import SAMPLERS, build_sampler, load
    from graphmill.storage.format.source import GraphSource, TypedSource
    from graphmill.storage.graph import StoredGraph, TypedGraph, open_graph
    from graphmill.storage.ingestion.ingest import IngestOptions, ingest
    from graphmill.storage.synthetic.mag_like import SyntheticMagOptions, synthetic_mag
    from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions

    began, before = time.perf_counter(), kept_loops()
    if before is None:
        yield Finding("loops", "fail", "no folder can keep compiled loops; set NUMBA_CACHE_DIR to a private folder")
        return
    sources: dict[str, GraphSource | TypedSource] = {
        "plain": SyntheticGraph(SyntheticOptions(num_nodes=500)),
        "typed": synthetic_mag(SyntheticMagOptions(scale=0.0005, num_classes=8)),
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, source in sources.items():
            ingest(source, f"{folder}/{name}", IngestOptions(num_partitions=2))
            graph = open_graph(f"{folder}/{name}", kind=(StoredGraph, TypedGraph))
            warm_up(open_parts(graph, [0]), graph, 0)
            router = whole_router(graph)
            for sampler, (options, _) in SAMPLERS.items():
                if sampler.startswith("typed-") == (name == "typed"):
                    build_sampler(load(options)(), router, 1).sample(0, 0)
    made = kept_loops() or before
    seconds = time.perf_counter() - began
    yield Finding("loops", "ok", f"{len(made - before)} compiled in {seconds:.0f} s, {len(made & before)} were there")


def check_huge_pages(graph: "StoredGraph") -> Iterator[Finding]:
    """Reports which share of a partition's mapped files lies on pages of 2 MiB."""
    from graphmill.storage.filesystem.mapped_files import huge_bytes

    partition = graph.partition(0)  # reads its topology and its columns of nodes
    huge, resident = huge_bytes()
    if resident >= _LEAST_HUGE_BYTES:
        share = f"{100 * huge / resident:.0f} % of the {_gib(resident)} that are mapped for partition {partition.index}"
        yield Finding("huge pages", "ok", f"{share}; random reads are faster from them (docs/performance/sampling.md)")


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
