"""LARS with foreach operations and no host synchronisation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

EPS = 1e-8


class Light:
    """For optimisers, before torch's class: its methods without their decorators, which import torch's compiler.

    That takes more than a second, and six on a slow machine.
    """

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)


class LARS(Light, torch.optim.Optimizer):
    """Layer-wise adaptive rates for SGD with momentum.

    For a parameter p with gradient g, group rate a and weight decay w:

    * p not one-dimensional, ||p|| > 0 and ||g|| > 0:
      trust = eta ||p|| / (||g|| + w ||p|| + 1e-8);  s = min(trust / a, 1) with `clip`, trust without;  d = s (g + w p)
    * otherwise (biases, norms): d = g, with neither weight decay nor scaling
    * v <- momentum v + d;  p <- p - a v

    Parameters
    ----------
    params : parameters or groups of them.
    lr : a; a float or a 0-d tensor, which may change between steps (also inside a CUDA graph).
    momentum, weight_decay, eta : as above.
    clip : a bounds the rate from above.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        eta: float = 0.02,
        clip: bool = True,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "eta": eta, "clip": clip}
        )
        self.move: Callable[..., None] = move

    def use_kernel(self) -> None:
        """On a GPU: update an adapted parameter in one pass over memory."""
        from .kernels.update import move as move_in_one_pass

        self.move = move_in_one_pass

    def prepare(self) -> None:
        """Make every momentum buffer now, so that the first step allocates nothing (a CUDA graph needs that)."""
        for group in self.param_groups:
            for p in group["params"]:
                if "momentum_buffer" not in self.state[p]:
                    self.state[p]["momentum_buffer"] = torch.zeros_like(p)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.prepare()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                self._step_group(group, params)
        return loss

    def _step_group(self, group: dict[str, Any], params: list[Tensor]) -> None:
        adapted, plain = [p for p in params if p.ndim != 1], [p for p in params if p.ndim == 1]
        lr = torch.as_tensor(group["lr"], dtype=params[0].dtype, device=params[0].device)
        if adapted:
            grads = [p.grad for p in adapted if p.grad is not None]
            p_norm, g_norm = (torch.stack(torch._foreach_norm(each)) for each in (adapted, grads))  # [P]
            trust = group["eta"] * p_norm / (g_norm + group["weight_decay"] * p_norm + EPS)
            usable = (p_norm > 0) & (g_norm > 0)
            s = torch.where(usable, (trust / lr).clamp_max(1.0) if group["clip"] else trust, 1.0)
            w = usable.to(lr.dtype) * group["weight_decay"]
            self.move(adapted, grads, self._momenta(adapted), list(s.unbind()), list(w.unbind()), lr, group["momentum"])
        if plain:  # dozens of small ones, together in a few operations
            grads = [p.grad for p in plain if p.grad is not None]
            descend(plain, grads, self._momenta(plain), lr, group["momentum"])

    def _momenta(self, params: list[Tensor]) -> list[Tensor]:
        return [self.state[p]["momentum_buffer"] for p in params]


def move(
    params: list[Tensor], grads: list[Tensor], v: list[Tensor], s: list[Tensor], w: list[Tensor], lr: Tensor,
    momentum: float,
) -> None:  # fmt: skip
    """Descend along d = s (g + w p), for lists of tensors, in place."""
    d = list(torch._foreach_mul(params, w))
    torch._foreach_add_(d, grads)
    torch._foreach_mul_(d, s)
    descend(params, d, v, lr, momentum)


def descend(params: list[Tensor], d: list[Tensor], v: list[Tensor], lr: Tensor, momentum: float) -> None:
    """v <- momentum v + d;  p <- p - lr v, for lists of tensors, in place."""
    torch._foreach_mul_(v, momentum)
    torch._foreach_add_(v, d)
    torch._foreach_sub_(params, torch._foreach_mul(v, lr))
