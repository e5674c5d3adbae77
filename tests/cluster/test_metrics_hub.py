"""What a worker tells the driver arrives once and in order, though its calls get lost and the hub is killed."""

import json
import time

import pytest

from cluster.driver_line import DriverLine
from cluster.metrics_hub import metrics_hub
from cluster.session import SessionOptions, ray_session
from storage.errors import StageError

NUM_RECORDS = 300
SMALL = SessionOptions(num_cpus=2, object_store_bytes=100 * 2**20)
# A third of a process's calls to actors: not sent, or done and not answered, or of an unknown fate.
LOSSES = {
    "CoreWorkerService.grpc_client.PushTask": {
        "num_failures": -1,
        "req_failure_prob": 10,
        "resp_failure_prob": 10,
        "in_flight_failure_prob": 10,
    }
}


@pytest.fixture(scope="module", autouse=True)
def session():
    with ray_session(SMALL):
        yield


def tell(hub, num_records: int, pause_s: float) -> bool:
    """A worker's part; returns whether it was told to stop."""
    line = DriverLine(hub)
    for number in range(num_records):
        line.push({"kind": "step", "epoch": 0, "step": number, "num_steps": num_records})
        time.sleep(pause_s)
    line.receipt()()
    return line.stop_asked()


@pytest.mark.ray
@pytest.mark.timeout(180)
def test_records_arrive_once_and_in_order_through_losses_and_kills():
    import ray

    seen: list[int] = []
    with metrics_hub(lambda record: seen.append(record["step"])) as hub:
        lossy = ray.remote(tell).options(runtime_env={"env_vars": {"RAY_testing_rpc_failure": json.dumps(LOSSES)}})
        told = lossy.remote(hub, NUM_RECORDS, 0.02)
        for mark in (NUM_RECORDS // 4, NUM_RECORDS // 2):
            deadline = time.monotonic() + 60
            while len(seen) < mark and time.monotonic() < deadline:
                time.sleep(0.01)
            ray.kill(hub, no_restart=False)
        assert ray.get(told, timeout=120) is False
    assert seen == list(range(NUM_RECORDS))


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
