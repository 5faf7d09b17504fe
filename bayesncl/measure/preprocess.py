"""Rows of embeddings, read in blocks and prepared for comparison by cosine.

Heads see rows like this, and the measures without labels judge codes by rows like this.

Rows are scaled to unit length: models give lengths that differ by orders of magnitude and carry no
content. Columns are centered, and columns whose deviation exceeds the median are scaled down to it,
so that no outlier coordinate dominates. (Scaling every column to unit deviation gives worse
neighbors.) With fewer than 16 columns the direction alone says too little: such rows are
standardized and get a constant extra column, through which the cosine sees their length.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bayesncl.errors import InputError
from bayesncl.inputs import check_memory
from bayesncl.measure.rows import slices

MIN_DIRECTION_COLUMNS = 16  # of fewer columns the direction says too little: rows keep their length
BYTES_PER_BLOCK = 64 << 20


class Moments(NamedTuple):
    """Center and scale of the columns, float64 [F]."""

    mean: Tensor
    scale: Tensor  # 0 for constant columns, which may be all

    @property
    def width(self) -> int:
        """Columns of a prepared row."""
        columns = len(self.mean)
        return columns + 1 if columns < MIN_DIRECTION_COLUMNS else columns


def measure_moments(source: np.ndarray, chosen: np.ndarray) -> Moments:
    """Moments of the rows `chosen` of `source` [N, F], in one pass over blocks."""
    width = source.shape[1]
    count = 0
    mean = torch.zeros(width, dtype=torch.float64)
    squares = torch.zeros_like(mean)
    for _, index in _blocks(source, chosen):
        x = unit_length(read_rows(source, index).double())
        n, center = len(x), x.mean(0)
        shift = center - mean
        between = shift.square() * (count * n / (count + n))
        squares = squares + (x - center).square().sum(0) + between
        mean = mean + shift * (n / (count + n))
        count += n
    deviation = (squares / count).sqrt()
    varies = deviation > 1e-6 * mean.abs() + torch.finfo(torch.float64).tiny  # more than rounding
    least = deviation[varies].median() if width >= MIN_DIRECTION_COLUMNS else 0.0
    scale = torch.where(varies, 1 / deviation.clamp_min(least), 0.0)
    return Moments(mean, scale)


def prepare(x: Tensor, moments: Moments, whole: Tensor | None = None) -> Tensor:
    """Rows [n, F] at unit length, centered and scaled, float32; [n, F + 1] if F is small.

    With `whole` [n, F], x is scaled as those rows are: the prepared parts of a row then average to
    the prepared row.
    """
    if whole is None:
        x = unit_length(x)
    else:
        factor = unit_length(whole).norm(dim=1) / whole.norm(dim=1).clamp_min(1e-12)
        x = x * factor[:, None]
    mean, scale = moments.mean.to(x.device, x.dtype), moments.scale.to(x.device, x.dtype)
    x = ((x - mean) * scale).float()
    return x if x.shape[1] == moments.width else F.pad(x, (0, 1), value=math.sqrt(x.shape[1]))


def restore(h: Tensor, moments: Moments) -> Tensor:
    """Rows [n, F] of unit length (approximately) from prepared rows: the inverse of `prepare`."""
    mean, scale = moments.mean.to(h), moments.scale.to(h)
    return mean + torch.where(scale > 0, h[:, : len(mean)] / scale.clamp_min(1e-30), 0.0)


def unit_length(x: Tensor) -> Tensor:
    """Rows [n, F] at unit length; rows with few columns stay as they are."""
    if x.shape[1] < MIN_DIRECTION_COLUMNS:
        return x
    return F.normalize(x, eps=torch.finfo(x.dtype).tiny)


def load_rows(
    source: np.ndarray, chosen: np.ndarray, moments: Moments, device: torch.device
) -> Tensor:
    """The prepared rows `chosen` of `source`, in one tensor."""
    n = len(chosen)
    if device.type == "cpu":
        check_memory(4 * n * moments.width, f"{n:,} rows (max_samples draws fewer)")
    rows = torch.empty(n, moments.width, dtype=torch.float32, device=device)
    for target, index in _blocks(source, chosen):
        rows[target] = prepare(read_rows(source, index).to(device), moments)
    return rows


def _blocks(source: np.ndarray, chosen: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Slices of the chosen rows, each with the index of these rows in `source`."""
    size = max(1, BYTES_PER_BLOCK // (8 * source.shape[1]))
    return ((part, chosen[part]) for part in slices(len(chosen), size))


def read_rows(source: np.ndarray, index: np.ndarray) -> Tensor:
    """Rows as float32, or float64 where the source is more precise; refuses non-finite rows."""
    exact = source.dtype.itemsize > 2 and source.dtype != np.float32
    # C order: sums over a row round differently in another layout
    x = torch.from_numpy(np.array(source[index], np.float64 if exact else np.float32, order="C"))
    bad = (~torch.isfinite(x.norm(dim=1))).nonzero()
    if len(bad):
        row = index[int(bad[0])]
        raise InputError(f"X contains NaN, infinity or values above 1e19, first in row {row}")
    return x
