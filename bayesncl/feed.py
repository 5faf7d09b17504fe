"""Which images make a batch, and how their pixels reach the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from . import distributed
from .errors import or_refuse

Pixels = np.ndarray | Tensor  # uint8 [N, 3, H, W], in (memory-mapped) host memory or on the device

Item = TypeVar("Item")

RESIDENT_SHARE = 0.6  # of the free device memory that the whole set may take
AHEAD = 4  # batches read ahead of the device when the set does not fit


def epoch_order(seed: int, epoch: int, n: int) -> Tensor:
    """Permutation of n images, a function of seed and epoch alone: the same on one process as on many."""
    return torch.randperm(n, generator=torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63))


def batch_rows(order: Tensor, step: int, batch: int) -> Tensor:
    """The images of this process in step `step` of an epoch: its share of the global batch."""
    share = batch // distributed.world_size()
    start = step * batch + distributed.rank() * share
    return order[start : start + share]


def settle(pixels: np.ndarray, device: torch.device) -> Pixels:
    """Put the whole set on a GPU as uint8 where it fits; otherwise leave it where it is, to be streamed."""
    if device.type != "cuda" or pixels.nbytes > RESIDENT_SHARE * torch.cuda.mem_get_info(device)[0]:
        return pixels
    resident = torch.empty(pixels.shape, dtype=torch.uint8, device=device)
    for start in range(0, len(pixels), 8192):  # in parts: a memory-mapped set need not fit into host memory
        part = torch.from_numpy(np.array(pixels[start : start + 8192]))
        resident[start : start + len(part)] = part.to(device)
    return resident


def batches(
    pixels: Pixels, batch: int, seed: int, epoch: int, first: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Pixels uint8 [b, 3, H, W] and index int64 [b], on the device, for steps first, first + 1, ... of an epoch.

    The global batch is `batch` images, b of them for this process; the N mod batch images left over are dropped.
    """
    order = epoch_order(seed, epoch, len(pixels))
    steps = range(first, len(pixels) // batch)
    if device.type == "cuda" and not isinstance(pixels, Tensor):
        yield from _streamed(pixels, order, batch, steps, device)
        return
    order = order.to(device)
    for step in steps:
        index = batch_rows(order, step, batch)
        yield pixels.index_select(0, index) if isinstance(pixels, Tensor) else _read(pixels, index), index


def _streamed(
    pixels: np.ndarray, order: Tensor, batch: int, steps: range, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches read from (memory-mapped) host memory ahead of the device, copied on a stream of their own."""
    stream = torch.cuda.Stream(device)

    def read() -> Iterator[tuple[Tensor, Tensor, torch.cuda.Event]]:
        torch.cuda.set_device(stream.device)  # of this thread: it would begin, and take memory, on the first GPU
        for step in steps:
            index = batch_rows(order, step, batch)
            host = _read(pixels, index).pin_memory()
            with torch.cuda.stream(stream):
                copied = torch.cuda.Event()
                on_device = host.to(device, non_blocking=True), index.pin_memory().to(device, non_blocking=True)
                copied.record(stream)
            yield *on_device, copied

    for part, index, copied in ahead(read(), AHEAD):
        now = torch.cuda.current_stream(device)
        now.wait_event(copied)
        part.record_stream(now)
        index.record_stream(now)
        yield part, index


def ahead(items: Iterator[Item], depth: int) -> Iterator[Item]:
    """The same items, made by a thread that keeps up to `depth` of them ready; what it raises is raised here."""
    end = object()
    with ThreadPoolExecutor(1) as pool:
        ready: deque[Future[Any]] = deque(pool.submit(next, items, end) for _ in range(depth))
        try:
            while (item := ready.popleft().result()) is not end:
                ready.append(pool.submit(next, items, end))
                yield item
        finally:
            for future in ready:  # the reader may leave early
                future.cancel()


def _read(pixels: np.ndarray, index: Tensor) -> Tensor:
    """Rows of a possibly memory-mapped array; reading in file order spares the disk."""
    rows = index.numpy()
    order = np.argsort(rows)
    out = np.empty((len(rows), *pixels.shape[1:]), np.uint8)
    with or_refuse("the images can no longer be read", OSError, ValueError):
        out[order] = pixels[rows[order]]
    return torch.from_numpy(out)
