"""Sparse vectors of single images and dimensions: strongest entries and images, histograms."""

import numpy as np
from scipy import sparse
from sklearn.preprocessing import normalize

from bayesncl.measure.topk import strongest

SCALE = 32767  # unit-length features are stored as int16


def quantize(x: np.ndarray) -> np.ndarray:
    """Features in [-1, 1] as int16."""
    return np.clip(np.rint(x * SCALE), -SCALE, SCALE).astype(np.int16)


def columns_of(x: sparse.csr_array) -> sparse.csr_array:
    """The columns of x as rows [D, N] of unit length."""
    return sparse.csr_array(normalize(x.T.tocsr()))


def mask_rows(x: sparse.csr_array, keep: np.ndarray) -> sparse.csr_array:
    """x without the entries where the boolean array `keep` [N, D] is false, rows normalized."""
    return sparse.csr_array(normalize(x.multiply(sparse.csr_array(keep)).tocsr()))


def sparsify(
    z: sparse.csr_array, gated: sparse.csr_array, keep: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The `keep` entries of each row [N, D] that are largest before or after gating.

    Returns their rows and columns [E], strongest first within a row, their values in z and `gated`
    [2, E], and the share of the squared length of each that they hold [2, N].
    """
    n = z.shape[0]
    columns, values = strongest(abs(z).maximum(abs(gated)), keep)
    rows, place = np.nonzero(values)
    dims = columns[rows, place]
    stored, covered = [], []
    for x in (z, gated):
        entries = np.asarray(x[rows, dims]) if len(rows) else np.zeros(0, np.float32)
        kept = np.bincount(rows, np.square(entries, dtype=np.float64), minlength=n)
        total = np.asarray(x.astype(np.float64).power(2).sum(1)).ravel()
        share = np.divide(kept, total, out=np.ones(n), where=total > 0)
        covered.append(np.minimum(share, 1))
        stored.append(entries)
    return rows, dims, np.stack(stored), np.stack(covered)


def top_images(z: sparse.csr_array, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The images [D, count] on which each dimension is largest, and its values there, or 0."""
    index, value = strongest(sparse.csr_array(z.maximum(0).T), min(count, z.shape[0]))
    return np.where(value > 0, index, 0), value.astype(np.float32)


def histograms(z: sparse.csr_array, bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Histogram [D, bins] of each dimension's activations where it fires; limits of all [D, 2]."""
    d, dims = z.shape[1], z.indices
    high, low = np.zeros(d, np.float32), np.zeros(d, np.float32)
    np.maximum.at(high, dims, z.data)
    np.minimum.at(low, dims, z.data)
    span = np.where(high > low, high - low, 1)
    bin_number = ((z.data - low[dims]) / span[dims] * bins).astype(np.int64)
    flat = dims * np.int64(bins) + np.minimum(bin_number, bins - 1)
    counts = np.bincount(flat, minlength=d * bins)
    return counts.reshape(d, bins), np.stack([low, high], 1)
