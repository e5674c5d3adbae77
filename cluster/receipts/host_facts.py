"""Describes what decides the last digits of a run's numbers on a host: processor, settings of kernels, threads and versions of packages."""

import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_PACKAGES = ("graphmill", "torch", "ray", "numpy", "scipy", "pyarrow", "numba", "rdkit")
# Environment variables by which PyTorch, MKL, oneDNN, OpenBLAS and NumPy choose their kernels
_SETTINGS = (
    *("ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "MKL_DEBUG_CPU_TYPE"),
    *("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES"),
)
# Facts that must be equal if results are compared bit for bit. Other packages do not compute gradients.
_DECIDING = ("cpu", "instructions", "settings", "device", "gpu", "threads", "packages.torch", "packages.numpy")


def host_facts(device: "str | torch.device", threads: int) -> dict[str, Any]:
    """The facts of this process. `device`: where the model is."""
    import torch

    device = torch.device(device)
    return {
        "cpu": cpu_name(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "settings": {name: os.environ[name] for name in _SETTINGS if name in os.environ},
        "device": device.type,
        **({"gpu": _gpu(device)} if device.type == "cuda" else {}),
        "threads": threads,
        "python": platform.python_version(),
        "packages": installed_packages(),
    }


def facts_of_ranks(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The facts of rank 0, with those of the ranks on which a deciding fact differs from rank 0's: {"others": [facts, …]}."""
    others: list[dict[str, Any]] = []
    for facts in ranks[1:]:
        deciding = _deciding(facts)
        if deciding != _deciding(ranks[0]) and deciding not in map(_deciding, others):
            others.append(dict(facts))
    return {**ranks[0], **({"others": others} if others else {})}


def differing_facts(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Texts on the facts that differ and may change the last digits: "cpu: A there, B here". `one`: what `facts_of_ranks` returned."""
    texts = [text for facts in (one, *one.get("others", ())) for text in _differing(facts, other)]
    return list(dict.fromkeys(texts))


def _deciding(facts: Mapping[str, Any]) -> list[Any]:
    return [_at(facts, name) for name in _DECIDING]


def _gpu(device: "torch.device") -> str:
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)}, capability {major}.{minor}"


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    texts = []
    for name in _DECIDING:
        values = [_at(facts, name) for facts in (one, other)]
        if values[0] != values[1]:
            texts.append(f"{name}: {_shown(values[0])} there, {_shown(values[1])} here")
    return texts


def _at(facts: Mapping[str, Any], name: str) -> Any:
    group, _, leaf = name.rpartition(".")
    return (facts.get(group, {}) if group else facts).get(leaf)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{name}={each}" for name, each in value.items()) or "none"
    return str(value)


def installed_packages() -> dict[str, str]:
    """Versions of the recorded packages, without packages that are not installed."""
    versions = {}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
