"""Owners that pretend to be on another machine. They answer in this process and record their requests."""

from graphmill.samplers.access.owners import Owner, Pending
from graphmill.samplers.access.router import Router, local_router
from graphmill.samplers.vocabulary.messages import FetchRows, Request
from graphmill.storage.graph import StoredGraph


class FarOwner:
    """An owner without `place_rows`, so that a router treats it as an owner elsewhere."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self.requests: list[Request] = []

    def submit(self, request: Request) -> Pending:
        self.requests.append(request)
        return self._owner.submit(request)

    @property
    def row_requests(self) -> list[FetchRows]:
        return [request for request in self.requests if isinstance(request, FetchRows)]

    @property
    def rows_asked(self) -> int:
        return sum(len(request.node) for request in self.row_requests)


def far_router(graph: StoredGraph, near: tuple[int, ...] = (0,), **options) -> tuple[Router, list[FarOwner]]:
    """Returns a router that reads only the partitions `near` in this process, and the owners of the other partitions."""
    far: list[FarOwner] = []

    def watch(owner: Owner, index: int) -> Owner:
        if index in near:
            return owner
        far.append(FarOwner(owner))
        return far[-1]

    return local_router(graph, watch=watch, **options), far
