"""A finished run's predictions for every node of a graph, or every graph of a set: in parallel, restartable, out as Parquet in id order.

The batches are those by which the run's splits were scored: the same samplers for the same number of ranks. So every prediction has the
bits that the run saw, and the scores are the run's own. A piece is a few batches in a row of one split; splits that the run scored by the
same batches are predicted by one pass over them. Actors predict the pieces that are missing; then the scores are taken batch by batch, as
the ranks did, and actors join the pieces to parts.

Where the run was scored on the whole graph, its nodes spread over the workers, so is the prediction: a piece is a worker's part of a split,
all workers predict at once, and the bits are the run's with as many workers.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import ray
import torch
import torch.distributed as dist
from ray.exceptions import RayActorError
from safetensors.torch import load as load_tensors
from torch import Tensor

from cluster.answers import answer
from cluster.embeddings import embedded
from cluster.evaluation import deal_split, predictions, rows_of
from cluster.options import COLLECTIVE_TIMEOUT_S
from cluster.table_rows import SavedTable
from cluster.tasks import (
    BinaryClassification,
    Classification,
    LinkPrediction,
    PairClassification,
    Regression,
    Scores,
    Task,
)
from cluster.training_data import OpenData, TrainingData
from samplers.loader import Loader
from samplers.options import FullGraphOptions, LoaderOptions, RandomPartitionOptions
from samplers.protocol import Batch, Sampler
from storage.arrow_files import array_from_numpy
from storage.errors import DataError, DeadlineError, FormatError, GraphmillError, StageError
from storage.graph import SourceIds
from storage.packed_graphs import pointers
from storage.prediction_files import PredictionFolder, part_name
from storage.source import SPLIT_NONE, SPLITS

_PIECES_PER_SPLIT = 8  # at least, where there are batches for them: so that workers share a split
_OTHERS_S = 5.0  # after one worker has failed, for the others to say why
UNSPLIT = "none"
Worker = Callable[..., ray.ObjectRef]  # begins a call: the method's name, its arguments
Progress = Callable[[str, int, int], None]  # stage, units done, units in all


def with_unsplit(samplers: Mapping[str, Any]) -> dict[str, Any]:
    """The samplers' options by split, and those by which the nodes in no split are reached as those of a split are.

    Which rank predicts a node of the full graph does not depend on the roots: one pass is for all of them.
    """
    options = samplers["train"]
    if isinstance(options, FullGraphOptions):
        return dict.fromkeys([*samplers, UNSPLIT], replace(options, root_splits=(*options.root_splits, SPLIT_NONE)))
    if isinstance(options, RandomPartitionOptions):
        return {**samplers, UNSPLIT: replace(options, root_splits=(SPLIT_NONE,))}
    return {**samplers, UNSPLIT: replace(options, root_split=SPLIT_NONE)}


@dataclass(frozen=True)
class SplitPlan:
    """One split, and how it is cut into batches."""

    name: str  # UNSPLIT: what is in no split
    sampler: Any  # its options
    micro_batches: int  # of a step of the run
    num_positions: int  # at which the run scored them, by `deal_split`

    @property
    def code(self) -> int:
        return SPLITS.get(self.name, SPLIT_NONE)


@dataclass(frozen=True)
class PredictionSpec:
    """Everything a worker needs."""

    data: TrainingData
    build_model: Callable[[], torch.nn.Module]
    weights: bytes  # a safetensors file
    task: Task
    target_names: tuple[str, ...]  # of a task with columns
    has_targets: bool
    splits: tuple[SplitPlan, ...]
    embeddings: bool  # what the model's `head` reads, the rows that its `predicted_rows(states, batch)` chooses
    precision: str
    seed: int
    loader: LoaderOptions
    table: Callable[[], SavedTable] | None = None  # opens the embeddings of the run's nodes, where it has some
    estimate: str | None = None  # why predictions and scores leave a part of the graph out; None: they do not
    # Further columns that say what ids mean which are not the source's own; None: there are none.
    places: Callable[[np.ndarray], dict[str, np.ndarray]] | None = None
    source_ids: SourceIds | None = None  # of nodes whose ids are strings


@dataclass(frozen=True)
class Piece:
    """Batches [start, stop) of a split."""

    split: int
    start: int
    stop: int

    @property
    def name(self) -> str:
        return f"{self.split:03d}-{self.start:08d}.parquet"


def plan_pieces(num_batches: Sequence[int], most: int) -> list[Piece]:
    """Pieces of at most `most` batches, by split and batch. A function of its arguments alone: any number of workers has the same."""
    pieces = []
    for split, count in enumerate(num_batches):
        size = max(1, min(most, -(-count // _PIECES_PER_SPLIT)))
        pieces += [Piece(split, start, min(start + size, count)) for start in range(0, count, size)]
    return pieces


def plan_passes(pieces: Sequence[Piece], splits: Sequence[SplitPlan]) -> list[tuple[Piece, ...]]:
    """The pieces that the same batches make, together."""
    batches = [(split.sampler, split.micro_batches) for split in splits]
    passes: dict[tuple[int, int, int], list[Piece]] = {}
    for piece in pieces:
        first = batches.index(batches[piece.split])  # of the splits with these batches
        passes.setdefault((first, piece.start, piece.stop), []).append(piece)
    return [tuple(together) for together in passes.values()]


class _BatchRange:
    """Some consecutive batches of a sampler, under their own numbers, as a sampler."""

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


_MEETING = timedelta(seconds=COLLECTIVE_TIMEOUT_S)


class Predictor:
    """Predicts pieces and joins parts. Opens the data and builds the model when it first needs them.

    Those that share the full graph call `meet` first; `predict` is a collective call then.
    """

    def __init__(self, spec: PredictionSpec, folder: PredictionFolder, bounds: np.ndarray, device: str) -> None:
        """`bounds`: int64 [num_parts], the first id of each part."""
        self._spec, self._folder, self._bounds, self._device = spec, folder, bounds, torch.device(device)
        self._opened: tuple[OpenData, torch.nn.Module] | None = None
        self._samplers: dict[int, Sampler] = {}
        self._table: SavedTable | None = None
        self._store: dist.TCPStore | None = None

    def meeting_point(self) -> tuple[str, int]:
        """Host and port where this process waits for the others."""
        host = ray.util.get_node_ip_address()
        self._store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=_MEETING)
        return host, self._store.port

    def meet(self, point: tuple[str, int], rank: int, num_ranks: int) -> None:
        """Joins the group that meets there, at rank 0; a collective call."""
        if rank:
            self._store = dist.TCPStore(*point, is_master=False, timeout=_MEETING)
        backend = "nccl" if self._device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=self._store, rank=rank, world_size=num_ranks, timeout=_MEETING)

    def predict(self, *pieces: Piece) -> None:
        """Writes pieces that the same batches make. Raises DataError where a prediction is not finite."""
        spec, first = self._spec, pieces[0]
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
            Loader(sampler, replace(spec.loader, cache_bytes=0), device=self._device, collate=data.collate) as loader,
        ):
            for batch, prediction in predictions(model, self._batches(loader), self._device, spec.precision):
                ids = data.ids(batch)
                rows_of_head = model.predicted_rows(states.pop(), batch) if spec.embeddings else None  # type: ignore[operator]
                target = data.target(batch) if spec.has_targets else None
                for piece in pieces:
                    split = spec.splits[piece.split]
                    own = rows_of(split.code, data, batch)
                    found = ids[own], prediction[own]
                    self._check_finite(batch, *found, split.name)
                    more = [None if column is None else column[own] for column in (target, rows_of_head)]
                    rows[piece].append(_batch_table(batch.index, *found, *more))
        for piece in pieces:
            self._folder.write_piece(piece.name, pa.concat_tables(rows[piece]), self._bounds)

    def _batches(self, loader: Loader) -> Iterator[Any]:
        """With the rows of the run's embeddings, where it has some."""
        if self._spec.table is None:
            return loader.epoch(0)
        if self._table is None:
            self._table = self._spec.table()
        return embedded(loader.epoch(0), self._table.read)

    def join(self, index: int, pieces: Sequence[Piece]) -> None:
        """Writes one part of what these pieces hold."""
        spec, limit = self._spec, np.iinfo(np.int64).max
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
            **_public_columns(table, spec.task, spec.target_names),
        }
        if spec.source_ids is not None and "destination" in columns:
            columns["destination"] = _named(columns["destination"], spec.source_ids)
        if spec.embeddings:
            columns["embedding"] = table["embedding"]
        self._folder.write_part(index, pa.table(columns))

    def _open(self) -> tuple[OpenData, torch.nn.Module]:
        if self._opened is None:
            torch.manual_seed(self._spec.seed)  # as the trainer does: what a model draws when it is built is the run's
            model = self._spec.build_model()
            model.load_state_dict(load_tensors(self._spec.weights))
            self._opened = self._spec.data.open(), model.to(self._device)
        return self._opened

    def _check_finite(self, batch: Any, ids: Tensor, prediction: Tensor, split: str) -> None:
        finite = torch.isfinite(_two_axes(prediction)).all(dim=1)
        if not bool(finite.all()):
            bad = int(ids[~finite.to(ids.device)][0])
            raise DataError(
                f"split {split}, batch {batch.index}: the prediction for id {bad} is not finite; check its features, or the run's weights"
            )


