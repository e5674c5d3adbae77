"""Loads public names at their first use, and finds the names that are most similar to a wrong name."""

import difflib
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any


def load_public(package: str, paths: Mapping[str, str], name: str, others: Iterable[str] = ()) -> Any:
    """Returns the object called `name` in a package. `paths`: `module:attribute` by name. For an unknown name raises AttributeError with similar names."""
    if name not in paths:
        message = f"module {package!r} has no attribute {name!r}"
        known = {each.lower(): each for each in [*paths, *others]}
        near = [] if name.startswith("_") else difflib.get_close_matches(name.lower(), known, 3)
        raise AttributeError(f"{message}; perhaps {' or '.join(known[each] for each in near)}" if near else message)
    module, _, attribute = paths[name].partition(":")
    return getattr(import_module(module), attribute)


def nearest(name: str, known: Mapping[str, str]) -> list[str]:
    """Returns at most three flags, the most similar first. A flag's last part counts most, then its group. Among equally similar flags, flags without an owner
    come first: they are valid for this command.
    """
    group, _, leaf = name.rpartition(".")
    ranks: dict[str, float] = {}
    for flag, owner in known.items():
        its_group, _, its_leaf = flag.rpartition(".")
        if (alike := _alike(leaf, its_leaf)) >= 0.75:
            ranks[flag] = alike + 0.1 * difflib.SequenceMatcher(None, group, its_group).ratio() + 0.05 * (not owner)
    best = sorted(ranks, key=lambda flag: -ranks[flag])
    return [flag for flag in best if ranks[flag] > ranks[best[0]] - 0.1][:3]


def _alike(leaf: str, other: str) -> float:
    """Returns a similarity from 0 to 1: by common words (`layers` and `num_layers`), initials, first letters, or all letters."""
    if leaf == other:
        return 1.0
    words, others = ({word.removesuffix("s") for word in one.split("_")} for one in (leaf, other))
    if words <= others or others <= words:
        return 0.8 + 0.15 * len(words & others) / len(words | others)
    if leaf == "".join(word[:1] for word in other.split("_")):
        return 0.9
    if len(leaf) > 2 < len(other) and (leaf.startswith(other) or other.startswith(leaf)):
        return 0.8
    return difflib.SequenceMatcher(None, leaf, other).ratio()
