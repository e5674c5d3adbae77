"""Writes molecules as graphs with OGB's features: `python jobs/ingest_molecules.py <source> <url> --workers 2`.

    python jobs/ingest_molecules.py embedded runs/molecules                        # 3,000 molecules by rule, about 3 s
    python jobs/ingest_molecules.py qm9.csv.gz runs/qm9 --table.targets gap_eV     # SMILES and targets, hashed split 80/10/10
    python jobs/ingest_molecules.py hiv.csv.gz runs/hiv --table.split-file split.npz
    python jobs/ingest_molecules.py pcqm4mv2 s3://bucket/pcqm4mv2 --root data/ogb --workers 16

You should see progress, then what was written: graphs, atoms, bonds, the parts of the split, and how many rows were rejected, with
the first reasons; a rejects.csv in the snapshot lists them all. One core does about 10,000 molecules of QM9's size a second. Interrupted
(Ctrl-C, a dead machine), the same command goes on where it was. Exit code 1 and one line where the source cannot be used.
"""

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jobs.run.exit_codes import run
from jobs.run.reader import parse
from storage.errors import ConfigError
from storage.importers.smiles_options import TABLE_ENDINGS, SmilesOptions

if TYPE_CHECKING:
    from storage.graph_store import StoredGraphs
    from storage.molecule_source import MoleculeSource

_REASONS_SHOWN = 5


@dataclass(frozen=True)
class IngestMoleculesConfig:
    """Write molecules as graphs that lie at an fsspec URL."""

    source: str
    """`embedded`, `pcqm4mv2`, or a table of SMILES (.csv, .csv.gz, .tsv, .smi …) at a path or fsspec URL."""
    url: str
    """Where to write: a path, or file://, s3://, gs://. Must be absent or empty, or with --overwrite a set of graphs; never other files."""
    workers: int = 1
    """1: in this process; more: Ray tasks of one CPU each, on this machine or --address."""
    address: str | None = None
    """A running Ray cluster's host:port, or `auto`; the default starts a local Ray where there are workers."""
    chunk_rows: int = 2000
    """Rows that one task featurises; an interruption costs at most these per worker."""
    shard_rows: int = 200_000
    """Rows of the source in one file."""
    overwrite: bool = False
    """Publish a new snapshot of the set at the url. The old ones stay, open sets too, until jobs/prune.py removes them."""
    retries: int = 3
    """How often a chunk is given to another worker when its worker dies."""
    deadline_s: float = 600.0
    """Longest wait for the next finished chunk."""
    scratch: str | None = None
    """Local directory for the files before they are published; default: in the set's folder, or the system's where the url is remote."""
    root: str = "data/ogb"
    """Where PCQM4Mv2 lies: its folder pcqm4m-v2, or the folder that has it. Nothing is downloaded."""
    count: int = 3000
    """Molecules of the embedded source, at most about 5,000."""
    table: SmilesOptions = field(default_factory=SmilesOptions)


def build_source(config: IngestMoleculesConfig) -> "MoleculeSource":
    """The source that `config.source` names. ConfigError for a name of no known kind, DataError for unusable data."""
    if config.source == "embedded":
        from storage.importers.enumerated_molecules import EnumeratedMolecules

        return EnumeratedMolecules(config.count)
    if config.source == "pcqm4mv2":
        from storage.importers.pcqm4mv2 import pcqm4mv2

        return pcqm4mv2(config.root)
    if config.source.endswith(TABLE_ENDINGS):
        from storage.importers.smiles import SmilesTable

        return SmilesTable(config.source, config.table)
    raise ConfigError(
        f"unknown source {config.source!r}: expected embedded, pcqm4mv2, or a file ending in {', '.join(TABLE_ENDINGS)}"
    )


def describe(graphs: "StoredGraphs") -> str:
    """What lies at the url, in a few lines."""
    import numpy as np

    manifest = graphs.manifest
    parts = []
    for name in graphs.split_names:
        members = graphs.split(name)
        missing = int(np.isnan(graphs.target[members]).any(axis=1).sum()) if graphs.target_names else 0
        parts.append(f"{name} {len(members):,}" + (f" ({missing:,} without target)" if missing else ""))
    return (
        f"{manifest.name}: {manifest.num_graphs:,} molecules, {manifest.num_nodes:,} atoms, {manifest.num_edges // 2:,} bonds "
        f"in {manifest.num_shards} shard(s)\nsplit: {', '.join(parts) or 'none'}; targets: {', '.join(graphs.target_names) or 'none'}"
    )


def rejected(graphs: "StoredGraphs") -> str:
    """How many rows are no graph, and why the first of them are none."""
    from storage.graph_set_manifest import REJECTS_NAME

    if not graphs.manifest.num_rejected:
        return "rejected: none"
    file = graphs.manifest.files[REJECTS_NAME].path
    lines = [f"rejected: {graphs.manifest.num_rejected:,} rows, listed in {graphs.url}/{file}; the first:"]
    lines += [f"  line {each.line}: {each.reason}: {each.text[:60]}" for each in graphs.rejects()[:_REASONS_SHOWN]]
    return "\n".join(lines)


def main() -> int | None:
    config = parse(IngestMoleculesConfig, __doc__, ("source", "url"))
    from cluster.molecule_ingest import MoleculeIngestOptions, ingest_molecules
    from cluster.options import SessionOptions
    from jobs.ingest import refuse_memory
    from jobs.run.progress import progress
    from storage.graph_store import open_graphs

    refuse_memory(config.url)
    options = MoleculeIngestOptions(
        workers=config.workers,
        chunk_rows=config.chunk_rows,
        shard_rows=config.shard_rows,
        overwrite=config.overwrite,
        retries=config.retries,
        deadline_s=config.deadline_s,
        scratch=config.scratch,
    )
    start_s = time.perf_counter()
    with progress(f"ingesting {config.source}") as bar:

        def report(stage: str, done: int, total: int | None) -> None:
            # A total is a hint: a table's lines are counted, not its rows.
            bar.update(done if total is None else min(done, total), total, stage)

        session = SessionOptions(address=config.address)
        ingest_molecules(build_source(config), config.url, options, session, report)
    elapsed_s = time.perf_counter() - start_s
    graphs = open_graphs(config.url)
    num_bytes = sum(entry.num_bytes for entry in graphs.manifest.files.values())
    print(
        f"{describe(graphs)}\n{num_bytes / 2**20:,.1f} MiB at {config.url} in {elapsed_s:.1f} s "
        f"({len(graphs) / elapsed_s:,.0f} molecules/s)\n{rejected(graphs)}"
    )
    return None


if __name__ == "__main__":
    run(main)
