"""Dimensions as detectors of classes: best F1 and IoU over thresholds, sparse probing, hierarchies of labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from ..arrays import Array, as_labels, as_numpy
from .counts import MIN_SUPPORT
from .dimensions import largest_share, mean
from .kept import class_counts, keep
from .sparse import Codes, as_codes, fired, ranked_entries, unit_blocks

DIMS = (1, 2, 4)  # dimensions a class is read from
KEPT = 5  # dimensions an image, of which the hierarchy is told
RIDGE = 1e-3  # of the mean variance, added to the covariance of a sparse probe


def detect(z: Codes, labellings: Sequence[np.ndarray], classes: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Best F1 of each dimension over thresholds on its unit-norm |z|, by labelling; NaN where it never fires.

    Gives that for the class of its highest mean activation, [D], and that for the class it fits best, [D]. A threshold
    splits no tie. Sorted by activation, the prefix of n images that ends with the r-th image of class c has
    F1 = 2 r / (n + |c|) for it, and the best prefix of a class ends with one of its images: one pass over the sorted
    entries serves all classes.
    """
    results = [(np.full(z.shape[1], np.nan), np.full(z.shape[1], np.nan)) for _ in labellings]
    for part, column, row, value in ranked_entries(z):
        if not len(column):
            continue
        # images down to the end of the tie an entry is in
        begin = np.searchsorted(column, np.arange(part.stop - part.start))
        last = np.flatnonzero(np.append((np.diff(column) != 0) | (np.diff(value) != 0), True))
        depth = np.repeat(last, np.diff(last, prepend=-1)) + 1 - begin[column]
        for labels, (own, best) in zip(labellings, results):
            sizes = np.bincount(labels, minlength=classes)
            dimension, f1, mean = _by_class(column, labels[row], value, depth, sizes)
            first = np.flatnonzero(np.diff(dimension, prepend=-1))
            here = part.start + dimension[first]
            best[here] = np.maximum.reduceat(f1, first)
            own[here] = f1[np.lexsort((-mean, dimension))[first]]  # stable: of equal classes the first
    return results


