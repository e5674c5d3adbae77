"""Writes a graph, or a set of molecules, at a URL: `python jobs/ingest.py <source> <url> --partitions 4 --partitioner ldg`.

    python jobs/ingest.py synthetic runs/synthetic                            # 20,000 nodes, about 3 s
    python jobs/ingest.py synthetic runs/big --synthetic.num-nodes 2000000
    python jobs/ingest.py ogbn-products s3://bucket/products --partitioner ldg
    python jobs/ingest.py minesweeper.npz runs/minesweeper
    python jobs/ingest.py cora runs/cora --root data/sets                      # a public set by its name: docs/guides/data_sets.md
    python jobs/ingest.py s3://bucket/products /data/products --place hosts    # each partition to the disk of a host of a Ray cluster
    python jobs/ingest.py edges.parquet runs/mine --edge-list.features x.npy --edge-list.labels y.csv
    python jobs/ingest.py tables/graph.yaml runs/typed --reverse-edges add    # several types of nodes and edges: docs/guides/typed.md
    python jobs/ingest.py synthetic-mag runs/mag --mag.scale 0.01
    python jobs/ingest.py triples:FB15k-237 runs/fb15k                         # train.txt, valid.txt, test.txt of a knowledge graph: docs/guides/knowledge_graphs.md

    python jobs/ingest.py embedded runs/molecules                              # 3,000 molecules by rule, about 3 s
    python jobs/ingest.py smiles:qm9.csv.gz runs/qm9 --table.targets gap_eV    # SMILES and targets, hashed split 80/10/10
    python jobs/ingest.py zinc runs/zinc --root data/sets                      # a public set of many graphs
    python jobs/ingest.py pcqm4mv2 s3://bucket/pcqm4mv2 --root data/ogb --workers 16

`--help` lists the options for one graph, `embedded --help` the options for molecules, `zinc --help` the options for a public set of graphs. You should see
progress, then a summary of the stored data. If the source is not valid, the command prints one line and exits with 1; for a graph, nothing is left at the URL.
Molecules: one core processes about 10,000 molecules of QM9's size a second. rejects.csv in the snapshot lists the rows that could not be read. After an
interruption the same command continues where it stopped. PyG and DGL objects are ingested from Python: `ingest(pyg_graph(data), url)`.
"""

import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from graphmill.cluster.options import MoleculeIngestOptions, SessionOptions
from graphmill.core.errors import ConfigError
from graphmill.core.option_checks import Count, Size, check_fields, check_options
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.cli.progress import progress, results
from graphmill.jobs.config.reader import complain, option_names, parse, read_words
from graphmill.storage.format.source import SPLIT_NAMES, SPLITS
from graphmill.storage.importers.public.data_sets import DATA_SETS
from graphmill.storage.importers.tables.edge_list_options import EDGE_ENDINGS, ENDINGS_SAID, EdgeListOptions
from graphmill.storage.ingestion.ingest_options import MAX_PARTITIONS, IngestOptions
from graphmill.storage.molecules.smiles_options import SmilesOptions
from graphmill.storage.splits.split_options import SplitOptions
from graphmill.storage.synthetic.mag_like import SyntheticMagOptions
from graphmill.storage.synthetic.products_like import SyntheticOptions

if TYPE_CHECKING:
    from graphmill.storage.format.source import EdgeSource, GraphSource, NodeSource, TypedSource
    from graphmill.storage.graph_sets.graph_set import StoredGraphs
    from graphmill.storage.ingestion.ingest import Progress
    from graphmill.storage.molecules.molecule_source import MoleculeSource

