"""Find axes that split all rows, whatever else they show: land or water behind the same birds.

Codes by prototypes are clusters. Where images are composed of two things, the stronger one decides
who is whose neighbor, and no dimension is about the other alone. So the axis of the stronger one is
found, without labels, and erased for most prototypes (`method.heads.Factors`).

Two-means splits the rows. The split is a factor if it is

- sharp: nearest neighbors seldom lie on different sides;
- independent of the rest: once the axis between the two means is erased, the neighbors that are new
  lie on the other side as often as random rows do. Where images show one thing, such as animals or
  vehicles, they do not: the rest of the embedding still knows the side.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from bayesncl.data.images import spread_evenly
from bayesncl.measure.neighbors import nearest
from bayesncl.measure.preprocess import prepare
from bayesncl.method.heads import without_axes

if TYPE_CHECKING:
    from bayesncl.codes.estimator import ReadableCodes

MAX_AXES = 3
N_NEIGHBORS = 10
STEPS = 50  # of the power iteration for the first principal axis, and of two-means
MAX_ROWS = 4096  # rows in which factors are looked for
# Both are relative to random pairs. Birds on backgrounds have 0.06 to 0.13 and 1.1; CIFAR-100 0.28
# and 0.9, CIFAR-10 0.11 and 0.5, digits 0.12 and 0.5 (docs/log/factors.md).
MAX_CROSSING, MIN_INDEPENDENCE = 0.2, 0.8


def find_axes(rows: Tensor) -> Tensor:
    """Orthonormal axes [A, F] of the factors of centered rows [N, F]; A is 0 if there is none."""
    found: list[Tensor] = []
    while len(found) < MAX_AXES and len(rows) > 10 * N_NEIGHBORS:
        axis, crossing, independence = measure_split(rows)
        if crossing > MAX_CROSSING or independence < MIN_INDEPENDENCE:
            break
        found.append(axis)
        rows = without_axes(rows, axis[None])
    return torch.stack(found) if found else rows.new_empty(0, rows.shape[1])


def splits_in_two(codes: ReadableCodes, x: np.ndarray) -> bool:
    """Whether the embeddings x [N, F] that codes were fitted on have a factor."""
    some = torch.from_numpy(np.array(x[spread_evenly(len(x), MAX_ROWS)], np.float32))
    return len(find_axes(prepare(some, codes.moments_))) > 0


def measure_split(rows: Tensor) -> tuple[Tensor, float, float]:
    """Split rows [N, F] by two-means: the unit axis between the means [F], and two measures.

    They are the share of neighbors on different sides, and the same for neighbors that are new
    without the axis, both relative to random pairs.
    """
    side = two_means(rows)
    share = float(side.double().mean())
    if share in (0, 1):  # equal rows
        return rows.new_zeros(rows.shape[1]), math.inf, 0.0
    axis = rows[side].mean(0) - rows[~side].mean(0)
    axis = axis / axis.norm()
    before, after = (
        nearest(each, N_NEIGHBORS)[0] for each in (rows, without_axes(rows, axis[None]))
    )  # [N, K]
    chance = 2 * share * (1 - share)
    new = (after[:, :, None] != before[:, None, :]).all(2)
    crosses = [(side[index] != side[:, None]).double() for index in (before, after)]
    independence = float(crosses[1][new].mean()) if bool(new.any()) else 0.0
    return axis, float(crosses[0].mean()) / chance, independence / chance


def two_means(rows: Tensor) -> Tensor:
    """The side of each row, bool [N], by k-means with two centers.

    Starts from the signs along the first principal axis, so it needs no seed.
    """
    axis = torch.randn(rows.shape[1], generator=torch.Generator().manual_seed(0)).to(rows)
    for _ in range(STEPS):
        axis = torch.nn.functional.normalize(rows.T @ (rows @ axis), dim=0)
    side = rows @ axis > 0
    for _ in range(STEPS):
        one, two = rows[side].mean(0), rows[~side].mean(0)
        # |x - two|^2 > |x - one|^2
        moved = rows @ (one - two) > (one.square().sum() - two.square().sum()) / 2
        if bool((moved == side).all()) or bool(moved.all()) or not bool(moved.any()):
            break
        side = moved
    return side
