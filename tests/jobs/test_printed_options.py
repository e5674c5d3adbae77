"""Tests that every option in the documents is an option of its command, and has a valid value."""

import importlib
import re
import sys
from typing import Any

import pytest

from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.config import RunOptions, config_tree, group_classes, read_config
from graphmill.jobs.config.reader import option_names
from graphmill.jobs.config.registry import TABLES
from graphmill.jobs.config.short_help import HelpShown
from graphmill.jobs.run import train
from graphmill.jobs.sweep import read_options
from graphmill.jobs.sweeps.design import design_sweep
from tests.printed_commands import (
    DOCUMENTS,
    FIGURES,
    REPOSITORY,
    blocks,
    inline_commands,
    inline_spans,
    lines,
    words,
    written_files,
)

MEASURED = ("docs/architecture.md", "docs/cost-model.md", *FIGURES)
DECISIONS = sorted(f"docs/decisions/{path.name}" for path in (REPOSITORY / "docs" / "decisions").glob("0*.md"))
LAUNCH_FILES = (
    "docs/kubernetes/run/rayjob.yaml",
    "docs/kubernetes/job-gpu/kustomization.yaml",
    "Dockerfile",
    "runtime_env.yaml",
    "ray_config.yaml",
)
TRAINING = ("products_geco", "pcqm4m_tokengt", "train_nodes", "train_graphs", "train_links")
STARTS_A_JOB = re.compile(r"(?:\w+=\S+ )*(?:python jobs/|jobs/\w+\.py|make run |ray job submit |sbatch )")
JOBS = sorted(path.stem for path in (REPOSITORY / "jobs").glob("*.py") if path.stem != "__init__")


def arguments_of_job(command: list[str]) -> tuple[str, list[str]] | None:
    """(job, its arguments) of a command that runs one of our jobs in any way; None for other commands."""
    if command[:1] == ["make"] and "run" in command:
        given = [word.removeprefix("ARGS=") for word in command if word.startswith("ARGS=")]
        return "products_geco", words(given[0]) if given else []
    if command[:2] == ["sbatch", "graphmill.sbatch"]:
        return "products_geco", command[2:]
    for number, word in enumerate(command):
        job = re.fullmatch(r"(?:jobs/)?(\w+)\.py", word)
        if job and job[1] in JOBS and (not number or command[number - 1] == "python"):
            return job[1], command[number + 1 :]
    return None


def written_out(command: str) -> str:
    """Replaces placeholders by values: any model works for a model, and 1 works as a number, a name and a folder."""
    return re.sub(r"<[^>]*>", "1", command.replace("<model>", "grit"))


def printed() -> list[tuple[str, str, list[str]]]:
    commands = [
        (document, command)
        for document in (*DOCUMENTS, *MEASURED, *DECISIONS)
        for command in [
            *(line for block in blocks(document) if block.language in ("bash", "") for line in lines(block)),
            *inline_commands(document),
            *(span for span in inline_spans(document) if span.startswith(tuple(f"jobs/{job}" for job in TRAINING))),
        ]
    ]
    for document in LAUNCH_FILES:
        text = (REPOSITORY / document).read_text()
        commands += [(document, span) for span in re.findall(r"`((?:python|ray) [^`\n]+)`", text)]
        folded = re.findall(r"^( *)\w+: >-\n((?:\1 +.*\n)+)", text, re.MULTILINE)
        commands += [(document, " ".join(body.split())) for _, body in folded]
    for job in JOBS:
        for line in (importlib.import_module(f"graphmill.jobs.{job}").__doc__ or "").splitlines():
            command = re.sub(r"   +.*", "", line.strip())  # drops a description on the same line
            commands.append((f"jobs/{job}.py", command))
    for line in (REPOSITORY / "Makefile").read_text().splitlines():
        commands.append(("Makefile", line.strip("# ")))
    of_jobs = []
    for document, command in commands:
        if "…" in command or '"$@"' in command or not STARTS_A_JOB.match(command):
            continue
        called = arguments_of_job(words(written_out(command)))
        if called is not None:
            of_jobs.append((document, *called))
    return of_jobs


