"""The job that tests/cluster/test_job_submit.py submits. It prints its folders and the uploaded files. With `--fail` it ends with an error."""

import json
import os
import sys
from pathlib import Path

import ray

import graphmill.cluster
from graphmill.cluster.ray.session import ray_session

WARM = "graphmill.cluster.serving.partition_server"  # the task does not import it


@ray.remote(num_cpus=0)
def where() -> dict[str, str]:
    import graphmill.storage

    return {
        "cwd": str(Path.cwd()),
        "package": str(Path(graphmill.storage.__file__).resolve()),
        "executable": sys.executable,
        "is_warm": WARM in sys.modules,
    }


def uploaded_files() -> dict[str, int]:
    """The content of each file in the working directory, by relative path."""
    sizes = {}
    for folder, _, names in os.walk("."):
        for name in names:
            path = Path(folder, name)
            sizes[str(path)] = path.stat().st_size
    return sizes


def main() -> None:
    with ray_session(warm=(WARM,)) as session:
        report = {
            "is_ours": session.is_ours,
            "cwd": str(Path.cwd()),
            "package": str(Path(graphmill.cluster.__file__).resolve()),
            "files": uploaded_files(),
            "worker": ray.get(where.remote(), timeout=600),
        }
    print("REPORT " + json.dumps(report))
    if "--fail" in sys.argv[1:]:
        raise ValueError("this job was asked to fail")


if __name__ == "__main__":
    main()
