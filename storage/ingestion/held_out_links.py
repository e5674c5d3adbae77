"""Takes links out of a graph's edges, for validation and test.

The stored graph has no edge for a held-out link, in either direction. Therefore no sampler, encoding, statistic or
partitioner sees the link. There are three ways to choose the held-out edges: by a pure function of the seed and the edge's two nodes, by their times, or
by the source (`links`). A node is named by its row in the source, which is its rank in ascending order of permanent ids.

In a typed graph, links are held out of one relation. Their reverses are removed from the relation that has the reverse edges.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from graphmill.core.counter_random import derive_key, hash_counters
from graphmill.core.errors import ConfigError, DataError
from graphmill.storage.format.manifest import EDGE
from graphmill.storage.format.source import (
    SPLIT_TEST,
    SPLIT_TRAIN,
    SPLIT_VALID,
    EdgeChunk,
    NodeChunk,
    Relation,
    SourceInfo,
    TypedSource,
)
from graphmill.storage.format.stored_links import Links
from graphmill.storage.ingestion.ingest_options import NO_REVERSE, IngestOptions, LinkSplitOptions
from graphmill.storage.ingestion.typed_sources import OnlyRelation, Reversed, reverse_of
from graphmill.storage.splits.drawn_split import split_of_times, times_at

# number of nodes of a relation's source type (None: the target type is the same), and number of nodes of its target type
Sizes = tuple[int | None, int]
_CHUNK = 1 << 20  # number of edges that are read at a time
_MOST_KEYS = 1 << 63
_MOST_REPEATED = 0.5  # another relation that has at least this share of the held-out pairs does not have them by chance
_PURPOSE = 0x6C696E6B  # "link": makes these draws independent of other draws with the same seed


@runtime_checkable
class LinkSource(Protocol):
    """A source that also gives the held-out links."""

    @property
    def links(self) -> Links | None:
        """The held-out links; None if no links are held out."""
        ...

    @property
    def repeats_links(self) -> bool:
        """Whether held-out links may also be edges, as in some published data: in ogbl-collab, authors write together again."""
        ...


class MessageEdges:
    """A source without its held-out edges. The held-out edges are known only after all edges have been read."""

    def __init__(
        self, source: Any, options: LinkSplitOptions, given: Links | None, sizes: Sizes, *, may_repeat: bool
    ) -> None:
        """`source`: a plain graph or a relation. `given`: the links that the source gives."""
        self._source, self._options, self._given, self._may_repeat = source, options, given, may_repeat
        self._num_sources, self._num_nodes = sizes
        self.reverse: Relation | None = None  # in a typed graph: the relation that has the reverse edges, if it exists
        self._held: list[Links] = []
        # the latest time of a training edge, and the latest time of a validation edge
        self._ends: tuple[int, ...] | None = None
        self.num_repeated = 0  # number of edges that are also held-out links
        self._known = np.empty(0, np.int64)
        if given is not None:
            given.check(self._num_nodes, source.info.name, self._num_sources)
            given.check_relations(len(source.info.relations), source.info.name)
            if source.info.has_edge_time and given.time is None:
                raise DataError(f"{source.info.name}: links: expected times, which the edges have, got none")
            held = (given.is_link == 1) & (given.split != SPLIT_TRAIN)
            relation = None if given.relation is None else given.relation[held]
            self._known = np.unique(self._key(given.source[held], given.destination[held], relation))

    @property
    def info(self) -> SourceInfo:
        return self._source.info

    def nodes(self, chunk_nodes: int) -> Iterator[NodeChunk]:
        return self._source.nodes(chunk_nodes)

    def edges(self, chunk_edges: int) -> Iterator[EdgeChunk]:
        """Yields the edges that are not held out. Raises DataError if an edge is a given link or, without relation numbers, the reverse of a given link."""
        self._held, self.num_repeated = [], 0
        for chunk in self._source.edges(chunk_edges):
            if self._given is not None:
                self._check(chunk)
                yield chunk
                continue
            code = self._split_of(chunk)
            held = code > 0
            if held.any():
                out, chunk = _rows(chunk, held), _rows(chunk, ~held)
                self._held.append(Links.of(out.src, out.dst, code[held], time=out.time, relation=self._relation(out)))
            yield chunk

    def _split_of(self, chunk: EdgeChunk) -> np.ndarray:
        """Returns for each edge (int8) SPLIT_VALID or SPLIT_TEST if it is held out, else 0."""
        if not self._options.by_time:
            return split_of_edges(chunk.src, chunk.dst, self._options, is_one_type=self._num_sources is None)
        assert chunk.time is not None
        code = split_of_times(chunk.time, self.ends_in_time)
        is_loop = (chunk.src == chunk.dst) & (self._num_sources is None)
        return np.where((code == SPLIT_TRAIN) | is_loop, 0, code).astype(np.int8)

    @property
    def ends_in_time(self) -> tuple[int, ...]:
        """The latest time of a training edge, and the latest time of a validation edge. They are computed from the source's edges at first use."""
        if self._ends is None:
            self._ends = times_at(self._times, self._options.by_time)
        return self._ends

    def _times(self) -> Iterator[np.ndarray]:
        for chunk in self._source.edges(_CHUNK):
            assert chunk.time is not None
            yield chunk.time

    def links(self, *, symmetric: bool) -> Links:
        """Returns all links, in canonical order. Call this after the edges have been read."""
        if self._given is not None:
            return self._given.canonical(symmetric=symmetric)
        none = np.empty(0, np.int64)
        time, relation = (none if exists else None for exists in (self.info.has_edge_time, self.info.relations))
        links = Links.join([Links.of(none, none, 0, time=time, relation=relation), *self._held])
        links.check(self._num_nodes, self.info.name, self._num_sources)
        return links.canonical(symmetric=symmetric)

    def of_reverses(self, edges: Any) -> Reversed:
        """Returns the relation that has the reverse edges, without the reverses of held-out edges."""
        backwards = MessageEdges(
            Reversed(edges),
            self._options,
            self._given,
            (self._num_sources, self._num_nodes),
            may_repeat=self._may_repeat,
        )
        if self._options.by_time:
            if not edges.info.has_edge_time:
                raise DataError(f"{edges.info.name}: links by_time: expected times of the reverse edges too, got none")
            backwards._ends = self.ends_in_time
        return Reversed(backwards)

    def check_repeats(self, name: str, relation: Relation, relations: Mapping[Relation, Any], *, kept: str) -> None:
        """Raises ConfigError if a relation, other than the relation of the reverse edges, has at least half of the held-out pairs, in either direction. A model
        could read the answers there.

        `kept`: the value of `--links.reverse` with which such relations are accepted. Reads the edges once.
        """
        ends = (relation.source, relation.target)
        others = [each for each in relations if each not in (relation, self.reverse) and {*each[::2]} == {*ends}]
        if not others:
            return
        for _ in self.edges(_CHUNK):  # held-out links are known only after all edges have been read
            pass
        links = self.links(symmetric=False)
        out = (links.is_link == 1) & (links.split != SPLIT_TRAIN)
        keys = np.unique(self._key(links.source[out], links.destination[out], None))
        repeating = []
        for each in others if len(keys) else ():
            is_repeated = np.zeros(len(keys), bool)
            for chunk in relations[each].edges(_CHUNK):
                pair = (chunk.src, chunk.dst) if each[::2] == ends else (chunk.dst, chunk.src)
                key = self._key(*pair, None)
                place = np.searchsorted(keys, key)
                is_repeated[place[keys.take(place, mode="clip") == key]] = True
            if is_repeated.mean() >= _MOST_REPEATED:
                repeating.append(f"{each} ({is_repeated.mean():.0%})")
        if repeating:
            raise ConfigError(
                f"{name}: links.reverse: expected no other relation with half of the pairs that {relation} holds out, found {', '.join(repeating)}; pass "
                f"--links.reverse with the one that is its reverse, take a copy out, or pass --links.reverse {kept} if they are to stay"
            )

    def _check(self, chunk: EdgeChunk) -> None:
        key = self._key(chunk.src, chunk.dst, self._relation(chunk))
        repeated = np.flatnonzero(np.isin(key, self._known))
        self.num_repeated += len(repeated)
        if len(repeated) and not self._may_repeat:
            first = int(repeated[0])
            raise DataError(
                f"{self.info.name}: expected no held-out link{'' if self.info.relations else ', nor its reverse,'} among the edges, found "
                f"{int(chunk.src[first])} to {int(chunk.dst[first])}; take these edges out"
            )

    def _relation(self, chunk: EdgeChunk) -> np.ndarray | None:
        """Returns the relation number of each edge, int64 [k]; None in a graph without relation numbers."""
        return chunk.feature[:, 0].astype(np.int64) if self.info.relations and chunk.feature is not None else None

    def _key(self, source: np.ndarray, destination: np.ndarray, relation: np.ndarray | None) -> np.ndarray:
        """Returns an int64 key for each pair. Within one type, a pair and its reverse have the same key. With relation numbers, each (source, relation,
        destination) has a different key."""
        count, source, destination = self._num_nodes, source.astype(np.int64), destination.astype(np.int64)
        if self._num_sources is not None:
            return source * count + destination
        if relation is None:
            return np.minimum(source, destination) * count + np.maximum(source, destination)
        return (source * len(self.info.relations) + relation) * count + destination


