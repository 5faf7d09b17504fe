"""Codes [N, D], dense or scipy sparse: rows of unit length, and which entries are the strongest of a row or a column.

An entry fires where |z| of the row made unit length exceeds EPSILON. Nothing here holds more than a block of dense
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
from .counts import BLOCK, EPSILON, as_tensor, blocks, norms, release, unit

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
    if sp.issparse(z):
        row = np.repeat(np.arange(z.shape[0]), np.diff(z.indptr))
        largest = np.zeros(z.shape[0])  # taken out first, or squares would under- or overflow
        np.maximum.at(largest, row, np.abs(z.data))
        scale = np.where(largest > 0, largest, 1.0)
        return scale * np.sqrt(np.bincount(row, (z.data / scale[row]) ** 2, minlength=len(scale)))
    return np.concatenate([norms(block, part.start).numpy()[:, 0].astype(np.float64) for part, block in blocks(z)])


def unit_blocks(z: Codes) -> Iterator[tuple[slice, Tensor]]:
    """Dense blocks of rows at unit length, with their place."""
    rows = max(1, BLOCK // z.shape[1])
    for start in range(0, z.shape[0], rows):
        part = slice(start, min(start + rows, z.shape[0]))
        yield part, unit_rows(z, part)


def unit_rows(z: Codes, rows: slice | np.ndarray) -> Tensor:
    """Some rows, dense, at unit length; zero rows stay zero."""
    block = as_tensor(z[rows].toarray() if sp.issparse(z) else z[rows])
    if not sp.issparse(z):
        release(z)
    return unit(block, rows.start if isinstance(rows, slice) else 0)


def thin(z: Codes, share: float = 0.02) -> bool:
    """Whether so few entries are not zero that sparse products pay; a dense code is judged by 256 of its rows."""
    if sp.issparse(z):
        return bool(z.nnz <= share * z.shape[0] * z.shape[1])
    return bool((z[:: max(1, z.shape[0] // 256)] != 0).mean() <= share)


def fired(z: Codes) -> sp.csr_array:
    """The entries that fire, of rows at unit length, signed, float32."""
    if sp.issparse(z):
        length = lengths(z)
        data = z.data / np.repeat(np.where(length > 0, length, 1.0), np.diff(z.indptr))
        data[np.abs(data) <= EPSILON] = 0
        result = sp.csr_array((data.astype(np.float32), z.indices.copy(), z.indptr.copy()), shape=z.shape)
        result.eliminate_zeros()
        return result
    parts = []
    for _, block in unit_blocks(z):
        block = block.where(block.abs() > EPSILON, 0.0).float()
        parts.append(sp.csr_array(block.numpy()))
    return sp.csr_array(sp.vstack(parts, format="csr"))


def strongest(z: Codes, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k strongest dimensions of each row by |z|, strongest first; of equals the lower column comes first.

    Returns
    -------
    columns int64 [N, min(k, D)] and their values in the unit-length row, float32, signed; 0 where one does not fire.
    """
    if k < 1:
        raise InputError(f"at least one dimension must be kept, got k = {k}")
    found = [_strongest(block, min(k, z.shape[1])) for _, block in unit_blocks(z)]
    return np.concatenate([c.numpy() for c, _ in found]), np.concatenate([v.numpy() for _, v in found])


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
    values = block.gather(1, columns)
    return columns, values.where(values.abs() > EPSILON, 0.0).float()


def ranked_entries(z: Codes) -> Iterator[tuple[slice, np.ndarray, np.ndarray, np.ndarray]]:
    """Firing entries by blocks of columns, in order of column, then |z| descending, then row.

    Yields
    ------
    the columns of the block, and of each entry its column (counted within the block), row and float32 value.
    """
    n, width = z.shape
    row_bits = max(1, int(n - 1).bit_length())
    # column, value and row share 63 bits; float32 bits of positive numbers order as the numbers do
    most = 1 << (32 - row_bits)
    if sp.issparse(z) or thin(z):
        columns = abs(fired(z)).tocsc()
        step = int(min(width, most, max(1, COLUMN_BLOCK * width // max(1, columns.nnz))))
        for start in range(0, width, step):
            edges = columns.indptr[start : start + step + 1]
            inside = slice(edges[0], edges[-1])
            bits = columns.data[inside].view(np.int32).astype(np.int64)
            column = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
            key = _pack(column, bits, columns.indices[inside], row_bits)
            key.sort()
            yield slice(start, start + len(edges) - 1), *_unpack(key, row_bits)
        return
    for part, block in column_blocks(z, most):
        bits = block.numpy().view(np.int32).astype(np.int64)
        key = _pack(np.arange(len(bits))[:, None], bits, np.arange(n), row_bits)
        key[bits == 0] = np.iinfo(np.int64).max
        key.sort(axis=1)
        yield part, *_unpack(key[key < np.iinfo(np.int64).max], row_bits)


def _pack(column: np.ndarray, bits: np.ndarray, row: np.ndarray, row_bits: int) -> np.ndarray:
    return ((column.astype(np.int64) << 31 | (2**31 - 1 - bits)) << row_bits) | row


def _unpack(key: np.ndarray, row_bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    bits = (2**31 - 1) - (key >> row_bits & (2**31 - 1))
    return key >> (31 + row_bits), key & ((1 << row_bits) - 1), bits.astype(np.int32).view(np.float32)


def column_blocks(z: Codes, most: int = 2**32) -> Iterator[tuple[slice, Tensor]]:
    """Dense blocks of columns: |z| of rows at unit length, 0 where it does not fire, float32 [columns, N]."""
    length = lengths(z)
    length = np.where(length > 0, length, 1.0)
    columns = z.tocsc() if sp.issparse(z) else z
    step = int(min(max(1, COLUMN_BLOCK // z.shape[0]), most))
    for start in range(0, z.shape[1], step):
        part = slice(start, min(start + step, z.shape[1]))
        block = as_tensor(columns[:, part].toarray() if sp.issparse(z) else columns[:, part])
        block = (block / torch.from_numpy(length).to(block.dtype)[:, None]).abs_().float()
        yield part, F.threshold(block, EPSILON, 0.0).T.contiguous()


def strongest_images(z: Codes, count: int = 10) -> np.ndarray:
    """The rows on which each dimension is strongest by |z|, int64 [D, count]; of equals the first; -1 where none fires.

    A row's values are those at unit length.
    """
    table = np.full((z.shape[1], count), -1, np.int64)
    if not (sp.issparse(z) or thin(z)):
        for part, block in column_blocks(z):
            rows, values = _strongest(block, min(count, z.shape[0]))
            table[part, : rows.shape[1]] = rows.where(values > 0, -1).numpy()
        return table
    for part, column, row, _ in ranked_entries(z):
        edges = np.searchsorted(column, np.arange(part.stop - part.start + 1))
        rank = np.arange(len(column)) - edges[column]
        top = rank < count
        table[part.start + column[top], rank[top]] = row[top]
    return table
