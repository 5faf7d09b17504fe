"""Losses and what they are made of: InfoNCE, balanced assignment, strongest entries; pure functions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from numbers import Integral
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .errors import InputError
from .gates import at_least_float32, top_k_mask

ACTIVE = 1e-5  # a dimension fires on an image where its |z|, in a row of unit length, exceeds this
DENSE_ROWS = 8192  # up to this many rows the similarity matrix is held whole (256 MiB in float32)
BLOCK_ROWS = 1024


def normalise(z: Tensor) -> Tensor:
    """Rows of z [N, D] at unit length, in float32 or better; an all-zero row stays zero and sends no gradient."""
    return _Unit.apply(at_least_float32(z))


class _Unit(torch.autograd.Function):
    """u = z / |z| row by row, with dz = (g - u (g . u)) / |z|.

    F.normalize divides the gradient of a zero row by its eps: one closed row would send 1e12 into every bias. It also
    takes three times as many operations, each of them too small for a GPU.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(z, dim=1, keepdim=True)
        inverse = torch.where(length > 0, 1 / length.clamp_min(1e-12), 0.0)
        u = z * inverse
        ctx.save_for_backward(u, inverse)
        return u

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (u, inverse), g = ctx.saved_tensors, gradients[0]
        return torch.addcmul(g, u, (g * u).sum(1, keepdim=True), value=-1) * inverse


def keep_strongest(z: Tensor, keep: int | None) -> Tensor:
    """Each row's `keep` entries of largest size, renormalised; None and D leave the rows [N, D] as they are."""
    check_keep(keep, z.shape[1])
    return z if keep is None or keep == z.shape[1] else normalise(z * top_k_mask(z.abs(), keep))


def check_keep(keep: Any, dim: int) -> None:
    """InputError unless `keep` is None or a whole number from 1 to `dim`."""
    if keep is not None and (isinstance(keep, bool) or not isinstance(keep, Integral) or not 1 <= int(keep) <= dim):
        raise InputError(f"keep must be a whole number from 1 to the {dim} dimensions, got {keep!r}")


