"""Formats a table that shows how ingestion used each column of a graph's files. Similar consecutive columns share a line."""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from graphmill.storage.format.source import SPLIT_NAMES, SPLITS, FeatureColumn


class ColumnRole(NamedTuple):
    """A column, its role, and what ingestion made from it."""

    file: str  # the file's name without its folder
    column: str
    type: str
    role: str  # "feature", "label", "split", "time", "id", "source" …; "none": the column is not read
    nulls: str = ""  # number of empty fields; "": they were not counted
    became: str = ""


def format_roles(roles: Sequence[ColumnRole]) -> str:
    """Formats the table, one line per column. Consecutive columns that differ only in their names share a line."""
    rows = [("file", "column", "type", "role", "nulls", "became")]
    for alike, run in groupby(roles, lambda each: each._replace(column="")):
        names = [each.column for each in run]
        named = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]} ({len(names)})"
        rows.append(tuple(alike._replace(column=named)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def base_name(path: str) -> str:
    """Returns the last part of a path or URL."""
    return path.rstrip("/").rpartition("/")[2]


def feature_became(column: FeatureColumn, num_unknown: int) -> str:
    """Describes what a feature column became. `num_unknown`: number of fields whose category was not learnt."""
    if column.kind == "number":
        return "number" + (f", a hole is {column.mean:.6g} and 1 in a feature of its own" if column.has_nulls else "")
    kinds = {
        "list": f"{column.width} numbers",
        "hashed": f"categories, hashed to {column.width}",
        "embedded": f"{len(column.values)} categories, each a trainable row",
    }
    unknown = f", {num_unknown} fields of others" if num_unknown else ""
    return kinds.get(column.kind, f"{column.width} categories") + unknown


def label_became(labels: np.ndarray, names: Sequence[str]) -> tuple[str, str]:
    """Returns the number of missing labels, and a description of the labels."""
    if labels.dtype.kind == "f":
        known = labels[~np.isnan(labels)]
        numbers = f"real numbers, {known.min():.6g} to {known.max():.6g}" if len(known) else "real numbers"
        return str(len(labels) - len(known)), numbers
    known = labels[labels >= 0]
    classes = (
        f"{len(names)} classes: {', '.join(names)[:60]}"
        if names
        else f"classes 0 to {known.max() if len(known) else 0}"
    )
    return str(len(labels) - len(known)), "yes or no" if labels.dtype == np.int8 else classes


def split_became(codes: np.ndarray) -> tuple[str, str]:
    """Returns, for one split set, the number of nodes in no part, and a text with the sizes of the parts."""
    counts = np.bincount(codes, minlength=len(SPLIT_NAMES))
    return str(counts[0]), ", ".join(f"{name} {counts[code]}" for name, code in SPLITS.items())
