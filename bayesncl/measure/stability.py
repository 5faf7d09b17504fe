"""Whether two fits find the same dimensions: columns of two codes of the same images, matched one to one."""

from __future__ import annotations

import numpy as np

from ..arrays import Array
from ..errors import InputError
from .dimensions import mean
from .sparse import Codes, as_codes, firing_rows

SAME = 0.7  # cosine from which two columns count as the same dimension
ENTRIES = 2**22  # of a block of rows


def match(a: Array, b: Array) -> tuple[np.ndarray, tuple[int, int]]:
    """Match the columns of a [N, D] and b [N, E] by the Hungarian method on |cosine| of their activations.

    Rows are made unit length first. The sign is left out: an axis turned round is the same axis. Gives the cosines of
    the pairs, in the order of the columns of a, and how many columns of each fire: others have no partner.
    """
    a, b = as_codes(a), as_codes(b)
    if a.shape[0] != b.shape[0]:
        raise InputError(f"the two codes must be of the same images, got {a.shape[0]} and {b.shape[0]} rows")
    cosine = _cosines(a, b)
    from scipy.optimize import linear_sum_assignment  # slow to import, and `measure` of a file needs none

    return cosine[linear_sum_assignment(cosine, maximize=True)].astype(np.float64), cosine.shape


def _cosines(a: Codes, b: Codes) -> np.ndarray:
    """|cosine| between the columns that fire, float32."""
    product = np.zeros((a.shape[1], b.shape[1]), np.float32)
    squares = [np.zeros(a.shape[1]), np.zeros(b.shape[1])]
    rows = max(1, ENTRIES // max(a.shape[1], b.shape[1]))
    for start in range(0, a.shape[0], rows):
        pair = [firing_rows(each, slice(start, start + rows)) for each in (a, b)]
        product += (pair[0].T @ pair[1]).numpy()
        for square, each in zip(squares, pair):
            square += each.square().sum(0).numpy()
    lengths = [np.sqrt(square[square > 0]) for square in squares]
    product = product[np.ix_(*(square > 0 for square in squares))]
    return (np.abs(product) / lengths[0][:, None] / lengths[1]).astype(np.float32)


def summary(a: Array, b: Array, *, control: tuple[Array, Array] | None = None) -> dict[str, float | None]:
    """How much of one code another repeats: codes [N, D] of the same images, of one method with two seeds.

    Returns
    -------
    `mean_cosine` of matched columns; `share_same`, of the live columns of the richer code those with a partner of
    cosine above 0.7; `unmatched`, live columns of the richer code without a partner; with `control`, codes of two
    untrained heads, the first two also as `_control`.
    """
    cosine, live = match(a, b)
    most = max(live)
    result = {
        "mean_cosine": mean(cosine),
        "share_same": float((cosine > SAME).sum() / most) if most else None,
        "unmatched": float(most - len(cosine)),
    }
    if control is not None:
        untrained = summary(*control)
        result |= {f"{name}_control": untrained[name] for name in ("mean_cosine", "share_same")}
    return result
