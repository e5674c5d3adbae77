"""Tests a user's kind of run from a package outside the repository, which predicts a number for each edge.

A run of this kind is planned, trained, replayed, continued and used for prediction.
"""

import json
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from graphmill.core.errors import ConfigError
from graphmill.jobs import predict, replay, report
from graphmill.jobs.config.config import config_tree, read_config
from graphmill.jobs.config.reader import UsageError, read_words
from graphmill.jobs.config.short_help import HelpShown
from graphmill.jobs.run.train import config as config_of
from graphmill.jobs.run.train import train, train_main
from tests.job_in_process import run_job

PACKAGE = '''
    """Regression of numbers of edges, each from the features of its two ends."""

    import hashlib
    from dataclasses import dataclass, field, replace
    from pathlib import Path
    from types import SimpleNamespace
    from typing import Any, Literal

    import numpy as np
    import torch
    from torch import nn

    from graphmill.cluster.checkpoints.checkpoint import DATA
    from graphmill.cluster.prediction.predictor import UNSPLIT
    from graphmill.cluster.tasks import Regression
    from graphmill.core.errors import ConfigError
    from graphmill.jobs.config.registry import Inputs, Kind, Row
    from graphmill.jobs.resolve.resolve import Facts, resolve
    from graphmill.jobs.plan.scoring_plan import add_training
    from graphmill.jobs.plan.tries import Tries
    from graphmill.jobs.subjects.subject import Prediction, Subject, checked
    from graphmill.models.options.features import Features
    from graphmill.samplers.methods.registry import given
    from graphmill.storage.format.source import SPLITS


    @dataclass(frozen=True)
    class EdgeData:
        """Edges with numbers."""

        path: str | None = None
        """A .npz file with x [n, F], ends [e, 2], value [e] and split [e]."""
        snapshot: int | None = None
        """Of this kind there is one."""


    @dataclass(frozen=True)
    class Scores:
        """How splits are scored."""

        batch_size: int = 50
        """Edges."""
        estimate = None
        keeps_best = True

        def batches(self, options):
            return replace(options, batch_size=self.batch_size)


    @dataclass(frozen=True)
    class SliceOptions:
        """Edges in a random order, some at a time."""

        GIVEN = ("seed", "root_split", "shuffle")
        batch_size: int = 20
        """Edges."""
        seed: int = 0
        root_split: int = 1
        shuffle: bool = True


    @dataclass(frozen=True)
    class TwoEndsOptions:
        """A perceptron over both ends."""

        GIVEN = ("in_dim", "out_dim")
        width: int = 16
        """Of the hidden layer."""
        in_dim: int = 1
        out_dim: int = 1


    class TwoEnds(nn.Module):
        def __init__(self, options):
            super().__init__()
            self.hidden = nn.Linear(options.in_dim, options.width)
            self.head = nn.Linear(options.width, options.out_dim)

        def forward(self, batch):
            return self.head(self.hidden(batch.x).relu())


    @dataclass(frozen=True)
    class NumberOptions:
        """Numbers of edges."""

        metric: Literal["mae", "rmse"] = "mae"
        """What is scored."""


    @dataclass(frozen=True)
    class Ends:
        x: Any
        value: Any
        id: Any
        epoch: int
        index: int

        @property
        def num_nodes(self):
            return 2 * len(self.id)

        @property
        def num_edges(self):
            return len(self.id)

        @property
        def num_bytes(self):
            return self.x.nbytes


    class Slices:
        def __init__(self, opened, options, num_ranks):
            self.opened, self.options = opened, options
            self.edges = np.flatnonzero(opened.arrays["split"] == options.root_split)
            self.num_batches = -(-len(self.edges) // options.batch_size // num_ranks) * num_ranks
            self.content_hash = opened.hash

        def sample(self, epoch, batch):
            order = self.edges
            if self.options.shuffle:
                order = np.random.default_rng((self.options.seed, epoch)).permutation(order)
            chosen, arrays = np.array_split(order, self.num_batches)[batch], self.opened.arrays
            x = arrays["x"][arrays["ends"][chosen]].reshape(len(chosen), -1)
            return Ends(x, arrays["value"][chosen], chosen, epoch, batch)


    class OpenEdges:
        def __init__(self, path):
            content = Path(path).read_bytes()
            self.arrays, self.hash = dict(np.load(path)), hashlib.sha256(content).hexdigest()

        def sampler(self, options, num_ranks):
            return Slices(self, options, num_ranks)

        def collate(self, made):
            tensors = {name: torch.from_numpy(getattr(made, name)) for name in ("x", "value", "id")}
            return replace(made, **tensors)

        def target(self, batch):
            return batch.value[:, None]

        def ids(self, batch):
            return batch.id

        def sizes(self, batch):
            return 2 * len(batch.id), len(batch.id)

        def split_codes(self, batch):
            return None

        def near_middle(self):
            return 0.5

        def check(self):
            pass

        def traffic(self):
            return None


    @dataclass(frozen=True)
    class StoredEdges:
        path: str

        def open(self):
            return OpenEdges(self.path)


    @dataclass(frozen=True)
    class Edges(Subject):
        path: str
        edges: OpenEdges

        @classmethod
        def find(cls, config):
            if config.data.path is None:
                raise ConfigError("data: expected a .npz file of edges, got none; set --data")
            return cls.at(config.data.path, None, None)

        @classmethod
        def at(cls, url, snapshot, options):
            return cls(url, OpenEdges(url))

        @property
        def stored(self):
            size = sum(array.nbytes for array in self.edges.arrays.values())
            files = {"edges.npz": SimpleNamespace(num_bytes=size)}
            return SimpleNamespace(
                url=self.path,
                manifest=SimpleNamespace(content_hash=self.edges.hash, snapshot=1, origin=None, files=files),
            )

        def unit(self, config):
            return "edges"

        @property
        def text(self):
            return f"of {len(self.edges.arrays['value'])} edges with a number at {self.path}"

        def resolve(self, config, resources):
            inputs = Inputs(node=Features(dim=2 * self.edges.arrays["x"].shape[1]))
            return resolve(config, Facts(inputs, {DATA: self.edges.hash[:16]}, resources, self.num_bytes))

        def _training(self):
            return self.edges.arrays["value"][self.edges.arrays["split"] == SPLITS["train"]]

        def task(self, resolved):
            value = self._training()
            return Regression((float(value.mean()),), (float(value.std()),), metric=resolved.config.metric)

        def data(self, resolved):
            return StoredEdges(self.path)

        def rivals(self, config):
            return "mean"

        def baselines(self, served, resolved, task):
            arrays, mean = self.edges.arrays, self._training().mean()
            error = {split: np.abs(arrays["value"][arrays["split"] == SPLITS[split]] - mean) for split in ("valid", "test")}
            return {"constant": {split: float(off.mean()) for split, off in error.items()}}

        def described(self, resolved, task):
            return {"task": dict(vars(task))}

        def plan(self, plan, resolved):
            tries = Tries(self.edges, resolved.build_model())
            add_training(plan, resolved, tries, self.training(resolved), self.evaluation(resolved), self.task(resolved), "edges")

        def predict(self, run, options, trained):
            task = Regression(**{name: value for name, value in run.summary["task"].items()})
            samplers = {**trained.evaluation, UNSPLIT: given(trained.evaluation["test"], root_split=0)}
            codes = {**SPLITS, UNSPLIT: 0}
            return Prediction(
                subject=self,
                trained=trained,
                data=StoredEdges(self.path),
                samplers=samplers,
                build_model=checked(run, self.path, trained.build_model),
                task=task,
                members=lambda _: lambda split: np.flatnonzero(self.edges.arrays["split"] == codes[split]),
                target_names=("",),
                has_targets=True,
            )


    EDGES = Kind(
        about="a run on numbers of edges",
        data="somebodys_edges:EdgeData",
        evaluation="somebodys_edges:Scores",
        subject="somebodys_edges:Edges",
        models={"two-ends": Row("somebodys_edges:TwoEndsOptions", "somebodys_edges:TwoEnds")},
        samplers={"slices": Row("somebodys_edges:SliceOptions", "somebodys_edges:Slices")},
        tasks={"numbers": Row("somebodys_edges:NumberOptions")},
    )
    NO_KIND = 3
'''
KIND = "somebodys_edges:EDGES"


