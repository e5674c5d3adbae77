"""Warns of a large upload by `ray job submit --working-dir`. Ray uploads the folder itself, so the check is made in the job."""

import sys
from pathlib import Path

LARGE_BYTES = 10_000_000  # each job's upload goes through the head's memory and to every node
_NAMED = 3


def warn_of_large_upload(working_dir: str | None) -> None:
    """Prints a warning if the upload is large and this process works in it; `working_dir` is Ray's URI of the upload."""
    folder = Path.cwd()
    if working_dir and folder.name == working_dir.rpartition("/")[2].partition(".")[0]:
        warning = describe_large_upload(folder)
        if warning is not None:
            print(f"warning: {warning}", file=sys.stderr, flush=True)


def describe_large_upload(folder: Path) -> str | None:
    """One line with the size and the largest files of an upload beyond LARGE_BYTES; None for a smaller one."""
    files = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    sizes = sorted(((path.stat().st_size, path) for path in files), reverse=True)
    total = sum(size for size, _ in sizes)
    if total <= LARGE_BYTES:
        return None
    named = ", ".join(f"{path.relative_to(folder)} ({size / 1e6:.1f} MB)" for size, path in sizes[:_NAMED])
    return (
        f"the upload has {total / 1e6:.1f} MB in {len(sizes):,} files, the largest {named}; "
        "name in .rayignore what the job does not import"
    )