_SMILES = "smiles:"  # prefix of a source that is a table of SMILES
_TRIPLES = "triples:"
_REASONS_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class IngestConfig(IngestOptions):
    """Write a graph to an fsspec URL, as Arrow partitions."""

    GIVEN: ClassVar = ("num_partitions", "undirected", "memory_budget_bytes", "num_threads")
    source: str
    """Source of the graph. Without --place hosts: `synthetic`; an OGB node set (`ogbn-products`, `ogbn-arxiv`) or link set (`ogbl-collab`, `ogbl-citation2`,
    `ogbl-ppa`); a public set by its name (`cora`, `flickr` …: docs/guides/data_sets.md); a `.npz` file; or a table of edges (.parquet, .arrow, .feather,
    .csv, .tsv, .txt, also .gz, .bz2, .zst, .xz; .mtx; a folder of part files or a glob; local or at a URL). For several types of nodes: a `.yaml` file that
    names tables, a folder with `graph.yaml`, `ogbn-mag`, or `synthetic-mag`. With --place hosts: a stored graph or set of molecules."""
    url: str
    """Where to write: a path, or file://, s3://, gs://. It must be absent or empty, or with --overwrite a graph; never a folder of other files."""
    partitions: int = 4
    """Number of partitions."""
    reverse_edges: Literal["auto", "add", "keep"] = "auto"
    """Whether to store the reverse of each edge. add: also store every edge's reverse; equal edges are merged, and their weights and features summed; a
    relation between two types gets a relation rev_NAME. keep: store the edges as they are. auto: add for sources that list each undirected edge once, for
    OGB's citation graphs and for ogbn-mag."""
    memory_mib: int = 1024
    """Memory for chunks and buckets, in MiB, in addition to about 20 bytes per node."""
    threads: Count | None = None
    """Number of threads that group and sort edges, limited by the memory budget. Default: one per core."""
    place: Literal["url", "hosts"] = "url"
    """hosts: copy each partition of the graph at SOURCE to the path URL on the disk of the Ray cluster's host that will serve the partition. A set of
    molecules is copied to the disk of every host. SOURCE is recorded as the origin."""
    ogb_root: str = "data/ogb"
    """Folder of OGB sets. ogbn-products, for example, is in <ogb-root>/ogbn_products."""
    download: bool = True
    """Download an OGB set that is missing (ogbn-products: 1.4 GB)."""
    ogb_years: bool = False
    """ogbl-collab: store the years of edges and held-out links as their times. An edge in two years is then two edges."""
    root: str = "data/sets"
    """Folder of a public set's files, as its publisher packs them. Nothing is downloaded. The error for a missing file names the file and its source."""
    per_class: Count | None = None
    """Draw splits: this many nodes of each class for validation and as many for test; the rest is for training. Default: the splits of the
    set; if the set has no splits, 30, as in TokenGT."""
    split_sets: Count = 7
    """Number of splits to draw, with --seed."""
    synthetic: SyntheticOptions = field(default_factory=SyntheticOptions)
    node_features: Literal["source", "edge-means"] = "source"
    """edge-means: nodes without features get the means of their edges' features, the usual input for ogbn-proteins."""
    repeated_triples: Literal["keep", "drop"] = "keep"
    """Treatment of a triple that is in two of the splits train, valid and test: keep it in both, as published, or drop it from the earlier split. The command
    prints the number of such triples."""
    mag: SyntheticMagOptions = field(default_factory=SyntheticMagOptions)
    edge_list: EdgeListOptions = field(default_factory=EdgeListOptions)
    ray: SessionOptions = field(default_factory=SessionOptions)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, memory_mib=16)
        check_options(self, {"partitions": (1 <= self.partitions <= MAX_PARTITIONS, f"1 to {MAX_PARTITIONS}")})
        named = self.source in DATA_SETS or self.source.startswith(("synthetic", "ogbn-", "ogbl-", _TRIPLES))
        typed = is_typed(self.source)
        other = EdgeListOptions(
            features_as=self.edge_list.features_as if typed and not named else None
        )  # these options are also valid for tables of several types
        if self.edge_list != other and (named or typed or self.source.endswith(".npz")):
            raise ConfigError(
                f"edge_list: expected a table of edges as the source, got {self.source}; leave the options --edge-list.… out"
            )
        if self.split and (self.edge_list.splits or self.edge_list.split_columns):
            raise ConfigError(f"split: expected {self.split} or --edge-list.splits, got both; leave one of them out")


