"""Every option that README.md and the guides print is one that its job has, with such a value."""

import importlib
import re
import sys

import pytest

from jobs.run.exit_codes import run
from jobs.run.node_options import NodeJobOptions
from jobs.sweeps.tunable_jobs import parse_arguments
from tests.printed_commands import DOCUMENTS, blocks, inline_commands, lines, words


def arguments_of_job(command: list[str]) -> tuple[str, list[str]] | None:
    """(job, its arguments) of a command that runs one of our jobs, by whatever way; None for the others."""
    if command[:1] == ["make"] and "run" in command:
        given = [word.removeprefix("ARGS=") for word in command if word.startswith("ARGS=")]
        return "products_geco", words(given[0]) if given else []
    if command[:2] == ["sbatch", "graphmill.sbatch"]:
        return "products_geco", command[2:]
    for number, word in enumerate(command[1:], 1):
        job = re.fullmatch(r"(?:jobs/)?(\w+)\.py", word)
        if job and command[number - 1] == "python":
            return job[1], command[number + 1 :]
    return None


def printed() -> list[tuple[str, str, list[str]]]:
    found = []
    for document in DOCUMENTS:
        commands = [line for block in blocks(document) if block.language == "bash" for line in lines(block)]
        for command in [*commands, *inline_commands(document)]:
            if "…" in command or '"$@"' in command:
                continue
            if re.search(r"python jobs/|my_sage\.py|make run|sbatch ", command):
                called = arguments_of_job(words(command))
                if called is not None:
                    found.append((document, *called))
    return found


class Understood(Exception):
    """The options were parsed: the job's work would begin."""


@pytest.mark.parametrize(("document", "job", "arguments"), printed())
def test_a_printed_command_is_understood(document, job, arguments, monkeypatch, capsys):
    if job == "my_sage":  # the guide's own job: a node job with no options of its own
        if arguments != ["--help"]:
            parse_arguments(NodeJobOptions, arguments)
        return
    module = importlib.import_module(f"jobs.{job}")
    parse = module.parse

    def parsed(*args, **options):
        parse(*args, **options)
        raise Understood

    monkeypatch.setattr(module, "parse", parsed)
    # The run that --resume names is not here; its options would only be the defaults.
    monkeypatch.setattr(module, "config_defaults", lambda kind, _: kind(), raising=False)
    monkeypatch.setattr(sys, "argv", [f"jobs/{job}.py", *arguments])
    if "--help" in arguments:
        with pytest.raises(SystemExit) as end:
            run(module.main)
        assert end.value.code == 0, capsys.readouterr().err
        return
    with pytest.raises(Understood):
        module.main()


def test_the_documents_print_many_commands():
    jobs = {job for _, job, _ in printed()}
    assert len(printed()) >= 25
    assert jobs >= {
        "products_geco",
        "ingest",
        "predict",
        "doctor",
        "tune_sweep",
        "inspect_graph",
        "ingest_molecules",
        "my_sage",
    }


def test_an_option_that_no_job_has_is_not_understood(monkeypatch, capsys):
    with pytest.raises(SystemExit) as end:
        test_a_printed_command_is_understood("", "products_geco", ["--no-such-option", "3"], monkeypatch, capsys)
    assert end.value.code == 2
