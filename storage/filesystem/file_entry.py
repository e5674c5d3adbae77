"""The entry of one file in a manifest."""

from typing import NamedTuple


class FileEntry(NamedTuple):
    """Size, SHA-256 and path of one file. The path is relative to the graph's folder. The file lies in the folder of the snapshot that wrote it."""

    num_bytes: int
    sha256: str
    path: str = ""
