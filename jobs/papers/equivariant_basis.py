"""Tests whether one attention layer over node and edge tokens can express a 2-IGN layer: TokenGT's first experiment (table 1).

    python -m graphmill.jobs.papers.equivariant_basis                                  all ten rows on sparse input, two to six minutes each on one core
    python -m graphmill.jobs.papers.equivariant_basis --rows orf+type lap+type         some rows
    python -m graphmill.jobs.papers.equivariant_basis --input dense                    all n² pairs as tokens
    python -m graphmill.jobs.papers.equivariant_basis --scale paper --device cuda      the paper's sizes

Linear equivariant maps of n × n matrices have 15 basis tensors, one per partition of the four indices of an output and an input
entry (arXiv:1812.09902). Fifteen heads of one attention layer each learn one row-normalised tensor, on Barabási–Albert graphs of 10
to 20 nodes. The target of a row without any entry is [null]. The loss is the sum of squared errors of one head on one graph.

You should see a table of ten rows, in the paper's order, with the published numbers. Without node identifiers no head that
compares nodes can be right; with orthogonal identifiers and types the loss is near 0. results.md and
results.json are written to a folder of --out; the folder has the name of the input.
"""

import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np

from graphmill.core.option_checks import Count, check_fields, check_options
from graphmill.jobs.bench.results import check_results, keep, table
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse
from graphmill.jobs.resolve.checks import check_device

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from graphmill.models.primitives.graphs import Graphs
    from graphmill.models.tokengt.network import TokenView

NUM_BASES = 15  # partitions of four indices
MIN_NODES, MAX_NODES = 10, 20
LAPLACIAN = "laplacian"


class Row(NamedTuple):
    """Defines one row of the table: the tokens' identifiers, and the published losses (train, test) on dense and sparse input."""

    identifier: str
    identifier_dim: int
    types: bool
    dense: tuple[float, float]
    sparse: tuple[float, float]


ROWS = {
    "plain": Row("none", 1, False, (47.95, 53.93), (29.88, 34.70)),
    "type": Row("none", 1, True, (32.38, 40.06), (15.92, 20.39)),
    "random-first-order+type": Row("random_first_order", 24, True, (32.19, 32.49), (15.87, 16.56)),
    "first-order+type": Row("orf_first_order", 24, True, (32.35, 39.87), (15.87, 16.56)),
    "random": Row("random", 24, False, (5.909, 5.548), (8.152, 8.270)),
    "orf": Row("orf", 24, False, (5.472, 5.143), (7.167, 7.190)),
    "lap": Row("laplacian", 20, False, (1.899, 1.702), (0.288, 0.064)),
    "random+type": Row("random", 24, True, (0.375, 0.234), (0.990, 0.875)),
    "orf+type": Row("orf", 24, True, (0.080, 0.009), (0.129, 0.011)),
    "lap+type": Row("laplacian", 20, True, (0.053, 0.005), (0.101, 0.019)),
}
RowName = Literal[
    "plain",
    "type",
    "random-first-order+type",
    "first-order+type",
    "random",
    "orf",
    "lap",
    "random+type",
    "orf+type",
    "lap+type",
]


@dataclass(frozen=True)
class Sizes:
    """Holds the sizes of the model and the data, and the length of training."""

    width: int
    head_width: int
    num_graphs: int
    batch_graphs: int
    steps: int
    warmup_steps: int
    lr: float
    input_dropout: float


SCALES = {
    "paper": Sizes(1024, 128, 1280, 512, 3000, 1000, 1e-4, 0.1),
    # Loss of orf+type after 600 steps: 1.8 at width 96 with input dropout 0.1; 0.35 at width 128 without input dropout.
    "reduced": Sizes(128, 64, 1280, 8, 3000, 300, 3e-3, 0.0),
    "smoke": Sizes(32, 16, 20, 8, 3, 1, 1e-3, 0.1),
}


