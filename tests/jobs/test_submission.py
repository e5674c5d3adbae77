"""Compares the files of predictions for OGB with the files that OGB's evaluators write, and with their scores."""

import gzip
import json
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch

import graphmill as gm
from graphmill.core.errors import ConfigError, DataError
from graphmill.jobs import ingest, predict, train_graphs
from graphmill.jobs.config.predict_options import PredictConfig
from graphmill.jobs.run import submission
from graphmill.storage.importers.memory.array_graph import ArrayGraph
from graphmill.storage.molecules.ogb_import import import_ogb
from tests.job_in_process import output_of
from tests.predictions import predictions_of

pytest.importorskip("ogb")
SMALL = ["--fit.epochs", 2, "--workers", 1, "--workers.launcher", "process"]


@pytest.fixture(scope="module")
def lsc():
    return import_ogb("ogb.lsc.pcqm4mv2").PCQM4Mv2Evaluator()


@pytest.fixture(scope="module")
def pcqm(tmp_path_factory):
    """A folder with a run on a small PCQM4Mv2. The parts list their rows in random order. RDKit cannot read one row of train and two rows of test-dev."""
    pytest.importorskip("rdkit")
    folder = tmp_path_factory.mktemp("pcqm")
    pieces = ("C", "CC", "N", "O", "CO", "C(C#N)", "C(F)", "S", "C1CC1", "C(C)C")
    texts = [f"C{pieces[n % 10]}{pieces[n // 10 % 10]}{pieces[n // 100]}" for n in range(200)]
    official = np.random.default_rng(0).permutation(200)
    parts = {"train": official[:120], "valid": official[120:160], "test-dev": official[160:180]}
    parts["test-challenge"] = official[180:]
    rejected = [official[20], official[165], official[171]]
    for row in rejected:
        texts[row] = "F[Si](F)(F)(F)(F)(F)(F)F(F)"
    known = {*parts["train"].tolist(), *parts["valid"].tolist()}
    rows = [f"{n},{text},{3 + len(text) % 5 if n in known else ''}" for n, text in enumerate(texts)]
    (folder / "ogb/pcqm4m-v2/raw").mkdir(parents=True)
    (folder / "ogb/pcqm4m-v2/raw/data.csv.gz").write_bytes(
        gzip.compress("\n".join(["idx,smiles,homolumogap", *rows]).encode())
    )
    torch.save(parts, folder / "ogb/pcqm4m-v2/split_dict.pt")
    output_of(ingest.main, "pcqm4mv2", "set", "--root", "ogb", cwd=folder)
    words = ["--model", "grit", "--model.num_layers", 1, "--model.width", 16, *SMALL]
    output_of(train_graphs.main, "--data", "set", *words, "--run.dir", "run", cwd=folder)
    training = [3 + len(texts[row]) % 5 for row in parts["train"].tolist() if row != rejected[0]]
    return folder, parts, rejected, np.float32(np.mean(training))


def test_the_leaderboards_files_have_every_official_row_in_its_order(pcqm):
    folder, parts, rejected, mean = pcqm
    said = output_of(predict.main, "run", "out", "--submission", "files", "--ogb-root", "ogb", cwd=folder)
    table = predictions_of(folder / "out").to_pydict()
    predicted = dict(zip(table["id"], table["prediction_homolumogap"], strict=True))
    for part in ("test-dev", "test-challenge"):
        path = folder / f"files/y_pred_pcqm4m-v2_{part}.npz"
        with np.load(path) as arrays:
            assert list(arrays) == ["y_pred"]
            expected = [predicted.get(row, mean) for row in parts[part].tolist()]
            np.testing.assert_array_equal(arrays["y_pred"], np.array(expected, np.float32), strict=True)
    lines = said.splitlines()[-2:]
    assert lines[0] == (
        f"files/y_pred_pcqm4m-v2_test-dev.npz: 20 rows, 2 of them molecules that ingestion rejected: the training mean {mean:.4f}"
    )
    assert lines[1] == "files/y_pred_pcqm4m-v2_test-challenge.npz: 20 rows"
    assert not {int(row) for row in rejected} & predicted.keys()
    # The folder of predictions holds Parquet files, as without --submission. If it is complete, the same command writes only the official files.
    assert gm.predict(str(folder / "run"), str(folder / "out")).num_rows == 197
    again = output_of(predict.main, "run", "out", "--submission", "files", "--ogb-root", "ogb", cwd=folder)
    assert "nothing to do" in again
    assert again.splitlines()[-2:] == lines


