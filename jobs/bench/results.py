"""What every measurement shares: Markdown tables, the line that names the machine, and the two files that it leaves.

Needs Python alone.
"""

import json
import os
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from jobs.run.environment import cpu_name, describe_command, installed_packages


def table(columns: Mapping[str, str], rows: Iterable[Sequence[object] | Mapping[str, object]]) -> list[str]:
    """A table's lines in Markdown. `columns`: a format for each name; a value that is None leaves its cell empty."""
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for row in rows:
        values = [row[name] for name in columns] if isinstance(row, Mapping) else row
        cells = ["" if v is None else format(v, form) for v, form in zip(values, columns.values(), strict=True)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def machine(device: str = "cpu") -> str:
    """The GPU or the processor with its cores and load; the versions of Python and of packages; the date."""
    chip = f"{cpu_name()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    if device != "cpu":
        import torch

        chip = torch.cuda.get_device_name()
    versions = [f"{name} {version}" for name, version in installed_packages().items()]
    return ", ".join([chip, f"Python {platform.python_version()}", *versions, time.strftime("%Y-%m-%d")])


def keep(out: Path, config: Any, text: str, **measured: Any) -> None:
    """Writes `results.md`, the text, and `results.json`: the command, the commit, the config and what was measured."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.md").write_text(text.rstrip() + "\n")
    body = {**describe_command(), "config": config, **measured}
    (out / "results.json").write_text(json.dumps(body, indent=1, default=_plain) + "\n")


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)
