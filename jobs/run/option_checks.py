"""What is wrong with options, found before anything is prepared or started; each message names the option as it is typed.

Options check their own values (`storage.option_checks`), and `resolve` checks what they mean together; here are devices; folders: `storage.outputs`.
"""

from storage.errors import ConfigError


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
