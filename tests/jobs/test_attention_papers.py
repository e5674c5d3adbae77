"""Tests what the papers' figures of attention need: distances of tokens, drawings, the compared heads, and the encoder of subgraphs around edges."""

import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from graphmill.jobs import train_graphs
from graphmill.jobs.papers import attention_distance, color_refinement, hop_attention
from graphmill.jobs.papers.attention_distance import head_distances, token_distances
from graphmill.jobs.papers.drawings import write_dots, write_matrices
from graphmill.jobs.papers.hop_attention import HopConfig, build_model
from graphmill.jobs.papers.subgraph_encoder import SubgraphPPGT, edge_subgraphs
from graphmill.models.ppgt.network import PPGT
from graphmill.models.ppgt.options import PPGTConfig
from graphmill.models.primitives.graphs import Graphs
from tests.job_in_process import output_of


def path(n: int) -> Graphs:
    edges = torch.tensor([(i, i + 1) for i in range(n - 1)]).t()
    return Graphs(torch.tensor([0, n]), torch.cat([edges, edges.flip(0)], 1), node_id=torch.arange(n))


def test_distances_of_tokens_are_those_of_their_nearest_nodes():
    edges = torch.tensor([[0, 1, 2], [1, 2, 3]])
    both = torch.cat([edges, edges.flip(0)], 1)
    distance = token_distances(both, 5)
    assert distance[0, :4].tolist() == [0, 1, 2, 3]
    assert distance[0, 4].isinf()  # node 4 has no edge
    assert distance[0, 5:8].tolist() == [0, 1, 2]  # edges 0-1, 1-2, 2-3
    assert distance[5, 7] == 1
    assert torch.equal(distance, distance.T)


def test_a_heads_distance_is_weighted_by_its_attention_and_leaves_out_special_tokens():
    distance = torch.tensor([[0.0, 2.0, float("inf")], [2.0, 0.0, float("inf")], [float("inf"), float("inf"), 0.0]])
    weights = torch.zeros(1, 2, 4, 4)
    weights[0, 0, 1:, 0] = 0.5  # half of the attention goes to the special token
    weights[0, 0, 1, 1:] = torch.tensor([0.1, 0.3, 0.1])
    weights[0, 0, 2, 1:] = torch.tensor([0.0, 0.5, 0.0])
    weights[0, 0, 3, 1:] = torch.tensor([0.0, 0.0, 0.5])
    weights[0, 1, 1:, 1:] = 1 / 3
    got = head_distances([weights], distance)
    assert got.shape == (1, 2)
    np.testing.assert_allclose(got[0], [(1.5 + 0 + 0) / 3, (1 + 1 + 0) / 3], rtol=1e-6)


def test_drawings_are_whole_and_small(tmp_path):
    write_matrices(tmp_path / "maps.svg", {"a < b": [np.eye(50), np.full((3, 4), 0.5)], "none": []})
    write_dots(tmp_path / "dots.svg", {"heads": [[0.0, 1.0], [2.0]]})
    maps = ElementTree.parse(tmp_path / "maps.svg").getroot()
    assert len(maps.findall(".//{*}image")) == 2
    assert len(ElementTree.parse(tmp_path / "dots.svg").getroot().findall(".//{*}circle")) == 3
    assert (tmp_path / "maps.svg").stat().st_size < 3000


@pytest.mark.parametrize("kind", ["transformer", "san", "egt"])
def test_a_compared_head_gives_shares_and_learns(kind):
    graphs = path(7)
    model = build_model(kind, HopConfig(width=8, walk_steps=4), 0)
    attention = model(graphs)
    assert attention.shape == (7, 7)
    assert (attention >= 0).all()
    most = attention.sum(1)
    if kind == "egt":  # its gate lowers the sum
        assert (most < 1).all()
    else:
        torch.testing.assert_close(most, torch.ones(7))
    attention[0, 1].backward()
    assert all(each.grad is not None for each in model.parameters() if kind != "san")


