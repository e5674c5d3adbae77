"""Readers of other formats, one a file, and `ingest`, which finds the reader of a Python object by its type. Imports: see each room."""

from graphmill.storage.importers.python_objects import ingest as ingest
from graphmill.storage.importers.python_objects import is_set as is_set
