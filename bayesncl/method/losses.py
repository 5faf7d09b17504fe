"""Losses as pure functions, and their parts: InfoNCE, balanced assignment, unit rows."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from numbers import Integral
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bayesncl import distributed
from bayesncl.errors import InputError
from bayesncl.method.gates import at_least_float32, top_k_mask

RAREST = 1e-3  # smallest prevalence that training tells apart: it bounds the weights of `ipw_rows`
ACTIVE = 1e-5  # a dimension is active on an image if |z|, in a row of unit length, exceeds this
DENSE_ROWS = 8192  # largest batch whose whole similarity matrix is kept (256 MiB in float32)
BLOCK_ROWS = 1024


def unit_rows(z: Tensor) -> Tensor:
    """Scale the rows of z [N, D] to unit length; zero rows stay zero and send no gradient."""
    return _UnitRows.apply(at_least_float32(z))


class _UnitRows(torch.autograd.Function):
    """u = z / |z| per row, with dz = (g - u (g . u)) / |z|.

    F.normalize divides the gradient of a zero row by its eps: one row with all gates closed would
    send 1e12 into every bias. It also needs three times as many small GPU operations.
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


def keep_strongest(z: Tensor, n_active: int | None) -> Tensor:
    """Keep the `n_active` largest |entries| of each row of z [N, D], renormalized; None: all."""
    check_n_active(n_active, z.shape[1])
    if n_active is None or n_active == z.shape[1]:
        return z
    return unit_rows(z * top_k_mask(z.abs(), n_active))


def check_n_active(n_active: Any, dim: int) -> None:
    """Raise InputError unless `n_active` is None or an integer from 1 to `dim`."""
    whole = isinstance(n_active, Integral) and not isinstance(n_active, bool)
    if n_active is not None and not (whole and 1 <= int(n_active) <= dim):
        raise InputError(f"n_active must be an integer from 1 to {dim}, got {n_active!r}")


def info_nce(
    z: Tensor, temperature: float = 0.2, block: int = 0, decoupled: bool = False
) -> Tensor:
    """InfoNCE over 2B anchors.

    The positive of an anchor is the other view of its image; the negatives are both views of all
    other images.

    Parameters
    ----------
    z : [2B, D]; rows i and i + B are two views of one image. Rows are not normalized here.
    temperature : tau.
    block : rows of the similarity matrix computed at a time; 0 computes it whole up to 8192 rows.
    decoupled : also leave the positive out of the sum, which speeds up learning from small batches.

    Returns
    -------
    Scalar, the mean over anchors of -s(z, z+) + logsumexp over all rows but the anchor.
    """
    if z.ndim != 2 or len(z) % 2 or len(z) < (4 if decoupled else 2):
        raise InputError(f"info_nce takes [2B, D], two views per image, got {list(z.shape)}")
    return _info_nce(z, z, 0, temperature, block, decoupled)


def info_nce_share(
    z: Tensor, temperature: float, block: int = 0, decoupled: bool = False
) -> Tensor:
    """This process's share of `info_nce` of the rows of all processes; the shares add up to it."""
    count, rank, world = len(z), distributed.rank(), distributed.world_size()
    everyone = z
    if world > 1:  # gathered by a sum, which has a gradient
        around = (0, 0, rank * count, (world - 1 - rank) * count)
        everyone = distributed.all_reduce_sum(F.pad(z, around))
    return _info_nce(z, everyone, rank * count, temperature, block, decoupled)


