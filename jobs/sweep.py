"""Tries options, seeds, worker counts and graph sizes of a training run: each trial is a run. Writes one table, pages and CSV files.

    python jobs/sweep.py --grid fit.learning_rate=1e-3,3e-3 model.width=64,128 --seeds 0 1 2      all combinations, three seeds each
    python jobs/sweep.py recipe.yaml --draw fit.learning_rate=1e-4..1e-2:log --trials 20 --prune   twenty draws, weak trials are stopped early
    python jobs/sweep.py --kind graphs --grid model=tokengt,grit,ppgt -- --fit.epochs 20          words after -- go to every trial
    python jobs/sweep.py --study studies/grit_ablations.yaml -- --data graphs/zinc                the arms of a study, one recipe changed
    python jobs/sweep.py --workers 1 2 4 --nodes 20000 200000 -- --fit.epochs 4                   how training scales
    python jobs/sweep.py --resume runs/sweep-20260101-120000                                      continues, or shows the results

A trial is a normal run of `graphmill train_nodes OUT/trial-000.yaml` (or train_graphs) in OUT/trial-000. Outside of the sweep this command gives the same
scores to the last digit. If a trial fails, the sweep reports the cause, continues, and exits with 1 at the end; `--resume OUT --retry` runs the trial again.
Ctrl-C ends all trials within seconds. --resume continues them from their checkpoints. `--resume OUT --trials 40` adds draws.

With --workers or --nodes, trials run one at a time. The cost of each trial is stored in OUT/points.jsonl (`python -m graphmill.jobs.plan.cost_model --points`
reads this file) and shown in report.html next to the ideal line. The first epoch is a warm-up and does not count. Only the last epoch is validated.
"""

import os
import shlex
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from graphmill.core.errors import ConfigError
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.cli.progress import results
from graphmill.jobs.config.reader import UsageError, build, complain, merge, parse, read_words, to_tree
from graphmill.jobs.config.registry import find_kind
from graphmill.jobs.sweeps.design import (
    SweepDesign,
    SweepOptions,
    at_once,
    design_sweep,
    lower_is_better,
    metric_of,
    say,
)

_MAY_CHANGE = ("resume", "trials", "retry", "at_once", "cpus", "trial_timeout_s", "allow_import")
_STOP_TIMEOUT_S = 40.0  # wait for the end of a killed sweep's trials


