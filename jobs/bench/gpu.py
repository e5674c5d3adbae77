"""Runs all checks and measurements of a GPU in one command: `graphmill bench gpu`.

    graphmill bench gpu                                      all parts, on one GPU with 80 GB: about 45 minutes
    graphmill bench gpu --rows checks                        only the checks of the models' results: two minutes
    graphmill bench gpu --device cpu --rows checks waits --wait-nodes 2000 --wait-steps 2      the same code, on a CPU

    checks     every model in float32 and bfloat16: outputs and gradients against the CPU in float64; dropout masks must be equal bit for bit
    speed      GECO against flash attention on up to 2^21 nodes (`jobs/bench/speed.py`)
    training   an epoch or a step at the published sizes (`jobs/bench/training.py`)
    waits      share of the training time in which the GPU waits for batches (`jobs/bench/waits.py`)

Prints a table of predicted and measured values. The table and the files of the parts go to --out. The exit status is 1 if a check exceeds its limit or
the device does not exist. Requires torch, numpy, pyarrow, fsspec, numba and psutil, but not Ray. If the package is not installed, run `python -m
graphmill.jobs.bench.gpu` in the root of the repository.
"""

import copy
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from graphmill.core.option_checks import Count, check_fields
from graphmill.jobs.bench.results import check_results, keep, machine, table
from graphmill.jobs.bench.speed import PAPER_NODES, PAPER_RATIO
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
    log2_to: Count = 21
    """Speed: the largest graph has 2 to this power nodes."""
    budget_s: float = 900.0
    """Speed: longest time of this part, in seconds."""
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


def speed_rows(config: GpuConfig, say: Callable[[str], None]) -> list[Result]:
    """Measures GECO against flash attention. The predicted ratio is the ratio that the paper measured on its GPU."""
    from graphmill.jobs.bench.speed import SpeedConfig, bench, ratios

    subset = SpeedConfig(
        subjects=("geco", "softmax", "performer", "primphormer"),
        log2_from=min(14, config.log2_to),
        log2_to=config.log2_to,
        budget_s=config.budget_s,
        device=config.device,
        bf16=True,
        out=config.out / "speed",
    )
    points, skips = bench(subset, say)
    results = []
    for level in subset.levels:
        for nodes, _, ratio in ratios(points, level):
            predicted = f"{PAPER_RATIO:g} (the paper, its GPU)" if nodes == PAPER_NODES else "rises as N / log N"
            what = f"flash attention / GECO, {level}, {nodes:,} nodes, step"
            results.append(Result(what, predicted, f"{ratio:.3g}"))
    return results + [Result(f"{s.subject}, {s.level}, {s.nodes:,} nodes", "", f"skipped: {s.reason}") for s in skips]


def training_rows(config: GpuConfig, say: Callable[[str], None]) -> list[Result]:
    """Measures training at the published sizes."""
    from graphmill.jobs.bench.training import TrainingConfig, bench

    bf16, out = config.device != "cpu", config.out / "training"
    rows, skipped = bench(TrainingConfig(nodes=config.nodes, device=config.device, bf16=bf16, out=out), say)
    results = []
    for row in rows:
        predicted = f"{PAPER_EPOCH_S:g} s (the paper, its GPU)" if row.name == "primphormer" else "none published"
        results.append(Result(row.what, predicted, f"{row.seconds:.4g} s, {(row.peak_bytes or 0) / 1e9:.1f} GB"))
    return results + [Result(name, "", f"skipped: {why}") for name, why in skipped.items()]


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


def bench(config: GpuConfig, say: Callable[[str], None]) -> list[Result]:
    """Runs the parts; writes and prints the table."""
    check_device(config.device)
    check_results(config.out)
    parts: dict[str, Callable[[], Iterable[Result]]] = {
        "checks": lambda: check_models(config.device),
        "speed": lambda: speed_rows(config, say),
        "training": lambda: training_rows(config, say),
        "waits": lambda: wait_rows(config),
    }
    results: list[Result] = []
    for name in config.rows:
        say(f"{name} …")
        results += parts[name]()
    rows = [(r.what, r.predicted, r.measured, "missed" if r.missed else "") for r in results]
    columns = dict.fromkeys(("what", "predicted", "measured", ""), "")
    text = "\n".join([machine(config.device), "", *table(columns, rows)])
    keep(config.out, config, text, results=[r._asdict() for r in results])
    say(text)
    return results


def main() -> int:
    results = bench(parse(GpuConfig, __doc__), lambda line: print(line, flush=True))
    return 1 if any(result.missed for result in results) else 0


if __name__ == "__main__":
    run(main)
