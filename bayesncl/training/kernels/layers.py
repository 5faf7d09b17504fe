"""Kernels of a ResNet: BatchNorm with shortcut and ReLU, max-pooling, the update of LARS.

torch's compiler generates similar code from `backbones._PartNorm`, but compiles every layer anew:
most of a minute for a ResNet. These kernels accept any number of rows and are compiled once.

BatchNorm: an image tensor [V * B, C, H, W] stored channels last is a matrix [V * P, C]: a part of
P = B H W rows for each of V views. Forward and backward each sum slices of the rows, add up the
slices in a fixed order (the same input gives the same bits), and pass over memory once.

Max-pooling is 3 x 3 with stride 2 and padding 1. Forward stores which of the nine taps won; torch
stores eight bytes per index and adds gradients one by one. A program processes a tile of rows
(image, height, width) by channels.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 64, 64  # of a tile, which a program processes at once
PROGRAMS = 512  # that share a sum: enough to saturate the memory of a large GPU
STAGES = {2: 4, 4: 2}  # tiles read at a time, by bytes per number: shared memory is limited
SLICE_ROWS, SLICE_COLUMNS = 128, 16  # tile of slices to be added
BLOCK = 1024  # entries of a parameter per program

SIZES = ["rows", "slices", "tiles", "length", "relu", "height", "width", "to_height", "to_width"]
jit_any_size = triton.jit(do_not_specialize=SIZES)  # one compiled form for all layers


@triton.jit
def locate(part, first, rows, end, columns, R: tl.constexpr, C: tl.constexpr):
    """Offsets [R, C] of the tile at row `first` of a part and their mask; columns [C] and mask."""
    row = first + tl.arange(0, R)
    column = tl.program_id(1) * C + tl.arange(0, C)
    offset = (part.to(tl.int64) * rows + row)[:, None] * columns + column[None, :]
    return offset, (row < end)[:, None] & (column < columns)[None, :], column, column < columns


@triton.jit
def store_sums(sums, first_sum, second_sum, columns, C: tl.constexpr):
    """Store the sums over a slice in sums [2, V, slices, columns]."""
    column = tl.program_id(1) * C + tl.arange(0, C)
    to = sums + tl.program_id(0) * columns + column
    tl.store(to, tl.sum(first_sum, 0), mask=column < columns)
    tl.store(to + tl.num_programs(0) * columns, tl.sum(second_sum, 0), mask=column < columns)


@jit_any_size
def sum_forward(
    x, sums, rows, columns, slices, length, R: tl.constexpr, C: tl.constexpr, STAGES: tl.constexpr
):
    """Sums of x and of its square over a slice, to sums [2, V, slices, columns]."""
    part, number = tl.program_id(0) // slices, tl.program_id(0) % slices
    end = tl.minimum((number + 1) * length, rows)
    first_sum, second_sum = tl.zeros([R, C], tl.float32), tl.zeros([R, C], tl.float32)
    for first in tl.range(number * length, end, R, num_stages=STAGES):
        offset, exists, _column, _valid = locate(part, first, rows, end, columns, R, C)
        value = tl.load(x + offset, mask=exists, other=0.0).to(tl.float32)
        first_sum += value
        second_sum += value * value
    store_sums(sums, first_sum, second_sum, columns, C)


@triton.jit
def add_slices(
    sums, part, parts, columns, slices, column, R: tl.constexpr, C: tl.constexpr
):
    """Both sums [C] over all slices of a part."""
    first_sum, second_sum = tl.zeros([R, C], tl.float32), tl.zeros([R, C], tl.float32)
    for first in range(0, slices, R):
        number = first + tl.arange(0, R)
        at = sums + (part * slices + number)[:, None] * columns + column[None, :]
        exists = (number < slices)[:, None] & (column < columns)[None, :]
        first_sum += tl.load(at, mask=exists, other=0.0)
        second_sum += tl.load(at + parts * slices * columns, mask=exists, other=0.0)
    return tl.sum(first_sum, 0), tl.sum(second_sum, 0)


@jit_any_size
def finish_forward(
    sums, mean, inverse, variance, epsilon, rows, columns, slices, parts,
    R: tl.constexpr, C: tl.constexpr,
):
    """Mean, 1 / sqrt(biased variance + epsilon) and unbiased variance [V, columns] of a part."""
    part = tl.program_id(0)
    column = tl.program_id(1) * C + tl.arange(0, C)
    exists = column < columns
    total, square = add_slices(sums, part, parts, columns, slices, column, R, C)
    m = total / rows
    biased = square / rows - m * m
    biased = tl.where(biased < 0, 0.0, biased)  # not tl.maximum, which drops NaN
    to = part * columns + column
    tl.store(mean + to, m, mask=exists)
    tl.store(inverse + to, 1 / tl.sqrt(biased + epsilon), mask=exists)
    tl.store(variance + to, biased * (rows / (rows - 1.0)), mask=exists)


@triton.jit
def normalize(value, part, mean, inverse, columns, column, valid):
    """x^ = (x - mean) inverse of a tile, and that inverse [C]."""
    inv = tl.load(inverse + part * columns + column, mask=valid, other=0.0)
    m = tl.load(mean + part * columns + column, mask=valid, other=0.0)
    return (value - m[None, :]) * inv[None, :], inv


@jit_any_size
def apply_forward(
    x, shortcut, y, mean, inverse, weight, bias, rows, columns, tiles, relu,
    SHORTCUT: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):
    """y = ReLU(x^ weight + bias + shortcut), with ReLU and shortcut optional."""
    part, number = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    offset, exists, column, valid = locate(part, number * R, rows, rows, columns, R, C)
    value = tl.load(x + offset, mask=exists, other=0.0).to(tl.float32)
    normal, _ = normalize(value, part, mean, inverse, columns, column, valid)
    w = tl.load(weight + column, mask=valid, other=0.0)
    b = tl.load(bias + column, mask=valid, other=0.0)
    out = normal * w[None, :] + b[None, :]
    if SHORTCUT:
        out += tl.load(shortcut + offset, mask=exists, other=0.0).to(tl.float32)
    out = tl.where((relu != 0) & (out < 0), 0.0, out)  # NaN stays NaN
    tl.store(y + offset, out.to(y.dtype.element_ty), mask=exists)


@triton.jit
def undo_relu(gradient, normal, weight, bias, column, valid, relu):
    """The gradient before the ReLU, without shortcut: recomputing y is cheaper than reading it."""
    w = tl.load(weight + column, mask=valid, other=0.0)
    b = tl.load(bias + column, mask=valid, other=0.0)
    return tl.where((relu != 0) & (normal * w[None, :] + b[None, :] <= 0), 0.0, gradient)


@jit_any_size
def sum_backward(
    g, x, y, d_shortcut, mean, inverse, weight, bias, sums, rows, columns, slices, length, relu,
    SHORTCUT: tl.constexpr, R: tl.constexpr, C: tl.constexpr, STAGES: tl.constexpr,
):
    """Sums over a slice of g before the ReLU and of g x^, to sums [2, V, slices, columns].

    With SHORTCUT, that g is the gradient of the shortcut and is stored.
    """
    part, number = tl.program_id(0) // slices, tl.program_id(0) % slices
    end = tl.minimum((number + 1) * length, rows)
    first_sum, second_sum = tl.zeros([R, C], tl.float32), tl.zeros([R, C], tl.float32)
    for first in tl.range(number * length, end, R, num_stages=STAGES):
        offset, exists, column, valid = locate(part, first, rows, end, columns, R, C)
        value = tl.load(x + offset, mask=exists, other=0.0).to(tl.float32)
        normal, _ = normalize(value, part, mean, inverse, columns, column, valid)
        gradient = tl.load(g + offset, mask=exists, other=0.0).to(tl.float32)
        if SHORTCUT:
            out = tl.load(y + offset, mask=exists, other=0.0)
            gradient = tl.where((relu != 0) & (out <= 0), 0.0, gradient)
            tl.store(d_shortcut + offset, gradient.to(d_shortcut.dtype.element_ty), mask=exists)
        else:
            gradient = undo_relu(gradient, normal, weight, bias, column, valid, relu)
        first_sum += gradient
        second_sum += gradient * normal
    store_sums(sums, first_sum, second_sum, columns, C)


@jit_any_size
def finish_backward(
    sums, mean_g, mean_gx, d_weight, d_bias, rows, columns, slices, parts,
    R: tl.constexpr, C: tl.constexpr,
):
    """Means of g and of g x^ over each part [V, columns]; gradients of weight and bias."""
    column = tl.program_id(1) * C + tl.arange(0, C)
    exists = column < columns
    total_g, total_gx = tl.zeros([C], tl.float32), tl.zeros([C], tl.float32)
    for part in range(parts):
        sum_g, sum_gx = add_slices(sums, part, parts, columns, slices, column, R, C)
        tl.store(mean_g + part * columns + column, sum_g / rows, mask=exists)
        tl.store(mean_gx + part * columns + column, sum_gx / rows, mask=exists)
        total_g += sum_g
        total_gx += sum_gx
    tl.store(d_bias + column, total_g, mask=exists)
    tl.store(d_weight + column, total_gx, mask=exists)


@jit_any_size
def apply_backward(
    g, x, d_x, mean, inverse, weight, bias, mean_g, mean_gx, rows, columns, tiles, relu,
    SHORTCUT: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):
    """dx = weight inverse (g - mean(g) - x^ mean(g x^)), with g before the ReLU."""
    part, number = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    offset, exists, column, valid = locate(part, number * R, rows, rows, columns, R, C)
    value = tl.load(x + offset, mask=exists, other=0.0).to(tl.float32)
    normal, inv = normalize(value, part, mean, inverse, columns, column, valid)
    gradient = tl.load(g + offset, mask=exists, other=0.0).to(tl.float32)
    if not SHORTCUT:
        gradient = undo_relu(gradient, normal, weight, bias, column, valid, relu)
    m_g = tl.load(mean_g + part * columns + column, mask=valid, other=0.0)
    m_gx = tl.load(mean_gx + part * columns + column, mask=valid, other=0.0)
    scale = tl.load(weight + column, mask=valid, other=0.0) * inv
    out = scale[None, :] * (gradient - m_g[None, :] - normal * m_gx[None, :])
    tl.store(d_x + offset, out.to(d_x.dtype.element_ty), mask=exists)


class NormReLU(torch.autograd.Function):
    """y = ReLU(x^ weight + bias + shortcut) of x [V * B, C, H, W]; mean, unbiased variance [V, C].

    `relu` is 1 or 0; `shortcut` may be None. Tensors are on a GPU, weights in float32.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, shortcut: Tensor | None, views: int,
        epsilon: float, relu: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        x = as_rows(x)
        y, layout = torch.empty_like(x), Layout(x, views)
        mean, inverse, variance = torch.empty(3, views, x.shape[1], device=x.device).unbind()
        sum_forward[layout.sum_grid](
            x, layout.sums, *layout.sum_sizes, ROWS, COLUMNS, STAGES[x.element_size()]
        )
        finish_forward[layout.finish_grid](
            layout.sums, mean, inverse, variance, epsilon, *layout.sum_sizes[:3], views,
            SLICE_ROWS, SLICE_COLUMNS,
        )
        ctx.shape = views, relu, shortcut is not None
        other = as_rows(shortcut).to(x.dtype) if shortcut is not None else x
        apply_forward[layout.pass_grid](
            x, other, y, mean, inverse, weight, bias, *layout.pass_sizes, relu,
            shortcut is not None, ROWS, COLUMNS,
        )
        ctx.save_for_backward(x, y if shortcut is not None else x, weight, bias, mean, inverse)
        ctx.mark_non_differentiable(mean, variance)
        ctx.set_materialize_grads(False)  # backward would get zeros for mean and variance
        return y, mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, y, weight, bias, mean, inverse = ctx.saved_tensors
        views, relu, shortcut = ctx.shape
        g, d_x, layout = as_rows(gradients[0]), torch.empty_like(x), Layout(x, views)
        before = torch.empty_like(x) if shortcut else g  # the gradient before the ReLU, if stored
        mean_g, mean_gx = torch.empty(2, views, x.shape[1], device=x.device).unbind()
        d_weight, d_bias = torch.empty(2, x.shape[1], device=x.device).unbind()
        sum_backward[layout.sum_grid](
            g, x, y, before, mean, inverse, weight, bias, layout.sums, *layout.sum_sizes, relu,
            shortcut, ROWS, COLUMNS, STAGES[x.element_size()],
        )
        finish_backward[(1, layout.finish_grid[1])](
            layout.sums, mean_g, mean_gx, d_weight, d_bias, *layout.sum_sizes[:3], views,
            SLICE_ROWS, SLICE_COLUMNS,
        )
        apply_backward[layout.pass_grid](
            before, x, d_x, mean, inverse, weight, bias, mean_g, mean_gx, *layout.pass_sizes, relu,
            shortcut, ROWS, COLUMNS,
        )
        return d_x, d_weight, d_bias, before if shortcut else None, None, None, None


