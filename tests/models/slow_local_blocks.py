"""Slow versions of the convolutions in models/operators/local_blocks.py, as loops over nodes."""

import torch
from torch import Tensor, nn

from graphmill.models.primitives.graphs import Graphs

# A directed graph with unsorted edges. It has parallel edges 0 → 1, a self-loop at node 2, and an isolated node 4.
EDGES = torch.tensor([[0, 3, 0, 2, 1, 2], [1, 0, 1, 2, 3, 0]])


def graphs_of(x: Tensor, edges: Tensor = EDGES) -> Graphs:
    return Graphs(torch.tensor([0, len(x)]), edges, x=x)


def sources(node: int, edges: Tensor) -> Tensor:
    return edges[0][edges[1] == node]


def mean_of(x: Tensor, near: Tensor) -> Tensor:
    return x[near].mean(0) if len(near) else torch.zeros_like(x[0])


def slow_lcb(layer, x: Tensor, edges: Tensor = EDGES) -> Tensor:
    assert layer.block.propagation == "mean"
    hops = [x]
    for _ in range(layer.block.hops):
        hops.append(torch.stack([mean_of(hops[-1], sources(node, edges)) for node in range(len(x))]))
    return torch.stack([layer.linear(torch.cat([hop[node] for hop in hops])) for node in range(len(x))])


def slow_sage(layer, x: Tensor, edges: Tensor = EDGES) -> Tensor:
    return torch.stack(
        [layer.own(x[node]) + layer.neighbors(mean_of(x, sources(node, edges))) for node in range(len(x))]
    )


def normalised_sums(x: Tensor, edges: Tensor) -> Tensor:
    """Computes D̂^-½ (A + I) D̂^-½ X."""
    degree = torch.tensor([len(sources(node, edges)) + 1.0 for node in range(len(x))], dtype=x.dtype)
    rows = []
    for node in range(len(x)):
        total = x[node] / degree[node]
        for source in sources(node, edges):
            total = total + x[source] / (degree[node] * degree[source]).sqrt()
        rows.append(total)
    return torch.stack(rows)


def slow_gcn(layer, x: Tensor, edges: Tensor = EDGES) -> Tensor:
    return layer.linear(normalised_sums(x, edges)) + layer.bias


def slow_appnp(layer, x: Tensor, edges: Tensor = EDGES) -> Tensor:
    start = z = layer.linear(x)
    for _ in range(layer.steps):
        z = (1 - layer.restart) * normalised_sums(z, edges) + layer.restart * start
    return z


def slow_gat(layer, x: Tensor, edges: Tensor = EDGES) -> Tensor:
    h = layer.linear(x).unflatten(1, (layer.num_heads, -1))
    rows = []
    for node in range(len(x)):
        near = torch.cat([sources(node, edges), torch.tensor([node])])
        heads = []
        for head in range(layer.num_heads):
            logit = h[near, head] @ layer.source[head] + h[node, head] @ layer.destination[head]
            heads.append(nn.functional.leaky_relu(logit, 0.2).softmax(0) @ h[near, head])
        rows.append(torch.cat(heads) + layer.bias)
    return torch.stack(rows)


def slow_gatv2(layer, x: Tensor, edges: Tensor = EDGES) -> Tensor:
    source, destination = (each(x).unflatten(1, (layer.num_heads, -1)) for each in (layer.source, layer.destination))
    rows = []
    for node in range(len(x)):
        near = torch.cat([sources(node, edges), torch.tensor([node])])
        heads = []
        for head in range(layer.num_heads):
            inner = nn.functional.leaky_relu(source[near, head] + destination[node, head], 0.2)
            heads.append((inner @ layer.score[head]).softmax(0) @ source[near, head])
        rows.append(torch.cat(heads) + layer.bias)
    return torch.stack(rows)


def slow_gin(layer, x: Tensor, edges: Tensor = EDGES) -> Tensor:
    return torch.stack([layer.mlp(x[node] + x[sources(node, edges)].sum(0)) for node in range(len(x))])


