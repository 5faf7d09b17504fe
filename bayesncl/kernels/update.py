"""The update of LARS: one pass over memory for each parameter."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit(do_not_specialize=["size", "momentum"])
def move_one(p, g, v, s, w, lr, momentum, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """v <- momentum v + s (g + w p);  p <- p - lr v."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < size
    value = tl.load(p + at, mask=there)
    d = tl.load(s) * (tl.load(g + at, mask=there) + tl.load(w) * value)
    velocity = momentum * tl.load(v + at, mask=there) + d
    tl.store(v + at, velocity, mask=there)
    tl.store(p + at, value - tl.load(lr) * velocity, mask=there)


def move(
    params: list[Tensor],
    grads: list[Tensor],
    v: list[Tensor],
    s: list[Tensor],
    w: list[Tensor],
    lr: Tensor,
    momentum: float,
) -> None:
    """`lars.move` on a GPU. A gradient is stored in the order of its parameter, as torch makes them."""
    for one in zip(params, grads, v, s, w):
        assert one[0].stride() == one[1].stride() == one[2].stride()
        size = one[0].numel()
        move_one[(triton.cdiv(size, BLOCK),)](*one, lr, momentum, size, BLOCK)
