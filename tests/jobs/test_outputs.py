"""Tests every command with users' files at its output path. A command accepts only its own earlier output; it refuses anything else with one line and changes
no byte."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks import transport
from graphmill.core.errors import ConfigError
from graphmill.jobs import (
    convert_checkpoint,
    encode,
    export_index,
    ingest,
    predict,
    prune,
    replay,
    report,
    sweep,
    train_nodes,
)
from graphmill.jobs.bench import results
from graphmill.jobs.papers import brec
from graphmill.storage.filesystem.outputs import whole_folder
from tests.job_in_process import output_of, run_job
from tests.jobs.test_convert_checkpoint import tokengt_state

SYNTHETIC = ["synthetic", "--synthetic.num_nodes", "300", "--synthetic.mean_degree", "6", "--partitions", "2"]
RUN = [
    *("--workers.launcher", "process", "--workers", "1", "--model.width", "8", "--model.num_layers", "1"),
    *("--model.hops", "1", "--fit.schedule", "constant", "--fit.checkpoint_every", "1"),
]
CONVERT = ["--source", "tokengt", "--num_heads", "2", "--checkpoint", "published.pt", "--out"]
# Commands that write to OUT. Each entry has the main function and the arguments.
COMMANDS: dict[str, tuple[Callable[[], int | None], list[str]]] = {
    "ingest": (ingest.main, [*SYNTHETIC[:1], "OUT", *SYNTHETIC[1:]]),
    "ingest --overwrite": (ingest.main, [*SYNTHETIC[:1], "OUT", *SYNTHETIC[1:], "--overwrite"]),
    "train": (train_nodes.main, [*RUN, "--data", "graph", "--fit.epochs", "1", "--run.dir", "OUT"]),
    "train --run.resume": (train_nodes.main, [*RUN, "--data", "graph", "--fit.epochs", "4", "--run.resume", "OUT"]),
    "predict": (predict.main, ["run", "OUT", "--launcher", "process"]),
    "report": (report.main, ["run", "--out", "OUT"]),
    "replay": (replay.main, ["run", "--out", "OUT.npz"]),
    "convert_checkpoint": (convert_checkpoint.main, [*CONVERT, "OUT"]),
    "export_index": (export_index.main, ["states", "OUT"]),
    "sweep": (sweep.main, ["--seeds", "0", "1", "--out", "OUT", "--", *RUN, "--data", "graph"]),
    "bench": (transport.main, ["--out", "OUT"]),
    "brec": (brec.main, ["--data", "none", "--model", "grit", "--out", "OUT"]),
}
# Commands that accept an earlier output at OUT, with the kind of this output.
OWN = {
    "ingest --overwrite": "graph",
    "train --run.resume": "run",
    "predict": "predictions",
    "report": "page.html",
    "bench": "results",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one output of every kind."""
    home = tmp_path_factory.mktemp("made")
    torch.save(tokengt_state(), home / "published.pt")
    for name, kind in (("ingest", "graph"), ("train", "run"), ("predict", "predictions"), ("report", "page.html")):
        main, words = COMMANDS[name]
        done = run_job(main, [kind if word == "OUT" else word for word in words], home)
        assert done.returncode == 0, done.stderr
    results.keep(home / "results", {}, "# text", rows=[])
    return home


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Path:
    """A folder of the user, next to the inputs of commands."""
    folder = tmp_path / "home"
    folder.mkdir()
    shutil.copy(made / "published.pt", folder)
    for name in ("graph", "run"):
        shutil.copytree(made / name, folder / name)
    return folder


def snapshot(folder: Path) -> dict[str, tuple[int, str | bytes]]:
    """Modes and contents of all files below a folder, and the targets of symbolic links."""
    found: dict[str, tuple[int, str | bytes]] = {}
    for path in sorted(folder.rglob("*")):
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else ""
        found[path.relative_to(folder).as_posix()] = (path.lstat().st_mode, content)
    return found


def _file(home: Path, out: Path, made: Path) -> None:
    out.write_text("<html>my thesis</html>")


def _notes(home: Path, out: Path, made: Path) -> None:
    (out / "chapter").mkdir(parents=True)
    for name in ("thesis.tex", "chapter/config.json", "model.safetensors", "results.md", "part-00000.parquet"):
        (out / name).write_text(name)


def _project(home: Path, out: Path, made: Path) -> None:
    """A user's folder. Its files have the same names as files of Graphmill, but other content."""
    out.mkdir()
    for name in ("config.json", "results.json", "grit.jsonl", "study.yaml"):
        (out / name).write_text("{}")


def _dot_file(home: Path, out: Path, made: Path) -> None:
    out.mkdir()
    (out / ".env").write_text("secret")


