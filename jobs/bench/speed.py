"""How time and memory of one layer and of a whole model grow with the graph: `python -m jobs.bench speed`.

    python -m jobs.bench speed --log2-to 14 --budget-s 120                       a look, on a CPU
    python -m jobs.bench speed --subjects geco "geco, plain" --log2-from 14 --log2-to 20 --levels layer --clock process
    python -m jobs.bench speed --device cuda --budget-s 1500 --log2-to 21        2M nodes on one GPU

Forward (without gradients) and forward plus backward of GECO, Primphormer, Performer, softmax attention through SDPA (flash on CUDA),
GRIT and PPGT, each in the same post-norm block with the same feed-forward network and as a stack of --layers of them, on synthetic
graphs of --degree neighbours per node at random places. "geco, plain" is the paper's GECO in plain PyTorch: to be twice as fast
in half the memory. The ratio softmax / geco is printed and plotted beside N / log N through the paper's point, 169 at 2^21 nodes
(arXiv 2406.12059, figure 2; its width, GPU and precision are not told). You should see its slope against N / log N near 1 above 2^15.

Subjects take turns, round by round; medians count. On CUDA, device events; on a CPU the wall clock or, with --clock process, the
process's own time, which other work on the machine disturbs less. `saved` and `peak` are as in jobs/bench/layers.py. Nothing is
extrapolated: a size whose memory (scaled from the last one measured) exceeds what is free, or whose time exceeds what is left of
--budget-s, is skipped with the estimate. Floors are counted in jobs/bench/speed_subjects.py and compared with the device's measured copy.
Needs torch and numpy only, and matplotlib for ratio.svg (where the package is not installed: `python -m jobs.bench.speed` in its root). results.md, results.json and ratio.svg go to --out.
"""

import json
import math
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.bench.layers import fit_exponent, peak_bytes
from jobs.plan.saved_bytes import saved_bytes
from jobs.run.exit_codes import run
from jobs.run.memory_check import trim_heap
from jobs.run.option_checks import check_device, check_writable
from jobs.run.reader import parse as read
from storage.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor

NAMES = ("geco", "geco, plain", "primphormer", "performer", "softmax", "grit", "ppgt")
LEVELS = ("layer", "model")
PAPER_NODES, PAPER_RATIO = 2**21, 169.0
RESERVE = 1.15  # times an estimate of memory, before a size is tried


@dataclass(frozen=True)
class SpeedConfig:
    """Every option, as --log2-to 14 and so on."""

    subjects: tuple[str, ...] = NAMES
    levels: tuple[str, ...] = LEVELS
    log2_from: int = 12  # smallest graph
    log2_to: int = 17  # largest graph
    nodes: tuple[int, ...] = ()  # instead: these sizes, ascending
    degree: int = 20  # neighbours per node, even
    width: int = 128
    heads: int = 8
    layers: int = 3  # of the whole models
    order: int = 2  # GECO's K
    rounds: int = 5  # fewer where the budget asks for it, at least one
    budget_s: float = 600.0  # shared evenly by subjects and levels; a part of it that is not used goes to the next
    memory_gb: float = 0.0  # at most this; 0: what the device has free
    threads: int = 1
    device: str = "cpu"  # cpu or cuda
    clock: str = "wall"  # on a CPU: wall or process
    bf16: bool = False  # autocast; transforms stay float32
    compile: bool = False  # torch.compile
    out: Path = Path("runs/bench-speed")

    def __post_init__(self) -> None:
        for name, chosen, allowed in (("subjects", self.subjects, NAMES), ("levels", self.levels, LEVELS)):
            if not chosen or set(chosen) - set(allowed):
                raise ConfigError(f"{name}: expected some of {', '.join(allowed)}, got {chosen}; set --{name}")
        if self.width % self.heads or min(self.width, self.heads, self.layers, self.order, self.rounds) < 1:
            raise ConfigError(
                f"bench: expected heads that divide the width, and positive layers, order and rounds, got {self.heads} heads, width "
                f"{self.width}, {self.layers} layers, order {self.order}, {self.rounds} rounds; set --heads, --width, --layers, --order "
                "or --rounds"
            )
        if self.clock not in ("wall", "process") or self.device.split(":")[0] not in ("cpu", "cuda"):
            raise ConfigError(f"bench: expected cpu or cuda and wall or process, got {self.device} and {self.clock}")
        if self.budget_s <= 0 or self.threads < 1 or self.memory_gb < 0:
            raise ConfigError(
                f"bench: expected a positive budget and threads, and memory of at least 0, got {self.budget_s:g} s, {self.threads} threads, "
                f"{self.memory_gb:g} GB; set --budget-s, --threads or --memory-gb"
            )
        if self.degree % 2 or not self.sizes() or not 0 < self.degree <= min(self.sizes()) // 2:
            raise ConfigError(
                f"degree: expected an even number up to half the smallest graph, got {self.degree} for sizes "
                f"{self.sizes()}; set --degree, --log2-from and --log2-to"
            )

    def sizes(self) -> list[int]:
        return sorted(self.nodes) if self.nodes else [2**n for n in range(self.log2_from, self.log2_to + 1)]


