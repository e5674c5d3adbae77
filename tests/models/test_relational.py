"""Compares R-SAGE and relational layers with dense matrices and loops, in float64. Also tests the five models that run on top of relational layers."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from graphmill.models.geco.network import NodeGECO
from graphmill.models.geco.options import GECOConfig
from graphmill.models.grit.network import GRIT
from graphmill.models.grit.options import GRITConfig
from graphmill.models.message_passing.network import MessagePassing
from graphmill.models.message_passing.options import SAGEConfig
from graphmill.models.options.features import Features
from graphmill.models.ppgt.network import PPGT
from graphmill.models.ppgt.options import PPGTConfig
from graphmill.models.primitives.propagation import Adjacency
from graphmill.models.primphormer.network import Primphormer
from graphmill.models.primphormer.options import PrimphormerConfig
from graphmill.models.relational.network import (
    RSAGE,
    OverTypes,
    RelationalConvolution,
    RelationalLayers,
    TypedGraphs,
)
from graphmill.models.relational.options import RelationalConfig, RSAGEConfig
from graphmill.models.tokengt.network import TokenGT
from graphmill.models.tokengt.options import TokenGTConfig

SIZES = {"paper": 5, "author": 7, "place": 2}
DIMS = {"paper": 3, "author": 2, "place": 0}
WRITES, WRITTEN, CITES, EMPLOYS = (
    ("author", "writes", "paper"),
    ("paper", "written by", "author"),
    ("paper", "cites", "paper"),
    ("place", "employs", "author"),
)
RELATIONS = (WRITES, WRITTEN, CITES, EMPLOYS)
CONFIG = RSAGEConfig(DIMS, RELATIONS, width=6, num_layers=2, num_bases=2, out_dim=4)


def pairs(relation: tuple[str, str, str]) -> list[tuple[int, int]]:
    """Random edges (source, target). Some are repeated, and the first target has no edge."""
    generator = torch.Generator().manual_seed(len(relation[1]))
    source = torch.randint(SIZES[relation[0]], (11,), generator=generator).tolist()
    target = torch.randint(1, SIZES[relation[2]], (11,), generator=generator).tolist()
    return list(zip(source, target, strict=True))


def csc(relation: tuple[str, str, str], edges: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    lists = [[s for s, t in edges if t == row] for row in range(SIZES[relation[2]])]
    indptr = torch.tensor([0, *(len(one) for one in lists)]).cumsum(0)
    return indptr, torch.tensor([s for one in lists for s in one], dtype=torch.int32)


def typed(edges: dict | None = None) -> TypedGraphs:
    torch.manual_seed(1)
    edges = {relation: pairs(relation) for relation in RELATIONS} if edges is None else edges
    return TypedGraphs(
        node_id={name: 5 + torch.arange(size) for name, size in SIZES.items()},
        x={name: torch.randn(SIZES[name], dim).double() if dim else None for name, dim in DIMS.items()},
        edges={relation: csc(relation, some) for relation, some in edges.items()},
        root_type="author",
        root_index=torch.tensor([4, 0, 6]),
    )


def mean_matrix(relation: tuple[str, str, str]) -> torch.Tensor:
    matrix = torch.zeros(SIZES[relation[2]], SIZES[relation[0]]).double()
    for source, target in pairs(relation):
        matrix[target, source] += 1
    return matrix / matrix.sum(1, keepdim=True).clamp_min(1)


@pytest.mark.parametrize("num_bases", [0, 1, 2, 4, 9])
def test_r_sage_is_its_formula(num_bases: int) -> None:
    torch.manual_seed(0)
    model = RSAGE(replace(CONFIG, num_bases=num_bases)).double().eval()
    graphs = typed()
    layers = model.layers
    h = {name: layers.input[f"type {name}"](graphs.x[name]) for name in ("paper", "author")}
    h["place"] = layers.vector["type place"].repeat(SIZES["place"], 1)
    for convolution, norm in zip(layers.convolutions, layers.norms, strict=True):
        out = {name: convolution.own(rows) for name, rows in h.items()}
        for number, relation in enumerate(RELATIONS):
            if num_bases in (1, 2):
                terms = zip(convolution.share_RB[number], convolution.basis_BFD, strict=True)
                weight = sum(share * basis for share, basis in terms)
            else:
                weight = convolution.basis_BFD[number]
            out[relation[2]] = out[relation[2]] + mean_matrix(relation) @ h[relation[0]] @ weight
        h = {name: norm(rows).relu() for name, rows in out.items()}
    expected = model.head(h["author"][[4, 0, 6]])
    torch.testing.assert_close(model(graphs), expected, rtol=1e-12, atol=1e-12)


EDGE_DIMS = (2, 0, 3, 0)


class Kept(nn.Module):
    """A model that stores the graphs that it receives."""

    def forward(self, graphs, *, epoch: int) -> torch.Tensor:
        self.graphs = graphs
        return graphs.x[graphs.root_index]


@pytest.mark.parametrize("weighted", [False, True])
def test_features_of_edges_are_added_to_messages(weighted: bool) -> None:
    """Each layer is compared with a loop over edges. A model on top of the layers also gets the features; a relation without features has zeros."""
    torch.manual_seed(0)
    config = RelationalConfig(DIMS, RELATIONS, EDGE_DIMS, width=6, num_layers=1, num_bases=0, norm="none")
    model = OverTypes(config, Kept()).double().eval()
    graphs, (layer,) = typed(), model.layers.convolutions
    sizes = {name: len(indices) for name, (_, indices) in graphs.edges.items()}
    e = {name: torch.randn(sizes[name], dim).double() for name, dim in zip(RELATIONS, EDGE_DIMS, strict=True) if dim}
    weight = {CITES: torch.rand(sizes[CITES]).double()} if weighted else {}
    graphs = replace(graphs, edge_attr=e, weight=weight)
    layers = model.layers
    x = {name: layers.input[f"type {name}"](graphs.x[name]) for name in ("paper", "author")}
    x["place"] = layers.vector["type place"].repeat(SIZES["place"], 1)
    out, edge_rows = {name: layer.own(rows) for name, rows in x.items()}, []
    for number, (name, (indptr, indices)) in enumerate(graphs.edges.items()):
        own = e[name] @ model.layers.edges[str(number)].weight.T if name in e else torch.zeros(sizes[name], 6).double()
        share, rows = weight.get(name, torch.ones(sizes[name]).double()), []
        for start, stop in pairwise(indptr.tolist()):
            message = x[name[0]][indices[start:stop].long()] + own[start:stop]
            rows.append(share[start:stop] @ message / share[start:stop].sum().clamp_min(1e-9))
        out[name[2]] = out[name[2]] + torch.stack(rows) @ layer.basis_BFD[number]
        edge_rows.append(own)
    model(graphs)
    torch.testing.assert_close(model.model.graphs.x, torch.cat([*out.values()]).relu(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(model.model.graphs.edge_attr, torch.cat(edge_rows))
    for wrong in ({}, {**e, CITES: e[CITES][:, :2]}):
        with pytest.raises(ValueError, match=r"features of edges of .* must have [23] columns, got"):
            model(replace(graphs, edge_attr=wrong))


def test_bases_are_shared() -> None:
    wide, narrow = (RelationalConvolution(6, 6, 4, bases) for bases in (0, 2))
    assert (wide.weights().shape, wide.share_RB) == ((4, 6, 6), None)
    assert narrow.weights().shape == (4, 6, 6)
    assert torch.linalg.matrix_rank(narrow.weights().flatten(1)) == 2
    assert sum(p.numel() for p in narrow.parameters()) == 6 * 6 + 6 + 2 * 6 * 6 + 4 * 2


def test_gradients() -> None:
    torch.manual_seed(0)
    lists = Adjacency(*csc(WRITES, pairs(WRITES)), num_sources=SIZES["author"])
    x = torch.randn(SIZES["author"], 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lists.propagate, x)
    assert torch.autograd.gradgradcheck(lists.propagate, x)
    model = RSAGE(replace(CONFIG, norm="none", dropout=0.0)).double()
    model(typed()).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_no_edges_and_nodes_that_hear_nothing() -> None:
    """If a node has no in-edges in a relation, the relation adds zeros. In a batch without edges, each node's output depends only on this node."""
    torch.manual_seed(0)
    model = RSAGE(CONFIG).double().eval()
    bare = model(typed({relation: [] for relation in RELATIONS}))
    for name in ("share_RB", "basis_BFD"):
        for convolution in model.layers.convolutions:
            getattr(convolution, name).data.mul_(3)
    torch.testing.assert_close(model(typed({relation: [] for relation in RELATIONS})), bare)
    assert not torch.allclose(model(typed()), bare)
    assert (typed().lists[WRITES].propagate(torch.ones(SIZES["author"], 2))[0] == 0).all()


