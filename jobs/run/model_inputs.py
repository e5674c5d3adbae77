"""From the loaders' batches to what every model takes, and a model over those as the trainer takes one.

A minibatch lists, per node, the sources of its in-edges; `models.graphs.Graphs` holds edges as source over destination.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from cluster.tasks import StepOutput
from models.graphs import Graphs
from samplers.graph_batches import TorchGraphBatch
from samplers.minibatch import TorchBatch


def node_batch_graphs(batch: TorchBatch) -> Graphs:
    """A minibatch of roots: its subgraphs, or all of it as one graph. `root_index` are the nodes to predict."""
    num_nodes = len(batch.node_id)
    destination = torch.repeat_interleave(
        torch.arange(num_nodes, device=batch.node_id.device), batch.indptr.diff(), output_size=len(batch.indices)
    )
    whole = batch.graph_ptr is None
    return Graphs(
        node_ptr=batch.node_id.new_tensor([0, num_nodes]) if batch.graph_ptr is None else batch.graph_ptr,
        edge_index=torch.stack([batch.indices.long(), destination]),
        x=batch.x,
        edge_attr=batch.edge_feature,
        node_id=batch.node_id,
        root_index=batch.root_index,
        encodings=getattr(batch, "encodings", None) or {},
        max_nodes=num_nodes if whole else None,
    )


def graph_batch_graphs(batch: TorchGraphBatch) -> Graphs:
    """A batch of whole graphs."""
    return Graphs(
        node_ptr=batch.node_ptr,
        edge_index=batch.edge_index.long(),
        x=batch.node_feature,
        edge_attr=batch.edge_feature,
        encodings=getattr(batch, "encodings", None) or {},
    )


class OverGraphs(nn.Module):
    """A model over `Graphs` as the trainer takes one: batch in, predictions and penalty out."""

    def __init__(
        self,
        model: nn.Module,
        to_graphs: Callable[[Any], Graphs],
        predict: Callable[[nn.Module, Graphs, int], tuple[Tensor, Tensor | None]] | None = None,
    ) -> None:
        """`predict` calls the model where its own call is not the whole of it; see `with_penalty`."""
        super().__init__()
        self.model = model
        self._to_graphs, self._predict = to_graphs, predict or plain

    def forward(self, batch: Any) -> StepOutput:
        return StepOutput(*self._predict(self.model, self._to_graphs(batch), batch.epoch))

    @property
    def head(self) -> nn.Module | None:
        """What reads the states of those that are predicted; None where the model ends with states."""
        return getattr(getattr(self.model, "readout", self.model), "head", None)

    def predicted_rows(self, states: Tensor, batch: Any) -> Tensor:
        """All of them: these models read no other states."""
        return states


def plain(model: nn.Module, graphs: Graphs, epoch: int) -> tuple[Tensor, None]:
    """The predictions of a model without a penalty."""
    return model(graphs, epoch=epoch), None


def with_penalty(model: Any, graphs: Graphs, epoch: int) -> tuple[Tensor, Tensor | None]:
    """Predictions and, in training, the penalty of a model that has one (Primphormer's KSVD loss)."""
    if not model.training:
        return model(graphs, epoch=epoch), None
    return model.forward_with_penalty(graphs, epoch=epoch)