@dataclass(frozen=True)
class Point:
    """One subject on one graph. Seconds are medians of `rounds`; bytes are None where the system does not tell."""

    subject: str
    level: str
    nodes: int
    edges: int
    rounds: int
    forward_s: float
    step_s: float  # forward and backward
    saved_bytes: int
    peak_bytes: int | None


@dataclass(frozen=True)
class Skip:
    """What was not measured, and why."""

    subject: str
    level: str
    nodes: int
    reason: str


def memory_free(config: SpeedConfig) -> int:
    """Bytes that a pass may still take."""
    import torch

    if config.device != "cpu":
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
    else:
        trim_heap()  # a pass over a million nodes left 9 GB there
        try:
            lines = Path("/proc/meminfo").read_text().splitlines()
            free = 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
        except (OSError, StopIteration):
            free = 1 << 62
    return min(free, int(config.memory_gb * 1e9)) if config.memory_gb else free


def memory_needed(subject: str, level: str, nodes: int, config: SpeedConfig, before: Point | None) -> int:
    """An estimate for the next size: the last size's peak times the growth of the largest arrays; first, a count of arrays."""
    from jobs.bench.speed_subjects import FIRST_ARRAYS, MEMORY_POWER

    power = MEMORY_POWER.get(subject, 1.0)
    if before is not None and before.peak_bytes:
        return int(RESERVE * before.peak_bytes * (nodes / before.nodes) ** power)
    layers = 1 if level == "layer" else config.layers
    return int(4 * FIRST_ARRAYS[subject] * config.width * layers * nodes**power)


def time_needed(subject: str, nodes: int, before: Point | None) -> float:
    """Seconds of one round, from the last size; 0 when nothing is known."""
    from jobs.bench.speed_subjects import TIME_POWER

    if before is None:
        return 0.0
    return (before.forward_s + before.step_s) * (nodes / before.nodes) ** TIME_POWER.get(subject, 1.1)


def _both(step: "Callable[[], Tensor]") -> None:
    step().backward()


def seconds_of(call: Callable[[], Any], config: SpeedConfig) -> float:
    """One run of `call`, by the clock of the config."""
    import torch

    if config.device != "cpu":
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop) / 1e3
    clock = time.process_time if config.clock == "process" else time.perf_counter
    began = clock()
    call()
    return clock() - began


def measure_size(
    level: str,
    nodes: int,
    config: SpeedConfig,
    before: dict[str, Point],
    budget: dict[str, float],
    say: Callable[[str], None],
) -> tuple[list[Point], list[Skip]]:
    """All subjects on one graph, by turns. `before` are the points of the next smaller graph, `budget` the seconds left to each."""
    import torch

    from jobs.bench.speed_subjects import Shape, SyntheticGraph, build_subject

    shape = Shape(config.width, config.heads, config.layers, config.order)
    graph: SyntheticGraph | None = None
    steps: dict[str, Callable[[], Tensor]] = {}
    memory: dict[str, tuple[int, int | None]] = {}
    rounds: dict[str, int] = {}
    skips: list[Skip] = []
    for name in config.subjects:
        needed, free = memory_needed(name, level, nodes, config, before.get(name)), memory_free(config)
        one = time_needed(name, nodes, before.get(name))
        left = budget[name]
        if needed > free:
            reason = f"needs about {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB there; a smaller --width, or --bf16, takes less"
        elif 2 * one > left:  # one for memory, which also warms up, and one for time
            reason = f"two runs need about {2 * one:.0f} s, {max(left, 0):.0f} s of its budget left; raise --budget-s"
        else:
            began = time.perf_counter()
            graph = SyntheticGraph(nodes, config.degree, config.device) if graph is None else graph
            try:
                steps[name] = build_subject(name, level, shape, graph, bf16=config.bf16, compiled=config.compile)
                memory[name] = (saved_bytes(steps[name]), peak_bytes(steps[name], config.device))
            except torch.OutOfMemoryError as error:
                skips.append(Skip(name, level, nodes, f"out of memory: {str(error).splitlines()[0]}"))
                say(f"{level} {name}, {nodes} nodes: skipped, {skips[-1].reason}")
                steps.pop(name, None)
                budget[name] = 0.0
                continue
            took = time.perf_counter() - began
            budget[name] -= took
            guess = one if one else took
            rounds[name] = max(1, min(config.rounds, int(budget[name] / max(guess, 1e-9) / 1.2)))
            continue
        skips.append(Skip(name, level, nodes, reason))
        say(f"{level} {name}, {nodes} nodes: skipped, {reason}")

    times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for turn in range(max(rounds.values(), default=0)):
        for name, step in steps.items():
            if turn >= rounds[name]:
                continue
            began = time.perf_counter()
            with torch.no_grad():
                forward = seconds_of(step, config)
            times[name].append((forward, seconds_of(partial(_both, step), config)))
            budget[name] -= time.perf_counter() - began
    edges = nodes * config.degree
    points = []
    for name, found in times.items():
        forward, both = (statistics.median(column) for column in zip(*found))
        points.append(Point(name, level, nodes, edges, len(found), forward, both, *memory[name]))
        say(
            f"{level} {name}, {nodes} nodes: {forward * 1e3:.1f} ms forward, {both * 1e3:.1f} ms both ({len(found)} rounds)"
        )
    return points, skips


