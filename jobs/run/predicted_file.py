"""Stores a user's file of edges, typed tables or SMILES below the folder of predictions, with the ingestion options of the run's own file."""

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from graphmill.core.errors import ConfigError
from graphmill.jobs.cli.progress import progress
from graphmill.jobs.config.predict_options import FILE_OPTIONS, PredictConfig
from graphmill.jobs.ingest import IngestConfig, IngestMoleculesConfig, ingest_graph, ingest_set, is_typed
from graphmill.jobs.records.run_record import Run
from graphmill.storage.filesystem.urls import absolute_url, split_url
from graphmill.storage.format.manifest import EDGE, Manifest
from graphmill.storage.graph import PLAIN_OR_TYPED, open_graph
from graphmill.storage.importers.tables.edge_list_options import EDGE_ENDINGS
from graphmill.storage.importers.tables.table_files import table_files
from graphmill.storage.importers.tables.typed_tables import read_tables, tables_file
from graphmill.storage.molecules.smiles import SmilesTable
from graphmill.storage.molecules.smiles_options import AUTO, TABLE_ENDINGS, SmilesOptions
from graphmill.storage.predictions import DATA, SOURCE, PredictionFolder
from graphmill.storage.snapshots.snapshots import has_graph

_ENDINGS = (*EDGE_ENDINGS, *TABLE_ENDINGS, ".npz")


def store_file(run: Run, config: PredictConfig) -> PredictConfig:
    """Returns the options, in which the stored graph or set replaces the file that `graph` names. Unchanged if `graph` names no file. Raises the errors of
    ingestion."""
    path, edges = config.graph, config.edge_list
    if path is None or has_graph(path) or not _is_file(path):
        options = [name for name, default in FILE_OPTIONS.items() if getattr(config, name) != default]
        if options:
            raise ConfigError(f"{options[0]}: expected a file as --graph, got {path or 'no --graph'}; leave it out")
        return config
    if config.plan:
        raise ConfigError(f"{path}: --plan writes nothing, and a file is stored first; ingest it, and plan with that")
    folder = PredictionFolder(absolute_url(config.out))
    url, digest = f"{folder.url}/{DATA}", _digest(run, path, config)
    if folder.has_source(digest) and has_graph(url):
        print(f"{path} is stored at {url}", flush=True)
        return replace(config, graph=url, other_graph=True)
    with progress(f"storing {path}") as bar:
        if run.is_graph_set:
            table = _with_targets(path, config.table, tuple(run.state.identity["targets"]))
            source = IngestMoleculesConfig(
                source=f"smiles:{path}", url=url, overwrite=True, table=table, ray=config.ray
            )
            _, _, written, more = ingest_set(source, bar.stage)
        else:
            own = open_graph(run.data_url, run.snapshot, kind=PLAIN_OR_TYPED).manifest
            typed, reverse = is_typed(path), config.reverse_edges
            if own.is_typed != (typed and _has_types(path)):
                tables = (
                    "a .yaml file that names tables of several types" if own.is_typed else "tables of one type of nodes"
                )
                raise ConfigError(f"{path}: expected {tables}, as the run's graph has, got others; set --graph")
            if own.is_typed and reverse == "auto" and own.provenance.get("reverse_edges_added") == "true":
                reverse = "add"
            learnt = typed or own.feature_columns or own.class_names
            if learnt and edges.features_as is None:
                edges = replace(edges, features_as=run.data_url)
                if _learnt(newest := open_graph(run.data_url, kind=PLAIN_OR_TYPED).manifest) != _learnt(own):
                    raise ConfigError(
                        f"{run.data_url}: expected what the run's snapshot {run.snapshot} learnt of its tables, got snapshot {newest.snapshot}, with other categories or means; "
                        "store the file by a graph as the run's was, and name it with --graph and --other-graph"
                    )
            graph = IngestConfig(source=path, url=url, partitions=1, overwrite=True, edge_list=edges)
            _, _, written, more = ingest_graph(replace(graph, reverse_edges=reverse), bar.stage)
            stored = open_graph(url, kind=PLAIN_OR_TYPED).manifest.edge_types
            lost = lambda name: own.edge_types[name].has_edge_weight > stored[name].has_edge_weight  # noqa: E731
            if bare := [name for name in own.edge_types if name in stored and lost(name)]:
                named = f"of {', '.join(map(str, bare))}, weight: in {path}" if own.is_typed else "--edge-list.weight"
                print(f"the run's graph has weights of edges, this table's are not named: {named}", flush=True)
            if own.symmetric and not stored[EDGE].symmetric:
                more = (
                    "warning: the run's graph has every edge's reverse, this one has not; store it as that one was, with "
                    "--edge-list.undirected-once or --reverse-edges add"
                )
    folder.write_json(SOURCE, {"digest": digest})
    print(f"{written}\n{more}", flush=True)
    return replace(config, graph=url, other_graph=True)


def _is_file(path: str) -> bool:
    """Whether the path is a table, a glob, or a folder of part files."""
    parts = (each.name for each in Path(path).glob("*"))
    return (
        path.endswith(_ENDINGS)
        or is_typed(path)
        or any(mark in path for mark in "*?[")
        or any(name.endswith(_ENDINGS) for name in parts)
    )


def _learnt(manifest: Manifest) -> dict[str, Any]:
    return {name: (row.feature_columns, row.class_names) for name, row in manifest.node_types.items()}


def _has_types(path: str) -> bool:
    """Whether a file of typed tables names several types or relations. Otherwise it describes a plain graph."""
    nodes, relations, _ = read_tables(tables_file(path))
    return len(nodes) > 1 or len(relations) > 1


def _digest(run: Run, path: str, config: PredictConfig) -> str:
    """Digest of the contents of all data files (without their names), of the run, of the options, and of the earlier graph that determines how the data is read
    (by default the run's graph)."""
    edges, table = asdict(config.edge_list), asdict(config.table)
    files, earlier = {"": path}, edges.pop("features_as")
    if is_typed(path):
        files[""] = str(file := tables_file(path))
        nodes, relations, said = read_tables(file)
        named = [(each.file, each.features) for each in nodes.values()] + [(each.file,) for each in relations.values()]
        files |= {name: str(file.parent / name) for names in named for name in names if isinstance(name, str)}
        earlier = said or earlier
    for options, roles in (
        (edges, ("nodes", "ids", "features", "labels", "splits", "node_times")),
        (table, ("split_file",)),
    ):
        files |= {role: at for role in roles if (at := options.pop(role)) is not None}
    identity: dict[str, Any] = {
        "edge_list": edges,
        "table": table,
        "reverse_edges": config.reverse_edges,
        "run": run.weights_hash,
    }
    if not run.is_graph_set:
        identity["earlier"] = open_graph(earlier or run.data_url, kind=PLAIN_OR_TYPED).manifest.content_hash
    digest = hashlib.sha256(json.dumps(identity).encode())
    for role, name in files.items():
        for each in table_files(name, ("",)):
            filesystem, place = split_url(each.name)
            with filesystem.open(place, "rb") as stream:
                digest.update(f"{role} {hashlib.file_digest(stream, 'sha256').hexdigest()}".encode())
    return digest.hexdigest()


def _with_targets(path: str, table: SmilesOptions, targets: tuple[str, ...]) -> SmilesOptions:
    """The options with the run's targets, if the user names no targets and the table has them. Otherwise the options have no targets; no column is guessed to
    be a target."""
    if table.targets != (AUTO,):
        return table
    try:
        SmilesTable(path, named := replace(table, targets=targets))
    except ConfigError:
        return replace(table, targets=())
    return named
