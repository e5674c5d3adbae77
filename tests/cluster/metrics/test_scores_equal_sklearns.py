"""Scores of targets, answers and classes equal scikit-learn's scores, for any data, however the rows are split over positions."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphmill.cluster.tasks import BinaryClassification, Classification, Regression
from graphmill.core.errors import ConfigError

sklearn_metrics = pytest.importorskip("sklearn.metrics")
CPU = torch.device("cpu")
EXAMPLES = settings(max_examples=60, deadline=None)
seeds = st.integers(0, 2**32 - 1)
NAMES = ("small", "a name of 300 letters " + "x" * 300, "c d")


def scored(task, prediction, target, cuts):
    """Scores of these rows. The rows are cut at `cuts`; the pieces go to different positions of a step."""
    parts = []
    for rows in np.split(np.arange(len(target)), sorted(cuts)):
        parts.append(task.scores(CPU))
        parts[-1].update(torch.as_tensor(prediction[rows]), torch.as_tensor(target[rows]))
    for part in parts[1:]:
        parts[0].add(part)
    return parts[0].compute()


@EXAMPLES
@given(seeds, st.integers(1, 40), st.lists(st.integers(0, 40), max_size=3), st.floats(0, 0.9), st.integers(-3, 6))
def test_regression(seed, count, cuts, missing, power):
    random = np.random.default_rng(seed)
    unit = np.array([1.0, 10.0**power, 3.0])
    target = random.normal(size=(count, 3)) * unit + 5 * unit
    target[:, 2] = np.round(target[:, 2] / 8)  # often all values are equal
    mean, scale = (5 * unit).tolist(), unit.tolist()
    prediction = random.normal(size=(count, 3))
    said = prediction * unit + 5 * unit
    target[random.random(target.shape) < missing] = np.nan
    known = ~np.isnan(target)
    found = scored(Regression(tuple(mean), tuple(scale), names=NAMES, deviation=tuple(scale)), prediction, target, cuts)
    assert found["count"] == known.sum()
    wanted = {"mae": [], "rmse": [], "r2": []}
    for column, name in enumerate(NAMES):
        rows = known[:, column]
        if not rows.any():
            assert not {f"mae_{name}", f"r2_{name}"} & set(found)
            continue
        true, predicted = target[rows, column], said[rows, column]
        own = {
            "mae": sklearn_metrics.mean_absolute_error(true, predicted),
            "rmse": sklearn_metrics.mean_squared_error(true, predicted) ** 0.5,
            # For a single row scikit-learn returns NaN with a warning.
            "r2": sklearn_metrics.r2_score(true, predicted) if len(true) > 1 else 0.0,
        }
        for metric, value in own.items():
            assert found[f"{metric}_{name}"] == pytest.approx(value, rel=1e-8, abs=1e-9)
            wanted[metric].append(value / (1 if metric == "r2" else scale[column]))
    for metric, values in wanted.items() if known.any() else ():
        assert found[metric] == pytest.approx(np.mean(values), rel=1e-8, abs=1e-9)


@EXAMPLES
@given(seeds, st.integers(1, 60), st.lists(st.integers(0, 60), max_size=3), st.floats(0, 0.9))
def test_answers(seed, count, cuts, missing):
    random = np.random.default_rng(seed)
    logit = np.round(random.normal(size=(count, 3)), 1)  # rounded, so that some are equal
    target = random.integers(0, 2, (count, 3)).astype(np.float64)
    target[random.random(target.shape) < missing] = np.nan
    areas = scored(BinaryClassification(3, names=NAMES), logit, target, cuts)
    counts = scored(BinaryClassification(3, "macro_f1", names=NAMES), logit, target, cuts)
    for column, name in enumerate(NAMES):
        rows = ~np.isnan(target[:, column])
        true, score = target[rows, column], logit[rows, column]
        if len(np.unique(true)) == 2:
            assert areas[f"rocauc_{name}"] == pytest.approx(sklearn_metrics.roc_auc_score(true, score), abs=1e-9)
            expected = sklearn_metrics.average_precision_score(true, score)
            assert areas[f"ap_{name}"] == pytest.approx(expected, abs=1e-9)
        else:
            assert not {f"rocauc_{name}", f"ap_{name}"} & set(areas)
        if np.isfinite(target).any():
            expected = sklearn_metrics.f1_score(true, score > 0, zero_division=0) if len(true) else 0.0
            assert counts[f"f1_{name}"] == pytest.approx(expected, abs=1e-9)


@EXAMPLES
@given(seeds, st.integers(1, 60), st.lists(st.integers(0, 60), max_size=3), st.integers(2, 6), st.floats(0, 0.9))
def test_classes(seed, count, cuts, num_classes, missing):
    random = np.random.default_rng(seed)
    label = random.integers(0, num_classes, count)
    label[random.random(count) < missing] = -1
    logits = random.normal(size=(count, num_classes))
    names = tuple(f"class {'abcdef'[number]}" for number in range(num_classes))
    found = scored(Classification(num_classes, class_names=names), logits, label, cuts)
    true, said = label[label >= 0], logits.astype(np.float32).argmax(axis=1)[label >= 0]
    if not len(true):
        assert "by_class" not in found
        return
    every = list(range(num_classes))
    np.testing.assert_array_equal(found["confusion"], sklearn_metrics.confusion_matrix(true, said, labels=every))
    expected = sklearn_metrics.precision_recall_fscore_support(true, said, labels=every, zero_division=0)
    by_class = [list(found["by_class"][name].values()) for name in names]
    np.testing.assert_allclose(by_class, np.array(expected).T, atol=1e-12)
    assert found["macro_f1"] == pytest.approx(sklearn_metrics.f1_score(true, said, average="macro"))


def test_many_classes_are_not_scored_one_by_one():
    label, logits = np.arange(60), np.eye(60)
    assert "by_class" not in scored(Classification(60), logits, label, ())
    found = scored(Classification(60, "macro_f1"), logits, label, ())
    assert (found["macro_f1"], "by_class" in found) == (1.0, False)
    with pytest.raises(ConfigError, match="got 'macro_f1' with 5000"):
        Classification(5000, "macro_f1")
    with pytest.raises(ConfigError, match="class_names: expected 3 of them, got 2"):
        Classification(3, class_names=("a", "b"))


def test_equal_targets_with_a_large_offset_have_no_r2_of_rounding_errors():
    target = np.full((9, 1), 1e9 + 0.1)
    exact = scored(Regression((1e9 + 0.1,), (1.0,)), np.zeros((9, 1)), target, (4,))
    assert exact["r2"] == 1.0
    assert scored(Regression((0.0,), (1.0,)), np.zeros((9, 1)), target, (4,))["r2"] == 0.0