@dataclass(frozen=True)
class BasisConfig:
    """Learn the second-order equivariant basis with one attention layer."""

    rows: tuple[RowName, ...] = get_args(RowName)
    """Rows of the table."""
    input: Literal["sparse", "dense"] = "sparse"
    """Tokens of a graph. sparse: nodes and edges; dense: all n² pairs (with half the batch size in the paper)."""
    scale: Literal["paper", "reduced", "smoke"] = "reduced"
    """Sizes of the model and the data. paper: as in the paper; reduced: takes minutes on one core; smoke: takes seconds."""
    steps: Count | None = None
    """Training steps; default: the scale's."""
    seed: int = 0
    """The same seed gives the same table."""
    device: str = "cpu"
    """Device that trains: cpu, cuda or cuda:1."""
    maps: bool = False
    """Also draw the 15 targets and each row's learned attention on the first test graph: maps.svg, as in the paper's figure 3."""
    out: Path = Path("runs/equivariant_basis")
    """Folder of the table."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_options(self, {"rows": (len(self.rows) > 0, "at least one")})


def barabasi_albert(num_nodes: int, attach: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Returns undirected edges: each new node gets edges to `attach` older nodes, which are drawn in proportion to their degrees."""
    edges: list[tuple[int, int]] = []
    ends = list(range(attach))  # lists each node once for each of its edges; the first nodes start with one entry
    for new in range(attach, num_nodes):
        chosen: set[int] = set()
        while len(chosen) < attach:
            chosen.add(ends[rng.integers(len(ends))])
        edges += [(old, new) for old in sorted(chosen)]
        ends += [*sorted(chosen), *[new] * attach]
    return edges


class Sample(NamedTuple):
    """Holds one graph: the edges of its tokens and its eigenvectors."""

    num_nodes: int
    edge_index: "Tensor"
    eigenvectors: "Tensor"


def make_samples(count: int, dense: bool, seed: int) -> "list[Sample]":
    """Draws random graphs. With `dense` the token edges are all ordered pairs; the eigenvectors are still those of the sparse graph."""
    import torch

    from graphmill.models.encodings.laplacian import laplacian_eigenvectors
    from graphmill.models.primitives.graphs import Graphs

    rng = np.random.default_rng(seed)
    samples = []
    for _ in range(count):
        n = int(rng.integers(MIN_NODES, MAX_NODES + 1))
        edges = torch.tensor(barabasi_albert(n, int(rng.integers(2, 4)), rng)).t()
        edges = torch.cat([edges, edges.flip(0)], dim=1)
        vectors, _ = laplacian_eigenvectors(Graphs(torch.tensor([0, n]), edges), MAX_NODES)
        if dense:
            edges = (1 - torch.eye(n, dtype=torch.int64)).nonzero().t()
        samples.append(Sample(n, edges, vectors))
    return samples


def pack(samples: "list[Sample]", device: str) -> "Graphs":
    import torch

    from graphmill.models.primitives.graphs import Graphs

    node_ptr = torch.tensor([0, *(s.num_nodes for s in samples)]).cumsum(0)
    edge_index = torch.cat([s.edge_index + start for s, start in zip(samples, node_ptr[:-1], strict=True)], dim=1)
    rows = torch.cat([s.eigenvectors for s in samples])
    return Graphs(node_ptr, edge_index, encodings={LAPLACIAN: rows}).to(device)


def partition_of(query_u: "Tensor", query_v: "Tensor", key_u: "Tensor", key_v: "Tensor") -> "Tensor":
    """Returns int64 in [0, 15): the partition of the four indices by equality, as the rank of the restricted growth string. The arguments are broadcast."""
    import torch

    r2 = (query_u != query_v).long()
    r3 = torch.where(key_u == query_u, 0, torch.where(key_u == query_v, r2, r2 + 1))
    new = torch.maximum(r2, r3) + 1
    r4 = torch.where(key_v == query_u, 0, torch.where(key_v == query_v, r2, torch.where(key_v == key_u, r3, new)))
    codes = [16 * a + 4 * b + c for a in range(2) for b in range(a + 2) for c in range(max(a, b) + 2)]
    return torch.searchsorted(torch.tensor(codes, device=r4.device), 16 * r2 + 4 * r3 + r4)


