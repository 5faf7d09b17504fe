"""What the page needs of single images: strongest dimensions, nearest images, and the top images of each dimension."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

SCALE = 32767  # unit-norm features are stored as int16
DENSE_BYTES = 1 << 30  # a matrix up to this size may be filled up with zeros
FASTER = 30  # products a dense multiplication does in the time of one sparse product
PRODUCTS = 6e9  # of a sparse search; rows are thinned to stay below it


@dataclass(frozen=True)
class Sparse:
    """The strongest entries of each row, rows one after the other (CSR), strongest first within a row."""

    start: np.ndarray  # int [N + 1], row i holds entries start[i]:start[i + 1]
    dims: np.ndarray  # int [E]
    z: np.ndarray  # int16 [E] in units of 1 / SCALE
    gated: np.ndarray  # likewise
    open: np.ndarray  # bool [E]
    covered: np.ndarray  # float [2, N], share of the squared length of z and of gated that the entries of a row hold


def quantise(x: np.ndarray) -> np.ndarray:
    """Features in [-1, 1] as int16."""
    return np.clip(np.rint(x * SCALE), -SCALE, SCALE).astype(np.int16)


def row_of(x: sparse.csr_array) -> np.ndarray:
    """Row number of each stored entry."""
    return np.repeat(np.arange(x.shape[0]), np.diff(x.indptr))


def scale_rows(x: sparse.csr_array) -> sparse.csr_array:
    """Rows scaled to length 1; an empty row stays empty."""
    norm = np.sqrt(np.bincount(row_of(x), x.data.astype(np.float64) ** 2, minlength=x.shape[0]))
    data = x.data / np.where(norm > 0, norm, 1)[row_of(x)]
    return sparse.csr_array((data.astype(np.float32), x.indices, x.indptr), shape=x.shape)


def columns_of(x: sparse.csr_array) -> sparse.csr_array:
    """The columns of `x` as rows [D, N] of length 1."""
    return scale_rows(sparse.csr_array(x.T))


def mask_rows(x: sparse.csr_array, keep: np.ndarray) -> sparse.csr_array:
    """`x` without the entries where the boolean array `keep` [N, D] is false; rows scaled to length 1 again."""
    held = sparse.csr_array((x.data * keep[row_of(x), x.indices], x.indices.copy(), x.indptr.copy()), shape=x.shape)
    held.eliminate_zeros()
    return scale_rows(held)


def strongest(x: sparse.csr_array, keep: int) -> sparse.csr_array:
    """The `keep` largest entries (in size) of each row, largest first within a row; equal ones by column."""
    order = np.lexsort((x.indices, -np.abs(x.data), row_of(x)))
    place = np.arange(x.nnz) - np.repeat(x.indptr[:-1], np.diff(x.indptr))
    held = order[place < keep]
    start = np.concatenate([[0], np.cumsum(np.minimum(np.diff(x.indptr), keep))])
    return sparse.csr_array((x.data[held], x.indices[held], start), shape=x.shape)


def sparsify(z: sparse.csr_array, gated: sparse.csr_array, open: np.ndarray | None, keep: int) -> Sparse:
    """Keep of each row the `keep` entries that are largest before or after gating."""
    n = z.shape[0]
    same = gated is z
    size = abs(z) if same else abs(z).maximum(abs(gated))
    top = strongest(sparse.csr_array(size), keep)
    rows, dims = row_of(top), top.indices
    values, covered = [], []
    for x in (z,) if same else (z, gated):
        found = np.asarray(x[rows, dims]) if len(rows) else np.zeros(0, np.float32)  # of no rows scipy makes no array
        total = np.bincount(row_of(x), x.data.astype(np.float64) ** 2, minlength=n)
        stored = np.bincount(rows, found.astype(np.float64) ** 2, minlength=n)
        covered.append(np.where(total > 0, np.minimum(stored / np.where(total > 0, total, 1), 1), 1))
        values.append(quantise(found))
    gates = np.ones(len(dims), bool) if open is None else open[rows, dims]
    return Sparse(top.indptr, dims, values[0], values[-1], gates, np.stack([covered[0], covered[-1]]))


def nearest_rows(
    x: sparse.csr_array, count: int, other: sparse.csr_array | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """For each row of `x` the `count` rows of `other` (default `x`, self left out) with the largest inner product.

    Their numbers, int [N, count], and float32 similarities, best first. Exact, but for sets so large that 6e9 products
    do not suffice: there the strongest entries of each row find candidates, whose similarity is exact.
    """
    y = x if other is None else other
    n, m, d = x.shape[0], y.shape[0], x.shape[1]
    count = max(min(count, m - (other is None)), 0)
    index = np.zeros((n, count), np.int64)
    value = np.zeros((n, count), np.float32)
    if count == 0:
        return index, value
    cost = _products(x, y)
    if m * d * 4 <= DENSE_BYTES and (m <= 1024 or n * m * d / FASTER <= cost):
        full = y.toarray()
        for a in range(0, n, 1024):
            s = x[a : a + 1024].toarray() @ full.T
            if other is None:
                s[np.arange(len(s)), a + np.arange(len(s))] = -np.inf  # self is left out by identity
            top = np.argpartition(-s, count - 1, axis=1)[:, :count]
            top = np.take_along_axis(top, np.argsort(-np.take_along_axis(s, top, 1), axis=1, kind="stable"), 1)
            index[a : a + 1024] = top
            value[a : a + 1024] = np.take_along_axis(s, top, 1)
        return index, value
    few, thin_x, thin_y = 64, x, y
    while cost > PRODUCTS and few >= 2:
        thin_x = strongest(x, few)
        thin_y = thin_x if other is None else strongest(y, few)
        cost, few = _products(thin_x, thin_y), few // 2
    wide = count if thin_x is x else 4 * count
    turned = sparse.csr_array(thin_y.T)
    step = max(1, min(1024, int(2e7 // m)))
    for a in range(0, n, step):
        s = thin_x[a : a + step] @ turned
        for i in range(s.shape[0]):
            part = slice(s.indptr[i], s.indptr[i + 1])
            found, similar = s.indices[part], s.data[part]
            if other is None:
                similar = np.where(found == a + i, -np.inf, similar)
            if len(found) > wide:
                best = np.argpartition(-similar, wide - 1)[:wide]
                found, similar = found[best], similar[best]
            if thin_x is not x:
                similar = np.where(np.isfinite(similar), (y[found] @ x[[a + i]].T).toarray()[:, 0], similar)
            order = np.lexsort((found, -similar))[:count]
            order = order[similar[order] > 0]
            index[a + i, : len(order)] = found[order]
            value[a + i, : len(order)] = similar[order]
            if len(order) < count:  # the rest share nothing: the first ones, at similarity 0
                taken = np.append(found[order], a + i) if other is None else found[order]
                index[a + i, len(order) :] = np.setdiff1d(np.arange(count + 1), taken)[: count - len(order)]
    return index, value


def _products(x: sparse.csr_array, y: sparse.csr_array) -> float:
    """Multiplications a sparse product of x and y transposed takes."""
    columns = [np.bincount(part.indices, minlength=part.shape[1]).astype(np.float64) for part in (x, y)]
    return float(columns[0] @ columns[1])


def top_images(z: sparse.csr_array, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the `count` images on which each dimension is largest; equal values by image number.

    Returns the numbers of the images, int [D, count], and the values, float32 [D, count], 0 where fewer images fire
    upwards.
    """
    count = min(count, z.shape[0])
    best = strongest(sparse.csr_array(z.maximum(0).T), count)
    held = np.arange(count) < np.diff(best.indptr)[:, None]  # [D, count]
    index, value = np.zeros(held.shape, np.int64), np.zeros(held.shape, np.float32)
    index[held], value[held] = best.indices, best.data
    return index, value


def histograms(z: sparse.csr_array, bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Count each dimension's activations in bins, over the images on which it fires.

    Returns the counts, int [D, bins], and where the first bin begins and the last ends, float32 [D, 2].
    """
    d, dims = z.shape[1], z.indices
    high, low = np.zeros(d, np.float32), np.zeros(d, np.float32)
    np.maximum.at(high, dims, z.data)
    np.minimum.at(low, dims, z.data)
    span = np.where(high > low, high - low, 1)
    place = ((z.data - low[dims]) / span[dims] * bins).astype(np.int64)
    counts = np.bincount(dims * np.int64(bins) + np.minimum(place, bins - 1), minlength=d * bins)
    return counts.reshape(d, bins), np.stack([low, high], 1)
