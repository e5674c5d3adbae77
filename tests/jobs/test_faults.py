"""Disturbs a training job on real processes. After each fault the curve and the weights equal those from an undisturbed run, bit for bit.

Every kind of fault is tried in a separate run, a few epochs after the start. The run survives some faults. After other faults it ends with one clear line, and
`--run.resume` continues it. `--long` adds faults that take minutes each. `DISTURBED_EPOCHS=160 pytest --fault-times 10` repeats each fault ten times in a row.
If the fault ends the run, the next fault strikes the resumed run.
"""

import contextlib
import itertools
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from graphmill.jobs import products_geco
from tests.disturbed_job import (
    FLAGS,
    NUM_EPOCHS,
    STORE,
    Job,
    Outcome,
    all_gone,
    epochs,
    events,
    start,
    starts,
)
from tests.job_in_process import run_job
from tests.ray_head import RayHead
from tests.stored_files import stored_file
from tests.waiting import wait_until

RECOVERY_S = 60.0

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, shared_ray) -> Path:
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    words = [word for pair in FLAGS.items() for word in pair]
    done = run_job(products_geco.main, [*words, "--run.dir", str(run)], run.parent)
    assert [record["epoch"] for record in epochs(run)] == list(range(NUM_EPOCHS)), done.stderr
    return run


@pytest.fixture
def run(undisturbed: Path, tmp_path: Path) -> Iterator[Path]:
    """The directory of the run that a fault will disturb, and its store. Afterwards the run must equal the undisturbed run."""
    shutil.copytree(undisturbed.parent / STORE, tmp_path / STORE)
    before = set(os.listdir("/dev/shm"))
    path = tmp_path / "run"
    yield path
    assert Outcome.of(path) == Outcome.of(undisturbed)
    left = {name for name in os.listdir("/dev/shm") if name not in before}
    assert not left, left


@pytest.fixture
def times(pytestconfig: pytest.Config) -> int:
    """How often the fault is repeated in a row."""
    return pytestconfig.getoption("fault_times")


def wait_for_more_epochs(job: Job, more: int) -> int:
    """Waits for further epochs and returns their number. The number must be small, so that the next fault comes before the end of the run."""
    job.wait_for_epochs(len(epochs(job.run)) + more)
    done = len(epochs(job.run))
    assert done < NUM_EPOCHS - 2, "too late to tell: set DISTURBED_EPOCHS"
    return done


# --- faults that a run survives by itself


# Each function causes a fault, and returns a function that checks the fault's effect.
Proof = Callable[[], bool]


def kill_a_server(job: Job) -> Proof:
    victim = job.actors("PartitionServer")[0]
    victim.kill()
    return lambda: victim.pid not in {server.pid for server in job.actors("PartitionServer")}


def kill_servers_five_times(job: Job) -> Proof:
    killed = set()
    for strike in range(5):
        deadline = time.monotonic() + 30
        while not (servers := job.actors("PartitionServer")) and time.monotonic() < deadline:
            time.sleep(0.02)
        victim = servers[strike % len(servers)]
        victim.kill()
        killed.add(victim.pid)
        time.sleep(0.4)
    return lambda: len(killed) > 1


def kill_a_worker(job: Job, rank: int = 1) -> Proof:
    """Kills a worker together with its sampling threads."""
    workers, before = job.actors("RayTrainWorker"), len(starts(job.run))
    assert len(workers) == 2
    workers[rank].kill()
    return lambda: len(starts(job.run)) == before + 1


def kill_another_worker(job: Job) -> Proof:
    return kill_a_worker(job, rank=0)


def stop_the_driver(job: Job, stopped_s: float = 3.0) -> Proof:
    """Suspends the driver. Workers continue, and their reports are recorded afterwards."""
    before, recorded = len(starts(job.run)), len(epochs(job.run))
    job.popen.send_signal(signal.SIGSTOP)
    time.sleep(stopped_s)
    assert len(epochs(job.run)) <= recorded + 1
    job.popen.send_signal(signal.SIGCONT)
    return lambda: len(starts(job.run)) == before


def stop_the_servers(job: Job, stopped_s: float = 3.0) -> Proof:
    servers, before = job.actors("PartitionServer"), len(starts(job.run))
    for server in servers:
        server.suspend()
    time.sleep(stopped_s)
    for server in servers:
        server.resume()
    return lambda: len(starts(job.run)) == before  # a worker waits for a suspended server, so no worker has failed


FAULTS: tuple[Callable[[Job], Proof], ...] = (
    kill_a_server,
    kill_servers_five_times,
    kill_a_worker,
    kill_another_worker,
    stop_the_driver,
    stop_the_servers,
)


def survive(run: Path, faults: tuple[Callable[[Job], Proof], ...], head: RayHead | None = None) -> None:
    job = start(run, head=head)
    job.wait_for_epochs(3)
    for fault in faults:
        struck, done = time.monotonic(), len(epochs(run))
        proof = fault(job)
        assert len(epochs(run)) < NUM_EPOCHS - 2, f"{fault.__name__} came too late to tell"
        job.wait_for_epochs(done + 2, timeout_s=RECOVERY_S)
        wait_until(proof, RECOVERY_S)  # epochs that ended before the fault may be recorded after the fault
        print(f"{fault.__name__}: two epochs later after {time.monotonic() - struck:.1f} s")
    job.end()


