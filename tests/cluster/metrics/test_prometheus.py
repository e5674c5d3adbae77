"""Tests a run's metrics on Ray's port, as Prometheus reads them, and the dashboard that shows them."""

import json
import re
import time
import urllib.request
from pathlib import Path

import pytest

from graphmill.cluster.metrics.prometheus import LiveMetrics

BOARD = Path(__file__).resolve().parents[3] / "docs" / "grafana-board.json"
EPOCH = {
    "kind": "epoch",
    "epoch": 2,
    "train_loss": 0.5,
    "valid_accuracy": 0.75,
    "nodes_per_s": 1000.0,
    "wait_s": 0.25,
    "roots": 8.0,
}
EXPECTED = {
    'ray_graphmill_epoch{run="a-run"}': 3.0,
    'ray_graphmill_train_loss{run="a-run"}': 0.5,
    'ray_graphmill_valid_score{run="a-run",score="accuracy"}': 0.75,
    'ray_graphmill_per_second{run="a-run",what="nodes"}': 1000.0,
    'ray_graphmill_epoch_seconds{run="a-run",part="wait"}': 0.25,
    'ray_graphmill_starts{run="a-run"}': 2.0,
}


def samples(text: str) -> dict[str, float]:
    """The gauges of the run "a-run", without Ray's labels. Gauges of other tests in this process are left out."""
    found = {}
    for line in text.splitlines():
        if line.startswith("ray_graphmill_"):
            name, _, rest = line.partition("{")
            labels = dict(re.findall(r'(\w+)="([^"]*)"', rest))
            if labels.get("run") != "a-run":
                continue
            ours = ",".join(f'{key}="{labels[key]}"' for key in ("run", "score", "what", "part") if key in labels)
            found[f"{name}{{{ours}}}"] = float(rest.rpartition(" ")[2])
    return found


@pytest.mark.ray
def test_prometheus_reads_the_figures_of_a_run(shared_ray):
    import ray

    (node,) = ray.nodes()
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    live = LiveMetrics("a-run")
    for _ in range(2):
        live.update({"kind": "start", "epoch": 0, "step": 0, "workers": 1})
    live.update(EPOCH)
    deadline, exported = time.monotonic() + 60, {}
    while not EXPECTED.items() <= exported.items() and time.monotonic() < deadline:
        time.sleep(0.5)
        with urllib.request.urlopen(url, timeout=5) as answer:
            exported = samples(answer.read().decode())
    assert exported == EXPECTED


def test_the_board_draws_what_is_exported():
    board = json.loads(BOARD.read_text())
    drawn = {re.match(r"\w+", target["expr"])[0] for panel in board["panels"] for target in panel["targets"]}  # type: ignore[index]
    assert drawn == {name.partition("{")[0] for name in EXPECTED}
