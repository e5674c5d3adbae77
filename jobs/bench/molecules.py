"""How fast molecules become graphs, and graphs batches: `python -m jobs.bench molecules --table qm9.csv.gz --targets gap_eV`.

    python -m jobs.bench molecules                          # molecules by rule, about half a minute
    python -m jobs.bench molecules --table qm9.csv.gz --targets gap_eV --workers 1 2

Times, on the same molecules: RDKit's parser alone, OGB's `smiles2graph` alone, our featurisation, ingestion as a whole (reading,
featurising, writing) by each number of workers without Ray's start, and batches from Arrow files on one core. You should see a table,
kept as results.md and results.json under --out, with what PCQM4Mv2's 3,746,620 rows would take. Every figure is the best of
--rounds rounds; nothing else should run meanwhile. Rates of one process are per second of its own processor time.
"""

import functools
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.run.exit_codes import run
from jobs.run.option_checks import all_at_least_1, at_least, check_writable
from jobs.run.reader import parse

if TYPE_CHECKING:
    from storage.molecule_source import MoleculeSource

PCQM4MV2_ROWS = 3_746_620


@dataclass(frozen=True)
class BenchMoleculesConfig:
    """Time featurisation, ingestion and batching of molecules."""

    table: str | None = None
    """A table of SMILES; default: molecules by rule."""
    targets: tuple[str, ...] = ()
    """The table's target columns."""
    molecules: int = 5000
    """Molecules to featurise in each round, drawn evenly from the source; ingestion and batches take all."""
    workers: tuple[int, ...] = (1, 2)
    """Numbers of workers to time."""
    batch_graphs: int = 256
    """Molecules in one batch."""
    rounds: int = 3
    """Rounds; the best counts."""
    out: str = "runs/bench_molecules"
    """Directory for results.md and results.json."""

    def __post_init__(self) -> None:
        for name in ("molecules", "batch_graphs", "rounds"):
            at_least(self, name, 1)
        all_at_least_1(self, "workers")


def best_rate(count: int, rounds: int, work: Callable[[], object], clock: Callable[[], float]) -> float:
    """Units per second in the fastest round."""
    times = []
    for _ in range(rounds):
        start_s = clock()
        work()
        times.append(clock() - start_s)
    return count / min(times)


def time_featurisation(source: "MoleculeSource", config: BenchMoleculesConfig) -> dict[str, float]:
    """Molecules per second of one core: RDKit's parser, OGB's function, ours."""
    import numpy as np
    from ogb.utils.mol import smiles2graph
    from rdkit import Chem
    from rdkit.rdBase import BlockLogs

    from storage.molecule_features import Featuriser
    from storage.molecule_source import MoleculeRows

    smiles = [each for rows in source.chunks(2000) for each in rows.smiles]
    smiles = smiles[:: max(1, len(smiles) // config.molecules)][: config.molecules]
    count, featuriser = len(smiles), Featuriser()
    everything = MoleculeRows(
        index=0,
        row=np.arange(count),
        line=np.arange(count),
        smiles=smiles,
        target=np.zeros((count, 0), np.float32),
        split=np.zeros(count, np.int8),
    )
    refused = {reject.text for reject in featuriser.featurise(everything).rejects}
    readable = [each for each in smiles if each not in refused]  # OGB's function fails on the others
    with BlockLogs():
        works: dict[str, Callable[[], object]] = {
            "parse": lambda: [Chem.MolFromSmiles(each) for each in smiles],
            "smiles2graph": lambda: [smiles2graph(each) for each in readable],
            "featurise": lambda: featuriser.featurise(everything),
        }
        counts = {"parse": count, "smiles2graph": len(readable), "featurise": count}
        return {name: best_rate(counts[name], config.rounds, work, time.process_time) for name, work in works.items()}


def time_ingestion(source: "MoleculeSource", config: BenchMoleculesConfig, folder: Path) -> dict[str, float]:
    """Rows per second by the clock, from the table to the published directory; Ray is up and its workers have started."""
    from contextlib import nullcontext

    from cluster.molecule_ingest import MoleculeIngestOptions, ingest_molecules
    from cluster.options import SessionOptions
    from cluster.session import ray_session

    rates = {}
    count = sum(len(rows.row) + len(rows.rejects) for rows in source.chunks(2000))
    for workers in config.workers:
        options = MoleculeIngestOptions(workers=workers, chunk_rows=1000, overwrite=True)
        ingest = functools.partial(ingest_molecules, source, str(folder / f"by{workers}"), options)
        with ray_session(SessionOptions(address="local", num_cpus=workers)) if workers > 1 else nullcontext():
            ingest()
            rates[f"ingest_{workers}"] = best_rate(count, config.rounds, ingest, time.perf_counter)
    return rates


def time_batches(url: str, config: BenchMoleculesConfig) -> float:
    """Molecules per second of one core in batches, from Arrow files that are mapped."""
    from samplers.graph_batches import GraphBatchSampler
    from samplers.options import GraphBatchOptions
    from storage.graph_store import open_graphs

    graphs = open_graphs(url)
    sampler = GraphBatchSampler(graphs, GraphBatchOptions(max_graphs=config.batch_graphs))
    for batch in range(sampler.num_batches):  # compiles, and reads the pages in
        sampler.sample(0, batch)
    epochs = iter(range(1, config.rounds + 1))

    def epoch() -> None:
        number = next(epochs)
        for batch in range(sampler.num_batches):
            sampler.sample(number, batch)

    return best_rate(len(graphs), config.rounds, epoch, time.process_time)


def describe(rates: dict[str, float], config: BenchMoleculesConfig, name: str) -> str:
    """The table as Markdown."""
    ogb = rates["smiles2graph"]
    lines = [
        f"Molecules of {name}; {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "",
        "| measure | molecules/s | against smiles2graph alone | PCQM4Mv2 (3,746,620) |",
        "|---|---|---|---|",
    ]
    names = {
        "parse": "RDKit's parser alone, one core",
        "smiles2graph": "smiles2graph alone, one core",
        "featurise": "our featurisation, one core",
        **{f"ingest_{each}": f"ingestion as a whole, {each} worker(s)" for each in config.workers},
        "batches": f"batches of {config.batch_graphs} from Arrow, one core",
    }
    for key, title in names.items():
        took = PCQM4MV2_ROWS / rates[key]
        against = "" if key == "batches" else f"{rates[key] / ogb:.2f}"
        lines.append(f"| {title} | {rates[key]:,.0f} | {against} | {took / 60:.1f} min |")
    return "\n".join(lines) + "\n"


def main() -> int | None:
    config = parse(BenchMoleculesConfig, __doc__)
    from storage.importers.enumerated_molecules import EnumeratedMolecules
    from storage.importers.smiles import SmilesTable
    from storage.importers.smiles_options import SmilesOptions

    check_writable(Path(config.out), "--out")
    source: MoleculeSource = (
        EnumeratedMolecules(config.molecules)
        if config.table is None
        else SmilesTable(config.table, SmilesOptions(targets=config.targets))
    )
    with tempfile.TemporaryDirectory(prefix="graphmill-bench-") as folder:
        rates = time_featurisation(source, config) | time_ingestion(source, config, Path(folder))
        rates["batches"] = time_batches(str(Path(folder) / f"by{config.workers[0]}"), config)
    text = describe(rates, config, source.info.name)
    out = Path(config.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.md").write_text(text)
    (out / "results.json").write_text(json.dumps({"source": source.info.name, "rates": rates}, indent=1) + "\n")
    print(text)
    return None


if __name__ == "__main__":
    run(main)
