"""What the page needs of single images: strongest dimensions, nearest images, and the top images of each dimension."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .dimensions import FIRES

SCALE = 32767  # unit-norm features are stored as int16


@dataclass(frozen=True)
class Sparse:
    """The strongest entries of each row, rows one after the other (CSR), strongest first within a row.

    Attributes
    ----------
    start : int [N + 1], row i holds entries start[i]:start[i + 1].
    dims : int [E], z, gated : int16 [E] in units of 1 / SCALE, open : bool [E].
    covered : float [2, N], share of the squared length of z and of gated that the entries of a row hold.
    """

    start: np.ndarray
    dims: np.ndarray
    z: np.ndarray
    gated: np.ndarray
    open: np.ndarray
    covered: np.ndarray


def quantise(x: np.ndarray) -> np.ndarray:
    """Features in [-1, 1] as int16."""
    return np.clip(np.rint(x * SCALE), -SCALE, SCALE).astype(np.int16)


def sparsify(z: np.ndarray, gated: np.ndarray, open: np.ndarray | None, keep: int) -> Sparse:
    """Keep of each row the `keep` entries that are largest before or after gating, and of those the ones that fire."""
    n, d = z.shape
    keep = min(keep, d)
    score = np.maximum(np.abs(z), np.abs(gated))
    if keep < d:
        top = np.argpartition(-score, keep - 1, axis=1)[:, :keep]
    else:
        top = np.broadcast_to(np.arange(d), (n, d))
    top = np.take_along_axis(top, np.argsort(-np.take_along_axis(score, top, 1), axis=1, kind="stable"), 1)
    held = np.take_along_axis(score, top, 1) > FIRES
    rows = np.broadcast_to(np.arange(n)[:, None], top.shape)[held]
    dims = top[held]
    start = np.concatenate([[0], np.cumsum(held.sum(1))])
    covered = np.empty((2, n))
    for i, x in enumerate((z, gated)):
        total = np.einsum("nd,nd->n", x, x, dtype=np.float64)
        stored = np.bincount(rows, x[rows, dims].astype(np.float64) ** 2, minlength=n)
        covered[i] = np.where(total > 0, np.minimum(stored / np.where(total > 0, total, 1), 1), 1)
    gates = np.ones(len(dims), bool) if open is None else open[rows, dims]
    return Sparse(start, dims, quantise(z[rows, dims]), quantise(gated[rows, dims]), gates, covered)


def nearest_rows(x: np.ndarray, count: int, other: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """For each row of `x` the `count` rows of `other` (default `x`, self left out) with the largest inner product.

    Returns
    -------
    index : int [N, count], similarity : float32 [N, count]; best first.
    """
    y = x if other is None else other
    count = min(count, len(y) - (other is None))
    index = np.zeros((len(x), count), np.int64)
    value = np.zeros((len(x), count), np.float32)
    if count <= 0:
        return index, value
    for a in range(0, len(x), 1024):
        s = x[a : a + 1024] @ y.T
        if other is None:
            s[np.arange(len(s)), a + np.arange(len(s))] = -np.inf  # self is left out by identity
        top = np.argpartition(-s, count - 1, axis=1)[:, :count]
        top = np.take_along_axis(top, np.argsort(-np.take_along_axis(s, top, 1), axis=1, kind="stable"), 1)
        index[a : a + 1024] = top
        value[a : a + 1024] = np.take_along_axis(s, top, 1)
    return index, value


def top_images(z: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """For each dimension the `count` images on which it is largest; equal values by image number.

    Returns
    -------
    index : int [D, count], value : float32 [D, count]; where fewer images fire the value is 0.
    """
    n, d = z.shape
    count = min(count, n)
    index = np.zeros((d, count), np.int64)
    value = np.zeros((d, count), np.float32)
    for a in range(0, d, 128):
        columns = np.ascontiguousarray(z[:, a : a + 128].T)
        index[a : a + 128] = np.argsort(-columns, axis=1, kind="stable")[:, :count]
        value[a : a + 128] = np.take_along_axis(columns, index[a : a + 128], 1)
    return index, np.where(value > FIRES, value, 0)


def histograms(z: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Distribution of each dimension's activation over the images on which it fires.

    Returns
    -------
    counts : int [D, bins], edges : float32 [D, 2], where the first bin begins and the last ends.
    """
    d = z.shape[1]
    high = np.maximum(z.max(0, initial=0), 0)
    low = np.minimum(z.min(0, initial=0), 0)
    span = np.where(high > low, high - low, 1)
    counts = np.zeros((d, bins), np.int64)
    for a in range(0, len(z), 1024):
        rows, dims = np.nonzero(np.abs(z[a : a + 1024]) > FIRES)
        place = ((z[a + rows, dims] - low[dims]) / span[dims] * bins).astype(np.int64)
        counts += np.bincount(dims * bins + np.minimum(place, bins - 1), minlength=d * bins).reshape(d, bins)
    return counts, np.stack([low, high], 1).astype(np.float32)
