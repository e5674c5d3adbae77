"""A user's file that is to be predicted, of edges or of SMILES: it is stored below the folder of predictions first, and read as the run's own was."""

from dataclasses import replace
from pathlib import Path

from graphmill.core.errors import ConfigError
from graphmill.jobs.cli.progress import progress
from graphmill.jobs.config.predict_options import FILE_OPTIONS, PredictConfig
from graphmill.jobs.ingest import IngestConfig, IngestMoleculesConfig, ingest_graph, ingest_set
from graphmill.jobs.records.run_record import Run
from graphmill.storage.filesystem.urls import absolute_url
from graphmill.storage.graph import PLAIN_OR_TYPED, StoredGraph, open_graph
from graphmill.storage.importers.tables.edge_list_options import EDGE_ENDINGS
from graphmill.storage.molecules.smiles import SmilesTable
from graphmill.storage.molecules.smiles_options import AUTO, TABLE_ENDINGS, SmilesOptions
from graphmill.storage.predictions import DATA, PredictionFolder
from graphmill.storage.snapshots.snapshots import has_graph

_ENDINGS = (*EDGE_ENDINGS, *TABLE_ENDINGS, ".npz")


def store_file(run: Run, config: PredictConfig) -> PredictConfig:
    """With the file that `graph` names as a stored graph or set; unchanged where it names none. Raises what ingestion raises of the file."""
    path, edges = config.graph, config.edge_list
    if path is None or has_graph(path) or not _is_file(path):
        given = [name for name, default in FILE_OPTIONS.items() if getattr(config, name) != default]
        if given:
            raise ConfigError(f"{given[0]}: expected a file as --graph, got {path or 'no --graph'}; leave it out")
        return config
    if config.plan:
        raise ConfigError(f"{path}: --plan writes nothing, and a file is stored first; ingest it, and plan with that")
    folder = PredictionFolder(absolute_url(config.out))
    folder.check_place()
    url = f"{folder.url}/{DATA}"
    with progress(f"storing {path}") as bar:

        def report(stage: str, done: int, total: int | None) -> None:
            bar.update(done, None if total is None else max(done, total), stage)

        if run.is_graph_set:
            table = _with_targets(path, config.table, tuple(run.state.identity["targets"]))
            source = IngestMoleculesConfig(
                source=f"smiles:{path}", url=url, overwrite=True, table=table, ray=config.ray
            )
            _, _, written, more = ingest_set(source, report)
        else:
            own = open_graph(run.data_url, run.snapshot, kind=PLAIN_OR_TYPED).manifest
            if own.has_edge_weight and edges.weight is None:
                print(
                    "the run's graph has weights of edges, this table's are not named: --edge-list.weight", flush=True
                )
            learnt = own.feature_columns or own.class_names
            if learnt and edges.features_as is None:
                edges = replace(edges, features_as=run.data_url)
            graph = IngestConfig(source=path, url=url, partitions=1, overwrite=True, edge_list=edges)
            _, _, written, more = ingest_graph(replace(graph, reverse_edges=config.reverse_edges), report)
            if own.symmetric and not open_graph(url, kind=StoredGraph).manifest.symmetric:
                more = (
                    "warning: the run's graph has every edge's reverse, this one has not; store it as that one was, with "
                    "--edge-list.undirected-once or --reverse-edges add"
                )
    print(f"{written}\n{more}", flush=True)
    return replace(config, graph=url, other_graph=True)


def _is_file(path: str) -> bool:
    """Whether it is a table, a glob, or a folder of part files."""
    parts = (each.name for each in Path(path).glob("*"))
    return (
        path.endswith(_ENDINGS) or any(mark in path for mark in "*?[") or any(one.endswith(_ENDINGS) for one in parts)
    )


def _with_targets(path: str, table: SmilesOptions, targets: tuple[str, ...]) -> SmilesOptions:
    """With the run's targets where nobody says others, if the table has them; else with none: nothing is guessed to be one."""
    if table.targets != (AUTO,):
        return table
    try:
        SmilesTable(path, named := replace(table, targets=targets))
    except ConfigError:
        return replace(table, targets=())
    return named
