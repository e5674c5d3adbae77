"""Where an ingestion works: `.<name>.ingest-xxxxxxxx`, removed with its block, or by the next one if its process was killed."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from storage.errors import ConfigError
from storage.filesystem_errors import one_line
from storage.owned_folder import orphans, owned

REPLACED = (
    "replaced"  # inside a scratch directory: the graph that was at the destination, while the new one takes its place
)


@contextlib.contextmanager
def scratch_directory(parent: Path | None, name: str) -> Iterator[Path]:
    """A new directory in `parent` (None: the system's), removed with the block. ConfigError where none can be made."""
    where = str(parent) if parent else tempfile.gettempdir()
    try:
        made = tempfile.TemporaryDirectory(prefix=f".{name}.ingest-", dir=where, ignore_cleanup_errors=True)
    except OSError as error:
        raise ConfigError(
            f"{where}: cannot make a temporary directory there ({one_line(error)}); choose another url or --scratch"
        ) from error
    with made as folder, owned(Path(folder)):
        yield Path(folder)


def remove_orphans(parent: Path | None, name: str, target: Path | None = None) -> None:
    """Removes what killed processes left of scratch directories for `name` in `parent`.

    `target`: the local destination; a graph that such a process had moved aside is put back there where nothing took its place.
    """
    for folder in orphans(parent or Path(tempfile.gettempdir()), f".{name}.ingest-"):
        with contextlib.suppress(OSError):
            if target is not None and (folder / REPLACED).exists() and not target.exists():
                (folder / REPLACED).rename(target)
            shutil.rmtree(folder, ignore_errors=True)