def read_options(arguments: Sequence[str]) -> tuple[SweepOptions, list[str]]:
    """(the sweep's options, the words after `--`), from the command line or, with --resume, from the sweep's files. Raises ConfigError if an option changes
    that must stay."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    own, words = list(arguments[:cut]), list(arguments[cut + 1 :])
    for flag in ("--grid", "--draw"):
        if own.count(flag) > 1:
            raise UsageError(f"{flag}: given twice; write {flag} A=… B=… instead")
    options = parse(SweepOptions, __doc__, ("recipe",), own)
    if options.resume is None:
        return options, words
    from graphmill.jobs.sweeps.search import saved_attributes

    saved = saved_attributes(Path(options.resume))
    first, said = read_words(own)
    changed = (
        [f"--{name}" for name in said if name not in _MAY_CHANGE]
        + ["the recipe"] * bool(first)
        + ["what stands after --"] * bool(words)
    )
    if changed:
        raise ConfigError(
            f"--resume {options.resume}: the sweep keeps its own {', '.join(changed)}; leave that out, or start another"
        )
    if options.trials is not None and options.trials < (saved["options"]["trials"] or 0):
        raise ConfigError(
            f"--trials: expected at least the {saved['options']['trials']} of the sweep that is resumed, got {options.trials}"
        )
    return build(SweepOptions, merge(saved["options"] | {"allow_import": False}, said)), saved["words"]


def sweep(options: SweepOptions, words: Sequence[str]) -> int:
    """Runs the missing trials; returns 1 if a trial has failed."""
    plan = design_sweep(options, words)
    slots = {slot.number: slot for slot in plan.slots()}
    configs = plan.configs()
    metric = metric_of(plan, configs)
    out = _out(options)
    together = _together(plan, configs)
    from graphmill.jobs.cli.child_process import end_tagged, new_tag
    from graphmill.jobs.sweeps.pages import print_table, write_pages
    from graphmill.jobs.sweeps.scaling import ScalingClock
    from graphmill.jobs.sweeps.search import FILE, Search, saved_attributes, status_of
    from graphmill.jobs.sweeps.trials import TrialRunner, prepare, put_aside, trial_record
    from graphmill.jobs.sweeps.tuned_baselines import Classic, train_classics, why_impossible

    for config in configs:
        prepare(config)
    tag = saved_attributes(out)["tag"] if options.resume else new_tag()
    end_tagged(tag, _STOP_TIMEOUT_S)  # processes of a part of the sweep that was killed
    out.mkdir(parents=True, exist_ok=True)
    kept = to_tree(options) | {"resume": None, "out": None, "retry": False}
    search = Search(out, plan, lower_is_better(metric), {"options": kept, "words": list(words), "tag": tag})
    before = {number: status_of(trial) for number, trial in search.trials().items()}
    again = [number for number in slots if options.retry and before.get(number) == "failed"]
    for number in again:
        put_aside(out / slots[number].name)
        (out / f"{slots[number].name}.log").unlink(missing_ok=True)
    missing = [slots[n] for n in slots if n in again or before.get(n, "not ended") == "not ended"]
    print(
        f"{len(slots)} trials, {len(slots) - len(missing)} of them run before; kept in {out}; {together} at once",
        flush=True,
    )
    clock = ScalingClock(plan, out) if plan.measures_scaling else None
    ended: list[int] = []
    classic: list[Classic] = []
    of_nodes = find_kind(configs[0].kind).is_one_graph and configs[0].links is None
    baseline = replace(configs[0].baseline, models=(options.baseline or ()) if of_nodes and clock is None else ())
    if baseline.models and (reason := why_impossible(configs, baseline)):
        print(f"no baseline beside them: {reason}", flush=True)
        baseline = replace(baseline, models=())

    def on_end(record: dict[str, Any]) -> None:
        ended.append(record["number"])
        print(f"[{len(ended)}/{len(missing)}] {_say_trial(record, metric, out)}", flush=True)
        if clock is not None:
            clock.keep(slots[record["number"]], record, search.trials()[record["number"]].params)

    runner = TrialRunner(plan, search, out, metric, together, tag, clock.look if clock else lambda number, pid: None)
    try:
        runner.run(iter(missing), on_end)
        if baseline.models:
            print(f"the baseline {' '.join(baseline.models)} beside them (--baseline none leaves it out)", flush=True)
            classic = train_classics(configs, baseline, out, tag, options.trial_timeout_s)
    except BaseException:  # also after Ctrl-C or SIGTERM: the sweep can be continued from here
        print(f"\nto continue: graphmill sweep --resume {shlex.quote(str(out))}", file=sys.stderr)
        raise
    finally:
        status = {number: status_of(trial) for number, trial in search.trials().items() if number in slots}
        records = [
            trial_record(slots[number], search.trials()[number], out / slots[number].name, metric)
            for number in sorted(status)
            if status[number] in ("finished", "stopped", "failed")
        ]
        planned = len(slots) - sum(one == "repeats" for one in status.values())
        write_pages(plan, words, configs[0].kind, records, metric, planned, out, classic)
        if clock is not None:
            clock.write_report()
    with results():
        print_table(records, metric)
        for model in classic:
            print(f"baseline {model.name}: {model}")
        print(f"kept in {out}: {FILE}, trials.csv, sweep.html, and each trial's recipe, log and run")
    failed = sum(one["status"] == "failed" for one in records)
    if failed:
        print(f"error: {failed} of {len(slots)} trials failed; --resume {out} --retry runs them again", file=sys.stderr)
    return 1 if failed else 0


def _out(options: SweepOptions) -> Path:
    if options.resume is not None:
        return Path(options.resume)
    out = Path(options.out or f"runs/sweep-{time.strftime('%Y%m%d-%H%M%S')}")
    from graphmill.storage.filesystem.outputs import check_output

    check_output(out, "a sweep", advice=f"pass --resume {out} to continue a sweep, or choose another --out")
    return out


def _together(plan: SweepDesign, configs: Iterable[Any]) -> int:
    """Number of trials that run at the same time. If trials join a cluster or the sweep measures scaling, the default is one."""
    from graphmill.cluster.ray.session import joins_a_cluster

    options = plan.options
    if any(joins_a_cluster(config.ray) for config in configs):
        return options.at_once or 1
    import torch

    from graphmill.cluster.ray.placement import Resources

    here = Resources(options.cpus or os.cpu_count() or 1, torch.cuda.device_count())
    most = at_once(options.at_once, [config.workers for config in configs], here)
    return options.at_once or (1 if plan.measures_scaling else most)


def _say_trial(record: Mapping[str, Any], metric: str, out: Path) -> str:
    """Describes a trial in one line."""
    name = f"trial-{record['number']:03d}"
    trial = f"{name} ({say(record['options'])})"
    if record["status"] == "failed":
        return f"{trial}: failed: {record['cause']}; log: {out / name}.log"
    after = f"stopped after epoch {record['epochs']}" if record["status"] == "stopped" else f"{record['epochs']} epochs"
    return f"{trial}: {metric} {record['score']:.4f} at epoch {record['best_epoch']}, {after}"


def main() -> int:
    try:
        return sweep(*read_options(sys.argv[1:]))
    except UsageError as error:
        complain(str(error))


if __name__ == "__main__":
    run(main)
