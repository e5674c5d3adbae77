"""A user's project may have folders named models/, jobs/, storage/ and cluster/. Graphmill works there, from a checkout and from the wheel."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ray_head import RayHead, start_ray_head

REPOSITORY = Path(__file__).resolve().parents[1]
NET = '''
from dataclasses import dataclass

from torch import nn


class Linear(nn.Module):
    def __init__(self, in_dim, out_dim):
        super().__init__()
        self.out = nn.Linear(in_dim, out_dim)

    def forward(self, graphs, epoch=0):
        return self.out(graphs.x[graphs.root_index])


@dataclass(frozen=True)
class Net:
    """A model of the user's own."""

    def build(self, inputs):
        return Linear(inputs.node.dim, inputs.out_dim)
'''
TRAIN = (
    *("train", "--data.nodes", "200", "--fit.epochs", "1", "--workers", "1", "--baseline", "none"),
    *("--model.width", "8", "--model.num_layers", "1", "--sampler.num_chunks", "1"),
)
OWN = (*TRAIN[:9], "--model", "models.mine:Net", "--sampler", "neighbor", "--sampler.fanouts", "3")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that an installation of the wheel has."""
    built = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, timeout=300)
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as file:
        file.extractall(built / "installed")
    return built / "installed"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The folders of the user's project. If Graphmill imports one by mistake, it raises an error. One of them has no __init__.py."""
    for name in ("jobs", "storage", "cluster"):
        (tmp_path / name).mkdir()
        module = "__init__.py" if name != "storage" else "graph.py"
        (tmp_path / name / module).write_text("raise RuntimeError('this is the user\\'s own')\n")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine.py").write_text(NET)
    (tmp_path / "script.py").write_text(
        "import graphmill as gm\nprint(gm.models.GECO, gm.train, gm.open_graph, gm.__file__)\n"
    )
    return tmp_path


@pytest.fixture(params=["checkout", "wheel"])
def environment(request: pytest.FixtureRequest) -> dict[str, str]:
    """Environment variables for a process that imports Graphmill from an editable installation, or from the folder of the wheel."""
    found = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found["PATH"] = f"{Path(sys.executable).parent}:{found['PATH']}"
    return found if request.param == "checkout" else {**found, "PYTHONPATH": str(request.getfixturevalue("wheel"))}


def run(project: Path, environment: dict[str, str], *command: str) -> str:
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_the_import(project: Path, environment: dict[str, str]) -> None:
    said = run(project, environment, sys.executable, "script.py")
    assert "graphmill.models.geco.network.GECO" in said
    assert environment.get("PYTHONPATH", "/graphmill/") in said


@pytest.mark.parametrize("start", [("graphmill",), (sys.executable, "-m", "graphmill")], ids=["console", "module"])
def test_training(start: tuple[str, ...], project: Path, environment: dict[str, str]) -> None:
    run(project, environment, *start, *TRAIN, "--run.dir", "run")
    assert (project / "run" / "summary.json").exists()


def test_a_model_of_the_users_own_models(project: Path, environment: dict[str, str]) -> None:
    run(project, environment, "graphmill", *OWN, "--run.dir", "run")
    assert "models.mine:Net" in (project / "run" / "config.json").read_text()


@pytest.fixture(scope="module")
def head() -> Iterator[RayHead]:
    with start_ray_head(num_cpus=4, dashboard=True) as started:
        yield started


@pytest.mark.ray
@pytest.mark.long
def test_a_submitted_job(project: Path, environment: dict[str, str], head: RayHead, tmp_path_factory) -> None:
    out = tmp_path_factory.mktemp("out")
    variables = {name: environment[name] for name in ("PYTHONPATH",) if name in environment}
    ended = subprocess.run(
        [
            *("ray", "job", "submit", "--address", str(head.dashboard_url), "--working-dir", "."),
            *("--runtime-env-json", json.dumps({"env_vars": variables}), "--"),
            *("graphmill", *OWN, "--data.folder", str(out / "data"), "--run.dir", str(out / "run")),
        ],
        cwd=project,
        env=head.environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-2000:]
    assert (out / "run" / "summary.json").exists()
