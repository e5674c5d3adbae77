"""Tests `gm.train` on data in memory with a user's module, metric, loss, optimizer, scheduler and callbacks, and then predictions and a resume."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import SAGEConv, global_mean_pool

import graphmill as gm
from graphmill.core.errors import ConfigError

NODES = 60
Y = torch.arange(NODES) % 2
PART = torch.arange(NODES) % 3
BRIEF = {"workers": 1, "sampler": {"num_chunks": 1}}


class Net(nn.Module):
    def __init__(self, dim: int, classes: int):
        super().__init__()
        self.conv = SAGEConv(dim, classes)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index)


class OfGraphs(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.out = nn.Linear(in_channels, out_channels)

    def forward(self, x, edge_index, batch):
        return self.out(global_mean_pool(x, batch))


class OfTypes(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = SAGEConv((-1, -1), 2)

    def forward(self, x_dict, edge_index_dict):
        return self.conv((x_dict["a"], x_dict["b"]), edge_index_dict["a", "of", "b"])


def wrong(prediction, target):
    return (prediction.argmax(dim=1) != target).float().mean()


wrong.higher_is_better = False


def squared(prediction, target):
    return (prediction.softmax(dim=1)[:, 1] - target).square()


def answered(prediction, target):
    assert prediction.shape == target.shape
    return (~target.isnan()).float().mean()


def data() -> Data:
    ends = torch.randint(0, NODES, (2, 500), generator=torch.manual_seed(0))
    made = Data(x=torch.rand(NODES, 3) + Y[:, None], y=Y, edge_index=ends[:, Y[ends[0]] == Y[ends[1]]])
    made.train_mask, made.val_mask, made.test_mask = (code == PART for code in range(3))
    return made


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_graph_and_a_module_with_parts_of_one_s_own_to_predictions_and_on() -> None:
    heard: list[tuple[str, int]] = []

    class Hear:
        def on_validation(self, epoch, scores):
            assert set(scores) >= {"wrong", "accuracy", "loss"}
            heard.append(("validation", epoch))

        def on_epoch_end(self, epoch, record):
            heard.append(("epoch", epoch))
            return "stop" if epoch == 1 else None

        def on_checkpoint(self, epoch, name):
            assert name.startswith(f"epoch-{epoch:06d}")
            heard.append(("checkpoint", epoch))

    fit = {
        "epochs": 9,
        "eval_every": 4,
        "optimizer": torch.optim.SGD,
        "optimizer_options": {"momentum": 0.9},
        "schedule": torch.optim.lr_scheduler.StepLR,
        "schedule_options": {"step_size": 1, "gamma": 0.5},
        "warmup_epochs": 0,
        "learning_rate": 0.5,
        "callbacks": [Hear()],
    }
    own = Net(3, 2)
    before = {name: value.clone() for name, value in own.state_dict().items()}
    run = gm.train(data(), model=own, task={"metric": wrong, "loss": squared}, fit=fit, run={"dir": "run"}, **BRIEF)
    assert heard == [("epoch", 0), ("epoch", 1), ("validation", 1), ("checkpoint", 2)]
    assert run.summary["metric"] == "wrong"
    assert run.summary["higher_is_better"] is False
    assert "Hear" in run.summary["stopped_early"]["why"]
    assert all(torch.equal(value, before[name]) for name, value in own.state_dict().items())
    rates = [json.loads(line)["learning_rate"] for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert rates == [0.5, 0.25]
    table = gm.predict(run)
    right = np.array(table["prediction"].to_pylist()) == Y.numpy()
    assert 1 - right[PART.numpy() == 2].mean() == pytest.approx(run.summary["scores"]["test"])
    # A resume may use another object of the model's class.
    longer = gm.train(resume="run", model=Net(3, 2), fit={"epochs": 3, "callbacks": []})
    rates = [json.loads(line)["learning_rate"] for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert rates == [0.5, 0.25, 0.125]
    assert longer.summary["metric"] == "wrong"
    # Another process has neither of the two objects.
    code = "import graphmill as gm; gm.predict('run', 'other', allow_import=True)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Net: an object of the Python process that began the run" in done.stderr.splitlines()[-1]
    run.save_model("saved")
    delattr(sys.modules["graphmill.objects"], run.config["model"]["name"].partition(":")[2])  # as in another process
    with pytest.raises(ConfigError, match="give it again"):
        gm.predict(run, "other")
    with pytest.raises(ConfigError, match="give it again"):
        gm.load_model("run")
    for place in ("run", "saved"):
        assert gm.load_model(place, model=Net(3, 2))(data()).shape == (NODES, 2)
        delattr(sys.modules["graphmill.objects"], run.config["model"]["name"].partition(":")[2])
    assert gm.predict(run, "other", model=Net(3, 2)).num_rows == NODES
    with pytest.raises(ConfigError, match="resume: the run has its graph"):
        gm.train(data(), resume="run", model=own)
    with pytest.raises(ConfigError, match=r"^model=… graphmill.objects:Net_\w+.* holds in this process alone"):
        gm.train(data(), model=own, **{**BRIEF, "workers": 2})


def test_a_set_of_graphs_and_a_class_whose_options_are_said() -> None:
    graphs = [
        Data(x=torch.rand(3, 2) + k % 2, edge_index=torch.tensor([[0, 1], [1, 2]]), y=torch.tensor([k % 2]))
        for k in range(40)
    ]
    split = gm.SplitOptions(shares=(0.6, 0.2, 0.2))
    run = gm.train(graphs, split=split, model=OfGraphs, fit={"epochs": 2}, workers=1)
    assert run.summary["metric"] == "accuracy"
    assert run.config["task"]["name"] == "classes"
    assert gm.predict(run).num_rows == 40


def typed_data() -> HeteroData:
    made = HeteroData()
    made["a"].x = torch.rand(30, 2)
    made["b"].x, made["b"].y = torch.rand(NODES, 2) + Y[:, None], Y
    made["b"].train_mask, made["b"].val_mask, made["b"].test_mask = (code == PART for code in range(3))
    made["a", "of", "b"].edge_index = torch.stack([torch.arange(NODES) % 30, torch.arange(NODES)])
    return made


def test_types_and_a_module_of_mappings() -> None:
    sampler = {"name": "neighbor", "fanouts": [5]}
    run = gm.train(typed_data(), model=OfTypes(), sampler=sampler, fit={"epochs": 2}, workers=1)
    assert gm.predict(run).num_rows == NODES


@pytest.mark.parametrize("model", ["rsage", "gat", Net, OfTypes], ids=lambda model: getattr(model, "__name__", model))
def test_a_saved_program_of_a_typed_graph_computes_the_same(model, tmp_path: Path) -> None:
    """The relational layers before `gat` read weights and features of edges.

    A module whose forward takes `x` and `edge_index` reads the states of these layers.
    """
    hetero, relation, words = typed_data(), ("a", "of", "b"), []
    own = OfTypes() if model is OfTypes else Net(128, 2) if model is Net else model
    if isinstance(model, str):
        hetero[relation].edge_weight, hetero[relation].edge_attr = torch.rand(NODES) + 0.5, torch.rand(NODES, 2)
        words = ["--data.edge_features", "yes"]
    run = gm.train(hetero, *words, model=own, fit={"epochs": 1}, workers=1)
    trained = run.model()
    program = trained.export(hetero)
    torch.export.save(program, tmp_path / "model.pt2")
    source, destination = hetero[relation].edge_index
    edge_index = torch.stack([source.flip(0), destination.roll(7)])
    x = {name: rows.flip(0) for name, rows in hetero.x_dict.items()}
    columns = {name: {relation: hetero[relation][name].flip(0)} for name in ("edge_weight", "edge_attr") if words}
    named = {name: {"a--of--b": values[relation]} for name, values in columns.items()}
    expected = trained(x, {relation: edge_index}, **columns)
    assert torch.equal(trained(x, {"a--of--b": edge_index}, **named), expected)
    for exported in (program, torch.export.load(tmp_path / "model.pt2")):
        rows = exported.module()(x, {"a--of--b": edge_index}, **named)
        torch.testing.assert_close(rows, expected, rtol=0, atol=1e-6)
    assert not torch.allclose(expected, trained(hetero))


def test_the_task_is_that_of_the_labels_where_only_options_of_it_are_said() -> None:
    """If nodes have several labels, a user's metric gets every row with at least one known answer, and NaN for each unknown answer."""
    graph = data()
    graph.y = torch.stack([Y.float(), torch.full((NODES,), torch.nan)], dim=1)
    graph.y[::2, 1] = 1.0
    fit = {"epochs": 1}
    run = gm.train(
        graph, "--task.label_smoothing", "0.1", model=Net(3, 2), task={"metric": answered}, fit=fit, workers=1
    )
    assert run.config["task"]["name"] == "binary"
    assert run.summary["metric"] == "answered"
    assert run.summary["scores"]["test"] == 0.75
    with pytest.raises(ConfigError, match="label_smoothing: expected"):
        gm.train(graph, model=Net(3, 2), task={"label_smoothing": 2}, run={"dir": "refused"})
    assert not Path("refused").exists()
