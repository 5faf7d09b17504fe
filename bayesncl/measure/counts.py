"""Class-by-dimension statistics of features [N, D], in one pass over blocks of rows.

What each measure needs is a product of the one-hot labels Y with a matrix made of the features: Y^T |F| [C, D] for
activation mass, and Y^T 1[|F| > t] for how often a dimension fires on a class. `index_add_` is that product without the
multiplications by zero, so that its cost does not grow with C. Sums are taken in the precision of a block and added up
in float64. Nothing here holds more than a block of rows, so that the features may lie on disk.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy import sparse
from torch import Tensor

from ..data.images import Progress
from ..errors import InputError
from ..objective import ACTIVE

MIN_SUPPORT = 10  # images a dimension must fire on to count: fewer say little about it
BLOCK = 2**20  # elements in a block of rows
SHORT = 1e-12  # rows no longer than this are scaled before they are squared
LONGEST = {torch.float32: 1e30, torch.float64: 1e150}  # sums of rows, or of their squares, stay finite
SPARSE = 8  # where fewer than one in this many entries are not zero, only those are worked with
FLUSH = 2**14  # rows summed in the precision of the features before they are added up in float64
EXACT_ENTRIES = 2**26  # average precision sorts up to this many firing entries (512 MB); above, values are rounded
BIN_BITS = 9  # ... to this many bits of mantissa, one part in 512


Labellings = Sequence[np.ndarray]  # one or several, int64 [N] each, of the same rows


@dataclass(frozen=True)
class Counts:
    """Statistics by class and dimension, for one labelling of the rows. All float64; counts are whole numbers."""

    rows: int
    sizes: np.ndarray  # [C] images by class
    thresholds: tuple[float, ...]
    fires: np.ndarray  # [T, C, D] images of class c on which the unit-norm |z_j| exceeds threshold t
    mass: np.ndarray  # [C, D] sum of the unit-norm |z_j| over images where it exceeds ACTIVE
    raw_fires: np.ndarray  # [C, D] as `fires`, features as given, at ACTIVE
    raw_mass: np.ndarray  # [C, D] sum of |z_j| as given, over all images
    largest: np.ndarray  # the largest unit-norm |z| of all entries, descending; as many as asked for
    unit: bool  # whether the rows had unit length as given, to 1e-3 (float16), or were zero


def place() -> torch.device:
    """Where products, neighbours and the strongest are sought: on the GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def blocks(features: np.ndarray, what: str = "", progress: Progress | None = None) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of rows as float32 (float64 where the features are), with their place."""
    rows = max(1, BLOCK // features.shape[1])
    count = features.shape[0]
    for start in range(0, count, rows):
        part = slice(start, min(start + rows, count))
        block: Any = features[part]
        yield part, as_tensor(block.toarray() if sparse.issparse(block) else block)
        release(features)
        if progress:
            progress(part.stop, count, what)


def as_tensor(rows: np.ndarray) -> Tensor:
    """As float32, or float64 where they are."""
    tensor = torch.from_numpy(np.require(rows, requirements=["C", "W"]))  # copies what is mapped read-only
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def release(features: np.ndarray) -> None:
    """Let go of the pages of a mapped file that were read; else they count as memory of the process until it ends.

    Called between blocks, so it looks whether the file is still there to its end: to read on would kill the process.
    """
    mapped = getattr(features, "_mmap", None)
    if mapped is None:
        return
    offset = getattr(features, "offset", 0)
    if mapped.size() < offset - offset % mmap.ALLOCATIONGRANULARITY + len(mapped):
        name = getattr(features, "filename", None) or "the file"
        raise InputError(f"{name} was cut while it was read: start again once it is whole")
    mapped.madvise(mmap.MADV_DONTNEED)


def norms(block: Tensor, start: int = 0, *, summed: bool = True) -> Tensor:
    """Length of each row [n, 1]; InputError where it is not finite or, if rows are `summed`, beyond LONGEST.

    `start` is the number of the first row.
    """
    norm = torch.linalg.vector_norm(block, dim=1, keepdim=True)
    odd = _odd(norm)
    if len(odd):  # squares under- or overflow: the largest entry is taken out first
        rows = block[odd]
        if not rows.isfinite().all():
            row = int(odd[~rows.isfinite().all(1)][0])
            raise InputError(f"features must be finite numbers, row {start + row} holds NaN or infinity")
        largest = _largest(rows)
        norm[odd] = largest * torch.linalg.vector_norm(rows / largest, dim=1, keepdim=True)
    longest = norm.max()
    if summed and longest > LONGEST[block.dtype]:
        row, most = start + int(norm.argmax()), LONGEST[block.dtype]
        raise InputError(f"row {row} of the features has length {longest:.2g}, beyond {most:.0e}: scale them down")
    return norm


def unit(block: Tensor, start: int = 0, norm: Tensor | None = None) -> Tensor:
    """Rows of unit length; zero rows stay zero. A block whose rows have it to 1e-6 comes back as it is, not copied."""
    norm = norms(block, start, summed=False) if norm is None else norm
    return divide(block, norm) if _off(norm) > 1e-6 else block


def divide(block: Tensor, norm: Tensor) -> Tensor:
    """Rows over their lengths [n, 1]; zero rows stay zero."""
    z = block / norm.where(norm > 0, 1.0)
    odd = _odd(norm)
    if len(odd):
        rows = block[odd] / _largest(block[odd])
        z[odd] = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_min(1)  # 0 if the row is 0
    return z


def _odd(norm: Tensor) -> Tensor:
    """Numbers of the rows so short or long that squares lose them; zero rows and what is not finite among them."""
    return torch.nonzero(~((norm > SHORT) & norm.isfinite()).squeeze(1)).squeeze(1)


def _largest(rows: Tensor) -> Tensor:
    """The largest |z| of each row [n, 1], 1 for zero rows."""
    largest = rows.abs().amax(1, keepdim=True)
    return largest.where(largest > 0, 1.0)


def _off(norm: Tensor) -> float:
    """How far the rows are from unit length, zero rows aside."""
    return float((norm - 1).abs_().where(norm > 0, 0.0).max())


def positive(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Row, column and value of the entries of a non-negative z [n, D] that are not zero, row by row."""
    place = z.view(-1).nonzero().squeeze(1)
    row = torch.div(place, z.shape[1], rounding_mode="floor")
    return row, place - row * z.shape[1], z.view(-1)[place]


