"""Counts the pairs of non-isomorphic graphs that a model distinguishes: BREC (arXiv:2304.07702) with its own protocol.

    python -m graphmill.jobs.papers.brec --data ../shared/data/brec --model grit --pairs basic:0-9      ten pairs, about a minute on one core
    python -m graphmill.jobs.papers.brec --data ../shared/data/brec --model grit                        all 400 pairs
    python -m graphmill.jobs.papers.brec --data ../shared/data/brec --model ppgt --device cuda
    python -m graphmill.jobs.papers.brec --data ../shared/data/brec --model ppgt --bound                an upper bound for any training, a minute

Each pair is tested like in the published test program. A new model gets 32 relabelled copies of both graphs, and is trained so that the cosine similarity of a
copy's two 16-dimensional outputs decreases (cosine embedding loss, margin 0). Then Hotelling's T² = meanᵀ cov⁻¹ mean of the 32 differences is computed for the
pair. As a check of reliability, T² is also computed for 32 pairs of copies of one graph. The model distinguishes the pair if the pair's T² exceeds 72.34 and
differs from the check's T². The pair counts if the check's T² is below 72.34.

You should see a line per pair and a table by category; GRIT's published result is 60 basic, 50 of 140 regular (regular, str, 4vtx, dr),
100 extension and 8 CFI pairs, with more epochs than the default here. Results are written to `<model>.jsonl` under --out. The job may be stopped
at any time, because a later run skips pairs that have a result with the same settings.

`--bound` trains nothing. It counts the pairs that colour refinement over walk probabilities distinguishes. No weights of grit
and ppgt can distinguish more pairs (jobs/papers/color_refinement.py): 60 basic, 50 regular, 100 extension and 26 CFI pairs, none of str, 4vtx
and dr. `--bound` prints the indices of these pairs in the form of `--pairs`, so that a training can skip the other pairs.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from graphmill.core.errors import ConfigError, FormatError
from graphmill.core.option_checks import Size, check_fields
from graphmill.jobs.bench.results import table
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.config import config_tree, read_config, read_recipe
from graphmill.jobs.config.reader import parse
from graphmill.jobs.config.registry import MODELS, Inputs, model_config
from graphmill.jobs.reporting.record_lines import append_record, load_records
from graphmill.jobs.resolve.checks import check_device
from graphmill.samplers.methods.registry import load

if TYPE_CHECKING:
    import fsspec
    import torch
    from torch import Tensor, nn

    from graphmill.models.primitives.graphs import Graphs

CATEGORIES = {"basic": 60, "regular": 50, "str": 50, "extension": 100, "cfi": 100, "4vtx": 20, "dr": 20}
# Models that distinguish no more graphs than colour refinement over walks. The value is the length of the longest walk in the recipe.
WALK_STEPS = {"grit": 31, "ppgt": 32}
COPIES = 32
WITHOUT_FEATURES = Inputs(out_dim=16)
THRESHOLD = 72.34
# Two values of T² that differ by less count as equal: the model then separates the pair no better than copies of one graph.
SAME_T2 = 1e-6


@dataclass(frozen=True)
class BrecConfig:
    """Test a model on BREC's pairs of graphs."""

    data: Path
    """The folder of BREC's graph6 files (basic.npy, cfi.npy …)."""
    model: Literal["grit", "ppgt", "primphormer", "i2gnn_ppgt"] = "grit"
    """Model to train. Its recipe is brec.yaml. i2gnn_ppgt: PPGT with features of edges from the subgraphs around them (jobs/papers/subgraph_encoder.py)."""
    pairs: tuple[str, ...] = tuple(CATEGORIES)
    """Categories, or parts of categories: `basic:0-9`, `cfi:3`."""
    epochs: Size = 20
    """Maximum number of epochs per pair."""
    loss_threshold: float = 0.1
    """Loss below which training stops."""
    training: Literal["brec", "ppgt"] = "brec"
    """Training schedule. brec: as in BREC's program, Adam, with a lower rate when the loss stops falling. ppgt: as in PPGT's code, AdamW with ten epochs of
    warm-up from 1e-7, then a cosine to 7e-5 at the last epoch (epoch 200 in PPGT's code); the norm of gradients is at most 1."""
    lr: float = 1e-3
    """Adam's step size."""
    weight_decay: float = 1e-5
    """Adam's decay."""
    batch_size: int = 16
    """Graphs per step. It must be even, because the two graphs of a pair are in one step."""
    width: int | None = None
    """Width of the model; none: as in the recipe."""
    num_layers: int | None = None
    """Number of layers; none: as in the recipe."""
    spe_scales: int | None = None
    """S of ppgt; none: 15, as in the recipe."""
    position: Literal["laplacian", "stable_expressive"] | None = None
    """Position encoding of primphormer; none: laplacian, as in the recipe."""
    attention: Literal["primal", "softmax", "primal_sequence"] | None = None
    """Attention of primphormer, the rows of its table; none: primal, as in the recipe."""
    precision: Literal["float32", "float64"] = "float32"
    """Type of weights, walks and outputs. BREC's program uses float32, but its rounding can hide the difference of two graphs (five CFI pairs with ppgt)."""
    seed: int = 2022
    """Seed of relabelling and of the models."""
    device: str = "cpu"
    """Device that trains."""
    out: Path = Path("runs/brec")
    """Folder of the results."""
    bound: bool = False
    """Train nothing; list the pairs that the model can distinguish by its walks with suitable weights (grit, ppgt)."""

    def __post_init__(self) -> None:
        check_fields(self, batch_size=2)
        if self.batch_size % 2:
            raise ConfigError(f"batch_size: expected an even number, got {self.batch_size}; set --batch-size")
        if self.bound and self.model not in WALK_STEPS:
            raise ConfigError(f"bound: expected one of {', '.join(WALK_STEPS)}, got {self.model}; set --model")
        for name, model in (("spe_scales", "ppgt"), ("position", "primphormer"), ("attention", "primphormer")):
            if getattr(self, name) is not None and self.model != model:
                raise ConfigError(
                    f"{name}: expected model {model}, which has it, got {self.model}; set --model or leave it out"
                )
        for part in self.pairs:
            parse_pairs(part)


