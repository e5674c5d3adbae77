"""Fuzzes a reader, guided by coverage: `python -m tests.fuzz topology --minutes 10`. Needs atheris (Linux).

Inputs that reach new code are stored in --corpus for the next run. A finding is any error other than GraphmillError, a
hang of 20 s, or a use of more than 2 GiB of memory. The first finding ends the run with a trace. Its input is stored in
the current folder as crash-…, timeout-… or oom-….
"""

import argparse
import importlib
import logging
import sys
import tempfile
from pathlib import Path

import atheris

_READERS = (  # modules that targets import late
    "graphmill.cluster.checkpoints.checkpoint",
    "graphmill.jobs.convert_checkpoint",
    "graphmill.jobs.config.config",
    "graphmill.jobs.records.run_record",
    "graphmill.jobs.reporting.run_report",
    "graphmill.storage.format.graph_set_manifest",
    "graphmill.storage.graph_sets.graph_set",
    "graphmill.storage.importers.tables.edge_list",
    "graphmill.storage.importers.files.npz_file",
    "graphmill.storage.molecules.pcqm4mv2",
)

# Atheris cannot instrument compiled loops.
_COMPILED = [
    *(
        "graphmill.storage.external_sort.bucket_kernels",
        "graphmill.core.counter_kernels",
        "graphmill.storage.graph_sets.packing_kernels",
    ),
    *("graphmill.storage.partitioning.greedy_kernels", "graphmill.storage.synthetic.products_like_kernels"),
]

with atheris.instrument_imports(
    include=[
        "storage",
        "graphmill.cluster.checkpoints.checkpoint",
        "graphmill.jobs.convert_checkpoint",
        "graphmill.jobs.run",
        "graphmill.jobs.reporting.run_report",
    ],
    exclude=_COMPILED,
):
    for module in _READERS:
        importlib.import_module(module)
    from tests.fuzz.targets import TARGETS, read_or_refused


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=list(TARGETS))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--corpus", type=Path, default=None, help="default: tests/fuzz/corpus/<target>")
    config = parser.parse_args()
    corpus = config.corpus or Path(__file__).parent / "corpus" / config.target
    corpus.mkdir(parents=True, exist_ok=True)
    logging.disable(logging.CRITICAL)
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        seeds, run = TARGETS[config.target].prepare(Path(folder))
        for index, seed in enumerate(seeds):
            (corpus / f"seed-{index}").write_bytes(seed)
        options = ["-timeout=20", "-rss_limit_mb=2048", f"-max_total_time={int(config.minutes * 60)}", "-max_len=8192"]
        atheris.Setup([sys.argv[0], str(corpus), *options], lambda data: read_or_refused(run, data) and None)
        atheris.Fuzz()  # ends the process


if __name__ == "__main__":
    main()
