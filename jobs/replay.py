"""Rebuilds one training batch of a run, exactly as its workers had it: use this to examine a jump of the loss or an unexpected result.

    python jobs/replay.py runs/my-run --epoch 12 --batch 3                      the content of the batch
    python jobs/replay.py runs/my-run --epoch 12 --batch 3 --loss               its loss with the nearest checkpoint's weights, and each layer's output
    python jobs/replay.py runs/my-run --epoch 12 --batch 3 --out batch.npz      all of its arrays

Epochs and batches count from 0, as in metrics.jsonl and in messages. The command runs in one process, without Ray. A batch depends only on the run's options,
(seed, epoch, batch) and the graph's snapshot: its printed digest is the same on every machine. The run may be unfinished or failed.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphmill.core.errors import ConfigError
from graphmill.core.option_checks import Size, check_fields
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse
from graphmill.storage.filesystem.filesystem_errors import one_line_errors

if TYPE_CHECKING:
    import numpy as np
    import torch

    from graphmill.cluster.data.training_data import OpenData
    from graphmill.cluster.tasks import Task
    from graphmill.jobs.resolve.resolve import ResolvedRun
    from graphmill.samplers.drawing.protocol import Sampler


@dataclass(frozen=True)
class ReplayConfig:
    """Rebuild one training batch of a run."""

    run: str
    """The run's directory."""
    epoch: Size = 0
    """Epoch of the batch, counted from 0."""
    batch: Size = 0
    """Index of the batch in its epoch, from 0. With two micro-batches a step, step 5 has the batches 10 and 11."""
    loss: bool = False
    """Compute the loss, its gradient and each layer's output, with the weights of the nearest checkpoint at or before the batch."""
    out: Path | None = None
    """A new .npz file for the arrays of the batch."""
    allow_import: bool = False
    """Import and run the user's own model, sampler or task that the run names."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class RunBatches:
    """A run's training batches, in this process."""

    resolved: "ResolvedRun"
    data: "OpenData"
    sampler: "Sampler"
    task: "Task"
    num_positions: int  # micro-batches of a step


def open_batches(path: str, *, allow_import: bool = False) -> RunBatches:
    """The training batches of the run in this directory. Raises FormatError if the directory holds no run. Raises ConfigError if the whole graph is the only
    batch of the run."""
    from graphmill.jobs.config.config import saved_tree
    from graphmill.jobs.resolve.resolve import read_resolved
    from graphmill.jobs.subjects.subject import subject_class

    resolved = read_resolved(saved_tree(path, "give the directory of a run", allow_import=allow_import))
    if resolved.is_full_graph:
        raise ConfigError(
            f"{path}: its one batch is the whole graph, spread over the workers; there is nothing to replay"
        )
    subject, num_positions = subject_class(resolved.config).open(resolved.config), resolved.micro_batches
    data = subject.data(resolved).open()
    sampler = data.sampler(subject.training(resolved), num_positions)
    return RunBatches(resolved, data, sampler, subject.task(resolved), num_positions)


def digest(batch: Any) -> str:
    """Digest of the batch, 16 hex digits, over all arrays with their names, types and shapes."""
    import hashlib

    text = hashlib.sha256()
    for name, array in _arrays(batch):
        text.update(f"{name} {array.dtype} {array.shape} ".encode())
        text.update(array.tobytes())
    return text.hexdigest()[:16]


def _arrays(batch: Any, of: str = "") -> "Iterator[tuple[str, np.ndarray]]":
    """All arrays by name. In a typed batch, names begin with the type or relation: `paper.x`."""
    for name, value in vars(batch).items():
        if hasattr(value, "tobytes"):
            yield f"{of}{name}", value
        elif isinstance(value, dict):
            for key, table in value.items():
                yield from _arrays(table, f"{key}.")


def describe_batch(batches: RunBatches, batch: Any) -> list[tuple[str, str]]:
    """(name, value) lines to print."""
    import numpy as np

    step, position = divmod(batch.index, batches.num_positions)
    lines = [
        (
            "batch",
            f"{batch.index} of {batches.sampler.num_batches} in epoch {batch.epoch}: step {step}, micro-batch {position}",
        ),
        ("holds", f"{batch.num_nodes:,} nodes, {batch.num_edges:,} edges"),
    ]
    for name, array in _arrays(batch):
        values = array[np.isfinite(array)] if array.dtype.kind == "f" else array
        spread = f", {values.min():g} to {values.max():g}" if values.size else ""
        mean = f", mean {values.mean(dtype=np.float64):.6g}" if values.size and array.dtype.kind == "f" else ""
        bad = f", {array.size - values.size:,} not finite" if array.size != values.size else ""
        lines.append((name, f"{array.dtype} {list(array.shape)}{spread}{mean}{bad}"))
    return [*lines, ("digest", digest(batch))]


