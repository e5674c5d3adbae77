"""Compares TokenGT with a loop over tokens. Also tests published parameter counts and symmetries."""

import dataclasses
from dataclasses import replace
from typing import Any, Literal, get_args

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import graphmill.models.tokengt.options as tokengt_options
from graphmill.models.options.features import Features
from graphmill.models.primitives.graphs import Graphs
from graphmill.models.tokengt.network import TokenGT, TokenView
from graphmill.models.tokengt.options import TokenGTConfig
from tests.packed_graphs import alone
from tests.recipe_options import MOLECULES, options_of

NODE, EDGE = Features(categories=(4, 3)), Features(categories=(5,))


def options(**changes):
    base = {
        "node": NODE, "edge": EDGE, "out_dim": 2, "width": 12, "num_layers": 2, "num_heads": 3, "identifier_dim": 4,
        "encoding": "lap", "seed": 7,
    }  # fmt: skip
    if changes.get("identifier", "laplacian") != "laplacian":
        base["encoding"] = None
    return TokenGTConfig(**{**base, **changes})


def build(config, dtype=torch.float64, train=False):
    torch.manual_seed(0)
    model = TokenGT(config).to(dtype)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.2)  # so that no bias is 0 and no weight is tiny
    return model.train(train)


def make_graphs(sizes_edges, seed=0, dtype=torch.float64):
    """Graphs with these edges; node ids count within each graph. Features and stored encodings are random."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [n for n, _ in sizes_edges]
    node_ptr = torch.tensor([0, *sizes]).cumsum(0)
    edges = [(u + int(node_ptr[b]), v + int(node_ptr[b])) for b, (_, local) in enumerate(sizes_edges) for u, v in local]
    n, count = int(node_ptr[-1]), len(edges)
    return Graphs(
        node_ptr,
        torch.tensor(edges, dtype=torch.int64).view(-1, 2).t(),
        x=torch.stack([torch.randint(0, c, (n,), generator=generator) for c in NODE.categories], 1),
        edge_attr=torch.randint(0, 5, (count, 1), generator=generator),
        encodings={"lap": torch.randn(n, 4, generator=generator, dtype=dtype)},
    )


MIXED = [
    (4, [(2, 0), (0, 1), (1, 0), (3, 2), (1, 1), (0, 1)]),  # a self-loop, a repeated edge, unsorted sources
    (0, []),
    (1, []),
    (3, [(0, 2), (2, 0)]),  # node 1 is isolated
]


@pytest.fixture
def mixed():
    return make_graphs(MIXED)


def plain(model, graph):
    """Slow version of the model for one graph: token by token, with an explicit softmax. Uses the weights of `model`."""
    config, embedding = model.config, model.embedding
    pairs = [(v, v) for v in range(graph.num_nodes)] + [tuple(e) for e in graph.edge_index.t().tolist()]
    tokens = []
    p = graph.encodings["lap"]
    if config.unit_identifiers:
        p = torch.stack([row / row.square().sum().sqrt() for row in p]) if len(p) else p
    for position, (u, v) in enumerate(pairs):
        is_node = position < graph.num_nodes
        rows = graph.x[u] if is_node else graph.edge_attr[position - graph.num_nodes]
        encoder = embedding.node if is_node else embedding.edge
        z = sum(encoder.embedding.weight[encoder.offset[f] + rows[f]] for f in range(len(rows)))
        z = z + embedding.identifier.weight @ torch.cat([p[u], p[v]])
        as_node = u == v if config.type_by_index else is_node
        tokens.append(z + embedding.token_type.weight[int(as_node)])
    special = [t.weight[0] for t in (embedding.graph_token, embedding.null_token) if t is not None]
    if not special and not tokens:
        return torch.zeros(0, config.out_dim, dtype=torch.float64)
    x = model.embedding_norm(torch.stack(special + tokens))
    for layer in model.layers:
        q, k, v = layer.attention.qkv(layer.attention_norm(x)).chunk(3, dim=1)
        heads = []
        for h in range(config.num_heads):
            part = slice(h * config.width // config.num_heads, (h + 1) * config.width // config.num_heads)
            score = q[:, part] @ k[:, part].t() / (config.width // config.num_heads) ** 0.5
            heads.append(score.softmax(1) @ v[:, part])
        x = x + layer.attention.out(torch.cat(heads, 1))
        x = x + layer.fc2(torch.nn.functional.gelu(layer.fc1(layer.ffn_norm(x))))
        if config.sparse_equivariant_basis:
            rows = list(x)
            for v in range(graph.num_nodes):
                leaving = [e for e in range(graph.num_nodes, len(pairs)) if pairs[e][0] == v != pairs[e][1]]
                for e in leaving:
                    share = len(leaving) if config.basis_reduction == "mean" else 1
                    rows[len(special) + v] = rows[len(special) + v] + x[len(special) + e] / share
            x = torch.stack(rows)
    if config.task == "graph":
        return model.head(x[:1])
    return model.head(x[len(special) : len(special) + graph.num_nodes])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"task": "node"},
        {"task": "node", "sparse_equivariant_basis": True},
        {"task": "node", "sparse_equivariant_basis": True, "basis_reduction": "mean"},
        {"sparse_equivariant_basis": True, "basis_reduction": "mean", "unit_identifiers": True, "null_token": True},
        {"sparse_equivariant_basis": True, "null_token": True, "embedding_norm": True, "head": "code"},
        {"type_by_index": True, "feature_table": "slots", "ffn_width": 20},
    ],
    ids=str,
)
def test_equals_a_loop_over_tokens(mixed, changes):
    model = build(options(**changes))
    got = model(mixed)
    want = torch.cat([plain(model, alone(mixed, b)) for b in range(4)])
    assert got.shape == (4 if model.config.task == "graph" else 8, 2)
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("attention", ["softmax", "performer"])
@pytest.mark.parametrize("identifier", ["laplacian", "orf", "orf_first_order", "random_first_order"])
@pytest.mark.parametrize(("task", "reduction"), [("graph", "sum"), ("node", "sum"), ("node", "mean")])
def test_batch_mates_change_nothing(mixed, attention, identifier, task, reduction):
    config = options(
        attention=attention,
        identifier=identifier,
        task=task,
        sparse_equivariant_basis=True,
        basis_reduction=reduction,
        unit_identifiers=reduction == "mean",
    )
    model = build(config)
    together = model(mixed)
    parts = torch.cat([model(alone(mixed, b)) for b in range(4)])
    torch.testing.assert_close(together, parts, rtol=1e-10, atol=1e-11)


def test_rows_of_eigenvectors_are_scaled_to_length_one(mixed):
    """Entries of an eigenvector are about n^-½. Scaling makes the size of a node's identifier independent of the number of nodes n."""
    rows = mixed.encodings["lap"].clone()
    # Row 0 is exactly zero. Row 1 has the tiny values that a solver may return instead of zeros.
    rows[0], rows[1] = 0, 1e-9
    mixed = dataclasses.replace(mixed, encodings={"lap": rows})
    smaller = dataclasses.replace(mixed, encodings={"lap": rows * 0.01})
    model = build(options(unit_identifiers=True))
    seen = model.embedding._node_identifiers(mixed)
    torch.testing.assert_close(seen[2:], rows[2:] / rows[2:].norm(dim=1, keepdim=True), rtol=1e-13, atol=0)
    assert (seen[0] == 0).all()
    assert seen[1].norm() < 0.01
    torch.testing.assert_close(model.embedding._node_identifiers(smaller)[2:], seen[2:], rtol=1e-13, atol=0)
    paper = build(options())
    assert torch.equal(paper.embedding._node_identifiers(mixed), rows)