@dataclass(frozen=True, kw_only=True)
class IngestSetConfig:
    """Write a public set of many graphs at an fsspec URL."""

    source: str
    """The set's name. docs/guides/data_sets.md lists all names."""
    url: str
    """Where to write: a path, or file://, s3://, gs://. It must be absent or empty, or with --overwrite a set of graphs; never other files."""
    root: str = "data/sets"
    """Folder of the set's files, as its publisher packs them. Nothing is downloaded. The error for a missing file names the file and its source."""
    shard_rows: Count = 20_000
    """Number of graphs in a shard. Each shard is built in memory."""
    overwrite: bool = False
    """Publish a new snapshot of the set at the url. Old snapshots are kept."""
    scratch: str | None = None
    """Local directory for the shards before they are published. None: the set's folder or, if the url is remote, the system's temporary directory."""
    split: SplitOptions = field(default_factory=SplitOptions)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class IngestMoleculesConfig(MoleculeIngestOptions):
    """Write molecules to an fsspec URL, as graphs."""

    source: str
    """`embedded`, `pcqm4mv2`, or `smiles:` and a table of SMILES (.csv, .tsv, .txt, .smi, also .gz, .bz2, .zst, .xz; .parquet, .arrow, .feather; a folder of
    such files, or a glob) at a path or fsspec URL."""
    url: str
    """Where to write: a path, or file://, s3://, gs://. It must be absent or empty, or with --overwrite a set of graphs; never other files."""
    root: str = "data/ogb"
    """Folder of PCQM4Mv2: pcqm4m-v2 itself, or its parent folder. Nothing is downloaded."""
    count: int = 3000
    """Number of molecules of the embedded source, at most about 5,000."""
    holdout: Size = 0
    """pcqm4mv2: number of training molecules to use for validation; the official validation part becomes the test part. The published scores of GRIT and PPGT
    used 150000."""
    table: SmilesOptions = field(default_factory=SmilesOptions)
    ray: SessionOptions = field(default_factory=SessionOptions)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self)
        if self.split and (self.table.split_column or self.table.split_file or self.holdout):
            raise ConfigError(f"split: expected {self.split} or the table's own split, got both; leave one of them out")
        if self.holdout and self.source != "pcqm4mv2":
            raise ConfigError(f"holdout: expected the source pcqm4mv2, got {self.source}; leave it out")


def refuse_options_of_one_graph(source: str, kind: type, named: Collection[str]) -> None:
    """Ends the process with status 2 if an option in `named` is only for one graph, but the source is a set of many graphs."""
    for name in named:
        if name in option_names(IngestConfig) and name not in option_names(kind):
            flag = name.replace("_", "-")
            complain(
                f"--{flag}: expected a source that is one graph, got {source}, a set of many graphs; leave --{flag} out"
            )


def is_typed(source: str) -> bool:
    """Whether the source is a graph of several types."""
    named = source in ("ogbn-mag", "synthetic-mag") or source.endswith((".yaml", ".yml"))
    return named or (Path(source) / "graph.yaml").exists()


def is_table(source: str) -> bool:
    """Whether the source is a table of edges: a file, a folder of part files, a glob."""
    return source.endswith(EDGE_ENDINGS) or any(mark in source for mark in "*?[/") or Path(source).is_dir()


def build_typed_source(config: IngestConfig, progress: "Progress") -> "TypedSource":
    """The typed graph that `config.source` names. Raises the errors of `build_source`."""
    if config.per_class is not None:
        raise ConfigError(f"per_class: expected a public set of one type, got {config.source}; leave --per-class out")
    if config.source == "synthetic-mag":
        from graphmill.storage.synthetic.mag_like import synthetic_mag

        return synthetic_mag(config.mag)
    if config.source == "ogbn-mag":
        from graphmill.storage.importers.public.ogb_mag import ogb_mag

        return ogb_mag(config.ogb_root, download=config.download, progress=progress)
    from graphmill.storage.importers.tables.typed_tables import typed_tables

    return typed_tables(config.source, config.scratch, config.edge_list.features_as)


