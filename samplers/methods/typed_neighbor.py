"""Neighbor sampling in a typed graph: batches of roots of one type, each node with up to fanouts[h] neighbors of every relation at hop h
(GraphSAGE, arXiv:1706.02216, one relation at a time as in R-GCN, arXiv:1703.06103).

In a hop each relation draws for the nodes of its target type that the hop before has found. Each node is expanded once, so the lists of a relation
come in the order of positions, as in `graphmill.samplers.methods.neighbor`. A relation's stream of draws is keyed by its names, and its counters are permanent ids
of the target: other relations, their order and the partitions change no draw.
"""

import hashlib
from dataclasses import replace
from functools import cached_property

import numpy as np

from graphmill.samplers.access.router import EDGE_COLUMNS, Columns, Question, ask, fetch_rows
from graphmill.samplers.access.typed_router import TypedRouter
from graphmill.samplers.batches.typed_batch import TypedBatch, TypedEdges, TypedNodes
from graphmill.samplers.drawing.protocol import sampler_len, sampler_repr
from graphmill.samplers.drawing.root_batches import RootBatches, plan_length
from graphmill.samplers.drawing.roots import find_roots
from graphmill.samplers.kernels.random_streams import Purpose, stream_key
from graphmill.samplers.kernels.relabel import PositionMaps, Relabeler
from graphmill.samplers.methods.typed_checks import (
    check_edge_columns,
    check_splits,
    edge_columns_of,
    known_relations,
    type_of_roots,
)
from graphmill.samplers.vocabulary.messages import NeighborLists, join_columns
from graphmill.samplers.vocabulary.options import TypedNeighborOptions
from graphmill.samplers.vocabulary.stage_clock import stage
from graphmill.storage.format.source import Relation


class TypedNeighborSampler:
    """Minibatches around the roots of one split of a type, or around given `roots` (permanent ids of that type, distinct)."""

    __repr__, __len__ = sampler_repr, sampler_len
    num_batches = plan_length

    def __init__(
        self, router: TypedRouter, options: TypedNeighborOptions, num_ranks: int = 1, roots: np.ndarray | None = None
    ) -> None:
        """Raises ConfigError where the graph lacks what the options name."""
        self._router, self.options = router, options
        self.root_type = type_of_roots(router, options.root_type)
        known_relations(router, map(str, options.relation_fanouts), "relation_fanouts")
        check_edge_columns(router, (*options.edge_columns, *(["weight"] if options.scheme == "weight" else [])))
        check_splits(router.nodes[self.root_type].manifest, self.root_type, options.split_set)
        self._maps = {name: PositionMaps(each.manifest.num_nodes) for name, each in router.nodes.items()}
        self._names = {relation: _name_hash(relation) for relation in router.edges}
        self._root_batches = RootBatches(router.nodes[self.root_type], options, num_ranks, roots)

    @property
    def router(self) -> TypedRouter:
        return self._router

    @cached_property
    def content_hash(self) -> str:
        """Of the whole graph and, where they are given, of the roots."""
        return hashlib.sha256(f"{self._router.content_hash} {self._root_batches.content_hash}".encode()).hexdigest()

    def roots_of(self, epoch: int, batch: int) -> np.ndarray:
        """Permanent ids of a batch's roots, in its order. Raises ConfigError where there is no such batch."""
        return self._root_batches.roots(epoch, batch).original_id

    def sample(self, epoch: int, batch: int) -> TypedBatch[np.ndarray]:
        return self._around(self._root_batches.roots(epoch, batch).node, epoch, batch)

    def sample_roots(self, node_id: np.ndarray, epoch: int = 0, batch: int = 0) -> TypedBatch[np.ndarray]:
        """The minibatch around these roots, whatever their split: distinct permanent ids, which keep their order.

        `epoch` and `batch` choose the draws, and are the batch's own numbers. Raises ConfigError where a root is repeated, or is no node of
        the type.
        """
        roots = find_roots(self._router.nodes[self.root_type], node_id, distinct=True)
        return self._around(roots.node, epoch, batch)

    def _around(self, roots: np.ndarray, epoch: int, batch: int) -> TypedBatch[np.ndarray]:
        options, router = self.options, self._router
        with stage("sample"):
            grown = _Growth(roots, self.root_type, self._maps, list(router.edges))
            for hop in range(len(options.fanouts)):
                frontier = grown.frontier()
                drawing_epoch = epoch if options.shuffle else 0
                draws = [
                    self._draw(relation, frontier[relation.target], drawing_epoch, batch, hop)
                    for relation in router.edges
                ]
                for relation, (lists,) in zip(router.edges, ask(draws), strict=True):
                    if not options.fanout(relation, hop):  # of those of a relation that is left out, no lists
                        lists = replace(lists, count=np.zeros(len(frontier[relation.target]), np.int64))
                    grown.add(relation, lists)
            grown.close()
            edges = {relation: grown.edges(relation) for relation in router.edges}
        with stage("fetch"):
            nodes_of = self._rows(grown)
        return TypedBatch(
            epoch=epoch,
            index=batch,
            num_hops=len(options.fanouts),
            root_type=self.root_type,
            root_index=np.arange(len(roots)),
            nodes=nodes_of,
            edges=edges,
        )

    def _draw(
        self, relation: Relation, node: np.ndarray, epoch: int, batch: int, hop: int
    ) -> Question[list[NeighborLists]]:
        options, router = self.options, self._router.edges[relation]
        fanout, manifest = options.fanout(relation, hop), router.manifest
        return router.sample_question(
            [node if fanout else node[:0]],
            fanout,
            [self._key(relation, epoch, batch, hop)],
            scheme="weight" if options.scheme == "weight" and manifest.has_edge_weight else "uniform",
            replace=options.replace,
            columns=edge_columns_of(manifest, options.edge_columns),
        )

    def _rows(self, grown: "_Growth") -> dict[str, TypedNodes[np.ndarray]]:
        split_set, routers = self.options.split_set, self._router.nodes
        nodes = {name: grown.nodes(name) for name in routers}
        columns = {name: Columns.of(each, split_set, feature=self.options.features) for name, each in routers.items()}
        rows_of = fetch_rows([(routers[name], node, columns[name]) for name, (node, _) in nodes.items()])
        nodes_of = {}
        for name, rows in zip(nodes, rows_of, strict=True):
            _, sizes = nodes[name]
            nodes_of[name] = TypedNodes(
                node_id=rows.original_id,
                hop=np.repeat(np.arange(len(sizes), dtype=np.int16), sizes),
                split=rows.split,
                x=rows.feature,
                y=rows.label,
            )
        return nodes_of

    def _key(self, relation: Relation, epoch: int, batch: int, hop: int) -> int:
        """The stream of a relation's draws at a hop of a batch."""
        seed, name = self.options.seed, self._names[relation]
        return int(stream_key(seed, Purpose.NEIGHBORS, epoch, batch, hop, name))