def slow_gated(layer, x: Tensor, edges: Tensor = EDGES) -> Tensor:
    own, to, message, at_source = layer.node(x).chunk(4, dim=1)
    rows = []
    for node in range(len(x)):
        top, bottom = torch.zeros_like(own[0]), torch.zeros_like(own[0])
        for source in sources(node, edges):
            sigma = torch.sigmoid(to[node] + at_source[source])
            top, bottom = top + sigma * message[source], bottom + sigma
        rows.append(own[node] + top / (bottom + 1e-6))
    return torch.stack(rows)


SLOW = {
    "lcb": slow_lcb,
    "sage": slow_sage,
    "gcn": slow_gcn,
    "gat": slow_gat,
    "gatv2": slow_gatv2,
    "gin": slow_gin,
    "gated-gcn": slow_gated,
    "appnp": slow_appnp,
}


def slow_with_edges(block: str, layer, x: Tensor, e: Tensor, edges: Tensor = EDGES) -> Tensor:
    """Slow version of a convolution that reads edge features. Edge k has the features e[k]."""
    rows = []
    for node in range(len(x)):
        near = [
            (int(edges[0, k]), e[k] @ layer.edge.linear.weight.T) for k in range(edges.shape[1]) if edges[1, k] == node
        ]
        if block == "sage":
            messages = [torch.relu(layer.neighbors(x[source]) + e_D) for source, e_D in near]
            rows.append(layer.own(x[node]) + (sum(messages) / len(messages) if messages else 0))
        elif block == "gcn":
            degree = [len(sources(other, edges)) + 1.0 for other in range(len(x))]
            total = torch.relu(layer.linear(x[node])) / degree[node] + layer.bias
            for source, e_D in near:
                total = total + torch.relu(layer.linear(x[source]) + e_D) / (degree[node] * degree[source]) ** 0.5
            rows.append(total)
        elif block == "gat":
            seen = [*near, (node, x.new_zeros(layer.edge.linear.out_features))]
            heads = []
            for k in range(layer.num_heads):
                own = slice(k * layer.source.shape[1], (k + 1) * layer.source.shape[1])
                h, logit = layer.linear(x)[:, own], []
                for source, e_D in seen:
                    score = h[source] @ layer.source[k] + h[node] @ layer.destination[k] + e_D[own] @ layer.of_edge[k]
                    logit.append(nn.functional.leaky_relu(score, 0.2))
                messages = torch.stack([h[source] + e_D[own] for source, e_D in seen])
                heads.append(torch.stack(logit).softmax(0) @ messages)
            rows.append(torch.cat(heads) + layer.bias)
        elif block == "gatv2":
            seen = [*near, (node, x.new_zeros(layer.edge.linear.out_features))]
            heads = []
            for k in range(layer.num_heads):
                own = slice(k * layer.score.shape[1], (k + 1) * layer.score.shape[1])
                values = torch.stack([layer.source(x[source])[own] + e_D[own] for source, e_D in seen])
                inner = nn.functional.leaky_relu(values + layer.destination(x[node])[own], 0.2)
                heads.append((inner @ layer.score[k]).softmax(0) @ values)
            rows.append(torch.cat(heads) + layer.bias)
        elif block == "gin":
            rows.append(layer.mlp(x[node] + sum(torch.relu(x[source] + e_D) for source, e_D in near)))
        else:
            own, to, message, at_source = layer.node(x).chunk(4, dim=1)
            sigma = [torch.sigmoid(to[node] + at_source[source] + e_D) for source, e_D in near]
            top = sum(s * message[source] for s, (source, _) in zip(sigma, near, strict=True))
            rows.append(own[node] + top / (sum(sigma) + 1e-6))
    return torch.stack(rows)


def slow_local(layer, block: str, x: Tensor, edges: Tensor = EDGES, e: Tensor | None = None) -> Tensor:
    """Slow version of LocalLayer in eval mode: ReLU(Norm(Conv(H) + Res(H))). If edges have states, edge k has the state e[k]."""
    conv = layer.convolution
    after = SLOW[block](conv, x, edges) if e is None else slow_with_edges(block, conv, x, e, edges)
    if layer.residual is not None:
        after = after + layer.residual(x)
    return torch.relu(layer.norm(after))
