"""Reads public data sets of many graphs from the publishers' files. `graphmill.storage.importers.public.data_sets` lists the sets.

Tests compare graphs, features and labels with PyG's class for the set. As in GraphGPS's loader, and as the papers' models expect, some features are added:
superpixels get their positions, nodes of call graphs get a local degree profile, and edges without features get one category. Nothing is unpickled
(`graphmill.storage.importers.files.pickle_reader`).
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphmill.core.errors import DataError
from graphmill.storage.filesystem.filesystem_errors import one_line
from graphmill.storage.format.graph_set_manifest import RowSchema
from graphmill.storage.graph_sets.graph_set_source import GraphSetSource, RawGraph
from graphmill.storage.graph_sets.graph_set_writer import GraphSetInfo
from graphmill.storage.importers.files.pickle_reader import Refused, array, read_pickle, read_torch
from graphmill.storage.molecules.smiles_features import ATOMS, BONDS

_FILES = ("train", "val", "test")
_PARTS = ("train", "valid", "test")
_KIND = RowSchema(1, "uint8", (1,))  # the only category of edges without features (DummyEdge in GraphGPS)

# COCO uses 81 of 91 ids; 10 are unused. PyG's LRGBDataset and LRGB's code number the used ids in order.
_COCO_UNUSED = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)


def zinc(folder: Path, atom_types: int, subset: bool) -> GraphSetSource:
    """Reads ZINC of "Benchmarking GNNs" (arXiv:2003.00982): atom and bond types, target penalised logP. `subset`: only the 12,000 molecules in `*.index`."""
    info = GraphSetInfo(
        "zinc" if subset else "zinc-full",
        RowSchema(1, "uint8", (atom_types,)),
        RowSchema(1, "uint8", (4,)),
        target_names=("logP_SA_cycle_normalized",),
        split_names=_PARTS,
        provenance={"source": "molecules.zip of the benchmarking GNNs"},
    )

    def graphs() -> Iterator[RawGraph]:
        for split, part in enumerate(_FILES, 1):
            molecules = _list(read_pickle(folder / f"{part}.pickle"), folder / f"{part}.pickle")
            for number in _index(folder / f"{part}.index", len(molecules)) if subset else range(len(molecules)):
                yield _raw(folder / f"{part}.pickle", number, _molecule, molecules[number], split)

    return GraphSetSource(info, graphs, 12_000 if subset else 249_456)


def _molecule(value: dict[str, Any], split: int) -> RawGraph:
    types, bonds = array(value["atom_type"]), array(value["bond_type"])
    ends = np.stack(np.nonzero(bonds))
    return RawGraph(
        split,
        len(types),
        ends,
        types.reshape(-1, 1),
        bonds[ends[0], ends[1]][:, None],
        target=array(value["logP_SA_cycle_normalized"]).reshape(1),
    )


def benchmark(folder: Path, file: str, dim: int, num_classes: int, of: str) -> GraphSetSource:
    """Reads MNIST and CIFAR10 superpixels, PATTERN or CLUSTER of "Benchmarking GNNs", from the files that PyG provides.

    `of` tells what has classes. "graphs": a graph has a class, its nodes have colours and two coordinates, its edges have distances. "nodes": a node has a
    class and one-hot features, and all edges have one category.
    """
    name = file.removesuffix("_v2.pt").lower()
    nodes = of == "nodes"
    info = GraphSetInfo(
        name,
        RowSchema(dim, "float32"),
        _KIND if nodes else RowSchema(1, "float32"),
        target_names=() if nodes else ("class",),
        split_names=_PARTS,
        labelled="nodes" if nodes else None,
        num_classes=num_classes if nodes else None,
        provenance={"source": file},
    )

    def graph(value: dict[str, Any], split: int) -> RawGraph:
        x, edges, y = array(value["x"]), array(value["edge_index"]), array(value["y"])
        if nodes:
            kind = np.zeros((edges.shape[1], 1), np.uint8)
            return RawGraph(split, len(x), edges, x, kind, node_label=y.reshape(-1))
        place = np.concatenate([x, array(value["pos"])], axis=1)
        return RawGraph(split, len(x), edges, place, array(value["edge_attr"]).reshape(-1, 1), target=y.reshape(-1))

    def graphs() -> Iterator[RawGraph]:
        parts = _list(read_torch(folder / file), folder / file)
        if len(parts) != len(_FILES):
            raise DataError(f"{folder / file}: expected the graphs of train, val and test, found {len(parts)} parts")
        for split, part in enumerate(parts, 1):
            for number, value in enumerate(_list(part, folder / file)):
                yield _raw(folder / file, number, graph, value, split)

    return GraphSetSource(info, graphs)


def long_range(folder: Path, name: str) -> GraphSetSource:
    """Reads a set of the Long Range Graph Benchmark (arXiv:2206.08164): superpixels with classes of nodes, peptides, or contacts between atoms."""
    superpixels, read = name.endswith("-sp"), read_pickle if name.endswith("-sp") else read_torch
    ending = "pickle" if superpixels else "pt"
    num_classes = {"pascalvoc-sp": 21, "coco-sp": 81}.get(name)
    targets = {"peptides-func": _FUNCTIONS, "peptides-struct": _STRUCTURE}.get(name, ())
    node, edge = (RowSchema(14, "float32"), RowSchema(2, "float32")) if superpixels else (ATOMS, BONDS)
    info = GraphSetInfo(
        name,
        node,
        edge,
        target_names=targets,
        split_names=_PARTS,
        labelled="pairs" if name == "pcqm-contact" else "nodes" if num_classes else None,
        num_classes=num_classes,
        provenance={"source": f"{name} of the Long Range Graph Benchmark"},
    )
    remapped = np.full(91, -1)
    remapped[np.setdiff1d(np.arange(91), _COCO_UNUSED)] = np.arange(81)

    def graph(value: Sequence[Any], split: int) -> RawGraph:
        x, attributes, edges, *more = (_numbers(part) for part in value)
        if superpixels:
            label = more[0].reshape(-1).astype(np.int64)
            return RawGraph(
                split, len(x), edges, x, attributes, node_label=remapped[label] if name == "coco-sp" else label
            )
        if targets:
            return RawGraph(split, len(x), edges, x, attributes, target=more[0].reshape(-1))
        pairs = np.concatenate([more[0].T, more[1].reshape(-1, 1)], axis=1).astype(np.int64)
        return RawGraph(split, len(x), edges, x, attributes, pairs=pairs)

    def graphs() -> Iterator[RawGraph]:
        for split, part in enumerate(_FILES, 1):
            path = folder / f"{part}.{ending}"
            for number, value in enumerate(_list(read(path), path)):
                yield _raw(path, number, graph, value, split)

    return GraphSetSource(info, graphs)


_FUNCTIONS = (
    "antifungal", "cell_cell_communication", "anticancer", "drug_delivery_vehicle", "antimicrobial", "antiviral", "antihypertensive",
    "antibacterial", "antiparasitic", "toxic",
)  # fmt: skip
_STRUCTURE = (
    "inertia_mass_a", "inertia_mass_b", "inertia_mass_c", "inertia_valence_a", "inertia_valence_b", "inertia_valence_c", "length_a",
    "length_b", "length_c", "spherocity", "plane_best_fit",
)  # fmt: skip


def malnet_tiny(folder: Path) -> GraphSetSource:
    """Reads MalNet-Tiny (arXiv:2011.07682): call graphs of five types of software. A file has five lines of comments and then a list of edges. The features
    of a node are its local degree profile."""
    info = GraphSetInfo(
        "malnet-tiny",
        RowSchema(5, "float32"),
        _KIND,
        target_names=("type",),
        split_names=_PARTS,
        provenance={
            "source": "malnet-graphs-tiny",
            "features": "degree; its minimum, maximum, mean and deviation over neighbors",
        },
    )

    def graphs() -> Iterator[RawGraph]:
        types: dict[str, int] = {}  # types are numbered in the order of their appearance, as in PyG
        for split, part in enumerate(_FILES, 1):
            for name in (folder / "split_info_tiny" / "type" / f"{part}.txt").read_text().split():
                path = folder / "malnet-graphs-tiny" / f"{name}.edgelist"
                kind = types.setdefault(name.split("/")[0], len(types))
                yield _raw(path, 0, _calls, path, split, kind)

    return GraphSetSource(info, graphs, 5000)


def _calls(path: Path, split: int, kind: int) -> RawGraph:
    edges = np.loadtxt(path, dtype=np.int64, skiprows=5, ndmin=2).T.reshape(2, -1)
    num_nodes = int(edges.max(initial=0)) + 1
    feature = _degree_profile(edges, num_nodes)
    return RawGraph(split, num_nodes, edges, feature, np.zeros((edges.shape[1], 1), np.uint8), target=np.array([kind]))


def _degree_profile(edges: np.ndarray, num_nodes: int) -> np.ndarray:
    """Local degree profile (arXiv:1811.03508) as in PyG, float32 [n, 5]: the out-degree, and its minimum, maximum, mean and deviation over successors."""
    source, target = edges
    degree = np.bincount(source, minlength=num_nodes).astype(np.float64)
    of_target, has = degree[target], degree > 0
    low, high = np.full(num_nodes, np.inf), np.zeros(num_nodes)
    np.minimum.at(low, source, of_target)
    np.maximum.at(high, source, of_target)
    count = np.maximum(degree, 1)
    mean = np.bincount(source, of_target, num_nodes) / count
    variance = np.maximum(np.bincount(source, of_target**2, num_nodes) / count - mean**2, 1e-5)
    deviation = np.where(variance > 1e-5, np.sqrt(variance), 0.0)
    return np.stack([degree, np.where(has, low, 0.0), high, mean, deviation], axis=1).astype(np.float32)


def _raw(path: Path, number: int, make: Callable[..., RawGraph], *arguments: Any) -> RawGraph:
    """Returns the result of `make`. Raises DataError if the arguments do not have the set's layout."""
    try:
        return make(*arguments)
    except (Refused, OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{path}: graph {number}: not of this set's layout: {type(error).__name__}: {one_line(error)[:160]}"
        ) from error


def _list(value: Any, path: Path) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise DataError(f"{path}: expected a list of graphs, found {type(value).__name__}")
    return value


def _numbers(value: Any) -> np.ndarray:
    """Converts a tensor, an array, or a list of numbers to a numpy array."""
    return np.asarray(value) if isinstance(value, list | tuple) else array(value)


def _index(path: Path, num_molecules: int) -> list[int]:
    """Reads the numbers of molecules from a file with one line of numbers and commas."""
    try:
        rows = [int(number) for number in path.read_text().strip().strip(",").split(",")]
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: expected numbers of molecules between commas, got: {one_line(error)}") from error
    if not 0 <= min(rows) <= max(rows) < num_molecules:
        raise DataError(f"{path}: expected numbers below {num_molecules}, got {min(rows)} to {max(rows)}")
    return rows
