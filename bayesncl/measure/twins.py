"""Twins: dimensions that are strong on the same images, by the cosine of their columns."""

from __future__ import annotations

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
