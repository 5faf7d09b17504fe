"""BatchNorm, shortcut and ReLU as six Triton kernels.

Forward and backward each sum slices, add the slices up, and pass over memory once.

torch's compiler makes much the same of `backbones._PartNorm`, but compiles every layer anew: most of a minute for a
ResNet. These kernels take any number of rows and channels, and so are compiled once for all layers.

An image tensor [V * B, C, H, W] stored channels last is a matrix [V * P, C]: a part of P = B H W rows for each of V
views. Sums over the rows of a part are taken in slices, and the slices added in order: the same input gives the same
bits.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 64, 64  # a tile: what a program holds at once
PROGRAMS = 512  # that share a sum: enough to keep the memory of a large GPU busy
STAGES = {2: 4, 4: 2}  # tiles of a sum that are being read at a time, by bytes a number: some GPUs hold no more
LONG, NARROW = 128, 16  # a tile of slices, which are few numbers, to be added

loose = triton.jit(do_not_specialize=["rows", "slices", "tiles", "length", "relu"])  # one compiled form for all layers


@triton.jit
def locate(part, first, rows, end, columns, R: tl.constexpr, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """Offsets [R, C] of a tile that begins at row `first` of a part, which of them exist, and those columns [C]."""
    row = first + tl.arange(0, R)
    column = tl.program_id(1) * C + tl.arange(0, C)
    offset = (part.to(tl.int64) * rows + row)[:, None] * columns + column[None, :]
    return offset, (row < end)[:, None] & (column < columns)[None, :], column, column < columns


@triton.jit
def store_sums(sums, first_sum, second_sum, columns, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """Put the sums over a slice where it belongs in sums [2, V, slices, columns]."""
    column = tl.program_id(1) * C + tl.arange(0, C)
    to = sums + tl.program_id(0) * columns + column
    tl.store(to, tl.sum(first_sum, 0), mask=column < columns)
    tl.store(to + tl.num_programs(0) * columns, tl.sum(second_sum, 0), mask=column < columns)


@loose
def sum_forward(  # type: ignore[no-untyped-def]
    x, sums, rows, columns, slices, length, R: tl.constexpr, C: tl.constexpr, STAGES: tl.constexpr
):
    """Sums over a slice of x and of its square, to sums [2, V, slices, columns]."""
    part, place = tl.program_id(0) // slices, tl.program_id(0) % slices
    end = tl.minimum((place + 1) * length, rows)
    first_sum, second_sum = tl.zeros([R, C], tl.float32), tl.zeros([R, C], tl.float32)
    for first in tl.range(place * length, end, R, num_stages=STAGES):
        offset, there, _column, _known = locate(part, first, rows, end, columns, R, C)
        value = tl.load(x + offset, mask=there, other=0.0).to(tl.float32)
        first_sum += value
        second_sum += value * value
    store_sums(sums, first_sum, second_sum, columns, C)


@triton.jit
def add_slices(  # type: ignore[no-untyped-def]
    sums, part, parts, columns, slices, column, R: tl.constexpr, C: tl.constexpr
):
    """Both sums [C] over all slices of a part."""
    first_sum, second_sum = tl.zeros([R, C], tl.float32), tl.zeros([R, C], tl.float32)
    for first in range(0, slices, R):
        place = first + tl.arange(0, R)
        at = sums + (part * slices + place)[:, None] * columns + column[None, :]
        there = (place < slices)[:, None] & (column < columns)[None, :]
        first_sum += tl.load(at, mask=there, other=0.0)
        second_sum += tl.load(at + parts * slices * columns, mask=there, other=0.0)
    return tl.sum(first_sum, 0), tl.sum(second_sum, 0)


@loose
def finish_forward(  # type: ignore[no-untyped-def]
    sums, mean, inverse, variance, epsilon, rows, columns, slices, parts, R: tl.constexpr, C: tl.constexpr
):
    """Mean, 1 / sqrt(biased variance + epsilon) and unbiased variance [V, columns] of a part."""
    part = tl.program_id(0)
    column = tl.program_id(1) * C + tl.arange(0, C)
    there = column < columns
    total, square = add_slices(sums, part, parts, columns, slices, column, R, C)
    m = total / rows
    biased = square / rows - m * m
    biased = tl.where(biased < 0, 0.0, biased)  # not tl.maximum, which drops NaN
    to = part * columns + column
    tl.store(mean + to, m, mask=there)
    tl.store(inverse + to, 1 / tl.sqrt(biased + epsilon), mask=there)
    tl.store(variance + to, biased * (rows / (rows - 1.0)), mask=there)


@triton.jit
def normalise(value, part, mean, inverse, columns, column, known):  # type: ignore[no-untyped-def]
    """x^ = (x - mean) inverse of a tile, and that inverse [C]."""
    inv = tl.load(inverse + part * columns + column, mask=known, other=0.0)
    return (value - tl.load(mean + part * columns + column, mask=known, other=0.0)[None, :]) * inv[None, :], inv


@loose
def apply_forward(  # type: ignore[no-untyped-def]
    x, shortcut, y, mean, inverse, weight, bias, rows, columns, tiles, relu,
    SHORTCUT: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """y = ReLU(x^ weight + bias + shortcut), the last two where asked for."""
    part, place = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    offset, there, column, known = locate(part, place * R, rows, rows, columns, R, C)
    value = tl.load(x + offset, mask=there, other=0.0).to(tl.float32)
    normal, _ = normalise(value, part, mean, inverse, columns, column, known)
    w, b = tl.load(weight + column, mask=known, other=0.0), tl.load(bias + column, mask=known, other=0.0)
    out = normal * w[None, :] + b[None, :]
    if SHORTCUT:
        out += tl.load(shortcut + offset, mask=there, other=0.0).to(tl.float32)
    out = tl.where((relu != 0) & (out < 0), 0.0, out)  # NaN stays NaN, or nobody would hear of it
    tl.store(y + offset, out.to(y.dtype.element_ty), mask=there)


@triton.jit
def undo_relu(gradient, normal, weight, bias, column, known, relu):  # type: ignore[no-untyped-def]
    """The gradient before the ReLU of a layer without shortcut: to compute y again is cheaper than to read it."""
    w, b = tl.load(weight + column, mask=known, other=0.0), tl.load(bias + column, mask=known, other=0.0)
    return tl.where((relu != 0) & (normal * w[None, :] + b[None, :] <= 0), 0.0, gradient)


@loose
def sum_backward(  # type: ignore[no-untyped-def]
    g, x, y, d_shortcut, mean, inverse, weight, bias, sums, rows, columns, slices, length, relu,
    SHORTCUT: tl.constexpr, R: tl.constexpr, C: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Sums over a slice of the gradient before the ReLU and of its product with x^, to sums [2, V, slices, columns].

    That gradient is the shortcut's, which is stored.
    """
    part, place = tl.program_id(0) // slices, tl.program_id(0) % slices
    end = tl.minimum((place + 1) * length, rows)
    first_sum, second_sum = tl.zeros([R, C], tl.float32), tl.zeros([R, C], tl.float32)
    for first in tl.range(place * length, end, R, num_stages=STAGES):
        offset, there, column, known = locate(part, first, rows, end, columns, R, C)
        value = tl.load(x + offset, mask=there, other=0.0).to(tl.float32)
        normal, _ = normalise(value, part, mean, inverse, columns, column, known)
        gradient = tl.load(g + offset, mask=there, other=0.0).to(tl.float32)
        if SHORTCUT:
            out = tl.load(y + offset, mask=there, other=0.0)
            gradient = tl.where((relu != 0) & (out <= 0), 0.0, gradient)
            tl.store(d_shortcut + offset, gradient.to(d_shortcut.dtype.element_ty), mask=there)
        else:
            gradient = undo_relu(gradient, normal, weight, bias, column, known, relu)
        first_sum += gradient
        second_sum += gradient * normal
    store_sums(sums, first_sum, second_sum, columns, C)


