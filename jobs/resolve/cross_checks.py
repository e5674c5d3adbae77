"""What needs this machine: a run's directory and a device, looked at before anything is prepared or started.

Options check their own values (`graphmill.core.option_checks`), and `resolve` checks them against the graph; folders: `graphmill.storage.filesystem.outputs`.
"""

import time
from typing import TYPE_CHECKING

from graphmill.core.errors import ConfigError

if TYPE_CHECKING:
    from graphmill.cluster.runs.run_store import RunStore
    from graphmill.jobs.config.config import RunOptions


def choose_run_dir(job: str, options: "RunOptions") -> "RunStore":
    """Where the run lives; raises before any work where it cannot."""
    from graphmill.cluster.runs.run_directory import check_free, load_config  # loads pyarrow
    from graphmill.cluster.runs.run_store import RunStore

    if options.resume is not None:
        place = RunStore(options.resume)
        load_config(place)
        return place
    place = RunStore(options.dir or f"runs/{job}-{time.strftime('%Y%m%d-%H%M%S')}")
    place.check_bucket()
    check_free(place)
    return place


def check_device(device: str) -> None:
    """Raises ConfigError for a device that torch does not know or have."""
    import torch

    try:
        known = torch.device(device)
    except RuntimeError:
        raise ConfigError(f"device: expected cpu or cuda, got {device!r}; set --device cpu") from None
    if known.type == "cuda" and (known.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device: {device} is not there, PyTorch sees {torch.cuda.device_count()}; set --device cpu")
    if known.type not in ("cpu", "cuda"):
        raise ConfigError(f"device: expected cpu or cuda, got {device!r}; set --device cpu")
