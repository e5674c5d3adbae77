"""Compares link prediction on held-out edges by Graphmill's GraphSAGE and GECO, and by the same GraphSAGE in a PyG script. Requires torch-geometric.

    python jobs/ingest.py amazon_cs.npz graphs/computers --links.valid 0.05 --links.test 0.1
    python -m benchmarks links --graph graphs/computers

All models train on the same links with the same budget (epochs, links per batch, one uniform negative per link, learning rate). They pass messages
over the whole graph without the batch's own links and their reverses. The PyG script draws its own negatives, shuffles and initial weights.
Validation and test links are ranked against the same random nodes. You should see MRR and ROC-AUC of each seed, and the confidence interval of the
difference to PyG.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from scipy.stats import t as student
from torch import Tensor, nn
from torch.nn import functional

from graphmill.cluster.metrics.class_scores import roc_auc
from graphmill.core.option_checks import Count, Size, check_fields
from graphmill.jobs.bench.results import keep, machine, table
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse
from graphmill.jobs.run.train import config as read_words
from graphmill.jobs.run.train import train
from graphmill.samplers.access.router import local_router
from graphmill.samplers.methods.links import LinkSampler, picked_links
from graphmill.samplers.vocabulary.options import LinkOptions, RandomPartitionOptions
from graphmill.storage.format.source import SPLIT_TEST, SPLIT_VALID
from graphmill.storage.graph import open_graph

_ADAGRAD_RATE = 0.05  # Graphmill's default learning rate of embeddings


@dataclass(frozen=True)
class LinksBench:
    """Compare models of links."""

    graph: str
    """A stored graph with links held out."""
    epochs: Count = 12
    """Passes over the training links."""
    seeds: Count = 5
    """Runs of each model."""
    batch_size: Count = 16_384
    """Links of a batch."""
    width: Count = 64
    """Channels of a node's state."""
    num_layers: Count = 2
    """Layers, of one hop each."""
    learning_rate: float = 0.005
    """Learning rate of all models."""
    embedding: Size = 0
    """Width of the trainable row that each node has in addition to its features. All models have such rows. Adagrad trains them at rate 0.05."""
    filter_width: Count = 64
    """Width of the network that computes GECO's filters."""
    rivals: Count = 100
    """Number of random nodes that a link is ranked against."""
    peer: bool = True
    """Also run the PyG script."""
    models: tuple[Literal["sage", "geco"], ...] = ("sage", "geco")
    """Graphmill's models to run."""
    out: str = "runs/bench-links"
    """Folder of the table."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Row:
    """One run in the table."""

    model: str
    seed: int
    mrr: float
    auc: float
    cpu_s: float


def main() -> None:
    bench = parse(LinksBench, __doc__)
    out, rows = Path(bench.out), []
    for row in measure(bench, out):
        rows.append(row)
        print(
            f"{row.model} seed {row.seed}: MRR {row.mrr:.4f}, ROC-AUC {row.auc:.4f}, CPU {row.cpu_s:.0f} s", flush=True
        )
    lines = summary(rows)
    text = "\n".join([machine(), "", *lines])
    print(text)
    keep(out, bench, text, rows=rows)


def measure(bench: LinksBench, out: Path) -> Iterator[Row]:
    """Runs the seeds one after another."""
    for seed in range(bench.seeds):
        for model in bench.models:
            yield ours(bench, model, seed, out)
        if bench.peer:
            yield pyg(bench, seed)


def ours(bench: LinksBench, model: str, seed: int, out: Path) -> Row:
    """Runs jobs/train_links.py once."""
    own = ["--model.residual", "none", "--model.norm", "layer", "--model.dropout", 0]
    if model == "geco":
        own = ["--model.filter.inner_width", bench.filter_width]
    words = [
        *(
            "--data",
            bench.graph,
            "--model",
            model,
            "--model.width",
            bench.width,
            "--model.num_layers",
            bench.num_layers,
        ),
        *own,
        *("--sampler", "random-partition", "--sampler.num_chunks", 1),
        *("--task.batch_size", bench.batch_size, "--task.decoder.width", bench.width),
        *("--task.ranking", "sampled", "--task.num_rivals", bench.rivals),
        *("--fit.epochs", bench.epochs, "--fit.learning_rate", bench.learning_rate, "--fit.optimizer", "adam"),
        *("--fit.weight_decay", 0, "--fit.schedule", "constant", "--fit.warmup_epochs", 0, "--fit.clip_norm", "none"),
        *("--embeddings.width", bench.embedding, "--embeddings.learning_rate", _ADAGRAD_RATE),
        *("--fit.seed", seed, "--workers", 1, "--workers.launcher", "process"),
        *("--run.dir", out / f"{model}-{seed}-{time.strftime('%Y%m%d-%H%M%S')}"),
    ]
    began = time.process_time()
    finished = train(read_words(*words, recipe="jobs/train_links.yaml"))
    scores = finished.summary["all_scores"]["test"]
    return Row(f"Graphmill {model}", seed, scores["mrr"], scores["auc"], time.process_time() - began)


def pyg(bench: LinksBench, seed: int) -> Row:
    """Runs the PyG script once."""
    from torch_geometric.nn import SAGEConv
    from torch_geometric.utils import to_torch_csr_tensor

    class Encoder(nn.Module):
        def __init__(self, in_dim: int) -> None:
            super().__init__()
            if bench.embedding:
                self.row = nn.Parameter(
                    torch.empty(num_nodes, bench.embedding).uniform_(-1, 1) * (3 / bench.embedding) ** 0.5
                )
            widths = [in_dim, *[bench.width] * bench.num_layers]
            self.layers = nn.ModuleList(SAGEConv(a, b) for a, b in pairwise(widths))
            self.norms = nn.ModuleList(nn.LayerNorm(bench.width) for _ in self.layers)
            self.head = nn.Linear(bench.width, bench.width)
            self.decoder = nn.Sequential(nn.Linear(bench.width, bench.width), nn.ReLU(), nn.Linear(bench.width, 1))

        def forward(self, x: Tensor, adj_t: Tensor) -> Tensor:
            x = torch.cat([x, self.row], dim=1) if bench.embedding else x
            for layer, norm in zip(self.layers, self.norms, strict=True):
                x = norm(layer(x, adj_t)).relu()
            return self.head(x)

        def score(self, z: Tensor, source: Tensor, destination: Tensor) -> Tensor:
            return self.decoder(z[source] * z[destination]).squeeze(-1)

    router = local_router(open_graph(bench.graph))
    link = torch.from_numpy(np.stack(router.link_tables.edges))
    scored = LinkOptions(
        RandomPartitionOptions(num_chunks=1),
        splits=(SPLIT_VALID, SPLIT_TEST),
        batch_size=None,
        num_negatives=bench.rivals,
        exclude_own=False,
        shuffle=False,
    )
    held = {name: torch.from_numpy(v) for name, v in picked_links(router, scored).items() if isinstance(v, np.ndarray)}
    graph = LinkSampler(router, scored).sample(0, 0)  # the sample is the whole graph, so a node's position is its id
    num_nodes = graph.num_nodes
    x = torch.empty(num_nodes, 0) if graph.feature is None else torch.from_numpy(graph.feature)
    row = np.repeat(np.arange(num_nodes), np.diff(graph.indptr))
    edge = torch.from_numpy(np.stack([row, graph.indices.astype(np.int64)]))
    pair, link_pair = (ends.amin(0) * num_nodes + ends.amax(0) for ends in (edge, link))

    def adjacency(own: Tensor) -> Tensor:
        """Returns the adjacency matrix without these links and their reverses. Row i has the sources of node i's in-edges."""
        return to_torch_csr_tensor(edge[:, ~torch.isin(pair, link_pair[own])], size=(num_nodes, num_nodes))

    torch.manual_seed(seed)
    model = Encoder(x.shape[1] + bench.embedding)
    optimizer = torch.optim.Adam([p for name, p in model.named_parameters() if name != "row"], lr=bench.learning_rate)
    of_rows = torch.optim.Adagrad([model.row], lr=_ADAGRAD_RATE) if bench.embedding else None
    best, began = (-1.0, 0.0, 0.0), time.process_time()
    for _ in range(bench.epochs):
        model.train()
        order = torch.randperm(link.shape[1])
        num_batches = -(-len(order) // bench.batch_size)
        for own in order.tensor_split(num_batches):
            z = model(x, adjacency(own))
            source, destination = link[:, own]
            if router.link_tables.symmetric:
                # a random half of the links is reversed, so that a negative can replace either end
                swap = torch.rand(len(own)) < 0.5
                source, destination = torch.where(swap, destination, source), torch.where(swap, source, destination)
            negative = torch.randint(len(x), (len(own),))
            logit = torch.cat([model.score(z, source, end) for end in (destination, negative)])
            truth = torch.cat([torch.ones(len(own)), torch.zeros(len(own))])
            loss = functional.binary_cross_entropy_with_logits(logit, truth)
            model.zero_grad()
            loss.backward()
            optimizer.step()
            if of_rows is not None:
                of_rows.step()
        model.eval()
        with torch.no_grad():
            z = model(x, adjacency(torch.empty(0, dtype=torch.int64)))
            valid, test = (_scores(partial(model.score, z), held, code) for code in (SPLIT_VALID, SPLIT_TEST))
        if valid[0] > best[0]:
            best = (valid[0], *test)
    return Row("PyG sage", seed, best[1], best[2], time.process_time() - began)


def _scores(score_of: Callable[[Tensor, Tensor], Tensor], held: dict[str, Tensor], code: int) -> tuple[float, float]:
    """Returns (MRR, ROC-AUC) of a split's links. A tie counts half. ROC-AUC compares each link with its first negative."""
    own = held["link_split"] == code
    source, destination, negative = (held[name][own] for name in ("link_source", "link_destination", "negative"))
    score = score_of(source, destination)
    rivals = torch.stack([score_of(source, column) for column in negative.T], dim=1)
    rank = 1 + (rivals > score[:, None]).sum(1) + (rivals == score[:, None]).sum(1) / 2
    both = torch.cat([score, rivals[:, 0]])
    truth = torch.cat([torch.ones_like(score), torch.zeros_like(score)]) > 0
    return float((1 / rank).mean()), roc_auc(both, truth)


def summary(rows: list[Row]) -> list[str]:
    """Returns means and deviations over seeds, and the 95 % confidence interval of the mean difference to PyG's runs with the same seeds."""
    lines: list[dict[str, Any]] = []
    for model in dict.fromkeys(row.model for row in rows):
        line: dict[str, Any] = {"model": model, "seeds": sum(row.model == model for row in rows)}
        for name in ("mrr", "auc"):
            values = np.array([getattr(row, name) for row in rows if row.model == model])
            peer = np.array([getattr(row, name) for row in rows if row.model == "PyG sage"])
            line[name] = f"{100 * values.mean():.2f} ± {100 * values.std(ddof=len(values) > 1):.2f}"
            interval = None
            if len(peer) == len(values) > 1 and model != "PyG sage":
                difference = 100 * (values - peer)
                half = student.ppf(0.975, len(values) - 1) * difference.std(ddof=1) / len(values) ** 0.5
                interval = f"{difference.mean() - half:+.2f} to {difference.mean() + half:+.2f}"
            line[f"{name} - PyG's"] = interval
        line["CPU s"] = float(np.mean([row.cpu_s for row in rows if row.model == model]))
        lines.append(line)
    formats = {"model": "", "seeds": "d", "mrr": "", "mrr - PyG's": "", "auc": "", "auc - PyG's": "", "CPU s": ".0f"}
    return table(formats, lines)


if __name__ == "__main__":
    run(main)
