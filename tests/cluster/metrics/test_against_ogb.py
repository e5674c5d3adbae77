"""For random predictions, our scores equal those of OGB's evaluators and scikit-learn. Predictions come in one batch or several.
Some are tied, some targets are unknown, and some tasks have only one kind of answer."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from graphmill.cluster.metrics.class_scores import SplitScores
from graphmill.cluster.metrics.graph_scores import BinaryScores, RegressionScores
from graphmill.storage.molecules.ogb_import import import_ogb

pytest.importorskip("ogb")
sklearn = pytest.importorskip("sklearn.metrics")
CPU = torch.device("cpu")
SEEDS = st.integers(0, 2**32 - 1).map(np.random.default_rng)
COUNTS = st.integers(1, 60)


def _evaluator(kind, name, num_tasks):
    evaluator = import_ogb(f"ogb.{kind}").Evaluator(name)
    evaluator.num_tasks = num_tasks
    return evaluator


def _in_parts(make, prediction, target):
    """Scores of these rows. The rows come in three batches, at two positions of a step."""
    first, second = make(), make()
    third = len(prediction) // 3
    for scores, rows in ((first, slice(0, third)), (second, slice(third, 2 * third)), (second, slice(2 * third, None))):
        scores.update(torch.tensor(prediction[rows]), torch.tensor(target[rows]))
    first.add(second)
    return first.compute()


@given(SEEDS, COUNTS, st.integers(1, 4), st.sampled_from([0.0, 0.3]), st.booleans())
def test_answers(random, count, num_tasks, unknown, ties):
    """ROC-AUC and average precision are means over the tasks that have both positive and negative answers."""
    logit = random.normal(size=(count, num_tasks))
    logit = np.round(logit) if ties else logit
    target = random.integers(0, 2, (count, num_tasks)).astype(np.float64)
    target[random.random(target.shape) < unknown] = np.nan
    known = ~np.isnan(target)
    assume(known.any())
    ours = _in_parts(lambda: BinaryScores(CPU, num_tasks), logit, target)
    if any({0.0, 1.0} <= set(column) for column in target.T.tolist()):
        for kind, name, metric in (
            ("graphproppred", "ogbg-moltox21", "rocauc"),
            ("graphproppred", "ogbg-molpcba", "ap"),
            ("nodeproppred", "ogbn-proteins", "rocauc"),
        ):
            theirs = _evaluator(kind, name, num_tasks).eval({"y_true": target, "y_pred": logit})
            assert ours[metric] == pytest.approx(theirs[metric], rel=1e-12), name
    else:
        assert not {"rocauc", "ap"} & ours.keys()
    assert ours["accuracy"] == pytest.approx(sklearn.accuracy_score(target[known], logit[known] > 0), rel=1e-12)
    assert ours["count"] == known.sum()


@given(SEEDS, COUNTS, st.integers(2, 5), st.booleans())
def test_classes(random, count, num_classes, ties):
    logits = random.normal(size=(count, num_classes)).astype(np.float32)
    logits = np.round(logits) if ties else logits
    label = random.integers(0, num_classes, count)
    ours = _in_parts(lambda: SplitScores(CPU, binary=num_classes == 2, num_classes=num_classes), logits, label)
    said = logits.argmax(axis=1)
    for kind, name in (
        ("nodeproppred", "ogbn-arxiv"),
        ("nodeproppred", "ogbn-products"),
        ("graphproppred", "ogbg-ppa"),
    ):
        theirs = _evaluator(kind, name, 1).eval({"y_true": label[:, None], "y_pred": said[:, None]})
        assert ours["accuracy"] == pytest.approx(theirs["acc"], rel=1e-12), name
    if num_classes == 2 and 0 < label.sum() < count:
        score = logits[:, 1].astype(np.float64) - logits[:, 0]
        theirs = _evaluator("graphproppred", "ogbg-molhiv", 1).eval(
            {"y_true": label[:, None], "y_pred": score[:, None]}
        )
        assert ours["rocauc"] == pytest.approx(theirs["rocauc"], abs=1e-12)


@given(SEEDS, COUNTS, st.floats(-1e3, 1e3), st.floats(1e-3, 1e3), st.sampled_from([0.0, 0.3]))
def test_numbers(random, count, mean, scale, unknown):
    """Predictions are standardised, but MAE and RMSE are in the unit of the target."""
    prediction, target = random.normal(size=(count, 1)), mean + scale * random.normal(size=(count, 1))
    target[random.random(target.shape) < unknown] = np.nan
    known = ~np.isnan(target)
    assume(known.any())
    ours = _in_parts(lambda: RegressionScores(CPU, [mean], [scale]), prediction, target)
    said = mean + scale * prediction
    theirs = import_ogb("ogb.lsc.pcqm4mv2").PCQM4Mv2Evaluator().eval({"y_true": target[known], "y_pred": said[known]})
    assert ours["mae"] == pytest.approx(theirs["mae"], rel=1e-9)
    theirs = _evaluator("graphproppred", "ogbg-mollipo", 1).eval({"y_true": target, "y_pred": said})
    assert ours["rmse"] == pytest.approx(theirs["rmse"], rel=1e-9)
    assert ours["count"] == known.sum()
    assert not math.isnan(ours["loss"])
