"""Dimensions as detectors of classes: best F1 and IoU, sparse probing, hierarchies of labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from bayesncl.inputs import Array, as_labels, as_numpy
from bayesncl.measure.counts import MIN_SUPPORT, Labelings
from bayesncl.measure.dimensions import largest_share, mean
from bayesncl.measure.rows import blocks, fired, ranked_entries, unit_codes
from bayesncl.measure.topk import class_counts, keep

PROBE_DIMS = (1, 2, 4)  # numbers of dimensions a class is read from
KEPT = 5  # dimensions per image that enter the hierarchy
RIDGE = 1e-3  # share of the mean variance added to the covariance of a sparse probe


def best_f1(z: Array, labelings: Labelings, classes: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Best F1 of each dimension over thresholds on its unit-length |z|, per labeling.

    Returns that for the class of its highest mean activation [D] and that for the class it fits
    best [D]; NaN where it never fires. A threshold splits no tie. Sorted by activation, the prefix
    of n images that ends with the r-th image of class c has F1 = 2 r / (n + |c|), and the best
    prefix of a class ends with one of its images: one pass over the sorted entries serves all
    classes.
    """
    results = [(np.full(z.shape[1], np.nan), np.full(z.shape[1], np.nan)) for _ in labelings]
    for part, column, row, value, depth in ranked_entries(z):
        if not len(column):
            continue
        for labels, (own, best) in zip(labelings, results):
            label, sizes = labels[row], np.bincount(labels, minlength=classes)
            key = column * classes + label
            order = np.argsort(key, kind="stable")
            first = np.flatnonzero(np.diff(key[order], prepend=-1))  # of a dimension and class
            length = np.diff(first, append=len(key))
            group = key[order][first]
            size = sizes[group % classes]
            rank = np.arange(1, len(key) + 1) - np.repeat(first, length)  # within the class
            scores = 2 * rank / (depth[order] + np.repeat(size, length))
            f1 = np.maximum.reduceat(scores, first)
            mean_value = np.add.reduceat(value[order], first, dtype=np.float64) / size
            dimension = group // classes
            start = np.flatnonzero(np.diff(dimension, prepend=-1))
            here = part.start + dimension[start]
            best[here] = np.maximum.reduceat(f1, start)
            own[here] = f1[np.lexsort((-mean_value, dimension))[start]]
    return results


def sparse_probe(train: tuple[Array, Array], test: tuple[Array, Array]) -> dict[int, float | None]:
    """Balanced accuracy of reading each class from its few best dimensions; chance is 50.

    On the training codes and labels: choose the dimensions with the largest |mean on the class -
    mean on the rest|, fit their linear discriminant with pooled covariance, and put the threshold
    where balanced accuracy is best, halfway between two scores. Then measure on the test rows, in
    percent by number of dimensions, mean over the classes with rows in both sets.
    """
    z, z_test = unit_codes(train[0]), unit_codes(test[0])
    y, names = as_labels(train[1], z.shape[0])
    truth = as_numpy(test[1])
    sizes = np.bincount(y)
    sums = np.zeros((len(names), z.shape[1]))
    for part, block in blocks(z):
        partial = torch.zeros(sums.shape).index_add_(0, torch.from_numpy(y[part]), block.float())
        sums += partial.numpy()
    rest = (sums.sum(0) - sums) / (len(y) - sizes)[:, None]
    gap = np.abs(sums / sizes[:, None] - rest)
    chosen = np.argsort(-gap, axis=1, kind="stable")[:, : max(PROBE_DIMS)]  # [C, 4]
    columns, where = np.unique(chosen, return_inverse=True)
    where = where.reshape(chosen.shape)
    both = (np.ascontiguousarray(codes[:, columns].T, np.float32) for codes in (z, z_test))
    x, x_test = both  # [used, N]
    scores: dict[int, list[float]] = {k: [] for k in PROBE_DIMS}
    for c, name in enumerate(names.tolist()):
        own, own_test = y == c, truth == name
        if not own_test.any() or own_test.all():
            continue
        mine, mine_test = x[where[c]], x_test[where[c]]  # best dimension first
        shift, within = _moments(mine, own)
        for k in PROBE_DIMS:
            ridge = RIDGE * np.trace(within[:k, :k]) / len(shift[:k]) + 1e-12
            covariance = within[:k, :k] + ridge * np.eye(len(shift[:k]))
            weight = np.linalg.solve(covariance, shift[:k]).astype(np.float32)
            predicted = weight @ mine_test[:k] > _best_threshold(weight @ mine[:k], own)
            recall, false = predicted[own_test].mean(), predicted[~own_test].mean()
            scores[k].append(50 * float(recall + 1 - false))
    return {k: mean(np.array(accuracies)) for k, accuracies in scores.items()}