def build_source(config: IngestConfig, progress: "Progress") -> "GraphSource":
    """The graph that `config.source` names. Raises ConfigError for an unknown source, DataError for unusable data."""
    name = config.source
    if config.ogb_years and not name.startswith("ogbl-"):
        raise ConfigError(f"ogb_years: expected ogbl-collab, got {name}; leave --ogb-years out")
    if name in DATA_SETS:
        row = DATA_SETS[name]
        return with_splits(row.read(config.root), config, config.per_class or row.per_class)
    if config.per_class is not None:
        raise ConfigError(
            f"per_class: expected a public set of one graph (docs/guides/data_sets.md), got {name}; leave it out"
        )
    if name == "synthetic":
        from graphmill.storage.synthetic.products_like import SyntheticGraph

        return SyntheticGraph(config.synthetic)
    if name.startswith(_TRIPLES):
        from graphmill.storage.importers.tables.triples import read_triples

        return read_triples(
            name.removeprefix(_TRIPLES), config.scratch, drop_repeated=config.repeated_triples == "drop"
        )
    if name.startswith("ogbn-"):
        from graphmill.storage.importers.public.ogb_nodes import ogb_graph

        return ogb_graph(name, config.ogb_root, download=config.download, progress=progress)
    if name.startswith("ogbl-"):
        from graphmill.storage.importers.public.ogb_links import ogb_link_graph

        return ogb_link_graph(
            name, config.ogb_root, download=config.download, progress=progress, years=config.ogb_years
        )
    if name.endswith(".npz"):
        from graphmill.storage.importers.files.npz_file import npz_graph

        return npz_graph(name)
    if is_table(name):
        from graphmill.storage.importers.tables.edge_list import EdgeListGraph

        # Ingestion's first steps need at most half of its memory, so a quarter is free for edges.
        return EdgeListGraph(name, config.edge_list, config.scratch, config.memory_mib << 18)
    raise ConfigError(
        f"unknown source {name!r}: expected synthetic, ogbn-<name>, ogbl-<name>, triples:<folder>, a public set (docs/guides/data_sets.md), a .npz file, a table of edges ending in {ENDINGS_SAID} or .mtx, a folder of such; for several types of nodes tables named in a .yaml file, ogbn-mag or synthetic-mag; or for molecules "
        "embedded, pcqm4mv2 or smiles:<file>"
    )


def with_edge_means(graph: "GraphSource", config: IngestConfig) -> "GraphSource":
    """The graph. If the options ask for it, the means of edge features become node features. Raises ConfigError if links are held out, because the means
    would contain the features of held-out links."""
    if config.node_features == "source":
        return graph
    from graphmill.storage.importers.memory.edge_means import EdgeMeans

    if config.links.hold_out or getattr(graph, "links", None) is not None:
        raise ConfigError(
            "node_features edge-means: expected no links held out, whose features they would tell; leave one out"
        )
    return EdgeMeans(graph, both_ends=bool(graph.info.undirected_once or add_reverse(config)))


def with_splits(graph: "GraphSource", config: IngestConfig, per_class: int | None) -> "GraphSource":
    """The graph, with drawn splits if `per_class` is set."""
    from graphmill.storage.importers.memory.array_graph import ArrayGraph
    from graphmill.storage.importers.public.named_graphs import per_class_splits

    if per_class is None:
        return graph
    assert isinstance(graph, ArrayGraph)
    assert graph.label is not None
    if graph.label.ndim == 2:
        raise ConfigError(
            f"per_class: expected nodes of one class each, those of {graph.name} have several labels; leave it out"
        )
    return replace(graph, split=per_class_splits(graph.label, per_class, config.split_sets, config.seed, graph.name))


