"""How fast typed neighbor sampling is here and in PyG and DGL, on one graph and the same roots: `python -m jobs.bench typed`.

    python -m jobs.bench typed --scale 0.01 --batches 5                 # a look, seconds
    python -m jobs.bench typed --dgl-python <…> --pyg-python <…>        # ogbn-mag's size: made once in a minute or two, then about five

Makes (once, under --data-dir) a synthetic graph of ogbn-mag's shape: 1.94M papers, authors, institutions and fields, its 21M edges of four relations with
the reverses that PyG's example adds (`ToUndirected`), and 128 float32 features of every node. Times batches of --batch-size papers with
--fanouts neighbors of every relation (10 and 10, as PyG's example of ogbn-mag): sampling alone, and with the feature rows of all nodes. Ours
reads memory maps and also gives permanent ids, labels and splits. Peers run each in an interpreter that has them, on the same files, read into memory:
DGL 1.1.3 where --dgl-python is given; PyG with torch-sparse or pyg-lib where --pyg-python is. You should see a table, kept as results.md and
results.json under --out. Every figure is the best of --rounds rounds. Nothing else should run meanwhile.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jobs.bench.results import keep, machine, table
from jobs.run.exit_codes import run
from jobs.run.option_checks import check_writable
from jobs.run.reader import parse
from storage.errors import ConfigError
from storage.option_checks import at_least, check_options, more_than_0
from storage.source import Relation

if TYPE_CHECKING:
    import numpy as np

    from samplers.typed_router import TypedRouter

_PEER_TIMEOUT_S = 1800.0
FEATURE_DIM, NUM_CLASSES = 128, 349
# ogbn-mag's own counts; of each relation the reverse has another name, but for citations, which PyG's ToUndirected merges.
NODES = {"paper": 736_389, "author": 1_134_649, "institution": 8_740, "field_of_study": 59_965}
EDGES = (
    (Relation("author", "affiliated_with", "institution"), 1_043_998, "rev_affiliated_with"),
    (Relation("author", "writes", "paper"), 7_145_660, "rev_writes"),
    (Relation("paper", "cites", "paper"), 5_416_271, None),
    (Relation("paper", "has_topic", "field_of_study"), 7_505_078, "rev_has_topic"),
)


@dataclass(frozen=True)
class BenchConfig:
    """Time typed neighbor sampling."""

    scale: float = 1.0
    """Size of the graph, as a share of ogbn-mag's."""
    fanouts: tuple[int, ...] = (10, 10)
    """Neighbors per relation and hop."""
    batch_size: int = 1024
    """Roots per batch."""
    threads: tuple[int, ...] = (1, 2)
    """Thread counts to time."""
    batches: int = 20
    """Batches per round."""
    warmup: int = 3
    """Batches before the first round."""
    rounds: int = 3
    """Rounds; the best counts."""
    dgl_python: str | None = None
    """An interpreter with dgl 1.1.3."""
    pyg_python: str | None = None
    """An interpreter with torch-geometric, and torch-sparse or pyg-lib."""
    data_dir: Path = Path("data/bench")
    """Where the graph is kept."""
    out: Path = Path("runs/bench-typed")
    """Where the table goes."""

    def __post_init__(self) -> None:
        rows = at_least(self, 1, "rounds", "batch_size", "threads") | at_least(self, 2, "batches")
        check_options(self, rows | at_least(self, 0, "warmup") | more_than_0(self, "scale"))
        if not self.fanouts or not all(fanout > 0 or fanout == -1 for fanout in self.fanouts):
            raise ConfigError(f"fanouts: expected at least 1 per hop, or -1 for all, got {self.fanouts}; set --fanouts")
        for python in (self.dgl_python, self.pyg_python):
            if python is not None and shutil.which(python) is None:
                raise ConfigError(f"{python}: expected an interpreter, found none; set --dgl-python or --pyg-python")


class Row(NamedTuple):
    """One line of the table; no value: not measured."""

    what: str
    batches_per_s: float | None
    edges_per_s: float | None = None  # millions
    cpu_ms: float | None = None  # processor time of a batch; None: not measured, as of other processes
    note: str = ""


