"""Readers of other formats, one reader per file, and `ingest`, which chooses the reader of a Python object by its type. Imports: see each folder."""

from graphmill.storage.importers.python_objects import ingest as ingest
from graphmill.storage.importers.python_objects import is_set as is_set
