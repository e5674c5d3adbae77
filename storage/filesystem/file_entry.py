"""The entry of one file in a manifest."""

from typing import NamedTuple


class FileEntry(NamedTuple):
    """Size and SHA-256 of one file, and its path below the graph's folder, in the folder of the snapshot that wrote it."""

    num_bytes: int
    sha256: str
    path: str = ""