class _Growth:
    """The nodes of every type and the lists of every relation, while a batch grows hop by hop."""

    def __init__(
        self, roots: np.ndarray, root_type: str, maps: dict[str, PositionMaps], relations: list[Relation]
    ) -> None:
        nothing = np.empty(0, np.int64)
        self._of_type = {name: Relabeler(roots if name == root_type else nothing, of) for name, of in maps.items()}
        self._sizes: dict[str, list[int]] = {name: [] for name in maps}  # nodes that each hop before this one has found
        self._lists: dict[Relation, list[NeighborLists]] = {relation: [] for relation in relations}
        self._sources: dict[Relation, list[np.ndarray]] = {relation: [] for relation in relations}

    def frontier(self) -> dict[str, np.ndarray]:
        """Begins a hop: the nodes of each type that the hop before has found."""
        found = {}
        for name, relabeler in self._of_type.items():
            known = sum(self._sizes[name])
            found[name] = relabeler.node[known:]
            self._sizes[name].append(len(found[name]))
        return found

    def add(self, relation: Relation, lists: NeighborLists) -> None:
        """What a relation has drawn for its frontier of this hop."""
        self._lists[relation].append(lists)
        self._sources[relation].append(self._of_type[relation.source].add(lists.neighbor))

    def close(self) -> None:
        """Ends the last hop."""
        self.frontier()
        for relabeler in self._of_type.values():
            relabeler.close()

    def nodes(self, node_type: str) -> tuple[np.ndarray, list[int]]:
        """(stored ids, how many each hop has found)."""
        return self._of_type[node_type].node.copy(), self._sizes[node_type]

    def edges(self, relation: Relation) -> TypedEdges[np.ndarray]:
        lists, sources = self._lists[relation], self._sources[relation]
        expanded = np.concatenate([one.count for one in lists])
        indptr = np.empty(self._of_type[relation.target].num_nodes + 1, np.int64)
        indptr[0] = 0
        np.cumsum(expanded, out=indptr[1 : len(expanded) + 1])
        indptr[len(expanded) + 1 :] = indptr[len(expanded)]  # the last hop's nodes have no lists
        return TypedEdges(
            indptr=indptr,
            indices=np.concatenate(sources),
            **{name: join_columns([getattr(one, name) for one in lists]) for name in EDGE_COLUMNS},
        )


def _name_hash(relation: Relation) -> int:
    """64 bits of a relation's three names."""
    return int.from_bytes(hashlib.sha256("\0".join(relation).encode()).digest()[:8], "little")
