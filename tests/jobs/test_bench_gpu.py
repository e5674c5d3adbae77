"""Tests the GPU benchmark on a CPU and on a pretended GPU: its checks pass, and they detect a wrong model. Without a GPU the command prints one line."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from graphmill.core.errors import ConfigError
from graphmill.jobs.bench import gpu as bench_gpu
from graphmill.jobs.bench.gpu import GpuConfig, Result, Step, bench
from graphmill.models.primitives.dropout import Dropout
from tests.pretend_cuda import pretend_cuda

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.long
def test_a_small_run_on_a_cpu_writes_its_table(tmp_path):
    config = GpuConfig(rows=("checks", "waits"), device="cpu", wait_nodes=400, wait_steps=1, threads=1, out=tmp_path)
    said: list[str] = []
    results = bench(config, said.append)
    assert [result.what for result in results if result.missed] == []
    written = json.loads((tmp_path / "results.json").read_text())["steps"]
    assert {name: len(rows) for name, rows in written.items()} == {"checks": 2 * 7 + 1, "waits": 2}
    assert len(results) == 2 * 7 + 1 + 2
    assert "| GRIT, float32 | at most 0.001 and 0.001 |" in (tmp_path / "results.md").read_text()
    assert "| PPGT, the paper's arxiv model, Node2Subgraph batches of 8 roots | waits at most 5% |" in said[-1]


@pytest.mark.long
def test_the_checks_pass_on_a_pretended_gpu():
    with pretend_cuda():
        assert [result for result in bench_gpu.check_models("cuda") if result.missed] == []


@pytest.mark.long
def test_the_measuring_steps_run_small_on_a_cpu(tmp_path):
    config = GpuConfig(rows=("speed", "training"), device="cpu", log2_to=7, nodes=200, budget_s=1.0, out=tmp_path)
    for step in bench_gpu.steps(config, lambda _: None):
        if step.name == "tokengt, training" or "compiled" in step.name:  # a step of 12 x 768 takes a minute here
            continue
        rows = step.run()
        assert rows
        assert all(row.measured for row in rows), step.name
        assert not any("skipped" in row.measured for row in rows), rows


def test_steps_that_fit_run_in_order_and_a_second_call_runs_the_next(tmp_path, monkeypatch):
    now, ran = [0.0], []

    def step(name, predicted_s, takes_s):
        def run():
            ran.append(name)
            now[0] += takes_s
            return [Result(name, "", f"{takes_s} s")]

        return Step(name, "checks", predicted_s, run)

    every = [step("first", 30, 40), step("long", 50, 50), step("short", 15, 10), step("last", 15, 10)]
    monkeypatch.setattr(bench_gpu, "steps", lambda config, say: every)
    config, said = GpuConfig(device="cpu", minutes=1.0, out=tmp_path), list[str]()
    bench(config, said.append, lambda: now[0])
    assert ran == ["first", "short"]  # 40 + 50 and 50 + 15 seconds do not fit
    assert said[0] == "first: 30 s predicted …"
    assert said[-1] == "left for the next call with the same options: long; last"
    assert [result.what for result in bench(config, said.append, lambda: now[0])] == ["first", "short", "long"]
    assert ran[2:] == ["long"]
    longer = replace(config, minutes=2.0)
    assert len(bench(longer, said.append, lambda: now[0])) == 4
    said.clear()
    assert len(bench(longer, said.append, lambda: now[0])) == 4
    assert said[0] == "no step was run: --out has the results of all"
    assert "| last |  | 10 s |  |" in said[1]  # the table of the earlier calls
    assert ran == ["first", "short", "long", "last"]
    with pytest.raises(ConfigError, match="same options"):
        bench(replace(longer, nodes=7), said.append)
    written = json.loads((tmp_path / "results.json").read_text())
    for of_steps in (None, {"first": [{"what": "first"}]}):
        (tmp_path / "results.json").write_text(json.dumps({**written, "steps": of_steps}))
        with pytest.raises(ConfigError, match="another version of this measurement"):
            bench(longer, said.append)


def test_a_wrong_model_and_a_wrong_mask_are_seen(monkeypatch):
    torch.manual_seed(0)
    model, device, forward = bench_gpu.node_model("cpu")

    def wrong(of, device):
        out = forward(of, device)
        return out if out.dtype == torch.float64 else out * 1.01

    assert [result.missed for result in bench_gpu.compare("GECO", model, device, wrong)] == [True, False]
    monkeypatch.setattr(Dropout, "forward", lambda self, x: x * torch.rand(()))
    torch.manual_seed(1)
    seed = iter((1, 2))
    monkeypatch.setattr(torch, "manual_seed", lambda _: torch.default_generator.manual_seed(next(seed)))
    assert bench_gpu.check_masks("cpu").missed


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_it_says_so_in_one_line_and_needs_no_ray(tmp_path):
    probe = "import sys; sys.modules['ray'] = None; from graphmill.jobs.bench import gpu as b; from graphmill.jobs.cli.exit_codes import run; run(b.main)"
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=REPOSITORY, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "error: device: cuda is not there, PyTorch sees 0; set --device cpu\n"
