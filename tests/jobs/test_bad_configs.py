"""Tests every job with options or files that cannot work. The job prints one line, its exit status is not 0, and it writes no file.

Rows run in this process, because a new Python process with torch costs seconds. One row of every job also runs as a
user would start it, and must print the same message.
"""

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.config import config_options, config_tree, read_config
from graphmill.jobs.config.reader import options_of
from graphmill.jobs.config.registry import TABLES, options_class
from graphmill.jobs.config.short_help import HelpShown
from tests.stored_files import newest_manifest, stored_file

REPOSITORY = Path(__file__).resolve().parents[2]
# Jobs without rows here, because they have separate tests.
ELSEWHERE = {"sweep"}


class Row(NamedTuple):
    """One command that must be refused. `{name}` in an argument stands for a path of the fixture `things`."""

    job: str
    arguments: str
    says: tuple[str, ...]  # parts of the error line, in any order
    status: int = 1

    @property
    def name(self) -> str:
        return f"{self.job} {self.arguments}".strip()


ROWS = (
    # Options or values that the command line does not know. The parser exits with status 2.
    Row("products_geco", "--fit.epochs many", ("--fit.epochs", "an integer", "'many'"), 2),
    Row("products_geco", "--epoch 3", ("--epoch", "--fit.epochs"), 2),
    Row("products_geco", "--sampler all", ("'all'", "--sampler", "random-partition", "node2subgraph"), 2),
    Row("products_geco", "--sampler neighbor --sampler.fanouts", ("fanouts", "one count")),
    Row("train_nodes", "--model ppgt stray", ("stray",), 2),
    Row("train_graphs", "--model gin", ("'gin'", "primphormer"), 2),
    Row("train_links", "--evaluation sampled --task.ranking all", ("'all'", "--evaluation full")),
    Row("train_links", "--fit.steps 77", ("steps", "77", "--fit.epochs")),
    Row("train_links", "--data {graph}", ("held out", "--links.valid 0.05")),
    Row("train_links", "--sampler.time until --evaluation sampled", ("links", "'until'", "--sampler.time before")),
    Row("train_links", "--sampler.time before", ("'before'", "--evaluation sampled")),
    Row(
        "train_nodes",
        "--data.edge_features --data {graph} --model sage",
        ("features of edges", "has none", "--data.edge_features"),
    ),
    Row("train_nodes", "--data.edge_features --model.local.block lcb", ("sage", "got lcb", "local.block")),
    Row(
        "train_nodes", "--data.edge_features --model sage --sampler.corrected", ("each edge", "--sampler.corrected no")
    ),
    Row("train_nodes", "--embeddings.widht 8", ("--embeddings.widht", "--embeddings.width"), 2),
    Row("train_graphs", "--servers.label_selector role=storage", ("one graph", "many graphs", "label_selector")),
    Row("train_nodes", "--servers.label_selector storage", ("label_selector", "KEY=VALUE", "storage")),
    Row("train_graphs", "--servers.range_reads", ("one graph", "many graphs", "--servers.range_reads")),
    Row("train_graphs", "--embeddings.width 8", ("one graph", "many graphs", "--embeddings.width 8")),
    Row("train_nodes", "--sampler neighbor --sampler.time until", ("'until'", "--evaluation sampled")),
    Row(
        "train_nodes",
        "--sampler neighbor --sampler.time before --evaluation sampled --baseline gcn",
        ("all times", "--sampler.time before", "--baseline"),
    ),
    Row("ingest", "synthetic out --split.by_time 0.9 0.8", ("by_time", "ascending order", "0.9")),
    Row("ingest", "synthetic out --links.by_time 0.8 0.9", ("by_time", "--edge-list.time")),
    Row("ingest", "synthetic out --split.shares 0.8,0.1", ("shares", "add up to 1", "0.8")),
    Row("ingest", "synthetic out --split.by label", ("by", "--split.shares beside it", "label")),
    Row(
        "ingest",
        "e.csv out --split.shares 0.8 0.2 --edge-list.splits s.npy",
        ("split", "or --edge-list.splits", "0.8 0.2"),
    ),
    Row(
        "ingest",
        "smiles:m.csv out --split.shares 0.8 0.2 --table.split_column part",
        ("split", "or the table's own split", "0.8 0.2"),
    ),
    Row("benchmarks.links", "--graph {missing} --seeds 0", ("seeds", "at least 1")),
    Row("ingest", "synthetic out --links.valid 0.7 --links.test 0.3", ("test", "less than 1")),
    Row("ingest", "synthetic", ("missing", "URL"), 2),
    Row("ingest", "synthetic out --partitions four", ("--partitions", "an integer", "'four'"), 2),
    Row("ingest", "embedded", ("missing",), 2),
    Row("encode", "{graph} spectral", ("'spectral'", "laplacian", "rwse"), 2),
    Row("inspect_graph", "", ("missing",), 2),
    Row("predict", "{begun}", ("missing",), 2),
    Row("export_index", "{begun}", ("missing",), 2),
    Row("report", "", ("missing",), 2),
    Row("audit", "", ("missing TARGET",), 2),
    Row("mcp_server", "", ("missing FOLDER",), 2),
    Row("compare", "{begun}", ("missing OTHER",), 2),
    Row("verify", "{missing}", ("missing", "neither")),
    Row("verify", "{begun} --steps few", ("steps", "at least 1", "'few'", "--steps")),
    Row("diff", "{begun}", ("missing OTHER",), 2),
    Row("export_receipt", "{begun}", ("expected a receipt", "found none")),
    Row("runs", "{missing}", ("expected a folder of runs, found none",)),
    Row("completion", "fish", ("one of bash, zsh, tcsh", "'fish'"), 2),
    Row("doctor", "--timeout-s soon", ("--timeout_s", "a number", "'soon'"), 2),
    Row("convert_checkpoint", "--source gin --checkpoint a --out b", ("'gin'", "tokengt"), 2),
    Row("papers.brec", "--model gin", ("'gin'", "primphormer"), 2),
    Row("papers.equivariant_basis", "--rows orff", ("'orff'", "lap+type"), 2),
    Row("plan.cost_model", "--nodes few", ("--nodes", "'few'"), 2),
    Row("benchmarks.ingest", "--partitioners best", ("'best'", "metis"), 2),
    Row("bench.speed", "--width wide", ("--width", "an integer", "'wide'"), 2),
    Row("benchmarks.molecules", "--rounds three", ("--rounds", "an integer", "'three'"), 2),
    Row("benchmarks.parallel", "", ("missing", "--graph"), 2),
    Row("bench.sampling", "--threads some", ("--threads", "'some'"), 2),
    Row("bench.speed", "--log2-to high", ("--log2-to", "'high'"), 2),
    # Options of the fit and the run of training jobs. Each is refused before the job makes its graph.
    Row("products_geco", "--fit.epochs 0", ("epochs", "at least 1", "0", "--fit.epochs")),
    Row("products_geco", "--fit.learning_rate nan", ("learning_rate", "nan", "--fit.learning_rate")),
    Row("products_geco", "--fit.min_learning_rate 1", ("--fit.min_learning_rate",)),
    Row("products_geco", "--fit.ema_decay 1", ("ema_decay", "--fit.ema_decay")),
    Row("products_geco", "--workers 0", ("workers", "at least 1", "--workers")),
    Row("products_geco", "--ray.object_store_gb 0", ("object_store", "0", "--ray.object_store_gb")),
    Row("products_geco", "--ray.dashboard_port 70000", ("dashboard_port", "70000", "--ray.dashboard_port")),
    Row("products_geco", "--loader.timeout_s 0", ("timeout_s", "0", "--loader.timeout_s")),
    Row("products_geco", "--workers 2 --workers.min_workers 3", ("min_workers", "2", "3", "--workers.min_workers")),
    Row("products_geco", "--workers.min_workers 0", ("min_workers", "0", "--workers.min_workers")),
    Row("products_geco", "--ray.address ray://here:1 --data {graph}", ("ray://here:1", "host:port")),
    Row(
        "products_geco", "--run.dir nothing://x/run --data {graph}", ("cannot open this kind of URL", "nothing://x/run")
    ),
    Row("train_nodes", "--run.resume auto --data {graph}", ("expected --run.dir beside --run.resume auto",)),
    Row("products_geco", "--ray.address 127.0.0.1:9 --data {graph}", ("127.0.0.1:9", "ray start")),
    Row("products_geco", "--run.dir {taken}", ("taken", "--run.dir")),
    Row("products_geco", "--run.dir {begun}", ("begun", "--run.resume")),
    Row("products_geco", "--run.dir {file}", ("file.txt", "--run.dir")),
    Row("products_geco", "--run.dir {file}/run", ("file.txt", "--run.dir")),
    Row("products_geco", "--run.resume {missing}", ("missing", "run directory", "--run.resume")),
    Row("products_geco", "--run.resume {taken}", ("taken", "run directory", "--run.resume")),
    Row("products_geco", "--run.resume {garbled}", ("garbled", "config.json")),
    Row("products_geco", "--run.resume {begun}", ("begun", "config.json", "epochs")),
    Row("products_geco", "--run.resume {earlier}", ("earlier", "0.1")),
    # Batches, samplers and models.
    Row("products_geco", "--sampler neighbor --sampler.fanouts 5 5", ("fanouts", "3 layers", "--sampler.fanouts")),
    Row("products_geco", "--sampler neighbor --sampler.fanouts 5 5 0", ("fanouts", "0")),
    Row("products_geco", "--sampler neighbor --sampler.batch_size 0", ("batch_size", "0")),
    Row(
        "products_geco",
        "--sampler neighbor --sampler.batch_dependency 4",
        ("batch_dependency", "scheme 'labor'", "--sampler.scheme"),
    ),
    Row("train_nodes", "--model gat --sampler.corrected", ("corrected", "gat", "--sampler.corrected no")),
    Row("train_nodes", "--sampler.cut partitions --sampler.corrected", ("corrected", "random", "--sampler.cut")),
    Row("products_geco", "--sampler node2subgraph --sampler.max_nodes 0", ("max_nodes", "0")),
    Row("products_geco", "--evaluation sampled", ("evaluation", "'sampled'", "--sampler neighbor")),
    Row("products_geco", "--sampler.num_chunks 0", ("num_chunks", "0", "--sampler.num_chunks")),
    Row("products_geco", "--evaluation.chunks 0", ("chunks", "0", "--evaluation.chunks")),
    Row("products_geco", "--evaluation.select_by estimate", ("select_by", "exact", "set --evaluation.select_by")),
    Row(
        "products_geco",
        "--run.require_baselines --evaluation.chunks 3",
        ("require_baselines", "estimates", "--evaluation.chunks 1", "leave out"),
    ),
    Row(
        "products_geco",
        "--run.require_baselines --evaluation.chunks 3 --evaluation.select_by estimate",
        ("require_baselines", "estimates"),
    ),
    Row("products_geco", "--plan --run.require_baselines --evaluation.chunks 3", ("require_baselines", "estimates")),
    Row("products_geco", "--run.resume {chunked} --run.require_baselines", ("require_baselines", "estimates")),
    Row(
        "products_geco",
        "--sampler.num_chunks 2 --sampler.chunks_per_batch 3",
        ("chunks", "3", "--sampler.chunks_per_batch"),
    ),
    Row("products_geco", "--loader.threads 0", ("threads", "0", "--loader.threads")),
    Row("products_geco", "--run.parallel graph --sampler neighbor", ("--run.parallel graph", "--sampler")),
    Row(
        "products_geco",
        "--run.parallel graph --sampler.num_chunks 2 --fit.micro_batches 2",
        ("leave out --sampler, --fit.micro_batches",),
    ),
    Row(
        "products_geco",
        "--run.parallel graph --model.local gated-gcn",
        ("lcb, gcn, sage, gat", "got gated-gcn", "--model.local.block"),
    ),
    Row(
        "products_geco",
        "--model primphormer --run.parallel graph",
        ("geco, sage, gcn, gat", "got primphormer", "--model"),
    ),
    Row(
        "train_nodes",
        "--model tokengt --model.local gcn --model.local.join serial",
        ("join serial", "--model.local.join"),
    ),
    Row("products_geco", "--plan --fit.epochs 0", ("epochs", "--fit.epochs")),
    Row("products_geco", "--plan --run.dir {taken}", ("taken", "--run.dir")),
    Row("train_nodes", "--model primphormer --model.num_heads 3 --model.width 64", ("heads", "3")),
    Row("train_nodes", "--model tokengt --model.num_heads 5 --model.width 64", ("heads", "5")),
    Row(
        "train_nodes",
        "--model ppgt --sampler neighbor",
        ("set --sampler node2subgraph or ppr, and --evaluation sampled",),
    ),
    Row("train_nodes", "--model ppgt --evaluation full", ("--evaluation sampled",)),
    Row(
        "train_nodes",
        "--model grit --sampler random-partition",
        ("GRIT takes one subgraph per root", "got random-partition"),
    ),
    Row("train_graphs", "huge.yaml", ("huge.yaml", "recipe")),
    Row("pcqm4m_tokengt", "--model.eta 0.1", ("unknown", "--model.eta", "tokengt"), 2),
    Row("pcqm4m_tokengt", "--sampler.max_graphs 0", ("max_graphs", "0", "set --sampler.max_")),
    Row("pcqm4m_tokengt", "--sampler.bucket_ratio 0.5", ("0.5", "0", "--sampler.bucket_ratio")),
    Row("pcqm4m_tokengt", "--sampler.max_nodes -1", ("-1", "--sampler.max_nodes")),
    Row("pcqm4m_tokengt", "--data.molecules 0", ("molecules", "0", "--data.molecules")),
    # Graphs that do not exist, are damaged, or do not fit the command.
    Row("products_geco", "--data {missing}", ("missing", "manifest")),
    Row("products_geco", "--data {torn}", ("torn", "manifest")),
    Row("products_geco", "--data {graph} --data.split_set 3", ("split set", "3", "--data.split_set")),
    Row("products_geco", "--data {graph} --task.metric rocauc", ("rocauc", "classes", "--task.metric")),
    Row("products_geco", "--data {graph} --data.split_set -1", ("-1", "--data.split_set")),
    Row("products_geco", "--data ogbn-nothing", ("ogbn-nothing",)),
    Row("products_geco", "--data ftps://a/b", ("ftps",)),
    Row("products_geco", "--data.nodes 3", ("3", "--data.nodes")),
    Row("products_geco", "--data.partitions 0", ("partitions", "0", "--data.partitions")),
    Row("products_geco", "--data {set}", ("set", "graph")),
    Row("products_geco", "--data {graph} --workers 640", ("expected a CPU per worker (640)",)),
    Row(
        "products_geco",
        "--data {graph} --run.parallel graph --workers.device gpu",
        ("expected 1 GPU, the cluster has 0; set device to cpu",),
    ),
    Row(
        "products_geco",
        "--data {graph} --sampler.cut partitions --sampler.num_chunks 7",
        ("expected the graph's 2 partitions or none, got 7",),
    ),
    Row("pcqm4m_tokengt", "--data {graph}", ("graph", "many")),
    Row("pcqm4m_tokengt", "--data {missing}", ("missing",)),
    Row("pcqm4m_tokengt", "--data {missing}.csv", ("missing.csv",)),
    Row("pcqm4m_tokengt", "--data {set} --task.target nothing", ("nothing", "--task.target")),
    Row("pcqm4m_tokengt", "--data {set} --task binary", ("--task regression",)),
    Row("pcqm4m_tokengt", "--data {set} --task classes", ("--task regression",)),
    Row("pcqm4m_tokengt", "--model.width 100 --model.num_heads 7", ("num_heads", "100", "7")),
    Row("pcqm4m_tokengt", "--data {set} --workers 64", ("64", "--workers")),
    # Jobs that prepare data, inspect data, or predict.
    Row("ingest", "nothing.xyz out", ("nothing.xyz", "synthetic", ".npz", "embedded")),
    Row("ingest", "{missing}.npz out", ("missing.npz",)),
    Row("ingest", "{file}.npz out", ("file.txt.npz",)),
    Row("ingest", "{missing}.csv out", ("missing.csv",)),
    Row("ingest", "triples:{missing} out", ("missing", "train.txt")),
    Row("ingest", "synthetic out --partitioner fennel", ("'fennel'", "metis"), 2),
    Row("ingest", "synthetic out --partitions 0", ("0", "partitions")),
    Row("ingest", "synthetic out --memory-mib 0", ("memory", "--memory-mib")),
    Row("ingest", "synthetic out --synthetic.num-nodes 3", ("num_nodes", "3")),
    Row("ingest", "synthetic {taken}", ("taken", "found other files")),
    Row("ingest", "synthetic memory://graph", ("memory://", "path")),
    Row("ingest", "synthetic nowhere://graph", ("nowhere",)),
    Row("ingest", "synthetic {file}/graph", ("file.txt",)),
    Row("ingest", "ogbn-nothing out", ("ogbn-nothing",)),
    Row("ingest", "smiles:nothing.xyz out", ("nothing.xyz", "no such file")),
    Row("ingest", "embedded out --partitions 2", ("--partitions",), 2),
    Row("ingest", "embedded out --feature-dtype int8", ("--feature-dtype", "one graph", "embedded"), 2),
    Row("ingest", "smiles:{missing}.csv out", ("missing.csv",)),
    Row("ingest", "embedded out --workers 0", ("workers", "0")),
    Row("ingest", "embedded out --count 0", ("0", "--count")),
    Row("ingest", "embedded {taken}", ("taken", "found other files")),
    Row("ingest", "pcqm4mv2 out", ("pcqm4m",)),
    Row("encode", "{missing} laplacian", ("missing",)),
    Row("encode", "{graph} laplacian --dim 0", ("dim", "0")),
    Row("encode", "{graph} rwse --dim 4 --which both_ends", ("both_ends",)),
    Row("inspect_graph", "{missing}", ("missing",)),
    Row("inspect_graph", "{graph} --snapshot 9", ("snapshot 9", "found 1")),
    Row("benchmarks.evaluation", "--graph {graph} --workers 0", ("workers", "at least 1", "0", "--workers")),
    Row("benchmarks.controller", "--epochs 0", ("epochs", "at least 1", "0", "--epochs")),
    Row("benchmarks.typed", "--scale 0", ("scale", "0", "--scale")),
    Row("benchmarks.planned", "--steps 0", ("steps", "at least 1", "0", "--steps")),
    Row("benchmarks.transport", "--rounds 0", ("rounds", "at least 1", "0", "--rounds")),
    Row("benchmarks.weak", "--graph {graph} --workers 0", ("workers", "at least 1", "0", "--workers")),
    Row("benchmarks.tables", "--edges 399", ("edges", "at least 400", "399", "--edges")),
    Row("replay", "{missing}", ("missing", "config.json")),
    Row("replay", "{begun} --epoch -1", ("epoch", "at least 0", "-1", "--epoch")),
    Row("bench.gpu", "--rows speed lunch", ("rows", "lunch", "--rows"), 2),
    Row("bench.gpu", "--wait-steps 0", ("wait_steps", "at least 1", "0", "--wait_steps")),
    Row("serve_graph", "{graph}", ("address", "running Ray cluster", "--ray.address")),
    Row("serve_graph", "{graph} --idle_s 0", ("idle_s", "more than 0", "--idle_s")),
    Row("serve_graph", "{graph} --servers.service never", ("service", "auto", "never")),
    Row("products_geco", "--run.promise 1 2", ("promise", "three numbers", "--run.promise")),
    Row("products_geco", "--run.price_per_hour -1", ("price_per_hour", "at least 0", "--run.price_per_hour")),
    Row("products_geco", "--servers.service sometimes", ("--servers.service", "always"), 2),
    Row("prune", "{missing}", ("missing", "found none")),
    Row("prune", "{torn}", ("torn", "000001.json")),
    Row("prune", "{graph} --keep 0", ("keep", "0", "--keep")),
    Row("prune", "{graph} --older-than soon", ("older_than", "soon", "--older-than")),
    Row("inspect_graph", "{damaged} --verify", ("damaged", "features.arrow")),
    Row("inspect_graph", "{set} --snapshot 9", ("set", "snapshot 9", "found 1")),
    Row("predict", "{missing} out", ("missing", "summary.json")),
    Row("predict", "{begun} out", ("begun", "--run.resume")),
    Row("predict", "{halved} out", ("halved", "summary.json")),
    Row("predict", "{begun} out --workers 0", ("workers", "0", "--workers")),
    Row("predict", "{begun} out --deadline-s 0", ("deadline_s", "0", "--deadline-s")),
    Row("export_index", "{missing} out", ("missing", "found none")),
    Row("export_index", "{begun} out --links 1", ("links", "1", "--links")),
    Row("report", "{missing}", ("missing", "config.json")),
    Row("audit", "{missing}", ("missing", "expected a graph")),
    Row("audit", "{graph} --fail-on lunch", ("fail_on", "links, times", "'lunch'", "--fail-on")),
    Row("audit", "{graph} --snapshot 9", ("snapshot 9", "found 1")),
    Row("audit", "{garbled}", ("garbled", "config.json")),
    Row("mcp_server", "{missing}", ("missing", "expected a folder")),
    Row("mcp_server", "{graph} --allow all", ("allow", "train, predict", "'all'", "--allow")),
    Row("mcp_server", "{graph} --max-cpu-seconds 0", ("max_cpu_seconds", "more than 0", "0")),
    Row("report", "{garbled}", ("garbled", "config.json")),
    Row("doctor", "--health --quick", ("health", "--ray.object_store_gb", "others")),
    Row("doctor", "--timeout-s 0", ("timeout_s", "more than 0", "--timeout_s")),
    Row("doctor", "--ray.object_store_gb 0 --ray no", ("object_store_gb", "0", "--ray.object_store_gb")),
    Row("convert_checkpoint", "--source grit --checkpoint {missing} --out out", ("missing",)),
    Row("convert_checkpoint", "--source grit --checkpoint {file} --out out", ("file.txt",)),
    Row("convert_checkpoint", "--source tokengt --checkpoint {odd}.safetensors --out out", ("odd.pt.safetensors",)),
    Row("convert_checkpoint", "--source grit --checkpoint {odd} --out out", ("odd.pt", "tensors")),
    # Texts that cannot be names of files: too long, or in a wrong form.
    Row("train_nodes", "--model {long}", ("model", "primphormer", "m...m", "--model"), 2),
    Row("train_nodes", "--model {long}:Net", ("mmm:Net", "cannot be imported")),
    Row("train_nodes", "--model ../../x", ("'../../x'", "primphormer", "--model"), 2),
    Row("train_nodes", "--model ..x:Net", ("'..x:Net'", "primphormer", "--model"), 2),
    Row("train_nodes", "--sampler {long}", ("sampler", "m...m", "--sampler"), 2),
    Row("train_nodes", "--task {long}", ("task", "m...m", "--task"), 2),
    Row("train_nodes", "--evaluation.how {longer}", ("'m", "--evaluation.how"), 2),
    Row("train_nodes", "--{longer} 1", ("unknown option", "mmm"), 2),
    Row("train_nodes", "--data.path {longer}", ("--data.path", "4096 characters", "m...m"), 2),
    Row("train_nodes", "--fit.epochs {longer}", ("--fit.epochs", "an integer", "m...m"), 2),
    Row("train_nodes", "--fit.epochs 1e300", ("--fit.epochs", "an integer"), 2),
    Row("train_nodes", "--data {long}", ("mmm", "long")),
    Row("train_nodes", "{long}.yaml", ("mmm", "cannot be read", "long")),
    Row("train_nodes", "--run.dir {long} --data {graph}", ("mmm", "too long")),
    Row("train_nodes", "--run.resume {long}", ("mmm", "too long")),
    Row("ingest", "{long}.csv out", ("mmm", "long")),
    Row("ingest", "synthetic {long}", ("mmm", "long")),
    Row("encode", "{long} rwse", ("mmm", "long")),
    Row("inspect_graph", "{long}", ("mmm", "long")),
    Row("prune", "{long}", ("mmm", "long")),
    Row("predict", "{long} out", ("mmm", "long")),
    Row("export_index", "{long} out", ("mmm", "long")),
    Row("report", "{long}", ("mmm", "long")),
    Row("audit", "{long}", ("mmm", "long")),
    Row("mcp_server", "{long}", ("mmm", "long")),
    Row("replay", "{long}", ("mmm", "long")),
    Row("convert_checkpoint", "--source grit --checkpoint {long} --out out", ("mmm", "long")),
    # Jobs that measure.
    Row("papers.brec", "--data {missing}", ("missing", "--data")),
    Row("papers.brec", "--data {taken} --pairs basic:0-99", ("basic", "0-59", "--pairs")),
    Row("papers.brec", "--data {taken} --batch-size 3", ("batch_size", "3", "--batch-size")),
    Row("papers.brec", "--data {taken} --device tpu", ("tpu", "--device")),
    Row("papers.equivariant_basis", "--steps 0", ("--steps", "0")),
    Row("papers.hop_attention", "--hops 0", ("--hops", "at least 1")),
    Row("papers.norm_autoencoder", "--points 1", ("--points", "1")),
    Row("papers.color_refinement", "--steps 0", ("--steps", "at least 1")),
    Row("papers.attention_distance", "--run {missing} --data {set}", ("missing",)),
    Row("papers.attention_distance", "--run {missing} --data {set} --graphs 0", ("--graphs", "at least 1")),
    Row("papers.brec", "--data {missing} --model grit --attention softmax", ("attention", "primphormer", "--model")),
    Row("reproduce", "GRIT", ("paper", "--list")),
    Row("reproduce", "GRIT T6 --run K=3", ("K=2", "got K=3", "--list")),
    Row("reproduce", "GRIT T6 --runs K=2", ("--runs", "--run"), 2),
    Row("train_graphs", "--sampler.pair_negatives drawn --data {set}", ("pair_negatives", "pairs of nodes")),
    Row("train_nodes", "--model polynormer --model.beta 2", ("beta", "2")),
    Row("train_nodes", "--model primphormer --model.virtual_node", ("virtual node", "local.join")),
    Row(
        "train_nodes",
        "--model primphormer --model.virtual_node --model.local.join top --model.local.block gcn --model.layer.local none",
        ("virtual_node", "several graphs", "no variance"),
    ),
    Row("papers.equivariant_basis", "--device tpu --scale smoke", ("tpu", "--device")),
    Row("plan.cost_model", "--train-ms 0", ("--train-ms",)),
    Row("plan.cost_model", "--points {missing}", ("missing", "sweep.py")),
    Row("benchmarks.ingest", "--nodes 0", ("--nodes", "0")),
    Row("benchmarks.ingest", "--edges 100000000000000 --nodes 100000000", ("mean_degree", "--edges")),
    Row("benchmarks.ingest", "--edges 30000000000 --nodes 1000000000", ("disk", "--edges", "--work")),
    Row("bench.speed", "--heads 7", ("heads", "7")),
    Row("benchmarks.molecules", "--rounds 0", ("rounds", "0")),
    Row("benchmarks.molecules", "--table {missing}.csv", ("missing.csv",)),
    Row("benchmarks.parallel", "--graph {missing}", ("missing",)),
    Row("benchmarks.parallel", "--graph {graph} --workers 0", ("0", "--workers")),
    Row("bench.sampling", "--batches 0", ("batches", "0", "--batches")),
    Row("bench.sampling", "--fanouts 0 --remote no", ("fanouts", "0")),
    Row("bench.sampling", "--dgl-python {missing}/python", ("missing/python", "--dgl-python")),
    Row("bench.sampling", "--out {file}/out", ("file.txt", "--out")),
    Row("predict", "{begun} out --ray.object_store_gb 0", ("object_store_gb", "--ray.object_store_gb")),
    Row("predict", "{begun} out --object_store_gb 1", ("perhaps --ray.object_store_gb",), 2),
    Row("bench.speed", "--degree 3", ("degree", "3", "--degree")),
    Row("bench.speed", "--subjects gin", ("gin", "--subjects"), 2),
    Row("bench.training", "--parts 0", ("parts", "0", "--parts")),
    Row("benchmarks.checks", "--workers 0", ("workers", "0", "--workers")),
    Row("benchmarks.checks", "--ray.object_store_gb 0.01", ("object_store_gb", "0.01", "--ray.object_store_gb")),
    Row("benchmarks.checks", "--epochs 0", ("epochs", "0", "--epochs")),
    Row("bench.training", "--rows grit", ("grit", "--rows"), 2),
)


