"""Opens the stored molecules for `--data`: a prepared set, a table of SMILES or the embedded molecules. A table and the embedded molecules are prepared by the
first run only."""

from pathlib import Path

from graphmill.cluster.ingestion.molecules import ingest_molecules
from graphmill.core.errors import ConfigError, FormatError
from graphmill.jobs.cli.progress import progress
from graphmill.jobs.config.config import GraphSetOptions
from graphmill.jobs.data.prepare_graph import unless_another_was_first
from graphmill.storage.graph_sets.graph_set import StoredGraphs, open_graphs
from graphmill.storage.importers.public.data_sets import check_ingested
from graphmill.storage.molecules.enumerated_molecules import EnumeratedMolecules
from graphmill.storage.molecules.molecule_source import MoleculeSource
from graphmill.storage.molecules.smiles import SmilesTable
from graphmill.storage.molecules.smiles_options import TABLE_ENDINGS, SmilesOptions
from graphmill.storage.snapshots.snapshots import has_graph


def prepare_molecules(graphs: GraphSetOptions, target_name: str | None) -> StoredGraphs:
    """Opens the set that the options name. A set that the job prepares is stored in `folder`, and the next run opens it again."""
    stored = find_molecules(graphs, target_name)
    if isinstance(stored, StoredGraphs):
        return stored
    source, target = stored
    if source.info.columns:
        print(f"columns of {graphs.path}: {source.info.columns}", flush=True)
    with progress(f"preparing {target.name}") as bar, unless_another_was_first(str(target)):
        ingest_molecules(source, str(target), progress=bar.stage)
    return open_graphs(str(target))


def find_molecules(graphs: GraphSetOptions, target_name: str | None) -> StoredGraphs | tuple[MoleculeSource, Path]:
    """The stored set. If it does not exist: its source and the folder to prepare it in."""
    if graphs.path is not None and not graphs.path.endswith(TABLE_ENDINGS):
        check_ingested(graphs.path)
        return open_graphs(graphs.path, graphs.snapshot)
    source: MoleculeSource
    if graphs.molecules < 1:
        raise ConfigError(f"molecules: expected at least 1, got {graphs.molecules}; set --data.molecules")
    if graphs.path is None:
        source, name = EnumeratedMolecules(graphs.molecules), f"molecules-{graphs.molecules}"
    else:
        source = SmilesTable(
            graphs.path, SmilesOptions() if target_name is None else SmilesOptions(targets=(target_name,))
        )
        name = Path(graphs.path).name.partition(".")[0]
    target = Path(graphs.folder) / name
    if not has_graph(str(target)):
        return source, target
    stored = open_graphs(str(target), graphs.snapshot)
    if not dict(source.info.provenance).items() <= dict(stored.manifest.provenance).items():
        raise FormatError(
            f"{target}: expected the molecules {name}, found a set made of another source or by another version; "
            "remove it or pass another --data.folder"
        )
    return stored


def how_to_make(graphs: GraphSetOptions, target_name: str | None, target: Path) -> str:
    """The command that prepares the set like the first run of a job."""
    if graphs.path is None:
        return f"graphmill ingest embedded {target} --count {graphs.molecules}"
    chosen = "" if target_name is None else f" --table.targets {target_name}"
    return f"graphmill ingest smiles:{graphs.path} {target}{chosen}"
