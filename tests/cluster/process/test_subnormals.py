"""While a model trains, every thread treats subnormal numbers as zero. Afterwards subnormal numbers keep their values again."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from tests.cluster.training.test_one_process import train_here
from tests.cluster.training.test_train_loop import Pooled, spec

# Runs in a separate process, because PyTorch starts its threads only once per process.
PROGRAM = """
import torch
from graphmill.cluster.process.subnormals import flushed_subnormals
torch.set_num_threads(2)
with flushed_subnormals():
    with flushed_subnormals():
        pass
    assert not (torch.full((1 << 20,), 1e-39) * 1).any(), "kept in one of the threads"
assert torch.full((1,), 1e-39) * 1, "not restored"
"""


class Watched(Pooled):
    """Computes with a subnormal number and records the result, while the model trains and while it is scored."""

    left: set[tuple[bool, float]]

    def forward(self, batch: Any) -> Any:
        type(self).left.add((self.training, float(torch.tensor(1e-39) * 1)))
        return super().forward(batch)


def test_every_thread_flushes_and_the_caller_has_its_own_mode_back():
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr


def test_a_model_trains_and_is_scored_without_subnormals(tmp_path: Path):
    kind = type("WatchedHere", (Watched,), {"left": set()})
    train_here(spec(5, kind), tmp_path)
    assert kind.left == {(True, 0.0), (False, 0.0)}
    assert torch.tensor(1e-39) * 1
