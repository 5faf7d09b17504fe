"""Image encoders whose feature dimensions a person can read: non-negative contrastive learning with Bernoulli gates."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .codes import ReadableCodes
    from .gates import bernoulli_kl, open_gates, rep_relu, top_k_mask
    from .lars import LARS
    from .measure.interpretability import interpretability
    from .measure.retrieval import retrieval
    from .model import load
    from .objective import info_nce, ipw_similarity
    from .schedule import warmup_cosine

_HOME = {
    "bernoulli_kl": "gates",
    "open_gates": "gates",
    "rep_relu": "gates",
    "top_k_mask": "gates",
    "LARS": "lars",
    "ReadableCodes": "codes",
    "interpretability": "measure.interpretability",
    "retrieval": "measure.retrieval",
    "load": "model",
    "info_nce": "objective",
    "ipw_similarity": "objective",
    "warmup_cosine": "schedule",
}

__all__ = [
    "LARS",
    "ReadableCodes",
    "bernoulli_kl",
    "info_nce",
    "interpretability",
    "ipw_similarity",
    "load",
    "open_gates",
    "rep_relu",
    "retrieval",
    "top_k_mask",
    "warmup_cosine",
]


def __getattr__(name: str) -> Any:
    """Import a public name where it lives, when it is first asked for: `bayesncl --help` need not wait for torch."""
    if name in _HOME:
        value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
