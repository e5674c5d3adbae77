"""Tests classic models as baselines of a run: the configurations from their frozen recipes, and their scores in the run's summary."""

import json
from dataclasses import replace

import pytest

from graphmill.cluster.runs.run_store import RunStore
from graphmill.core.errors import ConfigError
from graphmill.jobs import predict, train_nodes
from graphmill.jobs.baselines.tuned_baselines import search, train_classic, tries
from graphmill.jobs.config.config import config_tree, read_config, read_recipe
from graphmill.jobs.config.registry import PLACEHOLDERS
from graphmill.jobs.resolve.resolve import Facts, resolve
from tests.job_in_process import output_of, run_job
from tests.runs import config_of

WORDS = ("--data", "a graph", "--data.split_set", 3, "--fit.seed", 7, "--task.metric", "rocauc", "--workers", 1)


def test_the_search_is_24_configurations_of_which_the_first_is_the_recipe(tmp_path):
    assert len({json.dumps(one, sort_keys=True) for one in search()}) == 24
    for name in ("gcn", "gat", "sage"):
        recipe = read_config(config_tree("nodes", read_recipe(f"baselines/{name}.yaml")))
        assert recipe.changed(*search()[0].items()) == recipe
        for one in search():
            resolve(recipe.changed(*one.items()), Facts(PLACEHOLDERS["nodes"], {}, None))
    assert len({json.dumps({k: v for k, v in one.items() if k != "model.num_layers"}) for one in search()[:3]}) == 3


def test_a_try_is_the_recipe_on_the_runs_own_data_splits_seed_and_metric(tmp_path):
    config = config_of(*WORDS, "--baseline", "gcn", "sage", "--baseline.configurations", 2)
    planned = tries(config, RunStore(str(tmp_path)))
    assert [one.name for one in planned] == ["gcn", "gcn", "sage", "sage"]
    assert len({one.folder for one in planned}) == 4
    for one in planned:
        assert (one.config.data, one.config.fit.seed, one.config.metric) == (config.data, 7, "rocauc")
        assert (one.config.workers, one.config.baseline.models) == (config.workers, ())
        assert one.config.model.name == one.name
        assert read_config(one.config.tree()) == one.config
    # The baseline uses no option of the run's own model and fit.
    other = config.changed(("model.width", 8), ("fit.learning_rate", 0.5), ("fit.epochs", 3), ("model.num_layers", 7))
    assert tries(other, RunStore(str(tmp_path))) == planned


def finished(folder, scores, config):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config.tree()))
    (folder / "summary.json").write_text(json.dumps({"scores": scores}))


def test_the_best_validation_counts_and_nothing_is_trained_twice(tmp_path, capsys):
    config = config_of(*WORDS, "--baseline", "gcn")
    valid = {"gcn-0": 0.5, "gcn-1": 0.7, "gcn-2": 0.6}
    trained = []

    def train(job, one):
        trained.append(one.run.dir or one.run.resume)
        folder = tmp_path / "baselines" / trained[-1].rsplit("/", 1)[-1]
        finished(folder, {"valid": valid[folder.name], "test": valid[folder.name] - 0.1}, one)
        return 0

    assert train_classic("job", config, RunStore(str(tmp_path)), train) == {
        "gcn": {"valid": 0.7, "test": pytest.approx(0.6)}
    }
    assert len(trained) == 3
    assert "baseline gcn: valid 0.7000, test 0.6000 (" in capsys.readouterr().out
    assert train_classic("job", config, RunStore(str(tmp_path)), train)["gcn"]["valid"] == 0.7
    assert len(trained) == 3
    with pytest.raises(ConfigError, match="another graph or seed"):
        train_classic("job", config.changed(("fit.seed", 8)), RunStore(str(tmp_path)), train)
    assert train_classic("job", replace(config, baseline=config_of().baseline), RunStore(str(tmp_path)), train) == {}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--baseline", "gin"], "gcn, gat, sage"),
        (["--baseline", "gcn", "gcn"], "each model once"),
        (["--baseline.configurations", "25"], "the whole search"),
    ],
)
def test_what_cannot_be_trained_is_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        config_of(*words)


def test_many_graphs_have_no_classic_baseline():
    config = config_of("--baseline", "gcn", kind="graphs")
    with pytest.raises(ConfigError, match="leave out --baseline"):
        resolve(config, Facts(PLACEHOLDERS["graphs"], {}, None))


@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_it_is_trained_and_predicted_as_any_model(model, tmp_path):
    words = f"--model {model} --data.nodes 200 --fit.epochs 2 --workers.launcher process --run.dir run"
    done = run_job(train_nodes.main, words.split(), tmp_path)
    assert done.returncode == 0, done.stderr
    said = output_of(predict.main, "run", "predictions", cwd=tmp_path)
    scored = [line for line in said.splitlines() if line.startswith(("valid accuracy", "test accuracy"))]
    assert len(scored) == 2
    assert all(line.endswith("as in the run's summary") for line in scored)


@pytest.mark.slow
@pytest.mark.long
def test_an_automatic_run_and_its_baseline_end_beside_each_other(tmp_path):
    words = "--data.nodes 300 --fit.steps 8 --model.width 16 --baseline gcn --baseline.configurations 1 --run.dir run"
    words += " --workers.launcher process"
    done = run_job(train_nodes.main, words.split(), tmp_path)
    assert done.returncode == 0, done.stderr
    assert any(line.startswith("chosen ") and " --model.num_layers " in line for line in done.stdout.splitlines())
    assert "warning: 8 optimizer steps in all" in done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    classic = json.loads((tmp_path / "run" / "baselines" / "gcn-0" / "summary.json").read_text())
    assert summary["baselines"]["gcn"] == classic["scores"]
    assert summary["counts"] == classic["counts"]
    assert "GCN" in done.stdout
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    assert saved["resolved"]["chosen"]
    assert saved["fit"]["steps"] is None
    page = (tmp_path / "run" / "report.html").read_text()
    assert "GCN" in page
    # A resume keeps the options that were chosen at the start of the run.
    more = run_job(train_nodes.main, ["--run.resume", "run", "--fit.epochs", str(2 * summary["epochs"])], tmp_path)
    assert more.returncode == 0, more.stderr
    again = json.loads((tmp_path / "run" / "config.json").read_text())
    assert again["model"] == saved["model"]
    # The resume keeps the record of chosen values too, not only the values.
    more = run_job(train_nodes.main, ["--run.resume", "run", "--fit.steps", str(4 * summary["epochs"])], tmp_path)
    assert more.returncode == 0, more.stderr
    record = json.loads((tmp_path / "run" / "config.json").read_text())["resolved"]["chosen"]
    flags = [line.partition(" ")[0] for line in record]
    assert len(set(flags)) == len(flags)
    assert {"--model.num_layers", "--fit.epochs"} <= set(flags)
