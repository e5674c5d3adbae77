"""Makes the columns of predictions. The columns of a piece are made batch by batch. The columns of the parts, which users read, depend on the task."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from graphmill.cluster.tasks import (
    BinaryClassification,
    Classification,
    LinkPrediction,
    PairClassification,
    Regression,
    Task,
)
from graphmill.core.offsets import pointers
from graphmill.storage.format.arrow_files import array_from_numpy
from graphmill.storage.graph import SourceIds


def batch_table(index: int, ids: Tensor, prediction: Tensor, target: Tensor | None, states: Tensor | None) -> pa.Table:
    """Returns the rows of a batch: id, batch, position in the batch, prediction, target, embedding."""
    count = len(ids)
    columns = {
        "id": _array(ids),
        "batch": pa.array(np.full(count, index, np.int64)),
        "row": pa.array(np.arange(count)),
        "prediction": _array(two_axes(prediction if prediction.dtype == torch.float64 else prediction.float())),
    }
    if target is not None:
        columns["target"] = _array(target if target.dtype == torch.int64 else two_axes(target.float()))
    if states is not None:
        columns["embedding"] = _array(states.float())
    return pa.table(columns)


def two_axes(rows: Tensor) -> Tensor:
    """[n, width]: the rows with two axes, also for n = 0, because a chunk of a random partition may have nothing to predict."""
    return rows.flatten(1) if rows.dim() > 1 else rows.unsqueeze(1)


def _array(tensor: Tensor) -> pa.Array:
    return array_from_numpy(np.ascontiguousarray(tensor.detach().cpu().numpy()))


def rows_of_column(column: pa.ChunkedArray) -> np.ndarray:
    """Returns a column as an array: [n] for numbers, [n, width] for fixed-size lists."""
    kind = column.type
    if not pa.types.is_fixed_size_list(kind):
        return column.to_numpy()
    return column.combine_chunks().flatten().to_numpy(zero_copy_only=False).reshape(-1, kind.list_size)


def _lists(answer: np.ndarray, known: np.ndarray | None = None) -> pa.Array:
    """Converts answers [n, L] to lists of 1 and 0; unknown answers are null."""
    flat = pa.array((answer > 0).reshape(-1).astype(np.int8), mask=None if known is None else ~known.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, answer.shape[1])


def public_columns(table: pa.Table, task: Task, names: Sequence[str]) -> dict[str, Any]:
    """Returns the parts' columns of targets and predictions. Unknown targets are null."""
    predicted = rows_of_column(table["prediction"])
    true = rows_of_column(table["target"]) if "target" in table.column_names else None
    if isinstance(task, Classification):
        known = {} if true is None else {"target": pa.array(true, mask=true < 0)}
        classes = (predicted[:, 0] > 0).astype(np.int64) if predicted.shape[1] == 1 else predicted.argmax(axis=1)
        codes = known | {"prediction": pa.array(classes)}
        if task.class_names:
            named = {"target": "target_class", "prediction": "class"}
            codes |= {named[key]: pa.array(task.class_names).take(code) for key, code in codes.items()}
        return {**codes, "logits": table["prediction"]}
    if isinstance(task, PairClassification):
        known = {} if true is None else {"target": pa.array(true[:, 0])}
        return {
            **known,
            "logit": pa.array(predicted[:, 0]),
            "rank": pa.array(1 + predicted[:, 1] + predicted[:, 2] / 2),
        }
    if isinstance(task, LinkPrediction):
        return _best_links(predicted)
    if isinstance(task, BinaryClassification) and not names:  # labels of nodes have no names
        known = {} if true is None else {"target": _lists(true, ~np.isnan(true))}
        return {**known, "prediction": _lists(predicted > 0), "logits": table["prediction"]}
    names = [f"_{name}" if name else "" for name in names]
    columns: dict[str, Any] = {}
    if true is not None:
        columns |= {f"target{name}": pa.array(true[:, i], from_pandas=True) for i, name in enumerate(names)}
    if isinstance(task, Regression):  # converts predictions to the target's unit, like the scores
        predicted = predicted.astype(np.float64) * np.array(task.scale) + np.array(task.mean)
        return columns | {f"prediction{name}": pa.array(predicted[:, i].copy()) for i, name in enumerate(names)}
    return columns | {f"logit{name}": pa.array(predicted[:, i].copy()) for i, name in enumerate(names)}


def _best_links(predicted: np.ndarray) -> dict[str, Any]:
    """Converts `LinkModel`'s predictions [n, 2 · top_k] to lists of destinations and of their scores. Nodes with fewer candidates have shorter lists."""
    destination, score = np.hsplit(predicted, 2)
    is_link = destination >= 0
    ptr = pa.array(pointers(is_link.sum(axis=1)).astype(np.int32))
    of_all: dict[str, np.ndarray] = {"destination": destination.astype(np.int64), "score": score.astype(np.float32)}
    return {name: pa.ListArray.from_arrays(ptr, pa.array(values[is_link])) for name, values in of_all.items()}


def named_by(lists: pa.ListArray, source_ids: SourceIds) -> pa.ListArray:
    """Replaces nodes in lists by their string ids."""
    return pa.ListArray.from_arrays(lists.offsets, source_ids.of(lists.values.to_numpy()))
