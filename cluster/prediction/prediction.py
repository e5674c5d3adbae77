"""Predicts every node of a graph, or every graph of a set, with a finished run. Writes Parquet in order of ids; an interrupted call can be repeated.

A crew of predictors (cluster/prediction/predictor.py) predicts the missing pieces. The crew is this process, or Ray actors
(cluster/prediction/prediction_actors.py). Then scores are computed batch by batch, as the run's ranks did, so that they equal the run's scores. Finally the
crew joins the pieces to parts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import torch

from graphmill.cluster.prediction.prediction_columns import rows_of_column
from graphmill.cluster.prediction.predictor import Piece, PredictionSpec, Predictor, plan_passes
from graphmill.cluster.tasks import Scores
from graphmill.core.errors import FormatError
from graphmill.storage.predictions import PredictionFolder, part_name

Progress = Callable[[str, int, int], None]  # stage, units done, total units


class Pieces(Protocol):
    """Reads pieces by name, from a folder or from memory."""

    def read_piece(self, name: str, columns: Sequence[str]) -> pa.Table: ...


class Crew(Protocol):
    """The predictors of one prediction, in this process or in other processes."""

    def predict(self, pieces: Sequence[Piece], missing: Sequence[Piece], progress: Progress) -> None:
        """Predicts and writes the pieces in `missing`."""

    def join(self, parts: Sequence[int], pieces: Sequence[Piece], progress: Progress) -> None:
        """Writes the parts with these indices from the pieces."""


# Starts a crew for the length of a block. The array, int64 [num_parts], holds the first id of each part.
OpenCrew = Callable[[PredictionSpec, PredictionFolder, np.ndarray], AbstractContextManager[Crew]]


class CrewHere:
    """A crew of one predictor in this process."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    @classmethod
    @contextmanager
    def on(
        cls, device: str, spec: PredictionSpec, folder: PredictionFolder, bounds: np.ndarray
    ) -> "Iterator[CrewHere]":
        yield cls(Predictor(spec, folder, bounds, device))

    def predict(self, pieces: Sequence[Piece], missing: Sequence[Piece], progress: Progress) -> None:
        passes = plan_passes(missing, self._predictor.spec.splits)
        for done, together in enumerate(passes, 1):
            self._predictor.predict(*together)
            progress("predict", done, len(passes))

    def join(self, parts: Sequence[int], pieces: Sequence[Piece], progress: Progress) -> None:
        for done, index in enumerate(parts, 1):
            self._predictor.join(index, pieces)
            progress("join", done, len(parts))


def split_scores(folder: Pieces, spec: PredictionSpec, pieces: Sequence[Piece]) -> dict[str, dict[str, float]]:
    """Returns the scores by split, computed as in the run: first for each position, batch by batch, then over positions. Splits without targets are left out.

    On the same kind of device the scores equal the run's scores to the last bit.
    """
    scores = {}
    for number, split in enumerate(spec.splits if spec.has_targets else ()):
        positions = [spec.task.scores(torch.device("cpu")) for _ in range(split.num_positions)]
        for piece in pieces:
            if piece.split == number:
                _feed(positions, folder.read_piece(piece.name, ("batch", "row", "prediction", "target")))
        for other in positions[1:]:
            positions[0].add(other)
        values = positions[0].compute()
        if values["count"]:
            scores[split.name] = values
    return scores


def _feed(positions: Sequence[Scores], table: pa.Table) -> None:
    if not table.num_rows:
        return
    table = table.sort_by([("batch", "ascending"), ("row", "ascending")])
    batch = rows_of_column(table["batch"])
    prediction, target = rows_of_column(table["prediction"]), rows_of_column(table["target"])
    ends = np.flatnonzero(np.diff(batch, append=-1)) + 1
    for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
        position = positions[int(batch[start]) % len(positions)]
        position.update(torch.tensor(prediction[start:end]), torch.tensor(target[start:end]))


def predict_all(
    spec: PredictionSpec,
    folder: PredictionFolder,
    settings: Mapping[str, Any],
    plan: tuple[Sequence[Piece], np.ndarray],
    crew: OpenCrew,
    progress: Progress,
) -> dict[str, Any]:
    """Completes the folder of predictions, and writes and returns its summary.

    `plan`: the pieces, and the ids of all predictions in ascending order. Every `settings["shard_rows"]`th id begins a part. Raises the crew's errors.
    After an error finished pieces stay, and the same call continues from them.
    """
    pieces, ids = plan
    bounds = ids[:: settings["shard_rows"]]
    folder.begin(settings)
    with crew(spec, folder, bounds) as predictors:
        done = folder.piece_names()
        if missing := [piece for piece in pieces if piece.name not in done]:
            predictors.predict(pieces, missing, progress)
        lost = sorted({piece.name for piece in pieces} - folder.piece_names())
        if lost:
            raise FormatError(
                f"{folder.url}: expected {len(pieces)} pieces, found none named {lost[0]}; all nodes must see this folder: choose one on "
                "storage that they share"
            )
        scores = split_scores(folder, spec, pieces)
        done = folder.part_names()
        predictors.join([index for index in range(len(bounds)) if part_name(index) not in done], pieces, progress)
    named = {"scores": scores} if spec.estimate is None else {"estimates": scores, "estimate": spec.estimate}
    summary = {"rows": len(ids), "parts": len(bounds), "metric": spec.task.metric, **named}
    folder.finish(summary)
    return summary
