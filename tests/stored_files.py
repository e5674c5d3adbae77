"""Finds the files of a stored graph, or set of graphs, by their names in the newest manifest. Tests read or damage these files."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from graphmill.storage.filesystem.urls import split_url
from graphmill.storage.snapshots.snapshots import manifest_path, snapshot_numbers


def newest_manifest(url: str | Path) -> Path:
    """The path of the manifest that `open_graph(url)` reads."""
    filesystem, path = split_url(str(url))
    return Path(manifest_path(path, snapshot_numbers(filesystem, path)[-1]))


def stored_file(url: str | Path, name: str) -> Path:
    """The path of a file of the newest snapshot, such as `part-00001/nodes.arrow` or the file of an encoding."""
    body = json.loads(newest_manifest(url).read_bytes())
    tables: list[Mapping[str, Any]] = [body, *body.get("encodings", {}).values()]
    (entry,) = (table["files"][name] for table in tables if name in table["files"])
    return Path(url, entry["path"])


def edit_manifest(url: str | Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Rewrites the newest manifest in place, which no user should do. `change` receives its JSON and may change it."""
    path = newest_manifest(url)
    body = json.loads(path.read_bytes())
    change(body)
    path.write_text(json.dumps(body))


def all_files(url: str | Path) -> dict[str, bytes]:
    """The content of every file below a local folder, by path."""
    return {path.relative_to(url).as_posix(): path.read_bytes() for path in Path(url).rglob("*") if path.is_file()}


def contents(url: str | Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Returns (manifest, files by name) of the newest snapshot. Leaves out the date and the folder, which differ each time a graph is written."""
    body = json.loads(newest_manifest(url).read_bytes())
    files = {name: Path(url, entry["path"]).read_bytes() for name, entry in body["files"].items()}
    for entry in body["files"].values():
        del entry["path"]
    del body["created"]
    return body, files
