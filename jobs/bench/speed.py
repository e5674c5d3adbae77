"""Measures how time and memory of an attention, a layer and a whole model grow with the graph: `graphmill bench speed`.

    graphmill bench speed --log2-to 14 --budget-s 120                       a quick look, on a CPU
    graphmill bench speed --subjects geco "geco, plain" --log2-from 14 --log2-to 20 --levels layer --clock process
    graphmill bench speed --levels attention --subjects grit "grit, plain" ppgt "ppgt, plain" --log2-from 6 --log2-to 9 --width 64
    graphmill bench speed --device cuda --budget-s 1500 --log2-to 21        2M nodes on one GPU

Times the forward pass (without gradients), and the forward and backward passes together, on synthetic graphs with --degree neighbours per node. The levels are
the attention alone, a post-norm block around the attention, and a stack of --layers blocks. GECO's attention cannot be separated from its layer, so GECO's
attention level measures the layer. "plain" is the same computation in plain PyTorch.

Expected results: GECO, GRIT and PPGT are twice as fast as plain in half the memory. Exponents of time are at most 1.15 for GECO, Primphormer and
Performer, and about 2 for the others. Above 2^15 nodes the ratio softmax / geco grows like N / log N (the paper: 169 at 2^21 nodes, arXiv 2406.12059,
figure 2).

In each round every subject runs once; medians over the rounds count. --clock process counts the CPU time of the process, which depends less on other load.
`saved` counts the storages that autograd keeps for the backward pass. `peak` is the growth of resident memory (on CUDA: allocated memory) over both
passes. Nothing is extrapolated: a size that would exceed the free memory or the rest of --budget-s is skipped, and the estimate is shown. Lower bounds
of bytes ("floors", see jobs/bench/speed_subjects.py) are compared with a measured copy. Requires torch, numpy and psutil, and matplotlib for ratio.svg.
If the package is not installed, run `python -m graphmill.jobs.bench.speed` in the root of the repository. results.md, results.json and ratio.svg go
to --out.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from graphmill.core.errors import ConfigError
from graphmill.core.option_checks import Amount, Count, Positive, check_fields
from graphmill.jobs.bench.device import peak_bytes, seconds_of, unless_too_large
from graphmill.jobs.bench.results import check_results, keep, machine, table
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse
from graphmill.jobs.resolve.checks import check_device

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor


Subject = Literal[
    "geco", "geco, plain", "primphormer", "performer", "softmax", "grit", "grit, plain", "ppgt", "ppgt, plain"
]
Level = Literal["attention", "layer", "model"]
PAPER_NODES, PAPER_RATIO = 2**21, 169.0
RESERVE = 1.15  # a size is measured only if the free memory is at least this factor times its estimated memory


@dataclass(frozen=True)
class SpeedConfig:
    """Measure time and memory as graphs grow."""

    subjects: tuple[Subject, ...] = ("geco", "geco, plain", "primphormer", "performer", "softmax", "grit", "ppgt")
    """Attentions (subjects) to measure."""
    levels: tuple[Level, ...] = ("layer", "model")
    """The attention alone, one layer, or the whole model."""
    log2_from: int = 12
    """Base-2 logarithm of the smallest number of nodes."""
    log2_to: int = 17
    """Base-2 logarithm of the largest number of nodes."""
    nodes: tuple[int, ...] = ()
    """Graph sizes in nodes, in place of powers of 2."""
    graphs: Count = 1
    """Number of graphs in a batch, each of the given size; not for GECO."""
    degree: int = 20
    """Number of neighbours per node; must be even."""
    width: Count = 128
    """Channels of a node's state."""
    heads: Count = 8
    """Number of attention heads."""
    layers: Count = 3
    """Number of layers of the whole models."""
    order: Count = 2
    """Order K of GECO."""
    rounds: Count = 5
    """Number of rounds; if the budget is short, fewer rounds run, but at least one."""
    budget_s: Positive = 600.0
    """Seconds for all measurements, divided evenly among subjects and levels. A level passes its unused seconds on to the next level."""
    memory_gb: Amount = 0.0
    """Most memory in GB; 0: all free memory of the device."""
    threads: Count = 1
    """Number of torch threads."""
    device: str = "cpu"
    """PyTorch's name of the device: cpu, cuda or cuda:1."""
    clock: Literal["wall", "process"] = "wall"
    """Clock for times on a CPU."""
    bf16: bool = False
    """Compute under bfloat16 autocast; transforms stay in float32."""
    compile: bool = False
    """Compile with torch.compile."""
    out: Path = Path("runs/bench-speed")
    """Directory of the tables."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.width % self.heads:
            raise ConfigError(f"heads: expected a divisor of the width {self.width}, got {self.heads}; set --heads")
        if self.degree % 2 or not self.sizes() or not 0 < self.degree <= min(self.sizes()) * self.graphs // 2:
            raise ConfigError(
                f"degree: expected an even number up to half the smallest graph, got {self.degree} for sizes "
                f"{self.sizes()}; set --degree, --log2-from and --log2-to"
            )
        if self.graphs > 1 and {"geco", "geco, plain"} & set(self.subjects):
            raise ConfigError(f"graphs: expected 1 for GECO, got {self.graphs}; set --graphs or --subjects")

    def sizes(self) -> list[int]:
        return sorted(self.nodes) if self.nodes else [2**n for n in range(self.log2_from, self.log2_to + 1)]


@dataclass(frozen=True)
class Point:
    """Measurements of one subject on graphs of one size. Seconds are medians over `rounds`; bytes are None if the system does not report them."""

    subject: str
    level: str
    nodes: int
    rounds: int
    forward_s: float
    step_s: float  # forward and backward
    saved_bytes: int
    peak_bytes: int | None


@dataclass(frozen=True)
class Skip:
    """A size that was not measured, and the reason."""

    subject: str
    level: str
    nodes: int
    reason: str


def memory_needed(subject: str, level: str, nodes: int, config: SpeedConfig, before: Point | None) -> int:
    """Estimated bytes for the next size: the peak of the last size times the growth of the largest arrays. For the first size, the estimate counts the
    arrays."""
    from graphmill.jobs.bench.speed_subjects import FIRST_ARRAYS, MEMORY_POWER

    power = MEMORY_POWER.get(subject.partition(",")[0], 1.0)
    if before is not None and before.peak_bytes:
        return int(RESERVE * before.peak_bytes * (nodes / before.nodes) ** power)
    layers = config.layers if level == "model" else 1
    return int(4 * FIRST_ARRAYS[subject] * config.width * layers * config.graphs * nodes**power)


def time_needed(subject: str, nodes: int, before: Point | None) -> float:
    """Estimated seconds of one round, from the last size. 0 if no size was measured before."""
    from graphmill.jobs.bench.speed_subjects import TIME_POWER

    if before is None:
        return 0.0
    return (before.forward_s + before.step_s) * (nodes / before.nodes) ** TIME_POWER.get(subject.partition(",")[0], 1.1)


def measure_size(
    level: str,
    nodes: int,
    config: SpeedConfig,
    before: dict[str, Point],
    budget: dict[str, float],
    say: Callable[[str], None],
) -> tuple[list[Point], list[Skip]]:
    """Measures all subjects on graphs of one size, in turn. `before`: the points of the next smaller size. `budget`: seconds left for each subject."""
    import torch

    from graphmill.jobs.bench.speed_subjects import RegularGraph, Shape, build_subject
    from graphmill.jobs.plan.tries import saved_bytes

    shape = Shape(config.width, config.heads, config.layers, config.order, config.graphs)

    @cache
    def graph() -> RegularGraph:
        return RegularGraph(nodes * config.graphs, config.degree, config.device)

    def start(subject: str) -> "tuple[Callable[[], Tensor], tuple[int, int | None]]":
        step = build_subject(subject, level, shape, graph(), bf16=config.bf16, compiled=config.compile)
        return step, (saved_bytes(step), peak_bytes(step, config.device))

    steps: dict[str, Callable[[], Tensor]] = {}
    memory: dict[str, tuple[int, int | None]] = {}
    rounds: dict[str, int] = {}
    skips: list[Skip] = []
    for subject in config.subjects:
        needed_s, left, began = time_needed(subject, nodes, before.get(subject)), budget[subject], time.perf_counter()
        if 2 * needed_s > left:  # one run measures memory and also warms up; a second run measures time
            reason = (
                f"two runs need about {2 * needed_s:.0f} s, {max(left, 0):.0f} s of its budget left; raise --budget-s"
            )
        else:
            needed = memory_needed(subject, level, nodes, config, before.get(subject))
            less = "a smaller --width, or --bf16"
            started, reason = unless_too_large(partial(start, subject), needed, config.device, config.memory_gb, less)
        if reason:
            skips.append(Skip(subject, level, nodes, reason))
            say(f"{level} {subject}, {nodes} nodes: skipped, {reason}")
            continue
        assert started is not None
        steps[subject], memory[subject] = started
        took_s = time.perf_counter() - began
        budget[subject] -= took_s
        rounds[subject] = max(1, min(config.rounds, int(budget[subject] / max(needed_s or took_s, 1e-9) / 1.2)))

    clock = time.process_time if config.clock == "process" and config.device == "cpu" else time.perf_counter
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for turn in range(max(rounds.values(), default=0)):
        for name, step in steps.items():
            if turn < rounds[name]:
                began = time.perf_counter()
                with torch.no_grad():
                    forward = seconds_of(step, config.device, clock)
                both = seconds_of(lambda step=step: step().backward(), config.device, clock)  # type: ignore[misc]
                times[name].append((forward, both))
                budget[name] -= time.perf_counter() - began
    points = []
    for name, pairs in times.items():
        forward, both = (statistics.median(column) for column in zip(*pairs))
        points.append(Point(name, level, nodes, len(pairs), forward, both, *memory[name]))
        cost = f"{1e3 * forward:.1f} ms forward, {1e3 * both:.1f} ms both"
        say(f"{level} {name}, {nodes} nodes: {cost} ({len(pairs)} rounds)")
    return points, skips


def measure_all(config: SpeedConfig, say: Callable[[str], None]) -> tuple[list[Point], list[Skip]]:
    """Measures every level, size and subject of the config."""
    points: list[Point] = []
    skips: list[Skip] = []
    carried = 0.0
    share = config.budget_s / (len(config.levels) * len(config.subjects))
    for level in config.levels:
        budget: dict[str, float] = {name: share + carried / len(config.subjects) for name in config.subjects}
        before: dict[str, Point] = {}
        for nodes in config.sizes():
            measured, left_out = measure_size(level, nodes, config, before, budget, say)
            before |= {p.subject: p for p in measured}
            points += measured
            skips += left_out
        carried = sum(max(left, 0.0) for left in budget.values())
    return points, skips


def copy_bandwidth(device: str) -> float:
    """Bytes read plus bytes written per second, when an array is copied that is larger than any cache."""
    import torch

    source = torch.ones((64 << 20) if device == "cpu" else (512 << 20), device=device)
    target = torch.empty_like(source)
    times = [seconds_of(lambda: target.copy_(source), device) for _ in range(6)][1:]
    return 2 * source.nbytes / statistics.median(times)


def fit_exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of log(value) over log(size), by least squares."""
    logs = [[math.log(max(value, 1e-12)) for value in column] for column in (sizes, values)]
    return statistics.linear_regression(*logs).slope