@pytest.fixture
def edges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with 400 edges. The target of an edge is the product of one feature of each end. 20 edges are in no split."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "somebodys_edges.py").write_text(textwrap.dedent(PACKAGE))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x, ends = rng.normal(size=(60, 3)).astype(np.float32), rng.integers(0, 60, (400, 2))
    split = np.repeat([1, 2, 3, 0], [260, 60, 60, 20]).astype(np.int8)
    np.savez("edges.npz", x=x, ends=ends, value=x[ends[:, 0], 0] * x[ends[:, 1], 1], split=split)
    yield tmp_path / "edges.npz"
    sys.modules.pop("somebodys_edges", None)


def words(*more: str) -> list[str]:
    small = ("--fit.epochs", "30", "--fit.learning_rate", "0.01", "--workers", "1", "--workers.launcher", "process")
    return ["--kind", KIND, "--data", "edges.npz", *small, *more]


def test_a_kind_of_ones_own_is_planned_trained_replayed_and_predicted(edges, capsys):
    assert train_main("A run.", words=words("--plan")) == 0
    plan = capsys.readouterr().out
    assert "400 edges with a number" in plan
    assert "refused  nothing" in plan
    run = train(config_of(*words("--run.dir", "run")[2:], kind=KIND))
    told = capsys.readouterr().out
    assert "graph of 400 edges with a number at edges.npz" in told
    assert run.summary["predicted"] == "edges"
    assert run.scores["test"] < 0.7 * run.summary["baselines"]["constant"]["test"]
    own = json.loads((edges.parent / "run" / "config.json").read_text())["resolved"]["identity"]["own"]["kind"]
    assert (own["path"], len(own["source_hash"])) == (KIND, 64)
    table = predict.predict("run", allow_import=True)
    printed = capsys.readouterr().out
    assert f"test mae {run.scores['test']:.4f} over 60, as in the run's summary" in printed
    assert table.column_names[0] == "id"
    assert table["id"].to_pylist() == list(range(400))
    batches = replay.open_batches("run", allow_import=True)
    assert replay.digest(batches.sampler.sample(0, 0)) == replay.digest(batches.sampler.sample(0, 0))
    assert run_job(report.main, ["run"], edges.parent).returncode == 0
    assert train_main("A run.", words=["--run.resume", "run", "--fit.epochs", "31", "--allow_import"]) == 0
    assert "epoch" in capsys.readouterr().out
    assert len((edges.parent / "run" / "metrics.jsonl").read_text().splitlines()) == 31


