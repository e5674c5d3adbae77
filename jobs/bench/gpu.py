"""Runs all checks and measurements of a GPU in one command: `graphmill bench gpu`.

    graphmill bench gpu                                      all steps, on one GPU with 80 GB
    graphmill bench gpu --minutes 7                          the steps that fit, the most important first; the same command again runs the next ones
    graphmill bench gpu --rows checks                        only the checks of the models' results: two minutes
    graphmill bench gpu --device cpu --rows checks waits --wait-nodes 2000 --wait-steps 2      the same code, on a CPU

    speed      one layer, forward and backward: GECO beside plain PyTorch, Primphormer, Performer and flash attention on up to 2^21 nodes (`jobs/bench/speed.py`)
    training   an epoch or a step at the published sizes (`jobs/bench/training.py`)
    checks     every model in float32 and bfloat16: outputs and gradients against the CPU in float64; dropout masks must be equal bit for bit
    waits      share of the training time in which the GPU waits for batches (`jobs/bench/waits.py`)

Prints each step's predicted time, then its results, and at the end a table of predicted and measured values. --out is written after each step. With
--minutes a step starts only if its predicted time fits, and the steps in --out are not run again. The exit status is 1 if a check exceeds its limit or
the device does not exist. Requires torch, numpy, pyarrow, fsspec, numba and psutil, but not Ray. If the package is not installed, run `python -m
graphmill.jobs.bench.gpu` in the root of the repository.
"""

import copy
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from graphmill.core.errors import ConfigError
from graphmill.core.files.json_object import parse_object
from graphmill.core.option_checks import Amount, Count, check_fields
from graphmill.jobs.bench.device import seconds_of
from graphmill.jobs.bench.results import check_results, keep, machine, table
from graphmill.jobs.bench.training import PAPER_EPOCH_S
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse
from graphmill.jobs.resolve.checks import check_device

if TYPE_CHECKING:
    from torch import Tensor, nn

# Limits of the relative error ‖measured - exact‖ / ‖exact‖ for (outputs, all gradients). bfloat16 has 8 significant bits. In means over many nodes the values
# cancel, so the error is large: 0.2 was measured.
LIMITS = {"float32": (1e-3, 1e-3), "bfloat16": (1e-1, 4e-1)}
MAX_WAIT_SHARE = 0.05


@dataclass(frozen=True)
class GpuConfig:
    """Check and measure a GPU."""

    rows: tuple[Literal["checks", "speed", "training", "waits"], ...] = ("checks", "speed", "training", "waits")
    """Parts to run."""
    device: str = "cuda"
    """cuda, cuda:1 or cpu."""
    minutes: Amount = 0.0
    """Start only steps that fit in so many minutes, and no steps that --out has. 0: all steps."""
    log2_to: Count = 21
    """Speed: the largest graph has 2 to this power nodes."""
    budget_s: float = 900.0
    """Speed: longest time of a step, in seconds."""
    nodes: Count = 2_449_029
    """Training: number of nodes of the graph."""
    wait_nodes: Count = 500_000
    """Waits: number of nodes of the graph."""
    wait_steps: Count = 40
    """Waits: number of counted steps."""
    threads: Count = 8
    """Waits: number of loader threads."""
    out: Path = Path("runs/bench-gpu")
    """Directory for the tables."""

    def __post_init__(self) -> None:
        check_fields(self)


class Result(NamedTuple):
    """One row of the table."""

    what: str
    predicted: str
    measured: str
    missed: bool = False  # a check that exceeds its limit


def models() -> "dict[str, Callable[[], nn.Module]]":
    """Small versions of all models of molecules. TokenGT runs without eigenvectors, because for equal eigenvalues a solver may return any basis of
    eigenvectors."""
    from graphmill.jobs.bench.results import recipe_options
    from graphmill.models.geco.graphs import GECOGraphs
    from graphmill.models.gps.options import GPSOptions
    from graphmill.models.grit.network import GRIT
    from graphmill.models.options.features import atoms, bonds
    from graphmill.models.ppgt.network import PPGT
    from graphmill.models.primphormer.network import Primphormer
    from graphmill.models.primphormer.options import PrimalOptions
    from graphmill.models.tokengt.network import TokenGT

    def small(model: str, **changes: Any) -> Any:
        return recipe_options(f"defaults/graphs-{model}.yaml", node=atoms(), edge=bonds(), num_layers=2, **changes)

    layer, primal = GPSOptions(dropout=0.0), PrimalOptions(dropout=0.0)
    return {
        "TokenGT, softmax": lambda: TokenGT(small("tokengt", identifier="near_orf")),
        "TokenGT, Performer": lambda: TokenGT(small("tokengt", identifier="near_orf", attention="performer")),
        "GRIT": lambda: GRIT(small("grit")),
        "PPGT": lambda: PPGT(small("ppgt")),
        "Primphormer": lambda: Primphormer(small("primphormer", layer=layer, primal=primal)),
        "GECO of graphs, GPS": lambda: GECOGraphs(small("geco")),
    }


