"""Compares the losses and scores of every task with simple references. Unknown targets do not count."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from graphmill.cluster.metrics.graph_scores import RegressionScores
from graphmill.cluster.tasks import (
    BinaryClassification,
    Classification,
    PairClassification,
    Regression,
    StepOutput,
    step_output,
)
from graphmill.cluster.training.train_loop import step_loss
from graphmill.core.errors import ConfigError, DataError

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
    assert found == pytest.approx({"count": 2, "mae": 2.0, "rmse": math.sqrt(5.0), "r2": 1 - 10 / 2, "loss": 1.0})


def test_several_targets_are_scored_one_by_one_and_have_the_same_say():
    def scores(*errors, names=("small", "big", "none")):
        task = Regression(mean=(0.0,) * 3, scale=(1.0,) * 3, names=names, deviation=(2.0, 1e6, 1.0))
        parts = [task.scores(CPU) for _ in errors]
        for part, error in zip(parts, errors, strict=True):
            part.update(torch.tensor([error]).float(), torch.tensor([[0.0, 0.0 if error[1] else NAN, NAN]]))
        for other in parts[1:]:
            parts[0].add(other)
        return parts[0].compute()

    found = scores([1.0, 3e5, 9.0], [-3.0, 0.0, 9.0])
    own = {"mae_small": 2.0, "mae_big": 3e5, "rmse_small": math.sqrt(5), "rmse_big": 3e5}
    own |= {"r2_small": 0.0, "r2_big": 0.0}  # R² is 0 if all targets are equal
    means = {"mae": (2 / 2 + 0.3) / 2, "rmse": (math.sqrt(5) / 2 + 0.3) / 2, "r2": 0.0}
    assert found == pytest.approx({"count": 3, **means, **own, "loss": (4 + 3e5) / 3})
    # A model that is good on the small target scores better than a model that is only slightly better on the big target.
    assert scores([0.2, 4.1e5, 0.0])["mae"] < scores([2.0, 4.0e5, 0.0])["mae"]
    with pytest.raises(ConfigError, match="expected a positive deviation of each"):
        Regression(names=("a", "b"), deviation=(1.0,))


def test_one_target_has_the_bits_that_it_had():
    torch.manual_seed(0)
    prediction, target = torch.randn(999, 1), torch.randn(999) * 3
    scores = RegressionScores(CPU, (0.3,), (1.7,))
    scores.update(prediction, target)
    error = prediction.double() * 1.7 + 0.3 - target.double()[:, None]
    absolute, squared, standard = (float(x.sum()) for x in (error.abs(), error.square(), (error / 1.7).abs()))
    expected = {"count": 999.0, "mae": absolute / 999, "rmse": (squared / 999) ** 0.5, "loss": standard / 999}
    found = scores.compute()
    assert found.pop("r2") == pytest.approx(1 - squared / float(((target - target.mean()).double() ** 2).sum()))
    assert list(found.items()) == list(expected.items())


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


@pytest.mark.parametrize("missing", [False, True])
def test_scores_by_class_are_scikit_learns(missing):
    metrics = pytest.importorskip("sklearn.metrics")
    torch.manual_seed(0)
    logits, label = torch.randn(200, 4), torch.randint(0, 3 if missing else 4, (200,))
    logits[:, 3] -= 9.0 * missing
    said = logits.argmax(dim=1)
    for metric in ("weighted_accuracy", "macro_f1"):
        parts = [Classification(4, metric).scores(CPU) for _ in range(3)]
        for i, part in enumerate(parts):
            part.update(logits[i::3], label[i::3])
        parts[2].update(torch.randn(2, 4), torch.tensor([-1, -1]))
        parts[0].add(parts[1])
        parts[0].add(parts[2])
        found = parts[0].compute()
        assert found["macro_f1"] == pytest.approx(metrics.f1_score(label, said, average="macro"), abs=1e-12)
        recall = metrics.recall_score(label, said, average=None, labels=range(4), zero_division=0)
        assert found["weighted_accuracy"] == pytest.approx(float(recall.mean()), abs=1e-12)
    assert "macro_f1" not in Classification(4).scores(CPU).compute()


@pytest.mark.parametrize("unknown", [False, True])
def test_f1_of_several_labels_is_scikit_learns(unknown):
    metrics = pytest.importorskip("sklearn.metrics")
    torch.manual_seed(0)
    logits, target = torch.randn(50, 6), (torch.rand(50, 6) < 0.3).float()
    logits[:, 4] -= 9.0  # labels 4 and 5 are never predicted; label 5 never occurs
    logits[:, 5] -= 9.0
    target[:, 5] = 0.0
    for metric in ("micro_f1", "macro_f1"):
        task = BinaryClassification(6, metric)
        parts = [task.scores(CPU) for _ in range(3)]
        for i, part in enumerate(parts):
            part.update(logits[i::3], target[i::3])
        if unknown:
            parts[2].update(torch.randn(4, 6), torch.full((4, 6), torch.nan))
        parts[0].add(parts[1])
        parts[0].add(parts[2])
        found = parts[0].compute()
        for average in ("micro", "macro"):
            theirs = metrics.f1_score(target, logits > 0, average=average, zero_division=0)
            assert found[f"{average}_f1"] == pytest.approx(theirs, abs=1e-12)
        assert found["count"] == 300
        assert found["accuracy"] == pytest.approx(float(((logits > 0) == (target > 0)).double().mean()))
        assert found["loss"] == pytest.approx(float(task.loss(logits, target)) / 300, rel=1e-6)
    assert BinaryClassification(6, "micro_f1").scores(CPU).compute() == {"count": 0.0}


def test_one_of_several_answers_that_is_not_known_does_not_count():
    scores = BinaryClassification(2, "micro_f1").scores(CPU)
    scores.update(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), torch.tensor([[1.0, torch.nan], [0.0, 1.0]]))
    assert scores.compute()["micro_f1"] == 2 * 1 / (2 + 2)


def test_weights_by_batch_are_those_of_the_benchmarking_code():
    torch.manual_seed(0)
    logits, label = torch.randn(9, 4), torch.tensor([0, 0, 0, 0, 1, 1, 3, 3, 3])
    count = torch.bincount(label, minlength=4)
    weight = (len(label) - count).float() / len(label) * (count > 0)
    expected = functional.nll_loss(functional.log_softmax(logits, dim=1), label, weight=weight)
    task = Classification(4, batch_weights=True)
    assert float(mean_loss(task, logits, label)) == pytest.approx(float(expected), rel=1e-6)
    unlabelled = torch.cat([label, torch.tensor([-1, -1])])
    more = torch.cat([logits, torch.randn(2, 4)])
    assert float(mean_loss(task, more, unlabelled)) == pytest.approx(float(expected), rel=1e-6)


def per_target(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (prediction - target).square()


@pytest.mark.parametrize(
    ("task", "target"),
    [
        (Classification(3), [0, 1, -1, 2]),
        (Classification(3, label_smoothing=0.1, class_weight=(0.5, 2.0, 1.0)), [0, 1, -1, 2]),
        (BinaryClassification(2, label_smoothing=0.1), [[1, NAN], [0, 1], [NAN, NAN], [1, 0]]),
        *((Regression((1.0,), (2.0,), kind), [1.0, 7.0, NAN, 0.5]) for kind in ("l1", "mse", "huber")),
        (Regression((1.0,), (2.0,), own_loss=f"{__name__}:per_target"), [1.0, 7.0, NAN, 0.5]),
    ],
)
def test_each_row_counts_by_its_weight(task, target, monkeypatch):
    monkeypatch.setattr("graphmill.cluster.tasks.load", lambda path: per_target)
    torch.manual_seed(0)
    target, weight = torch.tensor(target), torch.tensor([0.5, 3.0, 2.0, 0.25])
    prediction = torch.randn(4, task.out_dim)
    alone = [(task.loss(prediction[i : i + 1], target[i : i + 1]), task.weight(target[i : i + 1])) for i in range(4)]
    sums = [sum(float(w * value[part]) for w, value in zip(weight, alone, strict=True)) for part in range(2)]
    assert float(task.loss(prediction, target, weight)) == pytest.approx(sums[0], rel=1e-6)
    assert float(task.weight(target, weight)) == pytest.approx(sums[1], rel=1e-6)


def test_a_mean_of_a_users_own_counts_by_the_weight_of_its_rows(monkeypatch):
    monkeypatch.setattr("graphmill.cluster.tasks.load", lambda path: functional.mse_loss)
    task, weight = Regression(own_loss="mine:mean"), torch.tensor([3.0, 1.0, 9.0])
    loss = task.loss(torch.zeros(3, 1), torch.tensor([1.0, 2.0, NAN]), weight)
    assert float(loss / task.weight(torch.tensor([1.0, 2.0, NAN]), weight)) == 2.5


def test_one_logit_with_weights_of_the_batch_is_divided_by_the_number_of_targets():
    """GraphGPS's weighted_cross_entropy with one logit: binary_cross_entropy_with_logits(pred, true, weight=weight[true]), a mean over all targets."""
    task = Classification(2, one_logit=True, batch_weights=True)
    logit, target = torch.linspace(-2, 2, 10).double().unsqueeze(1), torch.tensor([0] * 8 + [1] * 2)
    weight = torch.tensor([0.2, 0.8]).double()[target]
    expected = functional.binary_cross_entropy_with_logits(logit[:, 0], target.double(), weight=weight)
    assert (task.loss(logit, target) / task.weight(target)).item() == pytest.approx(expected.item(), rel=1e-6)


