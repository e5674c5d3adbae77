"""Tests a run's metrics on Ray's port, as Prometheus reads them, the dashboard that shows them, and the alerts."""

import json
import re
import shutil
import subprocess
import time
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from graphmill.cluster.metrics.prometheus import LiveMetrics

BOARD = Path(__file__).resolve().parents[3] / "docs" / "grafana-board.json"
RULES = BOARD.with_name("prometheus-rules.yaml")
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


def alerts() -> list[dict[str, str]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def test_the_alerts_watch_what_is_exported():
    """Names of Ray's metrics are compared with the sources of its exporter and of its dashboards: most appear only once something has happened."""
    ray = Path(find_spec("ray").origin).parent / "dashboard" / "modules"  # type: ignore[union-attr,arg-type]
    exporters = (
        ray / "reporter" / "reporter_agent.py",
        ray / "metrics" / "dashboards" / "default_dashboard_panels.py",
        ray / "metrics" / "dashboards" / "data_dashboard_panels.py",
    )
    source = "".join(path.read_text() for path in exporters)
    of_ray = {f"ray_{name}" for name in re.findall(r'"(node_\w+)": Gauge', source)} | set(
        re.findall(r"ray_\w+", source)
    )
    ours = {name.partition("{")[0] for name in EXPECTED}
    watched = {name for alert in alerts() for name in re.findall(r"\bray_\w+", alert["expr"])}
    assert watched - ours - of_ray == set()
    assert watched & ours
    assert "ray_node_no_such" not in of_ray


def test_each_alert_says_what_to_do():
    page = (RULES.parent / "guides" / "platform.md").read_text().split("\n## Alerts\n")[1]
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == [alert["alert"] for alert in alerts()]


def test_the_alerts_fire_as_they_should(tmp_path):
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("needs promtool, of Debian's package prometheus")
    for path in (RULES, Path(__file__).with_name("alerts.yaml")):
        shutil.copy(path, tmp_path)
    done = subprocess.run([program, "test", "rules", "alerts.yaml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
