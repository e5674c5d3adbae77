"""Predicts every node of a graph, or every molecule of a set, with a finished run's best weights: writes Parquet files in order of id.

    python jobs/predict.py runs/my-run predictions                             all of the run's own graph or set
    python jobs/predict.py runs/my-run s3://bucket/predictions --workers 8     the same, elsewhere and faster
    python jobs/predict.py runs/my-run predictions --split test --embeddings   one split, with the states before the model's head
    python jobs/predict.py runs/my-run predictions --graph graphs/new --other-graph
    python jobs/predict.py runs/my-run predictions --graph new.csv              a table of SMILES, or edges with --edge-list.features x.npy
    python jobs/predict.py runs/typed predictions --graph later.yaml            tables of several types, read by the run's graph
    python jobs/predict.py runs/links predictions --top_k 10                    a run on links: the best new links of every node
    python jobs/predict.py runs/my-run predictions --parallel graph            the whole graph at once, its nodes divided among the workers

The batches are the same as in the run. The scores of the run's splits therefore equal the scores in its summary to the last digit, and the output confirms
this. On the full graph this holds for the number of workers that the run had. After an interruption (Ctrl-C, a dead machine), the same command continues from
the finished pieces. If the options do not fit the run, the command prints one line and exits with 1. docs/guides/predict.md describes the columns.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from graphmill.core.errors import ConfigError
from graphmill.core.summaries import rounded
from graphmill.jobs.cli import progress
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.cli.progress import results
from graphmill.jobs.config.predict_options import PredictConfig
from graphmill.jobs.config.reader import build, parse

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from torch import Tensor

    from graphmill.cluster.options import SessionOptions, WorkerOptions
    from graphmill.cluster.prediction.prediction import OpenCrew
    from graphmill.cluster.prediction.predictor import Piece, PredictionSpec
    from graphmill.jobs.records.run_record import Run
    from graphmill.jobs.subjects.subject import Prediction, Served


def main() -> int:
    return _predict(parse(PredictConfig, __doc__, ("run", "out")))


def predict(
    run: "str | Run", out: str | None = None, *, model: Any = None, quiet: bool = False, **options: Any
) -> "pa.Table":
    """Predicts with a finished run, like `graphmill predict` with the same options. Returns the table, ids ascending.

    `out` is the folder of predictions, by default `predictions` in the run's directory. `model`: an object of the model's class, if the run's model was given
    as an object in another process. `quiet`: nothing is printed on standard output. Raises the errors that the command prints, and ConflictError if another
    thread of this process trains or predicts. The state of PyTorch's random numbers does not change.
    """
    from graphmill.cluster.process.random_state import own_random_state
    from graphmill.jobs.config.registry import give_model
    from graphmill.storage.predictions import PredictionFolder

    path = str(getattr(run, "path", run))
    give_model(path, model)
    config = build(PredictConfig, {"run": path, "out": out or f"{path}/predictions", **options})
    with own_random_state("predicting"), progress.quiet() if quiet else nullcontext():
        _predict(config)
    return PredictionFolder(config.out).table()


class Tables(dict[str, "pa.Table"]):
    """Tables of pieces in memory, by name. The class has the same reading method as a folder of predictions."""

    def read_piece(self, name: str, columns: "Sequence[str]") -> "pa.Table":
        return self[name].select(list(columns))


def predicted(config: PredictConfig) -> "tuple[PredictionSpec, list[Piece], Tables]":
    """The pieces of a prediction and their tables, computed in this process without any file. Raises the errors of `predict`. Does not change the state of
    PyTorch's random numbers."""
    from graphmill.cluster.options import WorkerOptions
    from graphmill.cluster.prediction.predictor import Predictor, plan_passes
    from graphmill.cluster.process.random_state import own_random_state
    from graphmill.jobs.records.run_record import read_run
    from graphmill.jobs.subjects.subject import open_prediction
    from graphmill.storage.predictions import PredictionFolder

    finished = read_run(config.run, finished=True)
    subject = open_prediction(finished, config)
    workers = WorkerOptions(1, config.device, launcher="process")
    with own_random_state("predicting"), subject.here() as served:
        spec, (pieces, ids) = _Prediction(config, finished, subject).split(served, workers)
        predictor = Predictor(spec, PredictionFolder(""), ids[:0], "cuda" if config.device == "gpu" else "cpu")
        made = [predictor.rows(*batches) for batches in plan_passes(pieces, spec.splits)]
    return spec, pieces, Tables({piece.name: table for tables in made for piece, table in tables.items()})


def rows(config: PredictConfig) -> "tuple[list[Any], Tensor]":
    """(source ids in ascending order, the model's outputs). With `config.embeddings`, the inputs of the model's head replace the outputs."""
    import pyarrow as pa
    import torch

    from graphmill.cluster.prediction.prediction_columns import rows_of_column

    spec, _, tables = predicted(config)
    table = pa.concat_tables(tables.values()).sort_by("id")
    ids = table["id"].to_numpy()
    column = rows_of_column(table["embedding" if config.embeddings else "prediction"])
    return (ids if spec.source_ids is None else spec.source_ids.of(ids)).tolist(), torch.tensor(column)


