"""What every measurement shares: Markdown tables, the line that names the machine, and the two files that it leaves.

Needs Python alone.
"""

import json
import os
import platform
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any


def table(columns: Mapping[str, str], rows: Iterable[Sequence[object] | Mapping[str, object]]) -> list[str]:
    """A table's lines in Markdown. `columns`: a format for each name; a value that is None leaves its cell empty."""
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for row in rows:
        values = [row[name] for name in columns] if isinstance(row, Mapping) else row
        cells = ["" if v is None else format(v, form) for v, form in zip(values, columns.values(), strict=True)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def machine(*packages: str, device: str = "cpu") -> str:
    """The GPU or the processor with its cores and load; the versions of Python and of the packages; the date."""
    if device != "cpu":
        import torch

        chip = torch.cuda.get_device_name()
    else:
        cpuinfo = Path("/proc/cpuinfo")
        named = re.search(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else None
        chip = f"{named[1] if named else platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    versions = [f"{name} {version(name)}" for name in packages]
    return ", ".join([chip, f"Python {platform.python_version()}", *versions, time.strftime("%Y-%m-%d")])


def keep(out: Path, config: Any, text: str, **measured: Any) -> None:
    """Writes `results.md`, the text, and `results.json`, the config and what was measured."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.md").write_text(text.rstrip() + "\n")
    body = {"config": config, **measured}
    (out / "results.json").write_text(json.dumps(body, indent=1, default=_plain) + "\n")


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)