def _rows(chunk: EdgeChunk, rows: np.ndarray) -> EdgeChunk:
    others = (None if column is None else column[rows] for column in (chunk.weight, chunk.feature, chunk.time))
    return EdgeChunk(chunk.src[rows], chunk.dst[rows], *others)


def split_of_edges(
    src: np.ndarray, dst: np.ndarray, options: LinkSplitOptions, *, is_one_type: bool = True
) -> np.ndarray:
    """Returns for each edge (int8) SPLIT_VALID or SPLIT_TEST if it is held out, else 0. All copies of an edge get the same value. Within one type, the
    reverse also gets this value, and a self-loop gets 0."""
    low, high = (np.minimum(src, dst), np.maximum(src, dst)) if is_one_type else (src, dst)
    key = derive_key(options.seed, _PURPOSE)
    hashed = hash_counters(key, hash_counters(key, low) + high.astype(np.uint64))
    # Bounds of 53 bits are exact on every machine.
    share = hashed >> np.uint64(11)
    test, held = (np.uint64(round(part * 2**53)) for part in (options.test, options.test + options.valid))
    code = np.where(share < test, SPLIT_TEST, np.where(share < held, SPLIT_VALID, 0)).astype(np.int8)
    return np.where((low == high) & is_one_type, 0, code).astype(np.int8)


