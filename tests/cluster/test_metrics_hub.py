"""What a worker tells the driver arrives once and in order, though its calls get lost and the hub is killed."""

import json
import os
import threading
import time

import pytest

from cluster.driver_line import DriverLine
from cluster.metrics_hub import metrics_hub
from storage.errors import StageError

NUM_RECORDS = 300
# Nearly half of a process's calls to actors: not sent, or done and not answered, or of an unknown fate.
LOSSES = {
    "CoreWorkerService.grpc_client.PushTask": {
        "num_failures": -1,
        "req_failure_prob": 15,
        "resp_failure_prob": 15,
        "in_flight_failure_prob": 15,
    }
}


pytestmark = pytest.mark.usefixtures("shared_ray")


def tell(hub, num_records: int, pause_s: float) -> tuple[bool, int]:
    """A worker's part; returns whether it was told to stop, and its process id."""
    line = DriverLine(hub)
    for number in range(num_records):
        line.push({"kind": "damage", "what": number})
        time.sleep(pause_s)
    line.receipt()()
    return line.stop_asked(), os.getpid()


@pytest.mark.ray
@pytest.mark.timeout(180)
def test_records_arrive_once_and_in_order_through_losses_and_kills(ray_head):
    import ray

    seen: list[int] = []
    with metrics_hub(lambda record: seen.append(record["what"])) as hub:
        lossy = ray.remote(tell).options(runtime_env={"env_vars": {"RAY_testing_rpc_failure": json.dumps(LOSSES)}})
        told = lossy.remote(hub, NUM_RECORDS, 0.02)
        for mark in (NUM_RECORDS // 4, NUM_RECORDS // 2):
            deadline = time.monotonic() + 60
            while len(seen) < mark and time.monotonic() < deadline:
                time.sleep(0.01)
            assert len(seen) >= mark
            ray.kill(hub, no_restart=False)
        stopped, pid = ray.get(told, timeout=120)
    assert not stopped
    assert seen == list(range(NUM_RECORDS))
    logs = [path.read_text(errors="replace") for path in ray_head.temp_dir.glob(f"session_*/logs/*worker*{pid}*")]
    losses = sum(text.count("Inject RPC") for text in logs)
    assert losses > 0


@pytest.mark.ray
def test_the_word_to_stop_comes_with_an_answer_and_an_older_attempt_is_passed_over():
    seen: list[str] = []
    stopping = threading.Event()
    with metrics_hub(lambda record: seen.append(record["what"]), stopping) as hub:
        old, new = DriverLine(hub), DriverLine(hub)
        for line, kind, what in (
            (old, "start", "the first attempt"),
            (old, "epoch", "its epoch 0"),
            (new, "start", "the second"),
            (old, "epoch", "its epoch 0, once more"),
            (new, "epoch", "its epoch 1"),
        ):
            line.push({"kind": kind, "epoch": 0, "train_loss": 0.0, "what": what})
            line.receipt()()
        assert not new.stop_asked()
        stopping.set()
        deadline = time.monotonic() + 30
        while not new.stop_asked() and time.monotonic() < deadline:
            new.push({"kind": "damage", "what": "another word"})
            new.receipt()()
        assert new.stop_asked()
    assert seen[:4] == ["the first attempt", "its epoch 0", "the second", "its epoch 1"]
    assert set(seen[4:]) == {"another word"}


@pytest.mark.ray
@pytest.mark.parametrize("error", [OSError("No space left on device"), RuntimeError("of any kind")])
def test_an_error_of_who_records_ends_the_body_and_is_named(error):
    def consume(record) -> None:
        raise error

    def follow() -> None:
        with metrics_hub(consume) as hub:
            DriverLine(hub).push({"kind": "damage", "what": "something"})
            with pytest.raises(KeyboardInterrupt):  # by which Ray Train's wait ends, too
                time.sleep(60)

    with pytest.raises(StageError, match=f"recording metrics: {type(error).__name__}: {error}"):
        follow()


@pytest.mark.ray
def test_a_driver_that_takes_nothing_is_named(monkeypatch):
    import ray

    from cluster.metrics_hub import MetricsHub

    monkeypatch.setattr("cluster.driver_line._RECEIPT_S", 1.0)
    hub = ray.remote(num_cpus=0)(MetricsHub).remote("run")
    line = DriverLine(hub)
    line.receipt()()  # nothing was told
    line.push({"kind": "step", "epoch": 0, "step": 0, "num_steps": 1})
    with pytest.raises(StageError, match="the driver has not taken what the workers told it within 1 s"):
        line.receipt()()
