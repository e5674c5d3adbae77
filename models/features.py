"""From raw node or edge features to the model's width: a sum of embeddings of categories, or a linear map of numbers."""

import functools

import torch
from torch import Tensor, nn

from models.options.features import Features


class FeatureEncoder(nn.Module):
    """Σ_f Emb_f(column f), or a Linear; rows [n, F] → [n, width]. Raises ValueError on ids outside the vocabulary (CPU)."""

    def __init__(self, features: Features, width: int) -> None:
        super().__init__()
        self.features, self.width = features, width
        self.linear = nn.Linear(features.dim, width) if features.dim else None
        # One table for all columns, column f from row offset[f] on: one gather and one sum.
        self.embedding = nn.Embedding(sum(features.categories), width) if features.categories else None
        self.offset: Tensor
        offset = torch.tensor([0, *features.categories[:-1]] if features.categories else []).long().cumsum(0)
        self.register_buffer("offset", offset, persistent=False)

    def forward(self, rows_nF: Tensor | None) -> Tensor:
        if rows_nF is None:
            raise ValueError(f"the model expects features ({self.features}), the batch has none; set features to empty")
        if rows_nF.dim() == 1:
            rows_nF = rows_nF.unsqueeze(1)
        columns = len(self.features.categories) or self.features.dim
        if rows_nF.shape[1] != columns:
            raise ValueError(
                f"features must have {columns} columns, got {rows_nF.shape[1]}; set the features of the config"
            )
        if self.linear is not None:
            return self.linear(rows_nF.to(self.linear.weight.dtype))
        assert self.embedding is not None
        rows_nF = checked_categories(rows_nF, self.features)
        return nn.functional.embedding_bag(rows_nF + self.offset, self.embedding.weight, mode="sum")


def checked_categories(rows_nF: Tensor, features: Features) -> Tensor:
    """Returns the rows as int64. Raises ValueError on an id outside its column's vocabulary.

    On a GPU naming the id would mean waiting for the device, so the device itself checks: it ends the process with an assertion.
    """
    rows_nF = rows_nF.long()
    if not rows_nF.numel():
        return rows_nF
    outside_nF = (rows_nF < 0) | (rows_nF >= _sizes(features.categories, rows_nF.device))
    if rows_nF.device.type != "cpu":
        torch._assert_async(~outside_nF.any(), "a category lies outside its column's vocabulary")
    elif outside_nF.any():
        row, column = (int(k) for k in outside_nF.nonzero()[0])
        raise ValueError(
            f"feature column {column} must be in [0, {features.categories[column]}), "
            f"got {int(rows_nF[row, column])} in row {row}; enlarge its vocabulary in categories"
        )
    return rows_nF


@functools.lru_cache(maxsize=64)
def _sizes(categories: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(categories, device=device)