def count(
    features: np.ndarray, labellings: Labellings, thresholds: Sequence[float] = (ACTIVE,), *, raw: bool = False,
    mass: bool = False, largest: int = 0, what: str = "counting", progress: Progress | None = None,
) -> list[Counts]:  # fmt: skip
    """One pass over the features, for one or several labellings of the same rows.

    Parameters
    ----------
    features : [N, D], finite.
    labellings : int64 [N] each, values 0..C-1; C is that of the labelling with the most classes.
    thresholds : on unit-norm features, ascending, none below ACTIVE.
    raw, mass : also fill these fields, which mean nothing otherwise; `raw` needs ACTIVE as the first threshold.
    largest : how many of the largest entries to return; needs `mass`.
    """
    n, dims = features.shape
    classes = max(int(labelling.max()) for labelling in labellings) + 1
    labels = [torch.from_numpy(labelling) for labelling in labellings]
    kinds = 3 + len(thresholds)  # raw mass, raw fires less fires, mass, then fires by threshold
    total = torch.zeros(len(labels), kinds, classes, dims, dtype=torch.float64)
    partial = torch.zeros(total.shape, dtype=torch.float64 if features.dtype == np.float64 else torch.float32)
    steps = torch.zeros_like(partial[:, 3:])  # entries between one threshold and the next
    edges = torch.tensor(thresholds, dtype=partial.dtype)
    given, above = (torch.empty(0, dims, dtype=partial.dtype) for _ in range(2))  # new memory costs more than sums
    top, all_unit, pending = _Largest(largest), True, 0
    for part, block in blocks(features, what, progress):

        def add(kind: int, values: Tensor, part: slice = part) -> None:
            for sums, y in zip(partial, labels):
                sums[kind].index_add_(0, y[part], values)  # [C, D] += Y^T values

        above.resize_(block.shape)
        torch.abs(block, out=given.resize_(block.shape))
        norm = norms(block, part.start)
        all_unit = all_unit and _off(norm) < 1e-3
        z = unit(given, part.start, norm)
        if raw:
            add(0, given)
            if z is not given:
                add(1, torch.gt(given, ACTIVE, out=above).sub_(z.gt(ACTIVE).to(z.dtype)))
        if mass:  # in place, as `given` is not needed any more
            F.threshold(z, ACTIVE, 0.0, inplace=True)
            add(2, z)
        top.add(z)
        if len(thresholds) > 1 and int(z.count_nonzero()) < z.numel() // SPARSE:
            row, column, value = positive(z)
            step = torch.bucketize(value, edges) - 1  # the highest threshold it exceeds
            row, column, step = (index[step >= 0] for index in (row, column, step))
            for sums, y in zip(steps, labels):
                place = (step * classes + y[part][row]) * dims + column
                sums.view(-1).index_add_(0, place, torch.ones(len(place), dtype=sums.dtype))
        else:
            for kind, threshold in enumerate(thresholds, 3):
                add(kind, torch.gt(z, threshold, out=above))
        pending += len(block)
        if pending >= FLUSH or part.stop == n:
            if len(thresholds) > 1:
                partial[:, 3:] += steps.flip(1).cumsum(1).flip(1)
                steps.zero_()
            total += partial
            partial.zero_()
            pending = 0
    shared = {"rows": n, "thresholds": tuple(thresholds), "largest": top.sorted(), "unit": all_unit}
    results = []
    for labelling, sums in zip(labellings, total.numpy()):
        sizes = np.bincount(labelling, minlength=classes).astype(np.float64)
        own = {"fires": sums[3:], "mass": sums[2], "raw_fires": sums[1] + sums[3], "raw_mass": sums[0]}
        results.append(Counts(sizes=sizes, **own, **shared))
    return results