def test_options_of_a_kind_of_ones_own_are_read_and_listed(edges, capsys):
    tree = config_tree("nodes", read_words(words("--sampler.batch_size", "7", "--model.width", "9"))[1])
    read = read_config(tree)
    assert (read.kind, read.sampler.options.batch_size, read.model.options.width) == (KIND, 7, 9)
    assert read_config(json.loads(json.dumps(read.tree()))) == read
    with pytest.raises(HelpShown):
        train_main("A run.", words=["--kind", KIND, "--help", "all"])
    listed = capsys.readouterr().out
    assert "--evaluation.batch_size INT" in listed
    assert "--relational" not in listed
    with pytest.raises(UsageError, match=r"option --model\.widht of --model two-ends; perhaps --model\.width"):
        read_config(config_tree("nodes", read_words(words("--model.widht", "9"))[1]))
    with pytest.raises(UsageError, match=r"--data\.nodes .*is for a run on the nodes of one graph|--data\.nodes"):
        read_config(config_tree("nodes", read_words(words("--data.nodes", "9"))[1]))


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--embeddings.width", "8"), "width: expected the nodes of one graph, got a run on numbers of edges"),
        (
            ("--baseline", "gcn"),
            "baseline: expected the nodes of one graph, or trees, got a run on numbers of edges and gcn",
        ),
        (("--run.parallel", "graph"), "expected a model that can be spread over workers"),
        (("--data", "none"), "data: expected a .npz file of edges, got none; set --data"),
    ],
)
def test_what_only_one_graph_has_is_refused(edges, more, told):
    with pytest.raises(ConfigError, match=told):
        train_main("A run.", words=words(*more, "--run.dir", "no"))
    assert not (edges.parent / "no").exists()


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("somebodys_edges:NO_KIND", "kind: expected somebodys_edges:NO_KIND to be a Kind"),
        ("somebodys_edges:ABSENT", "somebodys_edges:ABSENT: cannot be imported"),
        ("nobodys:EDGES", "nobodys:EDGES: cannot be imported .*install its package"),
        ("some body:EDGES", "kind: expected one of nodes, graphs, or package.module:Name of your own"),
    ],
)
def test_what_is_no_kind_is_one_line(edges, kind, told):
    with pytest.raises(ConfigError, match=told) as refused:
        read_config(config_tree("nodes", {"kind": kind}))
    assert "\n" not in str(refused.value)


def test_a_strangers_kind_is_not_imported_unless_asked(edges):
    train(config_of(*words("--fit.epochs", "1", "--run.dir", "run")[2:], kind=KIND))
    sys.modules.pop("somebodys_edges")
    (edges.parent / "elsewhere" / "somebodys_edges.py").write_text("raise SystemExit('it was imported')")
    for way in (
        lambda **allowed: predict.predict("run", **allowed),
        lambda **allowed: replay.open_batches("run", **allowed),
        lambda **allowed: train_main("A run.", words=["--run.resume", "run", *["--allow_import"] * bool(allowed)]),
    ):
        with pytest.raises(
            ConfigError, match="kind: names code of its own, somebodys_edges:EDGES; pass --allow_import"
        ):
            way()
        with pytest.raises(SystemExit, match="it was imported"):
            way(allow_import=True)
