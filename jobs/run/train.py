"""Trains on nodes, graphs or links, from a command line or from Python: reads the configuration, then prints the plan or trains."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, replace
from typing import TYPE_CHECKING, Any

from graphmill.core.errors import ConfigError, StageError
from graphmill.core.public_names import nearest
from graphmill.jobs.cli import progress
from graphmill.jobs.cli.typed_commands import command_line, program_name
from graphmill.jobs.config.config import (
    AUTO,
    RunConfig,
    RunOptions,
    config_options,
    config_tree,
    nested,
    own_code,
    read_config,
    read_recipe,
    read_saved,
    without,
)
from graphmill.jobs.config.reader import (
    HEAD,
    Tree,
    UsageError,
    as_words,
    build,
    complain,
    merge,
    read_words,
    take,
)
from graphmill.jobs.config.registry import find_kind, named, saved_by
from graphmill.jobs.config.short_help import Option, show_help, take_topics
from graphmill.jobs.resolve.checks import choose_run_dir
from graphmill.jobs.resolve.resolve import Facts, resolve
from graphmill.samplers.methods.registry import load

if TYPE_CHECKING:
    from graphmill.jobs.records.run_record import Run


def train_main(
    description: str, kind: str = "nodes", recipe: str | None = None, words: Sequence[str] | None = None
) -> int:
    """Runs the training command of this process; the words of its command line override the recipe `recipe`. Returns the exit status.

    Ends the process with status 0 after --help, with 2 and one line for words that cannot be read. Raises ConfigError for options that contradict each
    other or the data.
    """
    words = [
        "--allow_import" if word == "--allow-import" else word for word in (sys.argv[1:] if words is None else words)
    ]
    job, allow_import = program_name(), "--allow_import" in words
    words, topics = take_topics(words)
    try:
        first, said = read_words(word for word in words if word not in ("--plan", "--allow_import"))
        own = [read_recipe(recipe)] if recipe else []
        config = begun(layered(kind, own, first, said, allow_import=allow_import))
        if topics is not None:
            command, switches = command_line(job), [Option(flag, "", text) for flag, text in _SWITCHES.items()]
            usage = command if recipe else f"{command} [RECIPE.yaml]"
            show_help(description.partition("\n\n")[0], usage, [*switches, *config_options(config)], topics, command)
    except UsageError as error:
        complain(str(error))
    return _begin(job, config, plan="--plan" in words)


def _begin(job: str, config: RunConfig, *, plan: bool = False) -> int:
    """Trains or prints the plan, and returns the exit status. Checks the options before the import of torch, numba and Ray, which takes seconds."""
    _check(job, config)
    return int(load(f"graphmill.jobs.run.subject_run:{'plan' if plan else 'run'}_subject")(job, config))


def _check(job: str, config: RunConfig) -> None:
    """Raises ConfigError if the options are wrong for any data."""
    # The possible numbers of workers also depend on the machine.
    any_number = replace(config.workers, num_workers=None, min_workers=None)
    resolve(replace(config, workers=any_number), Facts(find_kind(config.kind).inputs, {}, None))
    choose_run_dir(job, config.run)


def config(
    *words: object,
    kind: str | None = None,
    recipe: str | None = None,
    resume: str | None = None,
    allow_import: bool = False,
    **said: object,
) -> RunConfig:
    """The configuration that these words of a command line describe: `config("geco/cora.yaml", fit={"epochs": 3})` is `graphmill train geco/cora.yaml --fit.epochs 3`.

    `words`: first a recipe's name or another configuration, then mappings (`{"fit": {"epochs": 3}}`), then flags and their values (`"--fit.epochs", 3`).
    `said`: groups of options, `model="geco"` or `model={"name": "geco", "width": 64}`. If an option is set twice, the last value counts. `kind`: nodes or
    graphs. `recipe`: the recipe's name, if it is not the first word. `resume`: the directory of a run whose options are changed, like --run.resume.
    `allow_import`: allows the import of code that a resumed run, or a recipe from another folder, names.

    Raises UsageError for unknown names, with the nearest known names, and for values of a wrong type; ConfigError for values that a component refuses.
    """
    base: list[RunConfig] = []
    mappings: list[Mapping[str, object]] = []
    flags: list[str] = []
    for word in words:
        flag = next((earlier for earlier in reversed(flags) if earlier.startswith("--")), None)
        if isinstance(word, RunConfig) and not (base or mappings or flags):
            base.append(word)
        elif isinstance(word, Mapping) and flag is None:
            mappings.append(word)
        elif isinstance(word, Mapping | RunConfig):
            raise UsageError(
                f"{flag or 'words'}: got a {type(word).__name__} after other words; give it before them, or by a group's name"
            )
        else:
            flags += as_words(word, flag or "words")
    first, flagged = read_words(flags)
    first += [] if recipe is None else as_words(recipe, "recipe")
    more = {"kind": kind} if kind is not None else {}
    more |= {"run.resume": resume} if resume is not None else {}
    whole: Tree = {}
    before = {} if resume is None else saved_by(resume)
    for tree in (*mappings, flagged, said, more):
        for name, value in tree.items():
            path = str(name).removeprefix("--").replace("-", "_")
            words_of = value if tree is flagged else as_words(named(value, before.get(path)), f"--{path}")
            whole = merge(whole, nested(path, words_of))
    if base and not whole and not first:
        return base[0]
    return layered("nodes", [earlier.tree() for earlier in base], first, whole, allow_import=allow_import)


def train(
    *words: Any,
    kind: str | None = None,
    recipe: str | None = None,
    resume: str | None = None,
    allow_import: bool = False,
    quiet: bool = False,
    **said: object,
) -> "Run":
    """Trains with the configuration that `config` makes of the same arguments: `train(config)` or `train("geco/cora.yaml", fit={"epochs": 3})`. Returns the
    finished run.

    The directory of the run is `run.dir`, or a new directory under runs/. `quiet`: nothing is printed on standard output, not even by callbacks; warnings still
    appear. Raises the errors that the command prints. KeyboardInterrupt: after Ctrl-C, when a checkpoint is saved. StageError: the model does not beat the
    baselines and `run.require_baselines` is set. ConflictError: at once, if another thread of this process trains. The state of PyTorch's random numbers does
    not change.
    """
    if quiet:
        with progress.quiet():
            return train(
                *words, kind=kind, recipe=recipe, resume=resume, allow_import=allow_import, quiet=False, **said
            )
    from graphmill.cluster.process.random_state import own_random_state
    from graphmill.jobs.records.run_record import read_run

    data, rest, said = in_memory(words, said)
    kind = kind if data is None or any(isinstance(word, RunConfig) for word in rest) else data.kind

    def read(task: str | None = None) -> RunConfig:
        options: Any = said.get("task", {})
        more = {} if task is None else {"task": {"name": task, **options}}
        return config(*rest, kind=kind, recipe=recipe, resume=resume, allow_import=allow_import, **said | more)

    asked = read() if data is None else data.stored(read)
    if asked.run.resume == AUTO:
        # If these options are not set now, the run keeps its own values.
        unsaid = [path for path in ("fit.micro_batches", "data.snapshot") if asked.options().get(path) is None]
        tree = without([*asked.open, *unsaid], asked.tree())
        asked = begun(layered(asked.kind, [], [], tree, allow_import=allow_import))
    if asked.run.dir is None and asked.run.resume is None:
        asked = asked.changed(("run.dir", _new_dir()))
    with own_random_state("training"):
        status = _begin("python", asked)
    run = read_run(str(asked.run.resume or asked.run.dir), finished=True)
    if status:
        raise StageError(f"{run.path}: {'; '.join(run.summary['warnings'])} (--run.require_baselines)")
    return run


def _new_dir() -> str:
    return f"runs/python-{time.strftime('%Y%m%d-%H%M%S')}"


@dataclass(frozen=True)
class InMemory:
    """Data that the caller passed as a Python object, and the arguments that tell the reader of the data how to read it."""

    graph: Any
    columns: Mapping[str, Any]
    kind: str
    says_task: bool

    def stored(self, read: Callable[..., RunConfig]) -> RunConfig:
        """Stores the data as a snapshot below the run's directory. Returns the configuration with this snapshot and, if the caller names no task, the task that
        fits the labels. `read`: makes the configuration for a task.

        Options that contradict each other are refused before anything is written. Raises the errors of `graphmill.storage.importers.ingest`.
        """
        from graphmill.cluster.runs.run_store import GRAPH
        from graphmill.storage.filesystem.urls import absolute_url
        from graphmill.storage.importers import ingest
        from graphmill.storage.ingestion.ingest_options import IngestOptions

        asked = self._any_task(read)
        if asked.run.resume is not None:
            raise ConfigError(
                "resume: the run has its graph, got data in memory beside it; leave the data out, or ingest it and give data={'path': …}"
            )
        if asked.data.path is not None:
            raise ConfigError(f"data.path: expected none beside data in memory, got {asked.data.path}; leave it out")
        if asked.kind != self.kind:
            raise ConfigError(f"kind: expected {self.kind}, which this data is for, got {asked.kind}; leave it out")
        run_dir = asked.run.dir or _new_dir()
        url = f"{absolute_url(run_dir)}/{GRAPH}"
        places = ("run.dir", run_dir), ("data.path", url)
        asked = asked.changed(*places)
        _check("python", asked)
        options = replace(self.columns.get("options") or IngestOptions(), overwrite=True)
        try:
            manifest = ingest(self.graph, url, **{**self.columns, "options": options})
        except ConfigError as error:  # the error lists the names that the reader does not know
            for name in str(error).rpartition(", got ")[2].split(", "):
                if name in self.columns and (near := nearest(name, dict.fromkeys(asked.options(), ""))):
                    raise ConfigError(f"{error}; perhaps {' or '.join(f'--{option}' for option in near)}") from None
            raise
        return asked if self.says_task else read(_task_of(manifest, self.graph)).changed(*places)

    def _any_task(self, read: Callable[..., RunConfig]) -> RunConfig:
        """The configuration with the default task or, if this task refuses the options, with the first task that accepts them. The task that fits the labels is
        known only after the labels are stored."""
        try:
            return read()
        except ConfigError:
            for task in () if self.says_task else find_kind(self.kind).table("task"):
                with suppress(ConfigError):
                    return read(task)
            raise


def in_memory(words: Sequence[Any], said: Mapping[str, Any]) -> tuple[InMemory | None, Sequence[Any], dict[str, Any]]:
    """(the data, the other words, the options of the run). The data is None if the first word is a configuration, a recipe or a flag."""
    is_data = bool(words) and not isinstance(words[0], str | os.PathLike | Mapping | RunConfig)
    if not is_data and not {"edges", "nodes"} & said.keys():
        return None, words, dict(said)
    from graphmill.storage.importers import is_set

    graph, rest = (words[0], words[1:]) if is_data else (None, words)
    graph = list(graph) if isinstance(graph, Iterator) else graph
    kind = "graphs" if is_set(graph) else "nodes"
    groups = {name.partition(".")[0] for name in config(kind=kind).options()}
    columns = {name: value for name, value in said.items() if name not in groups}
    of_run = {name: value for name, value in said.items() if name in groups}
    first, flagged = read_words(str(word) for word in rest if isinstance(word, str | os.PathLike))
    trees = (of_run, flagged, *(word for word in rest if isinstance(word, Mapping)))
    says_task = bool(first) or any(isinstance(word, RunConfig) for word in rest) or any(map(_names_task, trees))
    return InMemory(graph, columns, kind, says_task), rest, of_run


def _names_task(tree: Mapping[str, Any]) -> bool:
    """Whether the tree names the task itself. False if the tree only sets options of the task."""
    said = {name.removeprefix("--"): value for name, value in tree.items()}
    task = said.get("task", {})
    return "task.name" in said or not isinstance(task, Mapping) or not task.keys().isdisjoint((HEAD, "name"))


def _task_of(manifest: Any, graphs: Any) -> str:
    """The task that fits the labels. For nodes: by the kind of labels. For graphs: by the type and count of the first graph's targets."""
    from graphmill.jobs.tasks.node_task import TASKS
    from graphmill.storage.importers.memory.graph_list import graph_columns

    if not hasattr(manifest, "labelled"):
        return TASKS.get(manifest.label_kind or "", "classification")
    y = graph_columns(graphs[0], "graph 0")[0]["y"]
    if manifest.labelled or y is None or y.dtype.kind == "f":
        return manifest.labelled or "regression"
    return "classes" if y.size == 1 else "binary"


