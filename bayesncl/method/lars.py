"""LARS with foreach operations and no host synchronization, and its learning rate per step."""

import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

EPS = 1e-8


class Light:
    """Mixin for optimizers: torch's methods without the decorators that import its compiler.

    That import takes one second, six on a slow machine.
    """

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)


class LARS(Light, torch.optim.Optimizer):
    """Layer-wise adaptive rates for SGD with momentum.

    For a parameter p with gradient g, group rate a and weight decay w:

    * p not one-dimensional, ||p|| > 0 and ||g|| > 0:
      trust = eta ||p|| / (||g|| + w ||p|| + 1e-8);  s = min(trust / a, 1) with `clip`, else trust;
      d = s (g + w p)
    * otherwise (biases, norms): d = g, with neither weight decay nor scaling
    * v <- momentum v + d;  p <- p - a v

    Parameters
    ----------
    params : parameters or parameter groups.
    lr : a; a float or a 0-d tensor, which may change between steps (also inside a CUDA graph).
    momentum, weight_decay, eta : as above.
    clip : a bounds the rate from above.
    """

    def __init__(
        self, params: Iterable[Any], lr: float | Tensor, momentum: float = 0.9,
        weight_decay: float = 1e-4, eta: float = 0.02, clip: bool = True,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, defaults | {"eta": eta, "clip": clip})
        self.move: Callable[..., None] = move  # a GPU kernel may replace it

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group with its momentum buffers, which a CUDA graph must not allocate."""
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            self.state[p]["momentum_buffer"] = torch.zeros_like(p)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            decay, momentum, like = group["weight_decay"], group["momentum"], group["params"][0]
            # once per group: a number is copied to the GPU, and the host waits for that
            lr = torch.as_tensor(group["lr"], dtype=like.dtype, device=like.device)
            params = [p for p in group["params"] if p.grad is not None]
            for plain in (False, True):  # dozens of tensors in a few operations
                p = [p for p in params if (p.ndim == 1) == plain]
                if not p:
                    continue
                g, v = [p.grad for p in p], [self.state[p]["momentum_buffer"] for p in p]
                if plain:
                    descend(p, g, v, lr, momentum)
                    continue
                p_norm = torch.stack(torch._foreach_norm(p))  # [P]
                g_norm = torch.stack(torch._foreach_norm(g))
                trust = group["eta"] * p_norm / (g_norm + decay * p_norm + EPS)
                usable = (p_norm > 0) & (g_norm > 0)
                rate = (trust / lr).clamp_max(1.0) if group["clip"] else trust
                s = torch.where(usable, rate, 1.0).unbind()
                w = (usable.to(lr.dtype) * decay).unbind()
                self.move(p, g, v, list(s), list(w), lr, momentum)
        return loss


def move(
    params: list[Tensor], grads: list[Tensor], v: list[Tensor], s: list[Tensor], w: list[Tensor],
    lr: Tensor, momentum: float,
) -> None:
    """Descend along d = s (g + w p), for lists of tensors, in place."""
    d = list(torch._foreach_mul(params, w))
    torch._foreach_add_(d, grads)
    torch._foreach_mul_(d, s)
    descend(params, d, v, lr, momentum)


def descend(
    params: list[Tensor], d: list[Tensor], v: list[Tensor], lr: Tensor, momentum: float
) -> None:
    """v <- momentum v + d;  p <- p - lr v, for lists of tensors, in place."""
    torch._foreach_mul_(v, momentum)
    torch._foreach_add_(v, d)
    torch._foreach_sub_(params, torch._foreach_mul(v, lr))


def warmup_cosine(
    step: int, base: float, warmup_steps: int, total_steps: int, start: float = 3e-5
) -> float:
    """Linear warm-up from `start` to `base`, then cosine decay to 0.

    Parameters
    ----------
    step : t, counted from 0.
    base : rate at t = warmup_steps.
    warmup_steps : W; t < W gives start + t (base - start) / (W - 1).
    total_steps : T; t > W gives base (1 + cos(pi (t - W) / (T - W))) / 2.
    start : rate at t = 0.
    """
    if step < warmup_steps:
        return start + step * (base - start) / max(warmup_steps - 1, 1)
    if total_steps <= warmup_steps:
        return base
    angle = math.pi * (step - warmup_steps) / (total_steps - warmup_steps)
    return base * (1 + math.cos(angle)) / 2
