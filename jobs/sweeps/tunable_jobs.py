"""The training jobs that a sweep may try options of: what options they have, and what they make of a command line."""

import io
import typing
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from jobs.run.command_line import one_line
from storage.errors import ConfigError, GraphmillError

JOBS = ("products_geco", "products_primphormer", "products_tokengt", "arxiv_ppgt", "pcqm4m_tokengt")
GRAPH_SET_JOBS = ("pcqm4m_tokengt",)
OWN = (
    "run-dir",
    "resume",
    "address",
    "dashboard-port",
    "plan",
    "no-plan",
)  # a sweep sets these, or has no use for them

_YES, _NO = ("yes", "true"), ("no", "false")
_OF_TASK = {"regression": ("mae", "rmse"), "binary": ("rocauc", "ap"), "classes": ("accuracy",)}
_LOWER_IS_BETTER = ("loss", "mae", "rmse")

T = TypeVar("T")


def script_of(job: str) -> Path:
    return Path(__file__).resolve().parents[1] / f"{job}.py"


def config_kind(job: str) -> Any:
    """The job's class of options."""
    return import_module(f"jobs.{job}").Config


def option_types(kind: Any) -> dict[str, Any]:
    """The options of a job by their names on the command line, with their types."""
    hints = typing.get_type_hints(kind)
    found: dict[str, Any] = {}
    for one in fields(kind):
        hint = hints[one.name]
        found |= option_types(hint) if is_dataclass(hint) else {one.name.replace("_", "-"): hint}
    return found


def check_option(job: str, name: str, types: Mapping[str, Any], where: str) -> None:
    """Raises ConfigError where the job has no such option, or where it is the sweep's own to set."""
    if name in OWN:
        raise ConfigError(f"{where}: the sweep sets --{name} of every trial itself; leave it out")
    if name not in types:
        import difflib

        close = difflib.get_close_matches(name, types, 3) or list(types)
        raise ConfigError(f"{where}: {job} has no option --{name}; perhaps {', '.join('--' + one for one in close)}")


def takes_whole_numbers(kind: Any) -> bool:
    """Whether an option's type is int (or int and none)."""
    return kind is int or (int in typing.get_args(kind) and float not in typing.get_args(kind))


def arguments_of(options: Mapping[str, str], types: Mapping[str, Any]) -> tuple[str, ...]:
    """Options as a command line: "yes" and "no" are flags, and a value with spaces is several values."""
    found: list[str] = []
    for name, value in options.items():
        if types[name] is bool:
            if value.lower() not in _YES + _NO:
                raise ConfigError(f"--{name}: expected yes or no, got {value!r}")
            found.append(f"--{name}" if value.lower() in _YES else f"--no-{name}")
        else:
            none = type(None) in typing.get_args(types[name]) and value.lower() == "none"
            found += [f"--{name}", *(["None"] if none else value.split())]
    return tuple(found)


def parse_arguments(kind: type[T], arguments: Sequence[str], *, default: T | None = None, where: str = "") -> T:
    """What a job makes of its command line. Raises ConfigError, `where` first, where it would refuse it."""
    import tyro

    marked: Any = tyro.conf.configure(tyro.conf.OmitArgPrefixes)(kind)
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            return tyro.cli(marked, args=list(arguments), default=kind() if default is None else default)
    except SystemExit:
        raise ConfigError(f"{where}{one_line(said.getvalue())}") from None
    except GraphmillError as error:
        raise ConfigError(f"{where}{error}") from None


def metrics_of(config: Any) -> tuple[str, ...]:
    """What an epoch of this run says of the validation split, first what selects its best epoch, and the training loss."""
    task = getattr(config.fit, "task", "classes")
    scores = _OF_TASK[task]
    chosen = scores[0] if config.fit.metric == "auto" else config.fit.metric
    prefix = "valid_" if getattr(config.batch, "estimate", None) is None else "valid_estimate_"
    return tuple(dict.fromkeys([f"{prefix}{name}" for name in (chosen, *scores, "loss")] + ["train_loss"]))


def lower_is_better(metric: str) -> bool:
    return metric.rpartition("_")[2] in _LOWER_IS_BETTER


def prepare(job: str, config: Any) -> None:
    """Prepares what the trial trains on, so that trials that start together do not make it twice. Raises what the job would."""
    if job in GRAPH_SET_JOBS:
        from jobs.run.prepare_molecules import prepare_molecules

        prepare_molecules(config)
    else:
        from jobs.run.prepare_graph import prepare_graph

        prepare_graph(config.graph)
