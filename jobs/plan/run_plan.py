"""`--plan`: what a run would use, counted, measured or estimated in this process. Nothing is started, prepared or written.

Counts come from the graph's or set's own files; bytes, memory and times from a few batches that are drawn here, by the run's own samplers,
and trained on with the run's own model, by one thread. Memory and times are estimates, and are said as such.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cluster.checkpoint import latest_checkpoint, load_state
from cluster.options import SessionOptions, TrainOptions
from cluster.tasks import Task, step_output
from cluster.training_data import OpenData
from jobs.plan.saved_bytes import saved_bytes
from jobs.run.config import RunConfig
from jobs.run.memory_check import available_bytes, own_bytes, trim_heap
from samplers.options import LoaderOptions
from samplers.protocol import Sampler
from storage.errors import GraphmillError
from storage.ordered_map import num_cores

_TRIED_BATCHES = 2
_ENOUGH_S = 20.0  # after this long no further batch is tried
_MARGIN = 1.2  # of memory, over what is counted

# (name, what there is to say of it)
Line = tuple[str, str]


@dataclass(frozen=True)
class Tried:
    """Batches that were drawn and trained on in this process: means of them, the largest where memory is meant."""

    count: int
    nodes: float
    edges: float
    roots: float
    num_bytes: int  # of the largest
    draw_s: float  # of one thread's processor time, which other work on the machine stretches less than the clock's
    step_s: float  # forward, backward, update; forward alone where there was no training
    work_bytes: int  # of the largest: what a step takes beyond the model and the batch; of a pass alone, drawing and the batch are in it


def count_parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def try_batches(
    data: OpenData,
    sampler: Sampler,
    model: torch.nn.Module,
    task: Task,
    *,
    complete: Callable[[Any], Any] = lambda batch: batch,
) -> Tried:
    """Draws the first and the last batch of an epoch and does a step on each, by one thread, after one pass that is not timed.

    `complete` adds to a batch what is not stored yet, in its shape.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model.train()

    def collated(number: int) -> Any:
        return complete(data.collate(sampler.sample(0, number)))

    def loss(batch: Any) -> torch.Tensor:
        output = step_output(model(batch))
        target = data.target(batch)
        total = task.loss(output.prediction, target) / task.weight(target).clamp_min(1).float()
        return total if output.penalty is None else total + output.penalty.float()

    def step(batch: Any) -> None:
        loss(batch).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    steps: list[tuple[float, float, int, int, int, int]] = []
    began = time.perf_counter()
    with one_thread():
        first = collated(0)  # compiles what is compiled
        step(first)
        work = max(saved_bytes(lambda: loss(first)), growth_bytes(lambda: loss(first).backward()))
        optimizer.zero_grad(set_to_none=True)
        for number in dict.fromkeys((0, sampler.num_batches - 1)[:_TRIED_BATCHES]):
            started = time.process_time()
            batch = collated(number)
            drawn = time.process_time()
            step(batch)
            steps.append(
                (
                    drawn - started,
                    time.process_time() - drawn,
                    *data.sizes(batch),
                    len(data.target(batch)),
                    num_bytes_of(batch),
                )
            )
            if time.perf_counter() - began > _ENOUGH_S:
                break
    draw, did, nodes, edges, predicted, num_bytes = zip(*steps, strict=True)
    count = len(steps)
    return Tried(
        count,
        sum(nodes) / count,
        sum(edges) / count,
        sum(predicted) / count,
        max(num_bytes),
        sum(draw) / count,
        sum(did) / count,
        work,
    )


def growth_bytes(work: Callable[[], object]) -> int:
    """How much more memory is resident at the height of `work` than before it; 0 where the system does not tell."""
    trim_heap()  # what the allocator holds free would hide the growth
    try:
        Path("/proc/self/clear_refs").write_text("5")  # sets the high-water mark to what is resident now
    except OSError:
        work()
        return 0
    before = own_bytes("VmRSS")
    work()
    return max(0, own_bytes("VmHWM") - before)


@contextmanager
def one_thread() -> Iterator[None]:
    """torch computes with one thread inside the block, as a worker on one CPU does."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def num_bytes_of(batch: Any) -> int:
    """Bytes of a batch's tensors."""
    tensors = sum(value.nbytes for value in vars(batch).values() if isinstance(value, torch.Tensor))
    return max(tensors, int(getattr(batch, "num_bytes", 0)))


@contextmanager
def refused(problems: list[str]) -> Iterator[None]:
    """Collects the error that the run itself would end with."""
    try:
        yield
    except GraphmillError as error:
        problems.append(" ".join(str(error).split()))


def model_line(model: torch.nn.Module) -> Line:
    count = count_parameters(model)
    return "model", f"{type(getattr(model, 'model', model)).__name__}, {count:,} parameters, {size(4 * count)}"


