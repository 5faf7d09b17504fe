"""Batches: which images each step gets, and how their pixels reach the device."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from bayesncl import distributed
from bayesncl.data.cache import map_in_threads
from bayesncl.method.rng import epoch_order

Pixels = np.ndarray | Tensor  # uint8 [N, 3, H, W], in (memory-mapped) host memory or on the device

RESIDENT_SHARE = 0.6  # of free device memory; a larger dataset is streamed
BATCHES_AHEAD = 4  # read ahead of the device when streaming
ROWS_PER_COPY = 8192


def batch_rows(order: Tensor, step: int, batch: int) -> Tensor:
    """This process's share of the global batch at step `step` of an epoch."""
    share = batch // distributed.world_size()
    start = step * batch + distributed.rank() * share
    return order[start : start + share]


def to_device(pixels: np.ndarray, device: torch.device) -> Pixels:
    """Copy the dataset to a GPU as uint8 if it fits; otherwise leave it in place for streaming."""
    if device.type != "cuda":
        return pixels
    if pixels.nbytes > RESIDENT_SHARE * torch.cuda.mem_get_info(device)[0]:
        return pixels
    resident = torch.empty(pixels.shape, dtype=torch.uint8, device=device)
    for start in range(0, len(pixels), ROWS_PER_COPY):  # the set may exceed host memory
        part = torch.from_numpy(np.array(pixels[start : start + ROWS_PER_COPY]))
        resident[start : start + len(part)] = part.to(device)
    return resident


def batches(
    pixels: Pixels, batch: int, seed: int, epoch: int, first: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Pixels uint8 [b, 3, H, W] and index int64 [b] on the device, from step `first` of an epoch.

    `batch` is the global batch, b this process's share; the last N mod batch images are dropped.
    """
    order = epoch_order(seed, epoch, len(pixels))
    steps = range(first, len(pixels) // batch)
    if device.type == "cuda" and not isinstance(pixels, Tensor):
        yield from _stream(pixels, order, batch, steps, device)
        return
    order = order.to(device)
    for step in steps:
        index = batch_rows(order, step, batch)
        yield take(pixels, index), index


def _stream(
    pixels: np.ndarray, order: Tensor, batch: int, steps: range, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches read from host memory ahead of the device and copied on their own stream."""
    stream = torch.cuda.Stream(device)

    def copy(step: int) -> tuple[Tensor, Tensor, torch.cuda.Event]:
        torch.cuda.set_device(stream.device)  # of this thread, which would use the first GPU
        index = batch_rows(order, step, batch)
        host = take(pixels, index).pin_memory(), index.pin_memory()
        with torch.cuda.stream(stream):
            copied = torch.cuda.Event()
            part, rows = (tensor.to(device, non_blocking=True) for tensor in host)
            copied.record(stream)
        return part, rows, copied

    for part, index, copied in map_in_threads(copy, steps, BATCHES_AHEAD, threads=1):
        now = torch.cuda.current_stream(device)
        now.wait_event(copied)
        part.record_stream(now)
        index.record_stream(now)
        yield part, index


def take(pixels: Pixels, index: Tensor) -> Tensor:
    """Pixels of the images `index`, on its device; a file is read in its order."""
    if isinstance(pixels, Tensor):
        return pixels.index_select(0, index)
    rows = index.cpu().numpy()
    order = np.argsort(rows)
    out = np.empty((len(rows), *pixels.shape[1:]), np.uint8)
    out[order] = pixels[rows[order]]
    return torch.from_numpy(out).to(index.device)