@pytest.fixture(scope="module")
def things(tmp_path_factory) -> dict[str, Path]:
    """A graph, a set of graphs, and files that only look like graphs or sets. The keys are the names that rows use."""
    from graphmill.storage.ingestion.ingest import IngestOptions, ingest
    from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions

    root = tmp_path_factory.mktemp("things")
    names = ("graph", "set", "torn", "damaged", "taken", "begun", "halved", "garbled", "chunked", "earlier", "missing")
    found = {name: root / name for name in names} | {"file": root / "file.txt", "odd": root / "odd.pt"}
    found |= {"long": Path("m" * 300), "longer": Path("m" * 100_000)}
    ingest(SyntheticGraph(SyntheticOptions(num_nodes=400)), str(found["graph"]), IngestOptions(num_partitions=2))
    for name in ("torn", "damaged"):
        shutil.copytree(found["graph"], found[name])
    manifest = newest_manifest(found["torn"])
    manifest.write_text(manifest.read_text()[:200])
    stored_file(found["damaged"], "part-00000/features.arrow").write_bytes(b"not arrow")
    store_molecules(found["set"])
    for name in ("taken", "begun", "halved", "garbled", "chunked", "earlier"):
        found[name].mkdir()
    (found["taken"] / "note.txt").write_text("someone's")
    begun = {"format": 2, "kind": "nodes", "fit": {"epochs": "many"}}
    (found["begun"] / "config.json").write_text(json.dumps(begun))
    (found["earlier"] / "config.json").write_text(json.dumps({"fit": {"epochs": 3}}))
    (found["chunked"] / "config.json").write_text(
        json.dumps({"format": 2, "kind": "nodes", "evaluation": {"chunks": 3}})
    )
    (found["halved"] / "summary.json").write_text('{"job": "products_geco", "scor')
    (found["garbled"] / "config.json").write_text('{"fit": ')
    found["file"].write_text("no run, no graph")
    (root / "file.txt.npz").write_text("no arrays")
    found["odd"].write_bytes(b"\x80\x04\x95\x13\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94\x8c\x06system\x94\x93\x94.")
    (root / "odd.pt.safetensors").write_bytes(b"\xff" * 40)
    return found