def basis_targets(view: "TokenView") -> "tuple[Tensor, Tensor]":
    """Returns the row-normalised basis tensors [15, B, Q, 1 + Q] over [null] and the tokens, and the real queries [B, Q]."""
    import torch

    assert view.num_special == 1
    shape = (view.num_graphs, view.num_places)
    ends = torch.full((2, shape[0] * shape[1]), -1, device=view.slot_n.device)
    nodes = torch.arange(view.slot_n.numel(), device=view.slot_n.device)
    ends[:, view.slot_n] = nodes.expand(2, -1)
    ends[:, view.slot_E] = torch.stack([view.source_E, view.destination_E])
    u_BQ, v_BQ = ends.view(2, *shape)[:, :, 1:]
    mask_BQ = view.mask_BT[:, 1:]
    partition_BQQ = partition_of(u_BQ.unsqueeze(2), v_BQ.unsqueeze(2), u_BQ.unsqueeze(1), v_BQ.unsqueeze(1))
    both_BQQ = mask_BQ.unsqueeze(2) & mask_BQ.unsqueeze(1)
    partition_BQQ = partition_BQQ.masked_fill(~both_BQQ, -1)
    # Entry [b, q, 0] belongs to [null] and has no partition.
    partition_BQT = torch.nn.functional.pad(partition_BQQ, (1, 0), value=-1)
    basis_KBQT = partition_BQT == torch.arange(NUM_BASES, device=u_BQ.device).view(-1, 1, 1, 1)
    count_KBQ = basis_KBQT.sum(-1)
    target_KBQT = basis_KBQT / count_KBQ.clamp(min=1).unsqueeze(-1)
    target_KBQT[..., 0] = (count_KBQ == 0).to(target_KBQT.dtype)
    return target_KBQT, mask_BQ


def build_model(row: Row, sizes: Sizes, seed: int) -> "nn.Module":
    """Applies token embedding, dropout and LayerNorm, then 15 heads; only the heads' attention matrices are used."""
    import torch
    from torch import nn

    from graphmill.models.primitives.dropout import Dropout
    from graphmill.models.tokengt.network import TokenEmbedding
    from graphmill.models.tokengt.options import TokenGTConfig

    class BasisModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            stored = row.identifier == "laplacian"
            config = TokenGTConfig(
                task="node",
                width=sizes.width,
                num_heads=1,
                null_token=True,
                identifier=row.identifier,  # type: ignore[arg-type]
                identifier_dim=row.identifier_dim,
                encoding=LAPLACIAN if stored else None,
                type_identifier=row.types,
                eigenvector_dropout=0.0,
                seed=seed,
            )
            self.embedding = TokenEmbedding(config)
            self.dropout, self.norm = Dropout(sizes.input_dropout), nn.LayerNorm(sizes.width)
            scale = sizes.width**-0.5
            self.query_KDd = nn.Parameter(torch.randn(NUM_BASES, sizes.width, sizes.head_width) * scale)
            self.key_KDd = nn.Parameter(torch.randn(NUM_BASES, sizes.width, sizes.head_width) * scale)

        def forward(self, view: "TokenView") -> "Tensor":
            """Returns the attention of the tokens [15, B, Q, 1 + Q]; [null] is the first key."""
            x_BTD = self.norm(self.dropout(self.embedding(view)))
            size, places = view.mask_BT.shape
            # Heads come first, so no tensor of all pairs is copied into another layout.
            x_KTD = x_BTD.reshape(1, -1, sizes.width).expand(NUM_BASES, -1, -1)
            own_KTD = x_BTD[:, 1:].reshape(1, -1, sizes.width).expand(NUM_BASES, -1, -1)
            q_KTd = torch.bmm(own_KTD, self.query_KDd / sizes.head_width**0.5)
            k_KTd = torch.bmm(x_KTD, self.key_KDd)
            q_XQd = q_KTd.view(NUM_BASES * size, places - 1, sizes.head_width)
            k_XTd = k_KTd.view(NUM_BASES * size, places, sizes.head_width)
            hidden_BT = torch.where(view.mask_BT, 0.0, -torch.inf).repeat(NUM_BASES, 1)
            scores_XQT = torch.baddbmm(hidden_BT.unsqueeze(1), q_XQd, k_XTd.transpose(1, 2))
            return scores_XQT.softmax(-1).view(NUM_BASES, size, places - 1, places)

    torch.manual_seed(seed)
    return BasisModel()


def basis_loss(model: "nn.Module", graphs: "Graphs") -> "Tensor":
    """Returns the sum of squared errors of a head on a graph, averaged over heads and graphs."""
    import torch

    from graphmill.models.tokengt.network import TokenView

    view = TokenView(graphs, 1)
    target_KBQT, mask_BQ = basis_targets(view)
    squares_KBQ = torch.linalg.vector_norm(model(view) - target_KBQT, dim=-1).square()
    return (squares_KBQ * mask_BQ).sum() / (graphs.num_graphs * NUM_BASES)