def holds_molecules(source: str) -> bool:
    """Whether the source is a set of molecules."""
    return source in ("embedded", "pcqm4mv2") or source.startswith(_SMILES)


def build_molecules(config: IngestMoleculesConfig) -> "MoleculeSource":
    """The molecules that `config.source` names. Raises ConfigError for an unsupported file type, DataError for unusable data."""
    if config.source == "embedded":
        from graphmill.storage.molecules.enumerated_molecules import EnumeratedMolecules

        return EnumeratedMolecules(config.count)
    if config.source == "pcqm4mv2":
        from graphmill.storage.molecules.pcqm4mv2 import pcqm4mv2

        return pcqm4mv2(config.root, config.holdout)
    path = config.source.removeprefix(_SMILES)
    from graphmill.storage.molecules.smiles import SmilesTable

    return SmilesTable(path, config.table)


def add_reverse(config: IngestConfig) -> bool | None:
    """The value of `IngestOptions.undirected` for this source and `reverse_edges`."""
    if config.reverse_edges != "auto":
        return config.reverse_edges == "add"
    if config.source in ("ogbn-mag", "synthetic-mag"):
        # typed sampling follows in-edges: in-edges lead from papers to authors, and only reverse edges lead from authors to papers
        return True
    if config.source.startswith(("ogbn-", "ogbl-")):
        from graphmill.storage.importers.public.ogb_nodes import is_directed

        return True if is_directed(config.source) else None
    return None


def refuse_memory(url: str) -> None:
    """Raises ConfigError for a url in memory, because the graph would be lost when this process ends."""
    from fsspec.implementations.memory import MemoryFileSystem

    from graphmill.storage.filesystem.urls import split_url

    if isinstance(split_url(url)[0], MemoryFileSystem):
        raise ConfigError(
            f"{url}: memory:// ends with this process, and the graph with it; choose a path, s3:// or gs://"
        )


def ingest_options(config: IngestConfig) -> IngestOptions:
    """The options of ingestion, with the command line's options copied to the field names of `IngestOptions`."""
    return replace(
        config,
        num_partitions=config.partitions,
        undirected=add_reverse(config),
        memory_budget_bytes=config.memory_mib * 2**20,
        num_threads=config.threads,
    )


def ingest_graph(config: IngestConfig, report: "Progress") -> "tuple[int, int, str, str]":
    """Returns (bytes, number of edges, summary of the stored graph, next commands)."""
    from graphmill.storage.ingestion.ingest import ingest
    from graphmill.storage.ingestion.typed_sources import with_drawn_splits
    from graphmill.storage.splits.drawn_split import SplitSource

    source: GraphSource | TypedSource
    if is_typed(config.source):
        source = with_drawn_splits(build_typed_source(config, report), config)
        tables: list[NodeSource | EdgeSource] = [*source.nodes.values(), *source.relations.values()]
    else:
        plain = with_edge_means(build_source(config, report), config)
        source = plain = plain.with_split(config.split) if config.split and isinstance(plain, SplitSource) else plain
        tables = [plain]
    manifest = ingest(source, config.url, ingest_options(config), report)
    types = ", ".join(f"{name} {row.num_nodes:,}" for name, row in manifest.node_types.items())
    relations = ", ".join(f"{each} {row.num_edges:,}" for each, row in manifest.edge_types.items())
    nodes, edges = (f" ({types})", f" ({relations})") if manifest.is_typed else ("", "")
    written = roles_of(*tables) + (
        f"{manifest.name}: {manifest.num_nodes:,} nodes{nodes}, {manifest.num_edges:,} edges{edges} in {manifest.num_partitions} partitions "
        f"({config.partitioner})"
    )
    if manifest.num_split_sets and manifest.measured.splits:
        sizes = manifest.measured.splits[0].num_nodes
        split = ", ".join(f"{name} {size:,}" for name, size in zip(SPLIT_NAMES, sizes, strict=True) if size)
        written += f"; split: {split}" + (
            "" if manifest.label_kind else "; no labels: name them with --edge-list.label-columns"
        )
    held_of = manifest.link_relation
    if held_of is not None and (links := manifest.edge_types[held_of].links) is not None:
        held_out = ", ".join(
            f"{name} {links.positives[code]:,}" for name, code in SPLITS.items() if links.positives[code]
        )
        repeated = manifest.provenance.get("edges_that_are_held_out_links")
        written += f"; links held out{f' of {held_of}' if manifest.is_typed else ''}: {held_out or 'none'}" + (
            f", {repeated} edges are such, too" if repeated else ""
        )
    for fact in ("triples_in_two_splits", "entities_of_no_training_triple"):
        if fact in manifest.provenance:
            written += f"\n{fact.replace('_', ' ')}: {manifest.provenance[fact]}"
    advice = f"look at it: graphmill inspect_graph {config.url} --verify"
    if config.source in DATA_SETS and (said := DATA_SETS[config.source].options):
        advice += f"\ntrain on it: graphmill train_nodes --data {config.url} {said}"
    return sum(entry.num_bytes for entry in manifest.files.values()), manifest.num_edges, written, advice


