"""Checks the files that start clusters: they are valid by Ray's schema and agree with the repository."""

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
MANIFEST = REPOSITORY / "docs" / "kuberay-rayjob.yaml"
GUIDE = REPOSITORY / "docs" / "guides" / "cluster.md"
PAGES = (GUIDE, REPOSITORY / "docs" / "cluster.md", REPOSITORY / "docs" / "guides" / "start.md")


def pinned() -> dict[str, str]:
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


CLOSED = 'umask 077; export RAY_TMPDIR=/tmp/graphmill-$(id -un); install -d -m 700 "$RAY_TMPDIR" || exit 1; '


def cloud_blocks() -> Iterator[tuple[str, dict[str, Any]]]:
    """ray_config.yaml once for each commented block at its end. The block is merged into the file as its comment says."""
    text = (REPOSITORY / "ray_config.yaml").read_text()
    for block in text.split("\n# --- ")[1:]:
        lines = block.splitlines()
        body = "\n".join(line.removeprefix("# ") for line in lines[1:] if line.startswith("# "))
        yield lines[0], yaml.safe_load(text) | yaml.safe_load(body)


def validate(config: dict[str, Any]) -> dict[str, Any]:
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared = prepare_config(config)
    validate_config(prepared)
    return prepared


def test_ray_config_is_valid_for_ray() -> None:
    config = yaml.safe_load((REPOSITORY / "ray_config.yaml").read_text())
    assert config["provider"]["type"] == "local"
    assert config["max_workers"] == len(config["provider"]["worker_ips"])
    validate(config)


def test_ray_config_with_a_wrong_field_is_not() -> None:
    import jsonschema

    config = yaml.safe_load((REPOSITORY / "ray_config.yaml").read_text())
    with pytest.raises(jsonschema.ValidationError):
        validate(config | {"max_worker": 2})


@pytest.mark.parametrize(("title", "config"), [pytest.param(*each, id=each[0][:10]) for each in cloud_blocks()])
def test_the_commented_cloud_blocks_are_valid_for_ray(title: str, config: dict[str, Any]) -> None:
    assert config["provider"]["type"] in {"aws", "gcp"}, title
    validate(config)


def test_every_node_starts_with_the_token_and_in_a_closed_folder() -> None:
    config = yaml.safe_load((REPOSITORY / "ray_config.yaml").read_text())
    for commands in (config["head_start_ray_commands"], config["worker_start_ray_commands"]):
        starts = [command for command in commands if "ray start" in command]
        assert len(starts) == 1
        assert "RAY_AUTH_MODE=token" in starts[0]
        assert starts[0].startswith(CLOSED)
    assert "~/.ray/auth_token" in config["file_mounts"]


def test_the_manifests_entrypoint_exists() -> None:
    words = shlex.split(yaml.safe_load(MANIFEST.read_text())["spec"]["entrypoint"])
    assert words[0] == "python"
    assert words[1] == "jobs/products_geco.py"
    assert (REPOSITORY / words[1]).is_file()