def _moments(x: np.ndarray, own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean of a class minus that of the rest [k], and the pooled covariance [k, k], of x [k, N]."""
    x = x.astype(np.float64)
    n, inside = len(own), int(own.sum())
    total = x[:, own].sum(1)
    center, rest = total / inside, (x.sum(1) - total) / (n - inside)
    spread = x @ x.T - inside * np.outer(center, center) - (n - inside) * np.outer(rest, rest)
    return center - rest, spread / n


def _best_threshold(score: np.ndarray, own: np.ndarray) -> float:
    """The highest threshold on scores [N] with the best balanced accuracy.

    It lies halfway between a score of the class and the next lower score: lowering it further only
    adds others, until the next score of the class.
    """
    ranked, hits = np.sort(score), np.sort(score[own])
    below = np.searchsorted(ranked, hits)
    caught = len(hits) - np.searchsorted(hits, hits)
    others = len(ranked) - below - caught
    gain = caught / len(hits) - others / (len(ranked) - len(hits))
    best = len(hits) - 1 - int(gain[::-1].argmax())
    following = ranked[below[best] - 1] if below[best] else -np.inf
    return float((hits[best] + following) / 2)


def fit_levels(z: Array, levels: Mapping[str, Array], *, seed: int = 0) -> dict[str, Any]:
    """Consistency at the level of a hierarchy of labels [N] where each dimension fits best.

    A level fits by how far the share of the largest class among the images a dimension fires on
    exceeds that class's share p of all images: (share - p) / (1 - p). Of equally good ones the
    first counts. `dimensions` is how many fit each level, `by_level` the consistency of all there.
    """
    active = fired(z)
    indexed = [as_labels(labels, active.shape[0])[0] for labels in levels.values()]
    order = np.random.default_rng(seed).permutation(active.shape[0])
    consistency, shares, best = _best_levels(active, indexed)
    return {
        "consistency": consistency,
        "dimensions": {name: int((best == i).sum()) for i, name in enumerate(levels)},
        "by_level": {name: mean(share) for name, share in zip(levels, shares)},
        "consistency_chance": _best_levels(active, [y[order] for y in indexed])[0],
    }


def _best_levels(
    active: sp.csr_array, levels: Sequence[np.ndarray]
) -> tuple[float | None, np.ndarray, np.ndarray]:
    """Mean share at the best level, shares [levels, counted dimensions], best level of each."""
    shares, fits = [], []
    for labels in levels:
        fires = class_counts(active, labels)
        support, share = largest_share(fires)
        used = support >= MIN_SUPPORT
        prior = 100 * np.bincount(labels)[fires.argmax(0)[used]] / len(labels)
        shares.append(share[used])
        fits.append((share[used] - prior) / (100 - prior))
    table, best = np.stack(shares), np.stack(fits).argmax(0)
    return mean(table[best, np.arange(len(best))]), table, best


def summary(
    z: Array, labels: Array, *, train: tuple[Array, Array] | None = None,
    levels: Mapping[str, Array] | None = None, f1: bool = True, seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Best F1 and IoU, sparse probing with `train`, and the hierarchy with `levels`.

    `f1` and `iou` are for the class of the highest mean activation, `best_` for the best class, and
    `_chance` with labels shuffled. The hierarchy is that of each image's five strongest dimensions.
    """
    z = unit_codes(z)
    index, names = as_labels(labels, z.shape[0])
    result: dict[str, Any] = {}
    shuffled = np.random.default_rng(seed).permutation(index)
    scores = best_f1(z, [index, shuffled], len(names)) if f1 else []
    for both, end in zip(scores, ("", "_chance")):
        for begin, best in zip(("", "best_"), both):
            result[f"{begin}f1{end}"] = mean(best)
            result[f"{begin}iou{end}"] = mean(best / (2 - best))  # IoU grows with F1
    if train is not None:
        probed = sparse_probe(train, (z, labels))
        result["sparse_probe"] = {str(k): accuracy for k, accuracy in probed.items()}
        result["sparse_probe_chance"] = dict.fromkeys(result["sparse_probe"], 50.0)
    if levels is not None:
        result["hierarchy"] = fit_levels(keep(z, KEPT), levels, seed=seed)
    return result
