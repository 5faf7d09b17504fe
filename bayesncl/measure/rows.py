"""Codes [N, D]: at unit length, in blocks of rows, by column.

A dimension fires on an image where its |z|, in a row of unit length, exceeds ACTIVE.
"""

from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from bayesncl.errors import InputError
from bayesncl.inputs import Array, as_features
from bayesncl.method.losses import ACTIVE, unit_rows

ENTRIES_PER_BLOCK = 2**22  # sums are float32 within a block, float64 over blocks
UNIT_TOLERANCE = 1e-6  # rows this close to unit length are left unchanged


def slices(count: int, step: int) -> list[slice]:
    """Slices of `step` rows, of which the last may have fewer."""
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def blocks(z: np.ndarray) -> Iterator[tuple[slice, Tensor]]:
    """Slices of rows, and these rows as float32 (float64 where the codes are)."""
    for part in slices(len(z), max(1, ENTRIES_PER_BLOCK // z.shape[1])):
        yield part, as_tensor(z[part])


def as_tensor(rows: np.ndarray) -> Tensor:
    """Rows as a tensor of float32, or float64 where they are."""
    tensor = torch.from_numpy(np.require(rows, requirements=["C", "W"]))  # copies a read-only map
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def lengths(z: np.ndarray) -> np.ndarray:
    """Length of each row [N]; raises InputError where one is not finite."""
    length = torch.linalg.vector_norm(as_tensor(z), dim=1).numpy()
    if len(bad := np.flatnonzero(~np.isfinite(length))):
        what = "NaN, infinity or a number whose square is infinite"
        raise InputError(f"features must be finite numbers: row {bad[0]} holds {what}")
    return length


def unit_codes(z: Array) -> np.ndarray:
    """Codes with rows at unit length; zero rows stay zero. Codes of unit length are not copied."""
    z = as_features(z)
    length = lengths(z)
    if (np.abs(length - 1)[length > 0] <= UNIT_TOLERANCE).all():
        return z
    return unit_rows(as_tensor(z)).numpy()


def column_sums(z: Array) -> np.ndarray:
    """Sum of each dimension over the unit-length rows, float64 [D]."""
    return np.asarray(unit_codes(z).sum(0, dtype=np.float64))


def active(z: Array) -> Tensor:
    """Rows at unit length, float32, with 0 where an entry does not fire."""
    rows = as_tensor(unit_codes(z))
    return rows.where(rows.abs() > ACTIVE, 0.0).float()


def fired(z: Array) -> sp.csr_array:
    """The entries that fire, of rows at unit length, signed, float32."""
    return sp.csr_array(active(z).numpy())


def ranked_columns(z: Array) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """Each column, the rows where it fires by |z| descending, |z| there, and the depth of each.

    Rows are at unit length. The depth is the number of rows down to the end of the tie it is in.
    """
    z = unit_codes(z)
    for j in range(z.shape[1]):
        size = np.abs(z[:, j]).astype(np.float32)
        rows = np.flatnonzero(size > ACTIVE)
        rows = rows[np.argsort(-size[rows], kind="stable")]
        size = size[rows]
        yield j, rows, size, np.searchsorted(-size, -size, side="right")