class PredictorActor:
    """A predictor in a process of its own, made by its first call.

    Each call brings what all predictors share, as a reference. The constructor has none: Ray prints an error for an actor that may be
    restarted and whose constructor needs the object store, since it cannot know that this driver keeps the object until the end.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._predictor: Predictor | None = None

    def call(self, shared: Sequence[ray.ObjectRef], method: str, *arguments: Any) -> Any:
        """What the predictor's method returns."""
        if self._predictor is None:
            spec, folder, bounds = ray.get(shared[0], timeout=COLLECTIVE_TIMEOUT_S)
            self._predictor = Predictor(spec, folder, bounds, self._device)
        return getattr(self._predictor, method)(*arguments)


@contextmanager
def _capture(model: Any, states: list[Tensor]) -> Iterator[None]:
    """Every forward pass inside the block appends what the model's head reads."""
    handle = model.head.register_forward_pre_hook(lambda _, inputs: states.append(inputs[0]))
    try:
        yield
    finally:
        handle.remove()


def _batch_table(index: int, ids: Tensor, prediction: Tensor, target: Tensor | None, states: Tensor | None) -> pa.Table:
    """A batch's rows: whose, in which batch at which place, what was predicted, what is true."""
    count = len(ids)
    columns = {
        "id": _array(ids),
        "batch": pa.array(np.full(count, index, np.int64)),
        "row": pa.array(np.arange(count)),
        "prediction": _array(_two_axes(prediction if prediction.dtype == torch.float64 else prediction.float())),
    }
    if target is not None:
        columns["target"] = _array(target if target.dtype == torch.int64 else _two_axes(target.float()))
    if states is not None:
        columns["embedding"] = _array(states.float())
    return pa.table(columns)


