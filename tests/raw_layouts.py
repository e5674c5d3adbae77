"""Writes small data sets in the file layouts of public data sets, with the file names, formats and dtypes of a download."""

import gzip
import json
import pickle
from collections import defaultdict
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch

from tests.ogb_layout import write_csv

NUM_NODES, WIDTH, NUM_CLASSES = 240, 12, 3


def write_set(name: str, root: Path, seed: int = 0) -> Path:
    """Writes the files of a data set to the place below `root` where its reader looks for them. Returns their folder."""
    from graphmill.storage.importers.public.data_sets import DATA_SETS

    row = DATA_SETS[name]
    folder = root / row.folder
    folder.mkdir(parents=True)
    writer = {
        "planetoid": planetoid,
        "attributed": attributed,
        "heterophilous": heterophilous,
        "wikipedia": wikipedia,
        "saint": saint,
    }
    writer |= {
        "reddit": reddit,
        "graphland": graphland,
        "zinc": zinc,
        "benchmark": benchmark,
        "long_range": long_range,
        "malnet_tiny": malnet_tiny,
    }
    writer[row.reader.split(":")[1]](folder, np.random.default_rng(seed), **row.arguments)
    return folder


def _graph(random: np.random.Generator, num_nodes: int = NUM_NODES) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns (edges [2, m], classes, features). Edges have one direction; some are repeated, one is a self-loop. Binary features depend partly on the
    class."""
    label = np.arange(num_nodes) % NUM_CLASSES
    random.shuffle(label)
    edges = random.integers(0, num_nodes, (2, 4 * num_nodes))
    edges = edges[:, (label[edges[0]] == label[edges[1]]) | (random.random(edges.shape[1]) < 0.3)]
    edges = np.concatenate([edges, edges[:, :3], [[5], [5]]], axis=1)
    feature = (
        random.random((num_nodes, WIDTH)) < 0.2 + 0.4 * (np.arange(WIDTH) % NUM_CLASSES == label[:, None])
    ).astype(np.float32)
    return edges, label, feature


def planetoid(folder: Path, random: np.random.Generator, name: str) -> None:
    # The 500 nodes after the training nodes are for validation. Some of CiteSeer's test nodes are in no file.
    num_nodes, num_training, num_tested = 640, 9, 80
    edges, label, feature = _graph(random, num_nodes)
    first = num_nodes - num_tested
    test = first + random.permutation(num_tested)
    if name == "citeseer":
        test = test[test != num_nodes - 7]
    one_hot = np.eye(NUM_CLASSES, dtype=np.int32)[label]
    lists: defaultdict[int, list[int]] = defaultdict(list)
    for node in range(num_nodes):
        lists[node] = []
    for a, b in edges.T.tolist():
        lists[a].append(b)
        lists[b].append(a)
    parts = {
        "x": sp.csr_matrix(feature[:num_training]),
        "y": one_hot[:num_training],
        "allx": sp.csr_matrix(feature[:first]),
        "ally": one_hot[:first],
        # Row i belongs to node test[i].
        "tx": sp.csr_matrix(feature[test]),
        "ty": one_hot[test],
        "graph": lists,
    }
    for part, value in parts.items():
        (folder / f"ind.{name}.{part}").write_bytes(pickle.dumps(value, protocol=2))
    (folder / f"ind.{name}.test.index").write_text("".join(f"{node}\n" for node in test))


def _csr_parts(matrix: sp.csr_matrix, prefix: str) -> dict[str, np.ndarray]:
    parts = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr, "shape": np.array(matrix.shape)}
    return {f"{prefix}{part}": value for part, value in parts.items()}


def _adjacency(edges: np.ndarray, num_nodes: int) -> sp.csr_matrix:
    return sp.coo_matrix((np.ones(edges.shape[1], np.float32), edges), (num_nodes, num_nodes)).tocsr()


def attributed(folder: Path, random: np.random.Generator, file: str) -> None:
    edges, label, feature = _graph(random)
    counts = sp.csr_matrix(feature * random.integers(1, 4, feature.shape))
    arrays = _csr_parts(_adjacency(edges, NUM_NODES), "adj_") | _csr_parts(counts, "attr_") | {"labels": label}
    np.savez(folder / file, **arrays)


def heterophilous(folder: Path, random: np.random.Generator, file: str) -> None:
    edges, label, feature = _graph(random)
    if "minesweeper" in file or "tolokers" in file or "questions" in file:
        label = label % 2
    part = np.stack([random.permutation(NUM_NODES) % 4 for _ in range(10)])
    np.savez_compressed(
        folder / file,
        node_features=feature,
        node_labels=label,
        edges=edges.T,
        train_masks=part < 2,
        val_masks=part == 2,
        test_masks=part == 3,
    )


def wikipedia(folder: Path, random: np.random.Generator, file: str) -> None:
    edges, label, feature = _graph(random)
    traffic = random.lognormal(size=NUM_NODES)
    np.savez(folder / file, features=feature, edges=edges.T, target=traffic, label=label)


def saint(folder: Path, random: np.random.Generator, name: str) -> None:
    edges, label, feature = _graph(random)
    adjacency = _adjacency(np.concatenate([edges, edges[::-1]], axis=1), NUM_NODES).astype(bool)
    np.savez(folder / "adj_full.npz", **_csr_parts(adjacency, ""))
    np.save(folder / "feats.npy", feature.astype(np.float64))
    sets = (feature[:, :5] > 0).astype(int)
    sets[:, 0] = label == 0  # features do not show all labels
    classes = {str(node): sets[node].tolist() if name == "yelp" else int(label[node]) for node in range(NUM_NODES)}
    (folder / "class_map.json").write_text(json.dumps(classes))
    order = random.permutation(NUM_NODES).tolist()
    (folder / "role.json").write_text(json.dumps({"tr": order[:120], "va": order[120:180], "te": order[180:]}))


def reddit(folder: Path, random: np.random.Generator) -> None:
    edges, label, feature = _graph(random)
    parts = 1 + random.permutation(NUM_NODES) % 3
    np.savez(folder / "reddit_data.npz", feature=feature, label=label, node_types=parts, node_ids=np.arange(NUM_NODES))
    both = np.concatenate([edges, edges[::-1]], axis=1)
    sp.save_npz(folder / "reddit_graph.npz", sp.coo_matrix((np.ones(both.shape[1]), both), (NUM_NODES, NUM_NODES)))


PARTS = {"train": 24, "val": 8, "test": 8}  # number of graphs


def graphland(
    folder: Path, random: np.random.Generator, task: str, splits: tuple[str, ...], normal_fractions: bool
) -> None:
    edges, label, feature = _graph(random)
    target = {"class": label * 1.0, "yes or no": (label > 0) * 1.0}.get(
        task, feature[:, 0] * 7 + random.normal(size=NUM_NODES)
    )
    target[random.random(NUM_NODES) < 0.05] = np.nan
    numbers = random.lognormal(size=(NUM_NODES, 3)).round(1)  # some are equal
    numbers[random.random(numbers.shape) < 0.1] = np.nan
    columns = {f"n{place}": numbers[:, place] for place in range(3)} | {"share": random.random(NUM_NODES).round(2)}
    columns |= {"two": feature[:, 0].astype(int) + 4, "many": label + random.integers(0, 2, NUM_NODES)}
    names = {
        "numerical_features_names": ["n0", "n1", "share", "n2"],
        "fraction_features_names": ["share"],
        "categorical_features_names": ["many", "two"],
    }
    kind = {"class": "multiclass_classification", "yes or no": "binary_classification"}.get(task, "regression")
    (folder / "info.yaml").write_text(json.dumps({"task": kind, "target_name": "target", **names}))
    _frame(folder / "features.csv", "node_id", columns)
    _frame(folder / "targets.csv", "node_id", {"target": target})
    for split in splits:
        part = random.choice(3, NUM_NODES, p=[0.5, 0.25, 0.25])
        _frame(
            folder / f"split_masks_{split}.csv",
            "node_id",
            {n: part == c for c, n in enumerate(("train", "val", "test"))},
        )
    np.savetxt(folder / "edgelist.csv", edges.T, "%d", ",", header="source,target", comments="")


def _frame(path: Path, key: str, columns: dict[str, np.ndarray]) -> None:
    """Writes a table whose first column numbers the rows. A hole is an empty field."""
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    lines = [",".join([key, *columns])]
    lines += [
        ",".join([str(n), *("" if value != value else str(value) for value in row)]) for n, row in enumerate(rows)
    ]
    path.write_text("\n".join(lines) + "\n")


def _ring(random: np.random.Generator, low: int = 6, high: int = 14) -> tuple[int, torch.Tensor]:
    """A ring with some chords. Returns (number of nodes, edges [2, m] in both directions)."""
    num_nodes = int(random.integers(low, high))
    node = np.arange(num_nodes)
    chords = random.integers(0, num_nodes, (2, 3))
    ends = np.concatenate([np.stack([node, (node + 1) % num_nodes]), chords[:, chords[0] != chords[1]]], axis=1)
    both = np.unique(np.concatenate([ends, ends[::-1]], axis=1), axis=1)
    return num_nodes, torch.from_numpy(both)


def zinc(folder: Path, random: np.random.Generator, atom_types: int, subset: bool) -> None:
    for part, count in PARTS.items():
        molecules = []
        for _ in range(count + 3 * subset):
            num_atoms, edges = _ring(random)
            bonds = torch.zeros(num_atoms, num_atoms, dtype=torch.int8)
            kinds = torch.from_numpy(random.integers(1, 4, (num_atoms, num_atoms)).astype(np.int8))
            bonds[edges[0], edges[1]] = torch.minimum(kinds, kinds.T)[edges[0], edges[1]]
            types = torch.from_numpy(random.integers(0, atom_types, num_atoms).astype(np.int8))
            target = torch.tensor([float(types.float().mean())])
            molecules.append(
                {"num_atom": num_atoms, "atom_type": types, "bond_type": bonds, "logP_SA_cycle_normalized": target}
            )
        (folder / f"{part}.pickle").write_bytes(pickle.dumps(molecules))
        chosen = random.permutation(count + 3 * subset)[:count]
        (folder / f"{part}.index").write_text(",".join(map(str, chosen)) + "\n")


def benchmark(folder: Path, random: np.random.Generator, file: str, dim: int, num_classes: int, of: str) -> None:
    parts = []
    for count in PARTS.values():
        graphs = []
        for number in range(count):
            num_nodes, edges = _ring(random)
            label = random.integers(0, num_classes, num_nodes)
            graph = {"edge_index": edges}
            if of == "nodes":
                seen = np.where(random.random(num_nodes) < 0.7, label, random.integers(0, dim, num_nodes)) % dim
                graph |= {"x": torch.eye(dim)[seen], "y": torch.from_numpy(label)}
            else:
                kind = number % num_classes
                graph |= {
                    "x": torch.from_numpy(random.random((num_nodes, dim - 2)).astype(np.float32)) + kind,
                    "pos": torch.from_numpy(random.random((num_nodes, 2)).astype(np.float32)),
                    "edge_attr": torch.from_numpy(random.random(edges.shape[1]).astype(np.float32)),
                    "y": torch.tensor([kind]),
                }
            graphs.append(graph)
        parts.append(graphs)
    torch.save(parts, folder / file)


def long_range(folder: Path, random: np.random.Generator, name: str) -> None:
    for part, count in PARTS.items():
        graphs = []
        for _ in range(count):
            num_nodes, edges = _ring(random)
            num_edges = edges.shape[1]
            if name.endswith("-sp"):
                used = np.arange(21) if name == "pascalvoc-sp" else np.array([0, 1, 13, 27, 90])
                y = random.choice(used, num_nodes)
                x = torch.from_numpy(random.normal(size=(num_nodes, 14)) + y[:, None] / 10)
                graphs.append((x, torch.from_numpy(random.random((num_edges, 2))), edges, torch.from_numpy(y)))
                continue
            x = torch.from_numpy(
                np.stack([random.integers(0, size, num_nodes) for size in (119, 4, 12, 12, 10, 6, 6, 2, 2)], 1)
            )
            attributes = torch.from_numpy(np.stack([random.integers(0, size, num_edges) for size in (5, 6, 2)], 1))
            if name == "pcqm-contact":
                pairs = torch.from_numpy(random.integers(0, num_nodes, (2, 6)))
                graphs.append((x, attributes, edges, pairs, torch.tensor([1, 1, 1, 0, 0, 0])))
            elif name == "peptides-func":
                graphs.append(
                    (x, attributes, edges, torch.from_numpy((random.random((1, 10)) < 0.4).astype(np.float32)))
                )
            else:
                graphs.append((x, attributes, edges, torch.from_numpy(random.normal(size=(1, 11)).astype(np.float32))))
        if name.endswith("-sp"):
            (folder / f"{part}.pickle").write_bytes(pickle.dumps(graphs))
        else:
            torch.save(graphs, folder / f"{part}.pt")


def malnet_tiny(folder: Path, random: np.random.Generator) -> None:
    (folder / "split_info_tiny/type").mkdir(parents=True)
    types = ("addisplay", "adware", "benign", "downloader", "trojan")
    for part, count in PARTS.items():
        names = []
        for number in range(count):
            name = f"{types[(number * 2) % 5]}/family/{part}{number}"
            _, edges = _ring(random)
            path = folder / "malnet-graphs-tiny" / f"{name}.edgelist"
            path.parent.mkdir(parents=True, exist_ok=True)
            head = "# Directed graph\n# Saved as an edge list\n# of calls\n# Nodes: some\n# FromNodeId\tToNodeId\n"
            path.write_text(head + "".join(f"{a}\t{b}\n" for a, b in edges.T.tolist()))
            names.append(name)
        (folder / "split_info_tiny/type" / f"{part}.txt").write_text("".join(f"{name}\n" for name in names))


def ogb_nodes(name: str, root: Path, seed: int = 0) -> None:
    """Writes a small ogbn-arxiv or ogbn-products below `root`, in the form in which `ogb` unpacks it: gzipped tables of edges, features, classes and parts."""
    random = np.random.default_rng(seed)
    folder = root / name.replace("-", "_")
    (folder / "processed").mkdir(parents=True)
    (folder / "RELEASE_v1.txt").touch()
    edges, label, feature = _graph(random)
    tables = {"edge": edges.T, "node-feat": feature, "node-label": label}
    tables |= {"num-node-list": np.array([NUM_NODES]), "num-edge-list": np.array([edges.shape[1]])}
    for table, rows in tables.items():
        write_csv(folder / f"raw/{table}.csv.gz", rows)
    order = random.permutation(NUM_NODES)
    split = {"ogbn-arxiv": "time", "ogbn-products": "sales_ranking"}[name]
    for part, rows in {"train": order[:120], "valid": order[120:180], "test": order[180:]}.items():
        write_csv(folder / f"split/{split}/{part}.csv.gz", rows)


def pcqm4mv2(root: Path, count: int = 60) -> None:
    """Writes a small PCQM4Mv2 below `root`, in the form in which `ogb.lsc` unpacks it: a gzipped table of SMILES and gaps, and the row numbers of each part.
    Molecules of the two test parts have no gap."""
    groups = ("", "C", "O", "N", "F", "Cl", "CO", "C#N", "C=C", "CN")
    smiles = [f"C{'C' * (row // len(groups))}C{groups[row % len(groups)]}" for row in range(count)]
    folder = root / "pcqm4m-v2"
    (folder / "raw").mkdir(parents=True)
    tested = count - 8
    rows = [f"{row},{each},{'' if row >= tested else 4 + row % 7 / 8}" for row, each in enumerate(smiles)]
    (folder / "raw/data.csv.gz").write_bytes(gzip.compress("\n".join(["idx,smiles,homolumogap", *rows, ""]).encode()))
    ends = {"train": (0, count - 20), "valid": (count - 20, tested), "test-dev": (tested, count - 4)}
    ends["test-challenge"] = (count - 4, count)
    torch.save({part: np.arange(*each) for part, each in ends.items()}, folder / "split_dict.pt", pickle_protocol=4)
