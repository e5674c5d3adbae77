"""Lists and runs the figures of the five papers: `graphmill reproduce PAPER TABLE` prints a table's rows, `--run ROW …` runs some.

    graphmill reproduce --list                                   every row: the paper's figure, ours, and whether one command runs it
    graphmill reproduce GRIT T6                                  the rows of one table, with their commands and the cost of each by --plan
    graphmill reproduce GRIT T6 --run K=2 K=7                    runs two rows, one after another
    graphmill reproduce GRIT T1-3 --run ZINC --seeds 0 1 2 3     four seeds: mean, standard deviation, and a t-test against the paper's figure
    graphmill reproduce GRIT T6 --run K=2 -- --fit.epochs 5      words after -- go to the command

A cost needs the row's data below --graphs; without the data its line says how to ingest them. A row of a study runs only its own arm. The runs, and what the
commands print, are kept in --out. If a command fails, the next one still runs, and the exit status is 1. The site has the same list as a page.
"""

import contextlib
import importlib
import inspect
import io
import math
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any

from graphmill.core.errors import ConfigError, GraphmillError
from graphmill.core.option_checks import Positive, check_fields
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.config import RunConfig, config_tree, read_config, read_recipe
from graphmill.jobs.config.reader import UsageError, Words, build, complain, parse, read_words
from graphmill.jobs.papers.published import STATUSES, PublishedRow, read_rows, select_rows

_PAPERS = "graphmill.jobs.papers."
_COSTS = ("steps", "batch", "memory", "time", "refused")  # lines of a plan that say what a run costs
_TRAINS = {"train_nodes": "nodes", "train_graphs": "graphs"}


@dataclass(frozen=True)
class ReproduceConfig:
    """Show or run rows of the papers' tables."""

    paper: str | None = None
    """TokenGT, GRIT, PPGT, Primphormer or GECO."""
    table: str | None = None
    """A table, figure or claim of the paper, such as T6. The default is all."""
    list: bool = False
    """Print all rows of the paper, or of all papers, one line each."""
    run: tuple[str, ...] = ()
    """Rows of the table to run: a row's name, or its number in the table from 1."""
    seeds: tuple[int, ...] = ()
    """With --run: seeds of a training row. Each runs once; then the mean is compared with the paper's figure."""
    graphs: Path = Path("graphs")
    """Folder of the ingested data sets."""
    cost: bool = True
    """Show the cost of each row whose data are there. A cost takes some seconds."""
    timeout_s: Positive = 2_592_000.0
    """Time limit of one command, in seconds."""
    out: Path | None = None
    """Folder of the runs; the default is runs/reproduce-<time>."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.list and (self.paper is None or self.table is None):
            raise ConfigError("paper: expected a paper and a table; give them, or --list")
        if self.list and self.run:
            raise ConfigError("list: nothing runs with it; leave out --list or --run")
        if self.seeds and not self.run:
            raise ConfigError("seeds: expected rows to run; set --run")


def main() -> int:
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    config, more = parse(ReproduceConfig, __doc__, ("paper", "table"), words[:cut]), words[cut + 1 :]
    rows = select_rows(config.paper, config.table, config.run)
    try:
        if config.run:
            return run_rows(rows, config, more)
        if config.list:
            print_list(rows)
        else:
            print_rows(rows, config, more)
    except UsageError as error:
        complain(str(error))
    return 0


def print_list(rows: Sequence[PublishedRow]) -> None:
    from graphmill.jobs.runs import text_table

    columns = ("paper", "table", "row", "published", "ours", "status")
    print(text_table([columns, *([getattr(row, name) for name in columns] for row in rows)]))
    print(f"\n{len(rows)} rows: {counts(rows)}")


def counts(rows: Sequence[PublishedRow]) -> str:
    return ", ".join(f"{sum(row.status == status for row in rows)} {status}" for status in STATUSES)


def print_rows(rows: Sequence[PublishedRow], config: ReproduceConfig, more: Sequence[str]) -> None:
    """Prints each row with its command and cost. A cost that many rows share is computed once."""
    known: dict[str, list[str]] = {}
    for number, row in enumerate(rows, 1):
        print(f"{number}  {row.row}: {row.published} in the paper; ours: {row.ours}")
        told = [("status", f"{row.status}{f': {row.reason}' if row.reason else ''}")]
        if row.command:
            words = row.words(str(config.graphs), more)
            told.append(("command", program(words)))
            if config.cost:
                if program(words) not in known:
                    known[program(words)] = list(cost_lines(words))
                told += [("cost", line) for line in known[program(words)]]
        for name, text in told:
            print(f"{name:>12}  {text}")
        print(flush=True)
    print(counts(rows))


def program(words: Sequence[str]) -> str:
    """The command as a user types it."""
    return ("python -m " if words[0].startswith(_PAPERS) else "graphmill ") + shlex.join(words)


def cost_lines(words: Sequence[str]) -> Iterator[str]:
    """What the command's runs would cost, by --plan. A run whose data are not there has a line that says how to ingest them."""
    configs = read_command(words)
    if not configs:
        yield "no plan; the command's --help says how long it takes"
    for name, config in configs.items():
        from graphmill.jobs.run.subject_run import plan_subject

        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                plan_subject(f"train_{config.kind}", config)
        except GraphmillError as error:
            yield f"{name}{str(error).replace('<source>', Path(str(getattr(config.data, 'path', ''))).name)}"
            continue
        lines = [line.strip().partition("  ") for line in said.getvalue().splitlines()]
        yield name + "; ".join(
            f"{key} {text}" for key, _, text in lines if key in _COSTS and (key, text) != ("refused", "nothing")
        )


