"""Keeps a graph's partitions open in a Ray cluster, for all jobs that use the graph: `python jobs/serve_graph.py <url> --ray.address auto`.

    python jobs/serve_graph.py s3://bucket/products --ray.address auto            # stays until no job has used it for an hour
    python jobs/serve_graph.py s3://bucket/products --ray.address auto --idle_s 86400
    python jobs/serve_graph.py s3://bucket/products --ray.address auto --end      # ends it now

Without a service each job opens the graph for itself, and two jobs read it from its store twice. Jobs on the same cluster find the service by the graph's digest
and get the same batches as without it; `--servers.service never` avoids it. The service is read-only. You should see the number of partitions, their hosts, and
the jobs that use them; the command then ends, and the service stays. If there is no cluster, the command prints one line and exits with 1.
"""

from dataclasses import dataclass, field

from graphmill.cluster.options import ServerOptions, SessionOptions
from graphmill.core.errors import ConfigError
from graphmill.core.option_checks import Positive, check_fields, check_options
from graphmill.core.summaries import counted
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse


@dataclass(frozen=True)
class ServeGraphConfig:
    """Keep a graph's partitions open in a Ray cluster."""

    url: str
    """The graph: a path that all hosts see, or an fsspec URL."""
    snapshot: int | None = None
    """Number of the snapshot to serve. None: the newest."""
    idle_s: Positive = 3600.0
    """End the service when no job has used it for this many seconds."""
    end: bool = False
    """End the graph's service now, also if jobs use it. These jobs then start their own partition servers."""
    servers: ServerOptions = field(default_factory=ServerOptions)
    ray: SessionOptions = field(default_factory=SessionOptions)

    def __post_init__(self) -> None:
        check_fields(self)
        check_options(
            self.servers, {"service": (self.servers.service == "auto", "auto, since this command starts a service")}
        )


def main() -> None:
    config = parse(ServeGraphConfig, __doc__, ("url",))
    from graphmill.cluster.ray.session import joins_a_cluster, ray_session
    from graphmill.storage.graph import PLAIN_OR_TYPED, open_graph

    if not joins_a_cluster(config.ray):
        raise ConfigError(
            "address: expected a running Ray cluster, since the service outlives this command, got none; set --ray.address or RAY_ADDRESS"
        )
    graph = open_graph(config.url, config.snapshot, kind=PLAIN_OR_TYPED)
    with ray_session(config.ray):
        from graphmill.cluster.serving.graph_service import end_service, start_service

        if config.end:
            print(f"{config.url}: {'the graph service is ended' if end_service(graph) else 'no graph service runs'}")
            return
        state, where = start_service(graph, config.servers, config.idle_s)
    partitions = counted(state.num_partitions, "partition")
    print(
        f"{graph.manifest.name} at {state.url}: {where or f'{partitions} on one host'}; {counted(state.jobs, 'job')} now, ends after "
        f"{state.idle_s:g} s without a job; end it: graphmill serve-graph {config.url} --end"
    )


if __name__ == "__main__":
    run(main)
