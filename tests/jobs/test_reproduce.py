"""Tests the table of the papers' figures: every command in it is understood, `graphmill reproduce` prints, runs and compares rows, and the site shows them."""

import json
from collections import Counter
from pathlib import Path

import pytest

from graphmill.core.errors import ConfigError, UsageError
from graphmill.jobs import ingest, reproduce
from graphmill.jobs.papers.published import STATUSES, read_rows, select_rows
from graphmill.jobs.reproduce import (
    arms_of,
    figure_of,
    mean_and_spread,
    measured,
    one_tailed,
    page,
    placed,
    program,
    read_command,
)
from tests.job_in_process import output_of, run_job
from tests.raw_layouts import write_set

ROWS = read_rows()
COMMANDS = sorted({row.command for row in ROWS if row.command})


def test_the_table_has_the_rows_of_the_audit():
    assert Counter(row.paper for row in ROWS) == {"PPGT": 56, "GRIT": 33, "TokenGT": 28, "GECO": 28, "Primphormer": 27}
    assert len({(row.paper, row.table, row.row) for row in ROWS}) == len(ROWS) == 172


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.paper} {row.table} {row.row}")
def test_a_row_is_whole(row):
    assert row.status in STATUSES
    assert (row.command == "") == (row.status == "not")
    assert row.reason or row.status == "one command"
    assert row.ours


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_understood(command):
    (row, *_) = [row for row in ROWS if row.command == command]
    assert program(row.words()) == command
    configs = read_command(row.words())
    assert bool(configs) == (row.words()[0] in ("sweep", "train_nodes", "train_graphs"))


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["train_graphs", "grit/zinc.yaml", "--model.rrwp_step", "2"], UsageError),
        (["train_graphs", "grit/zink.yaml"], ConfigError),
        (["sweep", "--study", "studies/grit_walk_lengths.yaml", "--arms", "K=3"], ConfigError),
        (["graphmill.jobs.papers.brec", "--data", "brec", "--modell", "grit"], UsageError),
        (["bench", "speed", "--subject", "geco"], UsageError),
    ],
)
def test_a_command_that_cannot_run_is_found(words, error):
    with pytest.raises(error):
        read_command(words)


def test_rows_are_found_by_name_number_and_any_case():
    assert [row.row for row in select_rows("grit", "t6", ("K=7", "1"))] == ["K=7", "K=2"]
    with pytest.raises(ConfigError, match="paper: expected one of TokenGT, GRIT"):
        select_rows("Grid", None)
    with pytest.raises(ConfigError, match="run: expected one of K=2"):
        select_rows("GRIT", "T6", ("K=3",))


def test_the_list_has_a_line_for_each_row():
    said = output_of(reproduce.main, "--list").splitlines()
    assert len(said) == 1 + len(ROWS) + 2
    assert said[-1].startswith("172 rows: ")


def test_a_table_without_its_data_says_how_to_ingest_them(tmp_path):
    said = output_of(reproduce.main, "GRIT", "T6", "--graphs", str(tmp_path), cwd=tmp_path)
    assert said.count("ingest zinc") == 7
    assert "MAE 0.147 ± 0.006 in the paper" in said
    assert f"graphmill sweep --study studies/grit_walk_lengths.yaml --arms K=2 -- --data {tmp_path}/zinc" in said


@pytest.fixture(scope="module")
def zinc(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduce")
    write_set("zinc", folder)
    output_of(ingest.main, "zinc", folder / "graphs" / "zinc", "--root", folder)
    return folder


SMALL = [
    "--model.width",
    "16",
    "--model.num_layers",
    "1",
    "--fit.epochs",
    "1",
    "--fit.warmup_epochs",
    "0",
    "--sampler.max_graphs",
    "12",
]


def test_a_cost_comes_from_the_plan(zinc):
    words = ["GRIT", "T6", "--graphs", zinc / "graphs", "--", *SMALL]
    said = output_of(reproduce.main, *words, cwd=zinc)
    assert said.count("cost  arm=K=") == 7
    assert said.count("; time ") == 7


@pytest.mark.long
def test_a_row_runs_and_is_compared(zinc):
    out = zinc / "out"
    words = [
        "GRIT",
        "T1-3",
        "--run",
        "ZINC",
        "--graphs",
        zinc / "graphs",
        "--out",
        out,
        "--seeds",
        "0",
        "1",
        "--",
        *SMALL,
    ]
    said = output_of(reproduce.main, *words, cwd=zinc)
    scores = [
        json.loads((out / "01" / f"trial-00{i}" / "summary.json").read_text())["scores"]["test"] for i in range(2)
    ]
    mean, spread = mean_and_spread(scores)
    assert f"ZINC: mae {mean:.4f} ± {spread:.4f} over 2 runs; MAE 0.059 ± 0.002 in the paper" in said
    assert f"p = {one_tailed(scores, (0.059, 0.002), True):.3g}" in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["GRIT"], "paper: expected a paper and a table"),
        (["--list", "--run", "1"], "list: nothing runs"),
        (["GRIT", "T6", "--seeds", "1"], "seeds: expected rows"),
        (["GRIT", "T7, T11", "--run", "K-hop: GRIT", "--seeds", "1"], "seeds: expected a row that trains"),
        (["GRIT", "T6", "--run", "K=2", "--", "--model.widht", "3"], "--model.widht"),
    ],
)
def test_what_cannot_be_asked_is_one_line(words, says, tmp_path):
    done = run_job(reproduce.main, words, tmp_path)
    assert done.returncode != 0
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_with_its_folder_is_understood(command):
    (row, *_) = [row for row in ROWS if row.command == command]
    words = placed(row.words(), Path("runs/here/01"))
    read_command(words)
    has_folder = row.words()[0] not in ("predict", "convert_checkpoint") and "color_refinement" not in command
    assert ("runs/here/01" in words) == has_folder