def read_command(words: Sequence[str]) -> dict[str, RunConfig]:
    """Reads the words of a command as the command itself does. Returns the configuration of each training run by the arm's name, with a colon; no configuration
    for a command that trains no run of the library. Raises UsageError for an option that is not known, ConfigError for a value that cannot work.
    """
    if words[0] in _TRAINS:
        first, said = read_words(words[1:])
        return {"": read_config(config_tree(_TRAINS[words[0]], *map(read_recipe, first), said))}
    if words[0] == "sweep":
        from graphmill.jobs.sweep import read_options
        from graphmill.jobs.sweeps.design import design_sweep, say

        plan = design_sweep(*read_options(words[1:]))
        return {f"{say(slot.values)}: ": plan.config(slot.values, slot.seed) for slot in plan.slots()}
    own = 2 if words[0] == "bench" else 1
    name = words[0] if words[0].startswith(_PAPERS) else f"graphmill.jobs.{'.'.join(words[:own])}"
    if words[0] == "reproduce" and "--" in words:  # the rest goes to the rows that it runs, which read it themselves
        words = words[: words.index("--")]
    _read_options(importlib.import_module(name), words[own:])
    return {}


def _read_options(module: Any, words: Sequence[str]) -> None:
    """Reads the words as the options of a command: the dataclass of its module whose name ends in Config."""
    named: dict[str, Any] = {
        name: value for name, value in inspect.getmembers(module, is_dataclass) if name.endswith("Config")
    }
    own = [each for each in named.values() if each.__module__ == module.__name__]
    kind = own[0] if own else named[f"{module.__name__.rpartition('.')[2].title()}Config"]
    first, tree = read_words(words)
    build(kind, {**dict(zip(kind.__dataclass_fields__, (Words([word]) for word in first), strict=False)), **tree})


