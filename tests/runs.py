"""Configurations of runs for tests. They are made from the words of a command line and resolved for a graph or a set of graphs."""

import json
from pathlib import Path
from typing import Any

from graphmill.jobs.config.config import RunConfig, config_tree, read_config
from graphmill.jobs.config.reader import read_words
from graphmill.jobs.resolve.resolve import Facts, ResolvedRun, resolve
from graphmill.jobs.subjects.subject import subject_class
from graphmill.jobs.tasks.graph_task import set_inputs


def config_of(*words: object, kind: str = "nodes") -> RunConfig:
    """The configuration that `jobs/train_nodes.py WORDS` (or train_graphs.py) would use."""
    return read_config(config_tree(kind, read_words(map(str, words))[1]))


def node_run(graph: Any, *words: object) -> ResolvedRun:
    """The resolved run for these words and this graph. Nothing is known about the cluster."""
    config = config_of(*words)
    subject: Any = subject_class(config)
    return subject(graph).resolve(config, None)


def set_run(manifest: Any, out_dim: int, *words: object) -> ResolvedRun:
    """The resolved run for these words and a set of graphs with this manifest."""
    return resolve(config_of(*words, kind="graphs"), Facts(set_inputs(manifest, out_dim), {}, None))


def curve(run: Path, *scores: str) -> list[tuple[float, ...]]:
    """Reads the training loss and the scores of each epoch from the directory of a run. The default scores are for node classification."""
    scores = scores or ("valid_loss", "valid_accuracy")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == list(range(len(lines)))
    return [tuple(line[name] for name in ("train_loss", *scores)) for line in lines]
