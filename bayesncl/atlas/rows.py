"""Features as sparse rows of length 1: what does not fire takes no memory."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from ..arrays import as_features
from ..errors import InputError
from ..measure.counts import EPSILON

CHUNK = 4 << 20  # numbers looked at together


def unit_rows(x: np.ndarray) -> np.ndarray:
    """Rows scaled to length 1 in float32, whatever their scale; a row of zeros stays zero."""
    x = np.asarray(x, dtype=np.float64)
    most = np.abs(x).max(1, keepdims=True, initial=0)
    x = x / np.where(most > 0, most, 1)  # first to 1, or squares of 1e300 would overflow and those of 1e-300 vanish
    norm = np.sqrt(np.einsum("nd,nd->n", x, x))[:, None]
    return (x / np.where(norm > 0, norm, 1)).astype(np.float32)


def sparse_rows(x: object, what: str) -> sparse.csr_array:
    """Features [N, D], dense or sparse, as float32 CSR with rows of length 1 that holds the entries that fire.

    Parameters
    ----------
    x : NumPy array, memory map, torch tensor or SciPy sparse matrix; a dense one is read a part at a time.
    what : its name in messages.
    """
    try:
        if sparse.issparse(x):
            found = sparse.csr_array(x)
            found.data = as_features(found.data[None])[0] if found.nnz else found.data.astype(np.float32)
            found.sum_duplicates()
        else:
            found = as_features(x)
    except InputError as error:
        raise InputError(f"{what}: {error}") from None
    n, d = found.shape
    step = max(1, CHUNK // max(d, 1))
    parts: list[sparse.csr_array] = []
    strange = 0
    for a in range(0, n, step):
        part = found[a : a + step]
        part = part.toarray() if sparse.issparse(part) else np.asarray(part)
        strange += int(np.count_nonzero(~np.isfinite(part)))
        if not strange:
            part = unit_rows(part)
            parts.append(sparse.csr_array(np.where(np.abs(part) > EPSILON, part, 0)))
    if strange:
        raise InputError(f"{what} holds {strange} values that are not finite")
    return sparse.csr_array(sparse.vstack(parts, format="csr"))


def scale_rows(x: sparse.csr_array) -> sparse.csr_array:
    """Rows of a CSR matrix scaled to length 1; an empty row stays empty."""
    norm = np.sqrt(np.bincount(row_of(x), x.data.astype(np.float64) ** 2, minlength=x.shape[0]))
    data = x.data / np.where(norm > 0, norm, 1)[row_of(x)]
    return sparse.csr_array((data.astype(np.float32), x.indices, x.indptr), shape=x.shape)


def scale_columns(x: sparse.csr_array) -> sparse.csr_array:
    """The columns of `x` as rows [D, N] of length 1."""
    return scale_rows(sparse.csr_array(x.T))


def row_of(x: sparse.csr_array) -> np.ndarray:
    """Row number of each stored entry."""
    return np.repeat(np.arange(x.shape[0]), np.diff(x.indptr))


def mask_rows(x: sparse.csr_array, keep: np.ndarray) -> sparse.csr_array:
    """`x` without the entries where the boolean array `keep` [N, D] is false; rows scaled to length 1 again."""
    held = sparse.csr_array((x.data * keep[row_of(x), x.indices], x.indices.copy(), x.indptr.copy()), shape=x.shape)
    held.eliminate_zeros()
    return scale_rows(held)
