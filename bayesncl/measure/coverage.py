"""Whether a code covers its images with distinct dimensions, or has collapsed.

Dimensions that all fire on the same few images score well on average precision and consistency and
are useless.
"""

import numpy as np
import scipy.sparse as sp

from bayesncl.inputs import Array, as_features
from bayesncl.measure.columns import twin_share
from bayesncl.measure.dimensions import describe
from bayesncl.measure.result import Tree
from bayesncl.measure.rows import column_sums, fired, lengths, unit_codes
from bayesncl.measure.topk import TOP, strongest_images
from bayesncl.method.losses import ACTIVE

THIN = 0.02  # share of non-zero entries up to which sparse products pay
MAX_DENSE_ROWS = 2048  # images that correlations of dense columns are computed over
SAME_CODE = 0.98  # mean cosine of two images' codes from which all images count as the same
HIDDEN_COPIES = 0.3  # ... from which unit-length rows may hide copies
MIN_DISTINCT, MIN_DISTINCT_SHARE = 1.5, 0.02  # near copies: fewer distinct than 1.5 + 0.02 live
MIN_SPREAD = 0.2  # spread per distinct dimension below which the strongest images are the same few
MAX_GROUPED = 1.4  # similarity times distinct dimensions of images in groups; 1 for exact groups
UNCOVERED = 0.5  # share of images without an active dimension at which a spread of 0.5 is too low
UNGROUPED = 0.1  # ... at which images do not count as grouped


def distinct_dimensions(
    z: Array, *, weights: np.ndarray | None = None, order: int = 1, seed: int = 0
) -> float:
    """Effective number of distinct dimensions of codes [N, D].

    exp(-sum_i p_i log sum_j p_j s_ij), with p_j the share of dimension j in the sum of |z| over all
    images at unit length (or of length `weights`), s_ij = max(r_ij, 0)^2, and r the correlation of
    two columns. It is the exponential of the entropy of usage if no two dimensions are correlated,
    1 if all are copies, and 0 if no column varies. r^2 of unrelated columns is about 1 / N by
    chance, which is subtracted. Order 2 gives 1 / sum_ij p_i p_j s_ij, which discounts dimensions
    of little use.
    """
    codes = unit_codes(z)
    n = len(codes)
    some = codes[:: max(1, n // 256)]  # 256 rows are enough to see whether few entries fire
    thin = (some != 0).mean() <= THIN
    if not thin and n > MAX_DENSE_ROWS:
        n = MAX_DENSE_ROWS
        chosen = np.sort(np.random.default_rng(seed).choice(len(codes), n, replace=False))
        codes, weights = codes[chosen], None if weights is None else weights[chosen]
    x = fired(codes)
    if weights is not None:
        x = sp.csr_array(x * weights[:, None].astype(np.float32))
    mass, total = (each.sum(0).astype(np.float64) for each in (abs(x), x))
    if thin:
        product = (x.T @ x).toarray() - np.outer(total, total / n).astype(np.float32)
    else:
        centered = x.toarray() - (total / n).astype(np.float32)  # before the product, for precision
        product = centered.T @ centered
    variance = np.diag(product).astype(np.float64)
    live = variance > 1e-9 * np.maximum(mass, 1e-30) ** 2 / n
    if not live.any():
        return 0.0
    p = mass[live] / mass[live].sum()
    deviation = np.sqrt(variance[live]).astype(np.float32)
    similar = product[np.ix_(live, live)] / deviation[:, None] / deviation
    similar = np.square(np.clip(similar, 0, 1))
    if n > 3:  # half of the chance correlations are negative and count as 0
        chance = np.float32(0.5 / (n - 2))
        similar = similar * (1 + chance) - chance
    np.fill_diagonal(similar, 1)
    shared = np.maximum(similar @ p, p)
    return float(np.exp(-(p * np.log(shared)).sum()) if order == 1 else 1 / (p @ shared))


def summary(z: Array, *, seed: int = 0, top: np.ndarray | None = None) -> Tree:
    """Coverage of the images, dead and distinct dimensions, and whether the code has collapsed.

    `top` are the ten or more strongest images of each dimension from `strongest_images`, if known.
    """
    z = as_features(z)
    codes = unit_codes(z)
    n, width = codes.shape
    table, total = describe(codes), column_sums(codes)
    rows = int((np.abs(codes) > ACTIVE).any(1).sum())
    live = width - int(table.dead.sum())
    top = strongest_images(codes) if top is None else top[:, :TOP]
    images = len(np.unique(top[top >= 0]))
    possible = min(n, int((top >= 0).sum()))
    similarity = float((total @ total - rows) / (rows * (rows - 1))) if rows > 1 else None
    result: Tree = {
        "images_without": 1 - rows / n,
        "l0": table.l0,
        "dead_share": 1 - live / width,
        "live": live,
        "distinct": distinct_dimensions(codes, seed=seed),
        "twins": twin_share(codes),
        "similarity": similarity,
        "spread": images / possible if possible else None,
    }
    reason = _find_collapse(z, codes, result, images, seed)
    return result | {"collapsed": reason is not None, "reason": reason}


def _find_collapse(
    z: np.ndarray, codes: np.ndarray, measured: Tree, images: int, seed: int
) -> str | None:
    """Why a code counts as collapsed; None if it does not."""
    live, spread, distinct = measured["live"], measured["spread"], measured["distinct"]
    similarity, uncovered = measured["similarity"] or 0.0, measured["images_without"]
    if not live:
        return "no dimension fires on any image"
    if z.shape[0] <= 2:  # two images may well be alike
        return None
    if similarity > SAME_CODE:
        return "all images have nearly the same code"
    # copies have the same strongest images
    if spread * live < MIN_SPREAD * distinct or (spread < 0.5 and uncovered > UNCOVERED):
        return f"the {TOP} strongest images of all {live:,} dimensions are the same {images:,}"
    least = MIN_DISTINCT + MIN_DISTINCT_SHARE * live if live > 3 else 0.0
    if distinct < least:
        # Images in groups, each with its own dimensions: as many are distinct as there are groups,
        # and two images are as likely to share a group as two dimensions are to be copies.
        grouped = distinct > MIN_DISTINCT and uncovered < UNGROUPED
        if grouped and similarity * distinct_dimensions(codes, order=2, seed=seed) < MAX_GROUPED:
            return None
    elif similarity > HIDDEN_COPIES:
        # Copies of one column are constant in rows of unit length, which hides them: look again
        # with the given lengths, none above twice the median.
        length = lengths(z).astype(np.float64)
        weights = np.minimum(length / np.median(length[length > 0]), 2)
        if np.ptp(weights) >= 0.1:
            distinct = distinct_dimensions(codes, weights=weights, seed=seed)
    if distinct < least:
        return f"{live:,} dimensions are near copies of {max(1, round(distinct)):,}"
    return None
