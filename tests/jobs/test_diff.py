"""Tests graphmill diff: the step, the part and the cause at which two runs part, for pairs of runs that differ in one thing each."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import graphmill as gm
from graphmill.cluster.checkpoints.checkpoint import load_state, write_state
from graphmill.cluster.receipts import host_facts
from graphmill.jobs import diff, replay, train_nodes
from graphmill.jobs.proof.parting import Parting
from graphmill.jobs.proof.proven_run import open_proven
from graphmill.storage.importers.memory.array_graph import ArrayGraph
from tests.job_in_process import output_of, run_job, run_on_one_thread

NUM_NODES, STEPS_OF_AN_EPOCH = 400, 10
WORDS = [
    "--workers",
    "1",
    "--workers.launcher",
    "process",
    "--fit.micro_batches",
    "2",
    "--fit.schedule",
    "constant",
    "--fit.warmup_epochs",
    "0",
    "--run.defaults",
    "recipe",
    "--evaluation",
    "sampled",
    "--model",
    "sage",
    "--model.width",
    "8",
    "--model.num_layers",
    "2",
    "--model.dropout",
    "0.1",
    "--sampler",
    "neighbor",
    "--sampler.fanouts",
    "4",
    "3",
    "--sampler.batch_size",
    "4",
    "--fit.epochs",
    "2",
]


def store(folder: Path, changed_row: int | None = None) -> None:
    rng = np.random.default_rng(0)
    feature = rng.normal(size=(NUM_NODES, 6)).astype(np.float32)
    label = (feature[:, 0] > 0).astype(np.int64)
    if changed_row is not None:
        feature[changed_row, 2] += 0.5
    split = np.repeat(np.array([1, 2, 3, 0], np.int8), [80, 40, 40, 240])[:, None]
    ends = rng.integers(0, NUM_NODES, (2, 2000))
    graph = ArrayGraph("pairs", NUM_NODES, ends[0], ends[1], feature=feature, label=label, split=split)
    gm.ingest(graph, str(folder), options=gm.IngestOptions(num_partitions=2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("diff")
    store(folder / "graph")
    train(folder, "base")
    return folder


def train(folder: Path, name: str, *words: object, data: str = "graph") -> Path:
    run_on_one_thread(train_nodes.main, [*WORDS, "--data", data, *map(str, words), "--run.dir", name], folder)
    return folder / name


def parted(folder: Path, other: str) -> Parting:
    return gm.diff(str(folder / "base"), str(folder / other))


def causes(parting: Parting) -> list[str]:
    return [f"{cause.kind} {cause.name}" for cause in parting.causes]


def test_a_rate_changes_the_first_update(folder):
    train(folder, "rate", "--fit.learning_rate", 0.02)
    found = parted(folder, "rate")
    assert (found.step, found.part) == (0, "update")
    assert found.name.split()[0] in open_names(folder / "base")
    assert causes(found) == ["option fit.learning_rate"]
    said = output_of(diff.main, "base", "rate", cwd=folder)
    assert "the runs part at step 0: the weights after this step's update (" in said
    assert "what differs between the runs: 1" in said


def open_names(run: Path) -> set[str]:
    return set(load_file(run / "best" / "model.safetensors"))


def test_equal_runs_never_part(folder):
    train(folder, "again")
    found = parted(folder, "again")
    assert found.is_equal
    assert found.outcome == f"the runs never part: {2 * STEPS_OF_AN_EPOCH} common steps equal"
    assert causes(found) == []


def _feature_row(folder: Path) -> tuple[int, str, str]:
    """A node that the first steps do not read, and the first step that reads it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        batches = replay.open_batches("base")
    seen: set[int] = set()
    for step in range(STEPS_OF_AN_EPOCH):
        drawn = {int(n) for place in (0, 1) for n in batches.sampler.sample(0, 2 * step + place).node_id}
        if step >= 3 and (new := sorted(drawn - seen)):
            store(folder / "changed", new[0])
            train(folder, "row", data="changed")
            return step, "batch", "data snapshot"
        seen |= drawn
    raise AssertionError


