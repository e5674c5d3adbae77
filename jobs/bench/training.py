"""Measures training steps at the published sizes: `graphmill bench training`.

    graphmill bench training --device cuda --bf16          2.4M nodes and TokenGT 12 x 768, on one GPU
    graphmill bench training --nodes 100000 --graphs 16    a quick look, on a CPU

Measures three rows. Each step has a forward pass, a backward pass and an AdamW update:

    geco          a whole graph of the size of ogbn-products (2.4M nodes, 122M directed edges) as one batch, GECO 3 x 128
    primphormer   the same graph in ten random parts, Primphormer 2 x 128 with GCN; an epoch has ten parts (paper, ICML 2025, table: 22.1 s, 13.35 GB)
    tokengt       molecules of the size of PCQM4Mv2, TokenGT 12 x 768 with orthogonal identifiers; the published training has 1M steps of 1,024 molecules

Each node has --degree random neighbours. Features and labels are noise: times and memory are realistic, scores are not. A row that needs more than the
free memory is skipped, and the estimate is shown. Requires torch, numpy and psutil. If the package is not installed, run
`python -m graphmill.jobs.bench.training` in the root of the repository. results.md and results.json go to --out.
"""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from graphmill.core.errors import ConfigError
from graphmill.core.option_checks import Amount, Count, check_fields
from graphmill.jobs.bench.device import peak_bytes, seconds_of, unless_too_large
from graphmill.jobs.bench.results import check_results, keep, machine, table
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse
from graphmill.jobs.resolve.checks import check_device

if TYPE_CHECKING:
    from torch import Tensor, nn

    from graphmill.models.geco.options import GECOConfig
    from graphmill.models.primitives.graphs import Graphs

PUBLISHED_BATCH, PUBLISHED_STEPS = 1024, 1_000_000  # TokenGT on PCQM4Mv2
PAPER_EPOCH_S, PAPER_GB = 22.1, 13.35  # Primphormer on ogbn-products
IN_DIM, OUT_DIM, TRAIN_SHARE = 100, 47, 0.08
RowName = Literal["geco", "primphormer", "tokengt"]


