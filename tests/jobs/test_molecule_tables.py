"""Tests a user's tables of molecules from end to end: predictions have the table's ids, each target has scores, and a table without targets can only be
predicted."""

import json
import math
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from graphmill.jobs import ingest, inspect_graph, predict, train_graphs
from graphmill.storage.graph_sets.graph_set import open_graphs, shard_batch
from graphmill.storage.graph_sets.graph_set_writer import GraphSetInfo, write_graphs
from graphmill.storage.graph_sets.packed_graphs import PackedGraphs
from tests.job_in_process import output_of
from tests.predictions import predictions_of

pytest.importorskip("rdkit")
pytest.importorskip("ogb")

RUN = [
    *("--model.width", "16", "--model.num_layers", "1", "--sampler.max_graphs", "32", "--fit.micro_batches", "1"),
    *("--workers", "1", "--workers.launcher", "process", "--fit.epochs", "2", "--run.dir", "run"),
]


def smiles(count):
    pieces = ("C", "CC", "N", "O", "CO", "C(C#N)", "C(F)", "S", "C1CC1", "C(C)C")
    return [f"C{pieces[n % 10]}{pieces[n // 10 % 10]}{pieces[n // 100]}" for n in range(count)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a run on two targets. The values of one target are in the millions."""
    folder = tmp_path_factory.mktemp("tables")
    rows = [
        f"M{7 * n % 300},{text},{len(text) + n % 3},{1e6 * text.count('O') + n},kept aside"
        for n, text in enumerate(smiles(300))
    ]
    (folder / "train.csv").write_text("\n".join(["code,smiles,small,big,note", *rows]) + "\n")
    said = output_of(ingest.main, "smiles:train.csv", "train", "--table.targets", "small", "big", cwd=folder)
    assert "\ncolumns: targets small, big; id code; unused note\n" in said
    said = output_of(train_graphs.main, "--data", "train", *RUN, cwd=folder)
    said = said[said.index("mae in deviations") :].splitlines()
    assert [re.split("  +", line)[0] for line in said[:10]] == [
        *(
            "mae in deviations",
            "model",
            "mean of the training targets",
            "composition only",
            "mae of small",
            "mae of small, mean of the training targets",
            "mae of small, composition only",
            "mae of big",
            "mae of big, mean of the training targets",
            "mae of big, composition only",
        )
    ]
    for line in said[4:10]:
        assert all(float(cell) >= 0 for cell in line.split()[-2:])
    return folder


@pytest.mark.parametrize(("first", "type_"), [("MOL-", pa.large_string()), ("", pa.int64())])
def test_unseen_molecules_come_back_by_their_ids_and_in_no_split(trained, tmp_path, first, type_):
    ids = [f"{first}{900 - 7 * n}" for n in range(40)]
    texts = [
        text if n != 11 else "C1CC" for n, text in enumerate(smiles(40))
    ]  # one row is no molecule; it must not shift other rows
    rows = [f"{own},{text}" for own, text in zip(ids, texts, strict=True)]
    (tmp_path / "new.csv").write_text("\n".join(["mol_id,smiles", *rows]) + "\n")
    said = output_of(ingest.main, "smiles:new.csv", "new", "--chunk-rows", 7, "--shard-rows", 14, cwd=tmp_path)
    assert "\ncolumns: targets none; id mol_id; unused none\n" in said
    assert "split: train 0, valid 0, test 0; targets: none" in said
    out = tmp_path / "out"
    output_of(predict.main, trained / "run", out, "--graph", "new", "--other-graph", "--shard_rows", 15, cwd=tmp_path)
    table = predictions_of(out)
    del ids[11]
    assert table["id"].to_pylist() == [int(own) if type_ == pa.int64() else own for own in ids]
    assert table["id"].type == type_
    assert table["row"].to_pylist() == [row for row in range(40) if row != 11]
    assert table["split"].null_count == 39
    assert table.column_names == ["id", "row", "split", "prediction_small", "prediction_big"]


@pytest.mark.parametrize("has_targets", [False, True])
def test_a_table_is_predicted_as_it_is_and_no_row_of_it_was_trained_on(trained, tmp_path, has_targets):
    """The command reads only the run's targets as targets, ignores other columns of numbers, and draws no split."""
    rows = [f"N{n},{text},{n / 7},{n}" for n, text in enumerate(smiles(30))]
    header = "name,smiles,small,big" if has_targets else "name,smiles,weight,volume"
    (tmp_path / "new.csv").write_text("\n".join([header, *rows, "bad,C1CC,1,2"]) + "\n")
    said = output_of(predict.main, trained / "run", "out", "--graph", "new.csv", cwd=tmp_path)
    told = "targets small, big; id name; unused none" if has_targets else "targets none; id name; unused weight, volume"
    assert f"\ncolumns: {told}\nrejected: 1 rows, listed in " in said
    assert ("none mae" in said) == has_targets
    table = predictions_of(tmp_path / "out")
    assert table["id"].to_pylist() == [f"N{n}" for n in range(30)]
    assert table["split"].null_count == 30
    assert ("target_small" in table.column_names) == has_targets
    words = ["--table.targets", "small", "big"] if has_targets else ["--table.targets", "none"]
    output_of(ingest.main, "smiles:new.csv", "new", *words, cwd=tmp_path)
    output_of(predict.main, trained / "run", "stored", "--graph", "new", "--other-graph", cwd=tmp_path)
    assert predictions_of(tmp_path / "stored").equals(table)


def test_a_split_that_a_table_names_comes_back(trained, tmp_path):
    rows = [f"{text},{n},{n},{'test' if n % 2 else ''}" for n, text in enumerate(smiles(20))]
    (tmp_path / "new.csv").write_text("\n".join(["smiles,small,big,part", *rows]) + "\n")
    words = ["--graph", "new.csv", "--table.split_column", "part"]
    output_of(predict.main, trained / "run", "out", *words, cwd=tmp_path)
    assert predictions_of(tmp_path / "out")["split"].to_pylist() == [None, "test"] * 10


def test_the_same_molecules_have_the_same_predictions_in_any_order(trained, tmp_path):
    """Ids identify molecules: in a shuffled table each molecule has the same prediction."""
    named = [(f"id{n}", text) for n, text in enumerate(smiles(30))]
    by_order = []
    for order in (named, named[::-1]):
        folder = tmp_path / str(len(by_order))
        folder.mkdir()
        lines = ["name,smiles", *(",".join(row) for row in order)]
        (folder / "new.csv").write_text("\n".join(lines) + "\n")
        output_of(ingest.main, "smiles:new.csv", "new", cwd=folder)
        output_of(predict.main, trained / "run", "out", "--graph", "new", "--other-graph", cwd=folder)
        rows = predictions_of(folder / "out").to_pylist()
        by_order.append({row["id"]: row["prediction_small"] for row in rows})
    assert by_order[0].keys() == by_order[1].keys() == {own for own, _ in named}
    for own, value in by_order[0].items():
        assert math.isclose(value, by_order[1][own], rel_tol=1e-5)


def test_inspect_graph_shows_a_set(trained):
    said = output_of(inspect_graph.main, "train", "--verify", cwd=trained)
    lines = dict(line.strip().split("  ", 1) for line in said.splitlines())
    graphs = open_graphs(str(trained / "train"))
    sizes = graphs.num_nodes
    assert lines["graphs"] == "300 of train at train"
    assert lines["ids"] == "'M0', 'M7', 'M14' …"
    assert lines["nodes"].startswith(f"{sizes.sum():,}; of a graph: mean {sizes.mean():.2f}, min {sizes.min()}, ")
    assert lines["features"] == "9 categories per node, 3 categories per edge"
    assert lines["split"] == ", ".join(f"{name} {len(graphs.split(name))}" for name in ("train", "valid", "test"))
    training = graphs.target[graphs.split("train"), 1].astype(float)
    assert lines["targets"] == "small, big"
    assert lines["big"].startswith(f"0 graphs without; training: mean {training.mean():.6g}, ")
    assert "columns targets small, big; id code; unused note" in lines["from"]
    assert lines["verified"].endswith("every checksum matches")


def test_inspect_graph_shows_a_set_without_targets(tmp_path):
    (tmp_path / "new.csv").write_text("smiles\nCC\nC1CC\n")
    output_of(ingest.main, "smiles:new.csv", "new", cwd=tmp_path)
    said = output_of(inspect_graph.main, "new", cwd=tmp_path)
    lines = dict(line.strip().split("  ", 1) for line in said.splitlines())
    assert lines["split"] == "none 1"
    assert lines["rejected"] == "1 rows of the source"
    assert "targets" not in lines
    assert "ids" not in lines


def test_inspect_graph_shows_a_set_whose_nodes_are_labelled(tmp_path):
    one = PackedGraphs(
        np.array([3]), np.array([1]), np.array([[0], [1]], np.int32), None, None, None, node_label=np.array([0, 1, 1])
    )
    info = GraphSetInfo("toy", labelled="nodes", num_classes=2)
    write_graphs(str(tmp_path / "toy"), info, [shard_batch(one, "uint16")])
    said = output_of(inspect_graph.main, "toy", cwd=tmp_path)
    lines = dict(line.strip().split("  ", 1) for line in said.splitlines())
    assert lines["labels"] == "of nodes, 2 classes"
    assert lines["features"] == "0 per node, 0 per edge"
    assert lines["nodes"] == "3; of a graph: mean 3.00, min 3, median 2 to 3, p99 2 to 3, max 3"


def test_targets_are_scored_one_by_one_and_share_in_the_choice_of_the_epoch(trained):
    summary = json.loads((trained / "run" / "summary.json").read_text())
    graphs = open_graphs(str(trained / "train"))
    deviations = graphs.target[graphs.split("train")].astype(float).std(axis=0)
    assert summary["task"]["names"] == ["small", "big"]
    np.testing.assert_allclose(summary["task"]["deviation"], deviations, rtol=1e-6)
    for split, scores in summary["all_scores"].items():
        own = np.array([scores["mae_small"], scores["mae_big"]])
        assert summary["scores"][split] == scores["mae"] == pytest.approx(np.mean(own / deviations))
    epochs = [json.loads(line) for line in (trained / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {"valid_mae_small", "valid_mae_big", "valid_rmse_small", "valid_rmse_big"} <= epochs[0].keys()
    assert summary["best_epoch"] == int(np.argmin([epoch["valid_mae"] for epoch in epochs]))
    table = predict_own(trained)
    valid = table.filter(pc.equal(table["split"], "valid"))
    error = np.abs(valid["prediction_big"].to_numpy() - valid["target_big"].to_numpy()).mean()
    assert summary["all_scores"]["valid"]["mae_big"] == pytest.approx(error)
    assert table["id"][:3].to_pylist() == ["M0", "M7", "M14"]
    assert "test mae_big" in (trained / "run" / "report.html").read_text()


def predict_own(folder):
    said = output_of(predict.main, "run", "own", cwd=folder)
    assert "as in the run's summary" in said
    return predictions_of(folder / "own")