def embeddings(run: "Run", nodes: "Sequence[Any] | None" = None) -> "Tensor":
    """Returns the same as `Run.embeddings`. Raises ConfigError for an unknown id."""
    ids, states = rows(PredictConfig(run.path, "", embeddings=True))
    if nodes is None:
        return states
    place = {name: number for number, name in enumerate(ids)}
    names = nodes.tolist() if hasattr(nodes, "tolist") else list(nodes)
    if unknown := [name for name in names if name not in place]:
        raise ConfigError(f"nodes: expected ids of the run's data, got {unknown[0]}")
    return states[[place[name] for name in names]]


def _predict(config: PredictConfig) -> int:
    """Predicts or prints the plan; returns the exit status. The status of a plan is 1 if the prediction would be refused."""
    from graphmill.cluster.options import WorkerOptions
    from graphmill.cluster.prediction.prediction import predict_all
    from graphmill.jobs.machine.this_machine import known_workers, local_session
    from graphmill.jobs.records.run_record import read_run
    from graphmill.jobs.run.predicted_file import store_file
    from graphmill.jobs.run.submission import begin_submission
    from graphmill.jobs.subjects.subject import open_prediction
    from graphmill.storage.filesystem.urls import absolute_url
    from graphmill.storage.predictions import PredictionFolder

    finished = read_run(config.run, finished=True)
    config = store_file(finished, config)
    subject = open_prediction(finished, config)
    launcher = "ray" if config.launcher == "auto" and subject.is_of_ray else config.launcher
    asked = WorkerOptions(_asked_workers(config, finished, subject), config.device, launcher=launcher)
    prediction = _Prediction(config, finished, subject)
    if config.embeddings and getattr(subject.build_model(), "head", None) is None:
        raise ConfigError(
            f"{config.run}: the run's model has no head whose states could be given; leave out --embeddings"
        )
    session = local_session(asked, config.ray)
    workers = known_workers(asked, session, subject.subject.num_bytes)
    settings = prediction.settings(workers)
    folder = PredictionFolder(absolute_url(config.out))
    summary = folder.check(settings)
    submission = begin_submission(config, finished)
    if config.plan:
        from graphmill.jobs.run.predict_plan import plan_prediction

        return plan_prediction(config, subject, summary, workers, lambda served: prediction.split(served, workers))
    unread = subject.subject.unread(subject.trained)
    print(subject.text, *([unread] if unread else []), sep="\n", flush=True)
    if summary is not None:
        folder.remove_pieces()  # pieces are left if the last run was interrupted near its end
        print("these predictions are complete: nothing to do")
    else:
        begin = _here if workers.launcher == "process" else _on_ray
        with (
            begin(config, subject, workers, session) as (workers, served, crew),
            progress.progress("predicting") as bar,
        ):
            settings["device"] = workers.device
            if subject.is_sharded:
                settings["workers"] = workers.most
            folder.check(settings)  # also refuses pieces from another device or another number of workers
            spec, plan = prediction.split(served, workers)
            summary = predict_all(spec, folder, settings, plan, crew, bar.stage)
    _print_summary(config, finished, subject, summary)
    if submission is not None:
        print(*submission(folder.table(), summary["metric"]), sep="\n")
    return 0


@contextmanager
def _here(
    config: PredictConfig, subject: "Prediction", workers: "WorkerOptions", session: "SessionOptions"
) -> "Iterator[tuple[WorkerOptions, Served, OpenCrew]]":
    """Predicts in this process, without Ray."""
    from graphmill.cluster.prediction.prediction import CrewHere

    with subject.here() as served:
        yield workers, served, partial(CrewHere.on, "cuda" if workers.device == "gpu" else "cpu")


@contextmanager
def _on_ray(
    config: PredictConfig, subject: "Prediction", workers: "WorkerOptions", session: "SessionOptions"
) -> "Iterator[tuple[WorkerOptions, Served, OpenCrew]]":
    """Yields the workers for which the session's cluster has room, their data, and the crew."""
    from graphmill.cluster.prediction.prediction_actors import WARM, ActorCrew, PoolOptions
    from graphmill.cluster.ray.placement import place
    from graphmill.cluster.ray.session import ray_session

    serving = subject.serve()
    with ray_session(session, WARM), serving as served:
        workers = place(workers)
        together = subject.is_sharded and workers.most > 1
        is_gpu = workers.device == "gpu"
        pool = PoolOptions(workers.most, is_gpu, config.restarts, config.deadline_s, together=together)
        yield workers, served, partial(ActorCrew.of, pool)


def _asked_workers(config: PredictConfig, finished: "Run", subject: "Prediction") -> int | None:
    """The number of workers to request. For the full graph this is the number that the run had, limited by the cores if no cluster is joined. With the same
    number of workers the predictions equal the run's predictions in every bit."""
    if config.workers is not None or config.launcher == "process" or not subject.is_sharded:
        return config.workers
    from graphmill.cluster.ray.session import joins_a_cluster

    trained = int(finished.summary["workers"])
    return trained if joins_a_cluster(config.ray) else min(trained, max(os.cpu_count() or 1, 2))


