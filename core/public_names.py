"""Names of a package that load when they are first used."""

import difflib
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any


def load_public(package: str, paths: Mapping[str, str], name: str, others: Iterable[str] = ()) -> Any:
    """What is called `name` in a package: `paths` says `module:attribute` for each name. Raises AttributeError for another one, with the nearest."""
    if name not in paths:
        told = f"module {package!r} has no attribute {name!r}"
        known = {one.lower(): one for one in [*paths, *others]}
        near = [] if name.startswith("_") else difflib.get_close_matches(name.lower(), known, 3)
        raise AttributeError(f"{told}; perhaps {' or '.join(known[one] for one in near)}" if near else told)
    module, _, attribute = paths[name].partition(":")
    return getattr(import_module(module), attribute)