def check_models(device: str) -> list[Result]:
    """Compares outputs and gradients on the device with the CPU in float64."""
    import torch

    from graphmill.jobs.bench.training import molecules

    graphs, results = molecules(8), []
    for name, build in models().items():
        torch.manual_seed(0)
        model = build().eval()  # eval mode: gradients, but no random signs or masks
        results += compare(name, model, device, lambda m, d: m(graphs.to(d)))
    torch.manual_seed(0)
    return [*results, *compare("GECO of one graph", *node_model(device)), check_masks(device)]


def node_model(device: str) -> "tuple[nn.Module, str, Callable[[Any, str], Tensor]]":
    """Builds GECO on 2,000 nodes."""
    import torch

    from graphmill.jobs.bench.speed_subjects import RegularGraph
    from graphmill.models.geco.network import GECO
    from graphmill.models.geco.options import GECOConfig
    from graphmill.models.options.filters import FilterConfig

    x = torch.randn(2000, 16)

    def forward(model: Any, where: str) -> "Tensor":
        return model(x.to(where, next(model.parameters()).dtype), RegularGraph(2000, 4, where).adjacency)

    options = GECOConfig(16, 5, num_layers=2, width=32, skip=True, filter=FilterConfig(inner_width=32, scale="length"))
    return GECO(options).eval(), device, forward


def compare(name: str, model: "nn.Module", device: str, forward: "Callable[[Any, str], Tensor]") -> list[Result]:
    """Compares the model on the device, in float32 and under bfloat16 autocast, with the CPU in float64."""
    import torch

    def outcome(of: "nn.Module", where: str, half: bool) -> "tuple[Tensor, Tensor]":
        """Returns the predictions of the model, and the gradients of all weights for a fixed weighted mean of the predictions."""
        with torch.autocast(torch.device(where).type, torch.bfloat16, enabled=half):
            out = forward(of, where)
        probe = torch.linspace(0.5, 1.5, out.numel(), dtype=torch.float64).view(out.shape)
        (out.double() * probe.to(where)).mean().backward()
        grads = [p.grad.double().flatten().cpu() for p in of.parameters() if p.grad is not None]
        return out.detach().double().cpu(), torch.cat(grads)

    exact = outcome(copy.deepcopy(model).double(), "cpu", half=False)
    results = []
    for precision, limits in LIMITS.items():
        seen = outcome(copy.deepcopy(model).to(device), device, half=precision == "bfloat16")
        errors = [float((a - b).norm() / b.norm().clamp_min(1e-30)) for a, b in zip(seen, exact, strict=True)]
        missed = not all(error <= limit for error, limit in zip(errors, limits, strict=True))  # NaN counts as missed
        measured = f"outputs {errors[0]:.1e}, gradients {errors[1]:.1e}"
        results.append(Result(f"{name}, {precision}", "at most {:g} and {:g}".format(*limits), measured, missed))
    return results


def check_masks(device: str) -> Result:
    """Compares dropout masks on the device and on the CPU."""
    import torch

    from graphmill.models.primitives.dropout import Dropout

    x, drop = torch.ones(1000, 257), Dropout(0.3)
    torch.manual_seed(0)
    here = drop(x)
    torch.manual_seed(0)
    differing = int((drop(x.to(device)).cpu() != here).sum())
    return Result("dropout's mask against the CPU's", "0 differ", f"{differing} of {x.numel()} differ", differing > 0)


# Predictions for one H200, from its figures of 2026-11-27 and the bytes of the code since (docs/performance/gpu.md).
PREDICTED_LAYER = {
    "geco": "144 ms, 10.1 GB before; 125 ms, 20 GB predicted",
    "primphormer": "286 ms, 24.9 GB before; 110 ms, 9 GB predicted; compiled 60 ms",
    "performer": "571 ms, 9.2 GB before; unchanged",
}