class Result(NamedTuple):
    """Holds the result of one pair."""

    pair: str
    told_apart: bool
    reliable: bool
    t2: float
    t2_same: float
    loss: float
    epochs: int
    seconds: float
    nodes: int


def parse_pairs(part: str) -> tuple[str, range]:
    """`basic:0-9` → ("basic", range(0, 10)). Raises ConfigError for a category or a number that does not exist."""
    name, _, numbers = part.partition(":")
    first, dash, last = numbers.partition("-")
    total = CATEGORIES.get(name)
    digits = all(number.isdigit() for number in (first, last) if number)
    if total is None or not digits or (numbers and not first) or (dash and not last):
        raise ConfigError(
            f"pairs: expected a category of {', '.join(CATEGORIES)} or one with numbers as basic:0-9, got {part!r}; set --pairs"
        )
    if not numbers:
        return name, range(total)
    chosen = range(int(first), int(last if dash else first) + 1)
    if not chosen or chosen[-1] >= total:
        raise ConfigError(f"pairs: {name} has the pairs 0-{total - 1}, got {part!r}; set --pairs")
    return name, chosen


def read_graph6(text: str) -> np.ndarray:
    """The adjacency matrix, bool [n, n], of one graph6 line. Raises FormatError if it is damaged."""
    import networkx  # torch requires it

    try:
        graph = networkx.from_graph6_bytes(text.encode("ascii"))
    except (networkx.NetworkXError, ValueError, IndexError) as error:
        raise FormatError(f"graph6: expected a line of it, got {text[:40]!r} ({error})") from None
    return networkx.to_numpy_array(graph, dtype=bool)


