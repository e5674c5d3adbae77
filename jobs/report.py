"""Writes a run's report as one HTML file: `python jobs/report.py runs/products_geco-20260101-120000 [--compare RUN] [--out FILE]`.

Every training job writes it when it ends, as report.html in its run directory; this makes it anew, for a run that is going or was killed
too, or beside another run. The file needs no network and runs no script. You should see its path, within a second or two.
"""

from dataclasses import dataclass
from pathlib import Path

from jobs.run.exit_codes import run
from jobs.run.reader import parse


@dataclass(frozen=True)
class ReportConfig:
    """Write a run's report."""

    run: Path
    """The run's directory."""
    compare: Path | None = None
    """Another run's directory, to show beside it."""
    out: Path | None = None
    """Where the page goes; the default is report.html in the run's directory."""


def main() -> int | None:
    config = parse(ReportConfig, __doc__, ("run",))
    from cluster.run_directory import write_atomic
    from jobs.reporting.run_report import run_page
    from jobs.run.run_record import read_run, stored_partitions
    from storage.errors import ConfigError

    record = read_run(config.run)
    other = None if config.compare is None else read_run(config.compare)
    target = config.out or config.run / "report.html"
    try:
        write_atomic(target, run_page(record, stored_partitions(record), other))
    except OSError as error:
        raise ConfigError(f"{target}: cannot write the report ({error.strerror}); choose another --out") from None
    print(target)
    return None


if __name__ == "__main__":
    run(main)