def test_a_given_degree_divides_sums_of_coefficients() -> None:
    """Tests the mean over a relation, and the plain graph, in which a degree counts the edges of all relations."""
    graphs = typed()
    weight = {name: 1 + torch.arange(len(graphs.edges[name][1])).double() for name in RELATIONS}
    degree = {name: 3 + torch.arange(SIZES[name[2]]) for name in RELATIONS}
    sampled = replace(graphs, weight=weight, degree=degree)
    x = torch.randn(SIZES["author"], 4).double()
    indptr, indices = graphs.edges[WRITES]
    end = torch.repeat_interleave(indptr.diff())
    sums = torch.zeros(SIZES[WRITES[2]], 4).double().index_add(0, end, weight[WRITES].unsqueeze(1) * x[indices.long()])
    torch.testing.assert_close(sampled.lists[WRITES].propagate(x), sums / degree[WRITES].unsqueeze(1))
    plain = sampled.as_plain(torch.zeros(sum(SIZES.values()), 2).double())
    per_type = {name: sum(degree[one] for one in RELATIONS if one[2] == name) for name in SIZES}
    expected = [per_type[name] if torch.is_tensor(per_type[name]) else torch.zeros(SIZES[name]) for name in graphs.x]
    assert plain.degree.tolist() == torch.cat(expected).tolist()