def test_one_logit_is_that_of_the_second_class():
    torch.manual_seed(0)
    logit, label = torch.randn(20, 1), torch.randint(0, 2, (20,))
    task = Classification(2, one_logit=True)
    assert task.out_dim == 1
    expected = functional.binary_cross_entropy_with_logits(logit[:, 0], label.float())
    assert float(mean_loss(task, logit, label)) == pytest.approx(float(expected), rel=1e-6)
    one, two = task.scores(CPU), Classification(2).scores(CPU)
    one.update(logit, label)
    two.update(torch.cat([torch.zeros(20, 1), logit], dim=1), label)
    assert one.compute() == two.compute()
    with pytest.raises(ConfigError, match="one_logit: expected 2 classes, got 3"):
        Classification(3, one_logit=True)


def test_the_rank_of_a_pair_is_ogbs_and_counts_graph_by_graph():
    pytest.importorskip("ogb")
    from graphmill.storage.molecules.ogb_import import import_ogb

    evaluator = import_ogb("ogb.linkproppred").Evaluator(name="ogbl-citation2")
    random = np.random.default_rng(0)
    rows, means = [], []
    for graph in range(5):
        reciprocal = []
        for _ in range(graph):  # graph 0 has no true pair
            own, others = random.integers(0, 4, 1), random.integers(0, 4, 6)  # integers, so that scores tie
            scored = {"y_pred_pos": torch.tensor(own).float(), "y_pred_neg": torch.tensor(others).float()[None]}
            reciprocal.append(float(evaluator.eval(scored)["mrr_list"][0]))
            rows.append((0.3, (others > own).sum(), (others == own).sum(), 1, graph))
        rows += [(-0.2, 3, 0, 0, graph)] * 2
        means += [np.mean(reciprocal)] if reciprocal else []
    table = torch.tensor(np.array(rows, float))
    task = PairClassification()
    one, more = task.scores(CPU), task.scores(CPU)
    early = table[:, 4] < 3
    for part, chosen in ((one, early), (more, ~early)):
        part.update(table[chosen, :3], table[chosen, 3:].long())
    one.add(more)
    found = one.compute()
    assert found["mrr"] == pytest.approx(np.mean(means), abs=1e-6)
    loss = functional.binary_cross_entropy_with_logits(table[:, 0], table[:, 3])
    assert found["loss"] == pytest.approx(float(loss), rel=1e-9)
    assert float(mean_loss(task, table[:, :3], table[:, 3:].long())) == pytest.approx(float(loss), rel=1e-6)
    assert found["count"] == len(rows)
    assert task.scores(CPU).compute() == {"count": 0.0}
