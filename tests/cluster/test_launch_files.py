"""The files that start clusters: valid by Ray's own schema, and in step with the repository they start."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
MANIFEST = REPOSITORY / "docs" / "kuberay-rayjob.yaml"


def pinned() -> dict[str, str]:
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


def requirement_pins(packages: list[str]) -> dict[str, str]:
    return dict(package.split("==") for package in packages)


def cloud_blocks() -> Iterator[tuple[str, dict[str, Any]]]:
    """The commented blocks at the end of ray_config.yaml, each laid over the file itself as its comment says."""
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


def test_every_node_starts_with_the_token() -> None:
    config = yaml.safe_load((REPOSITORY / "ray_config.yaml").read_text())
    for commands in (config["head_start_ray_commands"], config["worker_start_ray_commands"]):
        starts = [command for command in commands if "ray start" in command]
        assert len(starts) == 1
        assert "RAY_AUTH_MODE=token" in starts[0]
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


def test_the_pins_are_those_of_constraints_txt() -> None:
    for text in (
        yaml.safe_load(MANIFEST.read_text())["spec"]["runtimeEnvYAML"],
        (REPOSITORY / "runtime_env.yaml").read_text(),
    ):
        pins = requirement_pins(yaml.safe_load(text)["pip"]["packages"])
        assert pins["torch"]
        assert {name: pinned().get(name) for name in pins} == pins


def test_runtime_env_yaml_is_valid_for_ray() -> None:
    from ray.runtime_env import RuntimeEnv

    RuntimeEnv(**yaml.safe_load((REPOSITORY / "runtime_env.yaml").read_text()))
