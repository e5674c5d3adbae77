"""Code that both sampling benchmarks share: checks of options, and runs of peers (DGL, PyG), each in an interpreter that has the peer installed."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from graphmill.core.errors import ConfigError
from graphmill.jobs.bench.peers import Rates, Row

_TIMEOUT_S = 1800.0


class PeerOptions(Protocol):
    """Options of a benchmark that the peers use too."""

    @property
    def fanouts(self) -> tuple[int, ...]: ...
    @property
    def threads(self) -> tuple[int, ...]: ...
    @property
    def batches(self) -> int: ...
    @property
    def warmup(self) -> int: ...
    @property
    def rounds(self) -> int: ...
    @property
    def dgl_python(self) -> str | None: ...
    @property
    def pyg_python(self) -> str | None: ...


def check_peer_options(config: PeerOptions) -> None:
    """Raises ConfigError for fan-outs that draw nothing, or if an interpreter does not exist."""
    if not config.fanouts or not all(fanout > 0 or fanout == -1 for fanout in config.fanouts):
        raise ConfigError(f"fanouts: expected at least 1 per hop, or -1 for all, got {config.fanouts}; set --fanouts")
    for python in (config.dgl_python, config.pyg_python):
        if python is not None and shutil.which(python) is None:
            raise ConfigError(f"{python}: expected an interpreter, found none; set --dgl-python or --pyg-python")


def peer_rows(config: PeerOptions, size: str, write_inputs: Callable[[], Mapping[str, Any]]) -> Iterator[Row]:
    """Rows of DGL and PyG for the table. A peer without an interpreter gets a row without a value.

    `write_inputs` writes the graph and the roots to files and returns the job for `jobs/bench/peers.py`. Raises ConfigError with the peer's last line
    of output if the peer fails, or if it takes too long. The message then names `size`, the option to lower.
    """
    for peer, what, python in (
        ("dgl", "DGL 1.1.3 NeighborSampler", config.dgl_python),
        ("pyg", "PyG NeighborLoader", config.pyg_python),
    ):
        if python is None:
            yield Row(what, None, "", f"not measured; pass --{peer}-python")
            continue
        effort = {name: getattr(config, name) for name in ("fanouts", "threads", "batches", "warmup", "rounds")}
        try:
            done = subprocess.run(
                [python, str(Path(__file__).with_name("peers.py")), peer, json.dumps({**write_inputs(), **effort})],
                env={**os.environ, "DGL_BACKEND": "pytorch"},
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            raise ConfigError(
                f"{what}: not done within {_TIMEOUT_S:g} s; lower {size} or leave this peer out"
            ) from None
        if done.returncode:
            raise ConfigError(f"{what} with {python} failed: {' '.join(done.stderr.strip().splitlines()[-1:])}")
        for name, value, unit, note in json.loads(done.stdout.splitlines()[-1]):
            yield Row(name, Rates(*value) if isinstance(value, list) else value, unit, note)
