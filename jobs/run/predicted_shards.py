"""The whole graph as prediction sees it: every worker predicts the nodes of its shard, in one forward pass of all for each split."""

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from jobs.run.whole_graph import OpenShard, ShardBatch, ShardRoots, WholeGraphData
from storage.source import SPLIT_NONE


class PredictedShard(OpenShard):
    """A worker's shard."""

    def ids(self, batch: ShardBatch) -> Tensor:
        return batch.node_id[batch.layout.first_row + batch.root_index]


@dataclass(frozen=True)
class PredictedShardData:
    """One graph over the workers that open it together."""

    graph: WholeGraphData

    @classmethod
    def of(cls, data: WholeGraphData) -> "PredictedShardData":
        return cls(replace(data, training=False))

    def open(self) -> PredictedShard:
        """A collective call; raises what `WholeGraphData.open` does."""
        return PredictedShard(self.graph.open().shard, self.graph.graph.content_hash)

    def roots(self, unsplit: str) -> dict[str, Any]:
        """The sampler's options for every split, the unsplit by that name last."""
        return {**self.graph.roots(), unsplit: ShardRoots(SPLIT_NONE)}
