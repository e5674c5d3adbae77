"""Runs `dgl_peer.py` and `pyg_peer.py` on the benchmark's graph and batches, each in an interpreter that has the peer."""

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from jobs.bench.sampling_measures import Effort
from storage.errors import ConfigError
from storage.graph import StoredGraph

_TIMEOUT_S = 1800.0


def write_csc(folder: Path, graph: StoredGraph, roots: Iterable[np.ndarray]) -> None:
    """indptr.npy, indices.npy and roots.npy, all int64, as the peers want them; the graph's only if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    batches = list(roots)
    smallest = min(len(some) for some in batches)
    np.save(folder / "roots.npy", np.stack([some[:smallest] for some in batches]))
    if not (folder / "indices.npy").exists():
        partition = next(iter(graph.partitions()))
        np.save(folder / "indptr.npy", partition.indptr)
        np.save(folder / "indices.npy", partition.indices.astype(np.int64))


def run_peer(
    script: str, python: str, folder: Path, fanouts: tuple[int, ...], threads: tuple[int, ...], effort: Effort
) -> Mapping[str, Any]:
    """What the peer's script prints. Raises ConfigError with its last line where it fails."""
    work = {"folder": str(folder), "fanouts": fanouts, "threads": threads, **asdict(effort)}
    try:
        done = subprocess.run(
            [python, str(Path(__file__).with_name(script)), json.dumps(work)],
            env={**os.environ, "DGL_BACKEND": "pytorch"},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except FileNotFoundError:
        raise ConfigError(f"{script}: expected an interpreter, got {python!r}, which is not there") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{script}: not done within {_TIMEOUT_S:g} s; lower --nodes or leave this peer out") from None
    if done.returncode:
        raise ConfigError(f"{script} with {python} failed: {' '.join(done.stderr.strip().splitlines()[-1:])}")
    return json.loads(done.stdout.splitlines()[-1])
