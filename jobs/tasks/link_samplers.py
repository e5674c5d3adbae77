"""The samplers of a run on links: training batches, and those that each split is scored through."""

from typing import Any

from graphmill.jobs.config.link_options import LinksOptions
from graphmill.samplers.vocabulary.options import LinkOptions, RandomPartitionOptions
from graphmill.storage.format.source import SPLITS

SCORED = ("valid", "test")


def training_links(options: LinksOptions, around: Any, seed: int) -> LinkOptions:
    """The options of the sampler of training batches."""
    return LinkOptions(
        around,
        batch_size=options.batch_size,
        negatives=options.negatives,
        num_negatives=options.num_negatives,
        exclude_own=options.exclude_own,
        seed=seed,
    )


def scored_links(options: LinksOptions, around: Any) -> dict[str, LinkOptions]:
    """The samplers' options that each split is scored through; on the whole graph all splits are scored by one batch.

    Rivals do not depend on the run's seed: runs are compared on the same ones.
    """
    negatives: Any = {"fixed": "fixed", "all": "all"}.get(options.ranking, "uniform")
    scored = {}
    for name in SCORED:
        whole = isinstance(around, RandomPartitionOptions)
        scored[name] = LinkOptions(
            around,
            splits=tuple(SPLITS[each] for each in SCORED) if whole else (SPLITS[name],),
            batch_size=None if whole else options.batch_size,
            negatives=negatives,
            num_negatives=options.num_rivals,
            exclude_own=False,
            shuffle=False,
        )
    return scored
