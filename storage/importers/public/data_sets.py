"""The table of public data sets for `graphmill ingest NAME`. It has each set's task, its files, and the URL of the files.

Nothing is downloaded. The publisher's files must lie, unpacked but otherwise unchanged, below `root` in the folder that PyG's data set class would use.
docs/guides/data_sets.md shows this table (function `table`).
"""

from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from graphmill.core.errors import ConfigError, DataError

Kind = Literal["nodes", "graphs"]
PARTS = ("train", "val", "test")
PER_CLASS = "30 nodes of each class validate, 30 test, the rest train; 7 sets"


@dataclass(frozen=True)
class DataSet:
    """One public data set, a row of the table."""

    name: str
    kind: Kind
    """Whether the set is one graph, or many graphs."""
    title: str
    task: str
    """Describes in words what is predicted."""
    options: str
    """The options of the training command for this task."""
    metric: str
    split: str
    reader: str
    """The reading function, as `module:function` in this package. It is called with the folder of the files and with `arguments`."""
    folder: str
    """Folder of the files below `root`. In PyG it is the set's raw_dir."""
    files: tuple[str, ...]
    url: str
    arguments: dict[str, Any] = field(default_factory=dict)
    per_class: int | None = None
    """For a set without a published split: the number of nodes of each class that validate, and also the number that test."""

    def read(self, root: str | Path) -> Any:
        """Reads the graph, or the source of many graphs. Raises DataError for files that are missing or have another layout."""
        module, function = self.reader.split(":")
        return getattr(import_module(f"graphmill.storage.importers.public.{module}"), function)(
            self.find(root), **self.arguments
        )

    def find(self, root: str | Path) -> Path:
        """Finds the folder of the files: `root`, or a folder below it. If files are missing, raises a DataError that says which files to put where."""
        usual = Path(root) / self.folder
        for folder in (usual, Path(root), Path(root) / usual.name):
            missing = [name for name in self.files if not (folder / name).exists()]
            if not missing:
                return folder
        missing = [name for name in self.files if not (usual / name).exists()]
        verb = "unpack" if self.url.endswith((".zip", ".tar.gz")) else "get"
        raise DataError(
            f"{self.name}: {', '.join(missing)} missing at {usual}; {verb} {self.url} and put them there, or say where they are by --root"
        )


_SHCHUR = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz"
_HETEROPHILOUS = "https://github.com/yandex-research/heterophilous-graphs/raw/main/data"
_LRGB = "https://www.dropbox.com/s"
_BENCHMARKING = "https://data.pyg.org/datasets/benchmarking-gnns"
_SAINT = "https://drive.google.com/drive/folders/1zycmmDES39zVlbVCYs88JTJ1Wm5FbfLz"
_ACCURACY: dict[str, Any] = {"task": "one class of each node", "options": "", "metric": "accuracy"}


def _planetoid(name: str, title: str) -> DataSet:
    parts = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
    return DataSet(
        name, "nodes", title, **_ACCURACY, split="public: 20 nodes of each class train, 500 validate, 1,000 test",
        reader="named_graphs:planetoid", folder=f"{title}/raw", files=tuple(f"ind.{name}.{part}" for part in parts),
        url="https://github.com/kimiyoung/planetoid/raw/master/data", arguments={"name": name},
    )  # fmt: skip


def _shchur(name: str, title: str, folder: str, file: str) -> DataSet:
    return DataSet(
        name, "nodes", title, **_ACCURACY, split=PER_CLASS, reader="named_graphs:attributed", folder=folder,
        files=(file,), url=f"{_SHCHUR}/{file}", arguments={"file": file}, per_class=30,
    )  # fmt: skip


def _heterophilous(name: str, title: str, metric: str) -> DataSet:
    file = f"{name.replace('-', '_')}.npz"
    return DataSet(
        name, "nodes", title, "one class of each node", f"--task.metric {metric}" if metric != "accuracy" else "", metric,
        split="10 published sets, half train", reader="named_graphs:heterophilous", folder=f"{file[:-4]}/raw", files=(file,),
        url=f"{_HETEROPHILOUS}/{file}", arguments={"file": file},
    )  # fmt: skip


def _wikipedia(name: str) -> DataSet:
    return DataSet(
        name, "nodes", name.capitalize(), **_ACCURACY, split=PER_CLASS, reader="named_graphs:wikipedia", folder=f"{name}/raw",
        files=(f"{name}.npz",), url=f"https://graphmining.ai/datasets/ptg/wiki/{name}.npz", arguments={"file": f"{name}.npz"}, per_class=30,
    )  # fmt: skip


