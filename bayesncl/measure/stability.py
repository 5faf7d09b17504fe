"""Whether two fits find the same dimensions: columns of two codes of the same images, matched."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from bayesncl.errors import InputError
from bayesncl.inputs import Array
from bayesncl.measure.dimensions import mean
from bayesncl.measure.rows import as_tensor, drop_silent, unit_codes

SAME = 0.7  # cosine from which two columns count as the same dimension


def match_columns(a: Array, b: Array) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Match the columns of a [N, D] and b [N, E] by the Hungarian method on |cosine|.

    Rows are normalized first. The sign does not count: a flipped axis is the same axis. Returns the
    partner of each column of a, int64 [D], and their |cosine| [D] (-1 and 0 without a partner), and
    how many columns of a and b fire.
    """
    a, b = unit_codes(a), unit_codes(b)
    if len(a) != len(b):
        raise InputError(f"codes of {len(a)} and {len(b)} images, expected the same images")
    both = [drop_silent(as_tensor(each)) for each in (a, b)]
    squares = [each.square().sum(0, dtype=torch.float64).numpy() for each in both]
    live = [np.flatnonzero(square > 0) for square in squares]
    lengths = [np.sqrt(square[on]) for square, on in zip(squares, live)]
    product = (both[0].T @ both[1]).numpy()[np.ix_(*live)]
    cosine = (np.abs(product) / lengths[0][:, None] / lengths[1]).astype(np.float32)
    rows, columns = linear_sum_assignment(cosine, maximize=True)
    partner, similarity = np.full(a.shape[1], -1), np.zeros(a.shape[1])
    partner[live[0][rows]] = live[1][columns]
    similarity[live[0][rows]] = cosine[rows, columns]
    return partner, similarity, [len(each) for each in live]


def summary(a: Array, b: Array) -> dict[str, float | None]:
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
