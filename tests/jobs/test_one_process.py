"""Tests that a run of one process, without Ray, equals a run of one Ray worker to the last digit, and that each can continue the other."""

import json
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from graphmill.jobs import products_geco, train_graphs, train_nodes
from graphmill.jobs.resolve.resolve import asked_workers
from tests.disturbed_job import Job, Outcome, epochs, events, starts
from tests.job_in_process import run_on_one_thread as train
from tests.runs import config_of

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENT = ["--servers.start_timeout_s", "600"]  # for a machine with a high load
PROCESS, RAY = ([*PATIENT, "--workers", "1", "--workers.launcher", launcher] for launcher in ("process", "ray"))
NODES = [
    *("--data.nodes", "1500", "--model.width", "16", "--model.num_layers", "2", "--sampler.num_chunks", "3"),
    *("--fit.schedule", "constant", "--fit.checkpoint_every", "1"),
]
GRAPHS = [
    *("--data.molecules", "300", "--model.width", "16", "--model.num_layers", "1", "--fit.schedule", "constant"),
    *("--fit.ema_decay", "0.9", "--fit.checkpoint_every", "1"),
]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("job")


def same(one: Path, other: Path) -> None:
    """Checks that curves, weights, scores and events are equal. Fields of events that identify the attempt may differ."""
    assert Outcome.of(one) == Outcome.of(other)
    summaries = [json.loads((run / "summary.json").read_text()) for run in (one, other)]
    for name in ("scores", "counts", "workers", "device"):
        assert summaries[0][name] == summaries[1][name]


@pytest.mark.ray
@pytest.mark.slow
def test_nodes_train_as_one_ray_worker_does_and_each_resumes_the_other(shared_ray, workplace):
    said = train(train_nodes.main, [*NODES, *PROCESS, "--fit.epochs", "4", "--run.dir", "whole"], workplace)
    assert "starting Ray" not in said
    for name, launcher in (("process", PROCESS), ("ray", RAY)):
        train(train_nodes.main, [*NODES, *launcher, "--fit.epochs", "2", "--run.dir", name], workplace)
    same(workplace / "process", workplace / "ray")
    kinds = [[event["kind"] for event in events(workplace / name)] for name in ("process", "ray")]
    assert kinds[0] == kinds[1]
    traffic = [[e for e in events(workplace / name) if e["kind"] == "traffic"] for name in ("process", "ray")]
    assert [e["local_requests"] for e in traffic[0]] == [e["local_requests"] for e in traffic[1]]
    for name, other in (("process", RAY), ("ray", PROCESS)):
        train(train_nodes.main, ["--run.resume", name, *other, "--fit.epochs", "4"], workplace)
        assert Outcome.of(workplace / name) == Outcome.of(workplace / "whole")
        assert [start["epoch"] for start in starts(workplace / name)] == [0, 2]


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.slow
def test_graphs_train_as_one_ray_worker_does(shared_ray, workplace):
    for name, launcher in (("graphs-process", PROCESS), ("graphs-ray", RAY)):
        train(train_graphs.main, [*GRAPHS, *launcher, "--fit.epochs", "2", "--run.dir", name], workplace)
    same(workplace / "graphs-process", workplace / "graphs-ray")


WITHOUT_RAY = """
import sys
from graphmill.jobs import predict, train_nodes
sys.argv = ["train_nodes.py", *sys.argv[1:]]
status = train_nodes.main()
sys.argv = ["predict.py", "run", "predictions"]
predict.main()
assert "ray" not in sys.modules, "ray was imported"
sys.exit(status)
"""


def test_one_process_is_chosen_by_itself_and_imports_no_ray(tmp_path):
    words = [*NODES, "--fit.epochs", "2", "--run.dir", "run"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_RAY, *words], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "the data fits this process: this is the one worker, without Ray" in done.stdout
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["workers"], summary["epochs"]) == (1, 2)
    assert 5e7 < summary["peak_bytes"] < 8e9
    workers = json.loads((tmp_path / "run" / "config.json").read_text())["resolved"]["workers"]
    assert (workers["num_workers"], workers["launcher"]) == (1, "process")
    assert "cluster" not in json.loads((tmp_path / "run" / "environment.json").read_text())
    assert done.stdout.count(", as in the run's summary") == 3


LONG = [
    *(*NODES[:-4], "--fit.schedule", "cosine", "--fit.checkpoint_every", "1000", "--fit.epochs", "60"),
    *("--workers.launcher", "process"),
]


