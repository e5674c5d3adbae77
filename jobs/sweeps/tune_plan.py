"""What a hyper-parameter sweep will run: its options, its trials as the job's own command lines, and how many of them at once."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from cluster.options import WorkerOptions
from cluster.placement import Resources, resolve
from jobs.sweeps.tunable_jobs import (
    OWN,
    arguments_of,
    check_option,
    config_kind,
    metrics_of,
    option_types,
    parse_arguments,
    takes_whole_numbers,
)
from jobs.sweeps.tune_space import Choice, Draw, parse_draw, parse_try, trial_options
from storage.errors import ConfigError


@dataclass(frozen=True)
class SweepConfig:
    """Hyper-parameters of a job."""

    job: Literal["products_geco", "products_primphormer", "products_tokengt", "arxiv_ppgt", "pcqm4m_tokengt"] = (
        "products_geco"
    )
    """What is trained."""
    tries: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(name="try", metavar="OPTION=A,B,...")
    ] = ()
    """Values of an option of the job, all of which are tried."""
    draws: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(name="draw", metavar="OPTION=LOW..HIGH[:log]")
    ] = ()
    """A range from which every trial draws, evenly, or evenly in the logarithm."""
    trials: int | None = None
    """How often is drawn; for each draw all combinations of --try are run."""
    metric: str | None = None
    """What trials are compared by: valid_accuracy, valid_mae, valid_loss …; the default is what selects the job's best epoch."""
    scheduler: Literal["none", "asha"] = "none"
    """asha: stops trials early that are behind."""
    grace_epochs: int = 1
    """asha: no trial stops before."""
    reduction: int = 4
    """asha: one in so many goes on."""
    at_once: int | None = None
    """Trials that run together; the default is as many as the CPUs hold (and the GPUs, where trials use them)."""
    cpus: int | None = None
    """Of a local Ray; the default is the number of cores."""
    address: str | None = None
    """A running Ray cluster (host:port or auto): its nodes train, and the jobs' own processes stay on this one."""
    seed: int = 0
    """Of the draws; the trainings' is an option of the job."""
    trial_timeout_s: float = 86_400.0
    """Longest a trial may take."""
    retry: bool = False
    """With --resume: run failed trials again, from their start."""
    resume: str | None = None
    """A sweep's directory, to continue it."""
    out: str | None = None
    """Where the sweep is kept; the default is runs/tune-<job>-<time>."""
    options: tyro.conf.Suppress[tuple[str, ...]] = ()
    """What stood after `--`."""


@dataclass(frozen=True)
class Trial:
    """One combination of options."""

    number: int
    options: Mapping[str, str]  # those that are tried
    arguments: tuple[str, ...]  # all of them, as the job's command line
    config: Any  # what the job makes of them

    @property
    def name(self) -> str:
        return f"trial-{self.number:03d}"


def plan_trials(config: SweepConfig) -> list[Trial]:
    """All trials. Raises ConfigError where the space is empty or malformed, or where the job would refuse a trial's command line."""
    kind = config_kind(config.job)
    types = option_types(kind)
    for flag in config.options:
        name = flag.partition("=")[0].replace("_", "-")
        if name.startswith("--") and name[2:] in OWN:
            check_option(config.job, name[2:], types, "after --")
    choices, draws = _space(config, types)
    if not choices and not draws:
        raise ConfigError("the search space is empty: give --try option=a,b or --draw option=low..high --trials n")
    if draws and config.trials is None:
        raise ConfigError(f"--draw {draws[0].option}: expected how often to draw; give --trials")
    if config.trials is not None and (config.trials < 1 or not draws):
        wrong = (
            f"expected at least 1, got {config.trials}" if draws else "nothing is drawn; give --draw or leave it out"
        )
        raise ConfigError(f"--trials: {wrong}")
    found = []
    for number, options in enumerate(trial_options(choices, draws, config.trials or 1, config.seed)):
        arguments = (*config.options, *arguments_of(options, types))
        where = f"trial {number} ({say_options(options)}): " if options else ""
        found.append(Trial(number, options, arguments, parse_arguments(kind, arguments, where=where)))
    return found


def _space(config: SweepConfig, types: Mapping[str, Any]) -> tuple[list[Choice], list[Draw]]:
    choices, draws = [], []
    for text in config.tries:
        choice = parse_try(text)
        check_option(config.job, choice.option, types, f"--try {text}")
        choices.append(choice)
    for text in config.draws:
        name = parse_draw(text).option
        check_option(config.job, name, types, f"--draw {text}")
        kind = types[name]
        whole = takes_whole_numbers(kind)
        if not whole and kind is not float and float not in getattr(kind, "__args__", ()):
            raise ConfigError(f"--draw {text}: --{name} takes no numbers of a range; give its values by --try")
        draws.append(parse_draw(text, whole))
    return choices, draws


def metric_of(config: SweepConfig, trials: Sequence[Trial]) -> str:
    """What trials are compared by. Raises ConfigError where a trial does not have it."""
    metric = config.metric or metrics_of(trials[0].config)[0]
    batch = trials[0].config.batch
    if config.metric is None and getattr(batch, "estimate", None) is not None and batch.select_by != "estimate":
        raise ConfigError(
            f"metric: expected a choice where scores are estimates ({batch.estimate}), got none; pass --metric {metric}"
        )
    for trial in trials:
        known = metrics_of(trial.config)
        if metric not in known:
            raise ConfigError(f"metric: expected one of {', '.join(known)}, got {metric!r}; set --metric")
    return metric


def check(config: SweepConfig) -> None:
    """Raises ConfigError for numbers that cannot be."""
    for name, least in (("grace_epochs", 1), ("reduction", 2), ("at_once", 1), ("cpus", 1)):
        value = getattr(config, name)
        if value is not None and value < least:
            raise ConfigError(f"{name}: expected at least {least}, got {value}; set --{name.replace('_', '-')}")
    if not config.trial_timeout_s > 0:
        raise ConfigError(f"trial_timeout_s: expected more than 0 seconds, got {config.trial_timeout_s}")


def at_once(asked: int | None, trials: Iterable[WorkerOptions], there: Resources) -> int:
    """How many trials run together, each with workers as it would have them alone here.

    Raises ConfigError where not one fits, or fewer than asked for.
    """
    most, what = there.cpus, ""
    for trial in trials:
        try:
            resolved, _ = resolve(trial, there)
        except ConfigError as error:
            raise ConfigError(f"a trial's workers: {error}; --workers goes after --, --cpus before it") from None
        on_gpu = resolved.device == "gpu"
        fit = max(1, min(there.cpus, there.gpus if on_gpu else there.cpus) // resolved.most)
        if fit <= most:
            have = f"{there.gpus} GPUs" if on_gpu else f"{there.cpus} CPUs"
            most, what = fit, f"{have}, {resolved.most} workers a trial"
    if asked is not None and asked > most:
        raise ConfigError(f"at_once: expected at most {most} ({what}), got {asked}; lower --at-once")
    return asked or most


def say_options(options: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())
