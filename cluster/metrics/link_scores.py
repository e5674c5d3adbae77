"""Computes scores of links over all ranks, as OGB's `Evaluator` for links does: MRR, Hits@K, ROC-AUC.

A link is ranked against rivals, which are pairs that are no links. There are two cases: each link has separate rivals (stored, drawn, or all nodes), or all
links of a split have the same rivals.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from graphmill.cluster.metrics.class_scores import gather_rows, roc_auc

HITS = (1, 3, 10, 20, 50, 100)


class LinkScores:
    """The scores of one split. They are computed from rows (is a link, score, rivals with a higher score, rivals with the same score, first rival's score)."""

    def __init__(self, device: torch.device, own_rivals: bool) -> None:
        """`own_rivals`: each link has separate rivals; otherwise the rivals of all links are the split's pairs that are no links."""
        self._device, self._own_rivals = device, own_rivals
        self._rows: list[Tensor] = []

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Adds links and pairs that are no links: predictions float64 [m, 4] from `LinkModel`, and targets [m], 1 for a link and 0 for other pairs."""
        self._rows.append(torch.cat([target.double()[:, None], prediction.double()], dim=1))

    def add(self, other: Any) -> None:
        self._rows += other._rows

    def compute(self) -> dict[str, float]:
        """Returns {"count", "loss", "mrr", "hits_1" …, "auc"} over all ranks. The result is equal for any number of ranks. Without links it has only the count.
        A collective call.

        The rank of a link is 1 + rivals with a higher score + half the rivals with the same score. With separate rivals, Hits@K is the share of links with a
        rank of at most K, and ROC-AUC compares the links with the first rival of each link. With common rivals, Hits@K is the share of links with a higher
        score than the K-th best rival, and ROC-AUC compares the links with all rivals.
        """
        empty = torch.empty((0, 5), dtype=torch.float64, device=self._device)
        rows = gather_rows(torch.cat([empty, *self._rows])).cpu()
        rows = rows[_order(rows)]  # makes the order of floating-point sums the same for any number of ranks
        links, pairs = rows[rows[:, 0] == 1], rows[rows[:, 0] == 0]
        if not len(links):
            return {"count": 0.0}
        score, higher, same, first = links[:, 1:].T.contiguous()
        rivals = first
        if not self._own_rivals:
            rivals = pairs[:, 1]
            in_order = rivals.sort().values
            above = len(rivals) - torch.searchsorted(in_order, score, right=True)
            higher, same = above.double(), (len(rivals) - torch.searchsorted(in_order, score) - above).double()
        rank = 1 + higher + same / 2
        # As in OGB: with fewer than K rivals every link is a hit. A tie with the K-th best rival is no hit.
        hit = {K: rank <= K if self._own_rivals else (higher + same < K) | torch.tensor(len(rivals) < K) for K in HITS}
        both, truth = torch.cat([score, rivals]), torch.cat([torch.ones_like(score), torch.zeros_like(rivals)])
        return {
            "count": float(len(links)),
            "loss": float(functional.binary_cross_entropy_with_logits(both, truth)),
            "mrr": float((1 / rank).mean()),
            **{f"hits_{K}": float(is_hit.double().mean()) for K, is_hit in hit.items()},
            **({"auc": roc_auc(both, truth > 0)} if len(rivals) else {}),
        }


def _order(rows: Tensor) -> Tensor:
    """int64: the indices that sort the rows, by the first column, then by the second, and so on."""
    order = torch.arange(len(rows))
    for column in range(rows.shape[1] - 1, -1, -1):
        order = order[rows[order, column].argsort(stable=True)]
    return order
