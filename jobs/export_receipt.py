"""Exports the receipt of a run as one small file, which others can verify with the graph alone: `graphmill export-receipt RUN receipt.json`.

The file holds the run's options, the versions and the processor, and digests of each step. It holds no weights and no data. Paths in the options are those
of the run.
"""

from dataclasses import dataclass
from pathlib import Path

from graphmill.core.errors import ConfigError
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse
from graphmill.storage.filesystem.filesystem_errors import one_line_errors


@dataclass(frozen=True)
class ExportReceiptConfig:
    """Export the receipt of a run."""

    run: str
    """The run's directory."""
    out: Path = Path("receipt.json")
    """The new file, ending in .json."""


def main() -> None:
    config = parse(ExportReceiptConfig, __doc__, ("run", "out"))
    if config.out.suffix != ".json":
        raise ConfigError(f"out: expected a new file ending in .json, got {config.out}; set OUT")
    from graphmill.jobs.proof.proven_run import exported, open_proven
    from graphmill.storage.filesystem.fsync import write_durably
    from graphmill.storage.filesystem.outputs import check_output

    check_output(config.out, "a receipt", is_file=True)
    proven = open_proven(config.run)
    content = exported(proven)
    with one_line_errors(str(config.out), "write the receipt", ConfigError):
        write_durably(config.out, content)
    print(
        f"{config.out}: {len(content):,} bytes, {proven.num_steps:,} steps; to verify: graphmill verify {config.out} --data GRAPH"
    )


if __name__ == "__main__":
    run(main)
