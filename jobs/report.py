"""Writes a run's report as one HTML file: `python jobs/report.py runs/products_geco-20260101-120000 [--compare RUN] [--out FILE]`.

Every training job writes this report at its end, as report.html in the run's directory. The command writes the report again, also for a run that is still going
or was killed, and can show another run next to it. The file needs no network and runs no script. You should see the path of the file within a second or two.
"""

from dataclasses import dataclass
from pathlib import Path

from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse


@dataclass(frozen=True)
class ReportConfig:
    """Write a run's report."""

    run: str
    """The run's directory: a path or a URL."""
    compare: str | None = None
    """Another run's directory, to show next to the run."""
    out: Path | None = None
    """Path of the page: a new file, or the file of an earlier report. The default is report.html in the run's directory."""


def main() -> None:
    config = parse(ReportConfig, __doc__, ("run",))
    from graphmill.cluster.runs.run_directory import write_atomic
    from graphmill.cluster.runs.run_store import RunStore
    from graphmill.core.errors import ConfigError
    from graphmill.jobs.records.run_record import read_run, stored_partitions
    from graphmill.jobs.reporting.page import check_page
    from graphmill.jobs.reporting.run_report import run_page

    if config.out is not None:
        check_page(config.out)
    place = RunStore(config.run)
    record = read_run(place)
    other = None if config.compare is None else read_run(RunStore(config.compare))
    page = run_page(record, stored_partitions(record), other)
    if config.out is None and not place.is_local:
        place.write("report.html", page.encode("utf-8", errors="backslashreplace"))
        print(place.below("report.html"))
        return
    target = config.out or place.folder / "report.html"
    try:
        write_atomic(target, page)
    except OSError as error:
        raise ConfigError(f"{target}: cannot write the report ({error.strerror}); choose another --out") from None
    print(target)


if __name__ == "__main__":
    run(main)
