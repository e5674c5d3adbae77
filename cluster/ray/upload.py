"""Warns of a large upload by `ray job submit --working-dir`. The check is made in the job, because Ray's own command uploads the folder."""

import sys
from pathlib import Path

LARGE_BYTES = 10_000_000  # the upload of a job goes through the head's memory to every node
_NAMED = 3


def warn_of_large_upload(working_dir: str | None) -> None:
    """Prints a warning if the upload is large and is this process's working folder. `working_dir`: Ray's URI of the upload."""
    folder = Path.cwd()
    if working_dir and folder.name == working_dir.rpartition("/")[2].partition(".")[0]:
        warning = describe_large_upload(folder)
        if warning is not None:
            print(f"warning: {warning}", file=sys.stderr, flush=True)


def describe_large_upload(folder: Path) -> str | None:
    """Returns one line with the size and the largest files of an upload of more than LARGE_BYTES. None for a smaller upload."""
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
