"""Executes a run of any kind: opens, resolves, checks and serves its data, trains the model, compares it with the baselines, and reports. Also prints the plan
of a run."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from graphmill.cluster.process.subnormals import flushed_subnormals
from graphmill.cluster.ray.placement import Resources, cluster_resources
from graphmill.cluster.ray.session import ray_session
from graphmill.cluster.runs.run_store import RunStore
from graphmill.cluster.training.one_process import ProcessLauncher
from graphmill.jobs.baselines.node_baselines import Baselines, begin_baselines
from graphmill.jobs.config.config import RunConfig
from graphmill.jobs.config.registry import find_kind
from graphmill.jobs.leaks.beside_run import audit_lines
from graphmill.jobs.machine.this_machine import known_resources, local_session
from graphmill.jobs.records.verdict import end_of_run
from graphmill.jobs.resolve.checks import choose_run_dir
from graphmill.jobs.resolve.resolve import Facts, ResolvedRun, resolve
from graphmill.jobs.resolve.typed_facts import predicted_type
from graphmill.jobs.run.training_run import (
    Ready,
    check_resume,
    end_finished,
    finished_summary,
    print_end,
    train_and_score,
)
from graphmill.jobs.subjects.subject import Subject, subject_class
from graphmill.storage.graph import StoredGraph, TypedGraph
from graphmill.storage.graph_sets.graph_set import StoredGraphs

if TYPE_CHECKING:
    from graphmill.jobs.plan.run_plan import Plan


@flushed_subnormals()
def run_subject(job: str, config: RunConfig) -> int:
    """Trains, and returns the exit status: 1 if the model does not beat the baselines and `run.require_baselines` is set, else 0."""
    started_s = time.monotonic()
    resources = known_resources(config.workers, config.ray)
    resolve(config, Facts(find_kind(config.kind).inputs, {}, resources))  # before the data is read
    run_dir = choose_run_dir(job, config.run)
    subject = subject_class(config).open(config)
    resolved = subject.resolve(config, resources)
    subject.check(resolved)
    subject = subject.completed(resolved)
    # A resumed run opens the same snapshot.
    asked = replace(config, data=replace(config.data, snapshot=subject.manifest.snapshot))
    resolved = replace(resolved, config=replace(resolved.config, data=asked.data))
    config, origin = resolved.config, subject.manifest.origin
    if config.run.resume is not None:
        check_resume(run_dir, resolved)
        if (done := finished_summary(run_dir, resolved)) is not None:
            return end_finished(done, run_dir, config.run)
    copied_from = "" if origin is None else f", a copy of {origin}"
    print(f"{subject.entry} {subject.text}{copied_from}", flush=True)
    if unread := subject.unread(resolved):
        print(unread, flush=True)
    lacks = subject.lacks(resolved)
    if lacks:
        print(f"splits lack: {'; '.join(lacks)}", flush=True)
    audited = cheap_audit(subject, resolved)
    if audited:
        print("\n".join(audited), flush=True)
    if resources is not None:  # otherwise the decision waits until the cluster is known
        resolved.print_choices()
    if config.evaluation.estimate is not None:
        print(f"scores are estimates: {config.evaluation.estimate}; {config.evaluation.kept}", flush=True)
    classic: Baselines = {}
    if config.baseline.networks:
        from graphmill.jobs.baselines.tuned_baselines import train_classic

        classic = {**train_classic(job, config, run_dir, run_subject, is_typed=resolved.is_typed)}
    prepare = _in_this_process if resolved.workers.launcher == "process" else _on_ray
    with prepare(subject, asked, resolved, run_dir) as ready:
        task = subject.task(ready.resolved)

        def fit() -> Baselines:
            return subject.baselines(ready.served, ready.resolved, task) | classic

        alone = ready.resolved.workers.launcher == "process"
        fitted = begin_baselines(fit, subject.rivals(config), alone=alone)
        summary = train_and_score(job, run_dir, ready, task, fitted, lacks, audited, started_s)
    print_end(summary, run_dir)
    return end_of_run(summary, require_baselines=config.run.require_baselines)


def cheap_audit(subject: Subject, resolved: ResolvedRun) -> list[str]:
    """Three lines that `graphmill audit` would say at length. Empty if the data is not on this machine, or is of a user's own kind."""
    stored, config = subject.stored, resolved.config
    if not subject.is_here or not isinstance(stored, StoredGraph | TypedGraph | StoredGraphs):
        return []
    types = next(iter(getattr(stored, "node_types", ("",))))
    if isinstance(stored, TypedGraph) and config.links is None:
        types = config.node_type or predicted_type(stored, None)
    return audit_lines(stored, types, getattr(config.data, "split_set", 0))