class Layout:
    """Division of the rows of x [V * B, C, H, W] into slices for sums and tiles for passes."""

    def __init__(self, x: Tensor, views: int) -> None:
        columns = x.shape[1]
        rows = x.numel() // (views * columns)
        across = triton.cdiv(columns, COLUMNS)
        wanted = max(1, PROGRAMS // (views * across))
        length = triton.cdiv(triton.cdiv(rows, wanted), ROWS) * ROWS
        slices, tiles = triton.cdiv(rows, length), triton.cdiv(rows, ROWS)
        self.sum_sizes, self.pass_sizes = (rows, columns, slices, length), (rows, columns, tiles)
        self.sum_grid, self.pass_grid = (views * slices, across), (views * tiles, across)
        self.finish_grid = views, triton.cdiv(columns, SLICE_COLUMNS)
        self.sums = torch.empty(2, views, slices, columns, device=x.device)


def as_rows(x: Tensor) -> Tensor:
    """Store x channels last."""
    return x.contiguous(memory_format=torch.channels_last)


@triton.jit
def locate_pixels(rows, height, width, columns, R: tl.constexpr, C: tl.constexpr):
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
    image, row, column, channel, exists = locate_pixels(rows, to_height, to_width, columns, R, C)
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
    image, row, column, channel, exists = locate_pixels(rows, height, width, columns, R, C)
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
        pool_forward[pool_grid(y)](x, y, which, rows, *size, *to, columns, ROWS, COLUMNS)
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
        pool_backward[pool_grid(d_x)](g, which, d_x, rows, *ctx.size, *to, columns, ROWS, COLUMNS)
        return d_x


def pool_grid(x: Tensor) -> tuple[int, int]:
    """Tiles of rows and of channels."""
    return triton.cdiv(x.numel() // x.shape[1], ROWS), triton.cdiv(x.shape[1], COLUMNS)


@triton.jit(do_not_specialize=["size", "momentum"])
def move_one(p, g, v, s, w, lr, momentum, size, BLOCK: tl.constexpr):
    """v <- momentum v + s (g + w p);  p <- p - lr v."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exists = at < size
    value = tl.load(p + at, mask=exists)
    d = tl.load(s) * (tl.load(g + at, mask=exists) + tl.load(w) * value)
    velocity = momentum * tl.load(v + at, mask=exists) + d
    tl.store(v + at, velocity, mask=exists)
    tl.store(p + at, value - tl.load(lr) * velocity, mask=exists)


def move(
    params: list[Tensor], grads: list[Tensor], v: list[Tensor], s: list[Tensor], w: list[Tensor],
    lr: Tensor, momentum: float,
) -> None:
    """`lars.move` in one pass over memory per parameter."""
    for p, g, velocity, scale, decay in zip(params, grads, v, s, w):
        if g.stride() != p.stride():  # rare: torch gives gradients the strides of parameters
            g = torch.empty_like(p).copy_(g)
        grid = (triton.cdiv(p.numel(), BLOCK),)
        move_one[grid](p, g, velocity, scale, decay, lr, momentum, p.numel(), BLOCK)
