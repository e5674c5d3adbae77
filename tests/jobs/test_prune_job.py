"""Tests jobs/prune.py: its output and the files that it removes. A dry run prints the same lines and removes nothing."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from graphmill.core.errors import ConfigError, FormatError
from graphmill.jobs.prune import PruneConfig, describe, main, parse_duration
from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.snapshots.journal import CLOCK_MARGIN_S, LEASE_S
from graphmill.storage.snapshots.prune import Pruned, prune
from graphmill.storage.snapshots.snapshot_writer import write_snapshot
from graphmill.storage.snapshots.snapshots import snapshot_numbers
from tests.job_in_process import run_job
from tests.listed_graph import random_listed_graph
from tests.stored_files import all_files, edit_manifest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A graph with three snapshots; the first is old."""
    place = str(tmp_path / "graph")
    for seed in range(3):
        ingest(random_listed_graph(20, 40, seed), place, IngestOptions(num_partitions=2, overwrite=True))
        if seed == 0:
            edit_manifest(place, lambda body: body.update(created=body["created"] - 3 * 86400))
    return place


def command(*arguments: str) -> subprocess.CompletedProcess:
    return run_job(main, [*map(str, arguments)])


def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, *arguments: str) -> list[str]:
    """Runs the command in this process and returns the printed lines."""
    monkeypatch.setattr(sys, "argv", ["prune.py", *arguments])
    main()
    return capsys.readouterr().out.splitlines()


def numbers(url: str) -> list[int]:
    graph = open_graph(url)
    return snapshot_numbers(graph.filesystem, graph.path)


def test_the_command_removes_and_says_so(url: str) -> None:
    done = command(url)
    assert done.returncode == 0, done.stderr
    assert numbers(url) == [2, 3]
    first, second = done.stdout.splitlines()
    assert first.startswith(f"{url}: removed snapshot 1, 6 files, 0.")
    assert second == "kept: 2 snapshots (2 to 3)"
    for number in (2, 3):
        open_graph(url, number).verify()


@pytest.mark.parametrize(
    ("flags", "kept"),
    [
        ((), [2, 3]),
        (("--keep", "2"), [2, 3]),
        (("--keep", "3", "--older-than", "0"), [1, 2, 3]),
        (("--keep", "2", "--older-than", "0"), [2, 3]),
        (("--older-than", "0"), [3]),
        (("--older-than", "71h"), [2, 3]),
        (("--older-than", "73h"), [1, 2, 3]),
    ],
)
def test_options_decide_what_stays_and_a_dry_run_says_it_first(monkeypatch, capsys, url, flags, kept) -> None:
    before = all_files(url)
    planned = said(monkeypatch, capsys, url, "--dry-run", *flags)
    assert all_files(url) == before
    found = said(monkeypatch, capsys, url, *flags)
    assert [line.replace("would remove", "removed") for line in planned] == found
    assert planned != found
    assert numbers(url) == kept
    assert (all_files(url).keys() == before.keys()) == (kept == [1, 2, 3])
    for number in kept:
        open_graph(url, number).verify()


def test_dead_and_live_writers_and_files_of_others(tmp_path: Path) -> None:
    url = str(tmp_path / "graph")
    for seed in range(2):
        ingest(random_listed_graph(20, 40, seed), url, IngestOptions(overwrite=True))
    first = next(Path(url, "data").glob("000001-*"))
    (first / "notes.txt").write_text("precious")
    with write_snapshot(url, overwrite=True) as writer:
        (writer.files / "part-00000").mkdir()
        (writer.files / "part-00000" / "nodes.arrow").write_bytes(b"half a file")
        folder = f"data/{writer.files.name}"
        before = all_files(url)
        for dry_run in (True, False):
            live = prune(url, keep=2, dry_run=dry_run)
            assert (live.held, live.orphans, live.num_files) == ((folder,), (), 0)
            assert all_files(url) == before
        later = time.time() + LEASE_S + CLOCK_MARGIN_S + 1
        planned = prune(url, keep=1, now=later, dry_run=True)
        assert all_files(url) == before
        assert prune(url, keep=1, now=later) == planned
    assert (planned.orphans, planned.held) == ((folder,), ())
    assert planned.foreign == (f"data/{first.name}/notes.txt",)
    assert (first / "notes.txt").read_text() == "precious"
    assert os.listdir(first) == ["notes.txt"]
    text = describe(url, planned, dry_run=False)
    assert f"removed what dead writers left in {folder}" in text
    assert f"not ours, left where they are: data/{first.name}/notes.txt" in text
    assert f"held by writers that live, or died less than a lease ago: {folder}" in describe(url, live, dry_run=True)
    open_graph(url).verify()


def test_many_names_are_cut() -> None:
    foreign = tuple(f"data/{n}" for n in range(25))
    text = describe("g", Pruned((7,), (), (), (), 0, 0, foreign), dry_run=True)
    assert text.splitlines()[0] == "g: would remove no snapshot, 0 files, 0.0 MiB"
    assert text.splitlines()[-1].endswith("data/9 and 15 more")


def test_durations() -> None:
    for text, seconds in (
        ("30m", 1800),
        ("12h", 43200),
        ("7d", 604800),
        ("90", 90),
        ("90s", 90),
        ("0", 0),
        ("1.5h", 5400),
    ):
        assert parse_duration(text) == seconds
    for text in ("", "d", "7 d", "-1d", "1w", "1e3", "١d", "nan", "7d12h"):
        with pytest.raises(
            ConfigError, match=r"expected a duration such as 30m, 12h, 7d or 3600, got .*set --older-than"
        ):
            parse_duration(text)
    assert parse_duration(PruneConfig("graph").older_than) == 86400


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--keep", "0"), "keep: expected at least 1 snapshot, got 0; set --keep"),
        (("--older-than", "soon"), "got 'soon'; set --older-than"),
    ],
)
def test_bad_options_are_one_line_and_remove_nothing(url: str, flags: tuple[str, ...], message: str) -> None:
    before = all_files(url)
    done = command(url, *flags)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert all_files(url) == before


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("there", ["nothing", "a folder of others", "a file", "format 1"])
def test_where_there_is_no_graph_that_is_said(monkeypatch, tmp_path: Path, there: str, dry_run: bool) -> None:
    place = tmp_path / "place"
    if there == "a file":
        place.write_text("precious")
    elif there != "nothing":
        place.mkdir()
        (place / "manifest.json").write_text("{}")
        if there == "a folder of others":
            (place / "manifest.json").rename(place / "thesis.tex")
    monkeypatch.setattr(sys, "argv", ["prune.py", str(place), *(["--dry-run"] if dry_run else [])])
    with pytest.raises(FormatError, match="of format 1" if there == "format 1" else "found none"):
        main()
    assert place.exists() == (there != "nothing")


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['prune', '--help']\nimport runpy\n"
        f"try:\n    runpy.run_path({str(ROOT / 'jobs' / 'prune.py')!r}, run_name='__main__')\n"
        "except SystemExit as ended:\n    print(ended.code, sorted({'torch', 'pyarrow', 'ray', 'numba'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, cwd=ROOT, check=True
    )
    assert "--older-than" in done.stdout
    assert done.stdout.splitlines()[-1] == "0 []"