@contextmanager
def _in_this_process(subject: Subject, asked: RunConfig, resolved: ResolvedRun, run_dir: RunStore) -> Iterator[Ready]:
    for reason in resolved.reasons:
        print(reason, flush=True)
    subject.check_memory(resolved)
    with subject.here(resolved) as served:
        if not subject.is_here:
            subject.check_served(served, resolved)
        yield Ready(subject, resolved, ProcessLauncher(resolved.workers, run_dir), served, subject.table(resolved))


@contextmanager
def _on_ray(subject: Subject, asked: RunConfig, resolved: ResolvedRun, run_dir: RunStore) -> Iterator[Ready]:
    from graphmill.cluster.embeddings.server import served_owners
    from graphmill.cluster.training.ray_train import WARM, RayTrainLauncher

    before, servers = resolved.workers, resolved.config.servers
    print(f"starting Ray{' and the partition servers' if subject.num_partitions else ''}", flush=True)
    with ExitStack() as stack:
        session = stack.enter_context(ray_session(local_session(resolved.config.workers, resolved.config.ray), WARM))
        # The servers start when the cluster has room for the workers, because partitions go to the workers' hosts.
        resolved = subject.resolve(asked, cluster_resources(before))
        served = stack.enter_context(subject.serving(resolved))
        if not session.is_ours:
            resolved.print_choices()
        for reason in resolved.reasons:
            print(reason, flush=True)
        if session.is_ours:
            subject.check_memory(resolved)
        if subject.num_partitions:
            where = "a local Ray" if session.is_ours else f"the Ray cluster at {session.address}"
            placed = (
                f"partition servers up on {where}: {served.where}"
                if served.where
                else f"partition server up on {where}"
            )
            print(placed, flush=True)
        if resolved.workers != before or not subject.is_here:
            subject.check_served(served, resolved)
        renew, table = served.renewed, subject.table(resolved)
        renewed = None if renew is None else (lambda wait_s, say: subject.shared(renew(wait_s, say), resolved))
        launcher = RayTrainLauncher(resolved.workers, run_dir, renewed, served.full_disks, served.nodes)
        if table is None:
            yield Ready(subject, resolved, launcher, served, None)
            return
        with served_owners(table, resolved.micro_batches, servers) as owners:
            yield Ready(subject, resolved, launcher, served, replace(table, owners=owners))


def plan_subject(job: str, config: RunConfig) -> int:
    """Prints the plan of `run_subject` and returns the exit status. Raises only the errors of the run's options."""
    from graphmill.jobs.plan.run_plan import plan_run

    return plan_run(job, config, _look)


def _look(plan: "Plan", resolved: ResolvedRun, resources: Resources | None, run_dir: RunStore) -> None:
    config = resolved.config
    subject = subject_class(config).find(config)
    if subject is None:
        subject_class(config).plan_unmade(plan, resolved, resources)
        return
    plan.add(subject.entry, subject.text)
    with plan.refused():
        resolved = subject.resolve(config, resources)
        subject.check(resolved)
    with plan.refused():
        if config.run.resume is not None and not plan.problems:
            check_resume(run_dir, resolved)
    if plan.problems:  # without usable data there is no model to plan
        return
    plan.place(resolved, subject.num_partitions)
    plan.add_chosen(resolved)
    if lacks := subject.lacks(resolved):
        plan.add("lacks", "; ".join(lacks))
    with plan.refused():
        subject.plan(plan, resolved)