def without_held_out(source: Any, options: LinkSplitOptions, sizes: Sizes | None = None) -> Any:
    """Returns the source without held-out edges, or unchanged if no edges are held out. `sizes` is given for a relation of a typed graph (None: a plain graph).

    Raises DataError if the source gives links although the options also draw links, and ConfigError if the options name relations although the graph is plain.
    """
    given = source.links if isinstance(source, LinkSource) else None
    own = str(next(iter(source.typed.relations)) if isinstance(source, OnlyRelation) else EDGE)
    if sizes is None and (options.reverse or options.relation not in (None, own)):
        raise ConfigError(
            f"{source.info.name}: links: expected a graph of several relations, got one of {own} alone; leave out --links.relation and --links.reverse"
        )
    drawn = options.hold_out
    if options.by_time and not source.info.has_edge_time:
        raise DataError(
            f"{source.info.name}: links by_time: expected edges with times of their own, the source has none; set --edge-list.time, or hold out by "
            "--links.valid and --links.test"
        )
    if len(source.info.relations) * source.info.num_nodes**2 > _MOST_KEYS:
        raise DataError(
            f"{source.info.name}: expected at most 2^63 triples that can be told apart, got {source.info.num_nodes:,} nodes and {len(source.info.relations):,} relations"
        )
    if given is not None and drawn:
        raise DataError(
            f"{source.info.name}: expected no --links, for the set has splits of its links, got some; leave them out"
        )
    if given is None and not drawn:
        return source
    may_repeat = isinstance(source, LinkSource) and source.repeats_links
    return MessageEdges(source, options, given, sizes or (None, source.info.num_nodes), may_repeat=may_repeat)


def without_held_out_edges(source: TypedSource, options: IngestOptions) -> TypedSource:
    """Returns the typed source without the held-out edges of one relation and without their reverses, or unchanged if no edges are held out.

    Raises ConfigError if the options name an unknown relation, or no relation although there are several. Also raises it if no reverse relation is named and
    another relation has half of the held-out pairs. Raises the DataErrors of `without_held_out`.
    """
    name, links, relations = source.name, options.links, dict(source.relations)
    options_named = {"relation": links.relation, "reverse": None if links.reverse == NO_REVERSE else links.reverse}
    named = {key: Relation.of(text) for key, text in options_named.items() if text is not None}
    given = [each for each, edges in relations.items() if isinstance(edges, LinkSource) and edges.links is not None]
    if not links.hold_out and not given:
        if links.relation or links.reverse:
            raise ConfigError(f"{name}: links: expected shares of edges to hold out, got none; set --links.valid")
        return source
    reverses = {reverse_of(each) for each in relations}
    candidates = given or [each for each in relations if each not in reverses]
    if "relation" in named and (named["relation"] in relations if not given else candidates == [named["relation"]]):
        candidates = [named["relation"]]
    if len(candidates) != 1 or candidates[0] != named.get("relation", candidates[0]):
        raise ConfigError(
            f"{name}: links: expected one relation whose edges are held out, of {', '.join(map(str, candidates))}, got "
            f"{links.relation or 'none named'}; set --links.relation"
        )
    (relation,) = candidates
    reverse = named.get("reverse", reverse_of(relation))
    ends, is_added = (relation.target, relation.source), options.undirected and relation.source != relation.target
    if (reverse.source, reverse.target) != ends or ("reverse" in named and (is_added or reverse not in relations)):
        raise ConfigError(
            f"{name}: links.reverse: expected a relation of the source from {ends[0]} to {ends[1]}, without --reverse-edges add, got {reverse}; "
            "leave out one of the two"
        )
    of_sources, of_targets = (source.nodes[each].info.num_nodes for each in (relation.source, relation.target))
    sizes = None if relation.source == relation.target else of_sources, of_targets
    held = relations[relation] = without_held_out(relations[relation], links, sizes)
    if links.reverse == NO_REVERSE and not is_added:
        return replace(source, relations=relations)
    held.reverse = reverse
    if reverse in relations:
        relations[reverse] = held.of_reverses(relations[reverse])
    if links.reverse is None:
        held.check_repeats(
            name, relation, relations, kept=NO_REVERSE if is_added or reverse not in relations else str(reverse)
        )
    return replace(source, relations=relations)
