"""Options of a run on links, in addition to its model's and its sampler's."""

from dataclasses import dataclass, field
from typing import Any, Literal

from graphmill.core.option_checks import Count, Positive, check_fields
from graphmill.models.options.links import LinkDecoderOptions
from graphmill.samplers.vocabulary.options import LinkOptions, RandomPartitionOptions, TrainNegatives
from graphmill.storage.format.source import SPLITS

SCORED = ("valid", "test")


@dataclass(frozen=True)
class LinksOptions:
    """Links of one graph: the model predicts which pairs of nodes are joined. It learns from the edges and is scored on links that were held out at
    ingestion."""

    metric: Literal["mrr", "auc", "hits_1", "hits_3", "hits_10", "hits_20", "hits_50", "hits_100"] = "mrr"
    """Score that selects the best epoch: the mean reciprocal rank, the ROC-AUC, or the share of links with a rank of at most k. All scores are reported."""
    loss: Literal["bce", "margin", "softmax"] = "bce"
    """Loss: binary cross-entropy of a link and its negatives; a margin between the link and its negatives; or the cross-entropy of choosing the link from the
    link and its negatives."""
    margin: Positive = 1.0
    """Margin, if the loss is margin."""
    batch_size: Count = 1024
    """Number of links in a batch. Replaces the sampler's number of roots."""
    negatives: TrainNegatives = "uniform"
    """Source of the nodes that replace a link's destination: any node; any node, drawn in proportion to degree^0.75; destinations of the batch's other
    links; or the negatives stored for the training split."""
    num_negatives: Count = 1
    """Negatives of each link in training."""
    exclude_own: bool = True
    """Pass no messages along the links of a batch and their reverses. Otherwise the network could read the answer from them."""
    ranking: Literal["auto", "fixed", "sampled", "all"] = "auto"
    """Rivals of a scored link, the wrong links with which its score is compared. fixed: the negatives stored with its split; sampled: --task.num_rivals
    drawn nodes; all: all nodes except the nodes to which the source has a known link. auto: fixed if the graph has stored negatives, otherwise sampled."""
    num_rivals: Count = 100
    """Number of rivals of each link with --task.ranking sampled. Every run draws the same rivals."""
    relation: str | None = None
    """Relation of a typed graph in which links are predicted, as SOURCE--NAME--TARGET. None: the relation with held-out links."""
    decoder: LinkDecoderOptions = field(default_factory=LinkDecoderOptions)

    def __post_init__(self) -> None:
        check_fields(self)

    def training(self, around: Any, seed: int) -> LinkOptions:
        """The sampler options for training batches. `around`: the sampler options for the neighborhoods of the links' ends."""
        return LinkOptions(
            around,
            batch_size=self.batch_size,
            negatives=self.negatives,
            num_negatives=self.num_negatives,
            exclude_own=self.exclude_own,
            relation=self.relation,
            seed=seed,
        )

    def scored(self, around: Any) -> dict[str, LinkOptions]:
        """The sampler options of each split. On the whole graph one batch scores all splits.

        Rivals do not depend on the run's seed: all runs are compared on the same rivals.
        """
        negatives: Any = {"fixed": "fixed", "all": "all"}.get(self.ranking, "uniform")
        whole = isinstance(around, RandomPartitionOptions)
        return {
            name: LinkOptions(
                around,
                splits=tuple(SPLITS[each] for each in SCORED) if whole else (SPLITS[name],),
                batch_size=None if whole else self.batch_size,
                negatives=negatives,
                num_negatives=self.num_rivals,
                exclude_own=False,
                relation=self.relation,
                shuffle=False,
            )
            for name in SCORED
        }
