"""Code that all measurements share: models from recipes, Markdown tables, the line that describes the machine, and the two result files."""

import json
import os
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphmill.cluster.receipts.host_facts import cpu_name, installed_packages
from graphmill.core.errors import ConfigError, FormatError
from graphmill.core.files.json_object import parse_object
from graphmill.jobs.machine.environment import describe_command
from graphmill.storage.filesystem.filesystem_errors import one_line_errors

if TYPE_CHECKING:
    import fsspec

_RESULTS, _FORMAT = "results.json", "graphmill-results"  # this format marks a folder of results as written by Graphmill


def table(columns: Mapping[str, str], rows: Iterable[Sequence[object] | Mapping[str, object]]) -> list[str]:
    """Lines of a Markdown table. `columns`: name -> format. A value None leaves the cell empty."""
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for row in rows:
        values = [row[name] for name in columns] if isinstance(row, Mapping) else row
        cells = ["" if v is None else format(v, form) for v, form in zip(values, columns.values(), strict=True)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def machine(device: str = "cpu") -> str:
    """One line that describes the machine: the GPU, or the processor with its cores and load; versions of Python and packages; date."""
    chip = f"{cpu_name()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    if device != "cpu":
        import torch

        chip = torch.cuda.get_device_name()
    versions = [f"{name} {version}" for name, version in installed_packages().items()]
    return ", ".join([chip, f"Python {platform.python_version()}", *versions, time.strftime("%Y-%m-%d")])


def check_results(out: Path) -> None:
    """Raises ConfigError if `out` exists and holds anything except results of Graphmill."""
    from graphmill.storage.filesystem.outputs import check_output

    check_output(out, "results", _strangers)


def _strangers(filesystem: "fsspec.AbstractFileSystem", path: str) -> list[str]:
    """Names of files in the folder that Graphmill did not write. A folder may also have a subfolder of results for each part of a measurement."""
    from graphmill.storage.filesystem.outputs import names_there

    names = names_there(filesystem, path)
    return [] if _is_ours(path) else [name for name in names if not _is_ours(f"{path}/{name}")]


def _is_ours(folder: str) -> bool:
    with suppress(OSError, FormatError):
        where = Path(folder, _RESULTS)
        return parse_object(where.read_bytes(), str(where)).get("format") == _FORMAT
    return False


def check_arrays(folder: Path) -> None:
    """Raises ConfigError if the folder for the peers' arrays holds any other file."""
    from graphmill.storage.filesystem.outputs import check_output, names_there

    def strangers(filesystem: "fsspec.AbstractFileSystem", path: str) -> list[str]:
        return [name for name in names_there(filesystem, path) if not name.endswith((".npy", "complete"))]

    check_output(folder, "arrays", strangers, advice="choose another --data-dir")


def keep(out: Path, config: Any, text: str, **measured: Any) -> None:
    """Writes the text to `results.md`, and the command, commit, config and measurements to `results.json`."""
    from graphmill.storage.filesystem.fsync import write_durably

    body = {"format": _FORMAT, **describe_command(), "config": config, **measured}
    with one_line_errors(str(out), "write the results", ConfigError):
        out.mkdir(parents=True, exist_ok=True)
        write_durably(out / _RESULTS, (json.dumps(body, indent=1, default=_plain) + "\n").encode())
        write_durably(out / "results.md", (text.rstrip() + "\n").encode())


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


def recipe_options(path: str, **changes: Any) -> Any:
    """The options of the model in a recipe of Graphmill, with `changes`, for example the options that depend on the data (node, edge, out_dim, task)."""
    from graphmill.jobs.config.config import config_tree, read_config, read_recipe

    return replace(read_config(config_tree("nodes", read_recipe(path))).model.options, **changes)
