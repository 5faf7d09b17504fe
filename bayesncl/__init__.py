"""Image encoders whose feature dimensions a person can read: non-negative contrastive learning with Bernoulli gates."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.2.0"

# The API: every public name and the module it lives in.
_HOME = {
    "InputError": "errors",
    "LARS": "lars",
    "ReadableCodes": "codes",
    "bernoulli_kl": "gates",
    "info_nce": "objective",
    "interpretability": "measure.interpretability",
    "ipw_similarity": "objective",
    "load": "model",
    "open_gates": "gates",
    "rep_relu": "gates",
    "retrieval": "measure.retrieval",
    "top_k_mask": "gates",
    "train": "train",
    "warmup_cosine": "schedule",
}


def __dir__() -> list[str]:
    return [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    """Import a public name where it lives, when it is first asked for: `bayesncl --help` need not wait for torch."""
    if name == "__all__":
        return [*_HOME]
    if name in _HOME:
        value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
        return globals().setdefault(name, value)  # `train` is also the name of a module, which can be called
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
