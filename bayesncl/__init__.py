"""Sparse, nameable image features: non-negative contrastive learning with Bernoulli gates."""

import importlib
import os
from typing import Any

# Waiting threads sleep instead of spinning, which is many times faster on a busy machine
# (docs/performance.md). OpenMP reads this when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.3.0"

# The public API: each name and the module that defines it, imported on first use.
_MODULES = {
    "InputError": "errors",
    "LARS": "method.lars",
    "ReadableCodes": "codes.estimator",
    "bernoulli_kl": "method.gates",
    "info_nce": "method.losses",
    "interpretability": "measure.interpretability",
    "ipw_similarity": "method.losses",
    "load": "codes.open",
    "open_gates": "method.gates",
    "rep_relu": "method.gates",
    "retrieval": "measure.retrieval",
    "top_k_mask": "method.gates",
    "train": "training.loop",
    "verdict": "evaluate",
    "warmup_cosine": "method.lars",
}
__all__ = list(_MODULES)


def __dir__() -> list[str]:
    return [*_MODULES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
    return globals().setdefault(name, value)
