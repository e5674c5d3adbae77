"""Compares the ingestion of edge tables to the bare parsers of the same files: `python -m benchmarks tables`.

    python -m benchmarks tables                          # 4M edges, about half a minute
    python -m benchmarks tables --edges 40000000         # a larger table

Writes a table of two columns of ids, as CSV and as Parquet, and measures by turns in one process, --rounds times: ingestion into --partitions random
partitions; pyarrow's parser alone, on one thread; Polars' parser, on one thread; for CSV, also a compiled loop that reads the numbers and does nothing
else, and the same loop in C if a compiler is there. The rate of ingestion is the margin: from --edges edges to a fortieth of them, so that its fixed
cost does not count. Then the command `graphmill ingest` runs on 100 edges, by turns with a process that only imports the same packages; the difference
is the fixed cost. You should see two tables, which are also written to results.md and results.json under --out. Rates are medians, per CPU second of
the process with all its threads, so that other work on the machine disturbs them little.
"""

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphmill.core.errors import ConfigError
from graphmill.core.option_checks import Count, check_fields
from graphmill.jobs.bench.results import check_results, keep, machine, table
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse

_TIMEOUT_S = 600.0
_SMALL_SHARE = 40  # the small table has this part of the edges
_IMPORTS = "import fsspec, numba, numpy, pyarrow.compute, pyarrow.csv, pyarrow.parquet"
_C_LOOP = """
long read_numbers(const unsigned char *text, long size, long *columns, long lines) {
    long i = 0, line = 0;
    for (; line < lines && i < size; line++)
        for (int field = 0; field < 2; field++) {
            long value = 0;
            while (i < size && (unsigned char)(text[i] - '0') <= 9) value = value * 10 + (text[i++] - '0');
            columns[field * lines + line] = value;
            i++;
        }
    return line;
}
"""


