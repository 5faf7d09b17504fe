"""Whether a code covers its images with distinct dimensions, or has collapsed.

A head whose dimensions all fire on the same few images scores well on average precision and consistency and is useless.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from ..arrays import Array
from ..objective import ACTIVE
from .sparse import Codes, as_codes, fired, firing_rows, lengths, strongest_images, unit_blocks

TOP = 10  # strongest images of a dimension
THIN = 0.02  # share of entries that are not zero up to which sparse products pay
ROWS = 2048  # images that the correlations of columns are taken over, at most, where most entries fire
ALIKE = 0.98  # mean cosine between the codes of two images from which all images count as the same
HIDDEN = 0.3  # ... from which rows of unit length may hide copies
COPIES = (1.5, 0.02)  # near copies: fewer distinct dimensions than the first plus the second for each live one
FEW = 0.2  # spread, for each distinct dimension, below which the strongest images are the same few
GROUPED = 1.4  # similarity times distinct dimensions below which copies are those of groups of images; 1 for groups
UNCOVERED = 0.5  # share of images without an active dimension from which FEW is not the only sign
UNGROUPED = 0.1  # ... from which images count as in no groups


def distinct_dimensions(z: Array, *, weights: np.ndarray | None = None, order: int = 1, seed: int = 0) -> float:
    """Effective number of distinct dimensions.

    exp(-sum_i p_i log sum_j p_j s_ij) with p_j the share of dimension j in the sum of |z| over all images, rows at unit
    length, and s_ij = max(r_ij, 0)^2, r the correlation of two columns. It is the exponential of the entropy of the
    usage if no two dimensions are correlated, 1 if all are copies, and 0 if no column varies: a constant column repeats
    nothing and tells nothing. r^2 of unrelated columns is about 1 / N by chance, which is taken off.

    `weights` [N] are lengths of the rows instead of 1. `order` 2 gives 1 / sum_ij p_i p_j s_ij, in which what is used
    little counts for less. Where most entries fire and there are more than 2,048 rows, so many are drawn by the seed.
    """
    codes = as_codes(z)
    n = codes.shape[0]
    if _thin(codes):
        x = fired(codes)
        x = x if weights is None else sp.csr_array(sp.diags_array(weights.astype(np.float32)) @ x)
        mass, total = (np.asarray(each.sum(0)).ravel().astype(np.float64) for each in (abs(x), x))
        product = (x.T @ x).toarray() - np.outer(total, total / n).astype(np.float32)
    else:
        picked = np.arange(n) if n <= ROWS else np.sort(np.random.default_rng(seed).choice(n, ROWS, replace=False))
        dense = firing_rows(codes, picked)
        dense = dense if weights is None else dense * torch.from_numpy(weights[picked, None].astype(np.float32))
        n = len(picked)
        mass = dense.abs().double().sum(0).numpy()
        centred = dense - dense.mean(0)  # first, or the product loses what is small beside the mean
        product = (centred.T @ centred).numpy()
    variance = np.diag(product).astype(np.float64)
    live = variance > 1e-9 * np.maximum(mass, 1e-30) ** 2 / n
    if not live.any():
        return 0.0
    p = mass[live] / mass[live].sum()
    deviation = np.sqrt(variance[live]).astype(np.float32)
    similar = product[np.ix_(live, live)] / deviation[:, None]
    similar /= deviation
    np.clip(similar, 0, 1, out=similar)
    np.square(similar, out=similar)
    if n > 3:  # half of the chance correlations are negative, and count as 0
        chance = np.float32(0.5 / (n - 2))
        similar *= 1 + chance
        similar -= chance
    np.fill_diagonal(similar, 1)
    shared = np.maximum(similar @ p, p)
    return float(np.exp(-(p * np.log(shared)).sum()) if order == 1 else 1 / (p @ shared))


def _thin(z: Codes) -> bool:
    """Whether few entries are not zero; a dense code is judged by 256 of its rows."""
    if sp.issparse(z):
        return bool(z.nnz <= THIN * z.shape[0] * z.shape[1])
    return bool((z[:: max(1, z.shape[0] // 256)] != 0).mean() <= THIN)


def summary(z: Array, *, seed: int = 0, strong: np.ndarray | None = None) -> dict[str, Any]:
    """Coverage of the images, dead and distinct dimensions, and whether the code has collapsed.

    `strong` are the ten or more strongest images of each dimension, as `strongest_images` gives them, where known.

    Returns
    -------
    `images_without` (share of images on which no dimension fires), `l0` (active dimensions an image), `dead_share`,
    `live` (dimensions that fire on some image), `distinct` (see `distinct_dimensions`), `similarity` (mean cosine
    between the codes of two images), `spread` (distinct images among the ten strongest of every live dimension, of
    those there could be), `collapsed` and `reason` (None if not).
    """
    codes = as_codes(z)
    n, width = codes.shape
    active, fires, total = np.zeros(n, np.int64), np.zeros(width, np.int64), np.zeros(width)
    for part, block in unit_blocks(codes):
        on = block.abs() > ACTIVE
        active[part] = on.sum(1).numpy()
        fires += on.sum(0).numpy()
        total += block.sum(0, dtype=torch.float64).numpy()
    rows = int((active > 0).sum())
    live = int((fires > 0).sum())
    top = strongest_images(codes, TOP) if strong is None else strong[:, :TOP]
    images = len(np.unique(top[top >= 0]))
    possible = min(n, int((top >= 0).sum()))
    result: dict[str, Any] = {
        "images_without": 1 - rows / n,
        "l0": float(active.mean()),
        "dead_share": 1 - live / width,
        "live": live,
        "distinct": distinct_dimensions(codes, seed=seed),
        "similarity": float((total @ total - rows) / (rows * (rows - 1))) if rows > 1 else None,
        "spread": images / possible if possible else None,
    }
    reason = _reason(codes, result, images, seed)
    return result | {"collapsed": reason is not None, "reason": reason}


def _reason(z: Codes, found: dict[str, Any], images: int, seed: int) -> str | None:
    """Why a code counts as collapsed, in words; None if it does not."""
    live, spread, similarity = found["live"], found["spread"], found["similarity"] or 0.0
    tells, distinct = z.shape[0] > 2, found["distinct"]  # two images may well be alike
    if not live:
        return "no dimension fires on any image"
    if tells and similarity > ALIKE:
        return "all images have nearly the same code"
    same = spread * live < FEW * distinct  # copies have the same strongest images
    if tells and (same or (spread < 0.5 and found["images_without"] > UNCOVERED)):
        return f"the {TOP} strongest images of all {live:,} dimensions are the same {images:,}"
    few = COPIES[0] + COPIES[1] * live if tells and live > 3 else 0.0
    if distinct < few:
        # images in groups, each with dimensions of its own: however wide the code, so many are distinct as there are
        # groups, and two images are alike if they share one, which is as likely as that two dimensions are copies
        grouped = COPIES[0] < distinct and found["images_without"] < UNGROUPED
        if grouped and similarity * distinct_dimensions(z, order=2, seed=seed) < GROUPED:
            return None
    elif similarity > HIDDEN:
        # rows of unit length hide copies, for they are constant there; no row counts more than twice the median
        length = lengths(z)
        weights = np.minimum(length / np.median(length[length > 0]), 2)
        if np.ptp(weights) >= 0.1:
            distinct = distinct_dimensions(z, weights=weights, seed=seed)
    return f"{live:,} dimensions are near copies of {max(1, round(distinct)):,}" if distinct < few else None