def measure_all(config: SpeedConfig, say: Callable[[str], None]) -> tuple[list[Point], list[Skip]]:
    """Every level, size and subject of the config."""
    points: list[Point] = []
    skips: list[Skip] = []
    carried = 0.0
    share = config.budget_s / (len(config.levels) * len(config.subjects))
    for level in config.levels:
        budget = {name: share + carried / len(config.subjects) for name in config.subjects}
        before: dict[str, Point] = {}
        for nodes in config.sizes():
            found, left_out = measure_size(level, nodes, config, before, budget, say)
            before |= {p.subject: p for p in found}
            points += found
            skips += left_out
        carried = sum(max(left, 0.0) for left in budget.values())
    return points, skips


def copy_bandwidth(config: SpeedConfig) -> float:
    """Bytes per second, read plus written, of copying an array that no cache holds."""
    import torch

    source = torch.ones((64 << 20) if config.device == "cpu" else (512 << 20), device=config.device)
    target = torch.empty_like(source)
    times = [seconds_of(lambda: target.copy_(source), config) for _ in range(6)][1:]
    return 2 * source.nbytes / statistics.median(times)


def ratios(points: Sequence[Point], level: str, above: str, below: str) -> list[tuple[int, float, float]]:
    """(N, forward ratio, forward-plus-backward ratio) wherever both were measured."""
    by_key = {(p.subject, p.nodes): p for p in points if p.level == level}
    found = []
    for (subject, nodes), p in sorted(by_key.items(), key=lambda item: item[0][1]):
        other = by_key.get((above, nodes))
        if subject == below and other is not None:
            found.append((nodes, other.forward_s / p.forward_s, other.step_s / p.step_s))
    return found


def n_over_log_n(nodes: float) -> float:
    return nodes / math.log2(nodes)