def _by_class(
    column: np.ndarray, label: np.ndarray, value: np.ndarray, depth: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each dimension with each class it fires on, in order: the dimension, the best F1 and the mean activation."""
    many, classes = len(column), len(sizes)
    bits = many.bit_length()
    key = (column * classes + label) << bits | np.arange(many)  # sorting numbers is faster than sorting their places
    key.sort()
    order, group = key & ((1 << bits) - 1), key >> bits
    first = np.flatnonzero(np.diff(group, prepend=-1))
    length = np.diff(first, append=many)
    rank = np.arange(1, many + 1) - np.repeat(first, length)  # among the images of the class
    size = sizes[group[first] % classes]
    f1 = 2 * rank / (depth[order] + np.repeat(size, length))
    mean = np.add.reduceat(value[order], first, dtype=np.float64) / size
    return group[first] // classes, np.maximum.reduceat(f1, first), mean


def sparse_probe(train: tuple[Array, Array], test: tuple[Array, Array]) -> dict[int, float | None]:
    """Every class read from its few best dimensions; `train` and `test` are codes and labels.

    On the training rows, at unit length: the dimensions with the largest |mean on the class - mean on the rest|; of
    these the linear discriminant (pooled covariance); the threshold of its best balanced accuracy, half-way between
    two scores. Then balanced accuracy on the test rows, in percent: the mean over classes, by number of dimensions.
    Classes without rows in either, or without others, are left out. Chance is 50, whatever the class sizes.
    """
    z, z_test = as_codes(train[0]), as_codes(test[0])
    y, names = as_labels(train[1], z.shape[0])
    truth = as_numpy(test[1])
    sizes = np.bincount(y)
    sums = np.zeros((len(names), z.shape[1]))
    for part, block in unit_blocks(z):
        sums += torch.zeros(sums.shape).index_add_(0, torch.from_numpy(y[part]), block.float()).numpy()
    total, most = sums.sum(0), min(max(DIMS), z.shape[1])
    rest = (total - sums) / (len(y) - sizes)[:, None]
    gap = np.abs(sums / sizes[:, None] - rest)
    chosen = np.argsort(-gap, axis=1, kind="stable")[:, :most]  # [C, most]
    columns, where = np.unique(chosen, return_inverse=True)
    where = where.reshape(chosen.shape)
    x, x_test = _columns(z, columns), _columns(z_test, columns)  # [used, N], a row a dimension
    scores: dict[int, list[float]] = {k: [] for k in DIMS}
    for c, name in enumerate(names.tolist()):
        own, own_test = y == c, truth == name
        if not own_test.any() or own_test.all():
            continue
        mine, mine_test = x[where[c]], x_test[where[c]]  # [most, N], best dimension first
        shift, within = _moments(mine, own)
        for k in DIMS:
            weight = _discriminant(shift[:k], within[:k, :k])
            said = weight @ mine_test[:k] > _best_cut(weight @ mine[:k], own)
            scores[k].append(50 * float(said[own_test].mean() + 1 - said[~own_test].mean()))
    return {k: mean(np.array(accuracies)) for k, accuracies in scores.items()}


def _columns(z: Codes, columns: np.ndarray) -> np.ndarray:
    """Columns of the unit-length rows, [columns, N] float32."""
    result = np.empty((len(columns), z.shape[0]), np.float32)
    for part, block in unit_blocks(z):
        result[:, part] = block.numpy()[:, columns].T
    return result


def _moments(x: np.ndarray, own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean of a class less that of the rest [k], and the pooled covariance [k, k], of x [k, N]."""
    wide = x.astype(np.float64)  # so that the difference of squares below keeps what is small
    many, inside = len(own), int(own.sum())
    part = wide[:, own].sum(1)
    mean, rest = part / inside, (wide.sum(1) - part) / (many - inside)
    spread = wide @ wide.T - inside * np.outer(mean, mean) - (many - inside) * np.outer(rest, rest)
    return mean - rest, spread / many


def _discriminant(shift: np.ndarray, within: np.ndarray) -> np.ndarray:
    """Weights [k] of the linear discriminant."""
    ridge = RIDGE * np.trace(within) / len(shift) + 1e-12
    return np.linalg.solve(within + ridge * np.eye(len(shift)), shift).astype(np.float32)


def _best_cut(score: np.ndarray, own: np.ndarray) -> float:
    """The threshold on scores [N] with the best balanced accuracy, half-way to the next lower score; the highest such.

    The best lies just below a score of the class: to go on until the next one only takes in others.
    """
    ranked, hits = np.sort(score), np.sort(score[own])
    below = np.searchsorted(ranked, hits)
    caught = len(hits) - np.searchsorted(hits, hits)
    others = len(ranked) - below - caught
    gain = caught / len(hits) - others / (len(ranked) - len(hits))
    at = len(hits) - 1 - int(gain[::-1].argmax())
    following = ranked[below[at] - 1] if below[at] else -np.inf
    return float((hits[at] + following) / 2)


def fit_levels(z: Array, levels: Mapping[str, Array], *, seed: int = 0) -> dict[str, Any]:
    """Consistency at the level of a hierarchy of labels where each dimension fits best.

    Share of the largest class among the images a dimension fires on, at each level; a level fits by how far the share
    exceeds that class's share p of all images, (share - p) / (1 - p). `levels` are labels [N] by name; of equal ones
    the first counts. Pass `keep(z, 5)` to judge five dimensions an image.

    Returns
    -------
    `consistency` (percent, mean over dimensions that fire on enough images, each at its level), `consistency_chance`
    (the same with the images of the labels shuffled, all levels alike), `dimensions` by level (how many fit there), and
    `by_level` (consistency of all dimensions at that one level).
    """
    kept = fired(as_codes(z))
    indexed = {name: as_labels(labels, kept.shape[0])[0] for name, labels in levels.items()}
    order = np.random.default_rng(seed).permutation(kept.shape[0])
    consistency, shares, best = _levels(kept, list(indexed.values()))
    return {
        "consistency": consistency,
        "dimensions": {name: int((best == i).sum()) for i, name in enumerate(levels)},
        "by_level": {name: mean(share) for name, share in zip(levels, shares)},
        "consistency_chance": _levels(kept, [y[order] for y in indexed.values()])[0],
    }


def _levels(kept: sp.csr_array, levels: Sequence[np.ndarray]) -> tuple[float | None, np.ndarray, np.ndarray]:
    """Mean share at the level that fits best; shares [levels, dimensions in use], percent; that level of each."""
    shares, fits = [], []
    for labels in levels:
        sizes = np.bincount(labels)
        fires = class_counts(kept, labels)
        support, share = largest_share(fires)
        used = support >= MIN_SUPPORT
        prior = 100 * sizes[fires.argmax(0)[used]] / len(labels)
        shares.append(share[used])
        fits.append((share[used] - prior) / (100 - prior))
    table, best = np.stack(shares), np.stack(fits).argmax(0)
    return mean(table[best, np.arange(len(best))]), table, best


def summary(
    z: Array, labels: Array, *, train: tuple[Array, Array] | None = None, levels: Mapping[str, Array] | None = None,
    f1: bool = True, seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Best F1 and IoU, mean over live dimensions; sparse probing with `train`; the hierarchy with `levels`.

    The hierarchy is that of each image's five strongest dimensions. `f1` False leaves the first out, which sorts every
    entry that fires.

    Returns
    -------
    `f1`, `iou` (class of the highest mean activation), `best_f1`, `best_iou` (best class), each in 0..1; `sparse_probe`
    (balanced accuracy by number of dimensions, percent), each with `_chance` (labels shuffled by the seed);
    `hierarchy`.
    """
    codes = as_codes(z)
    index, names = as_labels(labels, codes.shape[0])
    result: dict[str, Any] = {}
    shuffled = np.random.default_rng(seed).permutation(index)
    measured = detect(codes, [index, shuffled], len(names)) if f1 else []
    for found, end in zip(measured, ("", "_chance")):
        for begin, best in zip(("", "best_"), found):
            result[f"{begin}f1{end}"] = mean(best)
            result[f"{begin}iou{end}"] = mean(best / (2 - best))  # it grows with F1: one threshold is the best for both
    if train is not None:
        result["sparse_probe"] = {str(k): found for k, found in sparse_probe(train, (codes, labels)).items()}
        result["sparse_probe_chance"] = dict.fromkeys(result["sparse_probe"], 50.0)
    if levels is not None:
        result["hierarchy"] = fit_levels(keep(codes, KEPT), levels, seed=seed)
    return result
