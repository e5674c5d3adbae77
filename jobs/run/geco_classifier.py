"""GECO as the trainer takes a model: minibatch in, logits of the roots out."""

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from models.geco import GECO, param_groups
from models.options.geco import GECOConfig
from models.propagation import Adjacency
from samplers.minibatch import TorchBatch

if TYPE_CHECKING:
    from jobs.run.whole_graph import ShardBatch


class GECOClassifier(nn.Module):
    """GECO over a minibatch's subgraph; permanent ids fix the order of the global convolution."""

    def __init__(self, config: GECOConfig) -> None:
        super().__init__()
        self.model = GECO(config)
        self._filter_learning_rate = config.filter_learning_rate

    def forward(self, batch: TorchBatch) -> Tensor:
        """Logits [num_roots, num_classes]."""
        adjacency = Adjacency(batch.indptr, batch.indices)
        logits = self.model(batch.x, adjacency, node_id_N=batch.node_id, epoch=batch.epoch)
        return logits[batch.root_index]

    @property
    def head(self) -> nn.Module:
        """What reads the states of all the batch's nodes."""
        return self.model.head

    def predicted_rows(self, states: Tensor, batch: "TorchBatch | ShardBatch") -> Tensor:
        """The roots' states [num_roots, width]."""
        return states[batch.root_index]

    def param_groups(self, learning_rate: float, weight_decay: float) -> list[dict[str, Any]]:
        return param_groups(self.model, learning_rate, weight_decay, self._filter_learning_rate)


class GECOShardClassifier(GECOClassifier):
    """The same model and weights over a worker's shard of the whole graph."""

    def forward(self, batch: "ShardBatch") -> Tensor:  # type: ignore[override]
        """Logits [num_roots, num_classes] of the roots here; a collective call."""
        logits = self.model(batch.x, batch.adjacency, node_id_N=batch.node_id, epoch=batch.epoch, layout=batch.layout)
        return logits[batch.root_index]