def _checkpoint_bit(folder: Path) -> tuple[int, str, str]:
    train(folder, "bit", "--fit.epochs", 1)
    path = folder / "bit" / "train" / "epoch-000001"
    weights = load_file(path / "model.safetensors")
    weights[min(weights)].view(torch.int32).flatten()[0] ^= 1 << 12
    save_file(weights, path / "model.safetensors")
    state = load_state(path)
    (path / "state.json").unlink()
    write_state(path, state)
    run_on_one_thread(train_nodes.main, ["--run.resume", "bit", "--fit.epochs", "2"], folder)
    return STEPS_OF_AN_EPOCH, "weights", f"file checkpoint at step {STEPS_OF_AN_EPOCH}"


def _package(folder: Path) -> tuple[int | None, str, str]:
    versions = host_facts.installed_packages
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_facts, "installed_packages", lambda: {**versions(), "scipy": "0.0.stub"})
        train(folder, "package")
    return None, "", "package scipy"


def _threads(folder: Path) -> tuple[int | None, str, str]:
    """Two threads may add in another order than one. The records tell at which step; the order of additions tells in which layer."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        done = run_job(train_nodes.main, [*WORDS, "--data", "graph", "--run.dir", "threads"], folder)
    finally:
        torch.set_num_threads(before)
    assert done.returncode == 0, done.stderr
    one, two = (open_proven(str(folder / name)).receipt.entries for name in ("base", "threads"))
    step = next((i for i, (a, b) in enumerate(zip(one, two, strict=True)) if a.row != b.row), None)
    return step, "" if step is None else "layer", "threads threads"


def _option(name: str, option: str, value: object, part: str):
    def make(folder: Path) -> tuple[int, str, str]:
        train(folder, name, f"--{option}", *str(value).split())
        return 0, part, f"option {option}"

    make.__name__ = name
    return make


PAIRS = {
    "row": _feature_row,
    "bit": _checkpoint_bit,
    "package": _package,
    "threads": _threads,
    "seed": _option("seed", "fit.seed", 1, "weights"),
    "dropout": _option("dropout", "model.dropout", 0.2, "layer"),
    "positions": _option("positions", "fit.micro_batches", 1, "batch"),
    "fanouts": _option("fanouts", "sampler.fanouts", "4 2", "batch"),
    "decay": _option("decay", "fit.weight_decay", 0.3, "update"),
    "clip": _option("clip", "fit.clip_norm", 0.01, "update"),
    "width": _option("width", "model.width", 16, "weights"),
}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_that_differs_in_one_thing_parts_there(folder, name):
    step, part, cause = PAIRS[name](folder)
    found = parted(folder, name)
    print(found.outcome, causes(found))
    assert (found.step, found.part, found.limits) == (step, part, [])
    assert causes(found) == [cause]
    if name == "dropout":
        assert "drop" in found.name
    if name == "row":
        assert found.name == "x"


def test_runs_on_another_processor_part_by_their_records(folder, tmp_path, monkeypatch):
    """The step is told, and why it is not replayed."""
    from graphmill.jobs.proof import parting, verification

    if not (folder / "rate").exists():
        train(folder, "rate", "--fit.learning_rate", 0.02)
    monkeypatch.setattr(parting, "here_differs", lambda _: ("cpu: one there, another here",))
    assert verification.here_differs is not parting.here_differs
    found = parted(folder, "rate")
    assert (found.step, found.part) == (0, "update")
    assert "sums in another order: cpu: one there, another here" in found.limits[0]


def test_a_run_without_its_graph_parts_by_its_records(folder, tmp_path):
    if not (folder / "rate").exists():
        train(folder, "rate", "--fit.learning_rate", 0.02)
    for name in ("base", "rate"):
        shutil.copytree(folder / name, tmp_path / name)
    found = gm.diff(str(tmp_path / "base"), str(tmp_path / "rate"), data=str(tmp_path / "nowhere"))
    assert (found.step, found.part) == (0, "update")
    assert "nowhere" in found.limits[0]