@dataclass(frozen=True)
class _Prediction:
    """The options and data of a prediction, and the run."""

    config: PredictConfig
    finished: "Run"
    subject: "Prediction"

    @cached_property
    def splits(self) -> tuple[str, ...]:
        """The splits to predict. Raises ConfigError for an unknown split."""
        split, known = self.config.split, tuple(self.subject.samplers)
        if split != "all" and split not in known:
            raise ConfigError(f"split: expected all, {', '.join(known)}, got {split!r}; set --split")
        return known if split == "all" else (split,)

    def settings(self, workers: "WorkerOptions") -> dict[str, Any]:
        """All options on which the predictions or the layout of the files depend. The number of workers belongs to them only if the workers share the full
        graph."""
        config, subject = self.config, self.subject
        return {
            "format": "graphmill-predictions",
            "format_version": 1,
            "job": self.finished.job,
            "weights": self.finished.weights_hash,
            "data": subject.content_hash,
            "splits": {name: repr(subject.samplers[name]) for name in self.splits},
            "ranks": self.finished.num_ranks,
            "precision": subject.trained.fit.precision,
            "seed": subject.trained.fit.seed,
            "device": None if config.device == "auto" else config.device,  # None: not known until the cluster is joined
            "embeddings": config.embeddings,
            "shard_rows": config.shard_rows,
            "piece_batches": config.piece_batches,
            **({"workers": workers.most} if subject.is_sharded else {}),
        }

    def split(
        self, served: "Served", workers: "WorkerOptions"
    ) -> "tuple[PredictionSpec, tuple[list[Piece], np.ndarray]]":
        """The workers' specification, the pieces of the work, and the ids of all predicted rows, ascending."""
        import numpy as np

        from graphmill.cluster.prediction.predictor import PredictionSpec, SplitPlan, plan_pieces
        from graphmill.cluster.training.evaluation import deal_split

        config, subject, run_ranks = self.config, self.subject, self.finished.num_ranks
        data, members = subject.shared(served.data), subject.members(served)
        opened = None if subject.is_sharded else data.open()
        splits, num_batches, ids = [], [], [np.empty(0, np.int64)]
        for name in self.splits:
            member_ids = members(name)
            if not len(member_ids):
                continue
            # Each micro-batch of a step of the run gets one rank, so that the batches are the same as in the run. A tiny split of another graph may have too
            # few rows for this.
            ranks = run_ranks if len(member_ids) >= run_ranks else 1
            options, batches = subject.samplers[name], workers.most
            split = SplitPlan(name, options, batches, batches)
            if opened is not None:
                sampler, positions = deal_split(opened, options, ranks, ranks)
                split, batches = SplitPlan(name, options, ranks, positions), sampler.num_batches
            splits.append(split)
            num_batches.append(batches)
            ids.append(member_ids)
        if not splits:
            raise ConfigError(
                f"{subject.subject.url}: expected something in split {config.split}, found nothing; set --split"
            )
        spec = PredictionSpec(
            data=data,
            build_model=subject.build_model,
            weights=self.finished.weights,
            task=subject.task,
            target_names=subject.target_names,
            places=subject.places,
            source_ids=subject.source_ids,
            end_ids=subject.end_ids,
            has_targets=subject.has_targets,
            splits=tuple(splits),
            embeddings=config.embeddings,
            precision=subject.trained.fit.precision,
            seed=subject.trained.fit.seed,
            loader=subject.trained.config.loader,
            estimate=subject.estimate,
            table=subject.table,
        )
        most = 1 if subject.is_sharded else config.piece_batches
        return spec, (plan_pieces(num_batches, most), np.sort(np.concatenate(ids)))


@results()
def _print_summary(config: PredictConfig, finished: "Run", subject: "Prediction", summary: dict[str, Any]) -> None:
    metric, estimate = summary["metric"], summary.get("estimate")
    same = subject.content_hash == finished.data_hash
    named = metric if estimate is None else f"{metric} (estimate)"
    for split, values in summary["scores" if estimate is None else "estimates"].items():
        if metric not in values:
            continue
        of_run, score = finished.scores.get(split) if same else None, rounded(values[metric])
        if of_run is None:
            note = ""
        elif of_run == values[metric]:
            note = ", as in the run's summary"
        else:
            kind = "" if finished.estimate == estimate else " (estimate)" if finished.estimate else " (exact)"
            off = f", {values[metric] - of_run:.1g} away" if rounded(of_run) == score else ""
            note = f"; the run's summary has {rounded(of_run)}{kind}{off}"
        print(f"{split} {named} {score} over {values['count']:,.0f}{note}")
    if estimate is not None:
        print(f"estimate: {estimate}, as the run was scored; so are the predictions")
    print(f"{summary['rows']:,} predictions in {summary['parts']} file(s) at {config.out}")


if __name__ == "__main__":
    run(main)
