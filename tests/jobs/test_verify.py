"""Tests graphmill verify and graphmill export-receipt: honest runs are equal, and what was altered afterwards is found.

The runs are trained in this process, without Ray. Long tests train every kind of run, with Ray and faults too, and measure how often a few drawn steps find
a changed batch.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import graphmill as gm
from graphmill.cluster.checkpoints.checkpoint import CHECKPOINT_VERSION, load_state, write_state
from graphmill.cluster.checkpoints.checkpoint_store import checkpoints_of
from graphmill.cluster.data.training_data import OpenNodes
from graphmill.cluster.process.subnormals import flushed_subnormals
from graphmill.cluster.receipts.chain import chained, digest, entries_of, line_of
from graphmill.cluster.receipts.receipt_file import ReceiptFile
from graphmill.cluster.receipts.step_receipts import StepReceipts
from graphmill.cluster.runs.run_directory import write_atomic
from graphmill.cluster.runs.run_store import RunStore
from graphmill.cluster.training.checkpoint_writer import CheckpointWriter
from graphmill.cluster.training.train_loop import Worker
from graphmill.core.errors import ConfigError, FormatError
from graphmill.jobs import export_receipt, ingest, train_graphs, train_links, train_nodes, verify
from graphmill.jobs.proof import comparison, verification
from graphmill.jobs.proof.proven_run import exported, open_proven, open_spec
from graphmill.jobs.proof.replay_steps import Replay
from graphmill.jobs.proof.verification import Verification, Verifier, draw_steps
from tests.job_in_process import output_of, run_job, run_on_one_thread
from tests.jobs.test_diff import store
from tests.recording_reporter import write_at_once

REPOSITORY = Path(__file__).resolve().parents[2]
PROCESS = "--workers 1 --workers.launcher process --fit.micro_batches 2 --fit.schedule constant --fit.warmup_epochs 0"
SMALL = f"{PROCESS} --run.defaults recipe --data graph --fit.checkpoint_every 2"
SAGE = f"{SMALL} --evaluation sampled --model sage --model.width 8 --model.num_layers 2 --sampler neighbor --sampler.fanouts 4 3 --sampler.batch_size 4"
GECO = f"{SMALL} --model geco --model.width 16 --model.num_layers 2 --sampler.num_chunks 4"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("verify")
    store(folder / "graph")
    return folder


@pytest.fixture(scope="module")
def honest(folder: Path) -> Path:
    run_on_one_thread(train_nodes.main, [*SAGE.split(), "--fit.epochs", "4", "--run.dir", "honest"], folder)
    return folder / "honest"


@pytest.fixture
def copied(honest: Path, tmp_path: Path) -> Path:
    """A copy of the honest run that a test may alter."""
    shutil.copytree(honest, tmp_path / "run")
    return tmp_path / "run"


def test_an_honest_run_is_equal_and_its_cost_and_power_are_said_before(honest, folder):
    said = output_of(verify.main, "honest", "--steps", 2, "--seed", 7, cwd=folder)
    lines = said.splitlines()
    assert "2 checkpoints, summary.json, the best weights, the data (snapshot 1, content" in lines[0]
    assert lines[1].startswith("seed 7: steps ")
    assert "CPU seconds; one batch trained otherwise, anywhere in the run, is found with probability 0." in lines[2]
    assert lines[-1] == "2 of 2 equal"
    assert lines[1] == output_of(verify.main, "honest", "--steps", 2, "--seed", 7, cwd=folder).splitlines()[1]


def test_all_steps_are_equal_from_python_and_on_other_threads(honest, monkeypatch):
    monkeypatch.chdir(honest.parent)
    threads = torch.get_num_threads()
    found = gm.verify("honest", "all")
    assert found.is_verified
    assert found.draw.probability == 1.0
    assert found.outcome == f"{found.num_equal} of {found.num_equal} equal"
    assert found.num_equal == len(open_proven(str(honest)).receipt.entries) > 20
    assert torch.get_num_threads() == threads


def test_an_exported_receipt_needs_the_graph_alone(honest, folder, tmp_path):
    said = output_of(export_receipt.main, "honest", tmp_path / "receipt.json", cwd=folder)
    assert "to verify: graphmill verify" in said
    shutil.copytree(folder / "graph", tmp_path / "elsewhere")
    receipt = json.loads((tmp_path / "receipt.json").read_text())
    receipt["lines"][0]["data"]["url"] = "/nowhere"  # breaks the chain below
    words = [tmp_path / "receipt.json", "--data", tmp_path / "elsewhere", "--steps"]
    assert output_of(verify.main, *words, 3).splitlines()[-1] == "3 of 3 equal"
    assert output_of(verify.main, *words, "all").splitlines()[-1].endswith(" equal")
    (tmp_path / "other.json").write_text(json.dumps(receipt))
    done = run_job(verify.main, [str(tmp_path / "other.json")], tmp_path)
    assert (done.returncode, "line 2: expected the digest of the line before it" in done.stderr) == (1, True)


def _option(run: Path) -> str:
    config = json.loads((run / "config.json").read_text())
    config["fit"]["weight_decay"] = 0.123
    (run / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    return "an option was changed after the run: fit.weight_decay was"


def _metric(run: Path) -> str:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    lines[1] = lines[1].replace('"train_loss": ', '"train_loss": 0')
    (run / "metrics.jsonl").write_text("".join(lines))
    return "metrics.jsonl: "


def _weight(run: Path, *, forged: bool = False) -> str:
    """Changes one bit of a weight. `forged`: with new digests in state.json, as a careful forger would do."""
    name = max(path.name for path in (run / "train").iterdir())
    file = run / "train" / name / "model.safetensors"
    weights = load_file(file)
    max(weights.values(), key=torch.numel).view(torch.int32).flatten()[0] ^= 1
    save_file(weights, file)
    if forged:
        state = load_state(file.parent)
        (file.parent / "state.json").unlink()
        write_state(file.parent, state)
        assert CHECKPOINT_VERSION == 2
        return "the checkpoint was replaced after the run"
    return "the file is damaged"


def _forged_weight(run: Path) -> str:
    return _weight(run, forged=True)


def _summary(run: Path) -> str:
    path = run / "summary.json"
    path.write_text(path.read_text().replace('"epochs": 4', '"epochs": 5'))
    return "summary.json: expected the scores that the run wrote, found others"


@pytest.mark.parametrize("alter", [_option, _metric, _weight, _forged_weight, _summary])
def test_what_was_altered_is_found_without_a_replay(copied, alter, monkeypatch):
    monkeypatch.setattr(Verifier, "run", None)
    said = alter(copied)
    done = run_job(verify.main, [str(copied)], copied)
    assert done.returncode == 1
    assert f"altered: {copied}" in done.stdout
    assert said in done.stdout


def test_an_altered_row_of_the_data_is_found(honest, tmp_path, monkeypatch):
    graph = tmp_path / "graph"
    shutil.copytree(honest.parent / "graph", graph)
    file = max(graph.glob("data/*/part-*/*feature*"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.chmod(0o644)
    file.write_bytes(content)
    found = gm.verify(str(honest), data=str(graph))
    assert not found.is_verified
    assert file.name in found.problems[0]
    # a graph that is whole, but another
    store(tmp_path / "other", 7)
    found = gm.verify(str(honest), data=str(tmp_path / "other"))
    assert "expected the data of the run (content" in found.problems[0]


def test_another_processor_is_compared_within_a_bound_and_never_called_equal(honest, monkeypatch):
    facts = verification.host_facts
    monkeypatch.setattr(verification, "host_facts", lambda *about: {**facts(*about), "cpu": "another"})
    found = gm.verify(str(honest), 3, seed=1)
    assert found.is_verified is None
    assert found.outcome == "3 of 3 within the bound for another processor; not verified bit for bit"
    assert found.others
    whole = gm.verify(str(honest), "all")
    assert [each.begin for each in whole.draw.passes] == [0, 20]  # each checkpoint begins anew
    assert (whole.is_verified, whole.num_equal) == (None, 40)
    assert run_job(verify.main, [str(honest)]).returncode == 3
    monkeypatch.setattr(comparison, "BOUND", -1.0)
    assert gm.verify(str(honest), 3, seed=1).is_verified is False


def test_the_bound_grows_to_a_hundredth_and_holds_no_infinity():
    assert comparison.bound_after(10_000) == pytest.approx(1e-2)
    inf, nan = float("inf"), float("nan")
    assert not any(comparison.is_within(*pair, 1.0) for pair in ((inf, 5.0), (5.0, inf), (nan, 5.0), (inf, -inf)))
    assert comparison.is_within(inf, inf, 0.0)
    assert comparison.is_within(nan, nan, 0.0)


def test_the_norm_of_a_start_is_compared_within_the_bound(copied, monkeypatch):
    facts = verification.host_facts
    monkeypatch.setattr(verification, "host_facts", lambda *about: {**facts(*about), "cpu": "another"})

    def other_norm(body: dict[str, Any]) -> None:
        body["weights"]["norm"] *= 1.5

    rewrite(copied, lambda bodies: other_norm(bodies[0]))
    found = gm.verify(str(copied), "all")
    assert found.is_verified is False
    assert "the start of the workers has a norm of" in found.outcome


def rewrite(run: Path, change: Any) -> None:
    """Changes the lines of a receipt, with new digests, as a careful forger would do. `change` gets the list of lines."""
    bodies = [json.loads(line) for line in (run / "receipt.jsonl").read_bytes().splitlines()]
    change(bodies)
    content, before, chain = b"", "", bodies[0]["weights"]["whole"]
    for body in bodies:
        body.pop("before")
        if body["kind"] == "steps":
            chain = body["chain"] = chained(chain, entries_of(body))
        line = line_of(body, before)
        content, before = content + line + b"\n", digest(line)
    (run / "receipt.jsonl").write_bytes(content)


def _no_steps(bodies: list[Any]) -> None:
    bodies[:] = [body for body in bodies if body["kind"] != "steps"]


def _last_steps(bodies: list[Any]) -> None:
    bodies.remove([body for body in bodies if body["kind"] == "steps"][-1])


def _an_entry(bodies: list[Any]) -> None:
    del next(body for body in bodies if body["kind"] == "steps" and len(body["entries"]) > 3)["entries"][1]


def _a_mark(bodies: list[Any]) -> None:
    del next(body for body in bodies if "mark" in body)["mark"]


def _fewer_epochs(bodies: list[Any]) -> None:
    bodies[0]["config"]["fit"]["epochs"] = 5


def _best(bodies: list[Any]) -> None:
    bodies[-1]["best"] = "0" * 64


@pytest.mark.parametrize(
    ("cut", "said"),
    [
        (_no_steps, "the run trained steps, and none has a record"),
        (_last_steps, "step 32 has no record"),
        (_an_entry, "has no record"),
        (_a_mark, "step 0 has no digests of its gradients and weights"),
        (_fewer_epochs, "the run ended after 4 epochs of 5"),
        (_best, "expected the best weights that the run kept at its end"),
    ],
)
def test_a_receipt_that_was_cut_is_not_equal(copied, cut, said, monkeypatch):
    monkeypatch.setattr(Verifier, "run", None)
    rewrite(copied, cut)
    if cut is _fewer_epochs:
        config = json.loads((copied / "config.json").read_text())
        config["fit"]["epochs"] = 5
        (copied / "config.json").write_text(json.dumps(config))
    found = gm.verify(str(copied))
    assert found.is_verified is False
    assert any(said in problem for problem in found.problems), found.problems


def test_an_older_run_that_was_resumed_is_equal_from_there_on(folder, tmp_path):
    words = ["--fit.epochs", "2", "--run.dir", "older"]
    run_on_one_thread(train_nodes.main, [*SAGE.split(), *words], folder)
    (folder / "older" / "receipt.jsonl").unlink()
    run_on_one_thread(train_nodes.main, ["--run.resume", "older", "--fit.epochs", "4"], folder)
    said = output_of(verify.main, "older", "--steps", "all", cwd=folder)
    assert "no record of the 20 steps before them" in said
    assert said.splitlines()[-1] == "20 of 20 equal"
    shutil.copytree(folder / "older", tmp_path / "swept")
    shutil.rmtree(tmp_path / "swept" / "train" / "epoch-000002")
    assert gm.verify(str(tmp_path / "swept"), "all", data=str(folder / "graph")).is_verified is None


def test_a_run_with_embeddings_that_was_continued_otherwise_is_replayed(folder):
    words = ["--embeddings.width", "4", "--fit.epochs", "1", "--run.dir", "embedded"]
    run_on_one_thread(train_nodes.main, [*SAGE.split(), *words], folder)
    words = ["--run.resume", "embedded", "--fit.epochs", "2", "--fit.learning_rate", "0.05"]
    run_on_one_thread(train_nodes.main, words, folder)
    assert output_of(verify.main, "embedded", "--steps", "all", cwd=folder).splitlines()[-1] == "20 of 20 equal"


def test_an_exported_receipt_names_no_file_of_this_machine(honest, tmp_path):
    proven = open_proven(str(honest))
    (tmp_path / "receipt.json").write_bytes(exported(proven))
    done = run_job(verify.main, [str(tmp_path / "receipt.json")])
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "expected the graph or set beside an exported receipt, got none; set --data" in done.stderr
    bodies = json.loads((tmp_path / "receipt.json").read_text())["lines"]
    bodies[0]["config"]["fit"]["start_from"] = "/nowhere"
    bodies[0]["config"]["servers"]["disk_cache_dir"] = "/nowhere/cache"
    start = replace(proven.receipt.starts[0], config=bodies[0]["config"])
    with pytest.raises(ConfigError, match=r"the weights that the run began with \(--fit.start_from /nowhere\)"):
        open_spec(replace(proven, place=None), start, str(honest.parent / "graph"), allow_import=False)
    assert "all_scores" in bodies[-1]["scores"]


def test_a_run_without_a_receipt_is_told_in_one_line(copied):
    (copied / "receipt.jsonl").unlink()
    for call in (lambda: gm.verify(str(copied)), lambda: gm.diff(str(copied), str(copied))):
        with pytest.raises(
            FormatError, match=r"expected a receipt \(receipt.jsonl\), found none; the run is of a version"
        ):
            call()
    with pytest.raises(ConfigError, match="a number of at least 1, or all, got 'few'"):
        gm.verify(str(copied), "few")


@contextmanager
def otherwise(at: tuple[int, int]):
    """Inside the block the labels of one micro-batch are exchanged: the batch is trained otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        target = OpenNodes.target

        def other(self: OpenNodes, batch: Any) -> torch.Tensor:
            found = target(self, batch)
            return found.roll(1) if (batch.epoch, batch.index) == at else found

        patch.setattr(OpenNodes, "target", other)
        yield


