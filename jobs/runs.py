"""Lists the runs of a folder: `graphmill runs [FOLDER] [--sort test] [--where model=geco status=finished] [--limit 20]`.

Each run has a line: name, start time, status, model, data, scores of its metric, and epochs. The newest run is last. If a run cannot be read, its status column
has the reason. You should see the table within a second for a hundred runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from graphmill.cluster.runs.run_store import GRAPH
from graphmill.core.errors import ConfigError, GraphmillError
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse
from graphmill.jobs.records.run_record import Run, read_run

COLUMNS = ("run", "began", "status", "model", "data", "metric", "valid", "test", "epochs", "parameters")


@dataclass(frozen=True)
class RunsConfig:
    """List the runs of a folder."""

    folder: str = "runs"
    """Folder of the runs: a path or a URL."""
    sort: str = "began"
    """Column to sort by: run, began, status, model, data, metric, valid, test, epochs or parameters. -COLUMN: greatest first."""
    where: tuple[str, ...] = ()
    """Filter, as COLUMN=VALUE …: only runs with these values. COLUMN=PART*: only values that begin with PART."""
    limit: int = 0
    """Print only this number of runs, the last of the sorted runs. 0: all runs."""


def main() -> None:
    config = parse(RunsConfig, __doc__, ("folder",))
    rows = select_rows(list_runs(config.folder), config.sort, config.where)
    print(text_table([COLUMNS, *([row[name] for name in COLUMNS] for row in rows[-config.limit :])]))


def list_runs(folder: str) -> list[dict[str, object]]:
    """A mapping from column to value for each run in a folder, including unreadable runs. Raises ConfigError if the folder does not exist or holds no run."""
    from graphmill.storage.filesystem.urls import split_url

    filesystem, path = split_url(folder)
    try:
        names = sorted(entry.rstrip("/").rpartition("/")[2] for entry in filesystem.ls(path, detail=False))
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(
            f"{folder}: expected a folder of runs, found none; give the folder that --run.dir names"
        ) from None
    places = [f"{folder.rstrip('/')}/{name}" for name in names if filesystem.exists(f"{path}/{name}/config.json")]
    if not places:
        raise ConfigError(f"{folder}: expected runs in this folder, found none; give the folder that --run.dir names")
    return [_row(place) for place in places]


def _row(place: str) -> dict[str, object]:
    row: dict[str, object] = {**dict.fromkeys(COLUMNS, ""), "run": place.rpartition("/")[2]}
    try:
        return {**row, **run_facts(read_run(place))}
    except GraphmillError as error:
        return {**row, "status": f"unreadable: {' '.join(str(error).split())[:60]}"}


def run_facts(record: Run) -> dict[str, object]:
    """The columns of a run, except for its name."""
    config, summary = record.config, record.summary
    begun = record.told("begin")
    return {
        "began": str(begun[0].get("time", ""))[:19].replace("T", " ") if begun else "",
        "status": record.status,
        "model": _name(config.get("model")),
        "data": _data_name(record),
        "metric": f"{record.metric or ''}{' (estimate)' if record.is_estimate else ''}",
        "valid": record.scores.get("valid", ""),
        "test": record.scores.get("test", ""),
        "epochs": len(record.epochs),
        "parameters": summary.get("num_parameters", ""),
    }


def _data_name(record: Run) -> str:
    """A short name of the data: the last part of its path. For data from memory, which is stored below its run: the beginning of the content's hash."""
    data = record.config.get("data")
    path = str((data.get("path") if isinstance(data, dict) else None) or "embedded").rstrip("/")
    if not path.endswith(f"/{record.name}/{GRAPH}"):
        return path.rpartition("/")[2]
    content = record.summary.get("graph_hash") or record.summary.get("graphs_hash")
    return f"in memory, {content[:8]}" if content else "in memory"


def _name(component: object) -> str:
    return str(component.get("name", "")) if isinstance(component, dict) else str(component or "")


def select_rows(rows: Sequence[dict[str, object]], sort: str, where: Sequence[str]) -> list[dict[str, object]]:
    """The rows with the values of `where`, sorted. Raises ConfigError for an unknown column."""
    conditions = [condition.partition("=") for condition in where]
    for named, equals in [(sort.removeprefix("-"), "="), *((name, equals) for name, equals, _ in conditions)]:
        if named not in COLUMNS or not equals:
            raise ConfigError(
                f"expected a column, one of {', '.join(COLUMNS)}, as in --where model=geco, got {named!r}"
            )
    column = sort.removeprefix("-")
    kept = [row for row in rows if all(_is(row[name], value) for name, _, value in conditions)]
    return sorted(kept, key=lambda row: _rank(row[column]), reverse=sort.startswith("-"))


def _is(value: object, pattern: str) -> bool:
    return str(value).startswith(pattern[:-1]) if pattern.endswith("*") else str(value) == pattern


def _rank(value: object) -> tuple[bool, float, str]:
    """Sort key: numbers by value, then texts."""
    is_number = isinstance(value, int | float)
    return (not is_number, value, "") if isinstance(value, int | float) else (not is_number, 0.0, str(value))


def text_table(rows: Sequence[Sequence[object]]) -> str:
    """Formats the rows as a table with a header line. Numbers have four digits and are aligned right. Texts are aligned left and cut at 60 letters."""
    cells = [[f"{cell:.4f}" if isinstance(cell, float) else str(cell)[:60] for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numbers = [
        all(isinstance(row[place], int | float) or row[place] == "" for row in rows[1:]) for place in range(len(widths))
    ]
    return "\n".join(
        "  ".join(
            f"{cell:>{w}}" if right else f"{cell:<{w}}" for cell, w, right in zip(row, widths, numbers, strict=True)
        ).rstrip()
        for row in cells
    )


if __name__ == "__main__":
    run(main)
