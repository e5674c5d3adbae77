"""Compares scores of links with OGB's evaluator and scikit-learn, and losses with their formulas."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from graphmill.cluster.metrics.link_scores import LinkScores
from graphmill.cluster.tasks import LinkPrediction
from graphmill.core.errors import ConfigError

CPU = torch.device("cpu")


def ogb_evaluator(metric: str, K: int = 0):
    linkproppred = pytest.importorskip("ogb.linkproppred")
    evaluator = linkproppred.Evaluator(name="ogbl-citation2")
    evaluator.eval_metric = "mrr" if metric == "mrr" else f"hits@{K}"
    evaluator.K = K
    return evaluator


def rows(score: Tensor, rivals: Tensor) -> Tensor:
    """What a model returns for links with these scores. `rivals`: scores of the nodes against which each link's destination is ranked."""
    higher, same = ((found).sum(1).double() for found in (rivals > score[:, None], rivals == score[:, None]))
    first = rivals[:, 0] if rivals.shape[1] else torch.zeros_like(score)
    return torch.stack([score, higher, same, first], dim=1)


def coarse(*shape: int, seed: int) -> Tensor:
    """Random numbers, many of which are equal."""
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 12, shape) / 4.0)


def in_pieces(scores: list[LinkScores], prediction: Tensor, target: Tensor) -> dict[str, float]:
    for part, one in enumerate(scores):
        own = torch.arange(len(target)) % len(scores) == part
        one.update(prediction[own], target[own])
    for other in scores[1:]:
        scores[0].add(other)
    return scores[0].compute()


def test_rivals_of_their_own_as_ogb_ranks_them() -> None:
    score, rivals = coarse(60, seed=1), coarse(60, 25, seed=2)
    found = [
        in_pieces([LinkScores(CPU, True) for _ in range(parts)], rows(score, rivals), torch.ones(60))
        for parts in (1, 4)
    ]
    assert found[0] == found[1]  # equal to the last bit
    theirs = ogb_evaluator("mrr").eval({"y_pred_pos": score, "y_pred_neg": rivals})
    assert found[0]["mrr"] == pytest.approx(float(theirs["mrr_list"].mean()), rel=1e-6)
    for K in (1, 3, 10):
        assert found[0][f"hits_{K}"] == pytest.approx(float(theirs[f"hits@{K}_list"].mean()))
    truth = np.repeat([1, 0], 60)
    assert found[0]["auc"] == pytest.approx(roc_auc_score(truth, torch.cat([score, rivals[:, 0]]).numpy()))
    assert found[0]["count"] == 60


@pytest.mark.parametrize("num_rivals", [15, 80])
def test_rivals_of_the_split_as_ogb_counts_hits(num_rivals) -> None:
    score, rivals = coarse(40, seed=3), coarse(num_rivals, seed=4)
    prediction = rows(torch.cat([score, rivals]), torch.empty(40 + num_rivals, 0, dtype=torch.float64))
    target = torch.cat([torch.ones(40), torch.zeros(num_rivals)])
    found = [in_pieces([LinkScores(CPU, False) for _ in range(parts)], prediction, target) for parts in (1, 3)]
    assert found[0] == found[1]
    for K in (1, 3, 10, 20, 50, 100):
        theirs = ogb_evaluator("hits", K).eval({"y_pred_pos": score, "y_pred_neg": rivals})
        assert found[0][f"hits_{K}"] == pytest.approx(theirs[f"hits@{K}"])
    ranks = [1 + sum(r > s for r in rivals.tolist()) + sum(r == s for r in rivals.tolist()) / 2 for s in score.tolist()]
    assert found[0]["mrr"] == pytest.approx(np.mean(1 / np.array(ranks)))
    assert found[0]["auc"] == pytest.approx(roc_auc_score(target.numpy(), prediction[:, 0].numpy()))
    assert found[0]["count"] == 40


def test_no_links_no_scores() -> None:
    assert LinkScores(CPU, True).compute() == {"count": 0.0}


def test_losses_are_their_formulas() -> None:
    logit = torch.randn(7, 5, generator=torch.Generator().manual_seed(1)).double()
    target, total = torch.ones(7), {"bce": 0.0, "margin": 0.0, "softmax": 0.0}
    for row in logit:
        own, others = row[0], row[1:]
        total["bce"] -= float(own.sigmoid().log() + (1 - others.sigmoid()).log().sum()) / 5
        total["margin"] += float(sum(max(0.0, 0.7 - float(own) + float(one)) for one in others)) / 4
        total["softmax"] -= float((own.exp() / row.exp().sum()).log())
    for kind, expected in total.items():
        task = LinkPrediction(kind=kind, margin=0.7)
        assert float(task.loss(logit, target)) == pytest.approx(expected, rel=1e-5)
        assert float(task.weight(target)) == 7
    with pytest.raises(ConfigError, match="hits_20"):
        LinkPrediction(metric="hits_7")