def speed_rows(
    config: GpuConfig, say: Callable[[str], None], subjects: tuple[Any, ...], log2: int, compiled: bool
) -> list[Result]:
    """Measures one layer of each subject on 2 to the power `log2` nodes."""
    from graphmill.jobs.bench.speed import SpeedConfig, bench, ratios

    subset = SpeedConfig(
        subjects=subjects,
        nodes=(2 ** min(log2, config.log2_to),),
        levels=("layer",),
        budget_s=config.budget_s,
        rounds=3,
        device=config.device,
        bf16=True,
        compile=compiled,
        out=config.out / f"speed-{subjects[0]}{'-compiled' * compiled}",
    )
    points, skips = bench(subset, say)
    results = []
    for p in points:
        measured = (
            f"{1e3 * p.forward_s:,.4g} ms forward, {1e3 * p.step_s:,.4g} ms both, {(p.peak_bytes or 0) / 1e9:.1f} GB"
        )
        predicted = PREDICTED_LAYER.get(p.subject, "") if p.nodes == 2**21 else ""
        results.append(Result(f"{p.subject}, layer{', compiled' * compiled}, {p.nodes:,} nodes", predicted, measured))
    for nodes, _, ratio in ratios(points, "layer"):
        results.append(Result(f"flash attention / GECO, layer, {nodes:,} nodes, step", "68.7 before", f"{ratio:.3g}"))
    return results + [Result(f"{s.subject}, layer, {s.nodes:,} nodes", "", f"skipped: {s.reason}") for s in skips]


def flash_rows(config: GpuConfig) -> list[Result]:
    """Times one forward pass of a layer of flash attention at the largest size."""
    import torch

    from graphmill.jobs.bench.speed_subjects import RegularGraph, Shape, build_subject

    nodes = 2**config.log2_to
    step = build_subject("softmax", "layer", Shape(128, 8, 1, 2), RegularGraph(nodes, 20, config.device), bf16=True)
    with torch.no_grad():
        seconds = seconds_of(step, config.device)
    return [Result(f"flash attention, layer, {nodes:,} nodes, forward once", "28 s", f"{seconds:.3g} s")]


def training_rows(config: GpuConfig, say: Callable[[str], None], name: Any, predicted: str) -> list[Result]:
    """Measures training at the published sizes; TokenGT with the published batch."""
    from graphmill.jobs.bench.training import PUBLISHED_BATCH, TrainingConfig, bench

    bf16, out = config.device != "cpu", config.out / f"training-{name}"
    graphs = PUBLISHED_BATCH if config.device != "cpu" else 2
    setting = TrainingConfig(rows=(name,), nodes=config.nodes, graphs=graphs, device=config.device, bf16=bf16, out=out)
    rows, skipped = bench(setting, say)
    results = [
        Result(row.what, predicted, f"{row.seconds:.4g} s, {(row.peak_bytes or 0) / 1e9:.1f} GB; {row.note}")
        for row in rows
    ]
    return results + [Result(name, predicted, f"skipped: {why}") for name, why in skipped.items()]


def wait_rows(config: GpuConfig) -> list[Result]:
    """Measures how long the GPU waits for batches: neighbor batches of 1,024 roots, and Node2Subgraph batches of 64."""
    from graphmill.jobs.bench.waits import Setting, measure_waits
    from graphmill.storage.graph import StoredGraph, open_graph
    from graphmill.storage.ingestion.ingest import IngestOptions, ingest
    from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions

    share = min(1.0, 1024 * (config.wait_steps + 2) / config.wait_nodes)
    with tempfile.TemporaryDirectory() as folder:
        options = SyntheticOptions(num_nodes=config.wait_nodes, train_share=share, valid_share=0.0)
        ingest(SyntheticGraph(options), f"{folder}/graph", IngestOptions(num_partitions=2))
        on_cpu = config.device == "cpu"
        roots = {} if on_cpu else {"neighbor_roots": 1024, "subgraph_roots": 64}
        setting = Setting(config.wait_steps, (15, 10), threads=config.threads, device=config.device, **roots)
        waits = measure_waits(open_graph(f"{folder}/graph", kind=StoredGraph), setting)
    limit = f"waits at most {MAX_WAIT_SHARE:.0%}"
    return [
        Result(w.name, limit, f"{1e3 * w.total_s / w.num_steps:,.1f} ms a step, waits {w.share:.1%}") for w in waits
    ]