@dataclass(frozen=True)
class BenchTablesConfig:
    """Time the ingestion of edge tables against the parsers of the same files."""

    nodes: Count = 1_000_000
    """Nodes of the graph."""
    edges: Count = 4_000_000
    """Edges of the table."""
    partitions: Count = 4
    """Partitions of the stored graph."""
    rounds: Count = 5
    """Number of rounds."""
    out: Path = Path("runs/bench-tables")
    """Folder of the tables."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.edges < 10 * _SMALL_SHARE:
            raise ConfigError(f"edges: expected at least {10 * _SMALL_SHARE}, got {self.edges}; raise --edges")


def cpu_s(work: Callable[[], object]) -> float:
    """CPU seconds of this process, with all its threads, during `work`."""
    began = time.process_time()
    work()
    return time.process_time() - began


def write_tables(config: BenchTablesConfig, folder: Path) -> dict[str, Path]:
    """Writes big.csv, big.parquet, small.csv and small.parquet."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pa_parquet

    rng, paths = np.random.default_rng(0), {}
    for size, count in (("big", config.edges), ("small", config.edges // _SMALL_SHARE)):
        ends = pa.table({name: rng.integers(0, config.nodes, count) for name in ("src", "dst")})
        for kind in ("csv", "parquet"):
            paths[f"{size}.{kind}"] = folder / f"{size}.{kind}"
        pa_csv.write_csv(ends, paths[f"{size}.csv"], pa_csv.WriteOptions(quoting_style="none"))
        pa_parquet.write_table(ends, paths[f"{size}.parquet"])
    return paths


def ingest_table(path: Path, config: BenchTablesConfig, folder: Path) -> str:
    """Ingests a table, and returns the content hash of the stored graph."""
    from graphmill.storage.importers.tables.edge_list import EdgeListGraph
    from graphmill.storage.ingestion.ingest import ingest
    from graphmill.storage.ingestion.ingest_options import IngestOptions

    shutil.rmtree(folder / "graph", ignore_errors=True)
    options = IngestOptions(num_partitions=config.partitions, partitioner="random")
    return ingest(EdgeListGraph(path), str(folder / "graph"), options).content_hash


def parsers(path: Path, folder: Path) -> dict[str, Callable[[], object] | None]:
    """Functions that only parse the table, by name. None: the parser is not installed."""
    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pa_parquet

    read_csv, read_parquet = _polars_readers(path)
    if path.suffix == ".parquet":
        return {"pyarrow": lambda: pa_parquet.read_table(path, use_threads=False), "Polars": read_parquet}
    return {
        "pyarrow": lambda: pa_csv.read_csv(path, pa_csv.ReadOptions(use_threads=False)),
        "Polars": read_csv,
        "compiled loop": lambda: _compiled_loop(path),
        "loop in C": _c_loop(path, folder),
    }


def _polars_readers(path: Path) -> tuple[Callable[[], object] | None, Callable[[], object] | None]:
    os.environ.setdefault("POLARS_MAX_THREADS", "1")  # Polars reads this when it is imported
    try:
        import polars
    except ImportError:
        return None, None
    return lambda: polars.read_csv(path), lambda: polars.read_parquet(path)


def _compiled_loop(path: Path) -> object:
    import numpy as np

    from graphmill.storage.importers.columns.whole_number_kernels import count_lines, read_whole_numbers

    text = np.fromfile(path, np.uint8)
    rows = text[int(np.argmax(text == ord("\n"))) + 1 :]
    columns = np.empty((2, count_lines(rows)), np.int64)
    return read_whole_numbers(rows, ord(","), columns)


def _c_loop(path: Path, folder: Path) -> Callable[[], object] | None:
    """The loop in C, compiled with -O3. None without a compiler."""
    import ctypes

    import numpy as np

    compiler = shutil.which("cc")
    if compiler is None:
        return None
    source, library = folder / "loop.c", folder / "loop.so"
    source.write_text(_C_LOOP)
    subprocess.run([compiler, "-O3", "-shared", "-fPIC", "-o", library, source], check=True, timeout=_TIMEOUT_S)
    read_numbers = ctypes.CDLL(str(library)).read_numbers

    def read() -> object:
        text = np.fromfile(path, np.uint8)
        rows = text[int(np.argmax(text == ord("\n"))) + 1 :]
        lines = int(np.count_nonzero(rows == ord("\n")))
        columns = np.empty((2, lines), np.int64)
        address, into = (ctypes.c_void_p(array.ctypes.data) for array in (rows, columns))
        return read_numbers(address, ctypes.c_long(len(rows)), into, ctypes.c_long(lines))

    return read


def measure_rates(config: BenchTablesConfig, folder: Path) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Returns a row for each kind of table and reader, with million edges per CPU second, and the stored graph's content hash for each kind of table."""
    paths, rows, hashes = write_tables(config, folder), [], {}
    for kind in ("csv", "parquet"):
        big, small = paths[f"big.{kind}"], paths[f"small.{kind}"]
        readers = parsers(big, folder)
        ingest_table(small, config, folder)  # compiles the loops
        rates: dict[str, list[float]] = {name: [] for name in ("ingestion", *readers)}
        for _ in range(config.rounds):
            whole, little = (cpu_s(lambda path=path: ingest_table(path, config, folder)) for path in (big, small))  # type: ignore[misc]
            rates["ingestion"].append((config.edges - config.edges // _SMALL_SHARE) / max(whole - little, 1e-9) / 1e6)
            for name, read in readers.items():
                if read is not None:
                    rates[name].append(config.edges / max(cpu_s(read), 1e-9) / 1e6)
        hashes[kind] = ingest_table(big, config, folder)
        for name, some in rates.items():
            ratios = [ours / theirs for ours, theirs in zip(rates["ingestion"], some, strict=False)]
            rows.append(
                {
                    "table": kind,
                    "reader": name,
                    "M edges per CPU s": statistics.median(some) if some else None,
                    "ingestion / reader": statistics.median(ratios) if some and name != "ingestion" else None,
                    "note": "" if some else "not installed",
                }
            )
    return rows, hashes


def _child_cpu_s(words: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=_TIMEOUT_S)
    if done.returncode:
        raise ConfigError(f"{' '.join(words)} failed: {' '.join(done.stderr.strip().splitlines()[-1:])}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure_fixed(config: BenchTablesConfig, folder: Path) -> dict[str, float]:
    """CPU seconds of the command on 100 edges, of the imports alone, and the difference. Medians."""
    (folder / "tiny.csv").write_text("src,dst\n" + "".join(f"{i},{i * 7 % 100}\n" for i in range(100)))
    seconds: dict[str, list[float]] = {"command on 100 edges": [], "imports alone": []}
    for _ in range(config.rounds + 1):  # the first round is not counted
        shutil.rmtree(folder / "tiny", ignore_errors=True)
        words = ["-m", "graphmill", "ingest", str(folder / "tiny.csv"), str(folder / "tiny")]
        seconds["command on 100 edges"].append(_child_cpu_s(words))
        seconds["imports alone"].append(_child_cpu_s(["-c", _IMPORTS]))
    medians = {name: statistics.median(some[1:]) for name, some in seconds.items()}
    whole, imports = medians.values()
    return medians | {"fixed cost beyond imports": whole - imports}


def main() -> None:
    config = parse(BenchTablesConfig, __doc__)
    check_results(config.out)
    on = machine()
    with tempfile.TemporaryDirectory(prefix="graphmill-bench-") as name:
        rows, hashes = measure_rates(config, Path(name))
        fixed = measure_fixed(config, Path(name))
    columns = {"table": "", "reader": "", "M edges per CPU s": ".2f", "ingestion / reader": ".2f", "note": ""}
    lines = [f"{config.nodes:,} nodes, {config.edges:,} edges, {config.rounds} rounds; {on}", ""]
    lines += [*table(columns, rows), "", *table({"fixed": "", "CPU s": ".2f"}, fixed.items())]
    text = "\n".join(lines)
    keep(config.out, config, text, machine=on, rows=rows, fixed=fixed, content_hashes=hashes)
    print(text)


if __name__ == "__main__":
    run(main)