class Retrained:
    """Trains an honest run again, in this process, and writes its receipt and checkpoints."""

    def __init__(self, proven: Any) -> None:
        self.start = proven.receipt.starts[0]
        self.spec = Replay(proven).spec(self.start)

    def worker(self, folder: Path) -> Worker:
        """A worker that writes a receipt and checkpoints to an empty folder."""
        folder.mkdir()
        receipt = ReceiptFile(folder, write_atomic)
        receipt.data = self.start.data

        class Direct:
            def push(self, record: Any) -> None:
                if record["kind"] == "start":
                    receipt.cut((0, 0), [])
                elif record["kind"].startswith("receipt"):
                    receipt.take(record, lambda: json.dumps(dict(config)).encode())

            def stop_asked(self) -> bool:
                return False

            def flush(self) -> None: ...

        config, checkpoints = self.start.config, checkpoints_of(RunStore(str(folder)))
        writer = CheckpointWriter(checkpoints, 0, None, write_at_once)
        worker = Worker(self.spec, Direct(), 0, 1, torch.device("cpu"), writer)  # type: ignore[arg-type]
        worker.restore(checkpoints)
        return worker

    def run(self, folder: Path) -> Replay:
        before = torch.get_num_threads()
        torch.set_num_threads(int(self.start.facts["threads"]))
        try:
            with flushed_subnormals():
                self._train(self.worker(folder))
        finally:
            torch.set_num_threads(before)
        return self.replay(open_proven(str(folder)))

    def _train(self, worker: Worker) -> None:
        with worker.loader(self.spec.sampler) as train:
            for epoch in range(self.spec.options.epochs):
                worker.train_epoch(train, epoch)
                worker.next_epoch = epoch + 1
                if (epoch + 1) % 2 == 0:
                    worker.checkpoint()

    def measure(self, folder: Path, seconds: list[float]) -> None:
        """Trains about 64 steps, and adds their CPU seconds to the list."""
        worker = self.worker(folder)
        with worker.loader(self.spec.sampler) as train:
            began = time.process_time()
            for epoch in range(max(1, 64 // train.num_steps)):
                worker.train_epoch(train, epoch)
            worker.receipts.flush()
            seconds.append(time.process_time() - began)

    def replay(self, proven: Any) -> Replay:
        replay = Replay(proven)
        replay._specs.append((self.start.config, self.spec))
        return replay


def verified(replay: Replay, steps: int | None, seed: int = 0) -> Verification:
    result = Verification(replay.proven.where, [], [], draw_steps(replay, steps, seed))
    for each in result.draw.passes:
        Verifier(replay, result).run(each)
    return result


def test_a_batch_trained_otherwise_is_found_by_all_steps(honest, tmp_path):
    again = Retrained(open_proven(str(honest)))
    assert verified(again.run(tmp_path / "same"), None).is_verified
    same = open_proven(str(tmp_path / "same"))
    assert same.receipt.chain == open_proven(str(honest)).receipt.chain
    with otherwise((1, 3)):
        replay = again.run(tmp_path / "otherwise")
    (found,) = verified(replay, None).differences
    assert (found.epoch, found.step, found.part) == (1, 1, "loss")
    assert same.receipt.chain != replay.proven.receipt.chain


@pytest.mark.long
@pytest.mark.slow
def test_a_few_steps_find_a_changed_batch_as_often_as_they_say(honest, tmp_path):
    """200 trials: every step of a short run is trained otherwise once, and verified by five steps with as many seeds as that needs."""
    again = Retrained(open_proven(str(honest)))
    steps = open_proven(str(honest)).num_steps
    num_found, said = 0, []
    seeds = iter(range(10_000))
    for number in range(steps):
        with otherwise((number // (steps // 4), 2 * (number % (steps // 4)))):
            replay = again.run(tmp_path / str(number))
        for _ in range(-(-200 // steps)):
            result = verified(replay, 2, next(seeds))
            said.append(result.draw.probability)
            num_found += not result.is_verified
    expected, trials = float(np.mean(said)), len(said)
    deviation = (sum(share * (1 - share) for share in said)) ** 0.5 / trials
    print(f"{trials} trials: found {num_found / trials:.3f}, said {expected:.3f} ± {deviation:.3f}")
    assert trials >= 200
    assert abs(num_found / trials - expected) < 3 * deviation


KINDS = {
    "geco": (train_nodes, GECO),
    "molecules": (
        train_graphs,
        f"{PROCESS} --run.defaults recipe --model grit --model.width 16 --model.num_layers 2 --data.molecules 60 --sampler.max_graphs 12 --fit.checkpoint_every 2",
    ),
    "typed": (
        train_nodes,
        f"{PROCESS} --run.defaults recipe --data typed --model rsage --model.width 8 --model.dropout 0.1 --sampler.fanouts 4 3 --sampler.batch_size 64 --fit.checkpoint_every 2",
    ),
    "links": (
        train_links,
        f"{PROCESS} --data linked --model sage --model.width 8 --model.num_layers 2 --sampler.fanouts 4 3 --task.decoder.width 8 --task.batch_size 128 --fit.checkpoint_every 2",
    ),
    "embeddings": (train_nodes, f"{SAGE} --embeddings.width 4"),
}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_is_equal(folder, kind):
    job, words = KINDS[kind]
    if kind == "typed" and not (folder / "typed").exists():
        mag = ["--mag.scale", "0.0004", "--mag.num-classes", "3", "--mag.feature-dim", "8"]
        output_of(ingest.main, "synthetic-mag", "typed", "--partitions", 2, "--partitioner", "ldg", *mag, cwd=folder)
    if kind == "links" and not (folder / "linked").exists():
        split = ["--links.valid", "0.1", "--links.test", "0.1"]
        output_of(
            ingest.main, "synthetic", "linked", "--partitions", 2, "--synthetic.num-nodes", 300, *split, cwd=folder
        )
    run_on_one_thread(job.main, [*words.split(), "--fit.epochs", "3", "--run.dir", f"run-{kind}"], folder)
    for steps in ("5", "all"):
        assert (
            output_of(verify.main, f"run-{kind}", "--steps", steps, cwd=folder).splitlines()[-1].endswith(" equal")
        ), kind
    assert gm.diff(str(folder / f"run-{kind}"), str(folder / f"run-{kind}")).is_equal


@pytest.mark.long
@pytest.mark.slow
def test_a_resumed_run_and_a_run_with_a_failed_attempt_are_equal_to_the_whole(honest, folder, monkeypatch):
    run_on_one_thread(train_nodes.main, [*SAGE.split(), "--fit.epochs", "3", "--run.dir", "resumed"], folder)
    run_on_one_thread(train_nodes.main, ["--run.resume", "resumed", "--fit.epochs", "4"], folder)
    steps, failed = Worker._step, []

    def step(self: Worker, epoch: int, number: int, *more: Any) -> Any:
        if (epoch, number) == (3, 1) and not failed:
            failed.append(True)
            raise RuntimeError("a fault")
        return steps(self, epoch, number, *more)

    monkeypatch.setattr(Worker, "_step", step)
    run_on_one_thread(train_nodes.main, [*SAGE.split(), "--fit.epochs", "4", "--run.dir", "failed"], folder)
    assert failed
    whole = open_proven(str(honest)).receipt
    for name, positions in (("resumed", [(0, 0), (3, 0)]), ("failed", [(0, 0), (2, 0)])):
        receipt = open_proven(str(folder / name)).receipt
        assert [start.position for start in receipt.starts] == positions
        assert (receipt.chain, receipt.entries) == (whole.chain, whole.entries)
        for steps_word in ("5", "all"):
            assert output_of(verify.main, name, "--steps", steps_word, cwd=folder).splitlines()[-1].endswith(" equal")


@pytest.mark.long
@pytest.mark.slow
def test_a_run_that_was_continued_with_another_rate_is_replayed_with_both(folder):
    run_on_one_thread(train_nodes.main, [*SAGE.split(), "--fit.epochs", "2", "--run.dir", "changed"], folder)
    words = ["--run.resume", "changed", "--fit.epochs", "4", "--fit.learning_rate", "0.05"]
    run_on_one_thread(train_nodes.main, words, folder)
    shutil.rmtree(folder / "changed" / "train" / "epoch-000002", ignore_errors=True)
    assert output_of(verify.main, "changed", "--steps", "all", cwd=folder).splitlines()[-1].endswith(" equal")


class KilledOnce:
    """A callback that kills its worker after the first epoch, once."""

    def on_epoch_end(self, epoch: int, _: Any) -> None:
        mark = Path(os.environ["GRAPHMILL_TEST_MARK"])
        if epoch == 2 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), 9)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.ray
def test_two_workers_and_a_killed_worker_are_equal_to_one(honest, folder, tmp_path):
    words = [*SAGE.replace("--workers 1 --workers.launcher process", "--workers 2").split(), "--fit.epochs", "4"]
    environment = {**os.environ, "GRAPHMILL_TEST_MARK": str(tmp_path / "mark"), "PYTHONPATH": str(REPOSITORY)}
    for name, more in (("two", []), ("killed", ["--fit.callbacks", "tests.jobs.test_verify:KilledOnce"])):
        command = [sys.executable, "-m", "graphmill", "train", *words, *more, "--run.dir", name]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "mark").exists()
    whole = open_proven(str(honest)).receipt
    for name in ("two", "killed"):
        receipt = open_proven(str(folder / name)).receipt
        assert len(receipt.starts) == (2 if name == "killed" else 1)
        assert (receipt.chain, receipt.entries) == (whole.chain, whole.entries)
        for steps in ("5", "all"):
            said = output_of(verify.main, name, "--steps", steps, "--allow_import", cwd=folder)
            assert said.splitlines()[-1].endswith(" equal")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "setting", [{"ATEN_CPU_CAPABILITY": "default"}, {"MKL_CBWR": "COMPATIBLE"}, {"ONEDNN_MAX_CPU_ISA": "SSE41"}]
)
def test_imitated_processors_stay_within_the_bound(honest, folder, setting):
    """docs/tests.md says how another processor is imitated."""
    command = [sys.executable, "-m", "graphmill", "verify", "honest", "--steps", "all"]
    environment = {**os.environ, **setting, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 3, done.stderr + done.stdout
    assert "within the bound for another processor" in done.stdout.splitlines()[-1]
    assert "not compared bit for bit: " in done.stdout
    print(next(line for line in done.stdout.splitlines() if line.startswith("largest")))


def test_the_facts_that_decide_bits_are_told_apart(honest):
    start = open_proven(str(honest)).receipt.starts[0]
    other = replace(start, facts={**start.facts, "packages": {**start.facts["packages"], "torch": "1.0"}})
    assert verification.here_differs(start) == ()
    (text,) = verification.here_differs(other)
    assert text.startswith("packages.torch: 1.0 there, ")


COSTS = {
    "sage of width 64, 25,000 edges a step": (
        train_nodes,
        "--model sage --model.width 64 --model.num_layers 2 --sampler neighbor --sampler.fanouts 10 5 --sampler.batch_size 256",
    ),
    "geco of width 64": (train_nodes, "--model geco --model.width 64 --model.num_layers 3 --sampler.num_chunks 4"),
    "grit on molecules": (
        train_graphs,
        "--model grit --model.width 32 --model.num_layers 3 --data.molecules 400 --sampler.max_graphs 32",
    ),
}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", COSTS)
def test_receipts_cost_at_most_a_hundredth(tmp_path, name):
    """Trains the same steps with and without receipts, by turns, and compares the CPU time of this process. Also adds up the time inside the receipts."""
    job, words = COSTS[name]
    if job is train_nodes:
        output_of(ingest.main, "synthetic", tmp_path / "graph", "--synthetic.num-nodes", 20_000)
        words += f" --data {tmp_path / 'graph'} --evaluation sampled"
    fixed = f"--run.defaults recipe --fit.micro_batches 1 --fit.epochs 1 --workers.launcher process --run.dir {tmp_path / 'run'}"
    run_on_one_thread(job.main, [*words.split(), *fixed.split()], tmp_path)
    again = Retrained(open_proven(str(tmp_path / "run")))
    inside, seconds = 0.0, {True: [], False: []}
    counted = {name: getattr(StepReceipts, name) for name in ("gradients", "add", "flush")}

    def timed(call: Any) -> Any:
        def within(*values: Any) -> Any:
            nonlocal inside
            began = time.thread_time()
            try:
                return call(*values)
            finally:
                inside += time.thread_time() - began

        return within

    for number in range(10):
        is_kept = number % 2 == 0
        with pytest.MonkeyPatch.context() as patch:
            if is_kept:
                patch.setattr(Worker, "_ids", timed(Worker._ids))
                for each in ("gradients", "add"):
                    patch.setattr(StepReceipts, each, timed(counted[each]))
            else:
                patch.setattr(StepReceipts, "is_recorded", lambda *_: False)
                patch.setattr(StepReceipts, "gradients", lambda *_: None)
            again.measure(tmp_path / f"turn-{number}", seconds[is_kept])
    kept, plain = (sorted(seconds[each])[2] for each in (True, False))
    share = inside / sum(seconds[True])
    print(
        f"{name}: inside the receipts {share:.2%} of CPU time; with {kept:.3f} s, without {plain:.3f} s ({kept / plain - 1:+.2%})"
    )
    assert share < 0.01