class _Largest:
    """The k largest of a stream of numbers, in memory of a few k."""

    def __init__(self, k: int) -> None:
        self.k, self.cut = k, 0.0
        self.parts = [np.empty(0, np.float32)]

    def add(self, values: Tensor) -> None:
        if self.k:
            self.parts.append(values[values > self.cut].numpy())
            if sum(map(len, self.parts)) > 2 * self.k + BLOCK:
                self.parts = [self.sorted()]
                self.cut = float(self.parts[0][-1])  # the smallest kept; equals of it are there already, k or more

    def sorted(self) -> np.ndarray:
        joined = np.concatenate(self.parts)
        if len(joined) > self.k:
            joined = np.partition(joined, len(joined) - self.k)[len(joined) - self.k :]
        return np.sort(joined)[::-1]


def column_sums(features: np.ndarray, progress: Progress | None = None) -> np.ndarray:
    """Sum of each dimension over the unit-norm rows, float64 [D]."""
    total = torch.zeros(features.shape[1], dtype=torch.float64)
    for part, block in blocks(features, "ranking dimensions", progress):
        total += unit(block, part.start).sum(0, dtype=torch.float64)
    return total.numpy()


def gram(features: np.ndarray, *, normalise: bool, progress: Progress | None = None) -> np.ndarray:
    """F^T F, float64 [D, D]; of unit-norm rows where `normalise`.

    In float64 throughout: its eigenvalues are squares, so that single precision would hide singular values below 3e-4
    of the largest. On a CPU a symmetric product, which takes half the time of a general one.
    """
    parts = (unit(rows, part.start) if normalise else rows for part, rows in blocks(features, "spectrum", progress))
    shape = features.shape[1], features.shape[1]
    if place().type == "cuda":
        product = torch.zeros(shape, dtype=torch.float64, device=place())
        for rows in parts:
            wide = rows.to(place()).double()
            product.addmm_(wide.T, wide)
        return product.cpu().numpy()
    from scipy.linalg.blas import dsyrk  # slow to import, and not every table has a spectrum

    total = np.zeros(shape, order="F")
    for rows in parts:
        total = dsyrk(1.0, rows.double().numpy().T, beta=1.0, c=total, overwrite_c=1)  # the upper triangle
    return np.triu(total) + np.triu(total, 1).T


