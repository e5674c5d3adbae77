"""Tests whether a store can create a file exclusively, which means only if the file does not exist. The commit of a snapshot depends on this.

If a store ignores the condition, or checks it before and not during the write, two writers can overwrite each other's files.
"""

import contextlib
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

from graphmill.core.errors import ConfigError
from graphmill.storage.filesystem.filesystem_errors import one_line, one_line_errors

_RACERS, _ROUNDS = 4, 2


def check_exclusive_creation(filesystem: fsspec.AbstractFileSystem, folder: str, url: str) -> None:
    """Raises ConfigError if exclusive creation can replace an existing file. Writes probe files to `folder` and removes them."""
    if isinstance(filesystem, MemoryFileSystem):  # this filesystem belongs to one process, whose writers take a lock
        return
    problem = _problem(filesystem, folder)
    if problem:
        raise ConfigError(
            f"{url}: expected a store that creates a file only where there is none, found that {problem}; two writers could "
            "overwrite each other's graphs: write to a local path or to s3://, and copy the folder from there"
        )


def _problem(filesystem: fsspec.AbstractFileSystem, folder: str) -> str | None:
    for _ in range(_ROUNDS):
        probe = f"{folder}/probe-{secrets.token_hex(4)}"
        start = threading.Barrier(_RACERS)

        def create(content: bytes, probe: str = probe, start: threading.Barrier = start) -> bool:
            with contextlib.suppress(threading.BrokenBarrierError):
                start.wait(timeout=10)
            return _creates(filesystem, probe, content)

        try:
            with ThreadPoolExecutor(_RACERS) as pool:
                futures = [pool.submit(create, str(racer).encode()) for racer in range(_RACERS)]
            # The losing request may also get the answer "try again" (409 from S3), which counts as an error here.
            winners = sum(future.exception() is None and future.result() for future in futures)
            if not winners:
                futures[0].result()
            if winners != 1:
                return f"{winners} of {_RACERS} requests at once created the same file"
            if _creates(filesystem, probe, b"again"):
                return "a second request replaced the file of the first"
        except (NotImplementedError, TypeError) as error:
            return f"it knows no such request ({one_line(error)})"
        finally:
            with contextlib.suppress(OSError), one_line_errors(probe, "remove this file"):
                filesystem.rm_file(probe)
    return None


def _creates(filesystem: fsspec.AbstractFileSystem, path: str, content: bytes) -> bool:
    try:
        filesystem.pipe_file(path, content, mode="create")
    except FileExistsError:  # this request may itself have created the file, if it was sent twice
        return bool(filesystem.cat_file(path) == content)
    return True
