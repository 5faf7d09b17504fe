"""The update of LARS in one pass over memory per parameter."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # entries per program


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