def roles_of(*sources: "NodeSource | EdgeSource") -> str:
    """Lists the role of each column in the tables of these sources, one line for each column. Empty if the tables have no columns."""
    from graphmill.storage.importers.columns.role_table import format_roles

    roles = [role for source in sources for role in getattr(source, "roles", [])]
    return format_roles(roles) + "\n" if roles else ""


def place_on_hosts(config: IngestConfig, report: "Progress") -> "tuple[int, int, str, str]":
    """Returns (bytes copied, number of edges or molecules, location of the copies, next commands)."""
    from graphmill.cluster.ray.session import ray_session
    from graphmill.cluster.serving.replicate import place_graph
    from graphmill.storage.format.graph_set_manifest import GraphSetManifest

    with ray_session(config.ray):
        manifest, hosts = place_graph(config.source, config.url, report)
    if many := isinstance(manifest, GraphSetManifest):
        count, parts = manifest.num_graphs, f"{manifest.num_graphs:,} graphs"
    else:
        count, parts = manifest.num_edges, f"{manifest.num_partitions} partitions"
    lines = []
    for each in hosts:
        listed = ", ".join(map(str, each.partitions))
        has = "all graphs" if many else f"partitions {listed}" if listed else "no partition"
        lines.append(f"{each.host}: {has}, {each.num_bytes / 2**20:,.1f} MiB copied")
    advice = f"train on it: graphmill train_{'graphs' if many else 'nodes'} --data {config.url}"
    written = "\n".join([f"{manifest.name}: {parts} of {config.source} on {len(hosts)} hosts", *lines])
    return sum(each.num_bytes for each in hosts), count, written, advice


def ingest_set(config: IngestMoleculesConfig, report: "Progress") -> "tuple[int, int, str, str]":
    """Returns (bytes, number of molecules, summary of the stored set, summary of the rejected rows)."""
    from graphmill.cluster.ingestion.molecules import ingest_molecules
    from graphmill.storage.graph_sets.graph_set import open_graphs

    source = build_molecules(config)
    ingest_molecules(source, config.url, config, config.ray, report)
    graphs = open_graphs(config.url)
    num_bytes = sum(entry.num_bytes for entry in graphs.manifest.files.values())
    columns = f"\ncolumns: {source.info.columns}" if source.info.columns else ""
    return num_bytes, len(graphs), describe(graphs, molecules=True) + columns, rejected(graphs)


