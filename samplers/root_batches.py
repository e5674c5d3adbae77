"""Roots of one split, dealt to batches: the plan of a sampler that makes one subgraph per root."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from samplers.messages import NodeList
from samplers.plans import even_split, num_root_batches
from samplers.random_streams import Purpose, hash_ids, stream_key
from samplers.router import Router
from storage.errors import ConfigError


@dataclass(frozen=True)
class RootPlan:
    """What decides which roots are in which batch."""

    batch_size: int
    num_ranks: int
    seed: int
    split_set: int
    root_split: int
    shuffle: bool  # False: ascending permanent id in every epoch


class RootBatches:
    """Every root of the split once per epoch, in a fresh random order."""

    def __init__(self, router: Router, plan: RootPlan) -> None:
        self._router, self._plan = router, plan
        self._last_order: tuple[int, np.ndarray] = (-1, np.empty(0, np.int64))

    @cached_property
    def _roots(self) -> NodeList:
        return self._router.list_split(self._plan.split_set, self._plan.root_split)

    @cached_property
    def num_batches(self) -> int:
        return num_root_batches(len(self._roots.node), self._plan.batch_size, self._plan.num_ranks)

    def roots(self, epoch: int, batch: int) -> NodeList:
        """Raises ConfigError where there is no such batch."""
        if not 0 <= batch < self.num_batches:
            raise ConfigError(f"batch: expected a number in [0, {self.num_batches}), got {batch}")
        roots, plan = self._roots, self._plan
        start, stop = even_split(len(roots.node), self.num_batches, batch)
        if not plan.shuffle:
            return NodeList(node=roots.node[start:stop], original_id=roots.original_id[start:stop])
        of_epoch, order = self._last_order  # one read: another thread may put another epoch's order there
        if of_epoch != epoch:
            key = stream_key(plan.seed, Purpose.ROOT_ORDER, epoch)
            order = np.argsort(hash_ids(key, roots.original_id), kind="stable")
            self._last_order = (epoch, order)
        chosen = order[start:stop]
        return NodeList(node=roots.node[chosen], original_id=roots.original_id[chosen])
