"""Measures the speed of featurisation, ingestion and batching of molecules: `python -m benchmarks molecules --table qm9.csv.gz --targets gap_eV`.

    python -m benchmarks molecules                          # generated molecules, about half a minute
    python -m benchmarks molecules --table qm9.csv.gz --targets gap_eV --workers 1 2

Measures five things on the same molecules: RDKit's parser alone; OGB's `smiles2graph` alone; Graphmill's featurisation; complete ingestion
(reading, featurising, writing) with each number of workers, without the start of Ray; batches from Arrow files on one core. You should see a table
with the time that PCQM4Mv2's 3,746,620 rows would take. It is written to results.md and results.json under --out. Every figure is the best of
--rounds rounds. Run nothing else at the same time. Rates of a single process are per second of the process's CPU time.
"""

import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from graphmill.core.option_checks import Count, check_fields
from graphmill.jobs.bench.device import seconds_of
from graphmill.jobs.bench.results import check_results, keep, machine, table
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse

if TYPE_CHECKING:
    from graphmill.storage.molecules.molecule_source import MoleculeSource

PCQM4MV2_ROWS = 3_746_620
_RDKIT, _OGB = "RDKit's parser alone, one core", "smiles2graph alone, one core"


@dataclass(frozen=True)
class BenchMoleculesConfig:
    """Time featurisation, ingestion and batching of molecules."""

    table: str | None = None
    """A table of SMILES. Default: generated molecules."""
    targets: tuple[str, ...] = ()
    """The table's target columns."""
    molecules: Count = 5000
    """Number of molecules to featurise in each round, taken from the source at equal distances. Ingestion and batches use all molecules."""
    workers: tuple[Count, ...] = (1, 2)
    """Numbers of workers to time."""
    batch_graphs: Count = 256
    """Molecules in one batch."""
    rounds: Count = 3
    """Number of rounds; the best round counts."""
    out: Path = Path("runs/bench_molecules")
    """Directory for results.md and results.json."""

    def __post_init__(self) -> None:
        check_fields(self)


def best_rate(
    count: int, rounds: int, work: Callable[[], object], clock: Callable[[], float] = time.process_time
) -> float:
    """Returns the units per second in the fastest round."""
    return count / min(seconds_of(work, "cpu", clock) for _ in range(rounds))


