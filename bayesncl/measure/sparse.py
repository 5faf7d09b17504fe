"""Codes [N, D], dense or scipy sparse: rows of unit length, and which entries are the strongest of a row or a column.

An entry fires where |z| of the row made unit length exceeds ACTIVE. Nothing here holds more than a block of dense
entries beside what it is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor

from ..arrays import Array, as_features
from ..errors import InputError
from ..objective import ACTIVE
from .counts import as_tensor, blocks, norms, place, release, unit

Codes = Any  # numpy [N, D] or a scipy CSR array of that shape
COLUMN_BLOCK = 2**23  # entries sorted at once


def as_codes(z: Array) -> Codes:
    """Numpy, torch or scipy sparse codes as a numpy array or a CSR array of float32 or float64."""
    if not sp.issparse(z):
        return as_features(z)
    if 0 in z.shape:
        raise InputError(f"features are empty: shape {list(z.shape)}")
    z = sp.csr_array(z)
    z = z if z.dtype in (np.float32, np.float64) else z.astype(np.float64)
    if not z.has_canonical_format:
        z = z.copy()
        z.sum_duplicates()
    if not np.isfinite(z.data).all():
        raise InputError("features must be finite numbers, got NaN or infinity")
    return z


def lengths(z: Codes) -> np.ndarray:
    """Length of each row [N], float64."""
    return np.concatenate([norms(block, part.start).double().numpy()[:, 0] for part, block in blocks(z)])


def unit_blocks(z: Codes) -> Iterator[tuple[slice, Tensor]]:
    """Dense blocks of rows at unit length, with their place."""
    for part, block in blocks(z):
        yield part, unit(block, part.start)


def firing_rows(z: Codes, rows: slice | np.ndarray) -> Tensor:
    """Some rows, dense, at unit length, float32; 0 where an entry does not fire."""
    block = as_tensor(z[rows].toarray() if sp.issparse(z) else z[rows])
    release(z)
    return _firing(unit(block, rows.start if isinstance(rows, slice) else 0))


def _firing(block: Tensor) -> Tensor:
    return block.where(block.abs() > ACTIVE, 0.0).float()


def fired(z: Codes) -> sp.csr_array:
    """The entries that fire, of rows at unit length, signed, float32."""
    parts = [sp.csr_array(_firing(block).numpy()) for _, block in unit_blocks(z)]
    return sp.csr_array(sp.vstack(parts, format="csr"))


def strongest(z: Codes, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k strongest dimensions of each row by |z|, strongest first; of equals the lower column comes first.

    Returns columns int64 [N, min(k, D)] and their values in the unit-length row, float32, signed; 0 where one does not
    fire.
    """
    if k < 1:
        raise InputError(f"at least one dimension must be kept, got k = {k}")
    found = [_strongest(block.to(place()), min(k, z.shape[1])) for _, block in unit_blocks(z)]
    columns, values = (torch.cat(both).cpu().numpy() for both in zip(*found))
    return columns, values


def _strongest(block: Tensor, k: int) -> tuple[Tensor, Tensor]:
    size = block.abs()
    top, columns = size.topk(k, dim=1)
    last = top[:, -1:]
    # topk takes any of equal entries: where the last place is contested, the lowest columns get it
    contested = torch.nonzero((size >= last).sum(1) > k).squeeze(1)
    if len(contested):
        rows, cut = size[contested], last[contested]
        sure, equal = rows > cut, rows == cut
        chosen = sure | (equal & (equal.cumsum(1) <= k - sure.sum(1, keepdim=True)))
        columns[contested] = chosen.nonzero()[:, 1].view(-1, k)
    columns = columns.sort(1).values
    order = size.gather(1, columns).sort(dim=1, descending=True, stable=True).indices
    columns = columns.gather(1, order)
    return columns, _firing(block.gather(1, columns))


def column_blocks(z: Codes) -> Iterator[tuple[slice, Tensor]]:
    """Dense blocks of columns: |z| of rows at unit length, 0 where it does not fire, float32 [columns, N]."""
    length = lengths(z)
    length = np.where(length > 0, length, 1.0)
    columns = z.tocsc() if sp.issparse(z) else z
    step = max(1, COLUMN_BLOCK // z.shape[0])
    for start in range(0, z.shape[1], step):
        part = slice(start, min(start + step, z.shape[1]))
        block = as_tensor(columns[:, part].toarray() if sp.issparse(z) else columns[:, part])
        block = (block / torch.from_numpy(length).to(block.dtype)[:, None]).abs_().float()
        yield part, F.threshold(block, ACTIVE, 0.0, inplace=True).T.contiguous()


def ranked_entries(z: Codes) -> Iterator[tuple[slice, np.ndarray, np.ndarray, np.ndarray]]:
    """Firing entries by blocks of columns, in order of column, then |z| descending, then row.

    Yields the columns of the block, and of each entry its column (counted within the block), row and float32 value.
    """
    for part, block in column_blocks(z):
        column, row = (index.numpy() for index in block.nonzero(as_tuple=True))
        value = block.numpy()[column, row]
        # positive floats are ordered as their bits are: one sort, of whole numbers; it is stable, rows stay in order
        key = torch.from_numpy((column << 32) - value.view(np.int32))
        order = key.sort(stable=True).indices.numpy()
        yield part, column[order], row[order], value[order]


def strongest_images(z: Codes, count: int = 10) -> np.ndarray:
    """The rows on which each dimension is strongest by |z|, int64 [D, count]; of equals the first; -1 where none fires.

    A row's values are those at unit length.
    """
    table = np.full((z.shape[1], count), -1, np.int64)
    for part, block in column_blocks(z):
        rows, values = _strongest(block.to(place()), min(count, z.shape[0]))
        table[part, : rows.shape[1]] = rows.where(values > 0, -1).cpu().numpy()
    return table