def ingest_public_set(config: IngestSetConfig, report: "Progress") -> "tuple[int, int, str, str]":
    """Returns (bytes, number of graphs, summary of the stored set, next commands)."""
    from graphmill.storage.graph_sets.graph_set import open_graphs
    from graphmill.storage.graph_sets.graph_set_source import shards
    from graphmill.storage.graph_sets.graph_set_writer import write_graphs
    from graphmill.storage.graph_sets.resplit import resplit

    row = DATA_SETS[config.source]
    source = row.read(config.root)
    batches = partial(shards, source, config.shard_rows, report)
    info, drawn = resplit(source.info, batches, config.split) if config.split else (source.info, batches())
    manifest = write_graphs(config.url, info, drawn, overwrite=config.overwrite, scratch=config.scratch)
    num_bytes = sum(entry.num_bytes for entry in manifest.files.values())
    train = " ".join(
        ["train on it: graphmill train_graphs --data", config.url, *([row.options] if row.options else [])]
    )
    return num_bytes, manifest.num_graphs, describe(open_graphs(config.url), molecules=False), train


def describe(graphs: "StoredGraphs", *, molecules: bool) -> str:
    """Two lines: the set's counts, and its split and targets."""
    import numpy as np

    manifest = graphs.manifest
    counts = f"graphs, {manifest.num_nodes:,} nodes, {manifest.num_edges:,} directed edges"
    if molecules:
        counts = f"molecules, {manifest.num_nodes:,} atoms, {manifest.num_edges // 2:,} bonds"
    parts = []
    for name in graphs.split_names:
        members = graphs.split(name)
        missing = int(np.isnan(graphs.target[members]).any(axis=1).sum()) if graphs.target_names else 0
        parts.append(f"{name} {len(members):,}" + (f" ({missing:,} without target)" if missing else ""))
    return (
        f"{manifest.name}: {manifest.num_graphs:,} {counts} "
        f"in {manifest.num_shards} shard(s)\nsplit: {', '.join(parts) or 'none'}; "
        + (
            f"labelled: {manifest.labelled}"
            if manifest.labelled
            else f"targets: {', '.join(graphs.target_names) or 'none'}"
        )
    )


def rejected(graphs: "StoredGraphs") -> str:
    """Number of rejected rows, with the reasons for the first few."""
    from graphmill.storage.format.graph_set_manifest import REJECTS_NAME

    if not graphs.manifest.num_rejected:
        return "rejected: none"
    file = graphs.manifest.files[REJECTS_NAME].path
    parts = graphs.manifest.provenance.get("rejected")
    by_part = f" ({parts})" if parts else ""
    lines = [f"rejected: {graphs.manifest.num_rejected:,} rows{by_part}, listed in {graphs.url}/{file}; the first:"]
    lines += [f"  line {each.line}: {each.reason}: {each.text[:60]}" for each in graphs.rejects()[:_REASONS_SHOWN]]
    return "\n".join(lines)


def main() -> None:
    sources, named = read_words(sys.argv[1:])
    name = sources[0] if sources else ""
    is_set = name in DATA_SETS and DATA_SETS[name].kind == "graphs"
    kind: type[IngestConfig | IngestMoleculesConfig | IngestSetConfig] = IngestSetConfig if is_set else IngestConfig
    kind = IngestMoleculesConfig if holds_molecules(name) else kind
    if {"--help", "-h"}.isdisjoint(sys.argv[1:]):
        refuse_options_of_one_graph(name, kind, named)
    config = parse(kind, __doc__, ("source", "url"))
    refuse_memory(config.url)
    start_s = time.perf_counter()
    with progress(f"ingesting {config.source}") as bar:
        if isinstance(config, IngestMoleculesConfig):
            result = ingest_set(config, bar.stage)
        elif isinstance(config, IngestSetConfig):
            result = ingest_public_set(config, bar.stage)
        else:
            result = (place_on_hosts if config.place == "hosts" else ingest_graph)(config, bar.stage)
    num_bytes, count, written, more = result
    elapsed_s = time.perf_counter() - start_s
    unit = "edges" if isinstance(config, IngestConfig) else "graphs"
    with results():
        print(
            f"{written}\n{num_bytes / 2**20:,.1f} MiB at {config.url} in {elapsed_s:.1f} s ({count / elapsed_s:,.0f} {unit}/s)\n{more}"
        )


if __name__ == "__main__":
    run(main)
