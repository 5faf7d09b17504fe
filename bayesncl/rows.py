"""Rows of numbers in memory or out of it, centred and scaled as they are read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .errors import InputError

BLOCK_BYTES = 64 << 20  # read at a time
SHARE = 0.5  # of the free memory that rows may take; more are read anew each time


class Moments(NamedTuple):
    """What centres and scales columns; float64 [F]."""

    mean: Tensor
    scale: Tensor  # 1 / standard deviation; 0 for a column that is the same in every row, which says nothing


def measure(source: Any, chosen: Tensor | None = None) -> Moments:
    """Mean and scale of the columns of `source` [N, F] (or of its rows `chosen`), in one pass over blocks."""
    width = source.shape[1]
    device = source.device if isinstance(source, Tensor) else torch.device("cpu")
    count, mean, squares, largest = 0, 0.0, 0.0, torch.zeros((), dtype=torch.float64, device=device)
    for index in _blocks(source, chosen):
        x = _read(source, index, device).double()
        n = len(x)
        centre = x.mean(0)
        shift = centre - mean
        squares = squares + (x - centre).square().sum(0) + shift.square() * (count * n / (count + n))
        mean = mean + shift * (n / (count + n))
        largest = torch.maximum(largest, x.abs().amax())
        count += n
    assert isinstance(mean, Tensor) and isinstance(squares, Tensor)
    deviation = (squares / count).sqrt()
    # what rounding leaves of a column of equal numbers is not a deviation
    varies = deviation > 1e-6 * mean.abs() + torch.finfo(torch.float64).tiny
    if not bool(varies.any()):
        raise InputError(f"all {count} rows of X are the same in all {width} columns: there is nothing to tell apart")
    scale = torch.where(varies, 1 / deviation, 0.0)
    return Moments(mean.cpu(), scale.cpu())


def take(source: Any, index: slice | Tensor, moments: Moments, device: torch.device) -> Tensor:
    """Some rows of `source`, centred and scaled: float32 [n, F] on `device`."""
    x = _read(source, index, device)
    mean, scale = moments.mean.to(device, x.dtype), moments.scale.to(device, x.dtype)
    return ((x - mean) * scale).float()


class Stream:
    """Rows that stay where they are: those asked for are read, centred and scaled each time."""

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
    width = source.shape[1]
    if 4 * len(stream) * width > SHARE * free_memory(device):
        return stream
    held = torch.empty(len(stream), width, device=device)
    start = 0
    for index in _blocks(source, chosen):
        x = take(source, index, moments, device)
        held[start : start + len(x)] = x
        start += len(x)
    return held


def free_memory(device: torch.device) -> int:
    """Bytes that a new tensor may take there."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo") as file:
            return next(1024 * int(line.split()[1]) for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _blocks(source: Any, chosen: Tensor | None) -> Iterator[slice | Tensor]:
    n = len(source) if chosen is None else len(chosen)
    size = max(1, BLOCK_BYTES // (8 * source.shape[1]))
    for start in range(0, n, size):
        place = slice(start, min(start + size, n))
        yield place if chosen is None else chosen[place]


def _read(source: Any, index: slice | Tensor, device: torch.device) -> Tensor:
    """Rows as float32, or as float64 where the source has more digits; what is not a number is refused."""
    if isinstance(source, Tensor):
        x = source[index.to(source.device) if isinstance(index, Tensor) else index]
        x = x.to(device, torch.float64 if x.dtype in (torch.float64, torch.int64, torch.int32) else torch.float32)
    else:
        block = source[index.cpu().numpy() if isinstance(index, Tensor) else index]
        exact = block.dtype.itemsize > 2 and block.dtype != np.float32
        x = torch.from_numpy(np.array(block, np.float64 if exact else np.float32)).to(device)
    if not bool(torch.isfinite(x.sum())) and not bool(torch.isfinite(x).all()):
        row = int((~torch.isfinite(x)).any(1).nonzero()[0])
        row = int(index[row]) if isinstance(index, Tensor) else row + (index.start or 0)
        kind = "NaN" if bool(torch.isnan(x).any()) else "infinity"
        raise InputError(f"X contains {kind}, first in row {row}: leave such rows out or fill them in")
    return x