def _info_nce(
    a: Tensor, c: Tensor, first: int, temperature: float, block: int, decoupled: bool
) -> Tensor:
    """Losses of anchors `a` [M, D] against candidates `c` [N, D], summed and divided by N.

    The anchors are the candidates from `first` on. Blocks of similarities are computed again in the
    backward pass instead of being kept.
    """
    rows = torch.arange(len(a), device=a.device)
    anchor, positive = rows + first, (rows + len(a) // 2) % len(a) + first
    left_out = torch.stack([anchor, positive], 1) if decoupled else anchor[:, None]
    device = a.device.type
    mixed = torch.is_autocast_enabled(device)  # torch caches no compiled function that enters it
    with torch.autocast(device, enabled=False) if mixed else nullcontext():
        same = a is c
        a = at_least_float32(a)
        c = a if same else at_least_float32(c)
        if block == 0 and len(c) > DENSE_ROWS:
            block = BLOCK_ROWS
        if block == 0:
            return _sum_rows(a, c, left_out, positive, temperature) / len(c)
        recompute = partial(checkpoint, _sum_rows, use_reentrant=False, preserve_rng_state=False)
        parts = zip(a.split(block), left_out.split(block), positive.split(block))
        sums = [recompute(part, c, out, partner, temperature) for part, out, partner in parts]
        return torch.stack(sums).sum() / len(c)


def _sum_rows(
    a: Tensor, c: Tensor, left_out: Tensor, positive: Tensor, temperature: float
) -> Tensor:
    s = a @ c.T / temperature  # [M, N]
    pull = s.gather(1, positive[:, None]).squeeze(1)
    s = s.scatter(1, left_out, float("-inf"))
    return (torch.logsumexp(s, 1) - pull).sum()


def ipw_similarity(z: Tensor, z2: Tensor, prevalence: Tensor) -> Tensor:
    """Inverse-prevalence weighted similarity, sum_k z_k z2_k / prevalence_k.

    Parameters
    ----------
    z, z2 : [N, D] and [M, D].
    prevalence : [D], the share of images on which each dimension is active; dimensions with
        prevalence 0 get weight 0.
    """
    if prevalence.shape != z.shape[1:]:
        raise InputError(f"prevalence must be [{z.shape[1]}], got {list(prevalence.shape)}")
    prevalence = prevalence.to(z.dtype)
    tiny = torch.finfo(prevalence.dtype).tiny
    weight = torch.where(prevalence > 0, 1 / prevalence.clamp_min(tiny), 0.0)
    return (z * weight) @ z2.T


def ipw_rows(z: Tensor, prevalence: Tensor) -> Tensor:
    """Unit rows whose dot products are `ipw_similarity` scaled to cosines.

    z [N, D] is divided by the square root of the prevalence [D], at least RAREST, and scaled to
    unit length, so that the temperature of InfoNCE means the same as with plain cosines.
    """
    return unit_rows(z * prevalence.clamp_min(RAREST).rsqrt())


def balanced_assignment(
    scores: Tensor, temperature: float, rounds: int = 2,
    total: Callable[[Tensor], Tensor] = lambda x: x
) -> Tensor:
    """Assign rows to prototypes in equal shares: Sinkhorn-Knopp, without gradient.

    Scores [..., B, D] are cosines of rows and prototypes; leading dimensions are separate batches.
    From exp(scores / temperature), each round scales columns to equal sums, then rows to sum 1.
    `total` adds up column sums [..., D] over the processes that share a batch.
    """
    # Only the factors of rows and columns change, so a round is two matrix-vector products. Rows
    # start with their own sums: in a few rounds, rows near a prototype count more than rows near
    # none. Starting from rows of sum 1 is far worse (AP 0.32 instead of 0.36).
    q = ((scores.detach() - 1) / temperature).exp()
    row = q.new_ones(*q.shape[:-1], 1)
    column = q.new_ones(*q.shape[:-2], 1, q.shape[-1])
    tiny = torch.finfo(q.dtype).tiny  # keeps the factor of a prototype without rows finite
    for _ in range(rounds):
        column = 1 / total(row.mT @ q).clamp_min(tiny)
        row = 1 / (q @ column.mT).clamp_min(tiny)
    return q * column * row


def swapped_cross_entropy(scores: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Predict each row's partner's assignment; [0, i] and [1, i] of [2, B, D] are partners.

    Scalar, - sum over rows and prototypes of targets(partner) log softmax(scores / temperature).
    """
    one, other = (scores / temperature).unbind()
    first = F.cross_entropy(one, targets[1], reduction="sum")
    return first + F.cross_entropy(other, targets[0], reduction="sum")
