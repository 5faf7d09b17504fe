"""Codes with all dimensions."""

import numpy as np

from bayesncl.codes.estimator import ReadableCodes


def dense_codes(codes: ReadableCodes, x: np.ndarray) -> np.ndarray:
    """Codes [N, D] of embeddings x with all dimensions, whatever `n_active` is."""
    z: np.ndarray = codes.with_options(n_active=None, unit_norm=True).transform(x)
    return z