def test_the_manifests_pods_have_shared_memory_and_resources() -> None:
    spec = yaml.safe_load(MANIFEST.read_text())["spec"]["rayClusterSpec"]
    version = pinned()["ray"]
    assert spec["rayVersion"] == version
    assert spec["authOptions"] == {"mode": "token"}
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    assert len(groups) == 2
    for group in groups:
        pod = group["template"]["spec"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert re.fullmatch(rf"rayproject/ray:{re.escape(version)}-py311", container["image"])
            assert set(container["resources"]) == {"requests", "limits"}
            (mount,) = [each for each in container["volumeMounts"] if each["mountPath"] == "/dev/shm"]
            assert volumes[mount["name"]]["emptyDir"]["medium"] == "Memory"


def test_runtime_env_yaml_is_valid_for_ray() -> None:
    from ray.runtime_env import RuntimeEnv

    RuntimeEnv(**yaml.safe_load((REPOSITORY / "runtime_env.yaml").read_text()))


def guide_scripts() -> list[str]:
    return re.findall(r"```bash\n(.*?)```", GUIDE.read_text(), re.DOTALL)


def test_every_ray_of_the_guide_lies_in_a_closed_folder() -> None:
    starts = [script for script in guide_scripts() if re.search(r"^ *ray start", script, re.MULTILINE)]
    assert len(starts) == 3  # for a head, for a node, and for Slurm
    for script in starts:
        lines = [line.strip() for line in script.partition("ray start")[0].splitlines()]
        assert "umask 077" in lines
        assert any(line.endswith("RAY_TMPDIR=/tmp/graphmill-$(id -un)") for line in lines)
        assert any(line.endswith('install -d -m 700 "$RAY_TMPDIR"') for line in lines)


def slurm_script() -> str:
    (script,) = [script for script in guide_scripts() if "#SBATCH" in script]
    return script


def commands_of(page: Path) -> list[list[str]]:
    """Each command that the document tells a user to type, as a list of words."""
    if page == GUIDE:
        text = "".join(script for script in guide_scripts() if "#SBATCH" not in script)
    else:
        text = "\n".join(re.findall(r"^ {4}(ray .*|python .*)$", page.read_text(), re.MULTILINE))
    lines = text.replace("\\\n", " ").splitlines()
    return [shlex.split(line.split(" && ")[0].rstrip("&"), comments=True) for line in lines]


def parse_as_ray_does(words: list[str]) -> None:
    """Raises click.UsageError if Ray does not have the command or an option. Does not run the command."""
    import click
    from ray.scripts.scripts import cli

    command: click.Command = cli
    rest = words[1:]
    while isinstance(command, click.Group):
        name = rest.pop(0)
        assert name in command.commands, " ".join(words)
        command = command.commands[name]
    command.make_context(words[0], rest)


def test_the_guides_scripts_are_valid_shell() -> None:
    scripts = guide_scripts()
    assert len(scripts) > 5
    for script in scripts:
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
        assert done.returncode == 0, script + done.stderr


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's command line warns
def test_rays_commands_in_the_documents_have_these_options() -> None:
    import click

    commands = [words for page in PAGES for words in commands_of(page) if words[0] == "ray"]
    for words in commands:
        parse_as_ray_does(words)
    expected = {"up -y", "down -y", "job submit", "job stop", "job logs", "job status", "start --head"}
    assert expected <= {" ".join(words[1:3]) for words in commands}
    with pytest.raises(click.UsageError):
        parse_as_ray_does(["ray", "start", "--headd"])


# These stand-ins replace the programs that the script calls, and log their calls. `srun` runs its command. A job runs
# until it is stopped. Nodes join at once.
STAND_INS = {
    "srun": 'while [[ "$1" == --* ]]; do shift; done; exec "$@"',
    "hostname": "echo 10.0.0.1 10.1.0.1",
    "python": "echo 3",
    "install": 'echo "install $*" >> installed',
    "ray": """
        printf '%s\\n' "$RAY_AUTH_MODE ray $*" >> "$STAND_IN_LOG"
        case "$1 $2" in
            "job submit") for _ in $(seq 300); do [ -e stopped ] && exit 7; [ -e finished ] && exit 0; sleep 0.1; done ;;
            "job stop") touch stopped ;;
        esac""",
}


def run_slurm_script(folder: Path, end: str) -> tuple[int, list[str]]:
    """Runs the script. Returns its exit status and the Ray commands that it called. The job ends by itself or after Slurm's signal."""
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "activate").write_text(f"PATH={folder}/bin:$PATH\n")
    (folder / ".ray").mkdir()
    (folder / ".ray" / "auth_token").write_text("token")
    (folder / "bin").mkdir()
    for name, body in STAND_INS.items():
        (folder / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / "bin" / name).chmod(0o755)
    (folder / "graphmill.sbatch").write_text(slurm_script())
    slurm = {"SUBMIT_DIR": str(folder), "JOB_NUM_NODES": "3", "CPUS_PER_TASK": "16", "JOB_ID": "7"}
    environment = {f"SLURM_{name}": value for name, value in slurm.items()} | {
        "SLURMD_NODENAME": "first",
        "HOME": str(folder),
        "PATH": os.environ["PATH"],
        "STAND_IN_LOG": str(folder / "log"),
    }
    script = subprocess.Popen(["bash", "graphmill.sbatch", "--run.dir", "/shared/a run"], cwd=folder, env=environment)
    try:
        log = folder / "log"
        wait_until(lambda: log.exists() and "job submit" in log.read_text())
        script.send_signal(signal.SIGTERM) if end == "signal" else (folder / "finished").touch()
        status = script.wait(timeout=60)
    finally:
        script.kill()
    return status, log.read_text().splitlines()


@pytest.mark.parametrize(("end", "status"), [("itself", 0), ("signal", 7)])
def test_the_slurm_script_starts_submits_and_stops(tmp_path: Path, end: str, status: int) -> None:
    found, log = run_slurm_script(tmp_path, end)
    assert found == status, log
    commands = [line.removeprefix("token ") for line in log]
    assert all(line.startswith("token ray ") for line in log), log
    for command in commands:
        parse_as_ray_does(shlex.split(command))
    assert re.fullmatch(r"install -d -m 700 /tmp/graphmill-\w+\n", (tmp_path / "installed").read_text())
    starts = [command for command in commands if command.startswith("ray start")]
    head, node = sorted(starts, key=lambda command: "--head" not in command)  # any order
    assert "--node-ip-address=10.0.0.1 --port=6379 --num-cpus=16" in head
    assert "--address=10.0.0.1:6379" in node
    server = "--address http://127.0.0.1:8265"
    (submitted,) = [command for command in commands if command.startswith("ray job submit")]
    assert submitted.startswith(f"ray job submit {server} --submission-id graphmill-7 --working-dir . -- python jobs/")
    assert submitted.endswith("--run.dir /shared/a run")
    stops = [command for command in commands if command.startswith("ray job stop")]
    assert stops == ([f"ray job stop {server} graphmill-7"] if end == "signal" else [])
