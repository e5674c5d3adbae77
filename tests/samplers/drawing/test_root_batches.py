"""With roots by locality groups, each position of a step gets a share of the groups. The shares are the same for all partitionings."""

import numpy as np
import pytest

from graphmill.core.errors import ConfigError
from graphmill.samplers.access.router import Router, local_router
from graphmill.samplers.drawing.root_batches import RootBatches
from graphmill.samplers.vocabulary.options import NeighborOptions
from graphmill.samplers.vocabulary.rank_shares import even_split
from graphmill.storage.format.source import SPLIT_TRAIN
from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions

GROUPS = 24
BY_GROUPS = NeighborOptions(batch_size=16, root_order="groups", seed=3)


def ingested(url: str, num_nodes: int = 3000, **options: object) -> Router:
    source = SyntheticGraph(SyntheticOptions(num_nodes=num_nodes, feature_dim=1, train_share=0.2))
    ingest(source, url, IngestOptions(**{"partitioner": "ldg", "groups": GROUPS, **options}))
    return local_router(open_graph(url))


@pytest.fixture(scope="module")
def routers(tmp_path_factory) -> dict[int, Router]:
    """Routers of the same graph with the same groups, in 1 and in 4 partitions."""
    folder = tmp_path_factory.mktemp("groups")
    return {count: ingested(str(folder / str(count)), num_partitions=count) for count in (1, 4)}


def epoch_of(router: Router, options: NeighborOptions, num_ranks: int, epoch: int) -> list[list[int]]:
    batches = RootBatches(router, options, num_ranks)
    return [batches.roots(epoch, batch).original_id.tolist() for batch in range(batches.num_batches)]


def groups_by_id(router: Router) -> dict[int, int]:
    everything = router.list_chunk(0, 0, 1)
    return dict(zip(everything.original_id.tolist(), router.groups_of(everything.node).tolist(), strict=True))


@pytest.mark.parametrize("num_ranks", [1, 3, 4])
def test_each_position_has_its_share_of_the_groups(routers, num_ranks):
    router = routers[4]
    group = groups_by_id(router)
    roots = router.list_split(0, SPLIT_TRAIN).original_id.tolist()
    in_order = sorted(roots, key=lambda root: (group[root], root))  # shares are ranges of this order
    for epoch in (0, 5):
        batches = epoch_of(router, BY_GROUPS, num_ranks, epoch)
        for position in range(num_ranks):
            own = [root for batch in batches[position::num_ranks] for root in batch]
            assert sorted(own) == sorted(in_order[slice(*even_split(len(roots), num_ranks, position))])
        assert max(map(len, batches)) <= BY_GROUPS.batch_size
        assert max(map(len, batches)) - min(map(len, batches)) <= 2
    assert epoch_of(router, BY_GROUPS, num_ranks, 0) != epoch_of(router, BY_GROUPS, num_ranks, 5)


def test_partitions_change_no_batch(routers):
    assert epoch_of(routers[1], BY_GROUPS, 4, 2) == epoch_of(routers[4], BY_GROUPS, 4, 2)
    hashes = {RootBatches(router, BY_GROUPS, 4).content_hash for router in routers.values()}
    assert len(hashes) == 1
    assert RootBatches(routers[4], NeighborOptions(), 4).content_hash not in hashes  # the hash includes the groups


def test_other_groups_are_other_data(routers, tmp_path):
    other = ingested(str(tmp_path / "other"), num_partitions=4, groups=GROUPS // 2)
    assert RootBatches(other, BY_GROUPS, 4).content_hash != RootBatches(routers[4], BY_GROUPS, 4).content_hash


def test_one_position_and_evaluation_are_as_without_groups(routers):
    router = routers[4]
    shuffled = NeighborOptions(batch_size=16, seed=3)
    assert epoch_of(router, BY_GROUPS, 1, 1) == epoch_of(router, shuffled, 1, 1)
    fixed = {
        name: epoch_of(router, NeighborOptions(batch_size=16, shuffle=False, root_order=name), 4, 1)
        for name in ("shuffled", "groups")
    }
    assert fixed["groups"] == fixed["shuffled"]


def test_most_roots_of_a_position_lie_in_one_partition(routers):
    router = routers[4]
    batches = RootBatches(router, BY_GROUPS, 4)
    offsets = np.asarray(router.manifest.partition_offsets)
    own = [
        np.mean(np.searchsorted(offsets, batches.roots(0, batch).node, side="right") - 1 == batch % 4)
        for batch in range(batches.num_batches)
    ]
    assert np.mean(own) > 0.8


def test_a_graph_without_groups_is_refused_in_one_line(tmp_path):
    router = ingested(str(tmp_path / "random"), num_nodes=500, partitioner="random", groups=None)
    with pytest.raises(ConfigError, match=r"^root_order: expected a graph with locality groups, .* ingest it with"):
        RootBatches(router, BY_GROUPS, 2)
