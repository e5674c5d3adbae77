"""Tests batches of links with times. The ends of a link have only edges that are earlier than the link."""

from pathlib import Path

import numpy as np
import pytest

from graphmill.core.errors import ConfigError
from graphmill.samplers.access.router import Router, local_router
from graphmill.samplers.batches.link_batch import LinkBatch
from graphmill.samplers.methods.links import LinkSampler
from graphmill.samplers.vocabulary.options import LinkOptions, NeighborOptions, TrainNegatives
from graphmill.storage.format.source import SPLIT_TEST, SPLIT_TRAIN
from graphmill.storage.graph import open_graph
from graphmill.storage.importers.memory.array_graph import ArrayGraph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.ingestion.ingest_options import LinkSplitOptions
from tests import reference_sampler as reference

NUM_NODES, NUM_EDGES = 40, 600
PAST = NeighborOptions((4, 3), time="before", edge_columns=("time",))


def table() -> np.ndarray:
    """int64 [3, edges]: source, destination and time. Some pairs occur several times."""
    rng = np.random.default_rng(3)
    return np.concatenate([rng.integers(0, NUM_NODES, (2, NUM_EDGES)), rng.integers(0, 50, (1, NUM_EDGES))])


@pytest.fixture(scope="module", params=[False, True], ids=["directed", "undirected"])
def routers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Router]:
    routers = []
    for partitions in (1, 3):
        url = str(tmp_path_factory.mktemp("links") / "graph")
        source, destination, time = table()
        links = LinkSplitOptions(by_time=(0.7, 0.85))
        options = IngestOptions(num_partitions=partitions, undirected=request.param, links=links)
        ingest(ArrayGraph("met", NUM_NODES, source, destination, edge_time=time), url, options)
        routers.append(local_router(open_graph(url)))
    return routers


def epoch(router: Router, options: LinkOptions) -> list[LinkBatch]:
    sampler = LinkSampler(router, options)
    return [sampler.sample(1, number) for number in range(sampler.num_batches)]  # type: ignore[misc]


@pytest.mark.parametrize("negatives", ["uniform", "in_batch", "degree"])
@pytest.mark.parametrize("code", [SPLIT_TRAIN, SPLIT_TEST])
def test_every_end_is_as_of_its_link(negatives: TrainNegatives, code: int, routers: list[Router]) -> None:
    options = LinkOptions(PAST, splits=(code,), batch_size=50, negatives=negatives, num_negatives=3)
    batches = epoch(routers[0], options)
    for one, other in zip(batches, epoch(routers[1], options), strict=True):
        reference.same_bytes(one, other)
    symmetric = routers[0].manifest.symmetric
    found = []
    for batch in batches:
        node, when = batch.node_id[batch.root_index], batch.root_time[batch.root_index]
        time = when[batch.link_source]
        assert np.array_equal(time, when[batch.link_destination])
        assert np.array_equal(np.repeat(time, 3), when[batch.negative].reshape(-1))
        ends = node[np.stack([batch.link_source, batch.link_destination])]
        found += zip(*(np.sort(ends, axis=0) if symmetric else ends).tolist(), time.tolist(), strict=True)
        owner = np.repeat(np.arange(batch.num_nodes), np.diff(batch.indptr))
        assert np.all(batch.edge_time < batch.root_time[owner])
        assert np.array_equal(batch.root_time[owner], batch.root_time[batch.indices])
    source, destination, time = table()
    ordered = np.sort(time)
    last = {SPLIT_TRAIN: (-1, ordered[419]), SPLIT_TEST: (ordered[509], 50)}[code]
    own = (source != destination) & (time > last[0]) & (time <= last[1])
    pairs = np.stack([source, destination])[:, own]
    pairs = np.sort(pairs, axis=0) if symmetric else pairs
    assert sorted(found) == sorted(set(zip(*pairs.tolist(), time[own].tolist(), strict=True)))


def test_what_cannot_be(routers: list[Router], tmp_path: Path) -> None:
    for around, message in (
        (NeighborOptions((2,), time="until"), "time: expected 'before'"),
        (NeighborOptions((2,), time="before", as_of=3), "as_of: expected none"),
    ):
        with pytest.raises(ConfigError, match=message):
            LinkSampler(routers[0], LinkOptions(around))
