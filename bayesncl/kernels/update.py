"""The update of LARS: one pass over memory for each parameter."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # entries of a program


@triton.jit(do_not_specialize=["size", "momentum"])
def move_one(p, g, v, s, w, lr, momentum, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """v <- momentum v + s (g + w p);  p <- p - lr v."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < size
    value = tl.load(p + at, mask=there)
    d = tl.load(s) * (tl.load(g + at, mask=there) + tl.load(w) * value)
    velocity = momentum * tl.load(v + at, mask=there) + d
    tl.store(v + at, velocity, mask=there)
    tl.store(p + at, value - tl.load(lr) * velocity, mask=there)


def move(
    params: list[Tensor], grads: list[Tensor], v: list[Tensor], s: list[Tensor], w: list[Tensor], lr: Tensor,
    momentum: float,
) -> None:  # fmt: skip
    """`lars.move`, in one pass over memory for each parameter."""
    for p, g, velocity, scale, decay in zip(params, grads, v, s, w):
        if g.stride() != p.stride():  # torch makes gradients and momenta in the order of their parameters
            g = torch.empty_like(p).copy_(g)
        move_one[(triton.cdiv(p.numel(), BLOCK),)](p, g, velocity, scale, decay, lr, momentum, p.numel(), BLOCK)
