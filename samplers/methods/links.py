"""Batches of links: positive links in a new random order each epoch, their negatives, and a batch of another sampler around the ends of both.

Every choice is a function of (seed, epoch, position of the link in its table). A permutation divides links into batches, and each link's negatives have their
own random stream. Batches are therefore the same for any number of workers, threads and partitions, and after a resume.

The stored graph does not have the held-out links, but it has the links that a training batch predicts. These links and their reverses are removed from the
batch's edges; otherwise a network could read each answer from its input.

If the sampler around the ends draws only past edges, every end, including an end of a negative, is a root at the link's time. No edge of this time is drawn, so
the links themselves are not in the batch.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from graphmill.core.counter_random import Permutation, unit_interval
from graphmill.core.errors import ConfigError
from graphmill.core.offsets import pointers
from graphmill.samplers.access.link_tables import LinkTable, LinkTables
from graphmill.samplers.access.router import Router
from graphmill.samplers.access.typed_router import TypedRouter
from graphmill.samplers.batches.link_batch import LinkBatch, TypedLinkBatch, without_links, without_typed_links
from graphmill.samplers.batches.minibatch import MiniBatch
from graphmill.samplers.batches.typed_batch import TypedBatch
from graphmill.samplers.drawing.pending_batch import PendingBatch, own_router, sample_drawn
from graphmill.samplers.drawing.protocol import check_batch, sampler_len, sampler_repr
from graphmill.samplers.kernels.random_streams import Purpose, hash_ids, stream_key
from graphmill.samplers.methods.registry import build_sampler, given
from graphmill.samplers.vocabulary.messages import GivenRoots, NodeList
from graphmill.samplers.vocabulary.options import LinkOptions, TopLinkOptions
from graphmill.samplers.vocabulary.rank_shares import even_split, num_root_batches
from graphmill.samplers.vocabulary.stage_clock import stage
from graphmill.storage.format.manifest import EDGE
from graphmill.storage.format.source import SPLIT_NAMES, SPLIT_NONE


@runtime_checkable
class DrawsAround(Protocol):
    """A sampler that can make a batch around any nodes."""

    def draw_around(self, roots: Sequence[GivenRoots], epoch: int, batches: Sequence[int]) -> list[PendingBatch]:
        """For each entry of `batches`, a batch whose roots are these distinct nodes, in order. In a typed graph the nodes are given by type, one type or
        two."""
        ...


def link_tables(router: Router | TypedRouter, relation: str | None) -> LinkTables:
    """The link tables of a plain graph, or of a relation of a typed graph (`LinkOptions.relation`)."""
    return router.link_tables if isinstance(router, Router) else router.link_tables(relation)


def sampler_around(router: Router | TypedRouter, options: Any, num_ranks: int, tables: LinkTables) -> DrawsAround:
    """The sampler that these options describe, for batches around the ends of links. Raises ConfigError if it cannot draw around given nodes."""
    if isinstance(router, TypedRouter) and is_dataclass(options):
        options = given(options, root_type=tables.relation.target)
    sampler = build_sampler(options, router, num_ranks)
    if not isinstance(sampler, DrawsAround):
        raise ConfigError(
            f"sampler: links need one that draws around given nodes (a method draw_around), {type(sampler).__name__} has none; set --sampler neighbor"
        )
    return sampler


class LinkSampler:
    """Batches of links of some splits, with negatives."""

    __repr__, __len__ = sampler_repr, sampler_len
    router, sample = own_router, sample_drawn

    def __init__(self, router: Router | TypedRouter, options: LinkOptions, num_ranks: int = 1) -> None:
        self._router, self.options, self._num_ranks = router, options, num_ranks
        self._tables = link_tables(router, options.relation)
        self._around = sampler_around(router, options.around, num_ranks, self._tables)
        self._is_timed = _is_timed(options.around)
        self._links = _Links.of(self._tables, options)
        if options.negatives == "in_batch" and len(self._links) < 2 * self.num_batches:
            raise ConfigError(
                f"negatives: 'in_batch' expects at least 2 links in a batch, got {len(self._links)} links in {self.num_batches} batches; raise "
                "--task.batch_size or lower --fit.micro_batches"
            )
        if options.negatives == "degree":
            _ = self._tables.weight_ends  # computed here, so that several threads do not compute it at once

    @property
    def content_hash(self) -> str:
        """Hash of the graph and its held-out links. It does not depend on partitions."""
        return hashlib.sha256(f"{self._router.content_hash} {self._tables.digest}".encode()).hexdigest()

    @property
    def num_batches(self) -> int:
        count = len(self._links)
        return num_root_batches(count, self.options.batch_size or count, self._num_ranks)

    def draw(self, epoch: int, batches: Sequence[int]) -> list[PendingBatch]:
        picked = [self.pick(epoch, batch) for batch in batches]
        pending = self._around.draw_around([links.around(self._router) for links in picked], epoch, batches)
        return [each.then(links.complete) for each, links in zip(pending, picked, strict=True)]

    @stage("plan")
    def pick(self, epoch: int, batch: int) -> "_Picked":
        check_batch(batch, self.num_batches)
        options, tables = self.options, self._tables
        row = np.arange(*even_split(len(self._links), self.num_batches, batch))
        if options.shuffle:
            row = Permutation(len(self._links), int(stream_key(options.seed, Purpose.LINK_ORDER, epoch))).forward(row)
        links = self._links.take(row)
        source, destination = links.source, links.destination
        if options.shuffle and tables.symmetric:  # negatives may replace either end
            swap = hash_ids(stream_key(options.seed, Purpose.LINK_ENDS, epoch), row) & np.uint64(1) == 1
            swap &= np.diff(links.negative_ptr) == 0
            source, destination = np.where(swap, destination, source), np.where(swap, source, destination)
        negative_source, negative = self._negatives(epoch, links, destination)
        known, relation = None, links.relation if tables.num_relations else None
        if options.negatives == "all":
            known = _known(tables, source, destination, relation)
        columns = {"link_source": source, "link_destination": destination, "negative": negative}
        if negative_source is not None:
            columns["negative_source"] = negative_source
        own = None
        if options.exclude_own and not self._is_timed:
            own = tables.sources.original_id[source], tables.nodes.original_id[destination]
        rest = {"is_link": links.is_link, "link_split": links.split, "link_relation": relation, "known": known}
        time = links.time if self._is_timed else None
        return _around_ends(tables, columns, rest, own, time=time, whole=options.batch_size is None)

    def _negatives(self, epoch: int, links: "_Links", destination: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
        """(sources or None, destinations) of the negatives, [m, k] each, as node numbers (ranks by permanent id). None means the sources of the links
        themselves."""
        options, tables = self.options, self._tables
        count = 1 if options.negatives == "all" else options.num_negatives
        size = (len(destination), count)
        if options.negatives == "fixed" and not options.shuffle:
            return None, links.padded()
        draw_epoch = epoch if options.shuffle else 0
        counter = (links.row[:, None] * count + np.arange(count)).reshape(-1)
        keys = [int(stream_key(options.seed, Purpose.NEGATIVES, draw_epoch, int(code))) for code in options.splits]
        hashed = np.empty(len(counter), np.uint64)
        for code, key in zip(options.splits, keys, strict=True):
            of_code = np.repeat(links.split == code, count)
            hashed[of_code] = hash_ids(np.uint64(key), counter[of_code])
        share = unit_interval(hashed)
        if options.negatives in ("uniform", "all"):  # with "all", one negative is drawn for ROC-AUC
            return None, _below(share, tables.num_nodes).reshape(size)
        if options.negatives == "degree":
            ends = tables.weight_ends
            return None, np.searchsorted(ends, _below(share, int(ends[-1])), side="right").reshape(size)
        if options.negatives == "in_batch":
            others = len(destination) - 1
            first = _below(unit_interval(hash_ids(np.uint64(keys[0]), np.array([links.row[0]]))), others)
            shift = 1 + (first + np.arange(count)) % others
            return None, destination[(np.arange(len(destination))[:, None] + shift) % len(destination)]
        return self._links.fixed(links, share.reshape(size))


def _is_timed(around: Any) -> bool:
    """Whether batches have only edges from before the link's time. Raises ConfigError if the links themselves could be among the edges."""
    time = getattr(around, "time", "all")
    if time == "until":
        raise ConfigError(
            "time: expected 'before', for a link is an edge of its own time, got 'until'; set --sampler.time before"
        )
    if time == "before" and around.as_of is not None:
        raise ConfigError(
            f"as_of: expected none, for links have times of their own, got {around.as_of}; leave out --sampler.as_of"
        )
    return bool(time == "before")