@pytest.fixture(scope="module")
def undisturbed(workplace) -> Path:
    train(train_nodes.main, [*LONG, "--run.dir", "undisturbed"], workplace)
    return workplace / "undisturbed"


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_signal_saves_and_says_how_to_go_on(undisturbed, tmp_path, signum):
    words, environment = [*LONG, "--run.dir", str(tmp_path / "disturbed")], {"OMP_NUM_THREADS": "1"}
    program = str(REPOSITORY / "jobs" / "train_nodes.py")
    job = Job(tmp_path / "disturbed", command=[sys.executable, program, *words], environment=environment)
    job.wait_for_epochs(3)
    job.popen.send_signal(signum)
    status, err = job.end(timeout_s=60)
    assert status == 128 + signum
    done = len(epochs(job.run))
    assert done < 60, "too late to tell"
    said = err.strip().splitlines()
    assert "stopped, saved up to epoch-" in said[-2], err
    command = shlex.split(said[-1])
    assert command[-3:] == [program, "--run.resume", str(job.run)], err
    train(train_nodes.main, command[-2:], tmp_path)
    assert (starts(job.run)[-1]["epoch"], starts(job.run)[-1]["repeated"]) == (done, 0)
    assert Outcome.of(job.run) == Outcome.of(undisturbed)


@pytest.mark.slow
@pytest.mark.long
def test_a_file_that_is_damaged_while_running_is_named(tmp_path):
    flags = [*NODES, "--fit.epochs", "400", "--workers.launcher", "process", "--run.dir", str(tmp_path / "run")]
    job = Job(tmp_path / "run", command=[sys.executable, str(REPOSITORY / "jobs" / "train_nodes.py"), *flags])
    job.wait_for_epochs(2)
    (path,) = tmp_path.glob("data/*/data/*/part-00001/features.arrow")
    with open(path, "r+b") as stream:
        stream.seek(path.stat().st_size // 2)
        stream.write(bytes(64))
    status, err = job.end(timeout_s=120)
    assert status == 1
    assert f"{path}: expected the bytes that its manifest names" in err.splitlines()[-1]
    assert err.count("expected the bytes") == 1, err


def test_products_geco_keeps_servers_and_workers():
    """The recipe names the launcher, so the run uses Ray although one process could hold the data."""
    from graphmill.jobs.config.config import config_tree, read_config, read_recipe

    for recipe, job in (("jobs/products_geco.yaml", products_geco), ("jobs/pcqm4m_tokengt.yaml", None)):
        config = read_config(config_tree("nodes", read_recipe(recipe)))
        assert config.workers.launcher == "ray"
        assert job is None or recipe in Path(str(job.__file__)).read_text()


@pytest.mark.parametrize(
    ("words", "launcher"),
    [
        ([], "auto"),
        (["--ray.address", "local"], "ray"),
        (["--ray.address", "auto", "--workers.launcher", "process"], "process"),
        (["--run.parallel", "graph"], "ray"),
        (["--run.parallel", "graph", "--workers", "1"], "auto"),
    ],
)
def test_who_asks_for_ray_or_for_a_spread_graph_gets_ray(words, launcher):
    assert asked_workers(config_of(*words)).launcher == launcher


# What a run without Ray does not need before its first step. Each takes 0.03 to 1 CPU seconds to import.
UNUSED = (
    *("ray", "torch._dynamo", "torch._inductor", "sympy", "pandas", "scipy.linalg", "scipy.sparse", "pyarrow.compute"),
    *("tensorboard", "matplotlib", "optuna", "pydantic", "jinja2", "rich", "boto3", "botocore", "mlflow", "wandb"),
    *("graphmill.storage.ingestion.ingest", "graphmill.models.operators.favor", "graphmill.jobs.plan.run_plan"),
)
AT_THE_FIRST_STEP = """
import os, sys, traceback
from torch.optim.optimizer import register_optimizer_step_post_hook
def step(*_):
    assert any(frame.filename.endswith("train_loop.py") for frame in traceback.extract_stack()), "a baseline's step"
    print("MODULES", *sorted(sys.modules), flush=True)
    os._exit(0)
register_optimizer_step_post_hook(step)
sys.argv[0] = "graphmill"
from graphmill import main
main()
"""


def test_a_run_imports_nothing_that_its_first_step_does_not_use(workplace):
    words = ["train", *NODES[:6], *PROCESS, "--run.dir", "imports"]
    run = [sys.executable, "-c", AT_THE_FIRST_STEP, *words]
    for _ in range(2):  # the first makes the graph, and compiles the loops that are not in the cache
        done = subprocess.run(run, cwd=workplace, capture_output=True, text=True, timeout=600)
        shutil.rmtree(workplace / "imports")
    lines = [line for line in done.stdout.splitlines() if line.startswith("MODULES ")]
    assert lines, done.stdout + done.stderr
    assert sorted(set(lines[0].split()) & set(UNUSED)) == []