def steps_line(num_batches: int, workers: int, fit: TrainOptions) -> Line:
    """Batches of an epoch over all workers, and what they come to."""
    each = num_batches // workers
    updates = -(-each // fit.accumulate)
    return (
        "steps",
        f"{num_batches:,} batches an epoch over {workers} workers, {each:,} each in {updates:,} optimizer steps; "
        f"{updates * fit.epochs:,} steps in {fit.epochs:,} epochs",
    )


def batch_line(tried: Tried, unit: str) -> Line:
    return (
        "batch",
        f"{tried.roots:,.0f} {unit}, {tried.nodes:,.0f} nodes, {tried.edges:,.0f} edges, {size(tried.num_bytes)} "
        f"(mean of {tried.count} drawn, bytes of the largest)",
    )


def training_memory(
    process: int, parameters: int, tried: Tried | None, fit: TrainOptions, loader: LoaderOptions, workers: int
) -> dict[str, int]:
    """Bytes of one worker by what they are for; without a batch, what does not depend on one. `process`: see `process_bytes`."""
    copies = (
        5 + (workers > 1) + (fit.ema_decay is not None)
    )  # weights, gradients, two moments, best; DDP's buckets; average
    parts = {"process": process, "weights and optimizer": 4 * parameters * copies}
    if tried is not None:
        ahead = min((loader.prefetch + 1) * tried.num_bytes, loader.max_bytes + tried.num_bytes)
        parts |= {"batches ahead": ahead, "activations": tried.work_bytes}
    return parts


def process_bytes() -> int:
    """Memory of this process, which has imported what a worker imports. Call it before anything is drawn."""
    return own_bytes("RssAnon") or 300 * 2**20


def memory_line(parts: dict[str, int], workers: int, servers: int, run_store: float) -> Line:
    """`servers`: processes of partitions, whose mapped files are shared pages that the system may take back."""
    worker = int(_MARGIN * sum(parts.values()))
    total = workers * worker + servers * parts["process"] + int(run_store * 2**30)
    free = available_bytes()
    said = ", ".join(f"{name} {size(value)}" for name, value in parts.items())
    others = f", {servers} partition servers" if servers else ""
    verdict = "" if total <= 0.9 * free else "; MORE than is free: use fewer workers, smaller batches or more machines"
    return (
        "memory",
        f"about {size(worker)} a worker (estimate: {said}, and a fifth); {workers} workers{others} and the object store about "
        f"{size(total)}, {size(free)} free here{verdict}",
    )


def step_seconds(tried: Tried, workers: int, threads: int) -> float:
    """Seconds of a step with its batch, where all workers share this machine's cores."""
    return max(tried.step_s, tried.draw_s / threads, workers * (tried.step_s + tried.draw_s) / num_cores())


def time_line(tried: Tried, batches_each: int, workers: int, epochs: int, threads: int, more: str) -> Line:
    """An epoch by the steps tried."""
    epoch = batches_each * step_seconds(tried, workers, threads)
    named = "an epoch" if epochs else "all of it"
    whole = "" if epochs < 1 else f", {epochs:,} epochs about {duration(epochs * epoch)}"
    return (
        "time",
        f"{named} about {duration(epoch)}{whole} (estimate for this machine's {num_cores()} cores with nothing else to do: processor time "
        f"of a step {duration(tried.step_s)}, of drawing its batch {duration(tried.draw_s)}, one thread, {tried.count} tried); {more}",
    )


def run_lines(run_dir: Path, config: RunConfig, parameters: int | None) -> list[Line]:
    """Where the run is kept, what it goes on from, and its checkpoints."""
    where, fit = f"{run_dir}, new", config.fit
    if config.run.resume is not None:
        checkpoint = latest_checkpoint(run_dir)
        at = (
            "its beginning: there is no checkpoint"
            if checkpoint is None
            else f"epoch {load_state(checkpoint).next_epoch}"
        )
        where = f"{run_dir}, continued from {at}"
    minutes = "" if fit.checkpoint_minutes is None else f", and at least every {fit.checkpoint_minutes:g} minutes"
    bytes_each = None if parameters is None else 4 * parameters * (4 + (fit.ema_decay is not None))
    each = "" if bytes_each is None else f", {size(bytes_each)} each"
    return [
        ("run", where),
        (
            "checkpoints",
            f"every {fit.checkpoint_every} epochs{minutes}; the last {config.workers.keep_checkpoints} kept{each}",
        ),
    ]


def ray_line(ray: SessionOptions) -> Line:
    if ray.address is not None:
        return "ray", f"the cluster at {ray.address}, which is not asked here"
    return (
        "ray",
        f"a local one with {ray.object_store_gb:g} GiB of object store, or the cluster that the job is submitted to",
    )


def print_plan(job: str, lines: Sequence[Line], problems: Sequence[str]) -> None:
    print(f"plan of {job}; nothing is started or written")
    told = [*lines, *(("refused", problem) for problem in problems or ["nothing"])]
    for name, text in told:
        print(f"{name:>12}  {text}")


def size(num_bytes: float) -> str:
    """In the largest unit that leaves a figure before the point."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:,.1f} {unit}"
    return f"{num_bytes:,.0f} bytes"


def duration(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
