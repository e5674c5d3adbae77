"""Cached evaluation batches equal the loader's batches. If all of them fit into memory, the loader reads them only once."""

import pytest

from graphmill.cluster.training.evaluation import BatchCache
from graphmill.cluster.training.train_loop import Worker
from graphmill.samplers.batches.device_copy import tensor_bytes
from tests.cluster.training.test_train_loop import CPU, Records, spec


@pytest.mark.parametrize("room", ["for all", "for all but a byte", "for none"])
def test_batches_are_the_loaders_and_kept_only_where_all_have_room(room):
    worker = Worker(spec(), Records(), 0, 1, CPU)
    with worker.loader(worker.spec.evaluation["valid"]) as loader:
        expected = [batch.graph_id.tolist() for batch in loader.epoch(0)]
        size = sum(tensor_bytes(batch) for batch in loader.epoch(0))
        assert len(expected) > 1
        kept = BatchCache(loader, {"for all": size, "for all but a byte": size - 1, "for none": 0}[room])
        read = loader.stats.num_batches
        passes = [[batch.graph_id.tolist() for batch in kept.epoch(0)] for _ in range(3)]
        assert passes == [expected] * 3
        assert loader.stats.num_batches - read == len(expected) * (1 if room == "for all" else 3)


def test_a_pass_that_ends_early_keeps_nothing():
    worker = Worker(spec(), Records(), 0, 1, CPU)
    with worker.loader(worker.spec.evaluation["valid"]) as loader:
        kept = BatchCache(loader, 1 << 20)
        next(kept.epoch(0))
        assert len(list(kept.epoch(0))) == len(loader)