def _zinc(name: str, title: str, atom_types: int, subset: bool) -> DataSet:
    files = tuple(f"{part}.pickle" for part in PARTS) + (tuple(f"{part}.index" for part in PARTS) if subset else ())
    return DataSet(
        name, "graphs", title, "penalised logP of each molecule", "", "MAE", "published", "graph_sets:zinc", "ZINC/raw", files,
        "https://www.dropbox.com/s/feo9qle74kg48gy/molecules.zip", {"atom_types": atom_types, "subset": subset},
    )  # fmt: skip


def _benchmark(name: str, title: str, dim: int, num_classes: int, of: str) -> DataSet:
    file, nodes = f"{name.upper()}_v2.pt", of == "nodes"
    return DataSet(
        name, "graphs", title, f"one of {num_classes} classes of each {of[:-1]}",
        "--task nodes --task.metric weighted_accuracy --task.class_weights batch" if nodes else "--task classes",
        "weighted accuracy" if nodes else "accuracy", "published", "graph_sets:benchmark", f"{name.upper()}/raw", (file,),
        f"{_BENCHMARKING}/{file[:-3]}.zip", {"file": file, "dim": dim, "num_classes": num_classes, "of": of},
    )  # fmt: skip


def _long_range(name: str, title: str, task: str, options: str, metric: str, url: str) -> DataSet:
    files = tuple(f"{part}.{'pickle' if name.endswith('-sp') else 'pt'}" for part in PARTS)
    return DataSet(
        name, "graphs", title, task, options, metric, "published", "graph_sets:long_range", f"{name}/raw", files, f"{_LRGB}/{url}",
        {"name": name},
    )  # fmt: skip


def _graphland(name: str, kind: str, what: str, *, by_time: bool = True, normal_fractions: bool = False) -> DataSet:
    splits = ("RL", "RH", "TH") if by_time else ("RL", "RH")
    options, metric = {
        "class": ("", "accuracy"),
        "yes or no": ("--task binary --task.metric ap", "average precision"),
        "number": ("--task regression --task.metric r2", "R²"),
    }[kind]
    return DataSet(
        name.lower(), "nodes", f"GraphLand's {name}", what, options, metric, f"published: {', '.join(splits)} are the split sets 0 to {len(splits) - 1}",
        "graphland:graphland", f"{name}/raw/{name}", ("info.yaml", "features.csv", "targets.csv", "edgelist.csv", *(f"split_masks_{split}.csv" for split in splits)),
        f"https://zenodo.org/records/16895532/files/{name}.zip", {"task": kind, "splits": splits, "normal_fractions": normal_fractions},
    )  # fmt: skip


_SAINT_FILES = ("adj_full.npz", "feats.npy", "class_map.json", "role.json")

