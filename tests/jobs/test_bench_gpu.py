"""Tests the GPU benchmark on a CPU and on a pretended GPU: its checks pass, and they detect a wrong model. Without a GPU the command prints one line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from graphmill.jobs.bench import gpu as bench_gpu
from graphmill.jobs.bench.gpu import GpuConfig, bench
from graphmill.models.primitives.dropout import Dropout
from tests.pretend_cuda import pretend_cuda

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.long
def test_a_small_run_on_a_cpu_writes_its_table(tmp_path):
    config = GpuConfig(rows=("checks", "waits"), device="cpu", wait_nodes=400, wait_steps=1, threads=1, out=tmp_path)
    said: list[str] = []
    results = bench(config, said.append)
    assert [result.what for result in results if result.missed] == []
    assert len(json.loads((tmp_path / "results.json").read_text())["results"]) == len(results) == 2 * 7 + 1 + 2
    assert "| GRIT, float32 | at most 0.001 and 0.001 |" in (tmp_path / "results.md").read_text()
    assert "| PPGT, the paper's arxiv model, Node2Subgraph batches of 8 roots | waits at most 5% |" in said[-1]


@pytest.mark.long
def test_the_checks_pass_on_a_pretended_gpu():
    with pretend_cuda():
        assert [result for result in bench_gpu.check_models("cuda") if result.missed] == []


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