def pairs_of(points: Sequence[Point], level: str, above: str, below: str) -> list[tuple[Point, Point]]:
    """The points of two subjects at the sizes at which both were measured, in ascending order of size."""
    first, second = ({p.nodes: p for p in points if (p.level, p.subject) == (level, name)} for name in (above, below))
    return [(first[nodes], second[nodes]) for nodes in sorted(first.keys() & second.keys())]


def ratios(points: Sequence[Point], level: str) -> list[tuple[int, float, float]]:
    """For each size: (N, ratio softmax / geco of the times of the forward pass, the same ratio for the forward and backward passes together)."""
    both = pairs_of(points, level, "softmax", "geco")
    return [(a.nodes, a.forward_s / b.forward_s, a.step_s / b.step_s) for a, b in both]


def papers_ratio(nodes: float) -> float:
    """The paper's ratio at this size: grows like N / log N and passes through the paper's measured point."""
    return PAPER_RATIO * nodes / math.log2(nodes) / (PAPER_NODES / math.log2(PAPER_NODES))


def tables(config: SpeedConfig, points: Sequence[Point], skips: Sequence[Skip], bandwidth: float) -> str:
    """Markdown with the points, exponents, ratios to softmax attention, ratios to the plain form, floors and skipped sizes."""
    columns = {"level": "", "subject": "", "nodes": "", "rounds": "", "forward ms": ".1f", "both ms": ".1f"}
    columns |= {"saved MB": ",.1f", "peak MB": ",.1f"}
    rows = []
    for p in points:
        megabytes = (p.saved_bytes / 1e6, p.peak_bytes and p.peak_bytes / 1e6)
        rows.append((p.level, p.subject, p.nodes, p.rounds, 1e3 * p.forward_s, 1e3 * p.step_s, *megabytes))
    lines = table(columns, rows)
    for level in config.levels:
        lines += _level_tables(config, points, level)
    lines += floor_table(config, points, bandwidth)
    columns = dict.fromkeys(("skipped", "level", "nodes", "why"), "")
    return "\n".join([*lines, *_section(columns, [(s.subject, s.level, s.nodes, s.reason) for s in skips])])