@dataclass(frozen=True)
class _Links:
    """The links of some splits, split by split. If pairs without a link are scored, the pairs of a split follow its links."""

    source: np.ndarray  # int64 [m]
    destination: np.ndarray  # int64 [m]
    is_link: np.ndarray  # int8 [m]
    split: np.ndarray  # int8 [m]
    row: np.ndarray  # int64 [m], row in the table of the split
    time: np.ndarray  # int64 [m]; 0 if the table has none
    relation: np.ndarray  # int64 [m]; 0 if the table has none
    negative_ptr: np.ndarray  # int64 [m + 1]
    negative: np.ndarray  # int64
    pairs: tuple[np.ndarray, np.ndarray]  # in training with fixed negatives: all pairs of the split that are no links

    def __len__(self) -> int:
        return len(self.source)

    @classmethod
    def of(cls, tables: LinkTables, options: LinkOptions) -> "_Links":
        """Raises ConfigError if a split has no links, or if its fixed negatives are missing."""
        parts, pairs = [], (np.empty(0, np.int64),) * 2
        for code in options.splits:
            table = tables.links(code, timed=_is_timed(options.around))
            name, count = SPLIT_NAMES[code], table.num_links
            if not count:
                raise ConfigError(
                    f"links: expected some in the split {name}, the graph has none; ingest it with --links.{name}"
                )
            if options.negatives == "fixed":
                _check_fixed(table, name)
                if options.shuffle:
                    pairs = table.source[count:], table.destination[count:]
                else:
                    count = len(table.source)
            parts.append(_part(table, code, count))
        columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}
        counts = np.concatenate([np.diff(part.negative_ptr) for part in parts])
        return cls(**columns, negative_ptr=pointers(counts), pairs=pairs)

    def take(self, row: np.ndarray) -> "_Links":
        counts = self.negative_ptr[row + 1] - self.negative_ptr[row]
        ptr = pointers(counts)
        at = np.repeat(self.negative_ptr[row] - ptr[:-1], counts) + np.arange(ptr[-1])
        columns = {name: getattr(self, name)[row] for name in _COLUMNS if name != "negative"}
        return _Links(**columns, negative_ptr=ptr, negative=self.negative[at], pairs=self.pairs)

    def padded(self) -> np.ndarray:
        """int64 [m, longest list]: each link's own negatives, padded with -1."""
        counts = np.diff(self.negative_ptr)
        table = np.full((len(counts), int(counts.max(initial=0))), -1, np.int64)
        table[np.arange(table.shape[1]) < counts[:, None]] = self.negative
        return table

    def fixed(self, links: "_Links", share: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
        """k negatives for each link. `share` [m, k] chooses them from the link's own list or from the split's pairs."""
        counts = np.diff(links.negative_ptr)[:, None]
        if not len(self.pairs[0]):
            return None, links.negative[links.negative_ptr[:-1, None] + _below(share, counts)]
        pair = _below(share, len(self.pairs[0]))
        return self.pairs[0][pair], self.pairs[1][pair]


_COLUMNS = ("source", "destination", "is_link", "split", "row", "time", "relation", "negative")


def _part(table: LinkTable, code: int, count: int) -> _Links:
    """The first `count` rows of a split's table."""
    is_link = (np.arange(count) < table.num_links).astype(np.int8)
    ptr = table.negative_ptr[: count + 1]
    row, split = np.arange(count), np.full(count, code, np.int8)
    own = table.negative[: ptr[-1]]
    none = np.empty(0, np.int64)
    time, relation = (
        np.zeros(count, np.int64) if column is None else column[:count] for column in (table.time, table.relation)
    )
    return _Links(
        table.source[:count], table.destination[:count], is_link, split, row, time, relation, ptr, own, (none, none)
    )


def _check_fixed(table: LinkTable, name: str) -> None:
    """Raises ConfigError if a link of the split has no fixed negatives."""
    listed = np.diff(table.negative_ptr)[: table.num_links]
    if len(table.source) == table.num_links and not listed.all():
        raise ConfigError(
            f"negatives: 'fixed' expects negatives stored for the links of the split {name}, the graph has none; choose others "
            "(--task.negatives uniform in training, --task.ranking sampled or all for scores)"
        )


def _below(share: np.ndarray, bound: Any) -> np.ndarray:
    """int64, uniform in [0, bound), computed from uniform numbers in [0, 1)."""
    return (share * bound).astype(np.int64)


def _known(
    tables: LinkTables, source: np.ndarray, destination: np.ndarray | None, relation: np.ndarray | None
) -> np.ndarray:
    """int64 [2, q]: (link, node) pairs, links ascending. The nodes are the known neighbors of each link's source (by the link's relation), except its
    destination.

    The source itself is added, with two exceptions: links between two types, and links that have a destination and a relation, because a relation may join a
    node to itself. Without destinations, held-out links do not count as known.
    """
    link, node = (tables.ends if destination is None else tables.known).after(source, relation)
    if destination is not None:
        others = node != destination[link]
        link, node = link[others], node[others]
        if relation is not None:
            return np.stack([link, node])
    if not tables.is_one_type:
        return np.stack([link, node])
    link, node = np.concatenate([link, np.arange(len(source))]), np.concatenate([node, source])
    order = np.argsort(link, kind="stable")
    return np.stack([link[order], node[order]])


@dataclass(frozen=True)
class _Picked:
    """A batch's roots, and the columns that turn the batch around the roots into a batch of links."""

    tables: LinkTables
    roots: dict[str, NodeList]  # by type; the type where links end is first
    columns: dict[str, Any]
    own: tuple[np.ndarray, np.ndarray] | None  # pairs of permanent ids whose edges are removed

    def around(self, router: Router | TypedRouter) -> GivenRoots:
        """The roots in the form that the sampler around them takes."""
        return self.roots[EDGE.target] if isinstance(router, Router) else self.roots

    def complete(self, batch: MiniBatch | TypedBatch[np.ndarray]) -> LinkBatch | TypedLinkBatch:
        with stage("sample"):
            if isinstance(batch, TypedBatch):
                if self.own is not None:
                    batch = without_typed_links(batch, self.tables.relation, self.tables.reverse, *self.own)
                return TypedLinkBatch(**vars(batch), **self.columns)
            return LinkBatch(**vars(batch if self.own is None else without_links(batch, *self.own)), **self.columns)


def _around_ends(
    tables: LinkTables,
    columns: dict[str, np.ndarray],
    rest: dict[str, Any],
    own: tuple[np.ndarray, np.ndarray] | None,
    *,
    whole: bool,
    time: np.ndarray | None = None,
) -> _Picked:
    """The roots of a batch of links, and the `columns` with nodes as positions among the roots. In the argument, `columns` name nodes by their numbers.

    Roots ascend in permanent id. Between two types, the nodes where links may end come first. `whole`: all nodes are roots. `own`: the pairs of permanent ids
    whose edges are removed. `time`: times of the links, which are the rows of the columns. With `time` a node is a root once for each time, and roots ascend in
    (time, permanent id).
    """
    begin = () if tables.is_one_type else ("link_source", "negative_source")
    of_ends = {name: values for name, values in columns.items() if name not in begin}
    ends, placed = _as_roots(tables.nodes, of_ends, time, whole=whole)
    roots = {tables.relation.target: ends}
    if begin:
        of_begins = {name: values for name, values in columns.items() if name in begin}
        roots[tables.relation.source], places = _as_roots(tables.sources, of_begins, time, whole=whole)
        placed |= {name: values + len(ends.node) for name, values in places.items()}
    return _Picked(tables, roots, placed | rest, own)


def _as_roots(
    nodes: NodeList, columns: dict[str, np.ndarray], time: np.ndarray | None, *, whole: bool
) -> tuple[NodeList, dict[str, np.ndarray]]:
    """The roots of one type, and the columns with nodes as positions among these roots."""
    if whole:
        return nodes, columns
    count, when = len(nodes.node), np.zeros(1, np.int64)
    flat = np.concatenate([values.reshape(-1) for values in columns.values()])
    if time is not None:
        when, rank = np.unique(time, return_inverse=True)
        ranks = [np.repeat(rank, values.size // len(rank)) for values in columns.values()]
        flat = np.where(flat < 0, flat, flat + np.concatenate(ranks) * count)
    number, place = np.unique(flat, return_inverse=True)
    if len(number) and number[0] < 0:  # padding of a list
        number, place = number[1:], place - 1
    stops = np.cumsum([values.size for values in columns.values()])[:-1]
    pieces = zip(columns.items(), np.split(place, stops), strict=True)
    placed = {name: piece.reshape(values.shape) for (name, values), piece in pieces}
    number, rank = number % count, number // count
    return NodeList(nodes.node[number], nodes.original_id[number], None if time is None else when[rank]), placed


def picked_links(router: Router | TypedRouter, options: LinkOptions) -> dict[str, Any]:
    """The columns of one batch with all links of these options, without the batch around the ends of the links. The columns name nodes by their numbers."""
    return LinkSampler(router, options).pick(0, 0).columns


class TopLinkSampler:
    """One batch of the whole graph. Every node is the source of links that the model predicts."""

    __repr__, __len__ = sampler_repr, sampler_len
    router, sample = own_router, sample_drawn
    num_batches = 1

    def __init__(self, router: Router | TypedRouter, options: TopLinkOptions, num_ranks: int = 1) -> None:
        self._router, self.options, self._tables = router, options, link_tables(router, options.links_of)
        self._around = sampler_around(router, options.around, num_ranks, self._tables)
        count = self._tables.num_nodes
        if options.top_k > count - self._tables.is_one_type:
            bound = "less than" if self._tables.is_one_type else "at most"
            raise ConfigError(
                f"top_k: expected {bound} the number of nodes ({count}), got {options.top_k}; set --top_k"
            )
        if (options.relation is None) != (not self._tables.num_relations):
            raise ConfigError(
                "relation: expected one of a knowledge graph's, and of another graph none; set --relation"
            )

    @property
    def content_hash(self) -> str:
        return self._router.content_hash

    def draw(self, epoch: int, batches: Sequence[int]) -> list[PendingBatch]:
        tables = self._tables
        source = np.arange(tables.num_sources)
        relation = None if self.options.relation is None else np.full(len(source), self.options.relation)
        known = _known(tables, source, None, relation)
        of_all = {"is_link": np.zeros(len(source), np.int8), "link_split": np.full(len(source), SPLIT_NONE, np.int8)}
        rest = {**of_all, "link_relation": relation, "known": known, "top_k": self.options.top_k}
        ends = {"link_source": source, "link_destination": source % tables.num_nodes}  # placeholders for destinations
        picked = _around_ends(tables, ends, rest, None, whole=True)
        pending = self._around.draw_around([picked.around(self._router) for _ in batches], epoch, batches)
        return [each.then(picked.complete) for each in pending]