class Understood(Exception):
    """Raised when the options have been parsed, before the job begins its work."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    files = written_files()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in files:
        sys.modules.pop(name.removesuffix(".py"), None)


def in_turn() -> list[Any]:
    """All printed commands. Only `make test-all` tests the commands in measurements and decisions."""
    records = {*FIGURES, *DECISIONS}
    return [pytest.param(*printed_, marks=[pytest.mark.long] * (printed_[0] in records)) for printed_ in printed()]


@pytest.mark.parametrize(("document", "job", "arguments"), in_turn())
def test_a_printed_command_is_understood(document, job, arguments, monkeypatch, capsys, folder):
    module = importlib.import_module(f"graphmill.jobs.{job}")
    if job in TRAINING:  # --help reads the configuration first
        monkeypatch.setattr(
            train, "_run_options", lambda tree: RunOptions()
        )  # the named run, whose options would be the defaults, does not exist here
        monkeypatch.setattr(train, "_run_there", lambda run: None)
        monkeypatch.setattr(sys, "argv", [f"jobs/{job}.py", *arguments, "--help"])
        with pytest.raises(HelpShown):
            module.main()
        return
    if job == "sweep":
        # A resumed sweep reads its design from its directory, which does not exist here.
        if "--resume" not in arguments:
            design_sweep(*read_options(arguments))
        return
    monkeypatch.setattr(sys, "argv", [f"jobs/{job}.py", *arguments])
    if "--help" in arguments:
        with pytest.raises(SystemExit) as end:
            run(module.main)
        assert end.value.code == 0, capsys.readouterr().err
        return
    parse = module.parse

    def parsed(*args, **options):
        parse(*args, **options)
        raise Understood

    monkeypatch.setattr(module, "parse", parsed)
    with pytest.raises(Understood):
        module.main()


# Users' components that the guides name.
OWN = {"model": "my_sage:MeanSAGE", "sampler": "balanced:BalancedOptions", "task": "focal_loss:Focal"}


def training_flags() -> set[str]:
    """Every training flag, for all components."""
    flags = set()
    for kind in ("nodes", "graphs"):
        classes = group_classes(kind)
        values = [(group, classes[group]) for group in classes]
        for group, table in TABLES.items():
            for name in [*table[kind], *([OWN[group]] if kind == "nodes" else [])]:
                tree = config_tree(kind, {group: name})
                values.append((group, getattr(read_config(tree), group).options))
        for group, value in values:
            flags |= {group, *(f"{group}.{name}" for name in all_names(value))}
    return flags


def all_names(value) -> list[str]:
    """Names of the options of a group and of its inner groups."""
    names = option_names(value if isinstance(value, type) else type(value))
    for name in tuple(names):
        inner = getattr(value, name, None)
        if hasattr(type(inner), "__dataclass_fields__"):
            names += [f"{name}.{leaf}" for leaf in all_names(inner)]
    return names


def test_an_option_that_a_sentence_names_is_one_of_training(folder):
    flags = training_flags()
    groups = {flag for flag in flags if "." not in flag}
    named = {
        (document, flag)
        for document in (*DOCUMENTS, *MEASURED, *DECISIONS, "CONTRIBUTING.md", *LAUNCH_FILES)
        for flag in re.findall(r"--((?:\w+\.)[\w.]*\w)", (REPOSITORY / document).read_text())
        if flag.partition(".")[0] in groups
    }
    assert len(named) > 50
    assert {(document, flag) for document, flag in named if flag not in flags} == set()


def test_the_documents_print_many_commands():
    jobs = {job for _, job, _ in printed()}
    assert len(printed()) >= 45
    assert jobs >= {
        *TRAINING,
        "ingest",
        "predict",
        "doctor",
        "inspect_graph",
        "prune",
        "report",
        "sweep",
    }


@pytest.mark.parametrize(
    ("job", "arguments"),
    [("products_geco", "--epochs 3"), ("train_graphs", "--fit.epochs many"), ("predict", "run out --worker 3")],
)
def test_an_option_that_no_job_has_is_not_understood(job, arguments, monkeypatch, capsys, folder):
    with pytest.raises(SystemExit) as end:
        test_a_printed_command_is_understood("", job, arguments.split(), monkeypatch, capsys, folder)
    assert end.value.code == 2
