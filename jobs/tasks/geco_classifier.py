"""GECO as the trainer takes a model: minibatch in, logits of the roots out."""

from typing import Any

from torch import Tensor, nn

from graphmill.jobs.tasks.model_inputs import KeptEdges, coefficients, shard_graph
from graphmill.models.geco.network import GECO, param_groups
from graphmill.models.geco.options import GECOConfig
from graphmill.models.primitives.propagation import Adjacency
from graphmill.samplers.batches.minibatch import TorchBatch


class GECOClassifier(nn.Module):
    """GECO over a minibatch's subgraph, or over a rank's shard of the whole graph; permanent ids fix the order of the global convolution."""

    def __init__(self, config: GECOConfig) -> None:
        super().__init__()
        self.model = GECO(config)
        self._filter_learning_rate = config.filter_learning_rate
        self._adjacency = KeptEdges(_adjacency)

    def forward(self, batch: TorchBatch) -> Tensor:
        """Logits [num_roots, num_classes]; of a shard a collective call."""
        if batch.shard is None:
            logits = self.model(batch.x, self._adjacency(batch), node_id_N=batch.node_id, epoch=batch.epoch)
        else:
            graph = shard_graph(batch)
            ids, layout = graph.all_node_ids, graph.layout
            logits = self.model(batch.x, graph.adjacency, node_id_N=ids, epoch=batch.epoch, layout=layout)
        return logits[batch.root_index]

    @property
    def head(self) -> nn.Module:
        """What reads the states of all the batch's nodes."""
        return self.model.head

    def predicted_rows(self, states: Tensor, batch: TorchBatch) -> Tensor:
        """The roots' states [num_roots, width]."""
        return states[batch.root_index]

    def param_groups(self, learning_rate: float, weight_decay: float) -> list[dict[str, Any]]:
        return param_groups(self, learning_rate, weight_decay, self._filter_learning_rate)


def _adjacency(batch: TorchBatch) -> Adjacency:
    return Adjacency(
        batch.indptr, batch.indices, coefficients(batch), degree=batch.degree, edge_feature=batch.edge_feature
    )
