"""The requests for which a server compiles loops at its start are those that the run's samplers send."""

from pathlib import Path
from typing import Any

import pytest

from graphmill.samplers.access.owners import Owner
from graphmill.samplers.access.typed_router import whole_router
from graphmill.samplers.access.warm_up import asked_by
from graphmill.samplers.methods.registry import SAMPLERS, build_sampler, load
from graphmill.samplers.vocabulary.options import FullGraphOptions, LinkOptions, NeighborOptions
from graphmill.storage.graph import StoredGraph, TypedGraph, open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.synthetic.mag_like import SyntheticMagOptions, synthetic_mag
from tests.listed_graph import random_listed_graph

ALWAYS = {
    "FetchRows",
    "FindNodes",
    "ListChunk",
    "ListGroups",
    "ListSplit",
}  # rows, and lists that need no compiled loop


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Any]:
    folder = tmp_path_factory.mktemp("graphs")
    sources = {
        False: random_listed_graph(60, 400),
        True: synthetic_mag(SyntheticMagOptions(scale=0.0005, num_classes=8)),
    }
    for is_typed, source in sources.items():
        ingest(source, str(folder / str(is_typed)), IngestOptions(num_partitions=2, out_edges=not is_typed))
    return {each: open_graph(str(Path(folder, str(each))), kind=(StoredGraph, TypedGraph)) for each in sources}


class Heard:
    """An owner that notes the requests' names."""

    def __init__(self, owner: Owner, names: set[str]) -> None:
        self._owner, self._names = owner, names

    def submit(self, request: Any) -> Any:
        self._names.add(type(request).__name__)
        return self._owner.submit(request)


@pytest.mark.parametrize("sampler", [*SAMPLERS, "full-graph"])
def test_a_sampler_sends_the_requests_that_are_compiled_for_it(graphs: dict[bool, Any], sampler: str) -> None:
    options = FullGraphOptions() if sampler == "full-graph" else load(SAMPLERS[sampler][0])()
    names: set[str] = set()
    router = whole_router(graphs[sampler.startswith("typed-")], watch=lambda owner, _: Heard(owner, names))
    build_sampler(options, router, 1).sample(0, 0)
    asked = asked_by([options])
    assert asked is not None
    assert names - ALWAYS <= set(asked)


def test_other_samplers_may_send_any_request() -> None:
    assert asked_by([NeighborOptions(), LinkOptions(around=NeighborOptions())]) == ("FetchRows", "SampleNeighbors")
    assert asked_by([NeighborOptions(), object()]) is None
