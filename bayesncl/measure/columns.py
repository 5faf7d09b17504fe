"""How dimensions relate to each other: near copies, linear dependence, and matches of two fits.

Needs no labels.
"""

from itertools import combinations

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from bayesncl.data.images import spread_evenly
from bayesncl.errors import InputError
from bayesncl.inputs import Array, as_features, as_numpy
from bayesncl.measure.dimensions import mean
from bayesncl.measure.interpretability import Values
from bayesncl.measure.rows import active, as_tensor, unit_codes

TWIN = 0.9  # cosine above which two dimensions are twins
MAX_TWIN_ROWS = 8192  # rows that cosines are computed over, spread evenly
MAX_DIMS = 2048  # above, the inverse of the correlations takes too long
MAX_ROWS = 10_000  # of `independence`, drawn at random
RIDGE = 1e-6  # added to the correlations, which are singular where columns are copies
SAME = 0.7  # cosine from which two columns count as the same dimension


def find_twins(z: Array) -> tuple[np.ndarray, np.ndarray]:
    """Which dimensions of codes [N, D] are twins, bool [D, D], and the largest |z| of each [D]."""
    codes = unit_codes(z)
    rows = active(codes[spread_evenly(len(codes), MAX_TWIN_ROWS)])
    columns = torch.nn.functional.normalize(rows, dim=0)
    cosine = (columns.T @ columns).fill_diagonal_(0)
    return (cosine > TWIN).numpy(), rows.abs().amax(0).numpy()


def twin_share(z: Array) -> float:
    """Share of the dimensions of codes [N, D] that have a twin; dead ones have none."""
    return float(find_twins(z)[0].any(1).mean())


def distinct(z: Array) -> np.ndarray:
    """Dimensions of codes [N, D] no two of which are twins, ascending; the strongest are preferred.

    Without some dimensions the rows have other lengths, so twins are sought again.
    """
    codes = as_features(z)
    left = np.arange(codes.shape[1])
    while True:
        twins, strength = find_twins(codes[:, left])
        if not twins.any():
            return left
        kept = np.ones(len(left), bool)
        for k in np.argsort(-strength, kind="stable"):
            kept &= ~(twins[k] & kept[k])
        left = left[kept]


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


def independence(z: Array, groups: Array | None = None, *, seed: int = 0) -> tuple[Values, Values]:
    """Both measures, and by chance: with each column shuffled on its own."""
    codes, rng = unit_codes(z), np.random.default_rng(seed)
    dense = as_tensor(codes[np.sort(rng.permutation(codes.shape[0])[:MAX_ROWS])]).numpy()

    def measure(codes: np.ndarray) -> Values:
        values: Values = {"predictability": predictability(codes)}
        return values if groups is None else values | {"groups": group_similarity(codes, groups)}

    return measure(dense), measure(rng.permuted(dense, axis=0))


def match_columns(a: Array, b: Array) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Match the columns of a [N, D] and b [N, E] by the Hungarian method on |cosine|.

    Rows are normalized first. The sign does not count: a flipped axis is the same axis. Returns the
    partner of each column of a, int64 [D], and their |cosine| [D] (-1 and 0 without a partner), and
    how many columns of a and b fire.
    """
    both = active(a), active(b)
    if len(both[0]) != len(both[1]):
        images = f"{len(both[0])} and {len(both[1])} images"
        raise InputError(f"codes of {images}, expected the same images")
    squares = [each.square().sum(0, dtype=torch.float64).numpy() for each in both]
    live = [np.flatnonzero(square > 0) for square in squares]
    lengths = [np.sqrt(square[on]) for square, on in zip(squares, live)]
    product = (both[0].T @ both[1]).numpy()[np.ix_(*live)]
    cosine = (np.abs(product) / lengths[0][:, None] / lengths[1]).astype(np.float32)
    rows, columns = linear_sum_assignment(cosine, maximize=True)
    partner, similarity = np.full(len(squares[0]), -1), np.zeros(len(squares[0]))
    partner[live[0][rows]] = live[1][columns]
    similarity[live[0][rows]] = cosine[rows, columns]
    return partner, similarity, [len(each) for each in live]


def stability(a: Array, b: Array) -> Values:
    """How much of one code another repeats: codes [N, D] of the same images by two seeds.

    `share_same` and `unmatched` are of the live columns of the richer code.
    """
    partner, cosine, live = match_columns(a, b)
    cosine = cosine[partner >= 0]
    return {
        "mean_cosine": mean(cosine),
        "share_same": float((cosine > SAME).sum() / max(live)) if max(live) else None,
        "unmatched": float(max(live) - len(cosine)),
    }