def run_rows(rows: Sequence[PublishedRow], config: ReproduceConfig, more: Sequence[str]) -> int:
    """Runs each row in a process of its own. Returns 1 if a command failed."""
    for row in rows:
        if not row.command:
            raise ConfigError(f"run: {row.row} has no command ({row.reason}); leave it out")
    commands = [_seeded(row, row.words(str(config.graphs), more), config.seeds) for row in rows]
    for words in commands:
        read_command(words)  # refuses before anything runs
    out = config.out or Path(f"runs/reproduce-{time.strftime('%Y%m%d-%H%M%S')}")
    from graphmill.storage.filesystem.outputs import check_output

    check_output(out, "the runs of these rows", advice="choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for number, (row, words) in enumerate(zip(rows, commands, strict=True), 1):
        place = out / f"{number:02d}"
        command = placed(words, place)
        print(f"[{number}/{len(rows)}] {row.paper} {row.table}, {row.row}: {program(command)}", flush=True)
        start = [sys.executable, "-m", *(command if words[0].startswith(_PAPERS) else ["graphmill", *command])]
        try:
            status = subprocess.run(start, timeout=config.timeout_s, check=False).returncode
        except subprocess.TimeoutExpired:
            status = 1
            print(f"error: ended after {config.timeout_s:g} s; raise --timeout_s", file=sys.stderr)
        failed += status != 0
        for line in measured(row, place, arms_of(words)) if status == 0 else [f"failed, exit status {status}"]:
            print(f"{row.row}: {line}", flush=True)
    return 1 if failed else 0


def placed(words: Sequence[str], place: Path) -> list[str]:
    """The command with `place` as the folder of its run or results, if it has such an option."""
    if words[0] in _TRAINS:
        return [*words, "--run.dir", str(place)]
    if words[0] not in ("sweep", "bench", "reproduce") and not words[0].startswith(_PAPERS):
        return [*words]
    cut = words.index("--") if "--" in words else len(words)
    out = () if words[0].endswith("color_refinement") else ("--out", str(place))  # it writes nothing
    return [*words[:cut], *out, *words[cut:]]


def _seeded(row: PublishedRow, words: list[str], seeds: Sequence[int]) -> list[str]:
    if not seeds:
        return words
    values = ["--seeds", *map(str, seeds)]
    if words[0] in _TRAINS:
        kind = ["--kind", _TRAINS[words[0]]]
        return ["sweep", words[1], *kind, *values, "--baseline", "none", "--", *words[2:]]
    if words[0] != "sweep":
        raise ConfigError(f"seeds: expected a row that trains, got {row.row}, {words[0]}; leave it out")
    cut = words.index("--")
    return [*words[:cut], *values, *words[cut:]]


def arms_of(words: Sequence[str]) -> dict[str, str]:
    """The arm of each trial of a study's command, by the trial's name. Empty for a command without arms."""
    if words[0] != "sweep":
        return {}
    from graphmill.jobs.sweep import read_options
    from graphmill.jobs.sweeps.design import ARM, design_sweep

    return {
        slot.name: slot.values[ARM] for slot in design_sweep(*read_options(words[1:])).slots() if ARM in slot.values
    }


def measured(row: PublishedRow, place: Path, arms: Mapping[str, str]) -> Iterator[str]:
    """The scores of a row's runs beside the paper's figure: a line for each arm and for each classic model beside the runs. A row of one arm whose command gives
    the whole figure, one mean with its deviation, also has the t-test. `arms`: arm of a trial by its name.
    """
    from graphmill.jobs.records.run_record import read_run

    paper = f"{row.published} in the paper"
    if (place / "config.json").exists():
        record = read_run(place)
        scores = ", ".join(f"{split} {value:.4f}" for split, value in record.scores.items())
        yield f"{record.metric} {scores}; {paper}"
        return
    runs: dict[str, list[Any]] = {}
    for path in sorted(path.parent for path in place.glob("trial-*/config.json")):
        runs.setdefault(arms.get(path.name, ""), []).append(read_run(path))
    if not runs:
        yield f"see {place}; {paper}"
        return
    classic = best_classics(place)
    several = len(runs) > 1 or bool(classic)
    for arm, own in (runs | classic).items():
        metric, values = own[0].metric, _tested(own)
        said = "without a score"
        if len(values) > 1:
            said = "{:.4f} ± {:.4f}".format(*mean_and_spread(values)) + f" over {len(values)} runs"
        elif values:
            said = f"{values[0]:.4f}"
        name = arm or own[0].config["model"]["name"]
        yield f"{f'{name}: ' if several else ''}{metric} {said}{'' if several else f'; {paper}'}"
    if several:
        yield paper
    figure, (first, *_) = figure_of(row.published), runs.values()
    metric, values = first[0].metric, _tested(first)
    if figure is not None and metric and len(runs) == 1 and len(values) > 1 and row.status == "one command":
        from graphmill.jobs.sweeps.design import lower_is_better

        chance = one_tailed(values, figure, lower_is_better(metric))
        yield f"one-tailed t-test that ours is worse: p = {chance:.3g}; the paper's figure counts as the mean of {len(values)} runs"


def _tested(runs: Sequence[Any]) -> list[float]:
    tested = [one.scores.get("test", one.scores.get("valid")) for one in runs]
    return [value for value in tested if value is not None]


def best_classics(place: Path) -> dict[str, list[Any]]:
    """The runs of the classic models that a sweep trained beside its trials, by model: for each graph, split and seed the one with the best validation score."""
    from graphmill.jobs.records.run_record import read_run
    from graphmill.jobs.sweeps.design import lower_is_better

    tried: dict[tuple[str, str], list[Any]] = {}
    for path in sorted(place.glob("beside-*/baselines/*/summary.json")):
        name = path.parent.name.rpartition("-")[0]
        tried.setdefault((name, path.parents[2].name), []).append(read_run(path.parent))
    best: dict[str, list[Any]] = {}
    for (name, _), runs in tried.items():
        sign = -1 if lower_is_better(runs[0].metric or "") else 1
        best.setdefault(name, []).append(max(runs, key=lambda one: sign * one.scores.get("valid", -sign * math.inf)))
    return best


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def figure_of(published: str) -> tuple[float, float] | None:
    """(mean, standard deviation) in a text such as "0.059 ± 0.002"; None if the text has none, or several."""
    found = re.findall(r"(\d*\.?\d+) ± (\d*\.?\d+)", published)
    return (float(found[0][0]), float(found[0][1])) if len(found) == 1 else None


def one_tailed(values: Sequence[float], paper: tuple[float, float], lower_is_better: bool) -> float:
    """p of the two-sample t-test with equal variances that the values are worse than the paper's (mean, standard deviation) of as many runs. A percentage of the
    paper is compared with 100 times a share.
    """
    from scipy.stats import ttest_ind_from_stats

    mean, spread = mean_and_spread(values)
    scale = 100.0 if paper[0] > 1.0 >= mean else 1.0
    test = ttest_ind_from_stats(
        mean * scale,
        spread * scale,
        len(values),
        paper[0],
        paper[1],
        len(values),
        alternative="greater" if lower_is_better else "less",
    )
    return float(test.pvalue)


def page(rows: Sequence[PublishedRow] | None = None) -> str:
    """The site's page of all rows, in Markdown."""
    rows = read_rows() if rows is None else rows
    lines = [
        "# Every figure of the five papers",
        "",
        f"This page lists each table, figure and claim of the five papers, {len(rows)} rows: {counts(rows)}. `graphmill reproduce PAPER TABLE` prints the rows "
        "of one table with their costs, and `--run ROW` runs some. Data sets lie below `graphs/`, as [ingestion](data_sets.md) writes them.",
        "",
    ]
    for paper in dict.fromkeys(row.paper for row in rows):
        own = [row for row in rows if row.paper == paper]
        lines += [f"## {paper}", "", f"{len(own)} rows: {counts(own)}.", ""]
        lines += ["| table | row | the paper | ours | status | command |", "|---|---|---|---|---|---|"]
        for row in own:
            status = f"{row.status}{f': {row.reason}' if row.reason else ''}"
            command = f"`{row.command}`" if row.command else ""
            cells = (row.table, row.row, row.published, row.ours, status, command)
            lines.append(f"| {' | '.join(cell.replace('|', ',') for cell in cells)} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    run(main)
