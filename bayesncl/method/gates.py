"""Elementwise functions of z: rectifiers, Bernoulli gates with their KL, the top-k mask."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesncl.errors import InputError
from bayesncl.recipes import check_known

KL_CLAMP = 0.01  # q and rho are clamped to [0.01, 0.99]; outside, the KL has no gradient


def rep_relu(z: Tensor) -> Tensor:
    """Values of ReLU with the gradient of the exact (erf) GELU."""
    return straight_through(F.relu(z.detach()), F.gelu(z))


def straight_through(value: Tensor, carrier: Tensor) -> Tensor:
    """Return exactly `value`, with the gradient of `carrier`; both have one shape and type.

    The usual value + (carrier - carrier.detach()) is not exact when compiled for a GPU: if the
    carrier ends in a product, the fused multiply-add does not round it, and the difference is its
    rounding error, 1e-9 instead of 0. A row of zeros then gets a direction, and its gradient is
    divided by that tiny length.
    """
    return _StraightThrough.apply(value, carrier)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, carrier: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        return None, gradients[0]


RECTIFIERS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda z: z,  # plain contrastive learning
    "relu": F.relu,
    "rep_relu": rep_relu,
    "gelu": F.gelu,
    "softplus": F.softplus,
    "sigmoid": torch.sigmoid,
    "exp": torch.exp,
}


def logistic_noise(u: Tensor) -> Tensor:
    """Logistic(0, 1) noise, log u - log(1 - u): the difference of two Gumbel samples."""
    u = u.clamp(1e-7, 1 - 1e-7)
    return torch.log(u) - torch.log1p(-u)


def published_noise(u: Tensor) -> Tensor:
    """One Gumbel(0, 1) sample with the published epsilons: P(open) = 1 - exp(-exp(logit))."""
    return -torch.log(-torch.log(u + 1e-4) + 1e-4)


@dataclass(frozen=True)
class GateKind:
    """A kind of gate: how logits become the mask that multiplies z."""

    name: str  # in recipes
    noise: Callable[[Tensor], Tensor] | None = None  # of numbers in [0, 1), added in training
    hard: bool = True  # 0 or 1 with the gradient of the sigmoid; otherwise the sigmoid itself

    def probability(self, logits: Tensor, temperature: float = 1.0) -> Tensor:
        """q = sigmoid(logits / T) [N, D], the paper's alpha; its KL to the prior is in the loss."""
        logits = at_least_float32(logits)
        return torch.sigmoid(logits if temperature == 1 else logits / temperature)

    def mask(
        self, logits: Tensor, threshold: float = 0.5, temperature: float = 1.0,
        uniform: Tensor | None = None
    ) -> Tensor:
        """Mask of logits [N, D]; `uniform` [N, D] in [0, 1) drives the noise, None adds none."""
        logits = at_least_float32(logits)
        if self.noise is not None and uniform is not None:
            logits = logits + self.noise(uniform)
        q = self.probability(logits, temperature)
        return straight_through((q > threshold).to(q.dtype), q) if self.hard else q


GATES = {
    "ste": GateKind("ste"),
    "soft": GateKind("soft", hard=False),
    "gumbel": GateKind("gumbel", logistic_noise),
    "gumbel-paper": GateKind("gumbel-paper", published_noise),
}


def open_gates(
    logits: Tensor, kind: str, threshold: float = 0.5, temperature: float = 1.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Turn gate logits into the mask that multiplies z.

    Parameters
    ----------
    logits : [N, D].
    kind : ``ste`` (hard forward pass, gradient of the sigmoid), ``soft`` (the sigmoid itself),
        ``gumbel`` (``ste`` on logits with logistic noise, the binary-concrete distribution) or
        ``gumbel-paper`` (one Gumbel sample, as published: biased towards open).
    threshold : A gate is open where its probability exceeds this.
    temperature : T of the sigmoid.
    generator : source of the noise of the two Gumbel kinds.

    Returns
    -------
    [N, D] mask; exactly 0 or 1 in the forward pass except for ``soft``.
    """
    check_known("kind", kind, GATES)
    logits = at_least_float32(logits)
    noisy = GATES[kind].noise is not None
    uniform = torch.empty_like(logits).uniform_(generator=generator) if noisy else None
    return GATES[kind].mask(logits, threshold, temperature, uniform)


def bernoulli_kl(q: Tensor, prior: float | Tensor) -> Tensor:
    """KL(Bern(q) || Bern(prior)), summed over dimensions and averaged over rows.

    Parameters
    ----------
    q : [N, D] probabilities; clamped to [0.01, 0.99], beyond which the gradient is 0.
    prior : rho, or one per dimension [D]; clamped likewise.
    """
    q = at_least_float32(q).clamp(KL_CLAMP, 1 - KL_CLAMP)
    logs: tuple[Any, Any]
    if isinstance(prior, Tensor):
        rho = prior.to(q.dtype).clamp(KL_CLAMP, 1 - KL_CLAMP)
        logs = rho.log(), (1 - rho).log()
    else:
        number = min(max(prior, KL_CLAMP), 1 - KL_CLAMP)
        logs = math.log(number), math.log(1 - number)
    closed = 1 - q
    kl = q * (q.log() - logs[0]) + closed * (closed.log() - logs[1])  # [N, D]
    return kl.sum(1).mean()


def top_k_mask(z: Tensor, k: int) -> Tensor:
    """Ones at the k largest entries of each row of z [N, D], zeros elsewhere; no gradient."""
    if not 1 <= k <= z.shape[1]:
        raise InputError(f"k must be between 1 and the {z.shape[1]} dimensions, got {k}")
    best = z.detach().topk(k, dim=1).indices
    return torch.zeros_like(z, requires_grad=False).scatter_(1, best, 1.0)


def at_least_float32(x: Tensor) -> Tensor:
    """Convert half precisions to float32; keep float32 and float64."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