_ROWS = (
    _planetoid("cora", "Cora"),
    _planetoid("citeseer", "CiteSeer"),
    _planetoid("pubmed", "PubMed"),
    _shchur("amazon-computers", "Amazon-Computers", "Computers/raw", "amazon_electronics_computers.npz"),
    _shchur("amazon-photo", "Amazon-Photo", "Photo/raw", "amazon_electronics_photo.npz"),
    _shchur("coauthor-cs", "Coauthor-CS", "CS/raw", "ms_academic_cs.npz"),
    _shchur("coauthor-physics", "Coauthor-Physics", "Physics/raw", "ms_academic_phy.npz"),
    _wikipedia("chameleon"),
    _wikipedia("crocodile"),
    _heterophilous("roman-empire", "Roman-Empire", "accuracy"),
    _heterophilous("amazon-ratings", "Amazon-Ratings", "accuracy"),
    _heterophilous("minesweeper", "Minesweeper", "rocauc"),
    _heterophilous("tolokers", "Tolokers", "rocauc"),
    _heterophilous("questions", "Questions", "rocauc"),
    DataSet(
        "flickr", "nodes", "Flickr", **_ACCURACY, split="GraphSAINT's", reader="named_graphs:saint", folder="Flickr/raw",
        files=_SAINT_FILES, url=_SAINT, arguments={"name": "flickr"},
    ),
    DataSet(
        "yelp", "nodes", "Yelp", "100 labels of each node, yes or no", "--task binary --task.metric micro_f1", "micro F1", split="GraphSAINT's",
        reader="named_graphs:saint", folder="Yelp/raw", files=_SAINT_FILES, url=_SAINT, arguments={"name": "yelp"},
    ),
    DataSet(
        "reddit", "nodes", "Reddit", **_ACCURACY, split="GraphSAGE's", reader="named_graphs:reddit", folder="Reddit/raw",
        files=("reddit_data.npz", "reddit_graph.npz"), url="https://data.dgl.ai/dataset/reddit.zip",
    ),
    _graphland("hm-categories", "class", "one class of each product"),
    _graphland("pokec-regions", "class", "one region of each user"),
    _graphland("web-topics", "class", "one topic of each site"),
    _graphland("tolokers-2", "yes or no", "whether each worker was banned"),
    _graphland("city-reviews", "yes or no", "whether each user is a fraud", by_time=False),
    _graphland("artnet-exp", "yes or no", "whether each artist makes explicit art"),
    _graphland("web-fraud", "yes or no", "whether each site is a fraud"),
    _graphland("hm-prices", "number", "the price of each product"),
    _graphland("avazu-ctr", "number", "the click rate of each device", normal_fractions=True),
    _graphland("city-roads-M", "number", "the speed on each road", by_time=False),
    _graphland("city-roads-L", "number", "the speed on each road", by_time=False),
    _graphland("twitch-views", "number", "the views of each user"),
    _graphland("artnet-views", "number", "the views of each artist", normal_fractions=True),
    _graphland("web-traffic", "number", "the traffic of each site", by_time=False),
    _zinc("zinc", "ZINC, 12,000 molecules", 21, True),
    _zinc("zinc-full", "ZINC, 249,456 molecules", 28, False),
    _benchmark("mnist", "MNIST superpixels", 3, 10, "graphs"),
    _benchmark("cifar10", "CIFAR10 superpixels", 5, 10, "graphs"),
    _benchmark("pattern", "PATTERN", 3, 2, "nodes"),
    _benchmark("cluster", "CLUSTER", 7, 6, "nodes"),
    _long_range("pascalvoc-sp", "PascalVOC-SP", "one of 21 classes of each node", "--task nodes --task.metric macro_f1 --task.class_weights batch", "macro F1", "8x722ai272wqwl4/pascalvocsp.zip"),
    _long_range("coco-sp", "COCO-SP", "one of 81 classes of each node", "--task nodes --task.metric macro_f1 --task.class_weights batch", "macro F1", "r6ihg1f4pmyjjy0/cocosp.zip"),
    _long_range("pcqm-contact", "PCQM-Contact", "which atoms touch", "--task pairs", "MRR", "qdag867u6h6i60y/pcqmcontact.zip"),
    _long_range("peptides-func", "Peptides-func", "ten functions", "--task binary --task.metric ap", "average precision", "ycsq37q8sxs1ou8/peptidesfunc.zip"),
    _long_range("peptides-struct", "Peptides-struct", "eleven numbers", "", "MAE", "zgv4z8fcpmknhs8/peptidesstruct.zip"),
    DataSet(
        "malnet-tiny", "graphs", "MalNet-Tiny", "five types of software", "--task classes", "accuracy", "published: 3,500 train, 500 validate, 1,000 test",
        "graph_sets:malnet_tiny", "MalNetTiny/raw", ("malnet-graphs-tiny", "split_info_tiny/type/train.txt", "split_info_tiny/type/val.txt", "split_info_tiny/type/test.txt"),
        "http://malnet.cc.gatech.edu/graph-data/malnet-graphs-tiny.tar.gz",
    ),
)  # fmt: skip

DATA_SETS: dict[str, DataSet] = {row.name: row for row in _ROWS}


def check_ingested(path: str) -> None:
    """Raises ConfigError if `path` is the name of a public set and does not exist. The message has the command that ingests the set."""
    row = DATA_SETS.get(path)
    if row is None or Path(path).exists():
        return
    job, noun = ("train_nodes", "one graph") if row.kind == "nodes" else ("train_graphs", "many graphs")
    raise ConfigError(
        f"{path}: expected a stored graph, found none; {path} is a public set of {noun}: graphmill ingest {path} graphs/{path}, "
        f"then {' '.join([f'graphmill {job} --data graphs/{path}', *row.options.split()])}"
    )


def table(kind: Kind) -> str:
    """Returns a Markdown table of the data sets of one kind, for docs/guides/data_sets.md."""
    rows = [row for row in DATA_SETS.values() if row.kind == kind]
    lines = ["| name | set | predicted, metric | split | files, below `--root` | from |", "|---|---|---|---|---|---|"]
    for row in rows:
        options = f" (`{row.options}`)" if row.options else ""
        files = ", ".join(
            f"`{row.folder}/{file}`" if number == 0 else f"`{file}`" for number, file in enumerate(row.files)
        )
        lines.append(
            f"| `{row.name}` | {row.title} | {row.task}, {row.metric}{options} | {row.split} | {files} | <{row.url}> |"
        )
    return "\n".join(lines) + "\n"
