"""The one place that chooses a device."""

import torch

from bayesncl.errors import InputError

_default = "auto"  # of this process


def set_default_device(name: str) -> None:
    """Let ``auto`` stand for the device of this name, for all that this process computes."""
    global _default
    _default = name


def find_device(name: str | torch.device | None = "auto") -> torch.device:
    """The device of that name; ``auto`` (or None) is the default.

    Without `set_default_device`, that is the current GPU if there is one, else the CPU.
    ``cuda:N`` also becomes torch's current GPU. ``mps`` is only used when asked for by name.
    """
    if isinstance(name, torch.device):
        return name
    if name is None or name == "auto":
        name = _default
    if name == "auto":
        name = f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise InputError(f"unknown device {name!r}: use auto, cpu, cuda, cuda:N or mps")
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise InputError(f"device {name!r} is not available: torch sees {count} GPUs")
        if device.index is not None:
            torch.cuda.set_device(device)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise InputError("device 'mps' is not available here")
    return device