def _section(columns: dict[str, str], rows: Sequence[Sequence[object]]) -> list[str]:
    """A table after an empty line; an empty list if there are no rows."""
    return ["", *table(columns, rows)] if rows else []


def _level_tables(config: SpeedConfig, points: Sequence[Point], level: str) -> list[str]:
    exponents, plain_rows = [], []
    for name in config.subjects:
        own = [p for p in points if (p.level, p.subject) == (level, name)]
        sizes = [p.nodes for p in own]
        if len(own) > 1:
            slopes = (fit_exponent(sizes, column) for column in zip(*[(p.step_s, p.saved_bytes) for p in own]))
            exponents.append((name, f"{sizes[0]}–{sizes[-1]}", *slopes))
        for ours, plain in pairs_of(points, level, name, f"{name}, plain"):
            peak = ours.peak_bytes / plain.peak_bytes if ours.peak_bytes and plain.peak_bytes else None
            fast = (plain.forward_s / ours.forward_s, plain.step_s / ours.step_s)
            plain_rows.append((name, ours.nodes, *fast, ours.saved_bytes / plain.saved_bytes, peak))
    lines = _section({level: "", "nodes": "", "exponent of time, both": ".2f", "of saved memory": ".2f"}, exponents)
    columns = {level: "", "nodes": "", "times as fast as plain, forward": ".2f", "both": ".2f"}
    lines += _section(columns | {"of its saved memory": ".2f", "of its peak": ".2f"}, plain_rows)
    softmax = ratios(points, level)
    columns = {f"{level}: nodes": "", "softmax / geco, forward": ".3g", "both": ".3g"}
    columns |= {"169 · (N / log N) / (2M / log 2M)": ".3g"}
    lines += _section(columns, [(*row, papers_ratio(row[0])) for row in softmax])
    large = [(papers_ratio(nodes), both) for nodes, _, both in softmax if nodes >= 2**15]
    if len(large) > 1:
        lines += ["", f"Slope of both against N / log N from 2^15 on: {fit_exponent(*zip(*large)):.2f}."]
    return lines


