"""Losses and scores of every task against plain references, with what is unknown left out."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from cluster.graph_scores import BinaryScores, RegressionScores, average_precision
from cluster.tasks import BinaryClassification, Classification, Regression, StepOutput, step_output
from cluster.train_loop import step_loss
from storage.errors import ConfigError, DataError

CPU = torch.device("cpu")
NAN = float("nan")


def mean_loss(task, prediction, target):
    return task.loss(prediction, target).double() / task.weight(target)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("class_weight", [None, (0.5, 2.0, 1.0)])
def test_classification_is_torchs_mean_over_labelled_roots(smoothing, class_weight):
    torch.manual_seed(0)
    logits, label = torch.randn(6, 3), torch.tensor([0, 1, 2, -1, 1, 1])
    task = Classification(3, label_smoothing=smoothing, class_weight=class_weight)
    expected = functional.cross_entropy(
        logits,
        label,
        torch.tensor(class_weight) if class_weight else None,
        ignore_index=-1,
        label_smoothing=smoothing,
    )
    assert float(mean_loss(task, logits, label)) == pytest.approx(float(expected), rel=1e-6)
    assert task.weight(torch.tensor([-1, -1])) == 0


def test_unknown_answers_have_no_loss_and_no_gradient():
    torch.manual_seed(0)
    logits = torch.randn(4, 2, requires_grad=True)
    target = torch.tensor([[1.0, NAN], [0.0, 1.0], [NAN, NAN], [1.0, 0.0]])
    task = BinaryClassification(2)
    loss = mean_loss(task, logits, target)
    known = ~target.isnan()
    assert float(loss) == pytest.approx(
        float(functional.binary_cross_entropy_with_logits(logits[known], target[known])), rel=1e-6
    )
    loss.backward()
    assert torch.isfinite(logits.grad).all()
    assert (logits.grad[~known] == 0).all()
    assert (logits.grad[known] != 0).all()


@pytest.mark.parametrize(
    ("kind", "reference"),
    [("l1", functional.l1_loss), ("mse", functional.mse_loss), ("huber", functional.huber_loss)],
)
def test_regression_standardises_by_the_training_split(kind, reference):
    torch.manual_seed(0)
    target = torch.tensor([5.0, 7.0, NAN, 1.0])
    prediction = torch.randn(4, 1, requires_grad=True)
    task = Regression(mean=(4.0,), scale=(2.0,), kind=kind)
    loss = mean_loss(task, prediction, target)
    known = ~target.isnan()
    expected = reference(prediction[known, 0], (target[known] - 4) / 2)
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)
    loss.backward()
    assert torch.isfinite(prediction.grad).all()


def test_regression_scores_are_in_the_targets_own_unit():
    scores = RegressionScores(CPU, (10.0,), (2.0,))
    scores.update(torch.tensor([[0.0], [1.0]]), torch.tensor([11.0, 9.0]))
    scores.update(torch.tensor([[5.0]]), torch.tensor([NAN]))
    found = scores.compute()
    assert found == pytest.approx({"count": 2, "mae": 2.0, "rmse": math.sqrt(5.0), "loss": 1.0})


def test_average_precision_with_ties():
    # By hand: thresholds 3, 2 (a tie of one positive and one negative), 1.
    score, positive = torch.tensor([3.0, 2.0, 2.0, 1.0]), torch.tensor([True, True, False, True])
    assert average_precision(score, positive) == pytest.approx(1 / 3 * 1 + 1 / 3 * 2 / 3 + 1 / 3 * 3 / 4)
    assert math.isnan(average_precision(score, torch.zeros(4, dtype=torch.bool)))


def test_binary_scores_equal_ogbs_evaluator():
    ogb = pytest.importorskip("ogb.graphproppred")
    rng = np.random.default_rng(0)
    logits, target = rng.normal(size=(200, 3)), rng.integers(0, 2, (200, 3)).astype(float)
    target[rng.random((200, 3)) < 0.2] = np.nan
    target[:, 2] = np.where(np.isnan(target[:, 2]), np.nan, 1.0)  # a task with one answer only is left out
    scores = BinaryScores(CPU, 3)
    for rows in (slice(0, 90), slice(90, 200)):
        scores.update(torch.tensor(logits[rows]), torch.tensor(target[rows]))
    found = scores.compute()
    for name, data in (("rocauc", "ogbg-molhiv"), ("ap", "ogbg-molpcba")):
        evaluator = ogb.Evaluator(data)
        evaluator.num_tasks = 3
        expected = evaluator.eval({"y_true": target, "y_pred": logits})[name]
        assert found[name] == pytest.approx(expected, abs=1e-12)
    assert found["count"] == np.count_nonzero(~np.isnan(target))


def test_a_penalty_counts_as_often_as_the_targets():
    task = Classification(2)
    logits, label = torch.zeros(3, 2), torch.tensor([0, 1, -1])
    weight = task.weight(label)
    plain = step_loss(task, StepOutput(logits), label, weight)
    penalised = step_loss(task, StepOutput(logits, torch.tensor(0.25)), label, weight)
    assert float((penalised - plain) / weight) == pytest.approx(0.25)
    assert step_output(logits).penalty is None


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Classification(3, "rocauc"), r"--task\.metric"),
        (lambda: BinaryClassification(1, "accuracy"), r"--task\.metric"),
        (lambda: Regression(kind="l3"), r"--task\.loss"),
        (lambda: Regression(scale=(0.0,)), "positive scale"),
        (lambda: Regression(metric="accuracy"), r"--task\.metric"),
    ],
)
def test_what_cannot_work_is_one_line(build, message):
    with pytest.raises(ConfigError, match=message) as caught:
        build()
    assert "\n" not in str(caught.value)


def test_targets_of_another_width_are_refused():
    with pytest.raises(DataError, match="expected 1 per graph, got 3"):
        Regression().weight(torch.zeros(4, 3))
