"""Predicts a finished run's batches and writes the predictions as pieces. Joins the pieces to parts in order of ids.

The batches are the same as in the scoring of the run's splits: the same samplers for the same number of ranks. Therefore every prediction equals the run's
prediction to the bit. A piece is a few consecutive batches of one split. Splits that were scored with the same batches are predicted in one pass.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from safetensors.torch import load as load_tensors
from torch import Tensor

from graphmill.cluster.data.training_data import OpenData, TrainingData
from graphmill.cluster.embeddings.embeddings import embedded
from graphmill.cluster.embeddings.rows import SavedTable
from graphmill.cluster.prediction.prediction_columns import batch_table, named_by, public_columns, two_axes
from graphmill.cluster.process.subnormals import flushed_subnormals
from graphmill.cluster.tasks import Task
from graphmill.cluster.training.evaluation import deal_split, predictions, rows_of
from graphmill.core.errors import DataError
from graphmill.samplers.drawing.protocol import Batch, Sampler
from graphmill.samplers.loading.loader import Loader
from graphmill.samplers.vocabulary.options import FullGraphOptions, LoaderOptions, RandomPartitionOptions
from graphmill.storage.format.source import SPLIT_NONE, SPLITS
from graphmill.storage.graph import SourceIds
from graphmill.storage.predictions import PredictionFolder

# A split with enough batches has at least this many pieces, so that several workers can share the split
_PIECES_PER_SPLIT = 8
UNSPLIT = "none"


def with_unsplit(samplers: Mapping[str, Any]) -> dict[str, Any]:
    """`samplers` holds the samplers' options by split. Adds options for the nodes that are in no split, which are sampled in the same way.

    On the full graph, the rank that predicts a node does not depend on the roots. Therefore one pass predicts the nodes of all splits.
    """
    options = samplers["train"]
    if isinstance(options, FullGraphOptions):
        return dict.fromkeys([*samplers, UNSPLIT], replace(options, root_splits=(*options.root_splits, SPLIT_NONE)))
    if isinstance(options, RandomPartitionOptions):
        return {**samplers, UNSPLIT: replace(options, root_splits=(SPLIT_NONE,))}
    return {**samplers, UNSPLIT: replace(options, root_split=SPLIT_NONE)}


@dataclass(frozen=True)
class SplitPlan:
    """One split, and the options of its batches."""

    name: str  # the split's name; UNSPLIT: the nodes or graphs in no split
    sampler: Any  # the sampler's options
    micro_batches: int  # number of micro-batches in a step of the run
    num_positions: int  # positions over which the run's scoring dealt the batches (`deal_split`)

    @property
    def code(self) -> int:
        return SPLITS.get(self.name, SPLIT_NONE)


@dataclass(frozen=True)
class PredictionSpec:
    """Everything that a predictor needs."""

    data: TrainingData
    build_model: Callable[[], torch.nn.Module]
    weights: bytes  # a safetensors file
    task: Task
    target_names: tuple[str, ...]  # names of the targets of a task with several
    has_targets: bool
    splits: tuple[SplitPlan, ...]
    # Also write the inputs of the model's `head`; `model.predicted_rows(states, batch)` chooses their rows
    embeddings: bool
    precision: str
    seed: int
    loader: LoaderOptions
    table: Callable[[], SavedTable] | None = None  # opens the run's embedding table, if it has one
    # The reason why predictions and scores leave out a part of the graph; None: no part is left out
    estimate: str | None = None
    # Makes the columns that explain the ids, if they are not the source's ids. None: they are the source's ids.
    places: Callable[[np.ndarray], dict[str, np.ndarray]] | None = None
    source_ids: SourceIds | None = None  # string ids of the nodes, or the source's ids of the graphs
    end_ids: SourceIds | None = None  # string ids of the destination nodes of links


@dataclass(frozen=True)
class Piece:
    """A piece: the batches [start, stop) of a split."""

    split: int
    start: int
    stop: int

    @property
    def name(self) -> str:
        return f"{self.split:03d}-{self.start:08d}.parquet"


def plan_pieces(num_batches: Sequence[int], most: int) -> list[Piece]:
    """Makes pieces of at most `most` batches, in order of split and batch. The pieces are the same for any number of workers."""
    pieces = []
    for split, count in enumerate(num_batches):
        size = max(1, min(most, -(-count // _PIECES_PER_SPLIT)))
        pieces += [Piece(split, start, min(start + size, count)) for start in range(0, count, size)]
    return pieces


def plan_passes(pieces: Sequence[Piece], splits: Sequence[SplitPlan]) -> list[tuple[Piece, ...]]:
    """Groups the pieces of all splits that have the same batches."""
    batches = [(split.sampler, split.micro_batches) for split in splits]
    passes: dict[tuple[int, int, int], list[Piece]] = {}
    for piece in pieces:
        first = batches.index(batches[piece.split])  # the first split with these batches
        passes.setdefault((first, piece.start, piece.stop), []).append(piece)
    return [tuple(together) for together in passes.values()]


class _BatchRange:
    """A sampler of some consecutive batches of another sampler. The batches keep their original indices."""

    def __init__(self, sampler: Sampler, start: int, stop: int) -> None:
        self._sampler, self._start, self._stop = sampler, start, stop

    @property
    def options(self) -> Any:
        return self._sampler.options

    @property
    def content_hash(self) -> str:
        return self._sampler.content_hash

    @property
    def num_batches(self) -> int:
        return self._stop - self._start

    def sample(self, epoch: int, batch: int) -> Batch:
        return self._sampler.sample(epoch, self._start + batch)


def load_trained(build_model: Callable[[], torch.nn.Module], weights: bytes, seed: int) -> torch.nn.Module:
    """Builds the model of a run with the weights of a safetensors file, in evaluation mode."""
    torch.manual_seed(seed)  # as in the trainer, so that the constructor draws the same random numbers as in the run
    model = build_model()
    model.load_state_dict(load_tensors(weights))
    return model.eval()


class Predictor:
    """Predicts pieces and joins parts. Opens the data and builds the model at first use."""

    def __init__(self, spec: PredictionSpec, folder: PredictionFolder, bounds: np.ndarray, device: str) -> None:
        """`bounds`: int64 [num_parts]: the first id of each part."""
        self.spec, self._folder, self._bounds, self.device = spec, folder, bounds, torch.device(device)
        self._opened: tuple[OpenData, torch.nn.Module] | None = None
        self._samplers: dict[int, Sampler] = {}
        self._table: SavedTable | None = None

    def predict(self, *pieces: Piece) -> None:
        """Writes pieces that have the same batches. Raises the same errors as `rows`."""
        for piece, table in self.rows(*pieces).items():
            self._folder.write_piece(piece.name, table, self._bounds)

    @flushed_subnormals()
    def rows(self, *pieces: Piece) -> dict[Piece, pa.Table]:
        """Predicts pieces that have the same batches, and returns their tables. Raises DataError if a prediction is not finite, FormatError if a file of the
        data was changed meanwhile."""
        spec, first = self.spec, pieces[0]
        data, model = self._open()
        if first.split not in self._samplers:
            split = spec.splits[first.split]
            dealt, _ = deal_split(data, split.sampler, split.micro_batches, split.num_positions)
            self._samplers[first.split] = dealt
        rows: dict[Piece, list[pa.Table]] = {piece: [] for piece in pieces}
        sampler = _BatchRange(self._samplers[first.split], first.start, first.stop)
        states: list[Tensor] = []
        with (
            _capture(model, states) if spec.embeddings else nullcontext(),
            Loader(sampler, replace(spec.loader, cache_bytes=0), device=self.device, collate=data.collate) as loader,
        ):
            for batch, prediction in predictions(model, self._batches(loader), self.device, spec.precision):
                ids = data.ids(batch)
                rows_of_head = model.predicted_rows(states.pop(), batch) if spec.embeddings else None  # type: ignore[operator]
                target = data.target(batch) if spec.has_targets else None
                for piece in pieces:
                    split = spec.splits[piece.split]
                    own = rows_of(split.code, data, batch)
                    predicted = ids[own], prediction[own]
                    self._check_finite(batch, *predicted, split.name)
                    more = [None if column is None else column[own] for column in (target, rows_of_head)]
                    rows[piece].append(batch_table(batch.index, *predicted, *more))
        data.check()  # predictions from a changed file are not kept
        return {piece: pa.concat_tables(rows[piece]) for piece in pieces}

    def _batches(self, loader: Loader) -> Iterator[Any]:
        """Yields the loader's batches, with the rows of the embedding table if the run has a table."""
        if self.spec.table is None:
            return loader.epoch(0)
        if self._table is None:
            self._table = self.spec.table()
        return embedded(loader.epoch(0), self._table.read, self._table.node_types)

    def join(self, index: int, pieces: Sequence[Piece]) -> None:
        """Writes one part from the pieces."""
        spec, limit = self.spec, np.iinfo(np.int64).max
        start = int(self._bounds[index])
        stop = int(self._bounds[index + 1]) if index + 1 < len(self._bounds) else limit
        tables = []
        for piece in pieces:
            name = spec.splits[piece.split].name
            table = self._folder.read_piece(piece.name, of=(start, stop))
            split = pa.array([None if name == UNSPLIT else name] * table.num_rows, pa.string())
            tables.append(table.append_column("split", split))
        table = pa.concat_tables(tables).sort_by("id")
        places = {} if spec.places is None else spec.places(table["id"].to_numpy())
        named = {"id": table["id"]}
        if spec.source_ids is not None:
            named = {"id": spec.source_ids.of(table["id"].to_numpy()), "row": table["id"]}
        columns = {
            **named,
            **places,
            "split": table["split"],
            **public_columns(table, spec.task, spec.target_names),
        }
        if spec.end_ids is not None:
            columns["destination"] = named_by(columns["destination"], spec.end_ids)
        if spec.embeddings:
            columns["embedding"] = table["embedding"]
        self._folder.write_part(index, pa.table(columns))

    def _open(self) -> tuple[OpenData, torch.nn.Module]:
        if self._opened is None:
            model = load_trained(self.spec.build_model, self.spec.weights, self.spec.seed)
            self._opened = self.spec.data.open(), model.to(self.device)
        return self._opened

    def _check_finite(self, batch: Any, ids: Tensor, prediction: Tensor, split: str) -> None:
        finite = torch.isfinite(two_axes(prediction)).all(dim=1)
        if not bool(finite.all()):
            bad = int(ids[~finite.to(ids.device)][0])
            raise DataError(
                f"split {split}, batch {batch.index}: the prediction for id {bad} is not finite; check its features, or the run's weights"
            )


@contextmanager
def _capture(model: Any, states: list[Tensor]) -> Iterator[None]:
    """Makes every forward pass inside the block append the input of the model's head to `states`."""
    handle = model.head.register_forward_pre_hook(lambda _, inputs: states.append(inputs[0]))
    try:
        yield
    finally:
        handle.remove()