def floor_table(config: SpeedConfig, points: Sequence[Point], bandwidth: float) -> list[str]:
    """Times of GECO layers, compared with the time to copy the fewest bytes that a layer must move."""
    from graphmill.jobs.bench.speed_subjects import floor_bytes, gather_bytes, layer_flops

    item, rows = 2 if config.bf16 else 4, []
    for p in points:
        if (p.level, p.subject) != ("layer", "geco"):
            continue
        size = (p.nodes, p.nodes * config.degree, config.width)
        forward, both = (floor_bytes(*size, config.order, backward=also, item=item) for also in (False, True))
        gathered = both + gather_bytes(*size, item)
        flops = layer_flops(*size, config.order, 64)
        shares = (forward / bandwidth / p.forward_s, both / bandwidth / p.step_s, gathered / bandwidth / p.step_s)
        rows.append((p.nodes, forward / 1e9, both / 1e9, *shares, flops / 1e9, flops / p.step_s / 1e9))
    columns = {"geco layer: nodes": "", "floor GB, forward": ".2f", "both": ".2f", "share of time, forward": ".1%"}
    columns |= {"share, both": ".1%", "with gathers uncached": ".1%", "GFLOP, both": ".1f", "GFLOP/s": ".1f"}
    return ["", f"Copy: {bandwidth / 1e9:.1f} GB/s, read plus written.", *_section(columns, rows)] if rows else []


def plot(config: SpeedConfig, points: Sequence[Point], head: str, path: Path) -> "Axes":
    """Writes an SVG of the ratio softmax / geco over N, with the paper's point and a curve N / log N through that point."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.add_subplot(title=f"Time of softmax attention / GECO ({head})", xlabel="nodes", ylabel="times")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for level in config.levels:
        nodes, *times = list(zip(*ratios(points, level))) or [(), (), ()]
        for values, passes in zip(times, ("forward", "both"), strict=True):
            axes.plot(nodes, values, "o-", label=f"{level}, {passes}")
    sizes = [2**n for n in range(12, 22)]
    axes.plot(sizes, [papers_ratio(n) for n in sizes], "--", label="N / log N")
    axes.plot([PAPER_NODES], [PAPER_RATIO], "o", label="paper, 169")
    axes.legend()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "graphmill"}):  # texts stay texts, not outlines
        figure.savefig(path, metadata={"Date": None})
    return axes


def bench(config: SpeedConfig, say: Callable[[str], None]) -> tuple[list[Point], list[Skip]]:
    """Measures all levels, then writes and prints the tables."""
    import torch

    torch.set_num_threads(config.threads)
    check_device(config.device)
    check_results(config.out)
    bandwidth = copy_bandwidth(config.device)
    points, skips = measure_all(config, say)
    on = machine(config.device)
    clock = f"{config.threads} threads, {config.clock} clock, {'bf16' if config.bf16 else 'float32'}"
    head = f"width {config.width}, {config.heads} heads, degree {config.degree}, {on}, {clock}"
    text = f"{head}\n\n{tables(config, points, skips, bandwidth)}"
    keep(config.out, config, text, on=head, copy_bytes_per_s=bandwidth, points=points, skipped=skips)
    say(text)
    if find_spec("matplotlib") is None:
        say("no ratio.svg: matplotlib is not installed")
    else:
        plot(config, points, on, config.out / "ratio.svg")
    return points, skips


def main() -> None:
    bench(parse(SpeedConfig, __doc__), lambda line: print(line, flush=True))


if __name__ == "__main__":
    run(main)