def test_an_edge_of_weight_w_counts_as_w_parallel_edges() -> None:
    """Tests the mean over a relation, and the plain graph, in which an edge of a relation without weights has weight 1."""
    count = {relation: [1 + i % 3 for i in range(11)] for relation in (WRITES, CITES)}
    edges = {relation: pairs(relation) for relation in RELATIONS}
    repeated = {
        relation: [pair for pair, k in zip(some, count.get(relation, [1] * 11), strict=True) for _ in range(k)]
        for relation, some in edges.items()
    }
    by_target = {relation: sorted(range(11), key=lambda i, r=relation: edges[r][i][1]) for relation in count}
    weight = {relation: torch.tensor([count[relation][i] for i in by_target[relation]]).float() for relation in count}
    graphs, parallel = replace(typed(), weight=weight), typed(repeated)
    torch.manual_seed(0)
    model = RSAGE(CONFIG).double().eval()
    torch.testing.assert_close(model(graphs), model(parallel))
    assert not torch.allclose(model(graphs), model(typed()))
    rows = torch.randn(14, 2, dtype=torch.float64)
    got = graphs.as_plain(rows).adjacency.propagate(rows, "sum")
    torch.testing.assert_close(got, parallel.as_plain(rows).adjacency.propagate(rows, "sum"))
    assert typed().as_plain(rows).edge_coefficient is None
    whose = {name: torch.zeros(size, dtype=torch.int64) for name, size in SIZES.items()}
    alone = replace(graphs, subgraph=whose, root_index=torch.tensor([0])).as_plain(rows)
    torch.testing.assert_close(alone.adjacency.propagate(rows, "sum"), got)


