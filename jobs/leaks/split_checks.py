"""Looks for splits without members, equal split sets, and classes that training lacks. Reads the manifest alone."""

from typing import TYPE_CHECKING

from graphmill.jobs.leaks.checks import MOST_EXAMPLES, Finding, Outcome, skipped
from graphmill.jobs.tasks.graph_task import set_lacks
from graphmill.jobs.tasks.node_task import graph_lacks
from graphmill.storage.format.source import SPLIT_NAMES, SPLITS

if TYPE_CHECKING:
    from graphmill.storage.format.manifest import Manifest
    from graphmill.storage.graph_sets.graph_set import StoredGraphs


def check_node_splits(manifest: "Manifest", part: str, split_set: int) -> Outcome:
    """A node has one code in a split set, so nodes cannot be in two splits; the splits may lack members, or two sets may be equal."""
    if split_set >= manifest.num_split_sets:
        return skipped("splits", part, "nodes have no splits")
    sets = manifest.measured.splits
    counts = dict(zip(SPLIT_NAMES, sets[split_set].num_nodes, strict=True))
    looked = f"nodes of each split, one split each: {_counts(counts)}"
    findings = [*_empty(counts, "nodes")]
    twins = [
        number for number, each in enumerate(sets) if each.digest == sets[split_set].digest and number != split_set
    ]
    if twins:
        text = f"split set {split_set} equals {len(twins)} of {len(sets) - 1} other sets; scores over these sets are not independent"
        findings.append(Finding("warning", text, tuple(f"set {number}" for number in twins[:MOST_EXAMPLES])))
    return Outcome("splits", part, looked, tuple(findings))


def check_set_splits(graphs: "StoredGraphs") -> Outcome:
    """Counts the graphs of each split, and looks for ids that two splits share."""
    names = ("none", *graphs.manifest.split_names)
    if not graphs.split_names:
        return skipped("splits", "", "the set has no splits")
    counts = {name: part.num_graphs for name, part in zip(names, graphs.manifest.measured.parts, strict=True)}
    return Outcome(
        "splits", "", f"graphs of each split, one split each: {_counts(counts)}", tuple(_empty(counts, "graphs"))
    )


def _empty(counts: dict[str, int], unit: str) -> list[Finding]:
    """Warnings for splits without members, if any split has members."""
    if not sum(count for name, count in counts.items() if name != "none"):
        return []
    return [Finding("warning", f"split {name} has no {unit}") for name in ("train", "valid") if not counts.get(name)]


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items() if count or name in SPLITS)


def check_classes(manifest: "Manifest", part: str, split_set: int) -> Outcome:
    """The faults of a split set that `graphmill train` also prints."""
    known = split_set < manifest.num_split_sets and manifest.measured.splits[split_set].class_counts is not None
    if not known:
        return skipped("classes", part, "labels are not classes, or there are no splits")
    return _of_faults(part, f"{manifest.num_classes} classes in each split", graph_lacks(manifest, split_set))


def check_set_classes(graphs: "StoredGraphs") -> Outcome:
    """The faults of a set's splits that `graphmill train` also prints, without its rejected rows."""
    faults = [text for text in set_lacks(graphs) if not text.startswith("rejected rows")]
    return _of_faults(
        "", f"targets {', '.join(graphs.target_names) or graphs.manifest.labelled or 'none'} in each split", faults
    )


def _of_faults(part: str, looked: str, faults: list[str]) -> Outcome:
    return Outcome("classes", part, looked, tuple(Finding("warning", text) for text in faults))
