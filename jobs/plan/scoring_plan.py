"""Estimates the cost of training and scoring for `--plan` from batches tried in this process. The cost of a large batch is scaled up from parts."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from graphmill.cluster.options import TrainOptions
from graphmill.cluster.tasks import Task
from graphmill.cluster.training.evaluation import deal_split, scored_with
from graphmill.jobs.plan.batch_parts import BatchSize
from graphmill.jobs.plan.run_plan import Plan, duration
from graphmill.jobs.plan.tries import Tried, Tries
from graphmill.jobs.resolve.resolve import ResolvedRun
from graphmill.samplers.vocabulary.options import FullGraphOptions

PLANNED = "rows and batches by plan"
_RETURNED_BYTES = (
    2**30
)  # work of more bytes consists of arrays that the C library maps one by one, and returns when they are freed


def on_top(plan: Plan) -> str:
    """Text that names the work that the plan's time does not include."""
    return "the baselines come on top" if plan.alone else "starting Ray and the baselines come on top"


@dataclass(frozen=True)
class Scoring:
    """Cost of scoring the splits."""

    tried: Tried  # `work_bytes`: drawing the batch, the batch itself, and the pass
    validation: int  # number of batches that a worker scores in one validation
    final: int  # number of batches of a worker for the splits that only the final scores need

    def text(self, plan: Plan, fit: TrainOptions, threads: int) -> str:
        """Part of the plan's line on time: the time of one validation, and the time of all validations and the final scores."""
        validation = self.validation * plan.step_seconds(self.tried, threads)
        whole = duration(self.whole_s(plan, fit, threads))
        return f"a validation about {duration(validation)} ({self.tried.source}), {_validations(fit):,} of them and the final scores about {whole}"

    def whole_s(self, plan: Plan, fit: TrainOptions, threads: int) -> float:
        """Seconds of all validations and the final scores."""
        return (_validations(fit) * self.validation + self.final) * plan.step_seconds(self.tried, threads)


def _validations(fit: TrainOptions) -> int:
    return -(-fit.epochs // fit.eval_every)  # the last epoch always has a validation


def add_training(
    plan: Plan,
    resolved: ResolvedRun,
    tries: Tries,
    training: Any,
    evaluation: Mapping[str, Any],
    task: Task,
    unit: str,
    chunk: tuple[Any, BatchSize] | None = None,
) -> tuple[Tried, int]:
    """Adds the lines on model, steps, batch, memory and time from batches drawn here. Returns (cost of a batch, number of batches in an epoch).

    `training`, `evaluation` (by split): options of the samplers. `chunk`: see `plan_scoring`.
    """
    fit, loader = resolved.fit, resolved.config.loader

    plan.add_model(tries.model)
    drawn = tries.data.sampler(training, plan.micro_batches)
    tried = tries.train(drawn, task)
    scoring = plan_scoring(tries, evaluation, plan, chunk)
    plan.add_steps(drawn.num_batches, fit)
    plan.add_batch(tried, unit)
    plan.add_table_messages(tried)
    # The C library keeps the memory that training has freed, if its arrays are small. Large arrays go back to the system.
    retained = tried.work_bytes if tried.work_bytes < _RETURNED_BYTES else 0
    kept = scoring.validation * scoring.tried.num_bytes
    validated_ahead = min(loader.prefetch, scoring.validation - 1) * scoring.tried.num_bytes
    plan.add_memory(
        {
            **weight_bytes(plan, resolved),
            "batches ahead": min((loader.prefetch + 1) * tried.num_bytes, loader.max_bytes + tried.num_bytes),
            "activations": tried.work_bytes,
            "scoring": max(0, retained + scoring.tried.work_bytes - tried.work_bytes) + validated_ahead,
            **({"kept batches": kept} if kept <= loader.kept_bytes else {}),
            **({PLANNED: planned_bytes(loader.cache_bytes, loader.plan_bytes)} if loader.cache_bytes else {}),
        }
    )
    more = f"{scoring.text(plan, fit, loader.threads)}; {on_top(plan)}"
    scoring_s = scoring.whole_s(plan, fit, loader.threads)
    plan.add_time(tried, plan.most_batches(drawn.num_batches), fit.epochs, loader.threads, more, scoring_s)
    return tried, drawn.num_batches


def planned_bytes(cache_bytes: int, plan_bytes: int) -> int:
    """Bytes of the rows kept by plan and of the batches drawn ahead for the plan; 0 if no rows are kept."""
    return cache_bytes + plan_bytes if cache_bytes else 0


def add_untried(plan: Plan, resolved: ResolvedRun, missing: str) -> None:
    """Adds the lines on batch and memory if the run's graph or set (named by `missing`) does not exist yet."""
    plan.add("batch", f"drawn and timed once the {missing} is there, as is scoring; neither is in the memory yet")
    plan.add_memory(weight_bytes(plan, resolved))


def weight_bytes(plan: Plan, resolved: ResolvedRun) -> dict[str, int]:
    """Bytes of the arrays that are as large as the weights: weights, two moments, best weights, gradients, nodes of the gradient tree that wait, messages, and
    averaged weights."""
    waiting = -(-plan.micro_batches // plan.workers)
    copies = 4 + waiting.bit_length() + (plan.workers > 1) + (resolved.fit.ema_decay is not None)
    return {"weights and optimizer": 4 * (plan.parameters or 0) * copies}


def plan_scoring(
    tries: Tries, evaluation: Mapping[str, Any], plan: Plan, chunk: tuple[Any, BatchSize] | None = None
) -> Scoring:
    """Tries a batch of "valid". `evaluation`: options of the samplers by split.

    `chunk`: sampler options for a chunk of that batch, and the size of the batch, if it is too large to be drawn here. In a graph-parallel run this process
    tries the whole graph, and each worker gets its share of the cost.
    """
    is_shared, workers = isinstance(evaluation["valid"], FullGraphOptions), plan.workers

    def most_batches(options: Any) -> int:
        dealt, positions = deal_split(tries.data, options, plan.micro_batches, 1)
        return dealt.num_batches // positions * -(-positions // workers)

    batches = {split: 1 if is_shared else most_batches(options) for split, options in evaluation.items()}
    scored = scored_with("valid", evaluation)
    validation, final = batches["valid"], sum(count for split, count in batches.items() if split not in scored)
    options, size = (evaluation["valid"], None) if chunk is None else chunk
    tried = tries.score(deal_split(tries.data, options, plan.micro_batches, 1)[0], size=size)
    return Scoring(shared(tried, workers) if is_shared else tried, validation, final)


def shared(tried: Tried, workers: int) -> Tried:
    """A worker's share of a cost that one process tried. Excludes the rows of nodes that have neighbors on other workers."""
    counts = {name: getattr(tried, name) / workers for name in ("nodes", "edges", "roots", "draw_s", "step_s")}
    return replace(tried, **counts, num_bytes=tried.num_bytes // workers, work_bytes=tried.work_bytes // workers)
