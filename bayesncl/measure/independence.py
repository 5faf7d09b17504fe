"""How far dimensions, or groups of dimensions, predict each other. Needs no labels."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from bayesncl.errors import InputError
from bayesncl.inputs import Array, as_numpy
from bayesncl.measure.rows import as_tensor, unit_codes

MAX_DIMS = 2048  # above, the inverse of the correlations takes too long
MAX_ROWS = 10_000  # drawn at random
RIDGE = 1e-6  # added to the correlations, which are singular where columns are copies

Values = dict[str, float | None]


def _centered(z: Array) -> np.ndarray:
    """Codes at unit length, dense, float64, each column less its mean."""
    rows = unit_codes(z).astype(np.float64)
    return np.asarray(rows - rows.mean(0))


def predictability(z: Array) -> float | None:
    """Mean share of a dimension's variance that a linear function of all others explains, 0 to 1.

    R^2 of dimension j is 1 - 1 / (C^-1)_jj, with C the correlations of the columns that vary. It is
    adjusted for the number of columns D: 1 - (1 - R^2) (N - 1) / (N - D), which is 0 on average for
    columns that have nothing to do with each other. None with fewer than 2 D rows or above 2,048
    dimensions.
    """
    x = _centered(z)
    deviation = np.sqrt(np.square(x).mean(0))
    live = deviation > 1e-9
    n, width = len(x), int(live.sum())
    if width < 2 or n < 2 * width or width > MAX_DIMS:
        return None
    x = x[:, live] / deviation[live]
    inverse = np.linalg.inv(x.T @ x / n + RIDGE * np.eye(width))
    unexplained = np.minimum(1 / np.diag(inverse), 1)
    return float(1 - (unexplained * (n - 1) / (n - width)).mean())


def group_similarity(z: Array, groups: Array) -> float:
    """Mean linear CKA of two groups of dimensions, 0 to 1; `groups` [D] numbers them.

    |C_ab|^2 / (|C_aa| |C_bb|), with C the covariances of the columns of groups a and b and |.| the
    Frobenius norm: 0 if no linear function of one group predicts anything of the other, 1 if both
    hold the same up to rotation and scale.
    """
    x, groups = _centered(z), as_numpy(groups)
    if groups.shape != x.shape[1:] or len(np.unique(groups)) < 2:
        seen = f"{list(groups.shape)} with {len(np.unique(groups))}"
        raise InputError(f"groups must be [{x.shape[1]}] with two or more numbers, got {seen}")
    parts = [x[:, groups == g] for g in np.unique(groups)]
    norms = [np.linalg.norm(part.T @ part) for part in parts]
    return float(np.mean([
        np.square(parts[a].T @ parts[b]).sum() / max(norms[a] * norms[b], 1e-12)
        for a, b in combinations(range(len(parts)), 2)
    ]))  # fmt: skip


def summary(z: Array, groups: Array | None = None, *, seed: int = 0) -> tuple[Values, Values]:
    """Both measures, and by chance: with each column shuffled on its own."""
    codes, rng = unit_codes(z), np.random.default_rng(seed)
    dense = as_tensor(codes[np.sort(rng.permutation(codes.shape[0])[:MAX_ROWS])]).numpy()

    def measure(codes: np.ndarray) -> Values:
        values: Values = {"predictability": predictability(codes)}
        return values if groups is None else values | {"groups": group_similarity(codes, groups)}

    return measure(dense), measure(rng.permuted(dense, axis=0))
