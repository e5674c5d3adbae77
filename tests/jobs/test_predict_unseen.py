"""Tests predictions for data that a run has not seen: a new graph without labels and splits, a file of edges, a table of SMILES."""

import json
import re
from itertools import pairwise

import numpy as np
import pytest

from graphmill.cluster.training.schedule import build_optimizer
from graphmill.core.errors import ConfigError
from graphmill.jobs import ingest, predict, train_nodes
from graphmill.jobs.subjects.nodes import Nodes
from graphmill.storage.graph import open_graph
from tests.job_in_process import output_of, run_job
from tests.predictions import predictions_of
from tests.runs import node_run

NODES = 120
SMALL = ["--model.num_layers", "2", "--model.width", "8", "--fit.epochs", "2", "--fit.warmup_epochs", "0"]
# With these samplers, the prediction of a root does not depend on the other roots of its batch.
SAMPLERS = {
    "whole": ["--model", "gcn", "--sampler", "random-partition", "--sampler.num_chunks", "1"],
    "neighbor": [
        "--model",
        "sage",
        "--sampler",
        "neighbor",
        "--sampler.fanouts",
        "-1",
        "-1",
        "--evaluation",
        "sampled",
    ],
}
FILES = ["--edge-list.features", "x.npy"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of a graph that list each edge once, and the same graph stored with and without labels and splits."""
    folder, rng = tmp_path_factory.mktemp("unseen"), np.random.default_rng(0)
    edges = {(int(min(pair)), int(max(pair))) for pair in rng.integers(0, NODES, (300, 2)) if pair[0] != pair[1]}
    (folder / "edges.csv").write_text("\n".join(["src,dst", *(f"{a},{b}" for a, b in sorted(edges))]) + "\n")
    label = rng.integers(0, 3, NODES)
    np.save(folder / "x.npy", (np.eye(3)[label] + rng.normal(size=(NODES, 3))).astype(np.float32))
    np.save(folder / "y.npy", label)
    learned = ["--edge-list.labels", "y.npy", "--split.shares", "0.5,0.25,0.25", "--split.by", "label"]
    both = ["--reverse-edges", "add", "--partitions", "2"]
    output_of(ingest.main, "edges.csv", "graph", *FILES, *both, *learned, cwd=folder)
    output_of(ingest.main, "edges.csv", "bare", *FILES, *both, cwd=folder)
    return folder


@pytest.mark.parametrize("sampler", ["whole", pytest.param("neighbor", marks=pytest.mark.long)])
def test_a_new_graph_needs_neither_labels_nor_splits(folder, sampler):
    run = f"run-{sampler}"
    words = ["--data", "graph", *SMALL, *SAMPLERS[sampler], "--run.dir", run]
    output_of(train_nodes.main, *words, "--workers.launcher", "process", cwd=folder)
    output_of(predict.main, run, f"{run}/own", cwd=folder)
    own = predictions_of(folder / run / "own")
    assert own["split"].to_pylist().count("valid") == 30
    said = output_of(predict.main, run, f"{run}/bare", "--graph", "bare", "--other-graph", cwd=folder)
    assert f"{NODES} predictions in 1 file(s)" in said
    files = [run, f"{run}/file", "--graph", "edges.csv", *FILES]
    said = output_of(predict.main, *files, "--reverse-edges", "add", cwd=folder)
    assert "edges:edges: 120 nodes" in said
    assert "these predictions are complete" in output_of(predict.main, *files, "--reverse-edges", "add", cwd=folder)
    assert sorted(path.name for path in (folder / run / "file").iterdir()) == [
        *("_data", "_settings.json", "_source.json", "_summary.json", "part-00000.parquet")
    ]
    for name in ("bare", "file"):
        table = predictions_of(folder / run / name)
        assert table.column_names == ["id", "split", "prediction", "logits"]
        assert table["split"].null_count == NODES
        assert table["id"].to_pylist() == own["id"].to_pylist()
        ours, theirs = (np.stack(each["logits"].to_numpy()) for each in (table, own))
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert json.loads((folder / run / "bare" / "_summary.json").read_text())["scores"] == {}


def test_tables_are_read_as_those_of_the_run(folder):
    """A word becomes the same feature as in training, whatever other words the new table has. The predictions have the text ids of the new table."""
    rng, colours = np.random.default_rng(1), ["red", "green", "blue"]
    rows = [(f"n{node}", colours[node % 3], f"{rng.normal():.3f}", "abc"[node % 3]) for node in range(60)]
    edges = "\n".join(["src,dst", *(f"n{a},n{b}" for a, b in rng.integers(0, 60, (150, 2)))]) + "\n"
    few = [row for row in rows if row[1] != "red"]
    (folder / "known.csv").write_text(edges)
    (folder / "new.csv").write_text("src,dst\nn1,n2\nn4,n1\n")
    for name, header, some in (("known", "id,colour,size,label", rows), ("new", "id,colour,size", few)):
        lines = [",".join(row[: len(header.split(","))]) for row in some]
        (folder / f"{name}_nodes.csv").write_text("\n".join([header, *lines]) + "\n")
    shares = ["--split.shares", 0.6, 0.2, 0.2]
    output_of(ingest.main, "known.csv", "known", "--edge-list.nodes", "known_nodes.csv", *shares, cwd=folder)
    words = ["--data", "known", *SMALL, *SAMPLERS["whole"], "--run.dir", "run-words", "--workers.launcher", "process"]
    output_of(train_nodes.main, *words, cwd=folder)
    output_of(predict.main, "run-words", "new", "--graph", "new.csv", "--edge-list.nodes", "new_nodes.csv", cwd=folder)
    assert predictions_of(folder / "new")["id"].to_pylist() == [row[0] for row in few]
    own = [f"--edge-list.{name}" for name in ("nodes", "features-as")]
    output_of(ingest.main, "known.csv", "again", own[0], "known_nodes.csv", own[1], "known", cwd=folder)
    output_of(predict.main, "run-words", "out-again", "--graph", "again", "--other-graph", cwd=folder)
    (folder / "known_nodes.csv").write_text((folder / "known_nodes.csv").read_text().replace(",label", ",note"))
    given = ["--edge-list.nodes", "known_nodes.csv", "--edge-list.feature_columns", "colour", "size"]
    output_of(predict.main, "run-words", "out-file", "--graph", "known.csv", *given, cwd=folder)
    stored, file = (predictions_of(folder / name) for name in ("out-again", "out-file"))
    assert file["split"].null_count == 60
    np.testing.assert_allclose(*(np.stack(each["logits"].to_numpy()) for each in (file, stored)), atol=1e-5)


def shops(folder, name: str, count: int, words: list, *, rows: range, known: bool = True) -> None:
    """A graph whose nodes have a column of `count` words.

    All rows of a word have the word's label. The first row of a word is in train, the second in valid, the third in test.
    """
    rng, answer = np.random.default_rng(len(rows)), np.random.default_rng(0).integers(0, 2, count)
    lines = [f"{row},shop {row % count},{rng.normal():.3f}" for row in rows]
    if known:
        parts = ("train", "valid", "test")
        lines = [f"{line},{answer[row % count]},{parts[row // count]}" for row, line in zip(rows, lines, strict=True)]
    header = "id,shop,size,label,split" if known else "id,shop,size"
    (folder / f"{name}.csv").write_text("\n".join([header, *lines]) + "\n")
    edges = [f"{a},{b}" for a, b in rng.choice(rows, (len(rows) // 3, 2))]
    (folder / f"{name}_edges.csv").write_text("\n".join(["src,dst", *edges]) + "\n")
    output_of(ingest.main, f"{name}_edges.csv", name, "--edge-list.nodes", f"{name}.csv", *words, cwd=folder)


EMBED = ["--edge-list.embedding-columns", "shop"]


@pytest.mark.parametrize(
    "words", [["geco"], ["gcn"], ["geco", "--task", "links"], ["sage", "--task", "links"]], ids=" ".join
)
def test_every_parameter_is_trained(tmp_path, words):
    """Rows of embedded columns are trained too, also in models and tasks that define separate parameter groups."""
    shops(
        tmp_path,
        "embedded",
        8,
        [*EMBED, *(["--links.valid", 0.3, "--links.test", 0.3] if "links" in words else [])],
        rows=range(24),
    )
    run = node_run(open_graph(str(tmp_path / "embedded")), "--model", *words)
    model = run.build_model()
    trained = {
        id(parameter)
        for group in build_optimizer(model, run.fit, foreach=False).param_groups
        for parameter in group["params"]
    }
    assert [name for name, parameter in model.named_parameters() if id(parameter) not in trained] == []
    assert any("standard." in name for name, _ in model.named_parameters())


@pytest.mark.parametrize(("count", "most"), [(200, 8), pytest.param(3_000, 64, marks=pytest.mark.long)])
def test_columns_of_many_words_are_trainable_rows(tmp_path, count, most):
    """With trainable rows for words a model learns the classes; with hashed features it cannot.

    In a later table equal words have equal rows, and unknown words have the row for unknown words.
    """
    scores = {}
    for name, words in [("hashed", []), ("embedded", EMBED)][count < 1000 :]:
        shops(tmp_path, name, count, [*words, "--edge-list.most-categories", most], rows=range(3 * count))
        words = ["--data", name, "--model", "sage", "--model.num_layers", 1, "--model.width", 32, "--fit.epochs", 40]
        words += ["--fit.learning_rate", 0.03, "--sampler", "random-partition", "--sampler.num_chunks", 1]
        words += ["--run.dir", f"run-{name}", "--workers.launcher", "process", "--data.standardise", "no"]
        said = output_of(train_nodes.main, *words, cwd=tmp_path)
        summary = json.loads((tmp_path / f"run-{name}" / "summary.json").read_text())
        scores[name] = summary["scores"]["test"]
    assert scores["embedded"] >= 0.95 > scores.get("hashed", 0)
    told = f"--data.category_width 16: {count:,} categories of shop have trainable rows, which baselines do not read"
    assert f"chosen {told}" in said
    assert summary["baselines"]["features_only"]["test"] < 0.7
    later = range(2 * count, 2 * count + 40)
    shops(tmp_path, "later", count, ["--edge-list.features-as", "embedded"], rows=later, known=False)
    output_of(predict.main, "run-embedded", "out", "--graph", "later", "--other-graph", cwd=tmp_path)
    own = predictions_of(tmp_path / "out")["prediction"].to_numpy()
    assert np.mean(own == np.random.default_rng(0).integers(0, 2, count)[:40]) >= 0.95
    text = (tmp_path / "later.csv").read_text()
    (tmp_path / "later.csv").write_text(text.replace("shop 7,", "shop of nobody,"))
    files = ["--graph", "later_edges.csv", "--edge-list.nodes", "later.csv"]
    said = output_of(predict.main, "run-embedded", "out-file", *files, cwd=tmp_path)
    assert f"{count} categories, each a trainable row, 1 fields of others" in said
    shops(tmp_path, "others", count, EMBED, rows=later, known=False)
    done = run_job(predict.main, ["run-embedded", "out-others", "--graph", "others", "--other-graph"], tmp_path)
    assert "others: expected columns with the run's categories, got others" in done.stderr


def test_other_categories_are_not_read_as_the_run_s(tmp_path):
    """The test covers a plain graph and a node type of a typed graph."""
    shops(tmp_path, "own", 8, [], rows=range(24))
    renamed = (tmp_path / "own.csv").read_text().replace("shop ", "house ").replace("id,house", "id,shop")
    (tmp_path / "other.csv").write_text(renamed)
    output_of(ingest.main, "own_edges.csv", "other", "--edge-list.nodes", "other.csv", "--overwrite", cwd=tmp_path)
    for name in ("own", "other"):
        table = f"{{file: {name}.csv, id: id, features: [shop, size], label: label, split: split}}"
        text = f"nodes:\n  a: {table}\nedges:\n  - {{source: a, relation: to, target: a, file: own_edges.csv}}\n"
        text += "  - {source: a, relation: of, target: a, file: own_edges.csv}\n"
        (tmp_path / f"{name}.yaml").write_text(text)
        output_of(ingest.main, f"{name}.yaml", f"typed-{name}", cwd=tmp_path)
    for kind, model in (("", "gcn"), ("typed-", "rsage")):
        own, other = (open_graph(str(tmp_path / f"{kind}{name}")) for name in ("own", "other"))
        run = node_run(own, "--model", model)
        assert Nodes(own).inputs(run) == run.inputs
        with pytest.raises(ConfigError, match="expected columns with the run's categories, got others"):
            Nodes(other).inputs(run)


def test_typed_tables_are_predicted_as_if_stored_with_the_first(tmp_path):
    """The later tables list words, columns, types and relations in another order, and have new words.

    Nodes outside the training rows have the scores of the run's own tables.
    """
    rng, own, later = np.random.default_rng(3), range(60), range(60, 90)
    papers, authors = [], []
    for i in (*own, *later):
        venue, size = i % 3, "" if rng.random() < 0.2 else f"{i % 3 + rng.normal():.2f}"
        part = ("train", "valid", "train", "test")[i % 4] if i in own else "none"
        topic = f"topic {venue}" if rng.random() < 0.8 or i in own else "news"
        papers.append([f"p{i}", f"venue {venue}", part, topic, f"place {rng.integers(0, 4 + 3 * (i in later))}", size])
        authors.append([f"a{i}", f"land {rng.integers(0, 3)}"])
    rows = {first: [first + int(end) for end in rng.integers(0, len(of), 50)] for first, of in ((0, own), (60, later))}

    def write(name: str, first: int, last: int, order: int, *, earlier: bool) -> None:
        folder = tmp_path / name
        folder.mkdir()
        ends = [row for start, row in rows.items() if first <= start < last for row in row]
        header = ["paper", "venue", "part", "topic", "place", "size"]
        for table, columns, lines in (("papers", header, papers), ("authors", ["author", "land"], authors)):
            lines = [columns, *lines[first:last]]
            (folder / f"{table}.csv").write_text("".join(f"{','.join(line[::order])}\n" for line in lines))
        links = {f"{a}{b}": [f"{a}{u},{b}{v}" for u, v in pairwise(ends)] for a, b in ("ap", "pp")}
        for pair, lines in links.items():
            lines = [line for line in lines if (int(line.split(",")[0][1:]) < 60) == (int(line.split(",")[1][1:]) < 60)]
            (folder / f"{pair}.csv").write_text("\n".join(["src,dst", *lines]) + "\n")
        label = "label: venue, split: part, " if earlier else "label: venue, "
        types = [
            f"  paper: {{file: papers.csv, id: paper, {label}features: [topic, place, size], embedding_columns: [place]}}",
            "  author: {file: authors.csv, id: author, features: [land]}",
        ]
        relations = [
            "  - {source: author, relation: writes, target: paper, file: ap.csv}",
            "  - {source: paper, relation: cites, target: paper, file: pp.csv}",
        ]
        text = "\n".join(["nodes:", *types[::order], "edges:", *relations[::order]])
        (folder / "graph.yaml").write_text(text + "\n")

    write("first", 0, 90, 1, earlier=True)
    write("later", 60, 90, -1, earlier=False)
    output_of(ingest.main, "first", "graph", "--reverse-edges", "add", cwd=tmp_path)
    words = ["--data", "graph", "--model", "rsage", "--model.width", 8, "--fit.epochs", 4, "--run.dir", "run"]
    words += ["--sampler.fanouts", -1, -1, "--workers.launcher", "process"]
    output_of(train_nodes.main, *words, cwd=tmp_path)
    output_of(predict.main, "run", "own", "--split", "none", cwd=tmp_path)
    said = output_of(predict.main, "run", "out", "--graph", "later", cwd=tmp_path)
    assert re.search(r"papers.csv +topic +text +feature +0 +3 categories, \d+ fields of others", said)
    stored, found = (predictions_of(tmp_path / name) for name in ("own", "out"))
    assert found["id"].to_pylist() == stored["id"].to_pylist() == [f"p{i}" for i in later]
    np.testing.assert_allclose(*(np.stack(each["logits"].to_numpy()) for each in (found, stored)), atol=1e-5)
    scores = [json.loads((tmp_path / name / "_summary.json").read_text())["scores"]["none"] for name in ("own", "out")]
    assert scores[1]["accuracy"] == scores[0]["accuracy"]
    assert "complete: nothing to do" in output_of(predict.main, "run", "out", "--graph", "later", cwd=tmp_path)
    output_of(ingest.main, "later", "other", "--reverse-edges", "add", cwd=tmp_path)
    table = tmp_path / "later" / "papers.csv"
    table.write_text(table.read_text().replace("topic 1", "topic 2"))
    (tmp_path / "one.yaml").write_text("nodes: {a: {count: 3}}\n")
    before = sorted(path for path in (tmp_path / "out").rglob("*"))
    table = tmp_path / "first" / "papers.csv"
    table.write_text(table.read_text().replace("topic 1", "topic 2"))
    output_of(ingest.main, "first", "graph", "--reverse-edges", "add", "--overwrite", cwd=tmp_path)
    for words, message in (
        (["new", "--graph", "later"], "graph: expected what the run's snapshot 1 learnt of its tables, got snapshot 2, with other categories or means"),
        (["out", "--graph", "later"], "these predictions were made of other files (or they have changed)"),
        (["new", "--graph", "first/ap.csv"], "expected a .yaml file that names tables of several types, as the run's"),
        (["new", "--graph", "one.yaml"], "expected a .yaml file that names tables of several types, as the run's"),
        (["new", "--graph", "other", "--other-graph"], "other: expected paper, author, in the run's order, got author, paper; ingest its tables by the run's graph (features_as: graph)"),
    ):  # fmt: skip
        done = run_job(predict.main, ["run", *words], tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert message in done.stderr
    assert sorted(path for path in (tmp_path / "out").rglob("*")) == before
    assert not (tmp_path / "new").exists()


@pytest.mark.long
def test_a_typed_graph_needs_neither_labels_nor_splits(tmp_path):
    rng = np.random.default_rng(2)
    tables = """\
nodes:
  paper: {file: papers.csv, id: paper, features: [words, pages, place], embedding_columns: [place]%s}
  author: {file: authors.csv, id: author}
edges:
  - {source: author, relation: writes, target: paper, file: writes.csv, src: author, dst: paper}
"""
    (tmp_path / "learned.yaml").write_text(tables % ", label: venue")
    (tmp_path / "bare.yaml").write_text(tables % "")
    papers = [f"{10 * i},{i % 3},{i % 3 + rng.normal():.2f},{rng.normal():.2f},place {i % 3}" for i in range(60)]
    (tmp_path / "papers.csv").write_text("\n".join(["paper,venue,words,pages,place", *papers]) + "\n")
    (tmp_path / "authors.csv").write_text("author\n" + "".join(f"{i}\n" for i in range(9)))
    (tmp_path / "writes.csv").write_text("author,paper\n" + "".join(f"{i % 9},{10 * i}\n" for i in range(60)))
    shares = ["--split.shares", "0.6,0.2,0.2", "--split.by", "label"]
    output_of(ingest.main, "learned.yaml", "learned", "--reverse-edges", "add", *shares, cwd=tmp_path)
    output_of(ingest.main, "bare.yaml", "bare", "--reverse-edges", "add", cwd=tmp_path)
    words = ["--data", "learned", "--model", "rsage", "--model.width", 8, "--fit.epochs", 2, "--run.dir", "run"]
    said = output_of(train_nodes.main, *words, "--workers.launcher", "process", cwd=tmp_path)
    assert "3 categories of paper place have trainable rows" in said
    output_of(predict.main, "run", "out", "--graph", "bare", "--other-graph", cwd=tmp_path)
    output_of(predict.main, "run", "own", cwd=tmp_path)
    assert predictions_of(tmp_path / "own")["split"].to_pylist().count("valid") == 12
    table = predictions_of(tmp_path / "out")
    assert table["id"].to_pylist() == [10 * i for i in range(60)]
    assert table["split"].null_count == 60


def test_what_does_not_fit_a_file_is_said_in_one_line(folder):
    run = "run-whole"
    said = output_of(predict.main, run, "one-way", "--graph", "edges.csv", *FILES, cwd=folder)
    assert (
        "warning: the run's graph has every edge's reverse, this one has not; store it as that one was, with --edge"
        in said
    )
    (folder / "notes").mkdir(exist_ok=True)
    (folder / "notes" / "mine.txt").write_text("")
    for words, message in (
        (["out", "--split", "test", "--graph", "bare", "--other-graph"], "split: expected all, none, got 'test'"),
        (["out", "--edge-list.features", "x.npy"], "edge_list: expected a file as --graph, got no --graph"),
        (["out", "--graph", "edges.csv", *FILES, "--plan"], "--plan writes nothing, and a file is stored first"),
        (["notes", "--graph", "edges.csv", *FILES], "expected predictions or nothing there, found other files"),
    ):
        done = run_job(predict.main, [run, *words], folder)
        assert done.returncode == 1, message
        assert message in done.stderr
        assert done.stderr.count("\n") == 1
    assert not (folder / "out").exists()
    assert [path.name for path in (folder / "notes").iterdir()] == ["mine.txt"]