class Step(NamedTuple):
    """A part of the measurement that runs as a whole."""

    name: str
    row: str
    predicted_s: float
    run: Callable[[], list[Result]]


def steps(config: GpuConfig, say: Callable[[str], None]) -> list[Step]:
    """All steps of the chosen rows, the most important first. Predicted times are an H200's, with the building of graphs and models."""

    def speed(log2: int, predicted_s: float, *subjects: str, compiled: bool = False) -> Step:
        run = partial(speed_rows, config, say, subjects, log2, compiled)
        name = f"{' and '.join(subjects)}, a layer of 2^{log2} nodes{', compiled' * compiled}"
        return Step(name, "speed", predicted_s, run)

    def training(name: str, predicted_s: float, predicted: str) -> Step:
        return Step(f"{name}, training", "training", predicted_s, partial(training_rows, config, say, name, predicted))

    every = [
        speed(21, 30, "geco", "geco, plain"),
        speed(21, 20, "primphormer"),
        training("tokengt", 30, "2,174 molecules/s with 128 before; 8,000 with 1,024 predicted"),
        Step("checks", "checks", 120, lambda: check_models(config.device)),
        speed(21, 60, "primphormer", compiled=True),
        training("primphormer", 40, f"0.32 s, 4.5 GB before ({PAPER_EPOCH_S:g} s: the paper, its GPU)"),
        speed(18, 20, "softmax", "geco"),
        Step("one pass of flash attention", "speed", 45, lambda: flash_rows(config)),
        training("geco", 60, "1.12 s, 34.8 GB before"),
        speed(21, 30, "performer"),
        Step("waits", "waits", 180, lambda: wait_rows(config)),
    ]
    return [step for step in every if step.row in config.rows]


def earlier_results(config: GpuConfig) -> dict[str, list[Result]]:
    """The results by step that --out has from an earlier call. Raises ConfigError if that call had other options, or was of a version without steps."""
    where = config.out / "results.json"
    if not config.minutes or not where.exists():
        return {}
    body = parse_object(where.read_bytes(), str(where))
    plain = json.loads(json.dumps(asdict(replace(config, minutes=0.0)), default=str))
    of_steps = body.get("steps")
    if not isinstance(of_steps, dict) or any(set(r) != set(Result._fields) for rows in of_steps.values() for r in rows):
        raise ConfigError(
            f"out: expected results by step, got those of another version of this measurement in {config.out}; set --out"
        )
    if {**body["config"], "minutes": 0.0} != plain:
        raise ConfigError(
            f"out: expected results of a call with the same options, got others in {config.out}; set --out"
        )
    return {name: [Result(**row) for row in rows] for name, rows in of_steps.items()}


def bench(config: GpuConfig, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> list[Result]:
    """Runs the steps; writes the table after each step and prints it at the end. Returns the results of all steps in --out."""
    began = clock()
    check_device(config.device)
    check_results(config.out)
    done, text = earlier_results(config), ""
    left = []
    for step in steps(config, say):
        if step.name in done:
            continue
        if config.minutes and clock() - began + step.predicted_s > 60 * config.minutes:
            left.append(step.name)
            continue
        say(f"{step.name}: {step.predicted_s:g} s predicted …")
        started = clock()
        done[step.name] = step.run()
        for result in done[step.name]:
            say(f"  {result.what}: {result.measured} ({result.predicted or 'no prediction'})")
        say(f"{step.name}: {clock() - started:.0f} s")
        text = _text(config, done)
        written = {name: [r._asdict() for r in rows] for name, rows in done.items()}
        keep(config.out, config, text, steps=written)
    if not text:
        say("no step was run: " + ("the minutes are too few for the first" if left else "--out has the results of all"))
    say(text or _text(config, done))
    if left:
        say(f"left for the next call with the same options: {'; '.join(left)}")
    return [result for rows in done.values() for result in rows]


def _text(config: GpuConfig, done: dict[str, list[Result]]) -> str:
    rows = [(r.what, r.predicted, r.measured, "missed" if r.missed else "") for rows in done.values() for r in rows]
    columns = dict.fromkeys(("what", "predicted", "measured", ""), "")
    return "\n".join([machine(config.device), "", *table(columns, rows)])


def main() -> int:
    results = bench(parse(GpuConfig, __doc__), lambda line: print(line, flush=True))
    return 1 if any(result.missed for result in results) else 0


if __name__ == "__main__":
    run(main)