def store_molecules(folder: Path) -> None:
    pytest.importorskip("rdkit")
    from graphmill.cluster.ingestion.molecules import ingest_molecules
    from graphmill.storage.molecules.enumerated_molecules import EnumeratedMolecules

    ingest_molecules(EnumeratedMolecules(80), str(folder))


def listing(*folders: Path) -> dict[str, tuple[int, int]]:
    """(size, modification time) of all files in these folders."""
    paths = [path for folder in folders for path in folder.rglob("*")]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in paths}


def words(row: Row, things: dict[str, Path]) -> list[str]:
    return row.arguments.format_map({name: str(path) for name, path in things.items()}).split()


def module_of(job: str) -> str:
    return job if job.startswith("benchmarks.") else f"graphmill.jobs.{job}"


@pytest.fixture(autouse=True)
def no_ray(monkeypatch) -> None:
    """Fails a command that starts or joins Ray, because a command must check its options earlier."""
    import ray

    def start(*args, **options):
        pytest.fail("Ray was started")

    monkeypatch.setattr(ray, "init", start)
    # A user's job is a separate process. This test process may hold the Ray of other tests, and the job would join it.
    monkeypatch.setattr("graphmill.jobs.machine.this_machine.joins_a_cluster", lambda _: False)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_one_line_and_nothing_written(row: Row, things, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "argv", [str(REPOSITORY / "jobs" / f"{row.job.replace('.', '/')}.py"), *words(row, things)]
    )
    before = listing(things["graph"].parent)
    job = importlib.import_module(module_of(row.job))
    capfd.readouterr()
    with pytest.raises(SystemExit) as end:
        run(job.main)
    said = capfd.readouterr()
    assert said.err.count("\n") == 1, said.err
    assert said.err.startswith("error: "), said.err
    assert len(said.err) < 2200, said.err[:1000]
    assert end.value.code == row.status, said.err
    told = said.err.lower().replace("-", "_")  # `-` and `_` are equal in option names
    missing = [piece for piece in row.says if piece.lower().replace("-", "_") not in told]
    assert not missing, said.err
    assert not listing(tmp_path)
    assert listing(things["graph"].parent) == before
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_every_job_has_a_row():
    """A file is a job if it ends with `run(main)`."""
    files = [path for folder in ("jobs", "benchmarks") for path in (REPOSITORY / folder).rglob("*.py")]
    jobs = {
        ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removeprefix("jobs.")
        for path in files
        if path.stem != "__main__" and "    run(main)\n" in path.read_text()
    }
    assert jobs - {row.job for row in ROWS} <= ELSEWHERE
    assert len(ROWS) >= 150


