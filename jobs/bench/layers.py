"""Time and memory of one layer of each kind as graphs grow: `python -m jobs.bench layers`.

    python -m jobs.bench layers --scale 0.25 --rounds 3        a look, about a minute
    python -m jobs.bench layers                                about ten minutes on one core
    python -m jobs.bench layers --device cuda --scale 8

One forward and backward pass of a layer of --width channels on one graph, at four sizes an octave apart: GECO, Primphormer's and
Performer's attention (linear), softmax attention, GRIT's and PPGT's attention over all pairs (quadratic). Fitted exponents should be at most
1.15 for the first three and about 2 for the rest; softmax attention takes quadratic time but, without its score matrix, linear
memory. GRIT's and PPGT's are also compared with plain re-implementations in the form of GRIT's released code, which lists all pairs, gathers
and scatters: at least twice as fast, in at most half the memory.

`saved` counts the distinct storages that autograd keeps for the backward pass; `peak` is the growth of the process's resident memory
over the pass (on CUDA, of the allocated memory). Times are medians of --rounds rounds that visit the layers by turns. The table is kept
as results.md and results.json under --out. Nothing else should run meanwhile.
"""

import ctypes
import json
import math
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.run.exit_codes import run
from jobs.run.option_checks import check_device, check_writable
from jobs.run.reader import parse
from storage.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from models.graphs import Graphs

OCTAVES = 3
# Largest number of nodes at scale 1, and what is measured there.
LARGEST = {
    "geco": 65536,
    "primphormer": 65536,
    "performer": 65536,
    "softmax": 8192,
    "grit": 512,
    "grit, plain": 512,
    "ppgt": 512,
    "ppgt, plain": 512,
}
PAIRED = (("grit", "grit, plain"), ("ppgt", "ppgt, plain"))
MOLECULES = 23  # nodes of a ZINC molecule, in batches of 32


@dataclass(frozen=True)
class BenchConfig:
    """Time one layer of each kind."""

    layers: tuple[str, ...] = tuple(LARGEST)
    """Which layers."""
    width: int = 64
    """Channels."""
    heads: int = 8
    """Attention heads."""
    scale: float = 1.0
    """Times the largest sizes."""
    rounds: int = 5
    """Rounds; medians count."""
    threads: int = 1
    """Of the CPU."""
    device: str = "cpu"
    """cpu or cuda."""
    out: Path = Path("runs/bench-layers")
    """Where the table goes."""

    def __post_init__(self) -> None:
        unknown = set(self.layers) - set(LARGEST)
        if unknown or not self.layers:
            raise ConfigError(f"layers: expected some of {', '.join(LARGEST)}, got {', '.join(unknown)}; set --layers")
        if self.width % self.heads or self.rounds < 1 or self.scale <= 0 or self.threads < 1:
            raise ConfigError(
                f"bench: expected heads that divide the width, and positive rounds, scale and threads, got {self.heads} heads, width "
                f"{self.width}, {self.rounds} rounds, scale {self.scale:g}, {self.threads} threads; set --heads, --width, --rounds, "
                "--scale or --threads"
            )

    def sizes(self, layer: str) -> list[int]:
        """Four sizes, an octave apart."""
        largest = max(int(LARGEST[layer] * self.scale), 2 ** (OCTAVES + 2))
        return [largest >> octave for octave in range(OCTAVES, -1, -1)]


@dataclass(frozen=True)
class Measure:
    """One layer at one size: `graphs` graphs of `nodes` nodes."""

    layer: str
    graphs: int
    nodes: int
    seconds: float
    saved_bytes: int
    peak_bytes: int | None


def build_step(layer: str, graphs: int, nodes: int, config: BenchConfig) -> "Callable[[], Tensor]":
    """A function that runs the layer forward on fixed inputs and returns a number to differentiate."""
    import torch

    torch.manual_seed(0)
    batch = ring_graphs(graphs, nodes).to(config.device)
    x = torch.randn(graphs * nodes, config.width, device=config.device, requires_grad=True)
    makers = {
        "geco": _geco,
        "primphormer": _primphormer,
        "performer": _performer,
        "softmax": _softmax,
        "grit": _grit,
        "grit, plain": _grit_plain,
        "ppgt": _ppgt,
        "ppgt, plain": _ppgt_plain,
    }
    return makers[layer](batch, x, config)


def ring_graphs(graphs: int, nodes: int) -> "Graphs":
    """Graphs in which each node has eight neighbours: the next four and the four before."""
    import torch

    from models.graphs import Graphs

    node = torch.arange(nodes)
    offsets = torch.tensor([o for o in range(-4, 5) if o])
    one = torch.stack([node.repeat_interleave(8), (node.unsqueeze(1) + offsets).remainder(nodes).flatten()])
    starts = (torch.arange(graphs) * nodes).repeat_interleave(one.shape[1])
    return Graphs(
        node_ptr=torch.arange(graphs + 1) * nodes,
        edge_index=one.repeat(1, graphs) + starts,
        node_id=torch.arange(graphs * nodes),
        max_nodes=nodes,
    )


