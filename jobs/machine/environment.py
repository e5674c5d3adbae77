"""Records the origin of a run: its command and commit, the versions of the packages that influence its numbers, the machine of the driver, and the Ray
cluster."""

import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from graphmill.cluster.receipts.host_facts import cpu_name, installed_packages

_GIT_TIMEOUT_S = 10.0


def describe_environment() -> dict[str, Any]:
    """Versions and machine as plain values, and the cluster if a Ray session exists."""
    import psutil

    machine = {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
    }
    environment: dict[str, Any] = {
        "python": platform.python_version(),
        "packages": installed_packages(),
        "machine": machine,
    }
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        resources = ray.cluster_resources()
        environment["cluster"] = {
            "nodes": sum(bool(node["Alive"]) for node in ray.nodes()),
            "cpus": resources.get("CPU", 0.0),
            "gpus": resources.get("GPU", 0.0),
            "accelerators": sorted(
                name.removeprefix("accelerator_type:") for name in resources if name.startswith("accelerator_type:")
            ),
        }
    return environment


def describe_command() -> dict[str, str]:
    """The command line of this process and the commit of Graphmill's code (only in a git checkout)."""
    command = {"command": shlex.join(sys.orig_argv)}
    commit = _commit(Path(__file__).resolve().parents[2])
    return command if commit is None else {**command, "commit": commit}


def _commit(checkout: Path) -> str | None:
    """The commit, with "-dirty" if files differ from it. None for an installed package, which is not in a repository of Graphmill."""
    if not (checkout / ".git").exists():
        return None
    describe = shlex.split("git --no-optional-locks describe --always --dirty --abbrev=40 --exclude=*")
    try:
        described = subprocess.run(
            describe, cwd=checkout, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):  # git is not installed, or the file system hangs
        return None
    return described.stdout.strip() or None
