"""Tests a user's model, sampler and task from a package outside the repository. Options name them by their import paths."""

import importlib
import json
import os
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from graphmill.core.errors import ConfigError
from graphmill.jobs import report
from graphmill.jobs.config.config import config_tree, read_config, read_saved
from graphmill.jobs.config.predict_options import PredictConfig
from graphmill.jobs.config.reader import read_words
from graphmill.jobs.config.registry import PLACEHOLDERS
from graphmill.jobs.config.short_help import HelpShown
from graphmill.jobs.replay import open_batches
from graphmill.jobs.resolve.resolve import Facts, read_resolved, resolve
from graphmill.jobs.run.train import config, train_main
from graphmill.jobs.subjects.nodes import Nodes
from graphmill.jobs.subjects.subject import open_prediction
from graphmill.jobs.sweeps.design import SweepOptions, design_sweep
from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions
from tests.job_in_process import run_job
from tests.printed_commands import written_files

PACKAGE = '''
    """Parts of somebody else's."""

    from dataclasses import dataclass, field

    import torch
    from torch import nn

    from graphmill.cluster.tasks import Classification
    from graphmill.samplers.methods.neighbor import NeighborSampler
    from graphmill.samplers.vocabulary.options import NeighborOptions


    class Averages(nn.Module):
        def __init__(self, in_dim, out_dim, width):
            super().__init__()
            self.hidden, self.out = nn.Linear(2 * in_dim, width), nn.Linear(width, out_dim)

        def forward(self, graphs, epoch=0):
            source, destination = graphs.edge_index
            total = torch.zeros_like(graphs.x).index_add_(0, destination, graphs.x[source])
            degree = torch.bincount(destination, minlength=len(graphs.x)).clamp_min(1)
            hidden = self.hidden(torch.cat([graphs.x, total / degree[:, None]], dim=1)).relu()
            return self.out(hidden[graphs.root_index])


    @dataclass(frozen=True)
    class Mean:
        """Means of the neighbors."""

        width: int = 8
        """Of the hidden layer."""

        def __post_init__(self):
            if self.width < 1:
                raise ValueError(f"width must be at least 1, got {self.width}; set width")

        def build(self, inputs):
            return Averages(inputs.node.dim, inputs.out_dim, self.width)


    @dataclass(frozen=True)
    class Few:
        """The neighbor sampler with small batches."""

        GIVEN = ("seed", "split_set", "root_split", "shuffle")
        fanouts: tuple[int, ...] = (3, 2)
        batch_size: int = 16
        seed: int = 0
        split_set: int = 0
        root_split: int | None = None
        shuffle: bool = True

        def build(self, router, num_ranks):
            told = {name: getattr(self, name) for name in self.GIVEN}
            return NeighborSampler(router, NeighborOptions(self.fanouts, self.batch_size, **told), num_ranks)


    @dataclass(frozen=True)
    class Focal(Classification):
        gamma: float = 2.0

        def loss(self, prediction, target):
            chosen = prediction.float().log_softmax(dim=1).gather(1, target.clamp_min(0)[:, None])[:, 0]
            return torch.where(target >= 0, -(1 - chosen.exp()) ** self.gamma * chosen, 0.0).sum()


    @dataclass(frozen=True)
    class FocalOptions:
        """Classification whose loss looks away from what is easy."""

        gamma: float = 2.0
        """How far."""

        def build(self, inputs):
            return Focal(inputs.out_dim, gamma=self.gamma)


    class NoDataclass:
        def build(self, inputs):
            return None
'''
OWN = (
    *("--model", "somebodys_parts:Mean", "--model.width", "12"),
    *("--sampler", "somebodys_parts:Few", "--sampler.fanouts", "4", "2"),
    *("--task", "somebodys_parts:FocalOptions", "--task.gamma", "1.5"),
)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "somebodys_parts.py").write_text(textwrap.dedent(PACKAGE))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(tmp_path)
    yield folder
    sys.modules.pop("somebodys_parts", None)


@pytest.fixture
def graph(tmp_path: Path):
    ingest(SyntheticGraph(SyntheticOptions(num_nodes=400)), str(tmp_path / "graph"), IngestOptions(num_partitions=2))
    return open_graph(str(tmp_path / "graph"))


def config_of(*words: str, kind: str = "nodes"):
    return read_config(config_tree(kind, read_words(words)[1]))


def test_a_plan_takes_a_model_a_sampler_and_a_task_of_ones_own(package, graph, capsys):
    words = ("--data", graph.url, *OWN, "--evaluation", "sampled", "--workers", "1", "--plan")
    assert train_main("A run.", "nodes", words=words) == 0
    plan = capsys.readouterr().out
    hidden = 2 * graph.manifest.feature_dim * 12 + 12
    assert f"{hidden + 12 * graph.manifest.num_classes + graph.manifest.num_classes:,} parameters" in plan
    assert "refused  nothing" in plan