def time_featurisation(source: "MoleculeSource", config: BenchMoleculesConfig) -> dict[str, float]:
    """Returns the molecules per second of one core for RDKit's parser, OGB's function and Graphmill's featurisation."""
    import numpy as np
    from ogb.utils.mol import smiles2graph
    from rdkit import Chem
    from rdkit.rdBase import BlockLogs

    from graphmill.storage.molecules.molecule_source import MoleculeRows
    from graphmill.storage.molecules.smiles_features import Featuriser

    smiles = [each for rows in source.chunks(2000) for each in rows.smiles]
    smiles = smiles[:: max(1, len(smiles) // config.molecules)][: config.molecules]
    count, number, featuriser = len(smiles), np.arange(len(smiles)), Featuriser()
    target, split = np.zeros((count, 0), np.float32), np.zeros(count, np.int8)
    everything = MoleculeRows(index=0, row=number, line=number, smiles=smiles, target=target, split=split)
    refused = {reject.text for reject in featuriser.featurise(everything).rejects}
    readable = [each for each in smiles if each not in refused]  # OGB's function fails on the refused molecules
    work: dict[str, tuple[int, Callable[[], object]]] = {
        _RDKIT: (count, lambda: [Chem.MolFromSmiles(each) for each in smiles]),
        _OGB: (len(readable), lambda: [smiles2graph(each) for each in readable]),
        "our featurisation, one core": (count, lambda: featuriser.featurise(everything)),
    }
    best_s = dict.fromkeys(work, float("inf"))
    with BlockLogs():
        for _ in range(config.rounds):  # all take turns, so that a slow moment affects all of them
            for name, (_, call) in work.items():
                best_s[name] = min(best_s[name], seconds_of(call, "cpu", time.process_time))
    return {name: number / best_s[name] for name, (number, _) in work.items()}


def time_ingestion(source: "MoleculeSource", config: BenchMoleculesConfig, folder: Path) -> dict[str, float]:
    """Returns the rows per wall second from the table to the published directory. Ray and its workers have already started."""
    from graphmill.cluster.ingestion.molecules import ingest_molecules
    from graphmill.cluster.options import MoleculeIngestOptions, SessionOptions
    from graphmill.cluster.ray.session import ray_session

    rates = {}
    count = sum(len(rows.row) + len(rows.rejects) for rows in source.chunks(2000))
    for workers in config.workers:
        options = MoleculeIngestOptions(workers=workers, chunk_rows=1000, overwrite=True)

        def ingest(options: MoleculeIngestOptions = options) -> None:
            ingest_molecules(source, str(folder / f"by{options.workers}"), options)

        with ray_session(SessionOptions(address="local", num_cpus=workers)) if workers > 1 else nullcontext():
            ingest()
            rate = best_rate(count, config.rounds, ingest, time.perf_counter)
        rates[f"ingestion as a whole, {workers} worker(s)"] = rate
    return rates


def time_batches(url: str, config: BenchMoleculesConfig) -> dict[str, float]:
    """Returns the molecules per second at which one core makes batches from mapped Arrow files."""
    from graphmill.samplers.methods.graph_batches import GraphBatchSampler
    from graphmill.samplers.vocabulary.options import GraphBatchOptions
    from graphmill.storage.graph_sets.graph_set import open_graphs

    graphs = open_graphs(url)
    sampler = GraphBatchSampler(graphs, GraphBatchOptions(max_graphs=config.batch_graphs))
    epochs = iter(range(config.rounds + 1))

    def epoch() -> None:
        number = next(epochs)
        for batch in range(sampler.num_batches):
            sampler.sample(number, batch)

    epoch()  # this epoch compiles the loops, and reads the files' pages into memory
    return {f"batches of {config.batch_graphs} from Arrow, one core": best_rate(len(graphs), config.rounds, epoch)}


def describe(rates: dict[str, float], name: str) -> str:
    """Returns the table as Markdown."""
    rows = []
    for title, rate in rates.items():
        ratios = [None if title.startswith("batches") else rate / rates[other] for other in (_OGB, _RDKIT)]
        rows.append((title, rate, *ratios, PCQM4MV2_ROWS / rate / 60))
    columns = {"measure": "", "molecules/s": ",.0f", "against smiles2graph alone": ".2f", "against RDKit alone": ".2f"}
    columns |= {f"minutes of PCQM4Mv2 ({PCQM4MV2_ROWS:,})": ".1f"}
    return "\n".join([f"Molecules of {name}; {machine()}", "", *table(columns, rows)])


def main() -> None:
    config = parse(BenchMoleculesConfig, __doc__)
    from graphmill.storage.molecules.enumerated_molecules import EnumeratedMolecules
    from graphmill.storage.molecules.smiles import SmilesTable
    from graphmill.storage.molecules.smiles_options import AUTO, SmilesOptions

    check_results(config.out)
    source: MoleculeSource = EnumeratedMolecules(config.molecules)
    if config.table is not None:
        source = SmilesTable(config.table, SmilesOptions(targets=config.targets or (AUTO,)))
    with tempfile.TemporaryDirectory(prefix="graphmill-bench-") as folder:
        rates = time_featurisation(source, config) | time_ingestion(source, config, Path(folder))
        rates |= time_batches(str(Path(folder) / f"by{config.workers[0]}"), config)
    text = describe(rates, source.info.name)
    keep(config.out, config, text, source=source.info.name, rates=rates)
    print(text)


if __name__ == "__main__":
    run(main)
