"""Checks the files that start clusters: they are valid by Ray's schema and agree with the repository."""

import gzip
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
MANIFESTS = REPOSITORY / "docs" / "kubernetes"
OVERLAYS = ("job", "job-gpu", "cluster")
# The specs of a RayJob, with that of a RayCluster in it, in KubeRay's CRDs of these versions (v1 alone; Apache-2.0, ray-project/kuberay).
SCHEMAS = sorted((Path(__file__).parent / "kuberay").glob("rayjob-spec-*.json.gz"))
GUIDE = REPOSITORY / "docs" / "guides" / "platform.md"
PAGES = (GUIDE, GUIDE.with_name("cluster.md"), GUIDE.with_name("start.md"))


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


def rendered(folder: Path) -> list[dict[str, Any]]:
    """The objects that `kubectl apply -k` would send."""
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("needs kubectl, which renders the manifests")
    done = subprocess.run([program, "kustomize", str(folder)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.fixture(scope="module", params=OVERLAYS)
def objects(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return rendered(MANIFESTS / request.param)


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, Any] | None:
    found = [each for each in objects if each["kind"] == kind]
    assert len(found) <= 1
    return found[0] if found else None


def cluster_spec(objects: list[dict[str, Any]]) -> dict[str, Any]:
    if (job := of_kind(objects, "RayJob")) is not None:
        assert of_kind(objects, "RayCluster") is None, "the cluster would be made twice"
        spec: dict[str, Any] = job["spec"]["rayClusterSpec"]
        return spec
    cluster = of_kind(objects, "RayCluster")
    assert cluster is not None
    spec = cluster["spec"]
    return spec


def closed(schema: Any) -> Any:
    """A CRD's schema as the API server reads it: an unknown field is an error, as with `kubectl --validate=strict`, and a number fits where either is allowed."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema and "type" in schema:
        made["additionalProperties"] = schema.get("x-kubernetes-preserve-unknown-fields", False)
    return made


def problems(schema: dict[str, Any], spec: dict[str, Any]) -> list[str]:
    import jsonschema

    found = [
        f"{error.json_path}: {error.message[:200]}"
        for error in jsonschema.Draft202012Validator(closed(schema)).iter_errors(spec)
    ]
    # Rules of the CRDs in CEL and of the operator's own check, as far as these manifests touch them.
    cluster = spec.get("rayClusterSpec", {})
    rules = spec.get("deletionStrategy", {}).get("deletionRules", [])
    if rules and (spec.get("shutdownAfterJobFinishes") or "ttlSecondsAfterFinished" in spec):
        found.append("deletionRules with shutdownAfterJobFinishes or ttlSecondsAfterFinished")
    if cluster.get("enableInTreeAutoscaling") and any(rule["policy"] == "DeleteWorkers" for rule in rules):
        found.append("DeleteWorkers with the autoscaler")
    return found


def test_both_versions_of_kuberay_are_there() -> None:
    assert [path.name for path in SCHEMAS] == [f"rayjob-spec-{version}.json.gz" for version in ("v1.5.1", "v1.7.0")]


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_the_manifests_are_valid_for_kuberay(path: Path, objects: list[dict[str, Any]]) -> None:
    schema = json.loads(gzip.decompress(path.read_bytes()))
    job = of_kind(objects, "RayJob")
    spec = {"rayClusterSpec": cluster_spec(objects)} if job is None else job["spec"]
    assert problems(schema, spec) == []
    pod = spec["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]
    pod["containers"][0]["livenesProbe"] = pod["containers"][0].pop("livenessProbe")
    spec["rayClusterSpec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] = 0
    assert len(problems(schema, spec)) == 2
    pod["containers"][0]["livenessProbe"] = pod["containers"][0].pop("livenesProbe")
    spec["rayClusterSpec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] = "0"


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_a_failed_run_may_be_kept(path: Path, tmp_path: Path) -> None:
    shutil.copytree(MANIFESTS, tmp_path / "kubernetes")
    own = tmp_path / "kubernetes" / "job" / "kustomization.yaml"
    own.write_text(own.read_text().replace("[../run]", "[../run, ../keep-failed]"))
    job = of_kind(rendered(own.parent), "RayJob")
    assert job is not None
    assert {rule["policy"] for rule in job["spec"]["deletionStrategy"]["deletionRules"]} == {"DeleteCluster"}
    schema = json.loads(gzip.decompress(path.read_bytes()))
    assert problems(schema, job["spec"]) == []
    assert problems(schema, job["spec"] | {"ttlSecondsAfterFinished": 1})


def test_a_run_s_command_is_understood(objects: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    from graphmill import main
    from graphmill.jobs.run import train

    if (job := of_kind(objects, "RayJob")) is None:
        pytest.skip("a cluster without a command")
    words = shlex.split(job["spec"]["entrypoint"])
    assert words[:2] == ["graphmill", "train"]
    assert words[words.index("--run.resume") + 1] == "auto"  # for backoffLimit submits the same command again
    assert job["spec"]["backoffLimit"] > 0
    assert job["spec"]["entrypointNumCpus"] == 1  # the head has no CPU for Ray
    monkeypatch.setattr(train, "_run_there", lambda run: None)
    for further, status in (([], 0), (["--no-such"], 2)):
        monkeypatch.setattr("sys.argv", [*words, *further, "--help"])
        with pytest.raises(SystemExit) as end:
            main()
        assert (end.value.code or 0) == status


def test_the_pods_have_shared_memory_resources_probes_and_no_rights(objects: list[dict[str, Any]]) -> None:
    spec = cluster_spec(objects)
    assert spec["rayVersion"] == pinned()["ray"]
    assert spec["authOptions"] == {"mode": "token"}
    assert spec["enableInTreeAutoscaling"]
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    gpu = len(groups) == 3
    for group in groups:
        pod = group["template"]["spec"]
        assert pod["restartPolicy"] == "Never"  # as autoscaler v2 asks
        assert pod["securityContext"]["runAsNonRoot"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        (container,) = pod["containers"]
        assert container["image"] == f"graphmill:{version}-{'cuda' if gpu else 'cpu'}"
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert set(container["resources"]) == {"requests", "limits"}
        (mount,) = [each for each in container["volumeMounts"] if each["mountPath"] == "/dev/shm"]
        shared = volumes[mount["name"]]["emptyDir"]
        assert shared["medium"] == "Memory"
        # The object store fits into shared memory, and this into the pod's memory.
        sizes = [gibibytes(shared["sizeLimit"]), gibibytes(container["resources"]["limits"]["memory"])]
        assert int(group["rayStartParams"]["object-store-memory"]) / 2**30 <= sizes[0] < sizes[1]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert container[probe]["httpGet"] == {"path": "/api/healthz", "port": 52365}
        assert container["envFrom"] == [{"secretRef": {"name": "graphmill-s3", "optional": True}}]
    assert [
        "nvidia.com/gpu" in group["template"]["spec"]["containers"][0]["resources"]["limits"] for group in groups
    ] == ([False, False, True] if gpu else [False, False])


def gibibytes(quantity: str) -> float:
    assert quantity.endswith("Gi")
    return float(quantity[:-2])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's command line warns
def test_a_worker_s_pod_that_ends_says_so_to_ray(objects: list[dict[str, Any]]) -> None:
    for group in cluster_spec(objects)["workerGroupSpecs"]:
        pod = group["template"]["spec"]
        *shell, script = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        assert shell == ["bash", "-lc"]
        drain, rest = script.split(" && ")
        words = shlex.split(drain)
        parse_as_ray_does(words[2:])
        deadline = int(words[words.index("--deadline-remaining-seconds") + 1])
        assert rest == f"sleep {deadline}"
        assert int(words[1]) + deadline < pod["terminationGracePeriodSeconds"]


def test_the_guide_s_commands_for_kubernetes_are_valid(tmp_path: Path) -> None:
    """What `kubectl create` would send, and the folders of `kubectl apply -k`. No cluster is asked."""
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("needs kubectl")
    commands = [line for script in guide_scripts() for line in script.splitlines() if line.startswith("kubectl")]
    created = [command for command in commands if command.startswith("kubectl create")]
    assert len(created) == 3
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KEY": "key", "SECRET": "secret"}
    kinds = set()
    for command in created:
        done = subprocess.run(
            ["bash", "-c", f"{command} --dry-run=client -o yaml"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        made = yaml.safe_load(done.stdout)
        kinds.add((made["kind"], made["metadata"]["name"]))
    manifests = "".join(path.read_text() for path in MANIFESTS.rglob("*.yaml"))
    assert {kind for kind, _ in kinds} == {"Secret", "ResourceQuota"}
    assert [name for kind, name in kinds if kind == "Secret" and f"{{name: {name}" not in manifests] == []
    applied = [command.split()[-1] for command in commands if command.startswith("kubectl apply -k")]
    assert set(applied) == {"docs/kubernetes/job", "docs/kubernetes/cluster"}
    named = {each["metadata"]["name"] for folder in applied for each in rendered(REPOSITORY / folder)}
    assert {"graphmill-products-geco", "graphmill"} <= named


def test_redis_keeps_the_head_s_state_and_runs_know_it() -> None:
    objects = rendered(MANIFESTS / "cluster")
    kept = cluster_spec(objects)["gcsFaultToleranceOptions"]
    service, redis = of_kind(objects, "Service"), of_kind(objects, "StatefulSet")
    assert service is not None
    assert redis is not None
    host, _, port = kept["redisAddress"].partition(":")
    assert host == service["metadata"]["name"] == redis["spec"]["serviceName"]
    assert int(port) == service["spec"]["ports"][0]["port"]
    assert service["spec"]["selector"].items() <= redis["spec"]["template"]["metadata"]["labels"].items()
    (container,) = redis["spec"]["template"]["spec"]["containers"]
    assert kept["redisPassword"]["valueFrom"] == container["env"][0]["valueFrom"]
    assert container["volumeMounts"][0]["name"] == redis["spec"]["volumeClaimTemplates"][0]["metadata"]["name"]
    # Drivers run in the first group; a driver with this variable waits for its head (cluster/ray/host_watch.py).
    drivers = cluster_spec(objects)["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "RAY_REDIS_ADDRESS", "value": kept["redisAddress"]} in drivers


def test_runtime_env_yaml_is_valid_for_ray() -> None:
    from ray.runtime_env import RuntimeEnv

    RuntimeEnv(**yaml.safe_load((REPOSITORY / "runtime_env.yaml").read_text()))


def guide_scripts(page: Path = GUIDE) -> list[str]:
    return re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL)


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
    indented = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    text = "".join(script for script in guide_scripts(page) if "#SBATCH" not in script)
    text += "\n".join(re.findall(r"^ {4}(ray .*|python .*)$", indented, re.MULTILINE))
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
    "scontrol": 'printf "%s\\n" "$*" >> requeued',
}
SIGNALS = {"signal": signal.SIGTERM, "time limit": signal.SIGUSR1}


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
        script.send_signal(SIGNALS[end]) if end in SIGNALS else (folder / "finished").touch()
        status = script.wait(timeout=60)
    finally:
        script.kill()
    return status, log.read_text().splitlines()


@pytest.mark.parametrize(("end", "status"), [("itself", 0), ("signal", 7), ("time limit", 7)])
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
    assert submitted.endswith("--run.resume auto --run.dir /shared/a run")
    stops = [command for command in commands if command.startswith("ray job stop")]
    assert stops == ([f"ray job stop {server} graphmill-7"] if end in SIGNALS else [])
    # Only Slurm's own signal at the time limit puts the job into the queue again.
    requeued = tmp_path / "requeued"
    assert (requeued.read_text() if requeued.exists() else "") == ("requeue 7\n" if end == "time limit" else "")


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs redis-server")
def test_the_redis_of_the_manifest_asks_for_its_password_and_keeps_its_data(tmp_path: Path) -> None:
    (pod,) = [
        each
        for each in yaml.safe_load_all((MANIFESTS / "redis" / "redis.yaml").read_text())
        if each["kind"] == "StatefulSet"
    ]
    command = pod["spec"]["template"]["spec"]["containers"][0]["command"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [word.replace("dir /data", f"dir {tmp_path}\\nport {port}\\nbind 127.0.0.1") for word in command]

    def ask(*lines: str) -> str:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall("".join(f"{line}\r\n" for line in (*lines, "QUIT")).encode())
            return connection.makefile().read()

    def answers() -> bool:
        try:
            return "+OK" in ask("AUTH secret")
        except OSError:
            return False

    for kept in ("$-1", "value"):  # before and after the process was killed
        server = subprocess.Popen(command, env={**os.environ, "PASSWORD": "secret"}, stdout=subprocess.DEVNULL)
        try:
            wait_until(answers)
            assert "NOAUTH" in ask("GET key")
            assert kept in ask("AUTH secret", "GET key")
            assert "+OK" in ask("AUTH secret", "SET key value", "WAITAOF 1 0 1000")
            wait_until(lambda: b"value" in b"".join(path.read_bytes() for path in tmp_path.rglob("*.aof")))
        finally:
            server.kill()
            server.wait(timeout=30)