def test_a_run_survives_a_killed_server_and_a_killed_worker(run, ray_head: RayHead):
    survive(run, (kill_a_server, kill_a_worker), ray_head)


@pytest.mark.long
def test_a_run_survives_one_fault_after_another(run, strike):
    survive(run, FAULTS)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_servers_that_stand_still_for_a_minute_cost_that_minute(run, times):
    job = start(run)
    job.wait_for_epochs(2)
    for _ in range(times):
        wait_for_more_epochs(job, 1)
        proof = stop_the_servers(job, stopped_s=60.0)
        job.wait_for_epochs(len(epochs(run)) + 1)
        assert proof()
    job.end()
    stamps = [event["time"] for event in events(run) if event["kind"] == "traffic"]
    seconds = [datetime.fromisoformat(stamp).timestamp() for stamp in stamps]
    gaps = [b - a for a, b in itertools.pairwise(seconds)]
    assert sum(gap > 55 for gap in gaps) == times, "epochs went on without servers"


@pytest.mark.long
def test_replies_that_are_late_change_nothing(run):
    job = start(
        run,
        "--workers.failures_per_hour",
        "100",
        environment={"RAY_testing_asio_delay_us": "CoreWorkerService.grpc_server.PushTask=0:100000"},
    )
    job.wait_for_epochs(6, timeout_s=600)
    logs = [path.read_text(errors="replace") for path in job.ray_logs() if "worker" in path.name]
    told = sum(text.count("RAY_testing_asio_delay_us is set to") for text in logs)
    assert told, "Ray has injected nothing"
    print(f"after epoch 6: {told} delays in the workers' logs")
    job.end(timeout_s=800)


# --- faults that end a run, which can be resumed


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_run_that_is_ended_twice_is_completed(run, times):
    """SIGTERM ends the run. After a resume, Ctrl-C in a terminal ends the run again.

    Each time the run saves the current step, and the printed command continues the run without repeating an epoch.
    """
    job = start(run, "--fit.checkpoint_minutes", "None", "--fit.checkpoint_every", "1000")
    for _ in range(times):
        for signum in (signal.SIGTERM, signal.SIGINT):
            wait_for_more_epochs(job, 2)
            family, asked = job.family(), time.monotonic()
            if signum == signal.SIGINT:
                os.killpg(job.popen.pid, signum)  # a terminal sends Ctrl-C to the whole process group
            else:
                job.popen.terminate()
            status, err = job.end(timeout_s=60)
            assert status == 128 + signum
            assert time.monotonic() - asked < 30
            all_gone(family, 5)
            done = len(epochs(run))
            said = err.strip().splitlines()
            assert "stopped, saved up to epoch-" in said[-2], err
            assert said[-1].endswith(f"products_geco.py --run.resume {run}"), err
            job = Job(run, command=shlex.split(said[-1]))
            job.wait_for_epochs(done + 1)
            assert starts(run)[-1]["epoch"] == done
            assert starts(run)[-1]["repeated"] == 0
    job.end()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_killed_driver_takes_all_with_it(run, times):
    job = start(run)
    for _ in range(times):
        wait_for_more_epochs(job, 2)
        family = job.family()
        job.popen.kill()
        job.end(timeout_s=60)
        all_gone(family, 90)  # Ray's agents check only now and then whether their raylet still exists
        job = Job(run, "--run.resume", str(run))
    job.end()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_file_that_is_damaged_while_running_is_named(run, times):
    job = start(run)
    path = stored_file(run.parent / STORE, "part-00001/features.arrow")
    good = path.read_bytes()
    for _ in range(times):
        wait_for_more_epochs(job, 2)
        with open(path, "r+b") as stream:  # changes the file in place, because the workers have mapped it
            stream.seek(len(good) // 2)
            stream.write(bytes(64))
        status, err = job.end()
        assert status == 1
        assert f"{path}: expected the bytes that its manifest names" in err.splitlines()[-1]
        assert err.count("expected the bytes") == 1, err
        path.write_bytes(good)
        job = Job(run, "--run.resume", str(run))
    job.end()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_disk_that_fills_up_costs_no_checkpoint(run, tmp_path, times):
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(small)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        (small / "data").symlink_to(tmp_path / "data")
        job = start(small / "run")
        for _ in range(times):
            wait_for_more_epochs(job, 2)
            with contextlib.suppress(OSError), open(small / "filler", "wb") as filler:
                while filler.write(bytes(4096)):
                    filler.flush()
            status, err = job.end()
            assert status == 1
            assert "No space left on device" in err.splitlines()[-1]
            (small / "filler").unlink()
            job = Job(small / "run", "--run.resume", str(small / "run"))
        job.end()
        shutil.copytree(small / "run", run)
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
