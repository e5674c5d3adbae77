"""What a run on links is told beside its model and its sampler."""

from dataclasses import dataclass, field
from typing import Any, Literal

from graphmill.core.option_checks import Count, Positive, check_fields
from graphmill.models.options.links import LinkDecoderOptions
from graphmill.samplers.vocabulary.options import LinkOptions, RandomPartitionOptions, TrainNegatives
from graphmill.storage.format.source import SPLITS

SCORED = ("valid", "test")


@dataclass(frozen=True)
class LinksOptions:
    """Links of one graph: which pairs of nodes are joined. The edges are what is learnt, links that were held out at ingestion are what is scored."""

    metric: Literal["mrr", "auc", "hits_1", "hits_3", "hits_10", "hits_20", "hits_50", "hits_100"] = "mrr"
    """What selects the best epoch: the mean reciprocal rank, the ROC-AUC, or the share of links among the first so many; all are reported."""
    loss: Literal["bce", "margin", "softmax"] = "bce"
    """Binary cross-entropy of a link and its negatives; a margin between the two; or the cross-entropy of the link among itself and its negatives."""
    margin: Positive = 1.0
    """Of the loss margin."""
    batch_size: Count = 1024
    """Links of a batch, in place of the sampler's roots."""
    negatives: TrainNegatives = "uniform"
    """Ends in place of a link's destination: any node; by degree^0.75; destinations of the batch's other links; or those stored for the training split."""
    num_negatives: Count = 1
    """Of each link in training."""
    exclude_own: bool = True
    """Leave the links of a batch, and their reverses, out of the edges that it passes messages along: else the network may read the answer off them."""
    ranking: Literal["auto", "fixed", "sampled", "all"] = "auto"
    """What links are scored against: the negatives stored with their split; so many drawn nodes (--task.num_rivals); or all nodes but those that the
    source is known to be joined with. auto: fixed where the graph has them, else sampled."""
    num_rivals: Count = 100
    """Of each link, with --task.ranking sampled: the same in every run."""
    relation: str | None = None
    """Of a typed graph: SOURCE--NAME--TARGET, whose links are predicted. None: the one of which links are held out."""
    decoder: LinkDecoderOptions = field(default_factory=LinkDecoderOptions)

    def __post_init__(self) -> None:
        check_fields(self)

    def training(self, around: Any, seed: int) -> LinkOptions:
        """The options of the sampler of training batches, whose links' surroundings `around` draws."""
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
        """The samplers' options that each split is scored through; on the whole graph all splits are scored by one batch.

        Rivals do not depend on the run's seed: runs are compared on the same ones.
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