def average_precision(
    features: np.ndarray, labellings: Labellings, detected: Sequence[np.ndarray], entries: int, *,
    progress: Progress | None = None,
) -> list[np.ndarray]:  # fmt: skip
    """Average precision [D] of each dimension's unit-norm |z| as a detector of one class, for one or several pairs.

    Equal values count as one step (as in scikit-learn); all images on which a dimension does not fire are equal.
    `detected` [D] are the classes to detect. Up to EXACT_ENTRIES firing entries are sorted, as float32; if there are
    more `entries`, they are rounded to BIN_BITS bits of mantissa.
    """
    n, width = features.shape
    firing = _entries(features, labellings, detected, progress)
    if entries <= EXACT_ENTRIES:
        ranks = _sorted_ranks(firing, width, len(labellings), entries)
    else:
        ranks = _binned_ranks(firing, width, len(labellings))
    result = [np.zeros(width) for _ in labellings]
    sizes = [np.bincount(labels) for labels in labellings]
    for j, rank, hits in ranks:
        for i, hit in enumerate(hits):  # rank, hit [G]: images, and those of the class, down to the end of each tie
            positives = sizes[i][detected[i][j]]
            found = hit[-1] if len(hit) else 0
            area = (np.diff(hit, prepend=0) * (hit / rank)).sum() + (positives - found) * (positives / n)
            result[i][j] = area / positives
    return result


Firing = Iterator[tuple[np.ndarray, np.ndarray, list[np.ndarray]]]  # as `_entries` gives them
Ranks = Iterator[tuple[int, np.ndarray, list[np.ndarray]]]  # dimension, rank [G], hits [G] by labelling


def _entries(
    features: np.ndarray, labellings: Labellings, detected: Sequence[np.ndarray], progress: Progress | None
) -> Firing:
    """Firing entries by block: dimension, float32 bits (which order as the values do), is the image of the class."""
    for part, block in blocks(features, "average precision", progress):
        z = F.threshold(unit(block.abs(), part.start), ACTIVE, 0.0)
        row, column, values = (each.numpy() for each in positive(z))
        bits = values.astype(np.float32, copy=False).view(np.int32).astype(np.int64)
        yield column, bits, [y[part][row] == best[column] for y, best in zip(labellings, detected)]


def _sorted_ranks(firing: Firing, width: int, flags: int, entries: int) -> Ranks:
    keys = np.empty(entries, np.int64)  # dimension, then value descending, then one bit per labelling
    filled = 0
    for column, bits, hits in firing:
        key = (column << 31 | (2**31 - 1 - bits)) << flags
        for i, hit in enumerate(hits):
            key |= hit.astype(np.int64) << i
        keys[filled : filled + len(key)] = key
        filled += len(key)
    keys = keys[:filled]
    if place().type == "cuda":
        keys = torch.from_numpy(keys).to(place()).sort().values.cpu().numpy()
    else:
        keys.sort()  # in place, and faster than torch's
    edges = np.searchsorted(keys, np.arange(width + 1, dtype=np.int64) << (31 + flags))
    for j, (start, stop) in enumerate(pairwise(edges)):
        own = keys[start:stop]
        last = np.flatnonzero(np.diff(own >> flags, append=-1))
        yield j, last + 1, [np.cumsum(own >> i & 1)[last] for i in range(flags)]


def _binned_ranks(firing: Firing, width: int, flags: int) -> Ranks:
    drop = 23 - BIN_BITS
    floor = int(np.float32(ACTIVE).view(np.int32)) >> drop
    bins = (int(np.float32(1.001).view(np.int32)) >> drop) - floor + 1  # a unit-norm entry may exceed 1 by rounding
    table = np.zeros((1 + flags, width * bins), np.int32)
    for column, bits, hits in firing:
        place = column * bins + (bits >> drop) - floor
        np.add.at(table[0], place, 1)
        for row, hit in zip(table[1:], hits):
            np.add.at(row, place[hit], 1)
    for j, counts in enumerate(table.reshape(len(table), -1, bins).transpose(1, 0, 2)):
        occupied = np.flatnonzero(counts[0])[::-1]  # from the largest value down
        total = np.cumsum(counts[:, occupied], axis=1, dtype=np.int64)
        yield j, total[0], list(total[1:])
