"""Imports a module of the ogb package, and prevents ogb's request to the package index."""

import importlib
import sys
from types import ModuleType


def import_ogb(module: str) -> ModuleType:
    """Imports and returns the module. Raises ImportError if ogb is not installed.

    When ogb is imported, it checks in a thread whether there is a newer version. Behind a firewall that drops packets, the interpreter waits for this thread at
    exit. ogb makes no check if the package `outdated` cannot be imported.
    """
    silenced = {} if "outdated" in sys.modules else {"outdated": None}
    sys.modules.update(silenced)  # type: ignore[arg-type]
    try:
        return importlib.import_module(module)
    finally:
        for name in silenced:
            del sys.modules[name]