def info_nce(z: Tensor, temperature: float = 0.2, block: int = 0, decoupled: bool = False) -> Tensor:
    """InfoNCE over 2B anchors: the other view is the positive, both views of all other images the negatives.

    Parameters
    ----------
    z : [2B, D]; row i and row i + B are two views of one image. Taken as it is: nothing is normalised here.
    temperature : tau.
    block : rows of the similarity matrix held at a time; 0 holds it whole up to 8192 rows.
    decoupled : leave the positive out of the sum too; learns faster from small batches.

    Returns
    -------
    Scalar, mean over the 2B anchors of  -s(z, z+) + logsumexp over everything but the anchor itself.
    """
    if z.ndim != 2 or len(z) % 2 or len(z) < (4 if decoupled else 2):
        raise InputError(f"info_nce takes [2B, D] with both views of each image, got {list(z.shape)}")
    n = len(z)
    anchors = torch.arange(n, device=z.device)
    return info_nce_sum(z, z, anchors, (anchors + n // 2) % n, temperature, block, decoupled) / n


def info_nce_sum(
    a: Tensor,
    c: Tensor,
    self_index: Tensor,
    positive: Tensor,
    temperature: float,
    block: int = 0,
    decoupled: bool = False,
) -> Tensor:
    """Sum of the anchors' losses; anchors `a` [M, D] against candidates `c` [N, D].

    Anchor i is candidate self_index[i], which is left out; its positive is candidate positive[i], left out of what it
    is compared with if `decoupled`. One process has a = c; with several, a holds the rows of this process and c those
    of all.
    """
    left_out = torch.stack([self_index, positive], 1) if decoupled else self_index[:, None]
    with _without_autocast(a.device.type):
        same = a is c
        a = at_least_float32(a)
        c = a if same else at_least_float32(c)
        if block == 0 and len(c) > DENSE_ROWS:
            block = BLOCK_ROWS
        if block:
            return _BlockedSum.apply(a, None if same else c, left_out, positive, temperature, block)
        s = a @ c.T / temperature  # [M, N]
        pull = s.gather(1, positive[:, None]).squeeze(1)
        s = s.scatter(1, left_out, float("-inf"))
        return (torch.logsumexp(s, 1) - pull).sum()


def _without_autocast(device: str) -> AbstractContextManager[Any]:
    """Autocast off, entered only where autocast is on: torch does not cache a compiled function that enters it."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


class _BlockedSum(torch.autograd.Function):
    """The same sum with `block` rows of similarities alive at a time.

    The loss is a scalar, so its gradient is known up to one factor already in the forward pass:
    with P = softmax(s) row by row,  da = (P c - c+) / tau  and  dc = (P' a - scatter of a to its positive) / tau.
    Each block of P is made once, used for all three and dropped. Without `other` the anchors are the candidates, and
    da + dc is one buffer. The loss is not added up in place: torch 2.11 compiles that without a gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, a: Tensor, other: Tensor | None, left_out: Tensor, positive: Tensor, temperature: float, block: int
    ) -> Tensor:
        c = a if other is None else other
        wanted = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        dc = torch.zeros_like(c) if wanted else None
        da = dc if other is None or dc is None else torch.zeros_like(a)
        losses = []
        for start in range(0, len(a), block):
            rows = slice(start, start + block)
            s = a[rows] @ c.T  # [block, N]
            s.div_(temperature)
            pull = s.gather(1, positive[rows, None])
            s.scatter_(1, left_out[rows], float("-inf"))
            total = torch.logsumexp(s, 1, keepdim=True)
            losses.append((total - pull).sum())
            if da is not None and dc is not None:
                p = s.sub_(total).exp_()
                p.scatter_add_(1, positive[rows, None], torch.full_like(pull, -1.0))
                da[rows].addmm_(p, c)
                dc.addmm_(p.T, a[rows])
        if da is not None and dc is not None:
            ctx.save_for_backward(*(g.div_(temperature) for g in ((da,) if da is dc else (da, dc))))
        return torch.stack(losses).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        da, *dc = ctx.saved_tensors
        factor = gradients[0]
        return da * factor, dc[0] * factor if dc else None, None, None, None, None


def ipw_similarity(z: Tensor, z2: Tensor, prevalence: Tensor) -> Tensor:
    """Inverse-prevalence weighted similarity, sum_k z_k z2_k / prevalence_k.

    Parameters
    ----------
    z, z2 : [N, D] and [M, D].
    prevalence : [D], share of images on which each dimension fires; a dimension that never fires (0) weighs nothing.

    Returns
    -------
    [N, M].
    """
    if prevalence.shape != z.shape[1:]:
        raise InputError(
            f"prevalence must have one entry for each of {z.shape[1]} dimensions, got {list(prevalence.shape)}"
        )
    prevalence = prevalence.to(z.dtype)
    weight = torch.where(prevalence > 0, 1 / prevalence.clamp_min(torch.finfo(prevalence.dtype).tiny), 0.0)
    return (z * weight) @ z2.T


def balanced_assignment(
    scores: Tensor, temperature: float, rounds: int = 2, total: Callable[[Tensor], Tensor] = lambda x: x
) -> Tensor:
    """Share out rows among prototypes so that each prototype gets an equal share: Sinkhorn-Knopp, without gradient.

    Parameters
    ----------
    scores : [..., B, D], cosines of rows and prototypes; leading dimensions are batches of their own.
    temperature : eps; the assignment starts from exp(scores / eps).
    rounds : how often the columns are brought to equal sums, and then the rows to 1 again.
    total : adds up column sums [..., D] over processes that hold other rows of the same batch.

    Returns
    -------
    [..., B, D], rows that sum to 1.
    """
    # the matrix stays as it is, only the factors of its rows and columns change: two products with a vector a round.
    # Rows begin with the sums they have: in a few rounds those near a prototype then count more than those near none.
    # Codes of rows that begin with sum 1 are far worse (AP .32 against .36 in the study behind the defaults)
    q = ((scores.detach() - 1) / temperature).exp()
    row = q.new_ones(*q.shape[:-1], 1)
    column = q.new_ones(*q.shape[:-2], 1, q.shape[-1])
    tiny = torch.finfo(q.dtype).tiny  # a prototype that no row is near keeps a finite factor
    for _ in range(rounds):
        column = 1 / total(row.mT @ q).clamp_min(tiny)
        row = 1 / (q @ column.mT).clamp_min(tiny)
    return q * column * row


def swapped_cross_entropy(scores: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Each row predicts its partner's assignment from its own scores; [0, i] and [1, i] of [2, B, D] are partners.

    Scalar, - sum over rows and prototypes of  targets(partner) log softmax(scores / temperature).
    """
    one, other = (scores / temperature).unbind()
    return F.cross_entropy(one, targets[1], reduction="sum") + F.cross_entropy(other, targets[0], reduction="sum")