def test_a_mean_over_edges_does_not_grow_with_their_number():
    """A hub's node token after SEB. With "sum" it grows by one token for each edge of the hub; with "mean" it grows by the size of one token."""
    sizes = {}
    for leaves in (2, 64):
        star = [(0, i + 1) for i in range(leaves)] + [(0, 0)]
        view = TokenView(make_graphs([(leaves + 1, star)]), 0)
        x = torch.ones(1, view.num_places, 3, dtype=torch.float64)
        for reduction in ("sum", "mean"):
            after = view.nodes(view.add_edges_to_nodes(x, reduction))
            assert torch.equal(after[1:], torch.ones(leaves, 3, dtype=torch.float64))  # leaves have no out-edges
            sizes[reduction, leaves] = after[0, 0].item()
    assert sizes == {("sum", 2): 3.0, ("sum", 64): 65.0, ("mean", 2): 2.0, ("mean", 64): 2.0}


@pytest.mark.parametrize("attention", ["softmax", "performer"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_permuting_nodes_and_edges_permutes_the_result(attention, reduction):
    """E11: permuting nodes and edges permutes the result. Identifiers are permuted together with their nodes."""
    graphs = make_graphs([(5, [(0, 1), (1, 0), (1, 2), (2, 1), (3, 3), (2, 4)])])
    order, edge_order = torch.tensor([3, 0, 4, 1, 2]), torch.tensor([5, 2, 0, 4, 1, 3])
    inverse = torch.argsort(order)
    moved = Graphs(
        graphs.node_ptr,
        inverse[graphs.edge_index][:, edge_order],
        x=graphs.x[order],
        edge_attr=graphs.edge_attr[edge_order],
        encodings={"lap": graphs.encodings["lap"][order]},
    )
    node = build(
        options(
            task="node",
            attention=attention,
            sparse_equivariant_basis=True,
            basis_reduction=reduction,
            unit_identifiers=reduction == "mean",
        )
    )
    torch.testing.assert_close(node(moved), node(graphs)[order], rtol=1e-11, atol=1e-12)
    graph = build(options(attention=attention))
    torch.testing.assert_close(graph(moved), graph(graphs), rtol=1e-11, atol=1e-12)


def test_identifiers_show_incidence():
    """E3: [P_u, P_v]·[P_k, P_k] is 1 if k is an end of (u, v) and u ≠ v. It is 2 if u = v = k, and otherwise 0."""
    model = build(options(identifier="orf", identifier_dim=6), train=True)
    graphs = make_graphs([(5, [(0, 1), (1, 0), (3, 4)]), (3, [(2, 0)])])
    view = TokenView(graphs, 1)
    node, edge = model.embedding._identifiers(view)
    reading = edge @ node.t()
    want = torch.zeros(4, 8)
    for row, (u, v) in enumerate(zip(view.source_E.tolist(), view.destination_E.tolist())):
        want[row, u] += 1
        want[row, v] += 1
    same = view.graph_E.unsqueeze(1) == graphs.graph_of_node
    torch.testing.assert_close(reading * same, want.double(), atol=1e-12, rtol=0)
    same = graphs.graph_of_node.unsqueeze(1) == graphs.graph_of_node
    torch.testing.assert_close(node @ node.t() * same, 2 * torch.eye(8, dtype=torch.float64), atol=1e-12, rtol=0)


def test_first_order_identifiers_are_orthonormal_over_tokens():
    model = build(options(identifier="orf_first_order", identifier_dim=6), train=True)
    graphs = make_graphs([(3, [(0, 1), (1, 0)]), (4, [(2, 0), (1, 3), (3, 1)])])
    view = TokenView(graphs, 1)
    rows = torch.cat(model.embedding._identifiers(view))
    owner = torch.cat([graphs.graph_of_node, view.graph_E])
    same = owner.unsqueeze(1) == owner
    torch.testing.assert_close(rows @ rows.t() * same, torch.eye(12, dtype=torch.float64), atol=1e-12, rtol=0)


def test_initial_values():
    torch.manual_seed(0)
    model = TokenGT(options_of("tokengt/pcqm4mv2_lap", **MOLECULES, width=64, num_layers=2, num_heads=4))
    assert model.embedding.node.embedding.weight.shape == (4608, 64)
    assert model.embedding.edge.embedding.weight.shape == (1536, 64)
    assert (model.embedding.node.embedding.weight[0] == 0).all()
    assert model.embedding.node.embedding.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert model.layers[1].attention.qkv.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert all((p == 0).all() for name, p in model.named_parameters() if name.endswith("bias"))
    assert [layer.drop_path.p for layer in model.layers] == [0.05, 0.1]


def switch_attention(model: TokenGT, attention: Literal["softmax", "performer"], **options: Any) -> TokenGT:
    """Returns a model with the same weights but the other kind of attention. `options` override other fields of the config.

    The two state dicts differ only in Performer's projections. Raises RuntimeError if an option changes shapes.
    """
    switched = TokenGT(replace(model.config, attention=attention, **options))
    switched.to(next(model.parameters()))
    weights = {name: tensor for name, tensor in model.state_dict().items() if ".favor." not in name}
    missing, unexpected = switched.load_state_dict(weights, strict=False)
    if unexpected or any(".favor." not in name for name in missing):
        raise RuntimeError(f"the models differ in more than attention: {sorted(missing)}, {sorted(unexpected)}")
    return switched.train(model.training)


def test_performer_takes_a_trained_softmax_model(mixed):
    softmax = build(options())
    performer = switch_attention(softmax, "performer", performer_features=20_000, performer_epsilon=0.0)
    assert {k for k in performer.state_dict() if k not in softmax.state_dict()} == {
        f"layers.{i}.attention.favor.{name}" for i in range(2) for name in ("projection_RD", "num_calls")
    }
    coarse = switch_attention(softmax, "performer", performer_features=2, performer_epsilon=0.0)
    want = softmax(mixed)
    assert (performer(mixed) - want).abs().max() < 0.1 * want.std()
    assert (coarse(mixed) - want).abs().max() > (performer(mixed) - want).abs().max()
    assert torch.equal(switch_attention(performer, "softmax")(mixed), want)
    with pytest.raises(RuntimeError, match="more than attention"):
        switch_attention(softmax, "performer", null_token=True)


class _LargestTensor(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel())
        return out


def test_performer_holds_nothing_quadratic_in_the_tokens():
    n, degree = 4000, 10
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(0, n, (2, n * degree), generator=generator)
    graphs = Graphs(torch.tensor([0, n]), edge_index, x=torch.randn(n, 3, generator=generator))
    graphs = dataclasses.replace(graphs, encodings={"lap": torch.randn(n, 8, generator=generator)})
    small = {"width": 16, "num_layers": 1, "identifier_dim": 8}
    config = options_of("defaults/nodes-tokengt", node=Features(dim=3), encoding="lap", **small)
    model = TokenGT(config)
    with _LargestTensor() as largest:
        model(graphs).sum().backward()
    tokens = n * (degree + 1)
    assert largest.numel <= 3 * 16 * tokens  # q, k and v; a T × T matrix would have 2e9
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("identifier", get_args(tokengt_options.Identifier))
@pytest.mark.parametrize("attention", ["softmax", "performer"])
def test_no_edges_empty_graphs_and_empty_batches(identifier, attention):
    cases = [[(1, [])], [(0, [])], [], [(0, []), (3, [])], [(6, [(0, 1), (1, 0)]), (2, [])]]
    for task in ("graph", "node", "link"):
        config = options(identifier=identifier, attention=attention, task=task, encoding=None)
        model = build(config, train=True)
        for case in cases:
            graphs = make_graphs(case)
            rows = len(case) if task == "graph" else graphs.num_nodes
            out = model(graphs)
            assert out.shape == (rows, config.width if task == "link" else 2)
            assert out.isfinite().all()
            model.zero_grad()
            out.square().sum().backward()
            assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    without = dataclasses.replace(make_graphs([(2, [])]), edge_attr=None)
    assert model(without).isfinite().all()


def test_evaluation_is_deterministic_and_training_follows_the_global_generator(mixed):
    for identifier in ("laplacian", "orf", "near_orf", "random", "positive"):
        model = build(options(identifier=identifier, drop_path=0.3))
        assert torch.equal(model(mixed), model(mixed))
        model.train()
        runs = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            runs.append(model(mixed))
        assert torch.equal(runs[0], runs[1])
        assert not torch.equal(runs[0], runs[2])
    fresh = build(options(identifier="orf", resample_in_eval=True))
    assert not torch.equal(fresh(mixed), fresh(mixed))


@pytest.mark.parametrize("identifier", ["near_orf", "random", "positive"])
def test_in_evaluation_a_graphs_place_in_its_batch_changes_nothing(identifier):
    model = build(options(identifier=identifier)).eval()
    graph = (3, [(0, 1), (1, 2)])
    one, three = make_graphs([graph]), make_graphs([graph, graph, graph])
    x, edge_attr = one.x, one.edge_attr
    three = dataclasses.replace(
        three, x=x.repeat(3, 1), edge_attr=None if edge_attr is None else edge_attr.repeat(3, 1)
    )
    torch.testing.assert_close(model(three), model(one).repeat(3, 1))


def test_signs_and_dropout_of_eigenvectors_are_for_training_only(mixed):
    embedding = build(options(eigenvector_dropout=0.5)).embedding
    rows = mixed.encodings["lap"]
    assert torch.equal(embedding._node_identifiers(mixed), rows)
    embedding.train()
    torch.manual_seed(0)
    seen = embedding._node_identifiers(mixed)
    kept = seen != 0
    assert 0.2 < kept.double().mean() < 0.8
    torch.testing.assert_close(seen.abs()[kept], 2 * rows.abs()[kept])
    # All nodes of a graph have the same random sign for an eigenvector.
    sign = (seen * rows).sign()[:4]
    assert all(len(set(sign[:, c][sign[:, c] != 0].tolist())) <= 1 for c in range(4))


def test_drop_path_drops_whole_graphs(mixed):
    model = build(
        options(drop_path=0.9, num_layers=1, attention_dropout=0.0, activation_dropout=0.0, identifier="none")
    )
    block, x = model.layers[0], torch.randn(200, 3, 12, dtype=torch.float64)
    torch.nn.init.zeros_(block.fc2.weight)
    torch.nn.init.zeros_(block.fc2.bias)
    attended = block.eval()(x, None) - x
    change = block.train()(x, None) - x
    dropped = (change == 0).all(dim=(1, 2))
    assert 0.8 < dropped.double().mean() < 0.97
    torch.testing.assert_close(change[~dropped], attended[~dropped] * 10)


def test_roots_and_links(mixed):
    roots = torch.tensor([6, 0, 6])
    model = build(options(task="node"))
    torch.testing.assert_close(model(dataclasses.replace(mixed, root_index=roots)), model(mixed)[roots])
    link = build(options(task="link"))
    assert link(mixed).shape == (8, 12)
    torch.testing.assert_close(link(mixed).mean(1), link.head.bias.mean().expand(8), atol=1, rtol=0)


def test_bf16_autocast(mixed):
    for attention in ("softmax", "performer"):
        model = build(options(attention=attention, sparse_equivariant_basis=True), torch.float32)
        want = model(mixed)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = model(mixed)
        assert (got.float() - want).abs().max() < 0.1 * want.abs().max()


def test_gradients_are_exact():
    graphs = make_graphs([(3, [(0, 1), (1, 0), (2, 2)]), (1, [])])
    for attention, reduction in (("softmax", "sum"), ("performer", "sum"), ("softmax", "mean")):
        model = build(
            options(
                width=4, num_heads=2, num_layers=1, attention=attention, sparse_equivariant_basis=True, task="node",
                basis_reduction=reduction,
            )
        )  # fmt: skip
        names = ["embedding.identifier.weight", "embedding.node.embedding.weight", "layers.0.attention.qkv.weight"]
        weights = [model.get_parameter(name).detach().clone().requires_grad_() for name in names]

        def run(*values, model=model, names=names):
            return torch.func.functional_call(model, dict(zip(names, values)), (graphs,))

        assert torch.autograd.gradcheck(run, weights)


def cycle(*lengths):
    edges, start = [], 0
    for length in lengths:
        for i in range(length):
            u, v = start + i, start + (i + 1) % length
            edges += [(u, v), (v, u)]
        start += length
    return start, edges


def test_learns_to_tell_one_cycle_from_two():
    """1-WL and TokenGT without identifiers cannot distinguish the two graphs. TokenGT with eigenvectors, with new random signs in each step, can."""
    pairs = [(cycle(6), 0.0), (cycle(3, 3), 1.0)] * 8
    graphs = dataclasses.replace(make_graphs([g for g, _ in pairs], dtype=torch.float32), x=None, edge_attr=None)
    target = torch.tensor([y for _, y in pairs])
    losses = {}
    for identifier in ("laplacian", "none"):
        torch.manual_seed(0)
        model = TokenGT(
            TokenGTConfig(
                width=32, num_layers=2, num_heads=4, identifier=identifier, identifier_dim=6, attention_dropout=0.0,
                activation_dropout=0.0, drop_path=0.0,
            )
        )  # fmt: skip
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        for _ in range(400):
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(graphs).squeeze(1), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses[identifier] = loss.item()
    assert losses["laplacian"] < 0.2  # guessing gives 0.69
    assert losses["none"] > 0.65


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"identifier": "orf", "encoding": "lap"}, "set identifier to 'laplacian'"),
        ({"feature_table": "slots", "node": Features(dim=3)}, "set feature_table to 'exact'"),
    ],
)
def test_bad_options(changes, message):
    with pytest.raises(ValueError, match=message):
        options(**changes)