# Jobs that the gate tests: one job that trains, one that prepares data, and one that `python -m` starts.
IN_THE_GATE = {"products_geco", "ingest", "bench.speed"}


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(job, marks=[] if job in IN_THE_GATE else pytest.mark.long)
        for job in sorted({row.job for row in ROWS})
    ],
)
def test_a_process_says_the_same(job: str, things, tmp_path, monkeypatch, capfd):
    """The last row of every job, as a sample of all rows. The test starts the job as a user would."""
    row = [row for row in ROWS if row.job == job][-1]
    script = str(REPOSITORY / "jobs" / f"{job.replace('.', '/')}.py")
    done = subprocess.run(
        [sys.executable, *(["-m", module_of(job)] if "." in job else [script]), *words(row, things)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)},
    )
    assert done.returncode == row.status, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert not listing(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [script, *words(row, things)])
    capfd.readouterr()
    with pytest.raises(SystemExit):
        run(importlib.import_module(module_of(job)).main)
    assert capfd.readouterr().err == done.stderr


@pytest.mark.parametrize("kind", ["nodes", "graphs"])
def test_every_option_of_training_has_a_sentence(kind: str) -> None:
    classes = [options_class(group, kind, name) for group, table in TABLES.items() for name in table[kind]]
    options = [option for each in classes for option in options_of(each, "")]
    options += config_options(read_config(config_tree(kind)))
    assert len(options) > 100
    assert [option.flag for option in options if not option.text] == []


def test_micro_batches_are_explained_by_the_default_that_is_shown() -> None:
    options = {option.flag: option for option in config_options(read_config(config_tree("nodes")))}
    option = options["fit.micro_batches"]
    assert "none: " in option.text
    assert option.default == "none"


@pytest.mark.parametrize("job", [*sorted({row.job for row in ROWS}), "ingest embedded", "ingest zinc"])
def test_every_option_of_a_job_has_a_sentence(job: str, monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", [*job.split(), "--help", "all"])
    with pytest.raises(HelpShown) as end:
        importlib.import_module(module_of(sys.argv[0])).main()
    assert end.value.options
    assert [option.flag for option in end.value.options if not option.text] == []
