"""Tests GRIT's study of hops and PPGT's study of norms: targets follow their definition, attention equals the layers' attention, and results agree with the
papers."""

import json

import pytest
import torch

from graphmill.jobs.papers import hop_attention, norm_autoencoder
from graphmill.jobs.papers.hop_attention import HopConfig, build_model, fit, hop_targets
from graphmill.jobs.papers.norm_autoencoder import AutoencoderConfig
from graphmill.models.encodings.random_walk import random_walk_probabilities
from graphmill.models.grit.attention import Pairs
from graphmill.models.primitives.graphs import Graphs


def path(n: int) -> Graphs:
    edges = torch.tensor([(i, i + 1) for i in range(n - 1)]).t()
    return Graphs(torch.tensor([0, n]), torch.cat([edges, edges.flip(0)], 1), node_id=torch.arange(n))


def test_targets_are_the_nodes_that_k_steps_reach():
    target = hop_targets(path(5), 2)
    assert target[0].tolist() == [0.5, 0, 0.5, 0, 0]  # two steps lead back to node 0 or on to node 2
    assert target[2].tolist() == pytest.approx([1 / 3, 0, 1 / 3, 0, 1 / 3])
    alone = Graphs(torch.tensor([0, 2]), torch.zeros(2, 0, dtype=torch.long), node_id=torch.arange(2))
    assert not hop_targets(alone, 1).any()


def test_grits_head_is_the_layers_attention():
    """Without the term for pairs, the layer's output is the sum of the values, weighted by this attention."""
    config, graphs = HopConfig(width=6, walk_steps=4), path(5)
    model = build_model("grit", config, 0)
    layer, alpha_NN = model.attention, model(graphs)
    walks = random_walk_probabilities(graphs, 4)
    x_ND, pairs = model.absolute(walks[0].diagonal().t()), Pairs(model.relative(walks))
    with torch.no_grad():
        layer.edge_value.zero_()
    out_ND, _ = layer(x_ND, pairs, graphs.padding, update_edges=False)
    torch.testing.assert_close(out_ND, alpha_NN @ layer.value(x_ND), rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_grit_finds_the_third_hop_and_the_others_do_not():
    """The graph is a path that ends in a triangle. Distances and degrees do not determine which nodes can be reached in three steps."""
    config = HopConfig(steps=400, lr=5e-3, width=32, walk_steps=8)
    line = path(9)
    graphs = Graphs(
        line.node_ptr, torch.cat([line.edge_index, torch.tensor([[0, 2], [2, 0]])], 1), node_id=line.node_id
    )
    error = {kind: fit(kind, config, graphs, 3, 0)[0] for kind in ("grit", "graphormer", "uniform")}
    assert error["grit"] < 0.002 < error["graphormer"] < error["uniform"]


@pytest.mark.long
def test_the_command_writes_its_table(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["--graphs", "2", "--steps", "2", "--hops", "1", "3", "--out", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", ["hop_attention", *words])
    hop_attention.main()
    saved = json.loads((tmp_path / "out" / "results.json").read_text())
    assert set(saved["results"]) == {f"{kind} {k}" for kind in hop_attention.PUBLISHED for k in (1, 3)}
    assert (tmp_path / "out" / "results.md").read_text() in capsys.readouterr().out


def test_a_norm_that_forgets_the_radius(tmp_path, monkeypatch, capsys):
    words = ["--steps", "300", "--points", "256", "--lr", "1e-2", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["norm_autoencoder", *words])
    norm_autoencoder.main()
    found = json.loads((tmp_path / "results.json").read_text())["results"]
    assert found["rms"]["radius"] > 0.2
    assert max(found["batch"]["radius"], found["ada"]["radius"]) < 0.1
    assert found["rms"]["angle"] < 0.1
    assert "error of the radius" in capsys.readouterr().out
    assert AutoencoderConfig().steps == 5000