def _two_axes(rows: Tensor) -> Tensor:
    """[n, width], also of no rows: a chunk of a random partition may hold nothing to predict."""
    return rows.flatten(1) if rows.dim() > 1 else rows.unsqueeze(1)


def _array(tensor: Tensor) -> pa.Array:
    return array_from_numpy(np.ascontiguousarray(tensor.detach().cpu().numpy()))


def _rows(column: pa.ChunkedArray) -> np.ndarray:
    """[n] of numbers, [n, width] of fixed-size lists."""
    kind = column.type
    if not pa.types.is_fixed_size_list(kind):
        return column.to_numpy()
    return column.combine_chunks().flatten().to_numpy(zero_copy_only=False).reshape(-1, kind.list_size)


def _lists(answer: np.ndarray, known: np.ndarray | None = None) -> pa.Array:
    """Answers [n, L] as lists of 1 and 0, null where they are not known."""
    flat = pa.array((answer > 0).reshape(-1).astype(np.int8), mask=None if known is None else ~known.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, answer.shape[1])


def _public_columns(table: pa.Table, task: Task, names: Sequence[str]) -> dict[str, Any]:
    """What the parts hold of targets and predictions; unknown targets are null."""
    predicted = _rows(table["prediction"])
    true = _rows(table["target"]) if "target" in table.column_names else None
    if isinstance(task, Classification):
        known = {} if true is None else {"target": pa.array(true, mask=true < 0)}
        said = (predicted[:, 0] > 0).astype(np.int64) if predicted.shape[1] == 1 else predicted.argmax(axis=1)
        return {**known, "prediction": pa.array(said), "logits": table["prediction"]}
    if isinstance(task, PairClassification):
        known = {} if true is None else {"target": pa.array(true[:, 0])}
        return {
            **known,
            "logit": pa.array(predicted[:, 0]),
            "rank": pa.array(1 + predicted[:, 1] + predicted[:, 2] / 2),
        }
    if isinstance(task, LinkPrediction):
        return _best_links(predicted)
    if isinstance(task, BinaryClassification) and not names:  # of nodes, whose labels have no names
        known = {} if true is None else {"target": _lists(true, ~np.isnan(true))}
        return {**known, "prediction": _lists(predicted > 0), "logits": table["prediction"]}
    columns: dict[str, Any] = {}
    if true is not None:
        columns |= {f"target_{name}": pa.array(true[:, i], from_pandas=True) for i, name in enumerate(names)}
    if isinstance(task, Regression):  # as it is scored, in the target's own unit
        predicted = predicted.astype(np.float64) * np.array(task.scale) + np.array(task.mean)
        return columns | {f"prediction_{name}": pa.array(predicted[:, i].copy()) for i, name in enumerate(names)}
    return columns | {f"logit_{name}": pa.array(predicted[:, i].copy()) for i, name in enumerate(names)}