@loose
def finish_backward(  # type: ignore[no-untyped-def]
    sums, mean_g, mean_gx, d_weight, d_bias, rows, columns, slices, parts, R: tl.constexpr, C: tl.constexpr
):
    """Means over each part of the gradient and of its product with x^ [V, columns]; gradients of weight and bias."""
    column = tl.program_id(1) * C + tl.arange(0, C)
    there = column < columns
    total_g, total_gx = tl.zeros([C], tl.float32), tl.zeros([C], tl.float32)
    for part in range(parts):
        sum_g, sum_gx = add_slices(sums, part, parts, columns, slices, column, R, C)
        tl.store(mean_g + part * columns + column, sum_g / rows, mask=there)
        tl.store(mean_gx + part * columns + column, sum_gx / rows, mask=there)
        total_g += sum_g
        total_gx += sum_gx
    tl.store(d_bias + column, total_g, mask=there)
    tl.store(d_weight + column, total_gx, mask=there)


@loose
def apply_backward(  # type: ignore[no-untyped-def]
    g, x, d_x, mean, inverse, weight, bias, mean_g, mean_gx, rows, columns, tiles, relu,
    SHORTCUT: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """dx = weight inverse (g - mean(g) - x^ mean(g x^)), g before the ReLU: with SHORTCUT it is read, else computed."""
    part, place = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    offset, there, column, known = locate(part, place * R, rows, rows, columns, R, C)
    value = tl.load(x + offset, mask=there, other=0.0).to(tl.float32)
    normal, inv = normalise(value, part, mean, inverse, columns, column, known)
    gradient = tl.load(g + offset, mask=there, other=0.0).to(tl.float32)
    if not SHORTCUT:
        gradient = undo_relu(gradient, normal, weight, bias, column, known, relu)
    m_g = tl.load(mean_g + part * columns + column, mask=known, other=0.0)
    m_gx = tl.load(mean_gx + part * columns + column, mask=known, other=0.0)
    scale = tl.load(weight + column, mask=known, other=0.0) * inv
    out = scale[None, :] * (gradient - m_g[None, :] - normal * m_gx[None, :])
    tl.store(d_x + offset, out.to(d_x.dtype.element_ty), mask=there)


class NormReLU(torch.autograd.Function):
    """y = ReLU(x^ weight + bias + shortcut) of x [V * B, C, H, W], and mean and unbiased variance [V, C] of its parts.

    `relu` is 1 if there is one, else 0, `shortcut` may be None. Tensors are on a GPU, weights in float32.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        shortcut: Tensor | None,
        views: int,
        epsilon: float,
        relu: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        x = as_rows(x)
        y, layout = torch.empty_like(x), Layout(x, views)
        mean, inverse, variance = torch.empty(3, views, x.shape[1], device=x.device).unbind()
        sum_forward[layout.sum_grid](x, layout.sums, *layout.sum_sizes, ROWS, COLUMNS, STAGES[x.element_size()])
        finish_forward[layout.finish_grid](
            layout.sums, mean, inverse, variance, epsilon, *layout.sum_sizes[:3], views, LONG, NARROW
        )
        ctx.shape = views, relu, shortcut is not None
        other = as_rows(shortcut).to(x.dtype) if shortcut is not None else x
        apply_forward[layout.pass_grid](
            x, other, y, mean, inverse, weight, bias, *layout.pass_sizes, relu, shortcut is not None, ROWS, COLUMNS
        )
        ctx.save_for_backward(x, y if shortcut is not None else x, weight, bias, mean, inverse)
        ctx.mark_non_differentiable(mean, variance)
        ctx.set_materialize_grads(False)  # or backward would be given zeros for the two
        return y, mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, y, weight, bias, mean, inverse = ctx.saved_tensors
        views, relu, shortcut = ctx.shape
        g, d_x, layout = as_rows(gradients[0]), torch.empty_like(x), Layout(x, views)
        before = torch.empty_like(x) if shortcut else g  # the gradient before the ReLU, where it is stored
        mean_g, mean_gx = torch.empty(2, views, x.shape[1], device=x.device).unbind()
        d_weight, d_bias = torch.empty(2, x.shape[1], device=x.device).unbind()
        sum_backward[layout.sum_grid](
            g, x, y, before, mean, inverse, weight, bias, layout.sums, *layout.sum_sizes, relu, shortcut, ROWS, COLUMNS,
            STAGES[x.element_size()],
        )  # fmt: skip
        finish_backward[(1, layout.finish_grid[1])](
            layout.sums, mean_g, mean_gx, d_weight, d_bias, *layout.sum_sizes[:3], views, LONG, NARROW
        )
        apply_backward[layout.pass_grid](
            before, x, d_x, mean, inverse, weight, bias, mean_g, mean_gx, *layout.pass_sizes, relu, shortcut, ROWS,
            COLUMNS,
        )  # fmt: skip
        return d_x, d_weight, d_bias, before if shortcut else None, None, None, None


class Layout:
    """How the rows of x [V * B, C, H, W] are shared out: into slices to be summed, and into tiles to be passed over."""

    def __init__(self, x: Tensor, views: int) -> None:
        columns = x.shape[1]
        rows = x.numel() // (views * columns)
        across = triton.cdiv(columns, COLUMNS)
        wanted = max(1, PROGRAMS // (views * across))
        length = triton.cdiv(triton.cdiv(rows, wanted), ROWS) * ROWS
        slices, tiles = triton.cdiv(rows, length), triton.cdiv(rows, ROWS)
        self.sum_sizes, self.pass_sizes = (rows, columns, slices, length), (rows, columns, tiles)
        self.sum_grid, self.pass_grid = (views * slices, across), (views * tiles, across)
        self.finish_grid = views, triton.cdiv(columns, NARROW)
        self.sums = torch.empty(2, views, slices, columns, device=x.device)


def as_rows(x: Tensor) -> Tensor:
    """x, stored channels last."""
    return x.contiguous(memory_format=torch.channels_last)
