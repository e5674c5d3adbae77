"""The image: what enters its build, what it runs as, and (long) a real build with a run in it.

Nothing can be pulled here, so the long test makes the base image by debootstrap. It needs root, buildah and debootstrap (Debian's packages).
"""

import configparser
import fnmatch
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from graphmill.jobs.config.reader import option_names
from graphmill.jobs.doctor import DoctorConfig

REPOSITORY = Path(__file__).parents[1]
DOCKERFILE = (REPOSITORY / "Dockerfile").read_text()


def instructions(name: str) -> list[str]:
    joined = re.sub(r"\\\n", " ", DOCKERFILE)
    return [line.removeprefix(name).strip() for line in joined.splitlines() if line.startswith(f"{name} ")]


def test_the_build_gets_the_source_and_nothing_else(tmp_path: Path) -> None:
    lines = [line for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert lines[0] == "*"  # what no line names stays out: data, tokens, history, environments
    kept = {line[1:] for line in lines if line.startswith("!")}
    assert [name for name in kept if not (REPOSITORY / name).exists()] == []
    wheel = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    linked = {link.resolve().name for link in (REPOSITORY / "graphmill").iterdir() if link.is_symlink()}
    assert kept == {"constraints.txt", "pyproject.toml", wheel["project"]["readme"], "LICENSE", "graphmill", *linked}
    left_out = [line for line in lines if line.startswith("**/")]
    assert any(fnmatch.fnmatch("**/__pycache__", line) for line in left_out)


def test_it_runs_as_a_user_without_rights_after_all_that_needs_root() -> None:
    order = re.findall(r"^(USER|RUN|COPY|HEALTHCHECK|CMD)\b(.*)", re.sub(r"\\\n", " ", DOCKERFILE), re.MULTILINE)
    names = [name for name, _ in order]
    assert instructions("USER") == ["graphmill"]
    assert "--uid 1000" in DOCKERFILE  # as the manifests' runAsUser
    assert "COPY" not in names[names.index("USER") :]
    # The loops lie in the cache of the user who runs.
    assert "doctor --compile" in order[names.index("USER") + 1][1]


def test_its_commands_exist() -> None:
    options = set(option_names(DoctorConfig)) | {"ray"}
    called = re.findall(r'doctor"?,? ?"?((?: ?--[\w.]+(?: no)?)*)', DOCKERFILE)
    flags = {flag for line in called for flag in re.findall(r"--([\w.]+)", line)}
    assert flags == {"compile", "ray", "health"}
    assert flags <= options


def test_a_build_of_torch_for_another_device_ends_the_build() -> None:
    """Runs the check of the Dockerfile with this environment's torch."""
    import torch

    built = "cuda" if torch.version.cuda else "cpu"
    (check,) = re.findall(r'python -W ignore -c "(import sys, torch;.*?)"; ', re.sub(r"\\\n\s*", "", DOCKERFILE))
    with pytest.raises(SystemExit) as end:
        exec(check.replace("$DEVICE", built))
    assert not end.value.code
    other = {"cpu": "cuda", "cuda": "cpu"}[built]
    with pytest.raises(
        SystemExit, match=rf"expected torch for {other}, got torch \S+ for {built}; set --build-arg DEVICE"
    ):
        exec(check.replace("$DEVICE", other))


def can_build() -> bool:
    return os.getuid() == 0 and all(map(shutil.which, ("buildah", "debootstrap", "unshare")))


class Buildah:
    """Buildah with storage of its own, which needs no daemon and no mounts."""

    def __init__(self, folder: Path) -> None:
        self._command = ["buildah", "--root", str(folder / "storage"), "--runroot", str(folder / "run")]

    def __call__(self, *words: str, timeout: float = 900, before: tuple[str, ...] = ()) -> str:
        done = subprocess.run(
            [*before, *self._command, *words], cwd=REPOSITORY, capture_output=True, text=True, timeout=timeout
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout


def pip_settings(folder: Path) -> list[str]:
    """Words that give this machine's settings of pip to a build: a secret, and the folders of packages that they name."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    settings = configparser.ConfigParser(interpolation=None)
    settings["global"] = {
        line.partition("=")[0].partition(".")[2]: line.partition("=")[2].strip("'")
        for line in listed.splitlines()
        if not re.search(
            r"constraint|timeout", line.partition("=")[0]
        )  # files of this machine; an entry of the environment
    }
    with (folder / "pip.conf").open("w") as file:
        settings.write(file)
    folders = {
        Path(*Path(path).parts[:3])
        for path in re.findall(r"(?:file://|(?<=[ =]))(/\S+)", str(dict(settings["global"]).values()).replace("'", " "))
    }
    volumes = [f"--volume={path}:{path}:ro" for path in sorted(folders) if path.is_dir()]
    return [f"--secret=id=pip.conf,src={folder / 'pip.conf'}", "--volume=/etc/ssl/certs:/etc/ssl/certs:ro", *volumes]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    if not can_build():
        pytest.skip("needs root, buildah and debootstrap")
    folder = tmp_path_factory.mktemp("image")
    buildah = Buildah(folder)
    root = folder / "root"
    packages = "--include=python3,python3-venv,ca-certificates"
    made = subprocess.run(
        ["debootstrap", "--variant=minbase", packages, "bookworm", str(root)],
        capture_output=True,
        text=True,
        timeout=900,
    )
    if made.returncode:
        pytest.skip(f"no Debian mirror answers: {made.stdout[-300:]}")
    try:
        base = buildah("from", "scratch").strip()
        buildah("add", "--quiet", base, str(root), "/")
        buildah("config", "--env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", base)
        buildah("commit", "--quiet", "--rm", base, "localhost/base")
        shutil.rmtree(root)
        words = [
            "bud",
            "--format=docker",
            "--isolation=chroot",
            "--build-arg=BASE=localhost/base",
            *pip_settings(folder),
        ]
        buildah(*words, "--tag=localhost/graphmill", ".", timeout=3000)
        yield buildah
    finally:
        buildah("rm", "--all")
        buildah("rmi", "--all", "--force")


@pytest.mark.long
@pytest.mark.timeout(4000)
def test_a_built_image_trains_with_the_loops_that_its_build_compiled(image: Buildah) -> None:
    container = image("from", "localhost/graphmill").strip()
    run = ("run", "--isolation=chroot", container, "--")
    assert image(*run, "id", "-u").strip() == "1000"
    trained = image(*run, "graphmill", "train", "--data.nodes", "1500", "--fit.epochs", "1", "--run.dir", "run")
    assert "accuracy" in trained
    compiled = image(*run, "graphmill", "doctor", "--compile", "--ray", "no")
    assert re.search(r"ok +loops +0 compiled in \d+ s, \d{2,} were there", compiled), compiled
    assert "ok    memory" in image(*run, "bash", "-lc", "graphmill doctor --health")
    # As in a container that has /dev/shm of the usual size.
    small = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"', "sh")
    told = image(*run, "graphmill", "doctor", "--health", before=small)
    assert re.search(r"warn +shared memory +/dev/shm has 0\.1 GiB free", told), told
    left = image(*run, "sh", "-c", "cat /etc/pip.conf; ls /opt").split()
    assert {"constraints.txt", "graphmill"} <= set(left)
    assert not {"source", "[global]"} & set(left), "the sources and the settings of pip stay outside"
