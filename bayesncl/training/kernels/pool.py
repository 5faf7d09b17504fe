"""3 x 3 max-pooling with stride 2 and padding 1; forward stores which of the nine taps won.

torch stores eight bytes per index and adds gradients one by one. An image tensor [N, C, H, W] is
stored channels last; a program processes a tile of rows (image, height, width) by channels.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from bayesncl.training.kernels.norms import COLUMNS, ROWS, as_rows

# one compiled form for all sizes
jit_any_size = triton.jit(do_not_specialize=["rows", "height", "width", "to_height", "to_width"])


@triton.jit
def locate(rows, height, width, columns, R: tl.constexpr, C: tl.constexpr):
    """Image, row and column [R, 1] of the pixels of a tile, channels [1, C], mask [R, C]."""
    row = tl.program_id(0) * R + tl.arange(0, R)
    channel = tl.program_id(1) * C + tl.arange(0, C)
    image, rest = row // (height * width), row % (height * width)
    exists = (row < rows)[:, None] & (channel < columns)[None, :]
    image, y, x = image[:, None].to(tl.int64), (rest // width)[:, None], (rest % width)[:, None]
    return image, y, x, channel[None, :], exists


@jit_any_size
def pool_forward(
    x, y, which, rows, height, width, to_height, to_width, columns,
    R: tl.constexpr, C: tl.constexpr,
):
    """y, and the tap 0 to 8 that it was taken from."""
    image, row, column, channel, exists = locate(rows, to_height, to_width, columns, R, C)
    best = tl.full([R, C], float("-inf"), tl.float32)
    winner = tl.zeros([R, C], tl.int32)
    for tap in tl.static_range(9):
        from_row, from_column = 2 * row - 1 + tap // 3, 2 * column - 1 + tap % 3
        inside = exists & (from_row >= 0) & (from_row < height)
        inside = inside & (from_column >= 0) & (from_column < width)
        at = ((image * height + from_row) * width + from_column) * columns + channel
        value = tl.load(x + at, mask=inside, other=float("-inf")).to(tl.float32)
        better = (value > best) | (value != value)  # NaN wins, as in torch
        winner, best = tl.where(better, tap, winner), tl.where(better, value, best)
    at = ((image * to_height + row) * to_width + column) * columns + channel
    tl.store(y + at, best.to(y.dtype.element_ty), mask=exists)
    tl.store(which + at, winner.to(tl.int8), mask=exists)


@jit_any_size
def pool_backward(
    g, which, d_x, rows, height, width, to_height, to_width, columns,
    R: tl.constexpr, C: tl.constexpr,
):
    """Sum of the gradients of the outputs, at most four, that took a pixel."""
    image, row, column, channel, exists = locate(rows, height, width, columns, R, C)
    total = tl.zeros([R, C], tl.float32)
    for corner in tl.static_range(4):
        to_row, to_column = (row + 1) // 2 - corner // 2, (column + 1) // 2 - corner % 2
        tap_row, tap_column = row + 1 - 2 * to_row, column + 1 - 2 * to_column
        inside = exists & (tap_row < 3) & (tap_column < 3)
        inside = inside & (to_row >= 0) & (to_row < to_height)
        inside = inside & (to_column >= 0) & (to_column < to_width)
        at = ((image * to_height + to_row) * to_width + to_column) * columns + channel
        winner = tl.load(which + at, mask=inside, other=-1).to(tl.int32)
        value = tl.load(g + at, mask=inside, other=0.0).to(tl.float32)
        total += tl.where(winner == 3 * tap_row + tap_column, value, 0.0)
    at = ((image * height + row) * width + column) * columns + channel
    tl.store(d_x + at, total.to(d_x.dtype.element_ty), mask=exists)


class MaxPool(torch.autograd.Function):
    """`F.max_pool2d(x, 3, 2, 1)` of x [N, C, H, W] on a GPU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = as_rows(x)
        count, columns, *size = x.shape
        to = [(side + 1) // 2 for side in size]
        shape, layout = (count, columns, *to), torch.channels_last
        y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=layout)
        which = torch.empty_like(y, dtype=torch.int8)
        rows = count * to[0] * to[1]
        pool_forward[grid(y)](x, y, which, rows, *size, *to, columns, ROWS, COLUMNS)
        ctx.save_for_backward(which)
        ctx.size = size
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (which,) = ctx.saved_tensors
        g = as_rows(gradients[0])
        count, columns, *to = g.shape
        shape = count, columns, *ctx.size
        d_x = torch.empty(shape, dtype=g.dtype, device=g.device, memory_format=torch.channels_last)
        rows = d_x.numel() // columns
        pool_backward[grid(d_x)](g, which, d_x, rows, *ctx.size, *to, columns, ROWS, COLUMNS)
        return d_x


def grid(x: Tensor) -> tuple[int, int]:
    """Tiles of rows and of channels."""
    return triton.cdiv(x.numel() // x.shape[1], ROWS), triton.cdiv(x.shape[1], COLUMNS)