def batches(samples: "list[Sample]", size: int, generator: "torch.Generator") -> "Iterator[list[Sample]]":
    """Yields shuffled batches without end. Within eight batches, graphs of similar size share a batch, which halves the padding."""
    import torch

    while True:
        order = torch.randperm(len(samples), generator=generator).tolist()
        for start in range(0, max(len(order) - size + 1, 1), 8 * size):
            window = sorted(order[start : start + 8 * size], key=lambda i: samples[i].edge_index.shape[1])
            parts = [window[i : i + size] for i in range(0, len(window), size)]
            for i in torch.randperm(len(parts), generator=generator).tolist():
                yield [samples[j] for j in parts[i]]


def run_row(
    name: str, config: BasisConfig, sizes: Sizes, train: "list[Sample]", test: "list[Sample]"
) -> tuple[dict[str, float], tuple[list[np.ndarray], list[np.ndarray]]]:
    """Trains one row. Returns the training loss over the last tenth of the steps, the loss on the test graphs, and the seconds; and the attention maps."""
    import torch

    started = time.perf_counter()
    model = build_model(ROWS[name], sizes, config.seed).to(config.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=sizes.lr)

    def factor(step: int) -> float:
        rise = (step + 1) / sizes.warmup_steps
        return min(rise, (sizes.steps - step) / max(sizes.steps - sizes.warmup_steps, 1))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    stream = batches(train, sizes.batch_graphs, torch.Generator().manual_seed(config.seed))
    last = max(sizes.steps // 10, 1)
    total = torch.zeros((), device=config.device)
    for step, batch in zip(range(sizes.steps), stream, strict=False):
        loss = basis_loss(model, pack(batch, config.device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        if step >= sizes.steps - last:
            total += loss.detach()
    model.eval()
    with torch.no_grad():
        chunks = [test[i : i + sizes.batch_graphs] for i in range(0, len(test), sizes.batch_graphs)]
        losses = [float(basis_loss(model, pack(chunk, config.device))) * len(chunk) for chunk in chunks]
    results = {
        "train": float(total) / last,
        "test": sum(losses) / len(test),
        "seconds": time.perf_counter() - started,
    }
    return results, attention_maps(model, pack(test[:1], config.device))


def attention_maps(model: "nn.Module", graphs: "Graphs") -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The 15 target matrices and the 15 learned ones of one graph; a matrix has a row for each token and a column for [null] and each token."""
    import torch

    from graphmill.models.tokengt.network import TokenView

    view = TokenView(graphs, 1)
    target_K1QT, mask_1Q = basis_targets(view)
    with torch.no_grad():
        learned_K1QT = model(view)
    both = (each[:, 0, mask_1Q[0]].float().cpu().numpy() for each in (target_K1QT, learned_K1QT))
    targets, learned = (list(each) for each in both)
    return targets, learned


def describe(results: dict[str, dict[str, float]], tokens: str) -> str:
    """Returns the results and the published losses as Markdown."""
    columns = {"row": "", "train": ".3f", "test": ".3f", "paper train": "", "paper test": "", "seconds": ".0f"}
    rows = [
        (name, row["train"], row["test"], *getattr(ROWS[name], tokens), row["seconds"]) for name, row in results.items()
    ]
    return "\n".join(table(columns, rows))


def main() -> None:
    config = parse(BasisConfig, __doc__)
    sizes = SCALES[config.scale]
    if config.scale == "paper" and config.input == "dense":
        sizes = dataclasses.replace(sizes, batch_graphs=256)
    if config.steps is not None:
        warmup = max(1, round(sizes.warmup_steps * config.steps / sizes.steps))
        sizes = dataclasses.replace(sizes, steps=config.steps, warmup_steps=warmup)
    check_device(config.device)
    check_results(config.out / config.input)
    samples = make_samples(sizes.num_graphs, config.input == "dense", config.seed)
    held = sizes.num_graphs // 10
    results: dict[str, dict[str, float]] = {}
    drawn: dict[str, list[np.ndarray]] = {}
    for name in config.rows:
        row, maps = run_row(name, config, sizes, samples[held:], samples[:held])
        results[name] = row
        drawn.setdefault("target", maps[0])
        drawn[name] = maps[1]
        print(f"{name:>17}  train {row['train']:.3f}  test {row['test']:.3f}  ({row['seconds']:.0f} s)", flush=True)
        # Written after every row, so that a stopped run keeps its rows.
        keep(config.out / config.input, config, describe(results, config.input), sizes=sizes, results=results)
    if config.maps:
        from graphmill.jobs.papers.drawings import write_matrices

        write_matrices(config.out / config.input / "maps.svg", drawn)
    print(f"\n{describe(results, config.input)}\n\nkept in {config.out / config.input}")


if __name__ == "__main__":
    run(main)
