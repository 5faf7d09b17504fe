"""What acts on z element by element: the rectifiers, the Bernoulli gates and their KL, the top-k mask."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .errors import InputError
from .recipes import RECTIFIERS

KL_CLAMP = 0.01  # q and rho are held in [0.01, 0.99]; outside, the KL sends no gradient


def rep_relu(z: Tensor) -> Tensor:
    """ReLU in the forward pass, the gradient of the exact (erf) GELU in the backward pass.

    Parameters
    ----------
    z : tensor of any shape.

    Returns
    -------
    Tensor of the same shape, exactly ``relu(z)``.
    """
    return straight_through(F.relu(z.detach()), F.gelu(z))


def straight_through(value: Tensor, carrier: Tensor) -> Tensor:
    """Exactly `value`, with the gradient of `carrier`; both of one shape and type.

    The usual value + (carrier - carrier.detach()) is not exact once compiled for a GPU: where the carrier ends in a
    product, product and difference become one fused operation that does not round the product, so the bracket is its
    rounding error, 1e-9 in place of 0. A row of zeros then has a direction, and a gradient divided by its tiny length.
    """
    result: Tensor = _StraightThrough.apply(value, carrier)
    return result


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, carrier: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        return None, gradients[0]


def rectify(z: Tensor, rectifier: str) -> Tensor:
    """Apply a rectifier by name (`recipes.RECTIFIERS`)."""
    match rectifier:
        case "none":
            return z
        case "relu":
            return F.relu(z)
        case "rep_relu":
            return rep_relu(z)
        case "gelu":
            return F.gelu(z)
        case "softplus":
            return F.softplus(z)
        case "sigmoid":
            return torch.sigmoid(z)
        case "exp":
            return torch.exp(z)
    raise InputError(f"no rectifier {rectifier!r}; there are {', '.join(RECTIFIERS)}")


def gate_probability(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """q = sigmoid(logits / T), the noise-free Bernoulli parameter (the paper's alpha), in float32 or better."""
    return torch.sigmoid(at_least_float32(logits) / temperature)


def open_gates(
    logits: Tensor,
    kind: str,
    threshold: float = 0.5,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
    uniform: Tensor | None = None,
) -> Tensor:
    """Turn gate logits into the mask that multiplies z.

    Parameters
    ----------
    logits : [N, D].
    kind : ``ste`` (hard forward, gradient of the sigmoid), ``soft`` (the sigmoid itself), ``gumbel`` (``ste`` on logits
        with logistic noise, the binary-concrete law), ``gumbel-paper`` (one Gumbel sample, as published: biased open).
    threshold : a gate is open where its probability is strictly above this.
    temperature : T of the sigmoid.
    generator : source of the noise of the two Gumbel kinds.
    uniform : [N, D] numbers in [0, 1) to make the noise from, instead of drawing them.

    Returns
    -------
    [N, D] mask; exactly 0 or 1 in the forward pass except for ``soft``.
    """
    logits = at_least_float32(logits)
    if kind.startswith("gumbel"):
        u = uniform
        if u is None:
            u = torch.rand(logits.shape, generator=generator, device=logits.device, dtype=logits.dtype)
        logits = logits + (logistic_noise(u) if kind == "gumbel" else published_noise(u))
    elif kind not in ("ste", "soft"):
        raise InputError(f"no gate kind {kind!r}; there are ste, soft, gumbel, gumbel-paper")
    q = gate_probability(logits, temperature)
    if kind == "soft":
        return q
    return straight_through((q > threshold).to(q.dtype), q)


def logistic_noise(u: Tensor) -> Tensor:
    """Logistic(0, 1) noise, log u - log(1 - u): the difference of two Gumbel samples."""
    u = u.clamp(1e-7, 1 - 1e-7)
    return torch.log(u) - torch.log1p(-u)


def published_noise(u: Tensor) -> Tensor:
    """The published noise: one Gumbel(0, 1) sample with its two epsilons, so P(open) = 1 - exp(-exp(logit))."""
    return -torch.log(-torch.log(u + 1e-4) + 1e-4)


def bernoulli_kl(q: Tensor, prior: float) -> Tensor:
    """KL(Bern(q) || Bern(prior)), summed over dimensions and averaged over rows.

    Parameters
    ----------
    q : [N, D] probabilities; clamped to [0.01, 0.99], beyond which the gradient is 0.
    prior : rho, clamped likewise.

    Returns
    -------
    Scalar.
    """
    q = at_least_float32(q).clamp(KL_CLAMP, 1 - KL_CLAMP)
    rho = torch.as_tensor(prior, dtype=q.dtype, device=q.device).clamp(KL_CLAMP, 1 - KL_CLAMP)
    kl = q * (q.log() - rho.log()) + (1 - q) * ((1 - q).log() - (1 - rho).log())  # [N, D]
    return kl.sum(1).mean()


def top_k_mask(z: Tensor, k: int) -> Tensor:
    """Ones at the k largest entries of each row of z [N, D], zeros elsewhere; exactly k ones a row, no gradient."""
    if not 1 <= k <= z.shape[1]:
        raise InputError(f"k must be between 1 and the {z.shape[1]} dimensions, got {k}")
    best = z.detach().topk(k, dim=1).indices
    return torch.zeros_like(z, requires_grad=False).scatter_(1, best, 1.0)


def at_least_float32(x: Tensor) -> Tensor:
    """Half precisions are raised to float32; float32 and float64 stay."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
