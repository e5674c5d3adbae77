"""What a model of links must beat: counting the neighbors that two nodes have in common (Liben-Nowell and Kleinberg, CIKM 2003)."""

from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse
import torch

from graphmill.cluster.tasks import Task
from graphmill.jobs.baselines.node_baselines import Baselines
from graphmill.samplers.access.link_tables import LinkTables
from graphmill.samplers.access.router import Router
from graphmill.samplers.methods.links import picked_links
from graphmill.samplers.vocabulary.options import LinkOptions, RandomPartitionOptions
from graphmill.storage.format.source import SPLITS

_BLOCK = 1 << 22  # scores at a time


def compute_link_baselines(router: Router, options: LinkOptions, task: Task) -> Baselines:
    """Scores of "common_neighbors" on "valid" and "test", on the rivals that the run's own are taken on. Edges count in both directions."""
    tables = router.link_tables
    neighbors = _neighbors(tables)
    # All links in one batch name nodes by their numbers.
    whole = replace(
        options, around=RandomPartitionOptions(num_chunks=1), batch_size=None, splits=(SPLITS["valid"], SPLITS["test"])
    )
    links = picked_links(router, whole)
    count = tables.num_nodes if links["known"] is not None else 1 + links["negative"].shape[1]
    rows = np.arange(len(links["link_source"]))
    pieces = np.array_split(rows, max(1, len(rows) * count // _BLOCK))
    ranked = np.concatenate([_ranked(neighbors, links, piece) for piece in pieces])
    found = {}
    for name in ("valid", "test"):
        own = links["link_split"] == SPLITS[name]
        scores = task.scores(torch.device("cpu"))
        scores.update(torch.from_numpy(ranked[own]), torch.from_numpy(links["is_link"][own]))
        found[name] = scores.compute()[task.metric]
    return {"common_neighbors": found}


def _neighbors(tables: LinkTables) -> scipy.sparse.csr_array:
    """float64 [num_nodes, num_nodes]: 1 where two nodes are joined by an edge, either way."""
    source, destination = tables.edges
    ends = np.concatenate([source, destination]), np.concatenate([destination, source])
    shape = (tables.num_nodes, tables.num_nodes)
    joined = scipy.sparse.coo_array((np.ones(len(ends[0])), ends), shape=shape).tocsr()
    joined.data[:] = 1.0  # a pair may be joined both ways
    return joined


def _ranked(neighbors: scipy.sparse.csr_array, links: dict[str, Any], rows: np.ndarray) -> np.ndarray:
    """float64 [b, 4] of some links, as `LinkModel` returns it."""
    source, destination, negative = (links[name][rows] for name in ("link_source", "link_destination", "negative"))
    own = _common(neighbors, source, destination)[:, None]
    if links["known"] is None:
        scores = _common(neighbors, np.repeat(source, negative.shape[1]), np.maximum(negative, 0).reshape(-1))
        scores, rival = scores.reshape(negative.shape), negative >= 0
        first = scores[:, :1] if scores.shape[1] else np.zeros_like(own)
    else:
        scores = (neighbors[source] @ neighbors).toarray()
        rival = np.ones(scores.shape, bool)
        link, node = links["known"]
        some = slice(*np.searchsorted(link, [rows[0], rows[-1] + 1]))
        rival[link[some] - rows[0], node[some]] = False
        rival[np.arange(len(rows)), destination] = False
        first = np.take_along_axis(scores, negative, 1)
    counts = [(found & rival).sum(1, keepdims=True) for found in (scores > own, scores == own)]
    return np.concatenate([own, *counts, first], axis=1)


def _common(neighbors: scipy.sparse.csr_array, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """float64 [n]: how many neighbors the two nodes of each pair have in common."""
    found = [np.asarray(neighbors[a].multiply(neighbors[b]).sum(axis=1)).reshape(-1) for a, b in _blocks(one, other)]
    return np.concatenate(found) if found else np.empty(0)


def _blocks(one: np.ndarray, other: np.ndarray, size: int = 100_000) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(one[start : start + size], other[start : start + size]) for start in range(0, len(one), size)]
