"""Several ranks with different numbers of roots compute the same loss, gradient and scores as one process. The ranks are real gloo processes."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from graphmill.cluster.metrics.class_scores import SplitScores, all_reduce_sum, gather_rows
from graphmill.cluster.reduction.gradient_tree import GradientTree
from graphmill.cluster.reduction.position_tree import Seat
from graphmill.cluster.tasks import Classification, StepOutput
from graphmill.cluster.training.train_loop import step_loss
from tests.forked_ranks import run_ranks

COUNTS = (5, 1, 0)
TASK = Classification(2, label_smoothing=0.1)


def problem() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(4, 2).double()
    x, y = torch.randn(sum(COUNTS), 4, dtype=torch.float64), torch.tensor([0, 1, 1, 0, -1, 1])
    return model, x, y


def one_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=len(COUNTS))
    model, x, y = problem()
    start = sum(COUNTS[:rank])
    x, y = x[start : start + COUNTS[rank]], y[start : start + COUNTS[rank]]
    tree = GradientTree(model, Seat(rank, len(COUNTS), len(COUNTS)))
    weight, logits = TASK.weight(y), model(x)
    total = all_reduce_sum(weight.clone())
    tree.backward(step_loss(TASK, StepOutput(logits), y, weight) / total)
    tree.end()
    scores = SplitScores(torch.device("cpu"), binary=True)
    scores.update(logits.detach(), y)
    rows = gather_rows(x)
    torch.save({"grad": model.weight.grad, "scores": scores.compute(), "rows": rows}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_uneven_ranks_equal_one_process(tmp_path):
    run_ranks(one_rank, (str(tmp_path),), len(COUNTS))
    model, x, y = problem()
    (TASK.loss(model(x), y) / TASK.weight(y)).backward()
    reference = SplitScores(torch.device("cpu"), binary=True)
    reference.update(model(x).detach(), y)
    for rank in range(len(COUNTS)):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        # As in training, step_loss adds up in float32.
        torch.testing.assert_close(found["grad"], model.weight.grad, rtol=1e-6, atol=1e-7)
        assert found["scores"] == pytest.approx(reference.compute(), abs=1e-12)
        assert torch.equal(found["rows"], x)


def test_the_count_of_roots_is_exact_beyond_float32():
    scores = SplitScores(torch.device("cpu"), binary=False)
    scores._sums += torch.tensor([2**24, 2**24, 0, 0])
    scores.update(torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([0]))
    assert scores.compute()["count"] == 2**24 + 1