_SWITCHES = {
    "plan": "Print what the run would use (batches, steps, memory, time), and what would be refused (exit status 1); start and write nothing.",
    "quiet": "Print the result alone; errors and warnings are printed as ever.",
    "allow_import": "Import the user's own kind, model, sampler or task that a resumed run, or a recipe outside this folder, names.",
}


def layered(
    kind: str, own: Sequence[Tree], recipes: Sequence[str], said: Tree, *, allow_import: bool = False
) -> RunConfig:
    """The configuration from all layers. The words override the recipe that they name, the recipe overrides `own`, and `own` overrides the resumed run.

    `own`: the command's own recipe. If --run.resume names a run, the values of this run replace `own`. With --run.resume auto the same words begin and continue
    the run, so `own` still overrides the values of the run. Raises UsageError for more than one recipe, ConfigError for --run.resume auto without a directory.
    """
    if len(recipes) > 1:
        raise UsageError(f"expected one recipe, got {' '.join(recipes)!r}; options are written --name value")
    named = [read_recipe(name, allow_import=allow_import) for name in recipes]
    asked = config_tree(kind, *own, *named, said)
    run = _run_options(asked)
    place = run.resume
    if place == AUTO:
        place = _run_there(run)
    if place is not None:
        known = [name for _, name in own_code(said)]
        saved = read_saved(place, "start one without --run.resume", allow_import=allow_import, known=known).tree()
        own = [saved, *own] if run.resume == AUTO else [saved]
    return read_config(config_tree(kind, *own, *named, said))


def _run_options(tree: Tree) -> RunOptions:
    """The options --run.dir and --run.resume of a tree."""
    group = tree.get("run", {})
    said = {
        name: take(RunOptions, group if isinstance(group, Mapping) else {HEAD: group}, name)[0]
        for name in ("dir", "resume")
    }
    return build(RunOptions, {name: value for name, value in said.items() if value is not MISSING}, "run.")


def begun(config: RunConfig) -> RunConfig:
    """The configuration with --run.resume auto resolved: to the run's directory, or to None if the directory holds no run."""
    if config.run.resume != AUTO:
        return config
    place = _run_there(config.run)
    return replace(config, run=replace(config.run, resume=place, dir=None if place else config.run.dir))


def _run_there(run: RunOptions) -> str | None:
    """The run's directory if it holds a run that --run.resume auto continues. Raises ConfigError if no directory is named."""
    from graphmill.cluster.runs.run_store import RunStore

    if not run.dir:
        raise ConfigError(
            "resume: expected --run.dir beside --run.resume auto, found none; the directory says which run it is: set --run.dir"
        )
    return run.dir if RunStore(run.dir).holds_run else None
