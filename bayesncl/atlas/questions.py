"""Questions of the intruder quiz: four images a dimension fires on strongly, and one it does not."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from .dimensions import MIN_SUPPORT

STRONG = 20  # the four are drawn from so many strongest images
SHOWN = 4
EACH = 2  # questions a dimension


def draw_questions(
    z: sparse.csr_array, index: np.ndarray, value: np.ndarray, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Two questions for every dimension that fires on ten images or more, drawn without looking at labels.

    The intruder is an image on which the dimension does not fire, or, where it fires on more than half of them, one of
    the lower half.

    Parameters
    ----------
    z : float32 CSR [N, D], unit-norm rows.
    index, value : [D, >= 20], each dimension's strongest images, and their activations, 0 where fewer fire.

    Returns
    -------
    dims : int [Q]; images : int [Q, 5], the intruder last.
    """
    rng = np.random.default_rng(seed)
    n = z.shape[0]
    columns = z.tocsc()
    dims: list[int] = []
    images: list[list[int]] = []
    for k in range(z.shape[1]):
        part = slice(columns.indptr[k], columns.indptr[k + 1])
        fires, a = columns.indices[part], columns.data[part]
        top = index[k, :STRONG][value[k, :STRONG] > 0]
        if len(fires) < MIN_SUPPORT or len(top) < SHOWN:
            continue
        if 2 * len(fires) > n:  # the weaker ones may be drawn, too
            strong = fires[np.argsort(a, kind="stable")[max(n // 2 - (n - len(fires)), 0) :]]
        else:
            strong = fires
        barred = np.zeros(n, bool)
        barred[strong] = True
        barred[top] = True
        others = np.flatnonzero(~barred)
        if not len(others):
            continue
        for _ in range(EACH):
            dims.append(k)
            images.append([*rng.choice(top, SHOWN, replace=False).tolist(), int(rng.choice(others))])
    return np.array(dims, np.int64), np.array(images, np.int64).reshape(-1, SHOWN + 1)