def _pairs(batch: "Graphs", x: "Tensor") -> "Tensor":
    import torch

    places = batch.padding.num_places
    return torch.randn(batch.num_graphs, places, places, x.shape[1], device=x.device, requires_grad=True)


def _geco(batch: "Graphs", x: "Tensor", config: BenchConfig) -> "Callable[[], Tensor]":
    import torch

    from models.geco import GECOLayer
    from models.node_order import inverse_order, node_order
    from models.options.geco import GECOConfig
    from models.propagation import Adjacency

    layer = GECOLayer(GECOConfig(in_dim=config.width, out_dim=1, width=config.width)).to(config.device)
    num_nodes = x.shape[0]
    indptr = torch.arange(num_nodes + 1, device=x.device) * 8
    adjacency = Adjacency(indptr, batch.edge_index[1], symmetric=True)
    order = node_order(torch.arange(num_nodes, device=x.device), 0)
    inverse = inverse_order(order)
    return lambda: layer(x, adjacency, order, inverse).sum()


def _primphormer(batch: "Graphs", x: "Tensor", config: BenchConfig) -> "Callable[[], Tensor]":
    from models.options.primphormer import PrimalOptions
    from models.primal_attention import PrimalAttention

    layer = PrimalAttention(config.width, config.heads, PrimalOptions()).to(config.device)

    def step() -> "Tensor":
        out = layer(x, batch)
        return out[0].sum() + out[1]

    return step


