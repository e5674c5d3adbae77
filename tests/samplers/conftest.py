from collections.abc import Callable
from pathlib import Path

import pytest

from graphmill.samplers.access.router import Router, local_router
from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from tests.listed_graph import ListedGraph


@pytest.fixture
def route(tmp_path: Path) -> Callable[..., Router]:
    """A function that ingests a graph, opens it in this process, and returns its router."""
    count = 0

    def build(graph: ListedGraph, **options) -> Router:
        nonlocal count
        count += 1
        url = str(tmp_path / str(count))
        ingest(graph, url, IngestOptions(**options))
        return local_router(open_graph(url))

    return build
