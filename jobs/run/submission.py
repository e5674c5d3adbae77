"""Writes OGB's files of a prediction. For PCQM4Mv2: the two files of its leaderboard. For other graphs and sets: the inputs of OGB's evaluators, one file
for each split."""

import io
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphmill.core.errors import ConfigError
from graphmill.jobs.config.predict_options import PredictConfig
from graphmill.jobs.records.run_record import Run
from graphmill.storage.filesystem.filesystem_errors import one_line_errors
from graphmill.storage.filesystem.object_stores import put_file
from graphmill.storage.filesystem.outputs import check_output, names_there
from graphmill.storage.filesystem.urls import split_url
from graphmill.storage.graph_sets.graph_set import StoredGraphs, open_graphs
from graphmill.storage.importers.memory.as_array import as_array
from graphmill.storage.molecules.pcqm4mv2 import official_split

_OURS = re.compile(r"y_pred_[\w.-]+\.npz")
_File = tuple[str, dict[str, np.ndarray], str]  # name, arrays, note to print


def begin_submission(config: PredictConfig, run: Run) -> Callable[[pa.Table, str], Iterator[str]] | None:
    """Returns a function that writes OGB's files. The function takes a table of predictions and the metric's name, and yields a line for each file. None: the
    options ask for no files.

    Raises ConfigError if the folder cannot be written or holds other files, DataError if PCQM4Mv2's split is missing. The returned function raises ConfigError
    if rows of the official split are not predicted.
    """
    if (folder := config.submission) is None:
        return None
    others = lambda *at: [name for name in names_there(*at) if not _OURS.fullmatch(name)]  # noqa: E731
    check_output(folder, "OGB's files", others, advice="choose another --submission")
    files: Callable[[pa.Table, str], Iterator[_File]] = _evaluated
    num_rejected = 0
    if run.is_graph_set:
        graphs = open_graphs(config.graph or run.data_url, None if config.graph else run.snapshot)
        num_rejected = graphs.manifest.num_rejected
        if graphs.manifest.name == "pcqm4mv2":
            files = partial(_pcqm4mv2, graphs, official_split(config.ogb_root))

    def write(table: pa.Table, metric: str) -> Iterator[str]:
        filesystem, path = split_url(folder)
        for name, arrays, note in files(table, metric):
            content = io.BytesIO()
            np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
            with one_line_errors(folder, "write this file"):
                put_file(filesystem, f"{path}/{name}", content.getvalue())
            yield f"{folder}/{name}: {len(arrays['y_pred']):,} rows{note}"

        if num_rejected and files is _evaluated:
            yield f"{num_rejected:,} rows that ingestion rejected are in none of these files"

    return write


def _pcqm4mv2(graphs: StoredGraphs, official: Mapping[str, np.ndarray], table: pa.Table, _: str) -> Iterator[_File]:
    """All official rows of each predicted test part, in the official order, as `PCQM4Mv2Evaluator.save_test_submission` writes them.

    A molecule that ingestion rejected gets the mean of the training targets.
    """
    (column,) = [name for name in table.column_names if name.startswith("prediction_")]
    ids, value = table["id"].to_numpy(), table[column].to_numpy()
    mean = graphs.manifest.measured.parts[graphs.split_names.index("train") + 1].targets[0].mean
    named = {part: rows for part, rows in official.items() if part.startswith("test-") and np.isin(rows, ids).any()}
    if not named:
        raise ConfigError("--submission: expected predictions of test-dev or test-challenge, found none; set --split")
    for part, rows in named.items():
        is_predicted = np.isin(rows, ids)
        if lacking := np.isin(rows[~is_predicted], graphs.original_id).sum():
            raise ConfigError(f"--submission: {part}: {lacking:,} official rows are not predicted; leave out --split")
        values = np.full(len(rows), mean, np.float32)
        values[is_predicted] = value[np.searchsorted(ids, rows[is_predicted])]
        rejected = len(rows) - is_predicted.sum()
        note = f", {rejected:,} of them molecules that ingestion rejected: the training mean {mean:.4f}"
        yield f"y_pred_pcqm4m-v2_{part}.npz", {"y_pred": values}, note if rejected else ""


def _evaluated(table: pa.Table, metric: str) -> Iterator[_File]:
    """The arrays y_true and y_pred [n, tasks] of each split, and the ids. NaN: the answer is unknown."""
    said = [name for name in table.column_names if name.startswith(("prediction_", "logit_"))]
    true = [f"target_{name.partition('_')[2]}" for name in said] or ["target"]
    if (not said and "prediction" not in table.column_names) or not set(true) <= set(table.column_names):
        raise ConfigError("--submission: expected predictions of nodes or graphs beside their targets, found others")
    for split in pc.unique(table["split"]).drop_null().to_pylist():
        rows = table.filter(pc.equal(table["split"], split))
        several = bool(said) or pa.types.is_fixed_size_list(rows["prediction"].type)
        scores = not said and (several or metric == "rocauc")
        y_true, y_pred = (_matrix(rows, names) for names in (true, said or ["logits" if scores else "prediction"]))
        if scores and not several:  # a task with two classes: one score for each row
            y_pred = y_pred[:, -1:].astype(np.float64) - (y_pred[:, :1] if y_pred.shape[1] == 2 else 0)
        yield f"y_pred_{split}.npz", {"y_true": y_true, "y_pred": y_pred, "id": np.array(rows["id"].to_pylist())}, ""


def _matrix(rows: pa.Table, names: list[str]) -> np.ndarray:
    values = as_array(rows[names[0]] if len(names) == 1 else rows.select(names), names[0])
    return values.reshape(len(values), -1)
