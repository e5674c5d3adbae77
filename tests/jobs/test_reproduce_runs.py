"""Runs each row of the papers' figures at a tiny scale: its own command or the trainings of its study, on data in the publishers' layouts."""

import importlib
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import yaml

from graphmill.jobs import ingest, train_graphs, train_nodes
from graphmill.jobs.config.config import RECIPES
from graphmill.jobs.papers.brec import CATEGORIES
from graphmill.jobs.papers.published import read_rows
from graphmill.jobs.reproduce import read_command
from tests.job_in_process import output_of
from tests.jobs.test_brec import ring, write_graph6
from tests.raw_layouts import ogb_nodes, pcqm4mv2, write_set

# Commands whose tests are in other files, because they need a finished run or a checkpoint.
ELSEWHERE = {
    "predict": "test_submission.py",
    "convert_checkpoint": "test_convert_checkpoint.py",
    "reproduce": "test_reproduce.py",
    "graphmill.jobs.papers.attention_distance": "test_attention_papers.py",
}
SMALL = {
    "graphmill.jobs.papers.brec": "--pairs basic:0 --epochs 1 --num-layers 1",
    "graphmill.jobs.papers.hop_attention": "--graphs 1 --steps 2 --hops 1",
    "graphmill.jobs.papers.equivariant_basis": "--scale smoke",
    "graphmill.jobs.papers.norm_autoencoder": "--steps 2",
    "graphmill.jobs.papers.color_refinement": "--steps 3",
    "bench": "--device cpu --log2-from 6 --log2-to 7 --budget-s 5 --levels attention --layers 1",
}
FEW = "--fit.epochs 1 --fit.warmup_epochs 0 --fit.warmup_steps none --fit.start_from none"
TINY = {
    "tokengt": "--model.num_layers 2 --model.width 64 --model.num_heads 4",
    "grit": "--model.num_layers 2",
    "ppgt": "--model.num_layers 2 --model.width 32 --model.num_heads 4 --model.edge_width 32",
    "geco": "--model.num_layers 2 --model.width 32",
    "primphormer": "--model.num_layers 2",
}
ROWS = [row for row in read_rows() if row.words()[0] not in ELSEWHERE]
TRAININGS = [row for row in ROWS if row.words()[0] in ("sweep", "train_nodes", "train_graphs")]


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    """A function that ingests a tiny set of a name once and returns its folder."""
    root = tmp_path_factory.mktemp("graphs")

    @cache
    def stored(name: str, holdout: bool = False) -> Path:
        place, raw = root / f"{name}-{holdout}", root / f"raw-{name}-{holdout}"
        raw.mkdir()
        if name == "brec":
            pair = [write_graph6(ring(6)), write_graph6(ring(3, 3))]
            place.mkdir()
            for category, count in CATEGORIES.items():
                np.save(place / f"{category}.npy", np.array(pair * count))
            return place
        more = ["--root", raw]
        if name.startswith("ogbn-"):
            pytest.importorskip("ogb")
            ogb_nodes(name, raw)
            more = ["--partitions", 2, "--ogb-root", raw]
        elif name == "pcqm4mv2":
            pytest.importorskip("rdkit")
            pcqm4mv2(raw)
            more += ["--holdout", 8] if holdout else []
        else:
            write_set(name, raw)
        output_of(ingest.main, name, place, *more)
        return place

    return stored


def test_what_is_tested_elsewhere_has_its_test():
    there = {path.name for path in Path(__file__).parent.glob("test_*.py")}
    assert {*ELSEWHERE.values()} <= there
    assert len(ROWS) + sum(row.words()[0] in ELSEWHERE for row in read_rows()) == 172


@pytest.mark.long
@pytest.mark.parametrize("row", TRAININGS, ids=lambda row: f"{row.paper} {row.table} {row.row}")
def test_the_trainings_of_a_row_run(row, graphs, tmp_path):
    for place, config in enumerate(read_command(row.words()).values()):
        name = Path(config.data.path).name
        recipe = tmp_path / f"{place}.yaml"
        recipe.write_text(yaml.safe_dump(config.tree()))
        job = train_nodes if config.kind == "nodes" else train_graphs
        more = [] if config.kind == "nodes" else ["--sampler.max_graphs", "12"]
        if config.sampler.name == "node2subgraph":
            more = ["--sampler.max_nodes", "16"]
        words = [*FEW.split(), *TINY.get(config.model.name, "").split(), *more]
        stored = graphs(name, "holdout" in _head(row) if name == "pcqm4mv2" else False)
        said = output_of(job.main, recipe, "--data", stored, *words, "--run.dir", tmp_path / f"run-{place}")
        assert "test" in said or "valid" in said


def _head(row) -> str:
    """The comment of a training's recipe."""
    (recipe,) = [word for word in row.words()[1:2] if word.endswith(".yaml")] or [""]
    return (RECIPES / recipe).read_text() if recipe else ""


@pytest.mark.long
@pytest.mark.parametrize(
    "row", [row for row in ROWS if row not in TRAININGS], ids=lambda row: f"{row.paper} {row.table} {row.row}"
)
def test_an_experiment_of_its_own_runs(row, graphs, tmp_path):
    words = row.words()
    own = 2 if words[0] == "bench" else 1
    name = words[0] if own == 1 else f"graphmill.jobs.bench.{words[1]}"
    words = [str(graphs(word.removeprefix("graphs/"), False)) if word.startswith("graphs/") else word for word in words]
    module = importlib.import_module(name)
    out = [] if name.endswith("color_refinement") else ["--out", tmp_path / "out"]
    output_of(module.main, *words[own:], *SMALL[words[0]].split(), *out, cwd=tmp_path)
