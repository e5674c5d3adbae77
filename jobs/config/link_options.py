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
    """Links of one graph: which pairs of nodes are joined. The model learns the edges and is scored on links that were held out at ingestion."""

    metric: Literal["mrr", "auc", "hits_1", "hits_3", "hits_10", "hits_20", "hits_50", "hits_100"] = "mrr"
    """Score that chooses the best epoch: the mean reciprocal rank, the ROC-AUC, or the share of links ranked among the first so many; all are reported."""
    loss: Literal["bce", "margin", "softmax"] = "bce"
    """Binary cross-entropy of a link and its negatives; a margin between the two; or the cross-entropy of the link among itself and its negatives."""
    margin: Positive = 1.0
    """Margin of the loss margin."""
    batch_size: Count = 1024
    """Links of a batch, in place of the sampler's roots."""
    negatives: TrainNegatives = "uniform"
    """Nodes that replace a link's destination: any node; by degree^0.75; destinations of the batch's other links; or the nodes stored for the training split."""
    num_negatives: Count = 1
    """Negatives of each link in training."""
    exclude_own: bool = True
    """Pass no messages along the links of a batch and their reverses: else the network may read the answer from them."""
    ranking: Literal["auto", "fixed", "sampled", "all"] = "auto"
    """Rivals of a scored link: the negatives stored with its split; --task.num_rivals drawn nodes; or all nodes but those that the source is known to be joined
    with. auto: fixed if the graph has them, else sampled."""
    num_rivals: Count = 100
    """Rivals of each link with --task.ranking sampled: the same in every run."""
    relation: str | None = None
    """Relation of a typed graph whose links are predicted, SOURCE--NAME--TARGET. None: the relation with held-out links."""
    decoder: LinkDecoderOptions = field(default_factory=LinkDecoderOptions)

    def __post_init__(self) -> None:
        check_fields(self)

    def training(self, around: Any, seed: int) -> LinkOptions:
        """The options of the sampler of training batches; `around` samples the neighborhoods of the links' ends."""
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
        """The options of the sampler of each split; on the whole graph one batch scores all splits.

        Rivals do not depend on the run's seed: runs are compared on the same rivals.
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