def test_a_part_alone_and_what_is_missing(pcqm, monkeypatch):
    folder, *_ = pcqm
    monkeypatch.chdir(folder)
    said = output_of(
        predict.main, "run", "dev", "--split", "test-dev", "--submission", "dev_files", "--ogb-root", "ogb", cwd=folder
    )
    assert [path.name for path in (folder / "dev_files").iterdir()] == ["y_pred_pcqm4m-v2_test-dev.npz"]
    assert "test-challenge" not in said
    with pytest.raises(
        ConfigError, match=r"expected predictions of test-dev or test-challenge, found none; set split=…"
    ):
        gm.predict("run", "valid", split="valid", submission="valid_files", ogb_root="ogb")
    with pytest.raises(DataError, match=r"split_dict\.pt missing at data/ogb/pcqm4m-v2; unpack https"):
        gm.predict("run", "dev", split="test-dev", submission="dev_files")
    (folder / "mine").mkdir()
    (folder / "mine/thesis.tex").touch()
    with pytest.raises(
        ConfigError, match=r"expected OGB's files or nothing there, .*thesis\.tex.*; choose another submission=…"
    ):
        gm.predict("run", "dev", split="test-dev", submission="mine", ogb_root="ogb")
    assert not (folder / "valid_files").exists()


@pytest.mark.parametrize("part", ["test-dev", "test-challenge"])
def test_official_files_are_those_of_ogb_byte_for_byte(lsc, part, tmp_path, monkeypatch):
    """The files have the official numbers of rows, which OGB's writer requires."""
    random = np.random.default_rng(1)
    count = {"test-dev": 147_037, "test-challenge": 147_432}[part]
    official = random.permutation(200_000)[:count]
    there = np.sort(random.permutation(official)[13:])
    targets = [SimpleNamespace(mean=5.5)]
    graphs = SimpleNamespace(
        original_id=there,
        split_names=("train",),
        manifest=SimpleNamespace(
            name="pcqm4mv2", num_rejected=13, measured=SimpleNamespace(parts=[None, SimpleNamespace(targets=targets)])
        ),
    )
    run = SimpleNamespace(is_graph_set=True, data_url="set", snapshot=1)
    monkeypatch.setattr(submission, "open_graphs", lambda *_: graphs)
    monkeypatch.setattr(submission, "official_split", lambda _: {"train": np.array([200_001]), part: official})
    value = random.normal(size=len(there))
    table = pa.table({"id": there, "prediction_gap": value})
    config = PredictConfig("run", "out", submission=str(tmp_path / "ours"))
    (line,) = submission.begin_submission(config, run)(table, "mae")
    assert "13 of them molecules that ingestion rejected: the training mean 5.5000" in line
    expected = np.full(200_000, 5.5)
    expected[there] = value
    lsc.save_test_submission({"y_pred": expected[official]}, str(tmp_path / "ogb"), part)
    name = f"y_pred_pcqm4m-v2_{part}.npz"
    assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "ogb" / name).read_bytes()
    graphs.original_id = np.append(there, official[~np.isin(official, there)][:2])
    with pytest.raises(ConfigError, match=rf"{part}: 2 official rows are not predicted; leave out --split"):
        list(submission.begin_submission(config, run)(table, "mae"))


def _set_of_graphs(target):
    Data = pytest.importorskip("torch_geometric.data").Data
    random = torch.Generator().manual_seed(0)
    for number in range(90):
        kind = torch.randint(0, 3, (4, 1), generator=random)
        part = ("train", "valid", "test")[number % 3]
        yield Data(x=kind, edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]), y=target(kind, number), part=part)


def _answers(kind, number):
    answers = torch.stack([kind.sum() > 4, kind.sum() % 2 == 0]).float()[None]
    if number % 7 == 0:
        answers[0, 1] = torch.nan
    return answers


