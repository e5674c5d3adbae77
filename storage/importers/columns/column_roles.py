"""Lists the usual column names of each role, and the fields that count as empty. All readers of tables use these lists."""

import contextlib
import re
from collections.abc import Collection, Sequence
from datetime import datetime

from graphmill.core.errors import DataError
from graphmill.storage.format.source import SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID

# Texts that programs write for a missing value.
NULLS = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "#N/A", "<NA>", "None")
# Texts of true and false in a mask, in lower case.
TRUTH = {"true": True, "false": False, "1": True, "0": False} | {null.lower(): False for null in NULLS}

# In lower case. The last four are names that pandas and Arrow give to an index.
ID_NAMES = (
    "id",
    "ids",
    "node",
    "node_id",
    "nodeid",
    "nid",
    "vertex",
    "vertex_id",
    "index",
    "unnamed: 0",
    "__index_level_0__",
    "",
)
LABEL_NAMES = ("label", "labels", "class", "y", "target")
SPLIT_COLUMNS = ("split", "splits")
# Pairs of column names for an edge's source and destination.
END_NAMES = (
    ("src", "dst"),
    ("source", "target"),
    ("source", "destination"),
    ("src_id", "dst_id"),
    ("source_id", "target_id"),
    ("source_id", "destination_id"),
    ("from", "to"),
    ("from_id", "to_id"),
    ("head", "tail"),
    ("u", "v"),
)
TIME_NAMES = ("time", "times", "timestamp")

_MASK = re.compile(r"(train|val|valid|validation|test)(?:_mask)?(?:_?([0-9]+))?", re.IGNORECASE)
_LIKE_IDS = re.compile(r"(?i:.*[ _.-](id|key|uuid|guid)|uuid|guid|key)|.*[a-z]I[dD]")
# Column names that pandas and Arrow write for an index without a name.
_INDEX = re.compile(r"|unnamed: [0-9]+|__index_level_[0-9]+__", re.IGNORECASE)
NO_ID = "none"
_PARTS = {"train": SPLIT_TRAIN, "test": SPLIT_TEST}


def is_number(field: str) -> bool:
    """Whether a field's text is a number. NaN and infinity are numbers."""
    try:
        float(field)
    except ValueError:
        return False
    return "_" not in field


_OTHERWISE = re.compile(
    r"[-+]?[$€£]? ?[0-9]{1,3}(([., '][0-9]{3})+([.,][0-9]+)?|[.,][0-9]+)? ?[%€]?|[-+]?[$€£] ?[0-9.,]+|[-+]?[0-9.,]+ ?[%€]|[-+]?[0-9]+,[0-9]+"
)


def is_otherwise_written(field: str) -> bool:
    """Whether a field's text is a date, or a number in a form that Python does not parse (`1,234`, `12 %`, `1,25`)."""
    if _OTHERWISE.fullmatch(field):
        return True
    with contextlib.suppress(ValueError):
        return datetime.fromisoformat(field) is not None
    return False


def mask_of(name: str) -> tuple[int, str] | None:
    """Returns the SPLIT_* code and the split set that a mask's column name stands for: `val_mask_0` is the validation part of set `0`. None for other names."""
    match = _MASK.fullmatch(name.strip())
    return (_PARTS.get(match[1].lower(), SPLIT_VALID), match[2] or "") if match else None


def is_mask_name(name: str) -> bool:
    """Whether a column with this name is a mask, which says for each row whether it is in a part of a split."""
    return name.strip().lower().endswith("_mask") or mask_of(name) is not None


def key_place(names: Sequence[str], asked: str | None, where: object) -> int | None:
    """Returns the index of the id column: the column `asked`, else the column with a usual name for ids, else the only name that looks like ids (`user_id`).

    Returns None if there is no such column, or if `asked` is "none". Raises DataError if there are two.
    """
    if asked == NO_ID and NO_ID not in names:
        return None
    places = [
        place for place, name in enumerate(names) if (name == asked if asked else name.strip().lower() in ID_NAMES)
    ]
    if len(places) > 1 and not asked:  # prefers a named column to an index without a name
        places = [place for place in places if not _INDEX.fullmatch(names[place].strip())] or places
    if not places and not asked and len(names) > 1:
        places = [place for place, name in enumerate(names) if _LIKE_IDS.fullmatch(name.strip())]
    if len(places) > 1 or (asked and not places):
        raise DataError(
            f"{where}: expected one column of ids{f' {asked!r}' if asked else ''}, found {listed(names)}; name it with --edge-list.id-column"
        )
    return places[0] if places else None


def value_place(names: Sequence[str], known: Collection[str], key: int | None, where: object) -> int:
    """Returns the index of the column whose name is in `known`, or else of the only column besides the ids. Raises DataError if there is no such column."""
    others = [place for place in range(len(names)) if place != key]
    named = [place for place in others if names[place].strip().lower() in known]
    chosen = named if len(named) == 1 else others
    if len(chosen) != 1:
        but_ids = "" if key is None else f" beside the ids in {names[key]!r}"
        raise DataError(
            f"{where}: expected a column '{next(iter(known))}' or one column{but_ids}, found {listed(names)}"
        )
    return chosen[0]


def is_index(name: str) -> bool:
    """Whether pandas or Arrow gives this name to an index that has no name."""
    return _INDEX.fullmatch(name.strip()) is not None


def role_of(name: str, names: Sequence[str]) -> str | None:
    """Returns the role of a column with this name: labels, splits or node_times; None for other names. `names`: the names of all columns, because `valid` or
    `test` is a mask only if another column is the mask of training."""
    small = name.strip().lower()
    is_mask = mask_of(name) is not None
    trains = any((part := mask_of(each)) is not None and part[0] == SPLIT_TRAIN for each in names)
    if is_mask and "mask" not in small and not trains:
        return None
    roles = {"labels": LABEL_NAMES, "splits": SPLIT_COLUMNS, "node_times": TIME_NAMES}
    named = next((role for role, names in roles.items() if small in names), None)
    return named or ("splits" if is_mask or is_mask_name(name) else None)


def listed(names: Sequence[str]) -> str:
    """Joins names for a message."""
    return ", ".join(names)[:200] or "none"