def _best_links(predicted: np.ndarray) -> dict[str, Any]:
    """Lists of destinations and their scores, from `LinkModel`'s [n, 2 · top_k]; shorter ones of nodes that have less left."""
    destination, score = np.hsplit(predicted, 2)
    found = destination >= 0
    ptr = pa.array(pointers(found.sum(axis=1)).astype(np.int32))
    of_all: dict[str, np.ndarray] = {"destination": destination.astype(np.int64), "score": score.astype(np.float32)}
    return {name: pa.ListArray.from_arrays(ptr, pa.array(values[found])) for name, values in of_all.items()}


def _named(lists: pa.ListArray, source_ids: SourceIds) -> pa.ListArray:
    """Lists of nodes by the strings that are their ids."""
    return pa.ListArray.from_arrays(lists.offsets, source_ids.of(lists.values.to_numpy()))


def split_scores(
    folder: PredictionFolder, spec: PredictionSpec, pieces: Sequence[Piece]
) -> dict[str, dict[str, float]]:
    """Scores by split, each taken as the run's positions did: every one batch by batch, then their sum. Splits without targets have none.

    Equal to the run's own to the last bit on the same kind of device.
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
    batch = _rows(table["batch"])
    prediction, target = _rows(table["prediction"]), _rows(table["target"])
    ends = np.flatnonzero(np.diff(batch, append=-1)) + 1
    for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
        position = positions[int(batch[start]) % len(positions)]
        position.update(torch.tensor(prediction[start:end]), torch.tensor(target[start:end]))


@dataclass(frozen=True)
class PoolOptions:
    """The workers."""

    num_workers: int
    use_gpu: bool
    restarts: int  # of each worker
    deadline_s: float  # longest wait for the next finished piece or part
    together: bool = False  # all share the full graph and predict at once, each its own pieces; none is started again


def predict_all(
    spec: PredictionSpec,
    folder: PredictionFolder,
    settings: Mapping[str, Any],
    plan: tuple[Sequence[Piece], np.ndarray],
    pool: PoolOptions,
    progress: Progress,
) -> dict[str, Any]:
    """Makes what is missing of the folder, inside a Ray session; returns the summary, which is then there too.

    `plan`: the pieces, and the ids of all that they hold, ascending, of which every `settings["shard_rows"]`th begins a part.
    Raises what a worker raised on purpose, StageError where one failed or died too often, DeadlineError where nothing came in time;
    what is finished stays, and the same call goes on from there.
    """
    pieces, ids = plan
    bounds = ids[:: settings["shard_rows"]]
    folder.begin(settings)
    with _workers(spec, folder, bounds, pool) as workers:
        there = folder.piece_names()
        missing = [piece for piece in pieces if piece.name not in there]
        if pool.together and missing:
            _predict_together(workers, spec, pieces, {piece.split for piece in missing}, pool, progress)
        else:
            passes = plan_passes(missing, spec.splits)
            _run(workers, "predict", passes, pool, progress, len(passes))
        lost = sorted({piece.name for piece in pieces} - folder.piece_names())
        if lost:
            raise FormatError(
                f"{folder.url}: expected {len(pieces)} pieces, found none named {lost[0]}; all nodes must see this folder: choose one on "
                "storage that they share"
            )
        scores = split_scores(folder, spec, pieces)
        there = folder.part_names()
        parts = [index for index in range(len(bounds)) if part_name(index) not in there]
        _run(workers, "join", [(index, pieces) for index in parts], pool, progress, len(bounds))
    named = {"scores": scores} if spec.estimate is None else {"estimates": scores, "estimate": spec.estimate}
    summary = {"rows": len(ids), "parts": len(bounds), "metric": spec.task.metric, **named}
    folder.finish(summary)
    return summary


@contextmanager
def _workers(
    spec: PredictionSpec, folder: PredictionFolder, bounds: np.ndarray, pool: PoolOptions
) -> Iterator[list[Worker]]:
    """Functions that begin a call of a predictor's method, one for each predictor."""
    restarts = 0 if pool.together else pool.restarts
    actor: Any = ray.remote(
        num_cpus=1, num_gpus=1 if pool.use_gpu else 0, max_restarts=restarts, max_task_retries=restarts
    )(PredictorActor)
    shared = ray.put((spec, folder, bounds))
    actors = [actor.remote("cuda" if pool.use_gpu else "cpu") for _ in range(pool.num_workers)]
    try:
        yield [partial(one.call.remote, [shared]) for one in actors]
    finally:
        for one in actors:
            ray.kill(one, no_restart=True)