def tables(config: SpeedConfig, points: Sequence[Point], skips: Sequence[Skip], bandwidth: float) -> str:
    """Markdown: points, ratios to softmax attention, ratios to the plain form, floors, and what was skipped."""
    lines = [
        "| level | subject | nodes | rounds | forward ms | both ms | saved MB | peak MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for p in points:
        peak = "" if p.peak_bytes is None else f"{p.peak_bytes / 1e6:.0f}"
        lines.append(
            f"| {p.level} | {p.subject} | {p.nodes} | {p.rounds} | {p.forward_s * 1e3:.1f} | {p.step_s * 1e3:.1f} | "
            f"{p.saved_bytes / 1e6:.0f} | {peak} |"
        )
    for level in config.levels:
        found = ratios(points, level, "softmax", "geco")
        if found:
            lines += [
                "",
                f"| {level}: nodes | softmax / geco, forward | both | 169 · (N / log N) / (2M / log 2M) |",
                "|---|---|---|---|",
            ]
            scale = PAPER_RATIO / n_over_log_n(PAPER_NODES)
            lines += [f"| {n} | {a:.3g} | {b:.3g} | {scale * n_over_log_n(n):.3g} |" for n, a, b in found]
            large = [(n, b) for n, _, b in found if n >= 2**15]
            if len(large) > 1:
                slope = fit_exponent([n_over_log_n(n) for n, _ in large], [b for _, b in large])  # type: ignore[misc]
                lines += ["", f"Slope of both against N / log N from 2^15 on: {slope:.2f}."]
        found = ratios(points, level, "geco, plain", "geco")
        if found:
            lines += [
                "",
                f"| {level}: nodes | times as fast as plain, forward | both | of its saved memory | of its peak |",
                "|---|---|---|---|---|",
            ]
        by_key = {(p.subject, p.nodes): p for p in points if p.level == level}
        for n, a, b in found:
            ours, plain = by_key["geco", n], by_key["geco, plain", n]
            peak = f"{ours.peak_bytes / plain.peak_bytes:.2f}" if ours.peak_bytes and plain.peak_bytes else ""
            lines.append(f"| {n} | {a:.2f} | {b:.2f} | {ours.saved_bytes / plain.saved_bytes:.2f} | {peak} |")
    lines += floor_table(config, points, bandwidth)
    if skips:
        lines += ["", "| skipped | level | nodes | why |", "|---|---|---|---|"]
        lines += [f"| {s.subject} | {s.level} | {s.nodes} | {s.reason} |" for s in skips]
    return "\n".join(lines)


def floor_table(config: SpeedConfig, points: Sequence[Point], bandwidth: float) -> list[str]:
    """GECO layers against the time in which the device copies the fewest bytes they must move."""
    from jobs.bench.speed_subjects import floor_bytes, gather_bytes, layer_flops

    rows = [p for p in points if p.level == "layer" and p.subject == "geco"]
    if not rows:
        return []
    lines = [
        "",
        f"Copy: {bandwidth / 1e9:.1f} GB/s, read plus written.",
        "",
        "| geco layer: nodes | floor GB, forward | share | floor GB, both | share | with gathers uncached | GFLOP, both | GFLOP/s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    item = 2 if config.bf16 else 4
    for p in rows:
        cells = [str(p.nodes)]
        for backward, seconds in ((False, p.forward_s), (True, p.step_s)):
            floor = floor_bytes(p.nodes, p.edges, config.width, config.order, backward=backward, item=item)
            cells += [f"{floor / 1e9:.2f}", f"{floor / bandwidth / seconds:.1%}"]
        gathers = gather_bytes(p.nodes, p.edges, config.width, backward=True, item=item)
        flops = sum(layer_flops(p.nodes, p.edges, config.width, config.order, 64, backward=True).values())
        cells += [
            f"{(floor + gathers) / bandwidth / p.step_s:.1%}",
            f"{flops / 1e9:.1f}",
            f"{flops / p.step_s / 1e9:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def plot(config: SpeedConfig, points: Sequence[Point], head: str, path: Path) -> "Axes":
    """Writes an SVG: softmax / geco against N, with the paper's point and N / log N through it."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.add_subplot(title=f"Time of softmax attention / GECO ({head})", xlabel="nodes", ylabel="times")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for level in config.levels:
        times = ratios(points, level, "softmax", "geco")
        axes.plot([n for n, _, _ in times], [a for _, a, _ in times], "o-", label=f"{level}, forward")
        axes.plot([n for n, _, _ in times], [b for _, _, b in times], "o-", label=f"{level}, both")
    scale = PAPER_RATIO / n_over_log_n(PAPER_NODES)
    sizes = [2**n for n in range(12, 22)]
    axes.plot(sizes, [scale * n_over_log_n(n) for n in sizes], "--", label="N / log N")
    axes.plot([PAPER_NODES], [PAPER_RATIO], "o", label="paper, 169")
    axes.legend()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "graphmill"}):  # text as text; equal plots are equal files
        figure.savefig(path, metadata={"Date": None})
    return axes


def parse(arguments: Sequence[str] | None = None) -> SpeedConfig:
    """The config from the command line."""
    return read(SpeedConfig, __doc__, words=arguments)


def bench(config: SpeedConfig, say: Callable[[str], None]) -> str:
    """Measures, writes the files and returns the tables."""
    import torch

    torch.set_num_threads(config.threads)
    check_device(config.device)
    check_writable(config.out, "--out")
    bandwidth = copy_bandwidth(config)
    points, skips = measure_all(config, say)
    text = tables(config, points, skips, bandwidth)
    chip = torch.cuda.get_device_name() if config.device != "cpu" else f"{platform.machine()}, {config.threads} threads"
    clock = "device events" if config.device != "cpu" else f"{config.clock} clock"
    head = f"width {config.width}, {config.heads} heads, degree {config.degree}, {chip}, torch {torch.__version__}, {clock}"
    head += ", bf16" if config.bf16 else ", float32"
    config.out.mkdir(parents=True, exist_ok=True)
    (config.out / "results.md").write_text(f"{head}\n\n{text}\n")
    found = {
        "config": asdict(config) | {"out": str(config.out)},
        "on": head,
        "copy_bytes_per_s": bandwidth,
        "points": [asdict(p) for p in points],
        "skipped": [asdict(s) for s in skips],
    }
    (config.out / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    if find_spec("matplotlib") is None:
        say("no ratio.svg: matplotlib is not installed")
    else:
        plot(config, points, chip, config.out / "ratio.svg")
    return text


def main() -> None:
    print(bench(parse(), lambda line: print(line, flush=True)))


if __name__ == "__main__":
    run(main)