@pytest.mark.long
def test_a_plan_without_the_graph_leaves_the_steps_to_ones_own_sampler(package, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = (*OWN, "--evaluation", "sampled", "--workers", "1", "--plan")
    assert train_main("A run.", "nodes", words=words) == 0
    assert "the sampler tells them once the graph is there" in capsys.readouterr().out


@pytest.mark.long
def test_the_guides_parts_are_planned_together(package, graph, capsys):
    for name, text in written_files().items():
        (package / name).write_text(text)
    own = ("--model", "my_sage:MeanSAGE", "--sampler", "balanced:BalancedOptions", "--task", "focal_loss:Focal")
    words = ("--data", graph.url, *own, "--sampler.num_batches", "4", "--sampler.neighbors.fanouts", "3", "3")
    assert train_main("A run.", "nodes", words=(*words, "--workers", "1", "--plan")) == 0
    plan = capsys.readouterr().out
    assert "refused  nothing" in plan
    assert "4 batches" in plan
    for name in ("my_sage", "balanced", "focal_loss"):
        sys.modules.pop(name, None)


def test_help_lists_their_options(package, capsys):
    with pytest.raises(HelpShown):
        train_main("A run.", "nodes", words=(*OWN, "--help", "all"))
    told = capsys.readouterr().out
    for flag in (
        "--model.width INT",
        "--sampler.fanouts INT …",
        "--task.gamma FLOAT",
        "Of the hidden layer. (default 12)",
    ):
        assert flag in told
    assert "--sampler.root_split" not in told


def test_a_configuration_and_a_run_are_read_back_equal(package, graph):
    config = config_of("--data", graph.url, *OWN)
    assert read_config(config.tree()) == config
    assert read_config(json.loads(json.dumps(config.tree()))) == config
    resolved = Nodes(graph).resolve(config, None)
    again = read_resolved(json.loads(json.dumps(resolved.tree())))
    assert again == resolved
    own = again.identity["own"]
    assert own["model"]["path"] == "somebodys_parts:Mean"
    assert {len(own[group]["source_hash"]) for group in ("model", "sampler", "task")} == {64}
    assert again.training.fanouts == (4, 2)
    assert again.training.root_split == 1
    assert again.build_model().model.hidden.out_features == 12


@pytest.mark.parametrize("kind", ["nodes", "graphs"])
def test_our_own_components_are_read_back_equal(kind):
    from graphmill.jobs.config.registry import TABLES

    for group, table in TABLES.items():
        for name in table[kind]:
            of_subgraphs = kind == "nodes" and name in ("grit", "ppgt")
            words = ["--sampler", "node2subgraph", "--evaluation", "sampled"] if of_subgraphs else []
            if kind == "nodes" and (group, name) == ("sampler", "neighbor"):
                words = ["--sampler.fanouts", "3", "2", "1"]
            if kind == "nodes" and (group, name) in (("task", "binary"), ("task", "regression")):
                words = ["--data", "a graph"]  # nodes of the embedded graph have one class, which fits neither task
            config = config_of(
                f"--{group}", name, *words, "--data.folder", "a folder", "--fit.clip_norm", "none", kind=kind
            )
            assert read_config(json.loads(json.dumps(config.tree()))) == config
            if (group, name) != ("sampler", "saint"):
                resolved = resolve(config, Facts(PLACEHOLDERS[kind], {"targets": ["gap"]}, None))
                assert read_resolved(json.loads(json.dumps(resolved.tree()))) == resolved


def test_a_parts_own_refusal_names_the_flag(package):
    with pytest.raises(ConfigError, match=r"^width must be at least 1, got 0; set --model.width$"):
        config_of("--model", "somebodys_parts:Mean", "--model.width", "0")
    with pytest.raises(
        ConfigError, match=r"option --model\.widht of --model somebodys_parts:Mean; perhaps --model\.width"
    ):
        config_of("--model", "somebodys_parts:Mean", "--model.widht", "3")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--model", "somebodys_parts:NoDataclass"), "to be a frozen dataclass with a method build"),
        (("--model", "somebodys_parts:Absent"), "somebodys_parts:Absent: cannot be imported"),
        (("--model", "nobodys:Mean"), "nobodys:Mean: cannot be imported .*install its package"),
        (("--model", "Mean"), "expected one of geco, .* or package.module:Name of your own, got 'Mean'"),
    ],
)
def test_what_cannot_be_a_part_is_one_line(package, words, told):
    with pytest.raises(ConfigError, match=told) as refused:
        config_of(*words)
    assert "\n" not in str(refused.value)


def test_splits_need_a_sampler_that_is_told_its_roots(package, graph):
    text = (package / "somebodys_parts.py").read_text()
    (package / "somebodys_parts.py").write_text(
        text.replace("root_split: int | None = None", "other: int = 1").replace('"root_split", ', "")
    )
    importlib.invalidate_caches()
    config = config_of("--data", graph.url, *OWN, "--evaluation", "sampled")
    with pytest.raises(ConfigError, match="needs a sampler with the field root_split, somebodys_parts:Few has none"):
        Nodes(graph).resolve(config, None)


def test_many_graphs_take_no_sampler_of_ones_own(package):
    with pytest.raises(ConfigError, match="sampler: your own draw from one graph, many graphs have graph-batches"):
        config_of("--sampler", "somebodys_parts:Few", kind="graphs")


