"""Class-by-dimension statistics of features [N, D], and average precision of each dimension.

Every count is a product of the one-hot labels Y with a matrix made from the features: Y^T |F|
[C, D] for activation mass, Y^T 1[|F| > t] for firing counts. `index_add_` is that product without
the multiplications by zero, so its cost does not grow with C.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from bayesncl.inputs import Array
from bayesncl.measure.rows import blocks, ranked_entries
from bayesncl.method.losses import ACTIVE

MIN_SUPPORT = 10  # a dimension that fires on fewer images is not counted
ROWS_PER_STEP = 256  # few enough that they and the sums stay in cache

Labelings = Sequence[np.ndarray]  # one or several labelings of the same rows, int64 [N] each


@dataclass(frozen=True)
class Counts:
    """Statistics by class and dimension for one labeling of the rows, float64."""

    rows: int
    sizes: np.ndarray  # [C] images by class
    fires: np.ndarray  # [T, C, D] images of class c on which |z_j| exceeds threshold t
    mass: np.ndarray  # [C, D] sum of |z_j| over the images where it exceeds `floor`


def count(
    z: np.ndarray, labelings: Labelings, thresholds: Sequence[float] = (ACTIVE,),
    floor: float = ACTIVE,
) -> list[Counts]:  # fmt: skip
    """Count the entries of z [N, D] as given, above each threshold, for each labeling."""
    classes = max(int(labels.max()) for labels in labelings) + 1
    index = torch.from_numpy(np.stack(labelings))  # [L, N]
    shape = len(labelings), 1 + len(thresholds), classes, z.shape[1]
    total = torch.zeros(shape, dtype=torch.float64)
    for part, block in blocks(z):
        sums = torch.zeros(shape, dtype=block.dtype)
        steps = block.split(ROWS_PER_STEP), index[:, part].split(ROWS_PER_STEP, 1)
        for rows, labels in zip(*steps):
            size = rows.abs()
            values = F.threshold(size, floor, 0.0)
            for kind, threshold in enumerate((floor, *thresholds)):
                if kind:  # comparing into floats is faster than converting booleans
                    torch.gt(size, threshold, out=values)
                for i, each in enumerate(labels):
                    sums[i, kind].index_add_(0, each, values)
        total += sums
    sizes = [np.bincount(labels, minlength=classes).astype(np.float64) for labels in labelings]
    return [Counts(z.shape[0], n, s[1:], s[0]) for n, s in zip(sizes, total.numpy())]


def average_precision(
    z: Array, labelings: Labelings, detected: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Average precision [D] of each dimension's unit-length |z| as a detector of one class.

    `detected` [D] are the classes to detect, one array per labeling. Equal values count as one step
    (as in scikit-learn); all images on which a dimension does not fire are equal.
    """
    results = [np.zeros(z.shape[1]) for _ in labelings]
    for part, column, row, _, depth in ranked_entries(z):
        many = part.stop - part.start
        first = np.searchsorted(column, np.arange(many))
        for labels, classes, result in zip(labelings, detected, results):
            hit = labels[row] == classes[part][column]
            before = np.concatenate([[0], np.cumsum(hit)])
            # hits down to the end of an entry's tie, over the images down to there
            precision = (before[first[column] + depth] - before[first[column]]) / depth
            found = np.bincount(column[hit], minlength=many)
            area = np.bincount(column[hit], precision[hit], minlength=many)
            positives = np.bincount(labels)[classes[part]]
            rest = (positives - found) * (positives / len(labels))
            result[part] = (area + rest) / positives
    return results
