"""Baselines for links: the number of neighbors that two nodes share (Liben-Nowell and Kleinberg, CIKM 2003). If links join two types of nodes, no
node can be a neighbor of both ends; the baseline then counts paths of three edges (Kovács et al., Nature Communications 10, 2019)."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse
import torch

from graphmill.cluster.tasks import Task
from graphmill.jobs.baselines.node_baselines import Baselines
from graphmill.samplers.access.link_tables import LinkTables
from graphmill.samplers.access.router import Router
from graphmill.samplers.access.typed_router import TypedRouter
from graphmill.samplers.methods.links import link_tables, picked_links
from graphmill.samplers.vocabulary.options import LinkOptions, RandomPartitionOptions
from graphmill.storage.format.source import SPLITS

_BLOCK = 1 << 22  # number of scores in memory at a time


def compute_link_baselines(router: Router | TypedRouter, options: LinkOptions, task: Task) -> Baselines:
    """Returns the scores of "common_neighbors" or "paths_of_three" on "valid" and "test". The rivals of each link are the same as in the run. Edges count in
    both directions."""
    tables = link_tables(router, options.relation)
    counted = _Counted.of(tables)
    # In one batch of all links, positions in the batch equal node ids.
    whole = replace(
        options, around=RandomPartitionOptions(num_chunks=1), batch_size=None, splits=(SPLITS["valid"], SPLITS["test"])
    )
    links = picked_links(router, whole)
    if not tables.is_one_type:  # ids of sources follow the ids of the nodes where links may end
        links["link_source"] = links["link_source"] - tables.num_nodes
    count = tables.num_nodes if links["known"] is not None else 1 + links["negative"].shape[1]
    rows = np.arange(len(links["link_source"]))
    pieces = np.array_split(rows, max(1, len(rows) * count // _BLOCK))
    ranked = np.concatenate([_ranked(counted, links, piece) for piece in pieces])
    scores_by_split = {}
    for name in ("valid", "test"):
        is_split = links["link_split"] == SPLITS[name]
        scores = task.scores(torch.device("cpu"))
        scores.update(torch.from_numpy(ranked[is_split]), torch.from_numpy(links["is_link"][is_split]))
        scores_by_split[name] = scores.compute()[task.metric]
    return {"common_neighbors" if tables.is_one_type else "paths_of_three": scores_by_split}


@dataclass(frozen=True)
class _Counted:
    """Two sparse matrices. For a pair of nodes, `through(source) · ends[destination]` is the number of shared neighbors or of paths of three edges."""

    # float64 [num_sources, num_nodes], 1 for an edge. With one node type, an edge counts in both directions.
    joined: scipy.sparse.csr_array
    ends: scipy.sparse.csr_array  # transpose of `joined`
    is_one_type: bool

    @classmethod
    def of(cls, tables: LinkTables) -> "_Counted":
        source, destination = tables.edges
        if tables.is_one_type:
            source, destination = np.concatenate([source, destination]), np.concatenate([destination, source])
        shape = (tables.num_sources, tables.num_nodes)
        joined = scipy.sparse.coo_array((np.ones(len(source)), (source, destination)), shape=shape).tocsr()
        joined.data[:] = 1.0  # two edges may join the same pair, one in each direction
        return cls(joined, joined if tables.is_one_type else joined.T.tocsr(), tables.is_one_type)

    def through(self, source: np.ndarray) -> scipy.sparse.csr_array:
        """Returns a row for each source. With one node type, the row marks the source's neighbors. With two node types, the row has the number of neighbors
        that the source shares with each node of its type."""
        near = self.joined[source]
        return near if self.is_one_type else near @ self.ends

    def of_pairs(self, source: np.ndarray, destination: np.ndarray) -> np.ndarray:
        """float64 [n]: for each pair, the number of shared neighbors or of paths of three edges."""
        blocks = _blocks(source, destination)
        counts = [np.asarray(self.through(a).multiply(self.ends[b]).sum(axis=1)).reshape(-1) for a, b in blocks]
        return np.concatenate(counts) if counts else np.empty(0)


def _ranked(counted: _Counted, links: dict[str, Any], rows: np.ndarray) -> np.ndarray:
    """float64 [b, 4] for the links with the indices `rows`, in the columns of `LinkModel`."""
    source, destination, negative = (links[name][rows] for name in ("link_source", "link_destination", "negative"))
    own = counted.of_pairs(source, destination)[:, None]
    if links["known"] is None:
        scores = counted.of_pairs(np.repeat(source, negative.shape[1]), np.maximum(negative, 0).reshape(-1))
        scores, rival = scores.reshape(negative.shape), negative >= 0
        first = scores[:, :1] if scores.shape[1] else np.zeros_like(own)
    else:
        scores = (counted.through(source) @ counted.ends.T).toarray()
        rival = np.ones(scores.shape, bool)
        link, node = links["known"]
        links_here = slice(*np.searchsorted(link, [rows[0], rows[-1] + 1]))
        rival[link[links_here] - rows[0], node[links_here]] = False
        rival[np.arange(len(rows)), destination] = False
        first = np.take_along_axis(scores, negative, 1)
    counts = [(matches & rival).sum(1, keepdims=True) for matches in (scores > own, scores == own)]
    return np.concatenate([own, *counts, first], axis=1)


def _blocks(source: np.ndarray, destination: np.ndarray, size: int = 100_000) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(source[start : start + size], destination[start : start + size]) for start in range(0, len(source), size)]
