"""Rows of numbers in memory or out of it, prepared for comparison by cosine as they are read.

A row is brought to unit length, since embeddings of some models differ in length by orders of magnitude for reasons
that have nothing to do with what they show; its columns are centred, and columns of more than the median deviation are
brought down to it, so that no outlier coordinate decides alone. (Columns of less are not blown up: dividing every
column by its deviation gives worse neighbours.) Of few columns the direction says too little: there rows are
standardised and get a constant as a further column, which lets the cosine see lengths.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .arrays import memory
from .errors import InputError

BLOCK_BYTES = 64 << 20  # read at a time
SHARE = 0.5  # of the free memory that rows may take; more are read anew each time
FEW = 16  # columns below which rows keep their length


class Moments(NamedTuple):
    """What centres and scales columns; float64 [F]."""

    mean: Tensor
    scale: Tensor  # 0 for a column that is the same in every row, which says nothing

    @property
    def width(self) -> int:
        """Numbers in a prepared row."""
        return len(self.mean) + (len(self.mean) < FEW)


def measure(source: Any, chosen: Tensor | None = None) -> Moments:
    """Mean and scale of the columns of `source` [N, F] (or of its rows `chosen`), in one pass over blocks.

    A column that differs by no more than rounding is constant.
    """
    width = source.shape[1]
    device = source.device if isinstance(source, Tensor) else torch.device("cpu")
    count = 0
    mean = torch.zeros(width, dtype=torch.float64, device=device)
    squares, size = torch.zeros_like(mean), mean.new_zeros(())
    for _, index in _blocks(source, chosen):
        raw = _read(source, index, device)
        size = torch.maximum(size, raw.abs().max().double())
        tiny = torch.finfo(raw.dtype).tiny ** 0.4  # squares of less are lost
        x = _unit(raw.double())
        n = len(x)
        centre = x.mean(0)
        shift = centre - mean
        squares = squares + (x - centre).square().sum(0) + shift.square() * (count * n / (count + n))
        mean = mean + shift * (n / (count + n))
        count += n
    if 0 < float(size) < tiny:
        raise InputError(f"X contains no number above {float(size):.0e}: multiply X by a large number")
    deviation = (squares / count).sqrt()
    varies = deviation > 1e-6 * mean.abs() + torch.finfo(torch.float64).tiny
    if not bool(varies.any()):
        raise InputError(f"all {count} rows of X are the same in all {width} columns: there is nothing to tell apart")
    least = deviation[varies].median() if width >= FEW else 0.0
    scale = torch.where(varies, 1 / deviation.clamp_min(least), 0.0)
    return Moments(mean.cpu(), scale.cpu())


def take(source: Any, index: slice | Tensor, moments: Moments, device: torch.device) -> Tensor:
    """Some rows of `source`, prepared: float32 [n, F] on `device`, [n, F + 1] if F is small."""
    return prepare(_read(source, index, device), moments)


def prepare(x: Tensor, moments: Moments, like: Tensor | None = None) -> Tensor:
    """Rows [n, F] brought to unit length, centred and scaled; with `like`, divided by the lengths of those rows."""
    x = _unit(x) if like is None else x * (_unit(like).norm(dim=1) / like.norm(dim=1).clamp_min(1e-12))[:, None]
    mean, scale = moments.mean.to(x.device, x.dtype), moments.scale.to(x.device, x.dtype)
    x = ((x - mean) * scale).float()
    return x if x.shape[1] == moments.width else F.pad(x, (0, 1), value=math.sqrt(x.shape[1]))


class Stream:
    """Rows that stay where they are: those asked for are read and prepared each time."""

    def __init__(self, source: Any, chosen: Tensor | None, moments: Moments, device: torch.device) -> None:
        self.source, self.chosen, self.moments, self.device = source, chosen, moments, device

    def __len__(self) -> int:
        return len(self.source) if self.chosen is None else len(self.chosen)

    def __getitem__(self, index: slice | Tensor) -> Tensor:
        if self.chosen is not None:
            index = self.chosen[index.cpu() if isinstance(index, Tensor) else index]
        return take(self.source, index, self.moments, self.device)


def hold(source: Any, chosen: Tensor | None, moments: Moments, device: torch.device) -> Tensor | Stream:
    """The rows as one tensor [N, F] if half of the free memory can hold it, otherwise a `Stream`."""
    stream = Stream(source, chosen, moments, device)
    width = moments.width
    if 4 * len(stream) * width > SHARE * free_memory(device):
        return stream
    held = torch.empty(len(stream), width, dtype=torch.float32, device=device)
    for place, index in _blocks(source, chosen):
        held[place] = take(source, index, moments, device)
    return held


def free_memory(device: torch.device) -> int:
    """Bytes that a new tensor may take there."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else memory()


def _unit(x: Tensor) -> Tensor:
    return x if x.shape[1] < FEW else F.normalize(x, eps=torch.finfo(x.dtype).tiny)


def _blocks(source: Any, chosen: Tensor | None) -> Iterator[tuple[slice, slice | Tensor]]:
    """Places among the rows wanted, and which rows of `source` these are."""
    n = len(source) if chosen is None else len(chosen)
    size = max(1, BLOCK_BYTES // (8 * source.shape[1]))
    for start in range(0, n, size):
        place = slice(start, min(start + size, n))
        yield place, place if chosen is None else chosen[place]


def _read(source: Any, index: slice | Tensor, device: torch.device) -> Tensor:
    """Rows as float32, or as float64 where the source has more digits; what has no finite length is refused."""
    if isinstance(source, Tensor):
        x = source[index.to(source.device) if isinstance(index, Tensor) else index]
        x = x.to(device, torch.float64 if x.dtype in (torch.float64, torch.int64, torch.int32) else torch.float32)
    else:
        block = source[index.cpu().numpy() if isinstance(index, Tensor) else index]
        exact = block.dtype.itemsize > 2 and block.dtype != np.float32
        x = torch.from_numpy(np.array(block, np.float64 if exact else np.float32)).to(device)
    if not bool(torch.isfinite(torch.linalg.vector_norm(x))):
        bad = ~torch.isfinite(x.norm(dim=1))
        if bool(bad.any()):
            place = int(bad.nonzero()[0])
            row = int(index[place]) if isinstance(index, Tensor) else place + (index.start or 0)
            largest = float(x[place].abs().max())
            if math.isfinite(largest):
                raise InputError(f"X contains {largest:.0e} in row {row}: divide X by a large number")
            kind = "NaN" if bool(torch.isnan(x[place]).any()) else "infinity"
            raise InputError(f"X contains {kind}, first in row {row}: leave such rows out or fill them in")
    return x