def _link_to_file(home: Path, out: Path, made: Path) -> None:
    (home / "thesis.tex").write_text("mine")
    out.symlink_to("thesis.tex")


def _link_to_notes(home: Path, out: Path, made: Path) -> None:
    _notes(home, home / "notes", made)
    out.symlink_to("notes")


def _dangling(home: Path, out: Path, made: Path) -> None:
    out.symlink_to("nowhere")


def _below_a_file(home: Path, out: Path, made: Path) -> None:
    out.parent.write_text("a file")


def _read_only(home: Path, out: Path, made: Path) -> None:
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    out.chmod(0o555)


def _fifo(home: Path, out: Path, made: Path) -> None:
    os.mkfifo(out)


def _other_output(home: Path, out: Path, made: Path) -> None:
    """The output of another command: a graph for commands that write runs, a run for all other commands."""
    shutil.copytree(made / ("graph" if "train" in out.name else "run"), out)


TARGETS = [
    _file,
    _notes,
    _project,
    _dot_file,
    _link_to_file,
    _link_to_notes,
    _dangling,
    _below_a_file,
    _read_only,
    _fifo,
    _other_output,
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.__name__[1:])
@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_not_ours_is_refused_in_one_line_and_stays(
    command: str, target: Callable[[Path, Path, Path], None], home: Path, made: Path
) -> None:
    main, words = COMMANDS[command]
    suffix = ".npz" if command == "replay" else ""
    name = f"out-{command.split()[0]}{suffix}" if target is not _below_a_file else f"notes/out{suffix}"
    if command in ("train --run.resume",) and target is _other_output:
        pytest.skip("another run, with its options")
    target(home, home / name, made)
    before = snapshot(home)
    done = run_job(main, [name if word in ("OUT", "OUT.npz") else word for word in words], home)
    assert snapshot(home) == before
    assert done.returncode == 1, done.stdout
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert name.split("/")[0] in done.stderr


@pytest.mark.parametrize("command", OWN)
def test_an_earlier_output_of_its_own_keeps_what_a_user_put_into_it(command: str, home: Path, made: Path) -> None:
    kind = OWN[command]
    main, words = COMMANDS[command]
    out = home / "out"
    shutil.copy(made / kind, out) if "." in kind else shutil.copytree(made / kind, out)
    if kind == "predictions":
        (out / "_pieces").mkdir()
        (out / "_pieces" / "000-00000000.parquet").write_text("ours, left by a kill")
    mine = {}
    if out.is_dir():
        for folder in [out, *sorted(path for path in out.rglob("*") if path.is_dir())]:
            for name in ("notes.txt", ".env"):
                (folder / name).write_text(f"{folder}")
                mine[folder / name] = f"{folder}"
    if kind == "results":
        results.check_results(out)
        results.keep(out, {}, "# new", rows=[])
        assert (out / "results.md").read_text() == "# new\n"
    else:
        done = run_job(main, [str(out) if word == "OUT" else word for word in words], home)
        assert done.returncode == 0, done.stderr
    if kind == "predictions":
        assert not (out / "_pieces" / "000-00000000.parquet").exists()
    assert {path: path.read_text() for path in mine if path.exists()} == mine


def test_pieces_behind_a_link_are_left(home: Path, made: Path) -> None:
    shutil.copytree(made / "predictions", home / "out")
    _notes(home, home / "notes", made)
    (home / "out" / "_pieces").symlink_to("../notes")
    before = snapshot(home / "notes")
    assert run_job(predict.main, ["run", "out", "--launcher", "process"], home).returncode == 0
    assert snapshot(home / "notes") == before


def test_encode_and_prune_leave_what_stands_beside_a_graphs_files(home: Path) -> None:
    (home / "graph" / "README.md").write_text("mine")
    (home / "graph" / "data" / "backup").mkdir()
    (home / "graph" / "manifests" / "notes.txt").write_text("mine")
    output_of(encode.main, "graph", "laplacian", "--dim", "4", cwd=home)
    said = output_of(prune.main, "graph", "--keep", "1", "--older-than", "0", cwd=home)
    assert "not ours, left where they are: README.md, manifests/notes.txt, data/backup" in said
    assert (home / "graph" / "README.md").read_text() == "mine"


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def fill(out: Path, fails: bool) -> None:
        with whole_folder(out) as folder:
            (folder / "a").write_text("a")
            if fails:
                raise ConfigError("no")

    with pytest.raises(ConfigError):
        fill(tmp_path / "deep" / "out", fails=True)
    assert not list((tmp_path / "deep").iterdir())
    fill(tmp_path / "deep" / "out", fails=False)
    assert [path.name for path in (tmp_path / "deep" / "out").iterdir()] == ["a"]
