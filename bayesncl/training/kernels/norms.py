"""BatchNorm, shortcut and ReLU as six Triton kernels.

Forward and backward each sum slices of the rows, add up the slices, and pass over memory once.

torch's compiler generates similar code from `backbones._PartNorm`, but compiles every layer anew:
most of a minute for a ResNet. These kernels accept any number of rows and are compiled once.

An image tensor [V * B, C, H, W] stored channels last is a matrix [V * P, C]: a part of P = B H W
rows for each of V views. Slices are added in a fixed order: the same input gives the same bits.
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

# one compiled form for all layers
jit_any_size = triton.jit(do_not_specialize=["rows", "slices", "tiles", "length", "relu"])


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