def test_all_types_as_one_plain_graph() -> None:
    graphs = typed()
    rows = torch.arange(14).double().unsqueeze(1)
    plain = graphs.as_plain(rows)
    first = {"paper": 0, "author": 5, "place": 12}
    expected = sorted((s + first[r[0]], t + first[r[2]]) for r in RELATIONS for s, t in pairs(r))
    assert sorted(map(tuple, plain.edge_index.T.tolist())) == expected
    assert plain.root_index.tolist() == [9, 5, 11]
    assert len(set(plain.node_id.tolist())) == 14
    assert plain.x is rows


def of_subgraphs(number: Callable[[str, int], int] = lambda name, node: node % 3) -> TypedGraphs:
    """Divides the nodes into the subgraphs of three roots, which are authors 0, 1 and 2. Keeps only edges within a subgraph."""
    subgraph = {name: torch.tensor([number(name, n) for n in range(size)]) for name, size in SIZES.items()}
    edges = {
        relation: [(s, t) for s, t in pairs(relation) if subgraph[relation[0]][s] == subgraph[relation[2]][t]]
        for relation in RELATIONS
    }
    return replace(typed(edges), subgraph=subgraph, root_index=torch.arange(3))


def only(graphs: TypedGraphs, root: int) -> TypedGraphs:
    """A batch with only the subgraph of this root."""
    keep = {name: (whose == root).nonzero().squeeze(1) for name, whose in graphs.subgraph.items()}
    place = {name: {node: place for place, node in enumerate(nodes.tolist())} for name, nodes in keep.items()}
    edges = {}
    for source, name, target in graphs.edges:
        indptr, indices = graphs.edges[source, name, target]
        lists = [indices[indptr[node] : indptr[node + 1]].tolist() for node in keep[target].tolist()]
        ends = torch.tensor([0, *map(len, lists)]).cumsum(0)
        flat = [place[source][node] for some in lists for node in some]
        edges[source, name, target] = (ends, torch.tensor(flat, dtype=torch.int32))
    return TypedGraphs(
        node_id={name: ids[keep[name]] for name, ids in graphs.node_id.items()},
        x={name: None if rows is None else rows[keep[name]] for name, rows in graphs.x.items()},
        edges=edges,
        root_type=graphs.root_type,
        root_index=torch.tensor([place[graphs.root_type][int(graphs.root_index[root])]]),
        subgraph={name: torch.zeros(len(nodes), dtype=torch.int64) for name, nodes in keep.items()},
    )


def test_one_plain_graph_for_each_root() -> None:
    graphs = replace(of_subgraphs(), encodings={"rwse-1": torch.arange(14)})
    assert sum(len(indices) for _, indices in graphs.edges.values()) > 8
    plain = graphs.as_plain(torch.arange(14).double().unsqueeze(1))
    row = plain.x.squeeze(1).long()  # the node's row in `graphs`
    whose = torch.cat([*graphs.subgraph.values()])
    assert plain.graph_of_node.tolist() == whose[row].tolist() == sorted(whose.tolist())
    first = {"paper": 0, "author": 5, "place": 12}
    expected = sorted(
        (s + first[r[0]], t + first[r[2]])
        for r in RELATIONS
        for s, t in pairs(r)
        if whose[s + first[r[0]]] == whose[t + first[r[2]]]
    )
    assert sorted(map(tuple, row[plain.edge_index].T.tolist())) == expected
    assert row[plain.root_index].tolist() == [5, 6, 7]
    assert plain.encodings["rwse-1"].tolist() == row.tolist()
    assert plain.node_id.tolist() == typed().as_plain(torch.zeros(14, 1)).node_id[row].tolist()


