"""What a GPU has to show, in one command: `python -m jobs.bench gpu`.

    python -m jobs.bench gpu                                      all of it, on one GPU with 80 GB: about 45 minutes
    python -m jobs.bench gpu --rows checks                        the models' numbers alone: two minutes
    python -m jobs.bench gpu --device cpu --rows checks pipeline --pipeline-nodes 2000      the same code, on a CPU

    checks     every model, float32 and bfloat16, outputs and gradients, against the CPU in float64; dropout's masks bit for bit
    speed      GECO against flash attention on up to 2^21 nodes (`jobs/bench/speed.py`)
    training   an epoch or a step at the published sizes (`jobs/bench/training.py`)
    pipeline   batches sampled, copied and trained on a second: whether the GPU waits for its batches

Prints a table with what is predicted beside what was measured; it and the parts' own files go to --out. Exit status 1 where a check is missed
or there is no such device. Needs torch, numpy, pyarrow, fsspec and numba, and no Ray (where the package is not installed: `python -m
jobs.bench.gpu` in its root).
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.bench.speed import PAPER_NODES, PAPER_RATIO
from jobs.bench.training import PAPER_EPOCH_S
from jobs.run.exit_codes import run
from jobs.run.option_checks import check_device, check_writable
from jobs.run.reader import parse
from storage.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor, nn

ROWS = ("checks", "speed", "training", "pipeline")
# Largest ‖found - exact‖ / ‖exact‖ of outputs, and of all gradients together: bfloat16 has 8 bits, and means over many nodes cancel (0.2 seen).
LIMITS = {"float32": (1e-3, 1e-3), "bfloat16": (1e-1, 4e-1)}
MIN_SAMPLED_SHARE = 0.95  # of the steps a second without any sampling: below, the GPU waits for its batches


@dataclass(frozen=True)
class GpuConfig:
    """Every option, as --log2-to 20 and so on."""

    rows: tuple[str, ...] = ROWS
    device: str = "cuda"  # or cuda:1, or cpu
    log2_to: int = 21  # of the speed rows
    budget_s: float = 900.0  # of the speed rows
    nodes: int = 2_449_029  # of the training rows
    pipeline_nodes: int = 500_000
    batch_size: int = 1024
    batches: int = 40  # that are timed
    threads: int = 8  # of the loader
    out: Path = Path("runs/bench-gpu")

    def __post_init__(self) -> None:
        if not self.rows or set(self.rows) - set(ROWS):
            raise ConfigError(f"rows: expected some of {', '.join(ROWS)}, got {self.rows}; set --rows")
        for name in ("log2_to", "nodes", "pipeline_nodes", "batch_size", "batches", "threads"):
            if getattr(self, name) < 1:
                flag = name.replace("_", "-")
                raise ConfigError(f"{name}: expected at least 1, got {getattr(self, name)}; set --{flag}")


@dataclass(frozen=True)
class Result:
    """One line of the table."""

    what: str
    predicted: str
    measured: str
    missed: bool = False  # a check, and not as it should be


def models() -> "dict[str, Callable[[], nn.Module]]":
    """Each model of molecules, small. TokenGT without eigenvectors: those of equal eigenvalues are the solver's choice."""
    from models import geco_graphs, grit, ppgt, primphormer, tokengt
    from models.options import geco_graphs as geco_graphs_options
    from models.options import grit as grit_options
    from models.options import ppgt as ppgt_options
    from models.options import primphormer as primphormer_options
    from models.options import tokengt as tokengt_options
    from models.options.gps import GPSOptions
    from models.options.primphormer import PrimalOptions

    layer = GPSOptions(dropout=0.0)
    return {
        "TokenGT, softmax": lambda: tokengt.TokenGT(tokengt_options.small(num_layers=2, identifier="near_orf")),
        "TokenGT, Performer": lambda: tokengt.TokenGT(
            tokengt_options.small(num_layers=2, identifier="near_orf", attention="performer")
        ),
        "GRIT": lambda: grit.GRIT(grit_options.small(num_layers=2)),
        "PPGT": lambda: ppgt.PPGT(ppgt_options.small(num_layers=2)),
        "Primphormer": lambda: primphormer.Primphormer(
            primphormer_options.small(num_layers=2, layer=layer, primal=PrimalOptions(dropout=0.0))
        ),
        "GECO of graphs, GPS": lambda: geco_graphs.GECOGraphs(geco_graphs_options.small(num_layers=2)),
    }


def check_models(device: str) -> list[Result]:
    """Outputs and gradients on the device against the CPU in float64."""
    import torch

    from jobs.bench.training import molecules

    graphs, results = molecules(8), []
    for name, build in models().items():
        torch.manual_seed(0)
        model = build().eval()  # random signs and masks rest; gradients are taken all the same
        results += _compared(name, model, device, lambda m, d: m(graphs.to(d)))
    torch.manual_seed(0)
    model, forward = _node_model()
    return results + _compared("GECO of one graph", model, device, forward) + [check_masks(device)]