# Each entry is a set or a graph, with its target, the arguments of the training, and OGB's evaluators for the files.
SETS = {
    "answers": (_answers, ["--task", "binary", "--task.metric", "ap"], {"ogbg-molpcba": "ap", "ogbg-moltox21": "rocauc"}),
    "two classes": (lambda kind, _: (kind.sum() > 4).long(), ["--task", "classes", "--task.metric", "rocauc"], {"ogbg-molhiv": "rocauc"}),
    "classes": (lambda kind, _: kind.sum() % 3, ["--task", "classes"], {"ogbg-ppa": "acc"}),
    "numbers": (lambda kind, _: kind.sum().float(), [], {"ogbg-mollipo": "rmse"}),
}  # fmt: skip


def _check(kind, folder, scores, evaluators):
    """Checks that OGB's evaluator gives the run's score for each split's file."""
    Evaluator = import_ogb(f"ogb.{kind}").Evaluator
    for split in ("train", "valid", "test"):
        with np.load(folder / f"y_pred_{split}.npz") as arrays:
            given = dict(arrays)
        for name, metric in evaluators.items():
            evaluator = Evaluator(name)
            evaluator.num_tasks = given["y_true"].shape[1]
            ours = scores[split][{"acc": "accuracy"}.get(metric, metric)]
            assert evaluator.eval(given)[metric] == pytest.approx(ours, rel=1e-6), (name, split)


@pytest.mark.parametrize("name", ["answers", *(pytest.param(name, marks=pytest.mark.long) for name in list(SETS)[1:])])
def test_evaluators_of_graphs_give_the_runs_scores(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    target, words, evaluators = SETS[name]
    gm.ingest_graphs(_set_of_graphs(target), "set", split="part")
    words = ["--data", "set", "--model", "grit", "--model.num_layers", 1, "--model.width", 16, *SMALL, *words]
    run = gm.train(gm.config(*words, "--run.dir", "run", kind="graphs"))
    table = gm.predict(run, submission="files")
    scores = json.loads((tmp_path / "run/predictions/_summary.json").read_text())["scores"]
    _check("graphproppred", tmp_path / "files", scores, evaluators)
    with np.load(tmp_path / "files/y_pred_test.npz") as arrays:
        assert arrays["id"].tolist() == table.filter(pa.compute.equal(table["split"], "test"))["id"].to_pylist()


@pytest.mark.parametrize("name", ["classes", pytest.param("answers", marks=pytest.mark.long)])
def test_evaluators_of_nodes_give_the_runs_scores(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    feature = random.normal(size=(300, 4))
    label = feature.argmax(axis=1) if name == "classes" else (feature[:, :3] > 0).astype(np.int8)
    ends = random.integers(0, 300, (2, 900))
    split = {part: np.arange(300)[number::3] for number, part in enumerate(("train", "valid", "test"))}
    gm.ingest(ArrayGraph("a", 300, *ends, feature=feature, label=label, split=split), "graph")
    words = [
        "--data",
        "graph",
        "--model",
        "gcn",
        *SMALL,
        *(["--task", "binary", "--task.metric", "rocauc"] if name == "answers" else []),
    ]
    run = gm.train(gm.config(*words, "--run.dir", "run"))
    gm.predict(run, submission="files")
    scores = json.loads((tmp_path / "run/predictions/_summary.json").read_text())["scores"]
    evaluators = {"ogbn-arxiv": "acc"} if name == "classes" else {"ogbn-proteins": "rocauc"}
    _check("nodeproppred", tmp_path / "files", scores, evaluators)


def test_predictions_that_no_evaluator_scores(tmp_path):
    run = SimpleNamespace(is_graph_set=False)
    write = submission.begin_submission(PredictConfig("run", "out", submission=str(tmp_path / "files")), run)
    links = pa.table({"id": [0], "split": ["none"], "destination": [[1]], "score": [[0.5]]})
    with pytest.raises(ConfigError, match="expected predictions of nodes or graphs beside their targets, found others"):
        list(write(links, "mrr"))
