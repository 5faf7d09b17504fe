"""Twins: dimensions that are strong on the same images, by the cosine of their columns."""

from __future__ import annotations

import numpy as np
import torch

from bayesncl.data.images import spread_evenly
from bayesncl.inputs import Array
from bayesncl.measure.rows import as_tensor, drop_silent, unit_codes

TWIN = 0.9  # cosine above which two dimensions are twins
MAX_ROWS = 8192  # rows that cosines are computed over, spread evenly


def column_cosines(z: Array) -> torch.Tensor:
    """Cosines of the columns of codes [N, D] at unit length, [D, D]; 0 on the diagonal."""
    codes = unit_codes(z)
    rows = drop_silent(as_tensor(codes[spread_evenly(codes.shape[0], MAX_ROWS)]))
    columns = torch.nn.functional.normalize(rows, dim=0)
    return (columns.T @ columns).fill_diagonal_(0)


def twin_share(z: Array) -> float:
    """Share of the dimensions of codes [N, D] that have a twin; dead ones have none."""
    return float((column_cosines(z).amax(1) > TWIN).float().mean())


def distinct_columns(z: np.ndarray, least: int = 1) -> np.ndarray:
    """Columns of codes [N, D] no two of which are twins, sorted.

    Columns are taken by falling sum, unless one that was taken is a twin: so every column left out
    has a twin that stays. At least `least` are taken.
    """
    cosine = column_cosines(z)
    order = np.argsort(-z.sum(0), kind="stable").tolist()
    free, kept = torch.ones(len(order), dtype=torch.bool), []
    for k in order:
        if free[k]:
            kept.append(k)
            free &= cosine[k] <= TWIN
    taken = set(kept)
    rest = [k for k in order if k not in taken]
    return np.sort([*kept, *rest[: max(0, least - len(kept))]])