def _node_model() -> "tuple[nn.Module, Callable[[Any, Any], Tensor]]":
    """GECO on a ring of 2,000 nodes with chords."""
    import torch

    from models.geco import GECO
    from models.options.geco import node_classification
    from models.propagation import Adjacency

    num = 2000
    step = torch.tensor([-1, 1, -7, 7])
    indices = ((torch.arange(num)[:, None] + step) % num).flatten()
    indptr, x = torch.arange(0, 4 * num + 1, 4), torch.randn(num, 16)

    def forward(model: Any, device: Any) -> "Tensor":
        dtype = next(model.parameters()).dtype
        return model(x.to(device, dtype), Adjacency(indptr.to(device), indices.to(device)))

    return GECO(node_classification(16, 5, num_layers=2, width=32)).eval(), forward


def _compared(name: str, model: "nn.Module", device: str, forward: "Callable[[Any, Any], Tensor]") -> list[Result]:
    import copy

    import torch

    def outcome(of: "nn.Module", where: str, half: bool) -> "tuple[Tensor, Tensor]":
        """Predictions, and all gradients of a fixed mixture of them."""
        with torch.autocast(torch.device(where).type, torch.bfloat16, enabled=half):
            out = forward(of, where)
        probe = torch.linspace(0.5, 1.5, out.numel(), dtype=torch.float64).view(out.shape)
        (out.double() * probe.to(where)).mean().backward()
        grads = [p.grad.double().flatten().cpu() for p in of.parameters() if p.grad is not None]
        return out.detach().double().cpu(), torch.cat(grads)

    exact = outcome(copy.deepcopy(model).double(), "cpu", half=False)
    results = []
    for precision, limits in LIMITS.items():
        found = outcome(copy.deepcopy(model).to(device), device, half=precision == "bfloat16")
        errors = [float((a - b).norm() / b.norm().clamp_min(1e-30)) for a, b in zip(found, exact, strict=True)]
        measured = f"outputs {errors[0]:.1e}, gradients {errors[1]:.1e}"
        missed = not all(error <= limit for error, limit in zip(errors, limits, strict=True))  # NaN is missed too
        results.append(Result(f"{name}, {precision}", "at most {:g} and {:g}".format(*limits), measured, missed))
    return results


def check_masks(device: str) -> Result:
    """Dropout's masks on the device and on the CPU."""
    import torch

    from models.dropout import Dropout

    x, drop = torch.ones(1000, 257), Dropout(0.3)
    torch.manual_seed(0)
    here = drop(x)
    torch.manual_seed(0)
    differing = int((drop(x.to(device)).cpu() != here).sum())
    return Result("dropout's mask against the CPU's", "0 differ", f"{differing} of {x.numel()} differ", differing > 0)


def speed(config: GpuConfig, say: Callable[[str], None]) -> Iterator[Result]:
    """GECO against flash attention; the paper's ratio on its own GPU is the prediction."""
    from jobs.bench.speed import SpeedConfig, bench

    out = config.out / "speed"
    bench(
        SpeedConfig(
            subjects=("geco", "softmax", "performer", "primphormer"),
            log2_from=min(14, config.log2_to),
            log2_to=config.log2_to,
            budget_s=config.budget_s,
            device=config.device,
            bf16=True,
            out=out,
        ),
        say,
    )
    found = json.loads((out / "results.json").read_text())
    seconds = {(p["subject"], p["level"], p["nodes"]): p["step_s"] for p in found["points"]}
    for (subject, level, nodes), geco_s in seconds.items():
        if subject != "geco" or ("softmax", level, nodes) not in seconds:
            continue
        ratio = seconds["softmax", level, nodes] / geco_s
        predicted = f"{PAPER_RATIO:g} (the paper, its GPU)" if nodes == PAPER_NODES else "rises as N / log N"
        yield Result(f"flash attention / GECO, {level}, {nodes:,} nodes, step", predicted, f"{ratio:.3g}")
    for skip in found["skipped"]:
        yield Result(f"{skip['subject']}, {skip['level']}, {skip['nodes']:,} nodes", "", f"skipped: {skip['reason']}")


def training(config: GpuConfig, say: Callable[[str], None]) -> Iterator[Result]:
    """Training at the published sizes."""
    from jobs.bench.training import TrainingConfig, bench

    out = config.out / "training"
    bench(TrainingConfig(nodes=config.nodes, device=config.device, bf16=config.device != "cpu", out=out), say)
    found = json.loads((out / "results.json").read_text())
    for row in found["rows"]:
        predicted = f"{PAPER_EPOCH_S:g} s (the paper, its GPU)" if row["name"] == "primphormer" else "none published"
        yield Result(row["what"], predicted, f"{row['seconds']:.4g} s, {(row['peak_bytes'] or 0) / 1e9:.1f} GB")
    for name, why in found["skipped"].items():
        yield Result(name, "", f"skipped: {why}")