@pytest.mark.parametrize("table", ["exact", "slots"])
def test_bad_batches(mixed, table):
    model = build(options(feature_table=table))
    x = mixed.x.clone()
    x[5, 1] = 3
    with pytest.raises(ValueError, match=r"column 1 must be in \[0, 3\), got 3 in row 5"):
        model(dataclasses.replace(mixed, x=x))
    with pytest.raises(ValueError, match="features"):
        model(dataclasses.replace(mixed, x=None))
    with pytest.raises(ValueError, match="encoding 'lap', the batch has none"):
        model(dataclasses.replace(mixed, encodings={}))
    with pytest.raises(ValueError, match=r"must be \[8, 4\], got \(8, 3\)"):
        model(dataclasses.replace(mixed, encodings={"lap": torch.zeros(8, 3)}))
    big = Graphs(torch.tensor([0, 5000]), torch.zeros(2, 0, dtype=torch.int64), x=torch.zeros(5000, 2).long())
    with pytest.raises(ValueError, match="up to 4096 nodes"):
        build(options(encoding=None))(big)


def test_the_slots_of_a_feature_table_hold_510_categories_each():
    """A column has 512 rows. Two of them are unused, so that the last category of the last column also has a row."""
    model = build(options(node=Features(categories=(510, 510)), feature_table="slots"))
    last = model.embedding.node(torch.tensor([[509, 509]]))
    table = model.embedding.node.embedding.weight
    torch.testing.assert_close(last[0], table[2 + 509] + table[2 + 512 + 509])
    with pytest.raises(ValueError, match="at most 510 values"):
        options(node=Features(categories=(511,)), feature_table="slots")
