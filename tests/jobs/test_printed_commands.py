"""Runs the commands in README.md, the site's home page and the guides as printed, twice in a row. Each exit status must be 0.

Each block runs in a separate folder that looks like a checkout with its environment. Lists here name the blocks that are not run, or are changed before the
run, each with the reason. A listed block must exist in its document.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions
from tests.printed_commands import DOCUMENTS, REPOSITORY, Block, blocks, inline_commands, written_files
from tests.raw_layouts import write_set

FIRST_RUN = "docs/guides/start.md"
PLATFORM = "docs/guides/platform.md"
# (document, first words of a block): the reason why the block is not run.
NOT_RUN = {
    (FIRST_RUN, "make clean"): "builds an environment from indexes that the reader has to name",
    (
        FIRST_RUN,
        "umask 077",
    ): "starts a cluster on fixed ports; tests/cluster/test_job_submit.py does it on free ones",
    (FIRST_RUN, "ray job submit"): "the same",
    (
        "docs/guides/cluster.md",
        "export RAY_AUTH_MODE",
    ): "several machines; tests/cluster/test_launch_files.py checks the options",
    (
        "docs/guides/cluster.md",
        "python jobs/ingest.py s3",
    ): "several machines; tests/netlab/test_hosts.py places a graph on two",
    (
        "docs/guides/cluster.md",
        "python jobs/products_geco.py --data s3",
    ): "a bucket; tests/jobs/test_disk_cache.py reads a store by the cache",
    (
        "docs/guides/cluster.md",
        "graphmill serve-graph s3",
    ): "a cluster and a bucket; tests/cluster/serving/test_graph_service.py starts, uses and ends a service",
    (
        "docs/guides/cluster.md",
        "python jobs/ingest.py ogbn-products",
    ): "a download of 1.4 GB; tests/cluster/test_root_groups.py trains with such roots",
    ("docs/guides/cluster.md", "ray "): "several machines; tests/cluster/test_launch_files.py checks the options",
    (
        "docs/guides/cluster.md",
        "export RAY_TMPDIR",
    ): "ends every Ray of this user; tests/cluster/test_job_submit.py submits to one on free ports",
    (PLATFORM, "docker"): "a daemon and a public image; tests/test_image.py builds it with buildah",
    (PLATFORM, "umask 077\n"): "several machines; tests/cluster/test_launch_files.py checks the options",
    (PLATFORM, "ray "): "several machines; tests/cluster/test_launch_files.py checks the options",
    (PLATFORM, "#!/bin/bash"): "Slurm; tests/cluster/test_launch_files.py runs it with stand-ins",
    (PLATFORM, "sbatch"): "Slurm",
    (PLATFORM, "kubectl"): "Kubernetes; tests/cluster/test_launch_files.py makes what they would send",
    (PLATFORM, "prometheus"): "a server of its own, on the head of a cluster",
}

# (document, text as printed, text as run, reason)
CHANGED = (
    ("README.md", "make test ", ": make test ", "the suite that holds this test"),
    ("README.md", "pip install", ": pip install", "asks a package index"),
    ("docs/index.md", "pip install", ": pip install", "the same"),
    (FIRST_RUN, "pip install", ": pip install", "the same"),
    (
        FIRST_RUN,
        "ogbn-products graphs/products",
        "synthetic graphs/products --synthetic.num-nodes 3000",
        "a download of 1.4 GB",
    ),
    (
        "docs/guides/operations.md",
        "s3://bucket/runs/cora",
        "runs/cora --data.nodes 1500 --fit.epochs 2",
        "a bucket; tests/cluster/test_stored_runs.py has one",
    ),
    (
        PLATFORM,
        "ray get-auth-token",
        "env -u RAY_AUTH_TOKEN_PATH HOME=$PWD ray get-auth-token",
        "the token of whoever runs the tests",
    ),
    (PLATFORM, "--graph graphs/products\n", "--graph graphs/products --ray.object_store_gb 0.2\n", "a small machine"),
    ("docs/guides/operations.md", "runs/products_geco-…", "runs/products_geco-1", "the reader's own run"),
)

SMALL = (
    *("--data.nodes", "1500", "--model.width", "16", "--model.num_layers", "2"),
    *("--sampler.num_chunks", "2", "--fit.epochs", "2"),
)
MAKE_A_RUN = ("jobs/products_geco.py", *SMALL, "--run.dir", "runs/products_geco-1")


def reason(block: Block) -> str | None:
    return next(
        (why for (name, start), why in NOT_RUN.items() if name == block.document and block.text.startswith(start)), None
    )


def shell_blocks() -> list[Block]:
    """All blocks with commands. In addition: `make run ARGS=…`, which is printed inside a sentence."""
    found = [block for name in DOCUMENTS for block in blocks(name) if block.language == "bash"]
    inline = [command for command in inline_commands(FIRST_RUN) if command.startswith("make run ARGS=")]
    return [*found, *(Block(FIRST_RUN, "bash", command) for command in inline)]


def as_run(block: Block) -> str:
    text = block.text
    for name, printed, run, _ in CHANGED:
        if name == block.document:
            text = text.replace(printed, run)
    return text


RUN = [block for block in shell_blocks() if reason(block) is None]
SCRIPTS = [
    name for name in DOCUMENTS if any(block.language == "python" for block in blocks(name)) and "your_model" not in name
]


def test_what_is_not_run_as_printed_is_still_printed():
    for (name, start), why in NOT_RUN.items():
        assert any(block.document == name and block.text.startswith(start) for block in shell_blocks()), (
            name,
            start,
            why,
        )
    for name, printed, _, why in CHANGED:
        assert any(block.document == name and printed in block.text for block in RUN), (name, printed, why)
    assert len(RUN) >= 10


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder like a checkout with its environment, the graph of the first guide, and the files and modules that guides mention."""
    for name in ("jobs", "Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    environment = tmp_path / ".venv"
    environment.mkdir()
    for part in Path(sys.prefix).iterdir():
        if not part.name.startswith("."):
            (environment / part.name).symlink_to(part)
    (environment / ".run-installed").touch()
    for name, text in written_files().items():
        (tmp_path / name).write_text(text)
    rng = np.random.default_rng(0)
    label = rng.integers(0, 3, 300)
    np.save(tmp_path / "x.npy", (3 * np.eye(3)[label] + rng.normal(size=(300, 3))).astype(np.float32))
    np.save(tmp_path / "y.npy", label)
    np.save(tmp_path / "split.npy", np.repeat([1, 2, 3], 100).astype(np.int8))
    edges = rng.integers(0, 300, (2400, 2))
    (tmp_path / "edges.csv").write_text("src,dst\n" + "".join(f"{a},{b}\n" for a, b in edges if a != b))
    (tmp_path / "molecules.csv").write_text("smiles,gap\nCCO,1.5\nC1CC1,2.5\nc1ccccc1,0.5\n")
    for name in ("cora", "pattern", "yelp", "zinc"):
        write_set(name, tmp_path / "data" / "sets")
    return tmp_path


def run_shell(text: str, folder: Path, timeout_s: float = 1500) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, f"{text}\nexit status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    assert "Traceback" not in done.stderr, done.stderr[-2000:]


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("block", RUN, ids=lambda block: block.name)
def test_a_block_of_commands_runs_twice(block: Block, checkout: Path) -> None:
    text = as_run(block)
    for name in ("products", "mine"):
        if f"graphs/{name}" in text and "ingest.py" not in text:
            source = SyntheticGraph(SyntheticOptions(num_nodes=3000))
            ingest(source, str(checkout / "graphs" / name), IngestOptions(num_partitions=2))
    if "runs/products_geco-1" in text:
        run_shell(" ".join(["python", *MAKE_A_RUN]), checkout)
    for _ in range(2):
        run_shell(text, checkout)


@pytest.mark.long
@pytest.mark.parametrize("document", SCRIPTS)
def test_a_guides_python_runs_twice(document: str, tmp_path: Path) -> None:
    """Runs all Python blocks of a guide as one script."""
    code = "".join(block.text for block in blocks(document) if block.language == "python")
    (tmp_path / "guide.py").write_text(code)
    for _ in range(2):
        run_shell("python guide.py", tmp_path, 240)