def pipeline(config: GpuConfig) -> Iterator[Result]:
    """Batches a second: sampled alone, sampled and copied to the device, and trained on with and without sampling."""
    from samplers.neighbor import NeighborSampler
    from samplers.options import NeighborOptions
    from samplers.router import local_router
    from storage.graph import open_graph
    from storage.ingest import IngestOptions, ingest
    from storage.synthetic import SyntheticGraph, SyntheticOptions

    with tempfile.TemporaryDirectory() as folder:
        options = SyntheticOptions(num_nodes=config.pipeline_nodes, train_share=0.5)
        ingest(SyntheticGraph(options), f"{folder}/graph", IngestOptions(num_partitions=2))
        router = local_router(open_graph(f"{folder}/graph"))
        sampler = NeighborSampler(router, NeighborOptions(fanouts=(15, 10), batch_size=config.batch_size), 1)
        count = min(config.batches, sampler.num_batches - 1)
        if count < 1:
            raise ConfigError(
                f"pipeline: expected at least 2 batches, got {sampler.num_batches}; raise --pipeline-nodes or lower --batch-size"
            )
        sampled = _rate(config, sampler, "cpu", count, lambda batch: None)
        copied = _rate(config, sampler, config.device, count, lambda batch: None)
        step = _trainer(options.feature_dim, options.num_classes, config.device)
        trained = _rate(config, sampler, config.device, count, step)
        alone = _rate_alone(config, sampler, count, step)
    what = f"batches/s, {config.batch_size:,} roots, fan-outs 15 10, {config.threads} threads"
    yield Result(f"{what}: sampled", "", f"{sampled:.3g}")
    yield Result(f"{what}: sampled and on the device", "as sampled", f"{copied:.3g}")
    yield Result(f"{what}: GECO 3 x 128 trains on one batch", "", f"{alone:.3g}")
    share = f"at least {MIN_SAMPLED_SHARE * min(1.0, sampled / alone):.2f} of that"
    yield Result(f"{what}: GECO 3 x 128 trains on sampled ones", share, f"{trained:.3g}, {trained / alone:.2f} of that")


def _trainer(in_dim: int, out_dim: int, device: str) -> Callable[[Any], None]:
    import torch

    from models.geco import GECO
    from models.options.geco import node_classification
    from models.propagation import Adjacency

    model = GECO(node_classification(in_dim, out_dim)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batch: Any) -> None:
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            out = model(batch.x, Adjacency(batch.indptr, batch.indices), node_id_N=batch.node_id)
        root = batch.root_index
        torch.nn.functional.cross_entropy(out[root].float(), batch.y[root]).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _rate(config: GpuConfig, sampler: Any, device: str, count: int, use: Callable[[Any], None]) -> float:
    """Batches a second through the loader, after one that warms up."""
    import torch

    from samplers.loader import Loader
    from samplers.minibatch import to_torch
    from samplers.options import LoaderOptions

    options = LoaderOptions(threads=config.threads, prefetch=2 * config.threads)
    start = 0.0
    with Loader(sampler, options, device=torch.device(device), collate=to_torch) as loader:
        for index, batch in enumerate(loader.epoch(0)):
            use(batch)
            if index == 0:
                _wait_for(device)
                start = time.perf_counter()
            if index == count:
                break
        _wait_for(device)
        return count / (time.perf_counter() - start)


def _rate_alone(config: GpuConfig, sampler: Any, count: int, use: Callable[[Any], None]) -> float:
    """The same without sampling: one batch, again and again."""
    from samplers.minibatch import to_torch

    batch = to_torch(sampler.sample(0, 0)).to(config.device)
    use(batch)
    _wait_for(config.device)
    start = time.perf_counter()
    for _ in range(count):
        use(batch)
    _wait_for(config.device)
    return count / (time.perf_counter() - start)


def _wait_for(device: str) -> None:
    import torch

    if device != "cpu":
        torch.cuda.synchronize()


def bench(config: GpuConfig, say: Callable[[str], None]) -> list[Result]:
    """Runs the rows and writes the files; returns the table's lines."""
    import torch

    check_device(config.device)
    check_writable(config.out, "--out")
    config.out.mkdir(parents=True, exist_ok=True)
    parts: dict[str, Callable[[], Any]] = {
        "checks": lambda: check_models(config.device),
        "speed": lambda: speed(config, say),
        "training": lambda: training(config, say),
        "pipeline": lambda: pipeline(config),
    }
    results: list[Result] = []
    for name in config.rows:
        say(f"{name} …")
        for result in parts[name]():
            results.append(result)
            say(f"{'MISSED: ' if result.missed else ''}{result.what}: {result.measured}")
    chip = torch.cuda.get_device_name() if config.device != "cpu" else "CPU"
    lines = [f"{chip}, torch {torch.__version__}", "", "| what | predicted | measured | |", "|---|---|---|---|"]
    lines += [f"| {r.what} | {r.predicted} | {r.measured} | {'missed' if r.missed else ''} |" for r in results]
    (config.out / "results.md").write_text("\n".join(lines) + "\n")
    found = {"config": asdict(config) | {"out": str(config.out)}, "results": [asdict(r) for r in results]}
    (config.out / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    say("\n".join(["", *lines]))
    return results


def main() -> int:
    config = parse(GpuConfig, __doc__)
    results = bench(replace(config, out=Path(config.out)), lambda line: print(line, flush=True))
    return 1 if any(result.missed for result in results) else 0


if __name__ == "__main__":
    run(main)
