"""Tests whether a norm keeps a point's distance from the origin: PPGT's case study of AdaRMSN (arXiv:2504.12588), an autoencoder of points in the plane.

    python -m graphmill.jobs.papers.norm_autoencoder                     three norms, 5,000 steps each, under a minute on one core
    python -m graphmill.jobs.papers.norm_autoencoder --norms rms ada --steps 500

Points have a random direction and a radius from 0.5 to 1.5. A linear map without bias maps them to `--width` channels, a norm follows, and a small
perceptron reconstructs the point. RMSNorm's output has only the direction, so the radius is lost. Batch normalisation and AdaRMSN keep the radius.

You should see the mean error of the radius at about 0.25 for rms (the error of a constant radius) and near 0 for batch and ada, as in the paper's figure.
The paper specifies neither the perceptron nor the optimizer; here the optimizer is Adam at 1e-3. results.md and results.json are written to --out.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from graphmill.core.option_checks import Count, Positive, check_fields
from graphmill.jobs.bench.results import check_results, keep, table
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse

if TYPE_CHECKING:
    from torch import Tensor

Norm = Literal["rms", "batch", "ada"]


@dataclass(frozen=True)
class AutoencoderConfig:
    """Reconstruct points of a plane from the output of a norm."""

    norms: tuple[Norm, ...] = get_args(Norm)
    """Norms to compare."""
    steps: Count = 5000
    """Training steps."""
    points: int = 1024
    """Points per step; each step draws new points."""
    width: Count = 16
    """Channels of the hidden layer."""
    lr: Positive = 1e-3
    """Adam's learning rate."""
    seed: int = 0
    """The same seed gives the same table."""
    out: Path = Path("runs/norm_autoencoder")
    """Folder of the table."""

    def __post_init__(self) -> None:
        check_fields(self, points=2)


def draw_points(count: int) -> "Tensor":
    """Draws random points, [count, 2]."""
    import torch

    radius, angle = 0.5 + torch.rand(count), 2 * torch.pi * torch.rand(count)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)


def fit(config: AutoencoderConfig, norm: Norm) -> dict[str, float]:
    """Returns two mean errors after training, on new points: error of the radius, and error of the direction in radians."""
    import torch
    from torch import nn

    from graphmill.models.primitives.ada_rms_norm import AdaRMSNorm
    from graphmill.models.primitives.batch_norm import RowBatchNorm

    began = time.perf_counter()
    torch.manual_seed(config.seed)
    width = config.width
    kinds = {"rms": nn.RMSNorm, "batch": RowBatchNorm, "ada": AdaRMSNorm}
    model = nn.Sequential(
        nn.Linear(2, width, bias=False),
        kinds[norm](width),
        nn.Linear(width, 4 * width),
        nn.GELU(),
        nn.Linear(4 * width, 2),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr)
    for _ in range(config.steps):
        points = draw_points(config.points)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(points), points).backward()
        optimizer.step()
    model.eval()
    points = draw_points(4096)
    with torch.no_grad():
        found = model(points)
    radius = (found.norm(dim=1) - points.norm(dim=1)).abs().mean()
    angle = torch.nn.functional.cosine_similarity(found, points).clamp(-1, 1).acos().mean()
    return {"radius": float(radius), "angle": float(angle), "seconds": time.perf_counter() - began}


def main() -> None:
    config = parse(AutoencoderConfig, __doc__)
    check_results(config.out)
    results = {norm: fit(config, norm) for norm in config.norms}
    columns = {"norm": "", "error of the radius": ".4f", "of the direction": ".4f", "seconds": ".0f"}
    text = "\n".join(table(columns, [(norm, *row.values()) for norm, row in results.items()]))
    keep(config.out, config, text, results=results)
    print(text)


if __name__ == "__main__":
    run(main)
