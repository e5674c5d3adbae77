"""The cheap checks beside every run: three lines from the manifest and from samples of a bounded size. `graphmill audit` runs all checks on all rows."""

from typing import TYPE_CHECKING, Any

import numpy as np

from graphmill.jobs.config.standard_columns import feature_names
from graphmill.jobs.leaks.column_checks import Table, check_columns
from graphmill.jobs.leaks.link_checks import link_relations, sampled_lookup
from graphmill.jobs.leaks.node_rows import labels_of
from graphmill.jobs.leaks.set_checks import graph_table
from graphmill.jobs.leaks.split_checks import check_classes, check_node_splits, check_set_classes, check_set_splits
from graphmill.jobs.leaks.time_checks import is_timed
from graphmill.storage.format.source import SPLIT_TRAIN, SPLIT_VALID
from graphmill.storage.graph_sets.graph_set import StoredGraphs
from graphmill.storage.partition import PartitionReader

if TYPE_CHECKING:
    from graphmill.jobs.leaks.checks import Outcome
    from graphmill.storage.graph import StoredGraph, TypedGraph

_ROWS = 1024, 512  # rows to learn on, rows to check on
_MOST_VALUES = 1 << 20  # most feature values that are read
_MOST_PARTITIONS = 4
_MOST_LINKS = 256


def audit_lines(data: "StoredGraph | TypedGraph | StoredGraphs", node_type: str, split_set: int) -> list[str]:
    """Three lines: splits, columns, links. A line with a leak or a warning begins with that word. `node_type`: the predicted type of a typed graph.

    Reads at most 1,536 rows, a million feature values and the lists at the ends of 256 held-out links; the files must be on this machine.
    """
    if isinstance(data, StoredGraphs):
        columns = check_columns(graph_table(data, _ROWS))
        splits = [check_set_splits(data), check_set_classes(data)]
        links = "a set holds none out; graphmill audit looks for equal graphs in two splits"
        return [_line("splits", splits), _line("columns", columns), f"audit links: {links}"]
    nodes = data.nodes(node_type)
    relation = next(iter(link_relations(data)), None)
    splits = [check_node_splits(nodes.manifest, "", split_set), check_classes(nodes.manifest, "", split_set)]
    columns = check_columns(_sampled_table(nodes, split_set, has_times=is_timed(data)))
    return [_line("splits", splits), _line("columns", columns), f"audit links: {_links(data, relation)}"]


def _line(name: str, outcomes: "Any") -> str:
    found = [finding for each in outcomes for finding in each.findings]
    if found:
        severity = "leak" if any(each.severity == "leak" for each in found) else "warning"
        told = "; ".join(
            f"{each.text} ({', '.join(each.examples[:2])})" if each.examples else each.text for each in found
        )
        return f"audit {name}: {severity}: {told}"
    first: Outcome = outcomes[0]
    return f"audit {name}: {first.looked}"


def _links(data: "StoredGraph | TypedGraph", relation: Any) -> str:
    if relation is None:
        return "the graph holds none out"
    own = data.relation(relation)
    # Two types, times and relations need the full check: two entities may be joined by several relations, or again later.
    if not own.manifest.is_one_type or own.manifest.has_edge_time or own.manifest.relations:
        return "graphmill audit looks the held-out links up"
    return sampled_lookup(own, _MOST_LINKS)


def _sampled_table(graph: "StoredGraph", split_set: int, *, has_times: bool) -> Table:
    """Rows of a few partitions, evenly spaced."""
    manifest, dim = graph.manifest, graph.feature_dim
    names = feature_names(manifest.feature_columns)
    names = names if len(names) == dim else [str(k) for k in range(dim)]
    num_rows = max(64, min(sum(_ROWS), _MOST_VALUES // max(1, dim)))
    most = num_rows * _ROWS[0] // sum(_ROWS), num_rows * _ROWS[1] // sum(_ROWS)
    codes, labels, features, ids = [], [], [], []
    chosen = np.unique(np.linspace(0, graph.num_partitions - 1, _MOST_PARTITIONS).astype(int)).tolist()
    for index in chosen if dim else []:
        fields = PartitionReader(graph, index, False).node_fields()
        label, split = fields["label"], fields["split"]
        if label is None or split is None or split_set >= len(split) or fields["feature"] is None:
            break
        rows = [
            _spaced(split[split_set] == code, count // len(chosen))
            for code, count in zip((SPLIT_TRAIN, SPLIT_VALID), most, strict=True)
        ]
        picked = np.sort(np.concatenate(rows))
        codes.append(split[split_set][picked])
        labels.append(labels_of(label[picked]))
        features.append(manifest.feature_rows.decode(fields["feature"][picked]))  # type: ignore[union-attr]
        ids.append(fields["original_id"][picked])
    if not codes:
        codes, labels, ids = [np.empty(0, np.int8)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        features = [np.empty((0, dim), np.float32)]
    order = np.argsort(np.concatenate(ids), kind="stable")
    code, numbers = np.concatenate(codes)[order], np.concatenate(features)[order]
    label = np.concatenate(labels)[order] if len(order) else None

    def chosen_features(rows: np.ndarray, columns: slice) -> np.ndarray:
        return numbers[rows][:, columns]

    num_rows = graph.num_nodes
    return Table(code, label, names, chosen_features, _spaced, "nodes", "", most, num_rows, is_timed=has_times)


def _spaced(chosen: np.ndarray, most: int) -> np.ndarray:
    rows = np.flatnonzero(chosen)
    return rows[:: max(1, -(-len(rows) // max(1, most)))]