class MagShape:
    """A synthetic graph of ogbn-mag's shape, as .npy files in a folder; made where it is not there."""

    def __init__(self, folder: Path, scale: float) -> None:
        self.folder = folder
        self.num_nodes = {name: max(2, int(count * scale)) for name, count in NODES.items()}
        self.relations: list[Relation] = []
        for relation, _, reverse in EDGES:
            self.relations.append(relation)
            if reverse is not None:
                self.relations.append(Relation(relation.target, reverse, relation.source))
        if not (folder / "complete").exists():
            folder.mkdir(parents=True, exist_ok=True)
            self._make(scale)
            (folder / "complete").touch()

    def _make(self, scale: float) -> None:
        import numpy as np

        rng = np.random.default_rng(0)
        for name, count in self.num_nodes.items():
            np.save(self.folder / f"{name}.npy", rng.standard_normal((count, FEATURE_DIM), np.float32))
        for relation, edges, reverse in EDGES:
            # Skewed at both ends: a node's chance falls with the square root of its number.
            ends = [
                (self.num_nodes[name] * rng.random(max(1, int(edges * scale))) ** 2).astype(np.int64)
                for name in (relation.source, relation.target)
            ]
            if reverse is None:  # both ways in one relation, each edge once
                self._save(relation, np.concatenate(ends), np.concatenate(ends[::-1]))
            else:
                self._save(relation, *ends)
                self._save(Relation(relation.target, reverse, relation.source), *reversed(ends))

    def _save(self, relation: Relation, source: "np.ndarray", target: "np.ndarray") -> None:
        import numpy as np

        num_sources, num_targets = self.num_nodes[relation.source], self.num_nodes[relation.target]
        pair = np.unique(target * num_sources + source)
        degree = np.bincount(pair // num_sources, minlength=num_targets)
        np.save(self.folder / f"{relation}.indptr.npy", np.concatenate([[0], np.cumsum(degree)]))
        np.save(self.folder / f"{relation}.indices.npy", (pair % num_sources).astype(np.int32))

    def router(self) -> "TypedRouter":
        """Ours over the mapped files, in one partition. Papers train; of other types nothing but ids and features is there."""
        import numpy as np

        from samplers.partition_owner import PartitionOwner
        from samplers.router import LocalOwner, Router
        from samplers.typed_router import TypedRouter
        from storage.graph import Partition
        from storage.manifest import Manifest
        from storage.source import SPLIT_TRAIN

        def mapped(name: str) -> "np.ndarray":
            return np.asarray(np.load(self.folder / f"{name}.npy", mmap_mode="r"))

        def router(name: str, num_nodes: int, indptr: "np.ndarray", indices: "np.ndarray", **columns) -> Router:
            ids = np.arange(num_nodes)
            partition = Partition(0, 0, num_nodes, indptr, indices, ids, **columns)
            feature = columns.get("feature")
            manifest = Manifest(
                name,
                num_nodes,
                len(indices),
                (0, num_nodes),
                feature_dim=0 if feature is None else FEATURE_DIM,
                feature_dtype=None if feature is None else "float32",
                label_kind="class" if "label" in columns else None,
                num_classes=NUM_CLASSES if "label" in columns else None,
                num_split_sets=1 if "split" in columns else 0,
            )
            return Router(manifest, [LocalOwner(PartitionOwner(partition, num_nodes))])

        nodes = {}
        for name, count in self.num_nodes.items():
            columns = {"feature": mapped(name)}
            if name == "paper":
                columns["label"] = np.arange(count) % NUM_CLASSES
                columns["split"] = np.full((1, count), SPLIT_TRAIN, np.int8)
            nodes[name] = router(name, count, np.zeros(count + 1, np.int64), np.empty(0, np.int32), **columns)
        edges = {
            each: router(str(each), self.num_nodes[each.target], mapped(f"{each}.indptr"), mapped(f"{each}.indices"))
            for each in self.relations
        }
        return TypedRouter(nodes, edges)


def our_rows(config: BenchConfig, shape: MagShape) -> Iterator[Row]:
    """Ours, and the roots of its batches for the peers."""
    import numpy as np

    from jobs.bench.sampling_measures import rounds_of
    from samplers.options import TypedNeighborOptions
    from samplers.typed_neighbor import TypedNeighborSampler

    router = shape.router()
    for features in (False, True):
        options = TypedNeighborOptions(fanouts=config.fanouts, batch_size=config.batch_size, features=features)
        sampler = TypedNeighborSampler(router, options)
        numbers = [i % sampler.num_batches for i in range(config.warmup + config.batches)]
        roots = [sampler.roots_of(0, number) for number in numbers]
        np.save(shape.folder / "roots.npy", np.stack([some[: min(map(len, roots))] for some in roots]))

        def sample(number: int, sampler: TypedNeighborSampler = sampler) -> tuple[int, int, float]:
            start = time.thread_time()
            batch = sampler.sample(0, number)
            return batch.num_edges, batch.num_nodes, time.thread_time() - start

        what = "ours: sampling, rows of ids, labels, splits" + (", features" if features else "")
        for threads in config.threads:
            first = numbers[: max(config.warmup, threads)]
            rounds = rounds_of(sample, numbers[config.warmup :], first, threads, config.rounds)
            seconds, done = min(rounds)
            edges, nodes, _ = (sum(column) for column in zip(*done, strict=True))
            cpu = min(sum(each for _, _, each in done) for _, done in rounds)
            note = f"{edges / config.batches:,.0f} edges and {nodes / config.batches:,.0f} nodes a batch"
            rates = config.batches / seconds, edges / seconds / 1e6, 1e3 * cpu / config.batches
            yield Row(f"{what}; {threads} threads", *rates, note)


def peer_rows(config: BenchConfig, shape: MagShape) -> Iterator[Row]:
    """DGL and PyG on the same files and roots, each in an interpreter that has it. Raises ConfigError with its last line where it fails."""
    for peer, what, python in (
        ("dgl", "DGL 1.1.3 NeighborSampler", config.dgl_python),
        ("pyg", "PyG NeighborLoader", config.pyg_python),
    ):
        if python is None:
            yield Row(what, None, note=f"not measured; pass --{peer}-python")
            continue
        work = {
            "folder": str(shape.folder),
            "num_nodes": shape.num_nodes,
            "relations": [list(relation) for relation in shape.relations],
            **{name: getattr(config, name) for name in ("fanouts", "threads", "batches", "warmup", "rounds")},
        }
        try:
            done = subprocess.run(
                [python, str(Path(__file__).with_name("typed_peers.py")), peer, json.dumps(work)],
                env={**os.environ, "DGL_BACKEND": "pytorch"},
                capture_output=True,
                text=True,
                timeout=_PEER_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            raise ConfigError(
                f"{what}: not done within {_PEER_TIMEOUT_S:g} s; lower --scale or leave this peer out"
            ) from None
        if done.returncode:
            raise ConfigError(f"{what} with {python} failed: {' '.join(done.stderr.strip().splitlines()[-1:])}")
        yield from (Row(*row) for row in json.loads(done.stdout.splitlines()[-1]))


def measure(config: BenchConfig) -> Iterator[Row]:
    """All rows, one after the other."""
    shape = MagShape(config.data_dir / f"mag-shape-{config.scale:g}", config.scale)
    yield from our_rows(config, shape)
    yield from peer_rows(config, shape)


def main() -> None:
    config = parse(BenchConfig, __doc__)
    import torch

    torch.set_num_threads(1)
    check_writable(config.out, "--out")
    check_writable(config.data_dir, "--data-dir")
    on, rows = machine(), []
    for row in measure(config):
        rows.append(row)
        rates = (
            "" if row.batches_per_s is None else f"{row.batches_per_s:8.2f} batches/s {row.edges_per_s:7.2f} M edges/s"
        )
        cpu = "" if row.cpu_ms is None else f"{row.cpu_ms:8.1f} ms CPU a batch"
        print(f"{row.what:<72}{rates:<38}{cpu:<24}{row.note}", flush=True)
    columns = {"measure": "", "batches/s": ".2f", "M edges/s": ".2f", "CPU ms a batch": ".1f", "note": ""}
    text = "\n".join([on, "", *table(columns, rows)])
    keep(config.out, asdict(config), text, machine=on, rows=[row._asdict() for row in rows])
    print(f"kept in {config.out}/results.md and results.json")


if __name__ == "__main__":
    run(main)