def _predict_together(
    workers: Sequence[Worker],
    spec: PredictionSpec,
    pieces: Sequence[Piece],
    splits: Set[int],
    pool: PoolOptions,
    progress: Progress,
) -> None:
    """These splits by all the workers at once: worker i predicts batch i of all that the same batches make. Raises what `predict_all` does."""
    points = [worker("meeting_point") for worker in workers]
    _wait(points, "start", pool)  # all of them: who met would wait for the rest with torch's patience and words
    point = ray.get(points[0], timeout=pool.deadline_s)
    _wait([worker("meet", point, rank, len(workers)) for rank, worker in enumerate(workers)], "meet", pool)
    passes = plan_passes([piece for piece in pieces if piece.split in splits], spec.splits)
    done = sum(piece.split not in splits for piece in pieces)
    for first in dict.fromkeys(together[0].split for together in passes):
        at_once = [together for together in passes if together[0].split == first]
        _wait([workers[together[0].start]("predict", *together) for together in at_once], "predict", pool)
        done += sum(map(len, at_once))
        progress("predict", done, len(pieces))


def _wait(references: Sequence[Any], method: str, pool: PoolOptions) -> None:
    """Waits for all, or until one fails: then raises the error that says most; the others' may be that they miss that worker."""
    failed: list[GraphmillError] = []
    waiting, deadline = list(references), time.monotonic() + pool.deadline_s
    while waiting and (left := deadline - time.monotonic()) > 0:
        done, waiting = ray.wait(waiting, num_returns=1, timeout=left)
        for reference in done:
            try:
                _result(reference, method, pool)
            except GraphmillError as error:
                if not failed:
                    deadline = min(deadline, time.monotonic() + _OTHERS_S)
                failed.append(error)
    if failed:
        told = [one for one in failed if not isinstance(one, StageError) or isinstance(one.__cause__, RayActorError)]
        raise (told or failed)[0]
    if waiting:
        raise DeadlineError(
            f"{method}: expected all workers within {pool.deadline_s:g} s, {len(waiting)} of {len(references)} are late; has the cluster a "
            "free CPU per worker? Lower --workers or raise --deadline_s; run again to go on"
        )


def _run(
    workers: Sequence[Worker], method: str, calls: Sequence[tuple], pool: PoolOptions, progress: Progress, total: int
) -> None:
    """Makes these calls, each by the next worker that is free; ends at the first that fails."""
    waiting, running, done = iter(calls), {}, total - len(calls)
    for worker, call in zip(workers, waiting):
        running[worker(method, *call)] = worker
    while running:
        ready, _ = ray.wait(list(running), num_returns=1, timeout=pool.deadline_s)
        if not ready:
            raise DeadlineError(
                f"{method}: expected a finished piece within {pool.deadline_s:g} s, got none; has the cluster a free CPU (or GPU) per worker? "
                "Lower --workers or raise --deadline_s; run again to go on"
            )
        worker = running.pop(ready[0])
        _result(ready[0], method, pool)
        done += 1
        progress(method, done, total)
        for call in islice(waiting, 1):
            running[worker(method, *call)] = worker


def _result(reference: Any, method: str, pool: PoolOptions) -> None:
    times = "" if pool.together else f" {pool.restarts + 1} times"
    answer(reference, method, pool.deadline_s, f"a worker died{times}", "is memory short? Lower --workers")