def test_a_module_in_the_folder_of_the_run_is_imported(package, monkeypatch):
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", str(package))])
    monkeypatch.chdir(package)
    assert config_of("--model", "somebodys_parts:Mean").model.options.width == 8


def test_a_strangers_run_imports_nothing_unless_asked(package, graph, tmp_path):
    resolved = Nodes(graph).resolve(config_of("--data", graph.url, *OWN), None)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps(resolved.tree()))
    sys.modules.pop("somebodys_parts")
    (package / "somebodys_parts.py").write_text("raise SystemExit('it was imported')")

    class Run:
        path = tmp_path / "run"

    with pytest.raises(
        ConfigError, match="names code of its own, somebodys_parts:Mean; pass --allow_import"
    ) as refused:
        open_prediction(Run(), PredictConfig("run", "out"))
    assert "\n" not in str(refused.value)
    resume = ("--run.resume", str(tmp_path / "run"), "--plan")
    with pytest.raises(ConfigError, match="names code of its own, somebodys_parts:Mean; pass --allow_import"):
        train_main("A run.", "nodes", words=resume)
    assert "somebodys_parts" not in sys.modules
    with pytest.raises(SystemExit, match="it was imported"):
        train_main("A run.", "nodes", words=(*resume, "--allow-import"))
    with pytest.raises(SystemExit, match="it was imported"):
        read_saved(str(tmp_path / "run"), "", allow_import=True)


def test_a_strangers_recipe_imports_nothing_unless_asked(package, tmp_path, monkeypatch):
    """Checks a recipe, its base, a study, the study's arms, and the folder of a sweep."""
    recipe, base, study = (package / f"{name}.yaml" for name in ("recipe", "base", "study"))
    recipe.write_text("model: somebodys_parts:Mean")
    base.write_text(f"base: {recipe}\nfit: {{epochs: 2}}")
    study.write_text('recipe: geco/cora.yaml\narms: {one: {fit.epochs: "3 --model.name somebodys_parts:Mean"}}')
    here, link = tmp_path / "here", tmp_path / "here" / "link.yaml"
    here.mkdir()
    link.symlink_to(recipe)
    monkeypatch.chdir(here)
    (package / "somebodys_parts.py").write_text("raise SystemExit('it was imported')")
    resumed = replace(
        design_sweep(SweepOptions(seeds=(1,), baseline=None), ()), words=("--model", "somebodys_parts:Mean")
    )
    resumed = replace(resumed, options=replace(resumed.options, resume=str(package)))
    allowed = replace(resumed, options=replace(resumed.options, allow_import=True))
    ways = {
        "recipe": lambda *flag: train_main("A run.", words=[str(recipe), "--plan", *flag]),
        "base": lambda *flag: train_main("A run.", words=[str(base), *flag]),
        "link": lambda *flag: train_main("A run.", words=["link.yaml", *flag]),
        "python": lambda *flag: config(recipe=str(recipe), allow_import=bool(flag)),
        "swept": lambda *flag: design_sweep(SweepOptions(recipe=str(recipe), seeds=(1,), allow_import=bool(flag)), ()),
        "study": lambda *flag: design_sweep(SweepOptions(study=str(study), allow_import=bool(flag)), ()),
        "sweep": lambda *flag: (allowed if flag else resumed).config({}, 1),
    }
    for way in ways.values():
        with pytest.raises(ConfigError, match="names code of its own, somebodys_parts:Mean; pass --allow_import"):
            way()
        assert "somebodys_parts" not in sys.modules
        with pytest.raises(SystemExit, match="it was imported"):
            way("--allow-import")
    monkeypatch.chdir("/")  # every recipe lies below this folder
    with pytest.raises(ConfigError, match="names code of its own"):
        train_main("A run.", words=[str(recipe), "--plan"])
    monkeypatch.chdir(package)  # recipes in the working folder count as the user's own
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    if recipe.stat().st_uid:  # recipes of root are allowed for every user
        with pytest.raises(ConfigError, match="names code of its own"):
            train_main("A run.", words=["recipe.yaml", "--plan"])
    monkeypatch.undo()
    monkeypatch.chdir(package)
    monkeypatch.syspath_prepend(str(package))
    with pytest.raises(SystemExit, match="it was imported"):
        train_main("A run.", words=["recipe.yaml", "--plan"])


def test_a_strangers_run_is_reported_and_not_replayed(package, tmp_path, monkeypatch):
    resolved = resolve(config_of(*OWN), Facts(PLACEHOLDERS["nodes"], {}, None))
    (package / "run").mkdir()
    (package / "run" / "config.json").write_text(json.dumps(resolved.tree()))
    sys.modules.pop("somebodys_parts")
    (package / "somebodys_parts.py").write_text("raise SystemExit('it was imported')")
    assert run_job(report.main, [str(package / "run")], tmp_path).returncode == 0
    assert "somebodys_parts" not in sys.modules
    with pytest.raises(ConfigError, match="names code of its own, somebodys_parts:Mean; pass --allow_import"):
        open_batches(str(package / "run"))
    with pytest.raises(SystemExit, match="it was imported"):
        open_batches(str(package / "run"), allow_import=True)
