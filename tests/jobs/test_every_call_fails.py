"""Lets each filesystem call fail once, while a graph is ingested, a checkpoint is saved and read, and a run predicts.

Afterwards either the old files or the new files are complete, the error is one line, and the same command succeeds when
it is repeated.
"""

import json
import shutil
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from graphmill.cluster.checkpoints.checkpoint import Snapshot, TrainState, load_weights, verify_checkpoint
from graphmill.cluster.checkpoints.checkpoint_store import Checkpoints, keep_best_of
from graphmill.cluster.runs.run_store import RunStore
from graphmill.core.errors import GraphmillError
from graphmill.jobs import ingest, predict, train_nodes
from graphmill.storage.graph import open_graph
from tests.faulty_files import faulty_files
from tests.job_in_process import run_job

INGEST = ["synthetic", "graph", "--synthetic.num_nodes", "120", "--synthetic.mean_degree", "4", "--partitions", "2"]
RUN = [
    *("--workers.launcher", "process", "--workers", "1", "--model.width", "8", "--model.num_layers", "1"),
    *("--model.hops", "1", "--fit.schedule", "constant", "--data", "graph", "--fit.epochs", "1", "--run.dir", "run"),
]
PREDICT = ["run", "out", "--launcher", "process", "--embeddings"]
STEP = 17  # the gate tries one of 17 calls


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph, and a finished run on it."""
    home = tmp_path_factory.mktemp("made")
    for main, words in ((ingest.main, INGEST), (train_nodes.main, RUN)):
        done = run_job(main, words, home)
        assert done.returncode == 0, done.stderr
    return home


class Ingestion:
    """Ingests a new snapshot of a graph."""

    main = staticmethod(ingest.main)
    words = (*INGEST, "--overwrite", "--synthetic.seed", "1")

    def __init__(self, made: Path, home: Path) -> None:
        self._graph = home / "graph"
        shutil.copytree(made / "graph", self._graph)
        self._old = open_graph(str(self._graph)).manifest.content_hash

    def check(self, *, done: bool) -> None:
        graph = open_graph(str(self._graph))
        graph.verify()
        assert (graph.manifest.content_hash != self._old) or not done


class Prediction:
    """Writes predictions to a new folder."""

    main = staticmethod(predict.main)
    words = tuple(PREDICT)

    def __init__(self, made: Path, home: Path) -> None:
        self._out = home / "out"
        for name in ("graph", "run"):
            (home / name).symlink_to(made / name)

    def check(self, *, done: bool) -> None:
        complete = (self._out / "_summary.json").exists()
        assert complete or not done
        if complete:
            assert len(pq.read_table(self._out)) == 120
            assert not done or not list((self._out / "_pieces").glob("*"))  # the folder of pieces may stay, but empty


class Training:
    """Continues a run from the checkpoint of its first epoch."""

    main = staticmethod(train_nodes.main)
    words = (*RUN[:-4], "--fit.epochs", "3", "--run.resume", "run")

    def __init__(self, made: Path, home: Path) -> None:
        self._run = home / "run"
        (home / "graph").symlink_to(made / "graph")
        shutil.copytree(made / "run", self._run)

    def check(self, *, done: bool) -> None:
        assert Checkpoints(RunStore.of(self._run / "train")).look([]) is not None
        if done:
            assert json.loads((self._run / "summary.json").read_text())["epochs"] == 3
            verify_checkpoint(self._run / "best")


def calls(kind: type, made: Path, folder: Path) -> int:
    """The number of filesystem calls of the command."""
    home = folder / "counted"
    home.mkdir()
    kind(made, home)
    with faulty_files(home) as faults:
        assert run_job(kind.main, kind.words, home).returncode == 0
    return faults.count


def fail(kind: type, made: Path, home: Path, number: int) -> str:
    """Runs the command with this filesystem call failing, then runs it again. Returns a description of the problem, or ""."""
    home.mkdir()
    place = kind(made, home)
    with faulty_files(home, number) as faults:
        try:
            done = run_job(kind.main, kind.words, home)
        except Exception as error:  # noqa: BLE001  any exception is a finding
            return f"{number} {faults.failed}: traceback {type(error).__name__}: {error}"
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    if (done.returncode, len(said)) not in ((0, 0), (1, 1)) or "Traceback" in done.stderr + done.stdout:
        return f"{number} {faults.failed}: status {done.returncode}, {done.stderr}"
    try:
        place.check(done=done.returncode == 0)
        again = run_job(kind.main, kind.words, home)
        if again.returncode != 0:
            return f"{number} {faults.failed}: the repeat fails: {again.stderr}"
        place.check(done=True)
    except (GraphmillError, OSError, AssertionError) as error:
        return f"{number} {faults.failed}: {type(error).__name__} {error}"
    shutil.rmtree(home)
    return ""


@pytest.mark.parametrize("step", [STEP, pytest.param(1, marks=pytest.mark.long)], ids=["some", "all"])
@pytest.mark.parametrize("kind", [Ingestion, Prediction, pytest.param(Training, marks=pytest.mark.long)])
def test_a_command_survives_the_failure_of_any_call(kind: type, step: int, made: Path, tmp_path: Path) -> None:
    numbers = range(step // 2, calls(kind, made, tmp_path), step)
    wrong = [found for number in numbers if (found := fail(kind, made, tmp_path / str(number), number))]
    print(f"{kind.__name__}: {len(numbers)} calls failed, {len(wrong)} of them badly")
    assert not wrong, "\n".join(wrong)


def snapshot(epoch: int) -> Snapshot:
    weights = {"weight": torch.full((3, 2), float(epoch))}
    return Snapshot(TrainState(epoch, epoch, 0.5, {"seed": 1}, {"model": "m"}), weights, weights, {})


def save(run: Path, epoch: int) -> float:
    """Saves a checkpoint, keeps the best weights, removes old checkpoints, and resumes. Returns the loaded weights."""
    checkpoints = Checkpoints(RunStore.of(run / "train"))
    checkpoints.save(checkpoints.unused_name(snapshot(epoch).state.name), snapshot(epoch))
    checkpoints.sweep(2)
    keep_best_of(run / "train" / checkpoints.names()[0], RunStore.of(run))
    return resumed(run)


def resumed(run: Path) -> float:
    model = torch.nn.Linear(2, 3, bias=False)
    with Checkpoints(RunStore.of(run / "train")).newest([]) as found:
        assert found is not None
        load_weights(found[1] / "model.safetensors", model)
    return float(model.weight[0, 0].detach())


@pytest.mark.parametrize("step", [STEP, pytest.param(1, marks=pytest.mark.long)], ids=["some", "all"])
def test_a_checkpoint_survives_the_failure_of_any_call(step: int, tmp_path: Path) -> None:
    for epoch in (1, 2, 3):
        save(tmp_path / "saved", epoch)
    (tmp_path / "saved" / "best" / "notes.txt").write_text("mine")

    def run_of(name: str) -> Path:
        return shutil.copytree(tmp_path / "saved", tmp_path / name)

    with faulty_files(run_of("counted")) as faults:
        assert save(tmp_path / "counted", 4) == 4
    numbers = range(step // 2, faults.count, step)
    for number in numbers:
        run = run_of(str(number))
        with faulty_files(run, number) as failing, suppress(OSError):  # GraphmillErrors about files are OSErrors too
            save(run, 4)
        assert failing.failed
        assert resumed(run) in (3, 4), failing.failed
        best = run / "best" if (run / "best").exists() else run / ".best.old"
        verify_checkpoint(best)
        assert save(run, 5) == 5, failing.failed
        verify_checkpoint(run / "best")
        assert (run / "best" / "notes.txt").read_text() == "mine", failing.failed
        assert sorted(path.name for path in run.iterdir()) == ["best", "train"], failing.failed
        shutil.rmtree(run)
    print(f"checkpoints: {len(numbers)} calls failed")
