"""Names by which a column is known, and the fields that say nothing is there: one list of each for all readers of tables."""

import re
from collections.abc import Sequence

from graphmill.storage.format.source import SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID

# What programs write for an empty field.
NULLS = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "#N/A", "<NA>", "None")
# Fields of a mask, in small letters.
TRUTH = {"true": True, "false": False, "1": True, "0": False} | {null.lower(): False for null in NULLS}

_MASK = re.compile(r"(train|val|valid|validation|test)(?:_mask)?(?:_?([0-9]+))?", re.IGNORECASE)
_PARTS = {"train": SPLIT_TRAIN, "test": SPLIT_TEST}


def mask_of(name: str) -> tuple[int, str] | None:
    """The part of a split, as SPLIT_*, and the set (`0` of `val_mask_0`, else empty) that a mask of this name is; None for another name."""
    match = _MASK.fullmatch(name.strip())
    return (_PARTS.get(match[1].lower(), SPLIT_VALID), match[2] or "") if match else None


def is_mask_name(name: str) -> bool:
    """Whether a column of this name holds truth values of a split."""
    return name.strip().lower().endswith("_mask") or mask_of(name) is not None


def listed(names: Sequence[str]) -> str:
    """Names, for people."""
    return ", ".join(names)[:200] or "none"
