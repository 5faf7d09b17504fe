"""Codes with all dimensions, and how novel an image is by them."""

from __future__ import annotations

import numpy as np

from bayesncl.codes.estimator import ReadableCodes


def dense_codes(codes: ReadableCodes, x: np.ndarray) -> np.ndarray:
    """Codes [N, D] of embeddings x with all dimensions, whatever `n_active` is."""
    z: np.ndarray = codes.with_options(n_active=None, unit_norm=True).transform(x)
    return z


def novelty(z: np.ndarray) -> np.ndarray:
    """Entropy of each dense code [N, D], scaled to sum 1, as a share of log D: 0 to 1.

    Codes of familiar images have few strong dimensions. The strongest entry of a kept code does
    not tell: keeping few dimensions and scaling to unit length makes it large for any image.
    """
    total = z.sum(1, dtype=np.float64, keepdims=True)
    p = z / np.where(total > 0, total, 1)
    surprise = -np.log(np.where(p > 0, p, 1))
    entropy: np.ndarray = (p * surprise).sum(1) / np.log(max(z.shape[1], 2))
    return entropy
