"""Computes an encoding of a stored graph once and publishes a snapshot with it: `python jobs/encode.py <url> laplacian`.

    python jobs/encode.py runs/photo laplacian --dim 32                    # 32 smallest eigenvectors, about a second
    python jobs/encode.py runs/photo laplacian --dim 32 --which both_ends  # 16 from each end
    python jobs/encode.py s3://bucket/graphs/photo rwse --dim 20           # return probabilities of 20 steps, about a minute

A typed graph is encoded as one graph with the nodes of all types and the edges of all relations.

You should see a progress bar, then the name of the encoding, such as `laplacian-32-smallest`. Samplers find the encoding by this name:
`NeighborOptions(encodings=("laplacian-32-smallest",))` puts its rows on every batch. An encoding that is already stored is not computed again. If the encoding
cannot be computed, the command prints one line and exits with 1.
"""

import time
from dataclasses import dataclass, field
from typing import Literal

from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.cli.progress import progress, results
from graphmill.jobs.config.reader import parse
from graphmill.storage.format.encoding_names import EncodingOptions


@dataclass(frozen=True, kw_only=True)
class EncodeConfig(EncodingOptions):
    """Compute and store a positional encoding of a stored graph."""

    url: str
    """A graph's directory: a path or an fsspec URL."""
    kind: Literal["laplacian", "rwse"] = field()  # required
    """Encoding: laplacian (eigenvectors of the normalised Laplacian) or rwse (return probabilities of random walks, for up to about 100,000 nodes)."""
    overwrite: bool = False
    """Compute a stored encoding again and publish it. Old snapshots are kept."""


def main() -> None:
    config = parse(EncodeConfig, __doc__, ("url", "kind"))
    from graphmill.core.errors import ConfigError
    from graphmill.storage.encoding.encode import encode
    from graphmill.storage.graph import PLAIN_OR_TYPED, open_graph

    if config.kind == "rwse" and config.which != "smallest":
        raise ConfigError(
            f"which: expected nothing for rwse, which has no eigenvectors, got {config.which}; leave out --which"
        )
    options = EncodingOptions(config.kind, config.dim, config.which)
    graph = open_graph(config.url, kind=PLAIN_OR_TYPED)
    started = time.perf_counter()
    with progress(f"encoding {graph.manifest.name}") as bar:
        encoded, computed = encode(graph, options, bar.stage, overwrite=config.overwrite)
    num_bytes = sum(entry.num_bytes for entry in encoded.manifest.encodings[options.name].files.values())
    did = f"computed in {time.perf_counter() - started:.1f} s" if computed else "found, nothing to compute"
    if any(row.has_edge_weight for row in graph.manifest.edge_types.values()):
        did += ", without the weights of edges"
    with results():
        print(
            f"{options.name}: {did}; {num_bytes / 2**20:,.1f} MiB in snapshot {encoded.manifest.snapshot} of {config.url}"
        )


if __name__ == "__main__":
    run(main)