@dataclass(frozen=True)
class TrainingConfig:
    """Time training steps at the published sizes."""

    rows: tuple[RowName, ...] = ("geco", "primphormer", "tokengt")
    """Models to time."""
    nodes: Count = 2_449_029
    """Number of nodes of the graph for geco and primphormer."""
    degree: int = 50
    """Number of neighbours per node; must be even."""
    parts: Count = 10
    """Number of parts of the graph for primphormer."""
    width: Count = 128
    """Width of geco and primphormer."""
    layers: Count = 3
    """Number of layers of geco; primphormer has 2."""
    graphs: Count = 128
    """Number of molecules in a batch."""
    recompute: bool = False
    """geco: keep only the input of each layer for the backward pass."""
    rounds: Count = 3
    """Number of timed steps (primphormer: epochs), after one warm-up step."""
    memory_gb: Amount = 0.0
    """Most memory in GB; 0: all free memory of the device."""
    threads: Count = 1
    """Number of torch threads."""
    device: str = "cpu"
    """PyTorch's name of the device: cpu, cuda or cuda:1."""
    bf16: bool = False
    """Compute under bfloat16 autocast; transforms stay in float32."""
    out: Path = Path("runs/bench-training")
    """Directory of the table."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.degree % 2 or not 0 < self.degree <= self.nodes // 2:
            raise ConfigError(f"degree: expected an even number up to nodes / 2, got {self.degree}; set --degree")


@dataclass(frozen=True)
class Row:
    """Cost of one step or one epoch. Bytes are None if the system does not report them."""

    name: str
    what: str
    seconds: float  # median of the rounds
    fastest_s: float
    peak_bytes: int | None
    note: str


class Work(NamedTuple):
    """A row that is ready to run. `losses()` yields one loss per step of a round."""

    model: "nn.Module"
    losses: "Callable[[], Iterator[Callable[[], Tensor]]]"
    what: str


def needed_bytes(name: str, config: TrainingConfig) -> int:
    """Estimated bytes of a row, from counts of arrays."""
    edges = config.nodes * config.degree
    if name == "geco":
        from graphmill.models.parallel_cost import training_bytes

        return training_bytes(_geco_config(config), config.nodes, edges, 1) + 8 * edges
    if name == "primphormer":
        rows = -(-config.nodes // config.parts)
        return 4 * rows * config.width * 60 + 4 * config.nodes * IN_DIM + 24 * edges
    # Four arrays of 48M numbers: weights, gradients and two moments. Each molecule has about 45 tokens in 12 layers; each layer has about twenty arrays of
    # width 768 and the pairs of 32 heads.
    tokens = 45
    return 4 * (4 * 48_000_000 + config.graphs * 12 * (tokens * 20 * 768 + 4 * 32 * tokens * tokens))


def _geco_config(config: TrainingConfig) -> "GECOConfig":
    from graphmill.models.geco.network import FilterConfig
    from graphmill.models.geco.options import GECOConfig

    return GECOConfig(
        in_dim=IN_DIM,
        out_dim=OUT_DIM,
        width=config.width,
        num_layers=config.layers,
        dropout=0.3,
        recompute=config.recompute,
        filter=FilterConfig(scale="length"),
    )


def _large_graph(config: TrainingConfig) -> Any:
    """(graph, features, labels, generator) for the rows geco and primphormer."""
    import torch

    from graphmill.jobs.bench.speed_subjects import RegularGraph

    generator = torch.Generator(config.device).manual_seed(0)
    x = torch.randn(config.nodes, IN_DIM, device=config.device, generator=generator)
    y = torch.randint(OUT_DIM, (config.nodes,), device=config.device, generator=generator)
    return RegularGraph(config.nodes, config.degree, config.device), x, y, generator


def _geco(config: TrainingConfig) -> Work:
    import torch
    from torch.nn.functional import cross_entropy

    from graphmill.models.geco.network import GECO

    graph, x, y, _ = _large_graph(config)
    root = torch.arange(max(1, int(TRAIN_SHARE * config.nodes)), device=config.device)
    model = GECO(_geco_config(config)).to(config.device)

    def loss() -> "Tensor":
        logits = model(x, graph.adjacency, node_id_N=graph.node_id_N)
        return cross_entropy(logits[root].float(), y[root])

    what = f"GECO {config.layers} x {config.width}, whole graph of {config.nodes:,} nodes, {graph.num_edges:,} edges"
    return Work(model, lambda: iter([loss]), what)


def _primphormer(config: TrainingConfig) -> Work:
    import torch
    from torch.nn.functional import cross_entropy

    from graphmill.jobs.bench.results import recipe_options
    from graphmill.models.options.features import Features
    from graphmill.models.primitives.graphs import Graphs
    from graphmill.models.primphormer.network import Primphormer

    graph, x, y, generator = _large_graph(config)
    node = Features(dim=IN_DIM)
    options = recipe_options("primphormer/products.yaml", node=node, out_dim=OUT_DIM, task="node", width=config.width)
    model = Primphormer(options).to(config.device)
    sources = graph.indices.view(config.nodes, config.degree)

    def part_loss(node: "Tensor", place: "Tensor") -> "Tensor":
        """Loss of the part that consists of the nodes `node`. `place`: position of each node of the graph in the part; -1 for nodes outside the part."""
        source = place[sources[node].long()]  # [n, degree]
        inside = source >= 0
        destination = torch.arange(len(node), device=config.device).unsqueeze(1).expand_as(source)
        graphs = Graphs(
            node_ptr=torch.tensor([0, len(node)], device=config.device),
            edge_index=torch.stack([source[inside], destination[inside]]),
            x=x[node],
            root_index=torch.arange(max(1, int(TRAIN_SHARE * len(node))), device=config.device),
            max_nodes=len(node),
        )
        logits, penalty = model.forward_with_penalty(graphs)
        return cross_entropy(logits.float(), y[node[graphs.root_index]]) + penalty

    def losses() -> "Iterator[Callable[[], Tensor]]":
        shuffled = torch.randperm(config.nodes, device=config.device, generator=generator)
        for node in shuffled.chunk(config.parts):
            place = torch.full((config.nodes,), -1, dtype=torch.int64, device=config.device)
            place[node] = torch.arange(len(node), device=config.device)
            yield lambda node=node, place=place: part_loss(node, place)  # type: ignore[misc]

    what = f"an epoch of {config.parts} random parts, Primphormer 2 x {config.width} with GCN, {config.nodes:,} nodes, {graph.num_edges:,} edges"
    return Work(model, losses, what)


def _tokengt(config: TrainingConfig) -> Work:
    import torch

    from graphmill.jobs.bench.results import recipe_options
    from graphmill.models.options.features import atoms, bonds
    from graphmill.models.tokengt.network import TokenGT

    graphs = molecules(config.graphs).to(config.device)
    target = torch.randn(config.graphs, 1, device=config.device)
    options = recipe_options("tokengt/pcqm4mv2_orf.yaml", node=atoms(), edge=bonds())
    model = TokenGT(options).to(config.device)

    def loss() -> "Tensor":
        return (model(graphs).float() - target).abs().mean()

    what = f"TokenGT 12 x 768, {config.graphs} molecules of {graphs.num_nodes / config.graphs:.1f} atoms"
    return Work(model, lambda: iter([loss]), what)


def molecules(count: int, seed: int = 0) -> "Graphs":
    """Chains of 8 to 20 atoms (14 on average, as in PCQM4Mv2) with one ring each, and random categories."""
    import torch

    from graphmill.models.options.features import atoms, bonds
    from graphmill.models.primitives.graphs import Graphs

    generator = torch.Generator().manual_seed(seed)
    size = torch.randint(8, 21, (count,), generator=generator)
    node_ptr = torch.cat([torch.zeros(1, dtype=torch.int64), size.cumsum(0)])
    ends = []
    for first, atoms_here in zip(node_ptr.tolist(), size.tolist(), strict=False):
        chain = torch.arange(first, first + atoms_here)
        bond = torch.stack([torch.cat([chain[:-1], chain[:1]]), torch.cat([chain[1:], chain[5:6]])])
        ends += [bond, bond.flip(0)]
    edge_index = torch.cat(ends, dim=1)

    def categories(sizes: tuple[int, ...], rows: int) -> "Tensor":
        return torch.stack([torch.randint(high, (rows,), generator=generator) for high in sizes], dim=1)

    return Graphs(
        node_ptr=node_ptr,
        edge_index=edge_index,
        x=categories(atoms().categories, int(node_ptr[-1])),
        edge_attr=categories(bonds().categories, edge_index.shape[1]),
        max_nodes=int(size.max()),
        max_edges=2 * int(size.max()),
    )


# BUILD maps a row to the function that builds the row. LESS maps a row to the options that reduce its memory.
BUILD = {"geco": _geco, "primphormer": _primphormer, "tokengt": _tokengt}
LESS = {
    "geco": "--recompute, or a smaller --nodes or --width",
    "primphormer": "a smaller --nodes, --width, or more --parts",
    "tokengt": "a smaller --graphs",
}


def measure(name: str, config: TrainingConfig) -> Row:
    """Times one row of the table."""
    import torch

    work = BUILD[name](config)
    optimizer = torch.optim.AdamW(work.model.parameters(), lr=1e-4)

    def loss_of(step: "Callable[[], Tensor]") -> "Tensor":
        with torch.autocast(config.device.split(":")[0], torch.bfloat16, enabled=config.bf16):
            return step()

    def one_round() -> None:
        for step in work.losses():
            optimizer.zero_grad(set_to_none=True)
            loss_of(step).backward()
            optimizer.step()

    one_round()  # warm-up: makes the optimizer's moments and fills caches
    optimizer.zero_grad(set_to_none=True)
    first = next(work.losses())
    peak = peak_bytes(lambda: loss_of(first), config.device)
    times = [seconds_of(one_round, config.device) for _ in range(config.rounds)]
    seconds, note = statistics.median(times), ""
    if name == "tokengt":
        rate = config.graphs / seconds
        hours = PUBLISHED_BATCH * PUBLISHED_STEPS / rate / 3600
        note = f"{rate:,.5g} molecules a second; {hours:,.5g} hours for the published steps"
    if name == "primphormer":
        note = f"the paper: {PAPER_EPOCH_S} s, {PAPER_GB} GB"
    return Row(name, work.what, seconds, min(times), peak, note)


def bench(config: TrainingConfig, say: Callable[[str], None]) -> tuple[list[Row], dict[str, str]]:
    """Measures all rows, then writes and prints the table. Returns the rows, and the reasons for skipped rows."""
    import torch

    torch.set_num_threads(config.threads)
    check_device(config.device)
    check_results(config.out)
    rows: list[Row] = []
    skipped: dict[str, str] = {}
    for name in config.rows:
        needed = needed_bytes(name, config)
        row, why = unless_too_large(partial(measure, name, config), needed, config.device, config.memory_gb, LESS[name])
        if row is None:
            skipped[name] = why
        else:
            rows.append(row)
        say(f"{name}: {why}" if row is None else f"{name}: {row.seconds:.3g} s")
    on = f"{machine(config.device)}, {config.threads} threads, {'bf16' if config.bf16 else 'float32'}"
    lines = table(
        {"row": "", "s": ".4g", "fastest": ".4g", "peak GB": ".2f", "beside": ""},
        [(r.what, r.seconds, r.fastest_s, r.peak_bytes and r.peak_bytes / 1e9, r.note) for r in rows],
    )
    text = "\n".join([on, "", *lines, *(f"\n{name} skipped: {why}" for name, why in skipped.items())])
    keep(config.out, config, text, on=on, rows=rows, skipped=skipped)
    say(text)
    return rows, skipped


def main() -> None:
    bench(parse(TrainingConfig, __doc__), lambda line: print(line, flush=True))


if __name__ == "__main__":
    run(main)
