"""Dimensions as detectors of classes: best F1 and IoU, sparse probing, hierarchies of labels."""

from collections.abc import Mapping, Sequence

import numpy as np
import scipy.sparse as sp

from bayesncl.inputs import Array, as_labels
from bayesncl.measure.dimensions import MIN_SUPPORT, Labelings, largest_share, mean
from bayesncl.measure.interpretability import shuffle_labels
from bayesncl.measure.linear import sparse_probe
from bayesncl.measure.result import Tree
from bayesncl.measure.rows import fired, ranked_columns, unit_codes
from bayesncl.measure.topk import KEPT, class_counts, keep


def best_f1(z: Array, labelings: Labelings, classes: int) -> np.ndarray:
    """Best F1 of each dimension over thresholds on its unit-length |z|, [labelings, 2, D].

    The first row is that for the class of its highest mean activation, the second that for the
    class it fits best; NaN where it never fires. A threshold splits no tie. Sorted by activation,
    the prefix of n images that ends with the r-th image of class c has F1 = 2 r / (n + |c|), and
    the best prefix of a class ends with one of its images.
    """
    result = np.full((len(labelings), 2, z.shape[1]), np.nan)
    sizes = [np.bincount(labels, minlength=classes) for labels in labelings]
    for j, rows, value, depth in ranked_columns(z):
        if not len(rows):
            continue
        for i, (labels, size) in enumerate(zip(labelings, sizes)):
            order = np.argsort(labels[rows], kind="stable")
            label = labels[rows][order]
            rank = np.arange(1, len(rows) + 1) - np.searchsorted(label, label)  # within the class
            f1 = 2 * rank / (depth[order] + size[label])
            detected = (np.bincount(label, value[order], classes) / np.maximum(size, 1)).argmax()
            result[i, :, j] = f1[label == detected].max(), f1.max()
    return result


def fit_levels(z: Array, levels: Mapping[str, Array], *, seed: int = 0) -> tuple[Tree, Tree]:
    """Consistency at the level of a hierarchy of labels [N] where each dimension fits best.

    A level fits by how far the share of the largest class among the images a dimension fires on
    exceeds that class's share p of all images: (share - p) / (1 - p). Of equally good ones the
    first counts. `dimensions` is how many fit each level, `by_level` the consistency of all there.
    The second dict is by chance, with labels shuffled.
    """
    active = fired(z)
    indexed = [as_labels(labels, active.shape[0])[0] for labels in levels.values()]
    consistency, shares, best = _best_levels(active, indexed)
    values = {
        "consistency": consistency,
        "dimensions": {name: int((best == i).sum()) for i, name in enumerate(levels)},
        "by_level": {name: mean(share) for name, share in zip(levels, shares)},
    }
    by_chance, _, _ = _best_levels(active, [shuffle_labels(y, seed) for y in indexed])
    return values, {"consistency": by_chance}


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
) -> tuple[Tree, Tree]:  # fmt: skip
    """Best F1 and IoU, sparse probing with `train`, and the hierarchy with `levels`.

    `f1` and `iou` are for the class of the highest mean activation, `best_` for the best class. The
    hierarchy is that of each image's five strongest dimensions. The second dict is by chance, with
    labels shuffled.
    """
    z = unit_codes(z)
    index, names = as_labels(labels, z.shape[0])
    values, chance = Tree(), Tree()
    if f1:
        scores = best_f1(z, [index, shuffle_labels(index, seed)], len(names))
        for tree, both in zip((values, chance), scores):
            for begin, best in zip(("", "best_"), both):
                tree[f"{begin}f1"] = mean(best)
                tree[f"{begin}iou"] = mean(best / (2 - best))  # IoU grows with F1
    if train is not None:
        probed = sparse_probe(train, (z, labels))
        values["sparse_probe"] = {str(k): accuracy for k, accuracy in probed.items()}
        chance["sparse_probe"] = dict.fromkeys(values["sparse_probe"], 50.0)
    if levels is not None:
        values["hierarchy"], chance["hierarchy"] = fit_levels(keep(z, KEPT), levels, seed=seed)
    return values, chance