def describe_loss(batches: RunBatches, batch: Any, path: str) -> list[tuple[str, str]]:
    """The batch's loss, its gradient and each layer's output, computed as in the run's workers, with the weights of the nearest checkpoint."""
    import torch

    from graphmill.cluster.checkpoints.checkpoint import load_state, load_weights
    from graphmill.cluster.checkpoints.checkpoint_store import checkpoints_of
    from graphmill.cluster.data.training_data import root_weights
    from graphmill.cluster.embeddings.embeddings import embedded
    from graphmill.cluster.embeddings.rows import SavedTable
    from graphmill.cluster.process.subnormals import flushed_subnormals
    from graphmill.cluster.runs.run_store import RunStore
    from graphmill.cluster.tasks import step_output
    from graphmill.cluster.training.evaluation import autocast
    from graphmill.cluster.training.initial_weights import freeze
    from graphmill.cluster.training.train_loop import seed_dropout, step_loss, step_weight

    fit = batches.resolved.fit
    step, position = divmod(batch.index, batches.num_positions)
    torch.manual_seed(fit.seed)
    model = batches.resolved.build_model()
    frozen = freeze(model, fit.freeze)
    checkpoints = checkpoints_of(RunStore(path))
    inputs, table = batches.data.collate(batch), batches.resolved.config.embeddings
    weights = "those that training began with: no checkpoint at or before this batch is kept"
    with checkpoints.newest([], (batch.epoch, step)) as checkpoint:
        if checkpoint is not None:
            name, folder = checkpoint
            load_weights(folder / "model.safetensors", model)
            behind = "" if load_state(folder).position == (batch.epoch, step) else ", which is earlier than the batch"
            weights = f"of {name}{behind}"
        if table.width:
            rows = SavedTable(None if checkpoint is None else checkpoint[1], table.width, fit.seed, "rows")
            inputs = next(embedded([inputs], rows.read, table.node_types))
    target = batches.data.target(inputs)
    row_weight = root_weights(inputs)
    weight = step_weight(batches.task, target, row_weight)
    seed_dropout(fit.seed, batch.epoch, step, position)
    outputs: list[tuple[str, str]] = []
    hooks = [
        module.register_forward_hook(_watch(name, outputs))
        for name, module in model.named_modules()
        if not [*module.children()]
    ]
    model.train()
    for module in frozen:
        module.eval()
    with flushed_subnormals():
        with autocast(torch.device("cpu"), fit.precision):
            output = step_output(model(inputs))
        for hook in hooks:
            hook.remove()
        if not float(weight):
            return [("weights", weights), ("loss", "none: the batch has no labelled target"), *outputs]
        loss = step_loss(batches.task, output, target, weight, row_weight)
        (loss / weight).backward()
    mean = float(loss.detach()) / float(weight)
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    return [
        ("weights", weights),
        (
            "loss",
            f"{mean!r} over {float(batches.task.weight(target)):,.0f} targets; norm of its gradient {float(norm):.6g}",
        ),
        *outputs,
    ]


def _watch(name: str, outputs: list[tuple[str, str]]) -> Any:
    def hook(module: "torch.nn.Module", _: Any, output: Any) -> None:
        import torch

        if isinstance(output, torch.Tensor) and output.is_floating_point() and output.numel():
            value = output.detach().double()
            bad = int((~torch.isfinite(value)).sum())
            figures = (
                f"root mean square {float(value.square().mean().sqrt()):.4g}, largest {float(value.abs().max()):.4g}"
            )
            outputs.append((name, f"{list(output.shape)} {figures}" + (f", {bad:,} not finite" if bad else "")))

    return hook


def main() -> None:
    config = parse(ReplayConfig, __doc__, ("run",))
    if config.out is not None:
        if config.out.suffix != ".npz":
            raise ConfigError(f"out: expected a new file ending in .npz, got {config.out}; set --out")
        from graphmill.storage.filesystem.outputs import check_output

        check_output(config.out, "a batch", is_file=True)
    batches = open_batches(config.run, allow_import=config.allow_import)
    batch = batches.sampler.sample(config.epoch, config.batch)
    lines = describe_batch(batches, batch)
    if config.out is not None:
        import numpy as np

        from graphmill.storage.filesystem.fsync import write_durably

        arrays: dict[str, Any] = dict(_arrays(batch))
        content = io.BytesIO()
        np.savez(content, **arrays)
        with one_line_errors(str(config.out), "write the batch", ConfigError):
            write_durably(config.out, content.getvalue())
    if config.loss:
        lines += describe_loss(batches, batch, config.run)
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        print(f"{name:>{width}}  {value}")


if __name__ == "__main__":
    run(main)
