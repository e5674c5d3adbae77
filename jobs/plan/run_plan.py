"""`--plan`: computes the counts, memory and time of a run in this process. Starts, prepares and writes nothing.

If the run would join a cluster, the plan asks the cluster for its resources. The plan's memory and time are then those of the cluster's hosts, if they are like
this machine.

Counts come from the files of the graph or set. Bytes, memory and times come from a few batches (`graphmill.jobs.plan.tries`). Memory and times are
marked as estimates.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch

from graphmill.cluster.checkpoints.checkpoint_store import checkpoints_of
from graphmill.cluster.embeddings.client import message_bytes
from graphmill.cluster.embeddings.rows import table_bytes
from graphmill.cluster.options import TrainOptions, WorkerOptions
from graphmill.cluster.ray.placement import Resources, resources_now
from graphmill.cluster.ray.session import ray_session
from graphmill.cluster.runs.run_store import RunStore
from graphmill.core.errors import GraphmillError
from graphmill.core.parallel_map import num_cores
from graphmill.core.process_memory import own_bytes
from graphmill.core.summaries import counted, size
from graphmill.jobs.config.config import RunConfig
from graphmill.jobs.config.registry import find_kind
from graphmill.jobs.machine.memory_check import available_bytes, trim_heap
from graphmill.jobs.machine.this_machine import known_resources
from graphmill.jobs.plan.tries import Tried
from graphmill.jobs.resolve.checks import choose_run_dir
from graphmill.jobs.resolve.resolve import Facts, ResolvedRun, resolve, step_warnings

_MARGIN = 1.2  # ratio: planned memory / counted memory
_USABLE = 0.9  # share of the free memory that a run may take


class Plan:
    """The plan of a job under construction: its lines, and the errors with which the job would end. Create the plan before any batch is drawn."""

    def __init__(self, job: str, workers: int, object_store_gb: float, cluster: Resources | None = None) -> None:
        """`cluster`: resources of the cluster that the run would join; None: the run stays on this machine."""
        self.job, self.workers, self.object_store_gb, self.cluster = job, workers, object_store_gb, cluster
        self.micro_batches = workers  # number in a step
        self.shared_bytes = 0  # rows that the workers of a host share, in bytes
        # Number of partition servers. Pages of their mapped files do not count as memory, because the system may take them back.
        self.servers = 0
        self.alone = False  # the run has one process, without Ray
        self.table_owners = 0  # number of processes that own the embedding table
        self.table_bytes = 0  # bytes of each owner: its rows and, after a batch was tried, its messages
        self._table_shape = 0, 0  # (number of rows, width of a row)
        self._message_bytes = 0
        self.parameters: int | None = None
        self.parts: dict[str, int] = {}  # bytes of a worker's memory, by purpose
        self.promised: tuple[float, float, float] | None = None  # see `RunOptions.promise`
        self.lines: list[tuple[str, str]] = []
        self.problems: list[str] = []
        self._process_bytes = own_bytes("RssAnon") or 300 * 2**20  # this process has the same imports as a worker

    @contextmanager
    def refused(self) -> Iterator[None]:
        """Records the error with which the job itself would end."""
        try:
            yield
        except GraphmillError as error:
            self.problems.append(" ".join(str(error).split()))

    def print(self) -> None:
        print(f"plan of {self.job}; nothing is started or written")
        for name, text in [*self.lines, *(("refused", problem) for problem in self.problems or ["nothing"])]:
            print(f"{name:>12}  {text}")

    def add(self, name: str, text: str) -> None:
        self.lines.append((name, text))

    def add_chosen(self, resolved: ResolvedRun) -> None:
        """Adds the options that were chosen automatically, with the reasons."""
        for choice in resolved.choices:
            self.add("chosen", choice)

    def place(self, resolved: ResolvedRun, partitions: int) -> None:
        """Sets the resolved workers and micro-batches. `partitions`: number of the graph's partitions; if the run's workers are Ray's, each host that serves
        some of them has one partition server."""
        self.workers, self.alone = resolved.workers.most, resolved.workers.launcher == "process"
        self.micro_batches = resolved.micro_batches
        self.shared_bytes = resolved.config.loader.shared_bytes
        self.servers = 0 if self.alone else min(partitions, self.hosts)

    def add_table(self, resolved: ResolvedRun, num_nodes: int) -> None:
        """Adds the line on the embeddings of `num_nodes` nodes, if the run has embeddings. Call after `place`."""
        options = resolved.config.embeddings
        if not options.width:
            return
        self._table_shape = num_nodes, options.width
        self.table_owners = 0 if self.alone else options.owners or self.hosts
        self.table_bytes = table_bytes(options.width, options.optimizer, num_nodes, self.table_owners or 1)
        where = "here" if self.alone else f"in {counted(self.table_owners, 'owner')} of {size(self.table_bytes)} each"
        self.add(
            "embeddings",
            f"{num_nodes:,} rows of {options.width}, {size(4 * options.width * num_nodes)}, with the best epoch's and the state of {options.optimizer} "
            f"{where}",
        )

    def add_table_messages(self, tried: Tried) -> None:
        """Adds the bytes of a step's messages to each owner's memory, if the run has embeddings. Call after `add_table` and before `add_memory`."""
        num_nodes, width = self._table_shape
        if width:
            self._message_bytes = message_bytes(
                width, num_nodes, self.table_owners or 1, self.workers, self.micro_batches, tried.nodes
            )
            self.table_bytes += self._message_bytes

    def add_model(self, model: torch.nn.Module) -> None:
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        kind = type(getattr(model, "model", model)).__name__
        self.add("model", f"{kind}, {self.parameters:,} parameters, {size(4 * self.parameters)}")

    def add_steps(self, num_batches: int, fit: TrainOptions) -> None:
        """Adds the number of optimizer steps of an epoch that has `num_batches` batches over all workers."""
        steps = num_batches // self.micro_batches
        text = f"{num_batches:,} batches an epoch in {counted(steps, 'optimizer step')} of {counted(self.micro_batches, 'micro-batch')}, over {counted(self.workers, 'worker')}"
        self.add_all_steps(f"{text}; {steps * fit.epochs:,} steps", steps, fit)

    def most_batches(self, num_batches: int) -> int:
        """Number of batches of the worker with the most batches, if all workers together have `num_batches`."""
        return num_batches // self.micro_batches * -(-self.micro_batches // self.workers)

    def add_all_steps(self, text: str, steps_per_epoch: int, fit: TrainOptions) -> None:
        """Adds the number of steps of all epochs, and a warning if there are too few steps."""
        early = ""
        if fit.patience is not None:
            early = f" at most: {fit.patience} validations in a row without a better one end them"
        self.add("steps", f"{text} in {counted(fit.epochs, 'epoch')}{early}")
        for warning in step_warnings(steps_per_epoch * fit.epochs, fit.num_warmup_steps(steps_per_epoch)):
            self.add("warning", warning)

    def add_batch(self, tried: Tried, unit: str) -> None:
        self.add(
            "batch",
            f"{tried.roots:,.0f} {unit}, {tried.nodes:,.0f} nodes, {tried.edges:,.0f} edges, {size(tried.num_bytes)} "
            f"(mean of {tried.count} drawn, bytes of the largest); {self.micro_batches * tried.roots:,.0f} {unit} a step",
        )

    def add_memory(self, parts: Mapping[str, int]) -> None:
        """Adds the memory of a host. `parts`: bytes of one worker by purpose, without the bytes of its process."""
        own_table = {"embeddings": self.table_bytes} if self.table_bytes and self.alone else {}
        trim_heap()
        process = max(
            self._process_bytes, own_bytes("RssAnon")
        )  # after the tries: with the loops and libraries that they loaded
        self.parts = parts = {"process": process, **parts, **own_table}
        total = self.host_bytes(parts, self.workers, self.shared_bytes)
        worker, free = self.worker_bytes(parts), available_bytes()
        workers, servers = self.on_a_host(self.workers), self.on_a_host(self.servers)
        sharing = f", {size(self.shared_bytes)} of rows that they share" if self.shared_bytes and workers > 1 else ""
        described = ", ".join(f"{name} {size(value)}" for name, value in parts.items())
        others = f", {counted(servers, 'partition server')}" if servers else ""
        if owners := self.on_a_host(self.table_owners):
            messages = f", {size(self._message_bytes)} of it for messages of a step" if self._message_bytes else ""
            others += f", {counted(owners, 'owner')} of embeddings ({size(self.table_bytes)} each beside the process{messages})"
        per_host, where = ("", "here") if self.hosts == 1 else (" of a host", "on this host")
        verdict = all_in_all = ""
        if total > _USABLE * free:
            verdict = "; MORE than is free: use fewer workers, smaller batches or more machines"
        if not self.alone:
            processes = f"{counted(workers, 'worker')}{sharing}{others}"
            all_in_all = f"{processes} and the object store{per_host} about {size(total)}, "
        self.add(
            "memory",
            f"about {size(worker)} a worker (estimate: {described}, and a fifth); {all_in_all}{size(free)} free {where}{verdict}",
        )

    @staticmethod
    def worker_bytes(parts: Mapping[str, int]) -> int:
        """Bytes of a worker that has these parts, with a safety margin."""
        return int(_MARGIN * sum(parts.values()))

    def host_bytes(self, parts: Mapping[str, int], workers: int, shared_bytes: int = 0) -> int:
        """Bytes of a host: its share of the `workers`, the rows that these workers share, its servers, its owners of embeddings, and the object store."""
        store = 0 if self.alone else int(self.object_store_gb * 2**30)
        servers = self.on_a_host(self.servers) * self._process_bytes
        shared = shared_bytes if self.on_a_host(workers) > 1 else 0
        tables = self.on_a_host(self.table_owners) * (self.table_bytes + self._process_bytes)
        return self.on_a_host(workers) * self.worker_bytes(parts) + shared + servers + tables + store

    @property
    def free_bytes(self) -> int:
        """Free bytes of a host that a run may use."""
        return int(_USABLE * available_bytes())

    def add_time(
        self, tried: Tried, batches_each: int, epochs: int, threads: int, more: str, scoring_s: float = 0.0
    ) -> None:
        """Adds the time of an epoch and of all epochs, computed from the tried steps. `epochs` 0: one pass over `batches_each` batches. `scoring_s`: seconds of all
        validations and final scores."""
        seconds = batches_each * self.step_seconds(tried, threads)
        each, whole = "all of it", ""
        if epochs:
            each, whole = "an epoch", f", {epochs:,} epochs about {duration(epochs * seconds)}"
        self.add(
            "time",
            f"{each} about {duration(seconds)}{whole} (estimate for {self._cores_text()} with nothing else to do: "
            f"processor time of a step {duration(tried.step_s)}, of drawing its batch {duration(tried.draw_s)}, one thread, "
            f"{tried.source}); {more}",
        )
        cost = self.workers * batches_each * max(epochs, 1) * (tried.step_s + tried.draw_s)
        self.add("CPU time", f"about {cost:.4g} CPU seconds in steps and their batches; {more}")
        whole_s = epochs * seconds + scoring_s
        self.promised = sum(self.parts.values()) / 2**20, tried.step_s + tried.draw_s, whole_s

    def add_promise(self, price_per_hour: float) -> None:
        """Adds the option by which the run's summary compares the run with this plan, and the cost. Call after `add_time`."""
        if self.promised is None:
            return
        numbers, hosts = " ".join(f"{number:.4g}" for number in self.promised), min(self.hosts, self.workers)
        self.add("promise", f"--run.promise {numbers}: with it, the run's summary prints these figures beside its own")
        if price_per_hour:
            whole_s = self.promised[2]
            self.add(
                "cost",
                f"about {price_per_hour * hosts * whole_s / 3600:,.2f}: {counted(hosts, 'machine')} for {duration(whole_s)} at "
                f"{price_per_hour:g} an hour each (--run.price_per_hour); starting and the baselines come on top",
            )

    def step_seconds(self, tried: Tried, threads: int) -> float:
        """Seconds of a step and its batch, if the workers of a host share the host's cores."""
        all_s = self.on_a_host(self.workers) * (tried.step_s + tried.draw_s)
        return max(tried.step_s, tried.draw_s / threads, all_s / self.cores)

    @property
    def hosts(self) -> int:
        return 1 if self.cluster is None else self.cluster.hosts

    def on_a_host(self, count: int) -> int:
        """Number of processes on the host with the most processes, if `count` processes are spread evenly over the hosts."""
        return -(-count // self.hosts)

    @property
    def cores(self) -> int:
        """Number of cores of a host."""
        return num_cores() if self.cluster is None else max(1, self.cluster.cpus // self.hosts)

    def most_workers(self, options: WorkerOptions) -> int:
        """Largest number of workers on a host, limited by its cores or GPUs."""
        slots = self.cores // options.cpus_per_worker
        gpus = 0 if self.cluster is None else self.cluster.gpus // self.hosts
        return max(1, min(slots, gpus) if options.device == "gpu" else slots)

    def _cores_text(self) -> str:
        if self.cluster is None:
            return f"this machine's {num_cores()} cores"
        return f"{self.cores} cores on each of {self.hosts} hosts"

    def add_run(self, run_dir: RunStore, config: RunConfig) -> None:
        """Adds the lines on Ray, the run directory, the epoch from which the run continues, and its checkpoints."""
        started = f"a local one with {config.ray.object_store_gb:g} GiB of object store, or the cluster that the job is submitted to"
        address, fit, origin = config.ray.address, config.fit, "new"
        if self.cluster is not None:
            started = f"the cluster at {address or 'RAY_ADDRESS'}: {self.cluster} on {self.hosts} hosts"
        self.add("ray", "not started: this process is the one worker" if self.alone else started)
        if config.run.resume is not None:
            checkpoints = checkpoints_of(run_dir)
            origin = "continued from its beginning: there is no checkpoint"
            if names := checkpoints.names():
                origin = f"continued from epoch {checkpoints.state(names[0]).next_epoch}"
        self.add("run", f"{run_dir}, {origin}")
        minutes = "" if fit.checkpoint_minutes is None else f", and at least every {fit.checkpoint_minutes:g} minutes"
        # Arrays of the weights' size: weights, two moments, best weights, and the averaged weights if the run has them.
        copies = 4 + (fit.ema_decay is not None)
        each = "" if self.parameters is None else f", {size(4 * self.parameters * copies)} each"
        kept = config.workers.keep_checkpoints
        self.add_promise(config.run.price_per_hour)
        self.add("checkpoints", f"every {fit.checkpoint_every} epochs{minutes}; the last {kept} kept{each}")


def plan_run(job: str, config: RunConfig, look: Callable[[Plan, ResolvedRun, Resources | None, RunStore], None]) -> int:
    """Prints the plan of a run and returns the exit status: 1 if the run would be refused. Raises only errors about the run's options. `look` adds the lines
    that depend on the data."""
    cluster = _cluster(config)
    resources = cluster or known_resources(config.workers, config.ray)
    # Choices that depend on the size of the data, such as the micro-batches of one process, are made after `look` has read the data.
    resolved = replace(resolve(config, Facts(find_kind(config.kind).inputs, {}, resources)), config=config)
    run_dir = choose_run_dir(job, config.run)
    plan = Plan(job, resolved.workers.most, config.ray.object_store_gb, cluster)
    plan.place(resolved, 0)
    look(plan, resolved, resources, run_dir)
    plan.add_run(run_dir, config)
    plan.print()
    return 1 if plan.problems else 0


def _cluster(config: RunConfig) -> Resources | None:
    """Resources of the cluster that the run would join; None: the run joins no cluster."""
    if known_resources(config.workers, config.ray) is not None:
        return None
    with ray_session(config.ray):
        return resources_now()


def duration(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
