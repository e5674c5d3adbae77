"""Tests that a misspelled option, or an option of another model or sampler, is refused with one line that names the right option."""

import time

import pytest

from graphmill.jobs.config.config import config_tree, read_config
from graphmill.jobs.config.predict_options import PredictConfig
from graphmill.jobs.config.reader import UsageError, parse, read_words
from graphmill.jobs.ingest import IngestConfig

TRIES = [
    # Options that belong to another sampler, model, task or kind of run.
    ("nodes", "--sampler.fanouts 15 10", "it belongs to --sampler neighbor, typed-neighbor"),
    ("nodes", "--sampler neighbor --sampler.num_chunks 4", "it belongs to --sampler random-partition"),
    ("nodes", "--sampler.top_k 8", "it belongs to --sampler ppr, typed-ppr"),
    ("nodes", "--sampler neighbor --sampler.max_hops 2", "it belongs to --sampler node2subgraph"),
    ("nodes", "--sampler ppr --sampler.scheme weight", "it belongs to --sampler neighbor"),
    ("nodes", "--sampler.relation_fanouts a=1", "it belongs to --sampler neighbor, typed-neighbor"),
    ("nodes", "--model.eta 0.1", "it belongs to --model primphormer"),
    ("nodes", "--model grit --model.order 2", "it belongs to --model geco"),
    ("nodes", "--model.rrwp_steps 8", "it belongs to --model grit"),
    ("nodes", "--model sage --model.local.block gcn", "it belongs to --model geco"),
    ("graphs", "--model.walk_steps 8", "it belongs to --model ppgt"),
    ("nodes", "--task.decoder.kind dot", "it belongs to --task links"),
    ("nodes", "--task.huber_delta 1", "it belongs to a run on many graphs"),
    ("nodes", "--sampler.max_graphs 8", "it belongs to a run on many graphs"),
    ("nodes", "--data.molecules 80", "it belongs to a run on many graphs"),
    ("graphs", "--data.partitions 2", "it belongs to a run on the nodes of one graph"),
    ("graphs", "--relational.num_bases 2", "it belongs to a run on the nodes of one graph"),
    # Options with a spelling error.
    ("nodes", "--synthetic.nodes 3", "--data.nodes"),
    ("ingest", "synthetic out --synthetic.nodes 3", "--synthetic.num_nodes"),
    ("ingest", "synthetic out --num-partition 4", "--partitions"),
    ("predict", "run out --topk 3", "--top_k"),
    ("predict", "run out --object_store_gb 1", "--ray.object_store_gb"),
    ("nodes", "--run.roots 3", "--sampler.root_"),
    ("nodes", "--sampler neighbor --sampler.fanout 5", "--sampler.fanouts"),
    ("nodes", "--sampler.fanout 5", "--sampler.fanouts of --sampler neighbor, typed-neighbor"),
    ("nodes", "--model.layers 3", "--model.num_layers"),
    ("nodes", "--model grit --model.heads 4", "--model.num_heads"),
    ("nodes", "--model.hidden_width 64", "--model.width"),
    ("nodes", "--lr 0.1", "--fit.learning_rate"),
    ("graphs", "--epochs 3", "--fit.epochs"),
    ("nodes", "--sampler neighbor --fit.batch_size 64", "--sampler.batch_size"),
    ("nodes", "--seed 1", "--fit.seed"),
    ("nodes", "--num_workers 2", "--workers.num_workers"),
    ("nodes", "--device cpu", "--workers.device"),
    ("nodes", "--modle geco", "--model"),
    ("graphs", "--fit.optimiser adam", "--fit.optimizer"),
    ("nodes", "--evaluation.num_chunks 2", "--evaluation.chunks"),
    ("nodes", "--run.directory x", "--run.dir"),
    ("nodes", "--loader.num_threads 2", "--loader.threads"),
    ("nodes", "--servers.time_out 3", "--servers.timeout_s"),
]


def said(command: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    if command in ("ingest", "predict"):
        kind, positional = {"ingest": (IngestConfig, ("source", "url")), "predict": (PredictConfig, ("run", "out"))}[
            command
        ]
        with pytest.raises(SystemExit):
            parse(kind, positional=positional, words=words)
        return capsys.readouterr().err.removesuffix("\n")
    with pytest.raises(UsageError) as refused:
        read_config(config_tree("nodes" if command == "nodes" else "graphs", read_words(words)[1]))
    return str(refused.value)


def test_the_right_option_is_named(capsys):
    assert len(TRIES) == 40
    lines = {(command, words): said(command, words.split(), capsys) for command, words, _ in TRIES}
    assert not [line for line in lines.values() if "\n" in line or len(line) > 300]
    unnamed = {
        line for command, words, right in TRIES if right not in (line := lines[command, words]).partition(";")[2]
    }
    assert len(unnamed) <= 2, unnamed


def test_nothing_is_named_that_is_far_away(capsys):
    assert said("nodes", ["--model.zzz", "1"], capsys) == "unknown option --model.zzz of --model geco"
    assert said("nodes", ["--what.is.this", "1"], capsys) == "unknown option --what.is.this"


def test_a_very_long_name_is_compared_with_none(capsys):
    began = time.process_time()
    assert said("nodes", [f"--model.{'num_layers' * 100_000}", "1"], capsys).endswith(" of --model geco")
    assert time.process_time() - began < 5
