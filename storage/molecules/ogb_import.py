"""Imports a module of the ogb package without ogb's request to the package index."""

import importlib
import sys
from types import ModuleType


def import_ogb(module: str) -> ModuleType:
    """The module. Raises ImportError if ogb is not installed.

    When imported, ogb asks for a newer version in a thread. Behind a firewall that drops packets, the interpreter waits for this thread at exit. ogb does not
    ask if `outdated` cannot be imported.
    """
    silenced = {} if "outdated" in sys.modules else {"outdated": None}
    sys.modules.update(silenced)  # type: ignore[arg-type]
    try:
        return importlib.import_module(module)
    finally:
        for name in silenced:
            del sys.modules[name]