def read_pairs(folder: Path, category: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """All pairs of a category as adjacency matrices. Raises FormatError if the file is not BREC's."""
    path = folder / f"{category}.npy"
    try:
        lines = np.load(path, allow_pickle=False).reshape(-1)
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: expected BREC's graph6 lines, found {error}; set --data") from None
    if lines.dtype.kind not in "SU" or lines.size != 2 * CATEGORIES[category]:
        raise FormatError(
            f"{path}: expected {2 * CATEGORIES[category]} graph6 lines, found {lines.size} of {lines.dtype}; set --data"
        )
    texts = [line.decode("ascii") if isinstance(line, bytes) else str(line) for line in lines]
    graphs = [read_graph6(text.strip()) for text in texts]
    return list(zip(graphs[::2], graphs[1::2]))


def relabelled_copies(first: np.ndarray, second: np.ndarray, generator: np.random.Generator) -> list[np.ndarray]:
    """Returns 2·32 adjacency matrices: copies of the first and of the second graph alternate, and each copy has its own random labels."""
    copies = []
    for _ in range(COPIES):
        for adjacency in (first, second):
            order = generator.permutation(len(adjacency))
            copies.append(adjacency[order][:, order])
    return copies


def pack(matrices: list[np.ndarray], device: str) -> "Graphs":
    """Makes one batch of graphs without features."""
    import torch

    from graphmill.models.primitives.graphs import Graphs

    pointer = np.cumsum([0, *(len(matrix) for matrix in matrices)])
    edges = [np.stack(matrix.nonzero()) + start for matrix, start in zip(matrices, pointer)]
    graphs = Graphs(
        node_ptr=torch.from_numpy(pointer),
        edge_index=torch.from_numpy(np.concatenate(edges, axis=1)),
        node_id=torch.arange(int(pointer[-1])),
        max_nodes=max(len(matrix) for matrix in matrices),
    )
    return graphs.to(device)


def build_model(config: BrecConfig) -> "nn.Module":
    """Makes a new model by the recipe. Raises ConfigError if an option does not fit the model."""
    import torch

    name = "ppgt" if config.model == "i2gnn_ppgt" else config.model
    component = read_config(config_tree("graphs", read_recipe(f"{name}/brec.yaml"))).model
    changes: dict[str, Any] = {"width": config.width, "num_layers": config.num_layers, "spe_scales": config.spe_scales}
    changes["attention"] = config.attention
    if config.position is not None:
        from graphmill.models.gps.options import PositionOptions

        changes["position"] = PositionOptions(config.position)
    try:
        options = replace(component.options, **{k: v for k, v in changes.items() if v is not None})
    except ValueError as error:
        raise ConfigError(str(error)) from None
    network = load(MODELS["graphs"][name].build)
    if config.model == "i2gnn_ppgt":
        from graphmill.jobs.papers.subgraph_encoder import SubgraphPPGT as network
    return network(model_config(replace(component, options=options), WITHOUT_FEATURES)).to(
        getattr(torch, config.precision)
    )


def hotelling_t2(difference_CD: "Tensor") -> float:
    """Returns meanᵀ cov⁻¹ mean of the rows, with the pseudo-inverse and without the factor C, as in the published program."""
    import torch

    mean_D = difference_CD.mean(0)
    return float(mean_D @ torch.linalg.pinv(torch.cov(difference_CD.t())) @ mean_D)


def measure_pair(config: BrecConfig, name: str, first: np.ndarray, second: np.ndarray, number: int) -> Result:
    """Trains a new model on the pair and measures the model."""
    import torch

    began = time.perf_counter()
    generator = np.random.default_rng([config.seed, number])

    def batches_of(other: np.ndarray) -> "list[Graphs]":
        copies = relabelled_copies(first, other, generator)
        return [pack(copies[i : i + config.batch_size], config.device) for i in range(0, 2 * COPIES, config.batch_size)]

    batches, same = batches_of(second), batches_of(first)
    torch.manual_seed(config.seed)
    model = build_model(config).to(config.device)
    of_ppgt = config.training == "ppgt"
    kind = torch.optim.AdamW if of_ppgt else torch.optim.Adam
    optimizer = kind(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    losses: list[float] = []
    model.train()
    while len(losses) < config.epochs:
        if of_ppgt:
            optimizer.param_groups[0]["lr"] = ppgt_rate(len(losses), config.epochs, config.lr)
        losses.append(train_epoch(model, optimizer, batches, max_norm=1.0 if of_ppgt else None))
        if losses[-1] < config.loss_threshold:
            break
        if not of_ppgt:
            schedule.step(losses[-1])
    model.eval()
    t2, t2_same = (hotelling_t2(differences(model, each)) for each in (batches, same))
    return Result(
        pair=f"{name}:{number}",
        told_apart=t2 > THRESHOLD and abs(t2 - t2_same) > SAME_T2 + 1e-5 * abs(t2_same),
        reliable=t2_same < THRESHOLD,
        t2=t2,
        t2_same=t2_same,
        loss=losses[-1] if losses else float("nan"),
        epochs=len(losses),
        seconds=time.perf_counter() - began,
        nodes=len(first),
    )


def ppgt_rate(epoch: int, num_epochs: int, peak: float) -> float:
    """Returns PPGT's learning rate in an epoch; epochs are counted from 0."""
    first, last, warmup = 1e-7, 7e-5, 10
    if epoch < warmup:
        return first + (peak - first) * epoch / warmup
    return last + (peak - last) * (1 + math.cos(math.pi * (epoch - warmup) / (num_epochs - warmup))) / 2


def train_epoch(
    model: Any, optimizer: "torch.optim.Optimizer", batches: "list[Graphs]", max_norm: float | None = None
) -> float:
    """Trains one pass; returns the mean loss. `max_norm` bounds a step's gradient. Raises FormatError if the loss is not a number."""
    from torch.nn import functional
    from torch.nn.utils import clip_grad_norm_

    total = 0.0
    for graphs in batches:
        optimizer.zero_grad()
        # Primphormer adds a penalty to the loss.
        out, penalty = (
            model.forward_with_penalty(graphs) if hasattr(model, "forward_with_penalty") else (model(graphs), 0.0)
        )
        loss = functional.cosine_embedding_loss(out[0::2], out[1::2], -out.new_ones(len(out) // 2), margin=0.0)
        (loss + penalty).backward()
        if max_norm is not None:
            clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        total += loss.item() * len(out) / 2
    mean = total / COPIES
    if mean != mean:
        raise FormatError("the training loss is not a number; set a smaller --lr")
    return mean


def differences(model: "nn.Module", batches: "list[Graphs]") -> "Tensor":
    """[32, 16]: each copy's first output minus its second, in float64."""
    import torch

    with torch.no_grad():
        outs = [model(graphs) for graphs in batches]
    both = torch.cat(outs).double().cpu()
    return both[0::2] - both[1::2]


def settings(config: BrecConfig) -> dict[str, Any]:
    """Returns the options that must be equal for results to be comparable."""
    fields = asdict(config)
    # Results that were written before these options existed stay comparable.
    for name, default in (("spe_scales", None), ("position", None), ("training", "brec"), ("precision", "float32")):
        if fields[name] == default:
            del fields[name]
    if config.model == "ppgt":
        fields["head"] = "constant"  # results of older versions used another head
    return {name: value for name, value in fields.items() if name not in ("data", "out", "pairs", "device", "bound")}


def results_file(config: BrecConfig) -> Path:
    return config.out / f"{config.model}.jsonl"


def _strangers(filesystem: "fsspec.AbstractFileSystem", path: str) -> list[str]:
    """Returns the names of the files in the folder that are not results. Results are `geco.md`, and `geco.jsonl` if its first line has settings and a
    result."""
    from graphmill.storage.filesystem.outputs import names_there

    def is_ours(stem: str) -> bool:
        with suppress(OSError, ValueError, StopIteration), open(f"{path}/{stem}.jsonl") as stream:
            return {"settings", "result"} <= set(json.loads(next(stream)))
        return False

    return [name for name in names_there(filesystem, path) if not is_ours(name.rpartition(".")[0])]


def known_results(config: BrecConfig) -> dict[str, Result]:
    """Returns, by pair, the results of earlier runs with the same settings."""

    def key(entry: Mapping[str, Any]) -> tuple[str, str]:
        return json.dumps(entry["settings"], sort_keys=True), entry["result"]["pair"]

    entries = load_records(results_file(config), key, "a result of a pair")
    results = [Result(**entry["result"]) for entry in entries if entry["settings"] == settings(config)]
    return {result.pair: result for result in results}


def asked_pairs(config: BrecConfig) -> list[tuple[str, range, list[tuple[np.ndarray, np.ndarray]]]]:
    """Returns (category, indices, all pairs of the category) for each part of --pairs."""
    return [(name, numbers, read_pairs(config.data, name)) for name, numbers in map(parse_pairs, config.pairs)]


def run_pairs(config: BrecConfig) -> Iterator[Result]:
    """Yields the result of each requested pair; runs a pair only if no earlier result exists."""
    known, asked = known_results(config), asked_pairs(config)
    config.out.mkdir(parents=True, exist_ok=True)
    for name, numbers, pairs in asked:
        for number in numbers:
            result = known.get(f"{name}:{number}")
            if result is None:
                result = measure_pair(config, name, *pairs[number], number)
                append_record(results_file(config), {"settings": settings(config), "result": result._asdict()})
            yield result


def print_bound(config: BrecConfig) -> None:
    """Prints a line per category: count and indices of the requested pairs that colour refinement distinguishes."""
    from graphmill.jobs.papers.color_refinement import tells_apart

    for name, numbers, pairs in asked_pairs(config):
        apart = [number for number in numbers if tells_apart(*pairs[number], WALK_STEPS[config.model])]
        listed = " ".join(f"{name}:{number}" for number in apart) or "none"
        print(f"{name}: {len(apart)} of {len(numbers)}: {listed}", flush=True)


def describe(results: list[Result]) -> str:
    """Returns Markdown: by category, the distinguished pairs and the pairs whose check failed."""
    groups = {name: [r for r in results if r.pair.split(":")[0] == name] for name in CATEGORIES} | {"all": results}
    rows = []
    for name, group in groups.items():
        if group:
            right, failed = sum(r.told_apart and r.reliable for r in group), sum(not r.reliable for r in group)
            rows.append((name, right, len(group), failed, sum(r.seconds for r in group) / len(group)))
    return "\n".join(table({"category": "", "told apart": "", "of": "", "unreliable": "", "s/pair": ".1f"}, rows))


def main() -> None:
    config = parse(BrecConfig, __doc__)
    if config.bound:
        print_bound(config)
        return
    check_device(config.device)
    build_model(config)  # refuses unsuitable options before anything is read or written
    from graphmill.storage.filesystem.outputs import check_output

    check_output(config.out, "results of BREC", _strangers)
    results = []
    for result in run_pairs(config):
        results.append(result)
        verdict = ("apart" if result.told_apart else "alike") + ("" if result.reliable else ", unreliable")
        print(
            f"{result.pair}: {verdict}; T² {result.t2:.3g} against {result.t2_same:.3g}, loss {result.loss:.3f} after "
            f"{result.epochs} epochs, {result.nodes} nodes, {result.seconds:.1f} s",
            flush=True,
        )
    text = describe(results)
    (config.out / f"{config.model}.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    run(main)
