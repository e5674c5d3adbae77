"""`train` of nodes or graphs: reads the configuration, then plans or trains."""

import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from graphmill.core.errors import ConfigError
from graphmill.jobs.cli.typed_commands import command_line, program_name
from graphmill.jobs.config.config import (
    AUTO,
    RunConfig,
    config_help,
    config_tree,
    read_config,
    read_recipe,
    read_saved,
    without,
)
from graphmill.jobs.config.reader import Tree, UsageError, Words, complain, read_words
from graphmill.jobs.config.registry import find_kind
from graphmill.jobs.config.short_help import short_help, take_topics
from graphmill.jobs.resolve.checks import choose_run_dir
from graphmill.jobs.resolve.resolve import Facts, resolve
from graphmill.samplers.methods.registry import load

if TYPE_CHECKING:
    from graphmill.jobs.records.run_record import Run


def train_main(
    description: str, kind: str = "nodes", recipe: str | None = None, words: Sequence[str] | None = None
) -> int:
    """Runs what the words of the command line say, over this recipe; returns the exit status.

    Ends the process with status 0 after --help, with 2 and one line where the words cannot be understood. Raises ConfigError for options
    that do not go together or with the data.
    """
    words = [
        "--allow_import" if word == "--allow-import" else word for word in (sys.argv[1:] if words is None else words)
    ]
    job = program_name()
    words, topics = take_topics(words)
    try:
        first, said = read_words(word for word in words if word not in _SWITCHES)
        if len(first) > 1:
            raise UsageError(f"expected one recipe, got {' '.join(first)!r}; options are written --name value")
        layers = [read_recipe(recipe)] if recipe else []
        resumed, allow_import = resumed_run(said), "--allow_import" in words
        layers += [read_recipe(name, allow_import=allow_import) for name in first]
        if resumed == AUTO:
            layers, said = automatic_resume(kind, layers, said, allow_import=allow_import)
        elif resumed is not None:  # what the run was is the default of what it goes on as
            layers = [read_saved(resumed, "start one without --run.resume", allow_import=allow_import).tree()]
        config = read_config(config_tree(kind, *layers, said))
        if topics is not None:
            lines = short_help([*_SWITCHES_HELP, *config_help(config)], topics, command_line(job))
    except UsageError as error:
        complain(str(error))
    if topics is not None:
        name = job if recipe else f"{job} [RECIPE.yaml]"
        about = [] if topics else [description.partition("\n\n")[0].strip(), ""]
        print("\n".join([*about, f"usage: {name} --option value …", "", *lines]))
        return 0
    return _begin(job, config, plan="--plan" in words)


def _begin(job: str, config: RunConfig, *, plan: bool = False) -> int:
    """Runs or plans; returns the exit status. What needs no data is refused before torch, numba and Ray are imported, which takes seconds."""
    any_number = replace(config.workers, num_workers=None, min_workers=None)  # the machine has a say in it
    resolve(replace(config, workers=any_number), Facts(find_kind(config.kind).inputs, {}, None))
    choose_run_dir(job, config.run)
    return int(load(f"graphmill.jobs.run.subject_run:{'plan' if plan else 'run'}_subject")(job, config))


def config(*words: object, kind: str = "nodes", recipe: str | None = None, allow_import: bool = False) -> RunConfig:
    """The configuration that these words of a command line describe: `config("--model", "geco", "--fit.epochs", 3)`.

    Raises UsageError for unknown names and values of another type, ConfigError for what a component refuses.
    """
    layers = [] if recipe is None else [read_recipe(recipe, allow_import=allow_import)]
    return read_config(config_tree(kind, *layers, read_words(map(str, words))[1]))


def train(config: RunConfig, *, allow_import: bool = False) -> "Run":
    """Trains, and returns the finished run. Its directory is `config.run.dir`, or a new one under runs/. Raises what the command would say.

    `allow_import`: code that a resumed run names, and `config` does not, may be imported.
    """
    from graphmill.jobs.records.run_record import read_run

    if config.run.resume == AUTO:
        # These the run has from when it began, where nobody says them now.
        unsaid = [path for path in ("fit.micro_batches", "data.snapshot") if config.options().get(path) is None]
        said = without([*config.open, *unsaid], config.tree())
        known = (config.kind, config.model.name, config.sampler.name, config.task.name)
        layers, said = automatic_resume(config.kind, [], said, allow_import=allow_import, known=known)
        config = read_config(config_tree(config.kind, *layers, said))
    if config.run.dir is None and config.run.resume is None:
        config = config.changed(("run.dir", f"runs/python-{time.strftime('%Y%m%d-%H%M%S')}"))
    _begin("python", config)
    return read_run(str(config.run.resume or config.run.dir), finished=True)


_SWITCHES = ("--plan", "--allow_import")
_SWITCHES_HELP = (
    "  --plan",
    "        Print what the run would use (batches, steps, memory, time), and what would be refused (exit status 1); start and write nothing.",
    "  --allow_import",
    "        Import the kind, model, sampler or task of its own that a resumed run, or a recipe outside this folder, names.",
)


def automatic_resume(
    kind: str, layers: Sequence[Tree], said: Tree, *, allow_import: bool, known: Collection[str] = ()
) -> tuple[list[Tree], Tree]:
    """(layers, what is said) of a run that goes on in --run.dir where that holds one, and begins there where it does not.

    All that is said now lies over what the run was: the same words change nothing, others are refused as they are with --run.resume DIR.
    Raises ConfigError where nothing says the directory.
    """
    from graphmill.cluster.runs.run_store import RunStore

    asked = config_tree(kind, *layers, said)
    place = asked["run"].get("dir")
    place = place[0] if isinstance(place, Words) and place else place
    if not place:
        raise ConfigError(
            "resume: expected --run.dir beside --run.resume auto, found none; the directory says which run it is: set --run.dir"
        )
    rest = {name: value for name, value in said["run"].items() if name not in ("dir", "resume")}
    if not RunStore(place).holds_run:
        return [*layers], {**said, "run": {**rest, "dir": place}}
    saved = read_saved(place, "start one without --run.resume", allow_import=allow_import, known=known).tree()
    return [saved, *layers], {**said, "run": {**rest, "resume": place, "dir": None}}


def resumed_run(said: Tree) -> str | None:
    """The run that the words ask to continue."""
    group: Any = said.get("run")
    value = group.get("resume") if isinstance(group, dict) else None
    return value[0] if value else None
