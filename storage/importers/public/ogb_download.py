"""Downloads one OGB archive. It asks no question (`ogb`'s downloader asks on stdin above 1 GB) and leaves no incomplete folder."""

import tempfile
import urllib.error
import urllib.request
import zipfile
from http.client import HTTPException
from pathlib import Path

from graphmill.core.errors import DataError
from graphmill.storage.filesystem.filesystem_errors import one_line
from graphmill.storage.format.source import Progress

_SILENCE_S = 30.0  # a server that sends nothing for this long counts as unreachable
_READ_BYTES = 1 << 20


def download_archive(url: str, archive_folder: str, destination: Path, progress: Progress | None = None) -> None:
    """Downloads the zip file at `url`, and unpacks its folder `archive_folder` as `destination`. The destination appears complete or not at all.

    Calls `progress` with "download", the number of bytes done, and the number of all bytes (or None). Raises DataError, with the cause, if the download fails.
    """
    report = progress or (lambda *_: None)
    prefix = f".{destination.name}.download-"
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        made = tempfile.TemporaryDirectory(prefix=prefix, dir=destination.parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise DataError(f"cannot make a directory in {destination.parent}: {one_line(error)}") from error
    with made as scratch:
        archive = Path(scratch) / "archive.zip"
        try:
            with urllib.request.urlopen(url, timeout=_SILENCE_S) as reply, archive.open("wb") as file:
                length = reply.headers.get("Content-Length")
                total, done = int(length) if length else None, 0
                while block := reply.read(_READ_BYTES):
                    file.write(block)
                    done += len(block)
                    report("download", done, total)
            if total is not None and done != total:
                raise DataError(f"connection lost after {done} of {total} bytes")
            with zipfile.ZipFile(archive) as unpacked:
                unpacked.extractall(scratch)
            (Path(scratch) / archive_folder).rename(destination)
        except urllib.error.URLError as error:  # HTTP status errors are of this class, too
            raise DataError(str(error.reason)) from error
        except (OSError, HTTPException, zipfile.BadZipFile) as error:
            raise DataError(str(error) or type(error).__name__) from error