def finished(folder, model, scores, metric="accuracy"):
    """The files of a finished run that `measured` reads."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model": {"name": model}}))
    (folder / "summary.json").write_text(json.dumps({"metric": metric, "scores": scores}))


def trials(place, row, tests, model="geco"):
    for number, test in enumerate(tests):
        finished(place / f"trial-{number:03d}", model, {"valid": 0.5, "test": test})
    return list(measured(row, place, arms_of(reproduce._seeded(row, row.words(), range(len(tests))))))


def test_arms_are_compared_apart_and_without_a_test(tmp_path):
    (row,) = select_rows("GECO", "T4", ("Flickr: static, dynamic",))
    arms = arms_of(reproduce._seeded(row, row.words(), (0, 1)))
    assert Counter(arms.values()) == {"static": 2, "dynamic": 2}
    for name, arm in arms.items():
        finished(tmp_path / name, "geco", {"test": 0.5 + 0.1 * (arm == "dynamic") + 0.01 * (name > "trial-001")})
    said = list(measured(row, tmp_path, arms))
    assert said == [
        f"static: accuracy 0.5050 ± {mean_and_spread([0.5, 0.51])[1]:.4f} over 2 runs",
        f"dynamic: accuracy 0.6050 ± {mean_and_spread([0.5, 0.51])[1]:.4f} over 2 runs",
        "55.73 ± 0.27, 55.80 ± 0.38 in the paper",
    ]


def test_classic_models_have_their_own_scores(tmp_path):
    (row,) = select_rows("TokenGT", "A.6", ("GCN, GAT",))
    for name, tests in {"gcn": (0.7, 0.8), "gat": (0.6, 0.4)}.items():
        for split in range(2):
            for number, test in enumerate(tests):  # the second configuration has the better validation score
                folder = tmp_path / f"beside-00{split}" / "baselines" / f"{name}-{number}"
                finished(folder, name, {"valid": number / 10, "test": test + split / 10})
    said = trials(tmp_path, row, [0.9, 0.92], "tokengt")
    assert [line.partition(" ±")[0] for line in said] == [
        "tokengt: accuracy 0.9100",
        "gat: accuracy 0.4500",
        "gcn: accuracy 0.8500",
        "accuracy on CS .895, .893 in the paper",
    ]


def test_a_command_that_gives_a_part_of_the_figure_has_no_t_test(tmp_path):
    (part,) = select_rows("Primphormer", "T3, T4", ("softmax, CIFAR10 and four more sets",))
    (whole,) = select_rows("GRIT", "T6", ("K=7",))
    assert part.status == "in part"
    assert not any("t-test" in line for line in trials(tmp_path / "part", part, [0.5, 0.6]))
    assert "t-test" in trials(tmp_path / "whole", whole, [0.06, 0.07])[-1]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.paper} {row.table} {row.row}")
def test_a_remark_that_another_option_gives_the_rest_is_of_a_part(row):
    if row.status == "one command":
        assert not row.reason.startswith("--")
        assert not any(text in row.published for text in ("PascalVOC-SP F1", "Flickr 50.90", "dense", "MNIST:"))


def test_a_row_that_runs_other_rows_gives_them_its_options():
    (row,) = select_rows("GRIT", "B.4")
    words = placed(row.words("sets", ("--fit.epochs", "5")), Path("runs/01"))
    read_command(words)
    given = ["--graphs", "sets", "--out", "runs/01", "--", "--fit.epochs", "5"]
    assert words[words.index("3") + 1 :] == given
    assert row.words("graphs") == row.words()


def test_the_t_test_is_one_tailed_with_equal_variances():
    # Two samples of four with deviations 1 and means 1 and 0: t = 1 / sqrt(2 / 4) = sqrt(2) with six degrees of freedom.
    values = [1 + (i - 1.5) / mean_and_spread([0.0, 1.0, 2.0, 3.0])[1] for i in range(4)]
    assert one_tailed(values, (0.0, 1.0), lower_is_better=True) == pytest.approx(0.1035, abs=1e-4)
    assert one_tailed(values, (0.0, 1.0), lower_is_better=False) == pytest.approx(1 - 0.1035, abs=1e-4)
    assert figure_of("accuracy 72.46 ± 0.15") == (72.46, 0.15)
    assert figure_of("a figure") is None
    assert figure_of("55.73 ± 0.27, 55.80 ± 0.38") is None
    share = [value / 100 for value in (72.0, 72.4, 72.6, 72.8)]
    assert one_tailed(share, (72.46, 0.15), lower_is_better=False) == pytest.approx(
        one_tailed([100 * value for value in share], (72.46, 0.15), lower_is_better=False)
    )


def test_the_page_has_every_row():
    text = page()
    assert text.count("\n| ") == len(ROWS) + 5
    assert all(row.command in text for row in ROWS)
