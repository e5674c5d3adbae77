"""Finds the files that `ray job submit --working-dir` would pack, with Ray's packaging code. Also makes folders to pack."""

import logging
import shutil
import zipfile
from collections.abc import Iterable
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
_NOT_COPIED = (".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "build")
# Files that appear in a checkout during use, or in a user's project.
DATA = (
    *("x.npy", "arrays.npz", "edges.csv", "edges.parquet", "weights.pt", "rows.arrow"),
    *("graphs/mine/manifests/000001.json", "runs/a/config.json", "predictions/part-00000.txt", "data/products/raw.txt"),
    "mine/edges.csv",
)
PACKAGES = (
    "mine/data/__init__.py",
    "mine/data/sub/read.py",
    "src/data/__init__.py",
    "data/__init__.py",
    "mine/runs/a.py",
)


def copy_checkout(target: Path) -> Path:
    """Copies the repository's files to `target`. Symbolic links stay links."""
    shutil.copytree(REPOSITORY, target, symlinks=True, ignore=shutil.ignore_patterns(*_NOT_COPIED))
    return target


def plant(folder: Path, names: Iterable[str]) -> None:
    """Writes a small file for each of these names below the folder."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("# planted\n")


def packed(folder: Path, out: Path) -> dict[str, int]:
    """Packs the folder as an upload to the file `out`. Returns the content of each file in the package."""
    from ray._private.ray_constants import get_runtime_env_default_excludes
    from ray._private.runtime_env.packaging import create_package

    quiet = logging.getLogger("tests.uploads")
    quiet.setLevel(logging.WARNING)
    excludes = get_runtime_env_default_excludes()
    create_package(str(folder), out, include_gitignore=True, excludes=excludes, logger=quiet)
    with zipfile.ZipFile(out) as package:
        return {entry.filename: entry.file_size for entry in package.infolist() if not entry.is_dir()}
