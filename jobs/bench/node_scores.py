"""Scores of GECO on public node sets: every run of the table in docs/performance.md, one after the other.

    python -m jobs.bench node_scores --data-dir path/to/npz --out-dir runs/node-scores

Each run is `jobs/products_geco.py` as a user would call it, with two DDP workers. A run that has its summary is not run again, so
the job may be interrupted and started again. Expect about an hour on 2 cores for all of it; `--only amazon_photo` for
a part. Prints a table of means over seeds (or over a set's own splits) and writes scores.json.
"""

import json
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from jobs.run.exit_codes import run
from jobs.run.option_checks import check_writable
from jobs.run.reader import parse
from storage.errors import ConfigError, DataError, StageError

JOB = Path(__file__).parents[1] / "products_geco.py"


@dataclass(frozen=True)
class Recipe:
    """How one set is trained with one sampler."""

    dataset: str
    sampler: str
    flags: tuple[str, ...]
    runs: tuple[tuple[str, ...], ...] = (("--fit.seed", "0"), ("--fit.seed", "1"), ("--fit.seed", "2"))


_AMAZON = (
    *("--fit.learning_rate", "2e-3", "--fit.weight_decay", "1e-2", "--task.label_smoothing", "0.1"),
    *("--model.dropout", "0.3", "--model.input_dropout", "0.3", "--model.skip"),
)
# One hop and all edges among the nodes found: on graphs this small three hops would be nearly the whole graph.
_NEIGHBOR = (
    *("--sampler", "neighbor", "--sampler.edges", "induced", "--sampler.fanouts", "8", "--sampler.batch_size", "512"),
    *("--fit.epochs", "10", "--fit.warmup_epochs", "1"),
)
# Seven features and a grid: a narrow, deep model on the whole graph.
_MINESWEEPER = (
    *(
        "--model.skip",
        "--task.metric",
        "rocauc",
        "--sampler.num_chunks",
        "1",
        "--fit.epochs",
        "120",
        "--fit.eval_every",
        "4",
        "--task.label_smoothing",
        "0",
    ),
    *(
        "--model.num_layers",
        "8",
        "--model.width",
        "48",
        "--model.dropout",
        "0.3",
        "--model.input_dropout",
        "0",
        "--fit.warmup_epochs",
        "12",
    ),
    *("--fit.learning_rate", "8e-3", "--fit.weight_decay", "1e-2"),
)
_TEN_SPLITS = tuple(("--data.split_set", str(index)) for index in range(10))

RECIPES = (
    Recipe(
        "amazon_cs",
        "random-partition, 4 chunks",
        (*_AMAZON, "--sampler.num_chunks", "4", "--fit.epochs", "50", "--fit.eval_every", "2"),
    ),
    Recipe("amazon_cs", "neighbor", (*_AMAZON, *_NEIGHBOR)),
    Recipe(
        "amazon_photo",
        "random-partition, 4 chunks",
        (*_AMAZON, "--sampler.num_chunks", "4", "--fit.epochs", "50", "--fit.eval_every", "2"),
    ),
    Recipe("amazon_photo", "neighbor", (*_AMAZON, *_NEIGHBOR)),
    Recipe("minesweeper", "random-partition, 1 chunk", _MINESWEEPER, _TEN_SPLITS),
)


@dataclass(frozen=True)
class Config:
    """Which runs, on which files."""

    data_dir: str
    """Folder of the public .npz files (amazon_cs.npz, amazon_photo.npz, minesweeper.npz)."""

    out_dir: str = "runs/node-scores"
    """Where graphs, runs and the table go."""

    only: tuple[str, ...] = field(default_factory=tuple)
    """Datasets to run; all by default."""


def run_recipe(recipe: Recipe, index: int, config: Config) -> dict:
    """One run's summary; the run is skipped where it is there already."""
    from storage.snapshots import has_graph

    out = Path(config.out_dir)
    graph = out / "graphs" / recipe.dataset
    if not has_graph(str(graph)):
        _prepare(Path(config.data_dir) / f"{recipe.dataset}.npz", graph)
    run_dir = out / f"{recipe.dataset}-{recipe.sampler.split(',')[0]}-{index}"
    summary = run_dir / "summary.json"
    if not summary.exists():
        command = [
            sys.executable,
            str(JOB),
            "--data",
            str(graph),
            *recipe.flags,
            *recipe.runs[index],
            "--run.dir",
            str(run_dir),
        ]
        print("$ " + " ".join(command), flush=True)
        log = out / f"{run_dir.name}.log"
        with open(log, "w") as file:
            code = subprocess.run(command, check=False, stdout=file, stderr=subprocess.STDOUT).returncode
        if code != 0 or not summary.exists():
            raise StageError(f"{run_dir.name}: expected exit status 0 and {summary}, got {code}; see {log}{_last(log)}")
    return json.loads(summary.read_text())


def _prepare(source: Path, graph: Path) -> None:
    ingest = [sys.executable, str(JOB.with_name("ingest.py")), str(source), str(graph)]
    code = subprocess.run([*ingest, "--partitions", "2", "--partitioner", "ldg"], check=False).returncode
    if code:
        raise StageError(f"{source}: ingestion failed with exit status {code}; its message is above")


def _last(log: Path) -> str:
    """The last line of a log, as an end of a message."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f": {lines[-1]}" if lines else ""


def main() -> int:
    config = parse(Config)
    known = {recipe.dataset for recipe in RECIPES}
    for dataset in config.only or known:
        if dataset not in known:
            raise ConfigError(f"only: expected some of {', '.join(sorted(known))}, got {dataset!r}; set --only")
        source = Path(config.data_dir) / f"{dataset}.npz"
        if not source.is_file():
            raise DataError(f"{source}: no such file; set --data-dir to the folder of the public .npz files")
    check_writable(Path(config.out_dir), "--out-dir")
    Path(config.out_dir).mkdir(parents=True, exist_ok=True)
    rows = []
    for recipe in RECIPES:
        if config.only and recipe.dataset not in config.only:
            continue
        summaries = []
        for index in range(len(recipe.runs)):
            summaries.append(run_recipe(recipe, index, config))
            print(f"{recipe.dataset}, {recipe.sampler}, run {index}: {summaries[-1]['scores']}", flush=True)
        tests = [100 * summary["scores"]["test"] for summary in summaries]
        rows.append(
            {
                "dataset": recipe.dataset,
                "sampler": recipe.sampler,
                "metric": summaries[0]["metric"],
                "test_mean": statistics.mean(tests),
                "test_std": statistics.stdev(tests),
                "valid_mean": statistics.mean(100 * summary["scores"]["valid"] for summary in summaries),
                "features_only": statistics.mean(100 * s["baselines"]["features_only"]["test"] for s in summaries),
                "seconds": statistics.mean(summary["wall_s"] for summary in summaries),
                "tests": tests,
                "flags": list(recipe.flags),
            }
        )
        (Path(config.out_dir) / "scores.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(
        "\n| set | sampler | metric | runs | test | valid | features only | s/run |\n|---|---|---|---|---|---|---|---|"
    )
    for row in rows:
        print(
            f"| {row['dataset']} | {row['sampler']} | {row['metric']} | {len(row['tests'])} | {row['test_mean']:.2f} ± "
            f"{row['test_std']:.2f} | {row['valid_mean']:.2f} | {row['features_only']:.2f} | {row['seconds']:.0f} |"
        )
    return 0


if __name__ == "__main__":
    run(main)
