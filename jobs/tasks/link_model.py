"""Makes a model of links from a model of nodes. The outputs of the node model at the roots are states; a decoder scores pairs of states.

In training, the model returns the logits of each link and of the link's negatives. In evaluation, it counts the rivals of a link that have a higher score
and the rivals that have the same score. The batch returns only four numbers per link, for any number of rivals.

Legend: m links, k negatives, r roots (only the first R roots may be ends of links), D width.
"""

from typing import Any

import torch
from torch import Tensor, nn

from graphmill.cluster.tasks import StepOutput, step_output
from graphmill.models.ends.link_decoders import build_link_decoder
from graphmill.models.options.links import LinkDecoderOptions
from graphmill.models.primitives.segments import at_least_float32
from graphmill.samplers.batches.link_batch import TorchLinkBatch, TorchTypedLinkBatch

Links = TorchLinkBatch | TorchTypedLinkBatch
# Maximum number of numbers in memory at a time in evaluation: scores, or the states that the scores are computed from.
_BLOCK = 1 << 22


class LinkModel(nn.Module):
    """A decoder of links over an encoder of nodes. The encoder is a module in the form that the trainer takes."""

    def __init__(self, encoder: nn.Module, options: LinkDecoderOptions, num_relations: int = 0) -> None:
        """`num_relations`: number of relations of a knowledge graph; 0: links have no relation."""
        super().__init__()
        self.encoder, self.decoder = encoder, build_link_decoder(options, num_relations)
        self.head = nn.Identity()  # its inputs are the nodes' states, which `predict --embeddings` keeps
        # When a node is scored against many nodes, each score needs this number of numbers in memory.
        self._width = 1 if options.kind in ("dot", "distmult") else options.width
        if hasattr(encoder, "param_groups"):
            self.param_groups = self._param_groups

    def forward(self, batch: Links) -> StepOutput:
        """Training: logits [m, 1 + k]; column 0 is the link itself. Evaluation: float64 [m, 4], defined in `graphmill.cluster.metrics.link_scores`.

        With `batch.top_k`: float64 [m, 2 · top_k]: first the permanent ids of the best destinations, then the scores of these destinations, descending.
        """
        output = step_output(self.encoder(batch))
        state_rD = self.head(at_least_float32(output.prediction))
        if self.training:
            return StepOutput(self._logits(state_rD, batch), output.penalty)
        if batch.top_k:
            return StepOutput(self._best(state_rD, batch))
        assert batch.link_source is not None
        width = state_rD.shape[1] * (0 if batch.negative is None else batch.negative.shape[1])
        if batch.known is not None:
            width = self._width * len(state_rD)
        blocks = torch.arange(len(batch.link_source), device=state_rD.device).split(max(1, _BLOCK // max(width, 1)))
        return StepOutput(torch.cat([self._ranked(state_rD, batch, rows) for rows in blocks]))

    def predicted_rows(self, states: Tensor, batch: Links) -> Tensor:
        """[m, D]: the states of the links' sources."""
        assert batch.link_source is not None
        return states[batch.link_source]

    def _logits(self, state_rD: Tensor, batch: Links) -> Tensor:
        assert batch.link_source is not None
        assert batch.link_destination is not None
        assert batch.negative is not None
        sources = batch.link_source[:, None] if batch.negative_source is None else batch.negative_source
        relation = batch.link_relation
        # Takes rows by `index_select`, because its gradient adds up in the order of the rows.
        source = _rows(state_rD, batch.link_source)
        own_m1 = self.decoder(source, _rows(state_rD, batch.link_destination), relation)[:, None]
        others_mk = self.decoder(_rows(state_rD, sources), _rows(state_rD, batch.negative), _column(relation))
        return torch.cat([own_m1, others_mk], dim=1)

    def _ranked(self, state_rD: Tensor, batch: Links, rows: Tensor) -> Tensor:
        """float64 [b, 4] for the links with the indices `rows`: score, number of rivals with a higher score, number of rivals with the same score, score of the
        first rival."""
        assert batch.link_source is not None
        assert batch.link_destination is not None
        assert batch.negative is not None
        source, destination = state_rD[batch.link_source[rows]], batch.link_destination[rows]
        relation = None if batch.link_relation is None else batch.link_relation[rows]
        if batch.known is not None:
            scores = self.decoder.against(source, state_rD[: len(batch.root_index)], relation)
            own = scores.gather(1, destination[:, None])
            rival = _allowed(scores, batch.known, rows).scatter_(1, destination[:, None], False)
            return _counts(own, scores, rival, scores.gather(1, batch.negative[rows]))
        negative = batch.negative[rows]
        own = self.decoder(source, state_rD[destination], relation)[:, None]
        scores = self.decoder(source[:, None], state_rD[negative.clamp_min(0)], _column(relation))
        return _counts(own, scores, negative >= 0, scores[:, :1])

    def _best(self, state_rD: Tensor, batch: Links) -> Tensor:
        assert batch.link_source is not None
        assert batch.known is not None
        ids, end_RD = batch.root_id, state_rD[: len(batch.root_index)]
        blocks = []
        block = max(1, _BLOCK // (self._width * len(state_rD)))
        for rows in torch.arange(len(batch.link_source), device=state_rD.device).split(block):
            relation = None if batch.link_relation is None else batch.link_relation[rows]
            scores = self.decoder.against(state_rD[batch.link_source[rows]], end_RD, relation)
            best = scores.masked_fill(~_allowed(scores, batch.known, rows), -torch.inf).topk(batch.top_k, dim=1)
            is_link = best.values > -torch.inf  # False: the source has fewer than top_k allowed ends
            chosen = torch.where(is_link, ids[best.indices], -1)
            blocks.append(torch.cat([chosen.double(), torch.where(is_link, best.values, 0.0).double()], dim=1))
        return torch.cat(blocks)

    def _param_groups(self, learning_rate: float, weight_decay: float) -> list[dict[str, Any]]:
        """The parameter groups of the encoder, then all other parameters: matrices with weight decay, vectors without weight decay."""
        encoder: Any = self.encoder
        encoder_ids = set(map(id, encoder.parameters()))
        others = [parameter for parameter in self.parameters() if id(parameter) not in encoder_ids]
        matrices = [parameter for parameter in others if parameter.ndim >= 2]
        vectors = [parameter for parameter in others if parameter.ndim < 2]
        groups = [(matrices, weight_decay), (vectors, 0.0)]
        return [
            *encoder.param_groups(learning_rate, weight_decay),
            *({"params": parameters, "weight_decay": decay} for parameters, decay in groups if parameters),
        ]


def _column(relation: Tensor | None) -> Tensor | None:
    """[m] → [m, 1], to broadcast over k negatives."""
    return None if relation is None else relation[:, None]


def _rows(state_rD: Tensor, index: Tensor) -> Tensor:
    """[…] → […, D]: the states of the rows `index`."""
    return state_rD.index_select(0, index.reshape(-1)).reshape(*index.shape, state_rD.shape[1])


def _allowed(scores: Tensor, known_2q: Tensor, rows: Tensor) -> Tensor:
    """bool [b, R]: False for nodes to which the link's source already has a known link. `known_2q` is in ascending order of link."""
    link, node = known_2q
    own = slice(int(torch.searchsorted(link, rows[0])), int(torch.searchsorted(link, rows[-1], right=True)))
    allowed = torch.ones_like(scores, dtype=torch.bool)
    allowed[link[own] - rows[0], node[own]] = False
    return allowed


def _counts(own: Tensor, scores: Tensor, rival: Tensor, first: Tensor) -> Tensor:
    """Scores [b, 1] of the links, scores [b, k] and masks [b, k] of rivals, first rival [b, 1 or 0] → float64 [b, 4]."""
    higher, same = (((found) & rival).sum(1, keepdim=True) for found in (scores > own, scores == own))
    first = first if first.shape[1] else torch.zeros_like(own)
    return torch.cat([own.double(), higher.double(), same.double(), first.double()], dim=1)
