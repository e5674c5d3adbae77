"""Tests the basis experiment: its targets equal their definition, the paper's proof by construction works, and a run learns."""

import itertools
import json

import pytest
import torch

from graphmill.jobs.papers import equivariant_basis as basis
from graphmill.jobs.papers.equivariant_basis import ROWS, Sizes, basis_targets, make_samples, pack, partition_of
from graphmill.models.primitives.graphs import Graphs
from graphmill.models.tokengt.network import TokenView


def dense_view(n):
    edges = (1 - torch.eye(n, dtype=torch.int64)).nonzero().t()
    return TokenView(Graphs(torch.tensor([0, n]), edges), 1)


def token_ends(view):
    pairs = [(i, i) for i in range(view.slot_n.numel())]
    return torch.tensor(pairs + list(zip(view.source_E.tolist(), view.destination_E.tolist())))


def test_fifteen_partitions():
    """Each pattern of equal indices has one number, and different patterns have different numbers."""
    slots = torch.tensor(list(itertools.product(range(4), repeat=4)))
    rank = partition_of(*slots.t())
    patterns = {}
    for row, number in zip(slots.tolist(), rank.tolist()):
        patterns.setdefault(tuple(a == b for a, b in itertools.combinations(row, 2)), set()).add(number)
    assert len(patterns) == 15
    assert all(len(numbers) == 1 for numbers in patterns.values())
    assert {numbers.pop() for numbers in patterns.values()} == set(range(15))


def test_targets_are_row_normalised_and_cover_every_pair():
    view = dense_view(5)
    target, mask = basis_targets(view)
    assert target.shape == (15, 1, 25, 26)
    assert mask.all()
    torch.testing.assert_close(target.sum(-1), torch.ones(15, 1, 25))
    assert ((target[..., 1:] > 0).sum(0) == 1).all()  # the sum of the binary tensors is 1 everywhere
    assert ((target[..., 0] == 1) == (target[..., 1:] == 0).all(-1)).all()


def test_padding_is_no_target():
    samples = make_samples(6, False, 0)
    graphs = pack(samples, "cpu")
    target, mask = basis_targets(TokenView(graphs, 1))
    for b, sample in enumerate(samples):
        count = sample.num_nodes + sample.edge_index.shape[1]
        assert mask[b].sum() == count
        alone, _ = basis_targets(TokenView(pack([sample], "cpu"), 1))
        torch.testing.assert_close(target[:, b, :count, : count + 1], alone[:, 0])
        assert (target[:, b, :count, count + 1 :] == 0).all()


def test_constructive_attention_reproduces_every_basis_tensor():
    """The paper's proof: queries and keys are linear in [P_u, P_v, type], and their softmax at scale 60 equals each basis tensor."""
    n, scale = 5, 60.0
    view = dense_view(n)
    target, _ = basis_targets(view)
    target = (target > 0).double()
    target = target / target.sum(-1, keepdim=True)
    ends = token_ends(view)
    order = torch.cat([view.slot_n, view.slot_E]) - 1
    u, v = torch.empty(2, n * n, dtype=torch.int64)
    u[order], v[order] = ends[:, 0], ends[:, 1]
    p = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0]
    diagonal = (u == v).double().unsqueeze(1)
    zero, one = torch.zeros(n * n, 1, dtype=torch.float64), torch.ones(n * n, 1, dtype=torch.float64)
    # Last four columns: is node, is edge, is [null], 1.
    tokens = torch.cat([p[u], p[v], diagonal, 1 - diagonal, zero, one], 1)
    null = torch.zeros(1, 2 * n + 4, dtype=torch.float64)
    null[0, -2] = 1
    keys = torch.cat([null, tokens])
    slots = torch.tensor(list(itertools.product(range(4), repeat=4)))
    for number in range(15):
        a, b, c, d = slots[partition_of(*slots.t()) == number][0].tolist()
        m = torch.zeros(2 * n + 4, 2 * n + 4, dtype=torch.float64)  # score = token · m · key
        agreeing = 0
        for i, query_end in enumerate((a, b)):
            for j, key_end in enumerate((c, d)):
                sign = 1.0 if query_end == key_end else -1.0
                agreeing += sign > 0
                m[i * n : (i + 1) * n, j * n : (j + 1) * n] = sign * torch.eye(n, dtype=torch.float64)
        m[-1, 2 * n if c == d else 2 * n + 1] = 1  # the type of the key must match
        # The [null] token has a higher score than every key that misses one condition.
        m[-1, 2 * n + 2] = agreeing + 0.5
        m[2 * n + 1 if a == b else 2 * n, 2 * n + 2] = 10  # a query of the other type attends to [null] only
        weights = (scale * tokens @ m @ keys.t()).softmax(1)
        assert (weights - target[number, 0]).abs().max() < 1e-12


@pytest.mark.long
def test_learns_with_identifiers_and_not_without():
    sizes = Sizes(48, 32, 40, 8, 100, 10, 5e-3, 0.0)
    samples = make_samples(40, False, 0)
    config = basis.BasisConfig(scale="smoke")
    found = {name: basis.run_row(name, config, sizes, samples[8:], samples[:8])[0] for name in ("plain", "lap+type")}
    assert found["plain"]["train"] > 25
    assert found["lap+type"]["train"] < 0.85 * found["plain"]["train"]
    assert found["lap+type"]["test"] < found["plain"]["test"]


@pytest.mark.parametrize("which", [pytest.param("sparse", marks=pytest.mark.long), "dense"])
def test_command_writes_the_table(which, tmp_path, monkeypatch, capsys):
    rows = list(ROWS) if which == "sparse" else ["orf+type"]
    arguments = ["--scale", "smoke", "--steps", "2", "--input", which, "--rows", *rows, "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["equivariant_basis.py", *arguments])
    basis.main()
    saved = json.loads((tmp_path / which / "results.json").read_text())
    assert list(saved["results"]) == rows
    assert saved["config"]["seed"] == 0
    assert saved["command"]
    assert (tmp_path / which / "results.md").read_text() in capsys.readouterr().out