def test_the_hop_study_draws_its_maps(tmp_path):
    words = ["--graphs", 1, "--steps", 1, "--hops", 1, "--kinds", "san", "uniform", "--maps", "--out", tmp_path / "out"]
    output_of(hop_attention.main, *words, cwd=tmp_path)
    assert len(re.findall("<image", (tmp_path / "out" / "maps.svg").read_text())) == 3


def test_walks_and_not_distances_tell_the_dodecahedron_from_the_desargues_graph():
    said = output_of(color_refinement.main, "--steps", 5).splitlines()
    assert said[0] == "shortest paths: equal"
    assert said[-1] == "walks of up to 5 steps: told apart"


def test_the_subgraph_of_an_edge_has_the_nodes_near_its_ends_and_their_walks():
    graphs = path(9)
    subgraphs = edge_subgraphs(graphs, hops=1, steps=3)
    assert subgraphs.num_graphs == 16
    assert subgraphs.size_B.tolist() == [3, 4, 4, 4, 4, 4, 4, 3] * 2
    x = subgraphs.x[:3]  # edge 0 → 1: nodes 0, 1 and 2
    assert x[:, 0].tolist() == [1, 0, 0]  # P⁰ marks the first end
    assert x[:, 3].tolist() == [0, 1, 0]
    own = subgraphs.edge_index[:, (subgraphs.edge_index < 3).all(0)]
    assert sorted(map(tuple, own.t().tolist())) == [(0, 1), (1, 0), (1, 2), (2, 1)]


def test_subgraphs_tell_apart_what_walks_cannot():
    """Two strongly regular graphs with 16 nodes: the rook's graph and Shrikhande's. Every function of walks alone is equal on them."""
    rook = [
        ((a, b), (c, d)) for a in range(4) for b in range(4) for c in range(4) for d in range(4) if (a == c) != (b == d)
    ]
    steps = {(0, 1), (0, 3), (1, 0), (3, 0), (1, 1), (3, 3)}
    shrikhande = [((a, b), ((a + x) % 4, (b + y) % 4)) for a in range(4) for b in range(4) for x, y in steps]
    ends = [torch.tensor([[4 * a + b, 4 * c + d] for (a, b), (c, d) in edges]).t() for edges in (rook, shrikhande)]
    config = PPGTConfig(width=16, num_heads=2, num_layers=1, edge_width=8, stem_hidden=8, walk_steps=4)
    for kind, is_apart in ((SubgraphPPGT, True), (PPGT, False)):
        torch.manual_seed(0)
        model = kind(config).double().eval()
        with torch.no_grad():
            for (
                parameter
            ) in model.parameters():  # the initial weights are small, and differences would be of the size of rounding
                parameter.add_(0.3 * torch.randn_like(parameter))
        one, two = (model(Graphs(torch.tensor([0, 16]), each, node_id=torch.arange(16))) for each in ends)
        assert ((one - two).abs().max() > 1e-10) == is_apart


@pytest.mark.long
def test_attention_distances_of_a_trained_run(tmp_path):
    pytest.importorskip("rdkit")
    small = [
        "--model.width",
        16,
        "--model.num_layers",
        2,
        "--model.num_heads",
        4,
        "--data.molecules",
        60,
        "--fit.epochs",
        1,
        "--fit.warmup_epochs",
        0,
    ]
    output_of(train_graphs.main, *small, "--run.dir", "run", cwd=tmp_path)
    (stored,) = {json.loads((tmp_path / "run" / "summary.json").read_text())["graphs"]}
    said = output_of(
        attention_distance.main, "--run", "run", "--data", stored, "--graphs", 5, "--out", "out", cwd=tmp_path
    )
    assert "head 3" in said
    assert len(json.loads((tmp_path / "out" / "results.json").read_text())["results"]) == 2
