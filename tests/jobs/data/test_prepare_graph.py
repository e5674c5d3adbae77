"""Tests graphs that a job prepares when they do not exist yet."""

import pytest

import graphmill.jobs.data.prepare_graph
from graphmill.core.errors import ConfigError
from graphmill.jobs.config.config import NodeDataOptions
from graphmill.storage.ingestion.ingest import ingest


@pytest.mark.parametrize("before", [True, False], ids=["before it began", "while it worked"])
def test_a_graph_that_another_job_prepared_meanwhile_is_used(tmp_path, monkeypatch, before):
    options = NodeDataOptions(nodes=200, folder=str(tmp_path))

    def second(source, url, *arguments):
        if before:
            ingest(source, url, *arguments)
            return ingest(source, url, *arguments)
        edges = source.edges

        def meanwhile(chunk_edges: int):
            monkeypatch.setattr(source, "edges", edges)
            ingest(source, url, *arguments)
            yield from edges(chunk_edges)

        monkeypatch.setattr(source, "edges", meanwhile)
        return ingest(source, url, *arguments)

    monkeypatch.setattr("graphmill.storage.ingestion.ingest.ingest", second)
    graph = graphmill.jobs.data.prepare_graph.prepare_graph(options)
    assert (graph.manifest.num_nodes, graph.manifest.snapshot) == (200, 1)


def test_any_other_error_is_told(tmp_path, monkeypatch):
    def refuse(*_arguments):
        raise ConfigError("no room")

    monkeypatch.setattr("graphmill.storage.ingestion.ingest.ingest", refuse)
    with pytest.raises(ConfigError, match="no room"):
        graphmill.jobs.data.prepare_graph.prepare_graph(NodeDataOptions(nodes=200, folder=str(tmp_path)))
