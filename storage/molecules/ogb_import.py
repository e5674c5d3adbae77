"""Imports a module of the ogb package without its question to the package index."""

import importlib
import sys
from types import ModuleType


def import_ogb(module: str) -> ModuleType:
    """The module. Raises ImportError where ogb is not installed.

    On import, ogb asks for a newer version in a thread that the interpreter waits for at exit, for as long as a firewall swallows the
    packets. It does without where `outdated` cannot be imported.
    """
    silenced = {} if "outdated" in sys.modules else {"outdated": None}
    sys.modules.update(silenced)  # type: ignore[arg-type]
    try:
        return importlib.import_module(module)
    finally:
        for name in silenced:
            del sys.modules[name]