WIDTH = 8
FEATURES = Features(dim=WIDTH)
MODELS = {
    "geco": lambda: NodeGECO(GECOConfig(in_dim=WIDTH, out_dim=3, width=WIDTH)),
    "primphormer": lambda: Primphormer(PrimphormerConfig(node=FEATURES, out_dim=3, width=WIDTH, task="node")),
    "tokengt": lambda: TokenGT(TokenGTConfig(node=FEATURES, out_dim=3, width=WIDTH, task="node", num_heads=2)),
    "ppgt": lambda: PPGT(PPGTConfig(node=FEATURES, out_dim=3, width=WIDTH, task="node", num_heads=2)),
    "grit": lambda: GRIT(GRITConfig(node=FEATURES, out_dim=3, width=WIDTH, task="node", num_heads=2)),
    "sage": lambda: MessagePassing(SAGEConfig(in_dim=WIDTH, out_dim=3, width=WIDTH)),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_takes_it(name: str) -> None:
    """The output equals the model's output for the states of the relational layers, and gradients reach these layers."""
    torch.manual_seed(0)
    model = OverTypes(RelationalConfig(DIMS, RELATIONS, width=WIDTH, num_layers=1), MODELS[name]()).double().eval()
    graphs = typed()
    got = model(graphs)
    assert got.shape == (3, 3)
    torch.testing.assert_close(got, model.model(graphs.as_plain(model.layers(graphs)), epoch=0))
    got.square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.layers.input.parameters())


@pytest.mark.parametrize("name", ["grit", "ppgt"])
def test_a_model_sees_each_subgraph_alone(name: str) -> None:
    """Subgraphs have different sizes; one has only its root. Nodes in the subgraph of another root do not change the output."""
    torch.manual_seed(0)
    relational = RelationalConfig(DIMS, RELATIONS, width=WIDTH, num_layers=1)
    model = OverTypes(relational, MODELS[name]()).double().eval()
    graphs = of_subgraphs(lambda name, node: node if name == "author" and node < 3 else 2 * (node % 2))
    got = model(graphs)
    for root in range(3):
        torch.testing.assert_close(got[root : root + 1], model(only(graphs, root)), rtol=1e-9, atol=1e-9)


def test_no_layer_is_the_input_alone() -> None:
    layers = RelationalLayers(replace(CONFIG, num_layers=0)).double()
    assert isinstance(layers.input["type paper"], nn.Linear)
    graphs = typed()
    torch.testing.assert_close(layers(graphs)[:5], layers.input["type paper"](graphs.x["paper"]))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"node_dims": {"paper": 4, "author": 2, "place": 0}},
            "features of paper must have 4 columns, got 3; set node_dims",
        ),
        ({"node_dims": {"paper": 3, "author": 2, "place": 1}}, "features of place must have 1 columns, got none"),
        ({"node_dims": {"author": 2, "paper": 3, "place": 0}}, "the batch must have the types author, paper, place"),
        ({"relations": RELATIONS[:3]}, "and 3 relations of the config in their order, got paper, author, place and 4"),
    ],
)
def test_another_graph_is_refused(config, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RSAGE(replace(CONFIG, **config)).double()(typed())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"relations": (("paper", "cites", "book"),)},
            "relations must join types among paper, author, place, got 'book'",
        ),
        ({"node_dims": {**DIMS, "a.b": 1}}, "a dot divides, got 'a.b'"),
        ({"edge_dims": (1, 0)}, "edge_dims must have one count for each of 4 relations, got 2"),
    ],
)
def test_options_that_cannot_be(wrong, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **wrong)


def test_ids_beyond_the_source_type_are_refused() -> None:
    with pytest.raises(ValueError, match=r"indices must lie in \[0, 2\), got 0 to 4"):
        Adjacency(torch.tensor([0, 2]), torch.tensor([0, 4]), num_sources=2)