def _heads(x: "Tensor", batch: "Graphs", heads: int) -> "Tensor":
    return x.view(batch.num_graphs, -1, heads, x.shape[1] // heads).transpose(1, 2)


def _projections(config: BenchConfig) -> "nn.ModuleList":
    from torch import nn

    return nn.ModuleList(nn.Linear(config.width, config.width) for _ in range(4)).to(config.device)


def _performer(batch: "Graphs", x: "Tensor", config: BenchConfig) -> "Callable[[], Tensor]":
    from models.favor import FavorAttention

    q, k, v, o = _projections(config)
    attend = FavorAttention(config.width // config.heads).to(config.device)

    def step() -> "Tensor":
        y = attend(*(_heads(part(x), batch, config.heads) for part in (q, k, v)))
        return o(y.transpose(1, 2).reshape(x.shape)).sum()

    return step


def _softmax(batch: "Graphs", x: "Tensor", config: BenchConfig) -> "Callable[[], Tensor]":
    from torch.nn import functional

    q, k, v, o = _projections(config)

    def step() -> "Tensor":
        q_BHNd, k_BHNd, v_BHNd = (_heads(part(x), batch, config.heads) for part in (q, k, v))
        y = functional.scaled_dot_product_attention(q_BHNd, k_BHNd, v_BHNd)
        return o(y.transpose(1, 2).reshape(x.shape)).sum()

    return step


def _grit_layer(config: BenchConfig) -> Any:
    from models.grit_attention import ConditionalAttention

    return ConditionalAttention(config.width, config.heads, clamp=5.0, attention_dropout=0.2).to(config.device)


def _grit(batch: "Graphs", x: "Tensor", config: BenchConfig) -> "Callable[[], Tensor]":
    from models.grit_attention import Pairs

    layer, e = _grit_layer(config), _pairs(batch, x)

    def step() -> "Tensor":
        y, pairs = layer(x, Pairs(e), batch.padding)
        # A next layer would read all pairs: so does the loss.
        return y.sum() + (pairs.y_BNND * pairs.scale_D).sum()

    return step


def complete_index(batch: "Graphs") -> "Tensor":
    """int64 [2, P]: key over query, of all pairs of every graph."""
    import torch

    mask = batch.padding.pair_mask_BNN.nonzero()
    start = batch.node_ptr[mask[:, 0]]
    return torch.stack([start + mask[:, 2], start + mask[:, 1]])


def scatter_sum(rows: "Tensor", index: "Tensor", size: int) -> "Tensor":
    """Rows summed by index, through scatter_add with the index broadcast, as torch_scatter does."""
    wide = index.view(-1, *[1] * (rows.dim() - 1)).expand_as(rows)
    return rows.new_zeros(size, *rows.shape[1:]).scatter_add_(0, wide, rows)


def scatter_softmax(score: "Tensor", index: "Tensor", size: int) -> "Tensor":
    """Softmax over the rows of one index."""
    wide = index.view(-1, *[1] * (score.dim() - 1)).expand_as(score)
    most = score.new_full((size, *score.shape[1:]), -math.inf).scatter_reduce(0, wide, score.detach(), "amax")
    out = (score - most[index]).exp()
    return out / (scatter_sum(out, index, size)[index] + 1e-16)


def grit_plain(layer: Any, x: "Tensor", e: "Tensor", index: "Tensor", norm: "nn.Module") -> "tuple[Tensor, Tensor]":
    """GRIT's attention in the form of its released code: rows of pairs, gathered and scattered. e is [P, D]."""
    import torch
    from torch.nn import functional

    heads, size = layer.num_heads, x.shape[0]
    q, k, v = (part(x).view(size, heads, -1) for part in (layer.query, layer.key, layer.value))
    score = k[index[0]] + q[index[1]]
    w, b = layer.edge(e).view(e.shape[0], heads, -1).chunk(2, dim=-1)
    score = score * w
    score = torch.sqrt(torch.relu(score)) - torch.sqrt(torch.relu(-score))
    hat = torch.relu(score + b)
    score = torch.einsum("ehd,dhc->ehc", hat, layer.score)
    if layer.clamp is not None:
        score = score.clamp(-layer.clamp, layer.clamp)
    alpha = functional.dropout(scatter_softmax(score, index[1], size), layer.attention_dropout, layer.training)
    out = scatter_sum(v[index[0]] * alpha, index[1], size)
    row = scatter_sum(hat * alpha, index[1], size)
    out = out + torch.einsum("nhd,dhc->nhc", row, layer.edge_value)
    fresh = functional.dropout(hat.flatten(1), layer.dropout, layer.training)
    return out.flatten(1), norm(layer.edge_out(fresh) + e)


def _grit_plain(batch: "Graphs", x: "Tensor", config: BenchConfig) -> "Callable[[], Tensor]":
    from torch import nn

    layer, norm = _grit_layer(config), nn.BatchNorm1d(config.width).to(config.device)
    e = _pairs(batch, x).detach().flatten(0, 2).requires_grad_()
    index = complete_index(batch)

    def step() -> "Tensor":
        y, pairs = grit_plain(layer, x, e, index, norm)
        return y.sum() + (pairs * norm.weight).sum()

    return step


def _ppgt_layer(config: BenchConfig) -> Any:
    from models.sl2_attention import Sl2Attention

    return Sl2Attention(config.width, config.heads, config.width, dropout=0.2).to(config.device)


def _ppgt(batch: "Graphs", x: "Tensor", config: BenchConfig) -> "Callable[[], Tensor]":
    layer, p = _ppgt_layer(config), _pairs(batch, x)
    return lambda: layer(x.view(batch.num_graphs, -1, config.width), p, None).sum()


def ppgt_plain(layer: Any, x: "Tensor", p: "Tensor", index: "Tensor") -> "Tensor":
    """sL2 attention with URPE over rows of pairs, gathered and scattered. p is [P, E]."""
    from torch.nn import functional

    heads, size = layer.num_heads, x.shape[0]
    q, k, v = layer.qkv(x).view(size, 3, heads, -1).unbind(1)
    theta, phi = layer.pair(p).chunk(2, dim=-1)
    key = k[index[0]]
    score = (q[index[1]] * key).sum(-1) * layer.qk_scale
    score = score - key.square().sum(-1) / (2 * math.sqrt(q.shape[-1])) + theta
    alpha = phi * scatter_softmax(score, index[1], size)
    alpha = functional.dropout(alpha, layer.dropout, layer.training)
    return layer.out(scatter_sum(v[index[0]] * alpha.unsqueeze(-1), index[1], size).flatten(1))


def _ppgt_plain(batch: "Graphs", x: "Tensor", config: BenchConfig) -> "Callable[[], Tensor]":
    layer, index = _ppgt_layer(config), complete_index(batch)
    p = _pairs(batch, x).detach().flatten(0, 2).requires_grad_()
    return lambda: ppgt_plain(layer, x, p, index).sum()


def peak_bytes(step: "Callable[[], Tensor]", device: str) -> int | None:
    """The growth of memory over one pass; None where the system does not tell (it does on Linux and CUDA)."""
    import torch

    if device != "cpu":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step().backward()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    status = Path("/proc/self/status")
    try:
        # What the allocator holds free would hide the growth.
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # sets the high-water mark to what is resident now
        before = _resident(status, "VmRSS")
        step().backward()
        return _resident(status, "VmHWM") - before
    except (OSError, AttributeError):
        return None


def _resident(status: Path, field: str) -> int:
    line = next(line for line in status.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def time_step(step: "Callable[[], Tensor]", device: str) -> float:
    """Seconds of one forward and backward pass."""
    import torch

    if device != "cpu":
        torch.cuda.synchronize()
    began = time.perf_counter()
    step().backward()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def measure_together(layers: list[str], graphs: int, nodes: int, config: BenchConfig) -> Iterator[Measure]:
    """Measures layers of one size, round by round by turns, so that a slow minute slows all of them."""
    from jobs.plan.saved_bytes import saved_bytes

    steps = {layer: build_step(layer, graphs, nodes, config) for layer in layers}
    memory = {layer: (saved_bytes(step), peak_bytes(step, config.device)) for layer, step in steps.items()}
    times: dict[str, list[float]] = {layer: [] for layer in layers}
    for _ in range(config.rounds):
        for layer, step in steps.items():
            times[layer].append(time_step(step, config.device))
    for layer in layers:
        yield Measure(layer, graphs, nodes, statistics.median(times[layer]), *memory[layer])


def measure_all(config: BenchConfig) -> Iterator[Measure]:
    """All layers at their sizes, then the layers over pairs on a batch of molecules."""
    groups: dict[int, list[str]] = {}
    for layer in config.layers:
        for nodes in config.sizes(layer):
            groups.setdefault(nodes, []).append(layer)
    for nodes in sorted(groups):
        yield from measure_together(groups[nodes], 1, nodes, config)
    molecules = [layer for layer in config.layers if layer.startswith(("grit", "ppgt"))]
    if molecules:
        yield from measure_together(molecules, 32, MOLECULES, config)


def fit_exponent(sizes: list[int], values: list[float]) -> float:
    """The slope of log(value) over log(size), by least squares."""
    x, y = [math.log(size) for size in sizes], [math.log(max(value, 1e-12)) for value in values]
    mean_x, mean_y = statistics.fmean(x), statistics.fmean(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / sum((a - mean_x) ** 2 for a in x)


def tables(config: BenchConfig, measures: list[Measure]) -> str:
    """Markdown: every measure, fitted exponents, and the ratios to the plain form."""
    lines = ["| layer | graphs × nodes | ms | saved MB | peak MB |", "|---|---|---|---|---|"]
    for m in measures:
        peak = "" if m.peak_bytes is None else f"{m.peak_bytes / 1e6:.1f}"
        lines.append(
            f"| {m.layer} | {m.graphs} × {m.nodes} | {m.seconds * 1e3:.2f} | {m.saved_bytes / 1e6:.1f} | {peak} |"
        )
    lines += ["", "| layer | nodes | exponent of time | of saved memory |", "|---|---|---|---|"]
    for layer in config.layers:
        own = [m for m in measures if m.layer == layer and m.graphs == 1]
        sizes = [m.nodes for m in own]
        exponents = (fit_exponent(sizes, [m.seconds for m in own]), fit_exponent(sizes, [m.saved_bytes for m in own]))
        lines.append(f"| {layer} | {sizes[0]}–{sizes[-1]} | {exponents[0]:.2f} | {exponents[1]:.2f} |")
    lines += ["", "| against the plain form | graphs × nodes | times as fast | of its saved memory | of its peak |"]
    lines.append("|---|---|---|---|---|")
    by_key = {(m.layer, m.graphs, m.nodes): m for m in measures}
    for ours, plain in PAIRED:
        for m in measures:
            other = by_key.get((plain, m.graphs, m.nodes))
            if m.layer != ours or other is None:
                continue
            peak = f"{m.peak_bytes / other.peak_bytes:.2f}" if m.peak_bytes and other.peak_bytes else ""
            lines.append(
                f"| {ours} | {m.graphs} × {m.nodes} | {other.seconds / m.seconds:.2f} | "
                f"{m.saved_bytes / other.saved_bytes:.2f} | {peak} |"
            )
    return "\n".join(lines)


def main() -> None:
    config = parse(BenchConfig, __doc__)
    import torch

    torch.set_num_threads(config.threads)
    check_device(config.device)
    check_writable(config.out, "--out")
    measures = []
    for measure in measure_all(config):
        measures.append(measure)
        print(f"{measure.layer}, {measure.graphs} × {measure.nodes}: {measure.seconds * 1e3:.1f} ms", flush=True)
    text = tables(config, measures)
    config.out.mkdir(parents=True, exist_ok=True)
    chip = torch.cuda.get_device_name() if config.device != "cpu" else f"{platform.machine()}, {config.threads} threads"
    head = f"width {config.width}, {config.heads} heads, {chip}, torch {torch.__version__}"
    (config.out / "results.md").write_text(f"{head}\n\n{text}\n")
    found = {"config": asdict(config) | {"out": str(config.out)}, "on": head, "measures": [asdict(m) for m in measures]}
    (config.out / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    print(text)


if __name__ == "__main__":
    run(main)
