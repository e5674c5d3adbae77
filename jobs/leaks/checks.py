"""The table of all checks, and what a check finds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Severity = Literal["leak", "warning"]
MOST_EXAMPLES = 5


class Check(NamedTuple):
    """A row of the table: what the check looks at, and what to do if it finds something."""

    looks_at: str
    advice: str


CHECKS = {
    "links": Check(
        "held-out links among the edges that pass messages: as they are, reversed, or in another relation between the same types",
        "ingest again with --links.valid and --links.test, name the reverse with --links.reverse, and take copies of the relation out",
    ),
    "times": Check(
        "edges later than the node or held-out link that a model predicts",
        "train with --sampler.time until (or before), or hold links out with --links.by-time",
    ),
    "twins": Check(
        "nodes, graphs or molecules of validation and test that training has, too",
        "remove the copies, or put all copies into one split (molecules: --split.by scaffold)",
    ),
    "labels": Check(
        "one feature that alone tells the label: learnt on training rows, checked on validation rows",
        "leave the column out when you ingest, unless it is known before the label is",
    ),
    "ids": Check(
        "a feature that is the id, the row's number or the split",
        "leave the column out when you ingest",
    ),
    "splits": Check(
        "links that are in two splits, and splits without members",
        "keep each link in one split (--repeated-triples drop), and fill the empty split",
    ),
    "classes": Check(
        "classes of validation and test that no training row has",
        "split by class (--split.by label), or leave these classes out",
    ),
    "statistics": Check(
        "means, deviations, categories and vocabularies that were learnt on more than the training rows",
        "learn them on the training rows: store raw columns, and let Graphmill encode (--edge-list) and standardise (--data.standardise yes)",
    ),
}


@dataclass(frozen=True)
class Finding:
    """What a check found."""

    severity: Severity
    text: str
    """What was found, with counts."""
    examples: tuple[str, ...] = ()
    """Ids of a few nodes, links, graphs or columns."""
    advice: str = ""
    """What to do; empty: the advice of the check."""


@dataclass(frozen=True)
class Outcome:
    """The result of one check on one part of the data."""

    check: str
    part: str
    """A node type, a relation or "" for a plain graph or set."""
    looked: str
    """What was read, with counts, or why the check does not apply."""
    findings: tuple[Finding, ...] = ()
    applies: bool = True

    @property
    def severity(self) -> Severity | None:
        """The most severe finding; None: there is none."""
        kinds = {finding.severity for finding in self.findings}
        return "leak" if "leak" in kinds else "warning" if kinds else None


def skipped(check: str, part: str, why: str) -> Outcome:
    """The outcome of a check that does not apply to the data."""
    return Outcome(check, part, why, applies=False)


def failing(outcomes: Sequence[Outcome], fail_on: tuple[str, ...] | None) -> list[str]:
    """Names of the checks for which the command fails. `fail_on`: checks that may find nothing at all; None: no check may find a leak."""
    return sorted(
        {each.check for each in outcomes if each.severity == "leak"}
        if fail_on is None
        else {each.check for each in outcomes if each.findings and each.check in fail_on}
    )
