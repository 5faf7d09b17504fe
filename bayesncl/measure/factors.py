"""Codes of images with two or more known factors, such as an object and its background.

Does each factor have dimensions of its own? A dimension is *about* a factor if it ranks the images
of one of its classes above or below the others, and *neutral* to it otherwise. Factors are labels
[N] by name.
"""

import warnings
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from scipy.stats import norm, rankdata
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso

from bayesncl.errors import InputError
from bayesncl.inputs import Array, as_labels
from bayesncl.measure import topk
from bayesncl.measure.dimensions import entropy, mean
from bayesncl.measure.result import Tree
from bayesncl.measure.rows import as_tensor, unit_codes

MIN_DISTANCE = 0.1  # |AUC - 0.5| from which a dimension is about a class
CHANCE = 0.05  # share of the dimensions without any relation to a factor that may seem about it
BINS = 20  # of a dimension's values, equally wide, for mutual information
PENALTIES = (0.1, 0.03, 0.01, 0.003, 0.001)  # of the lasso, on standardized columns
LASSO_STEPS = 300
MAX_ROWS = 10_000  # drawn at random, for all but retrieval


class Auc(NamedTuple):
    """AUC of each dimension for each class against the rest, [C, D]."""

    auc: np.ndarray
    error: np.ndarray  # standard error for labels unrelated to the dimension
    single: np.ndarray  # what one image can add at most


def class_auc(z: np.ndarray, labels: np.ndarray) -> Auc:
    """AUC of each dimension for each class against the rest.

    Pairs of images with equal values are left out: a dimension that is 0 on most images is judged
    by those it fires on. Without ties this is the usual AUC. A constant dimension has AUC 0.5.
    """
    n, classes = len(labels), int(labels.max()) + 1
    inside = np.bincount(labels, minlength=classes)[:, None].astype(float)  # [C, 1]
    onehot = (np.arange(classes)[:, None] == labels).astype(float)
    ranks = rankdata(z, axis=0)
    # U - E[U], where U counts pairs in which the image of the class is stronger, ties half
    excess = onehot @ ranks - inside * (n + 1) / 2
    pairs = np.repeat(inside * (n - inside), z.shape[1], axis=1)
    cubes = np.zeros(z.shape[1])
    for j, column in enumerate(z.T):
        _, group, size = np.unique(column, return_inverse=True, return_counts=True)
        if len(size) < n:
            key, same = np.unique(group.reshape(-1) * classes + labels, return_counts=True)
            tied = same * (size[key // classes] - same)  # with images of other classes
            pairs[:, j] -= np.bincount(key % classes, tied, classes)
            cubes[j] = (size.astype(float) ** 3 - size).sum()
    variance = inside * (n - inside) / 12 * (n + 1 - cubes / (n * (n - 1)))
    known = pairs > 0
    counted = np.where(known, pairs, np.inf)
    return Auc(0.5 + excess / counted, np.sqrt(np.maximum(variance, 0)) / counted, n / 2 / counted)


def about(z: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Whether each dimension is about a factor, bool [D]; otherwise it is neutral to it."""
    return beyond_luck(class_auc(z, labels))


def beyond_luck(found: Auc) -> np.ndarray:
    """Which dimensions are about a factor, bool [D].

    They are if |AUC - 0.5| of some class exceeds 0.1, and also what chance reaches in 5 % of the
    dimensions: small classes are far from 0.5 by luck, and there may be many. The normal quantile
    alone is too low where a dimension fires on few images: one image of a rare class is many
    standard errors. So what a single image can add does not count.
    """
    classes = len(found.auc) if len(found.auc) > 2 else 1  # of two classes, one says it all
    luck = norm.isf(CHANCE / (2 * classes)) * found.error + found.single
    return np.asarray((np.abs(found.auc - 0.5) > np.maximum(MIN_DISTANCE, luck)).any(0))


def average_auc(z: np.ndarray, labels: np.ndarray, within: np.ndarray) -> Auc:
    """`class_auc` of a factor that is tied to another one, whose labels [N] are `within`.

    Only images that share a class of it are compared; AUCs are averaged, weighted by 1 / error^2.
    """
    classes = int(labels.max()) + 1
    total, weights, single = np.zeros((3, classes, z.shape[1]))
    for c in np.unique(within):
        rows = within == c
        found = class_auc(z[rows], labels[rows])
        here = slice(len(found.auc))
        precision = np.where(found.error > 0, 1 / np.maximum(found.error, 1e-12) ** 2, 0)
        total[here] += precision * (found.auc - 0.5)
        weights[here] += precision
        single[here] = np.maximum(single[here], precision * found.single)
    counted = np.where(weights > 0, weights, np.inf)
    return Auc(0.5 + total / counted, 1 / np.sqrt(counted), single / counted)


def importances(
    z: np.ndarray, labels: np.ndarray, penalty: float | None = None, seed: int = 0
) -> tuple[np.ndarray, float, float]:
    """How much of a factor is read from each dimension [D], how well it is read, and the penalty.

    A lasso predicts the classes, one-hot and standardized, from the standardized dimensions of
    half of the rows. Its penalty is given, or chosen by the squared error on a fifth of these. The
    importance of a dimension is its share in the sum of |weights|. The second value is the balanced
    accuracy on the other half, percent.
    """
    n, classes = len(z), int(labels.max()) + 1
    order = np.random.default_rng(seed).permutation(n)
    x = z[order].astype(np.float64)
    y = labels[order]
    half = n // 2
    fitted = slice(0, half)
    deviation = x[fitted].std(0)
    x = (x - x[fitted].mean(0)) / np.where(deviation > 0, deviation, np.inf)
    onehot = np.eye(classes)[y]
    spread = onehot[fitted].std(0)
    targets = (onehot - onehot[fitted].mean(0)) / np.where(spread > 0, spread, np.inf)
    if penalty is None:
        rest, out = slice(half // 5, half), slice(0, half // 5)
        errors = [
            np.square(x[out] @ lasso(x[rest], targets[rest], each) - targets[out]).mean()
            for each in PENALTIES
        ]
        penalty = PENALTIES[int(np.argmin(errors))]
    weight = lasso(x[fitted], targets[fitted], penalty)
    predicted = (x[half:] @ weight).argmax(1)
    accuracy = 100 * float(np.mean([(predicted[y[half:] == c] == c).mean() for c in set(y[half:])]))
    size = np.abs(weight).sum(1)
    return size / max(size.sum(), 1e-12), accuracy, penalty


def lasso(x: np.ndarray, targets: np.ndarray, penalty: float) -> np.ndarray:
    """Weights [D, C] that minimize |x W - targets|^2 / 2N + penalty |W|_1."""
    model = Lasso(penalty, fit_intercept=False, precompute=True, max_iter=LASSO_STEPS, tol=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # near enough for importances
        weight = np.atleast_2d(model.fit(x, targets).coef_)
    return np.ascontiguousarray(weight.T)


def disentanglement(importance: np.ndarray) -> float:
    """DCI disentanglement of importances [D, F]: 1 if each dimension serves one factor.

    Mean of 1 - H_F(P_d), P_d the importances of dimension d over their sum and H_F the entropy to
    the base F, weighted by the sum of d's importances.
    """
    return float(importance.sum(1) @ completeness(importance.T) / max(importance.sum(), 1e-12))


def completeness(importance: np.ndarray) -> np.ndarray:
    """DCI completeness by factor [F]: 1 - entropy to the base D; 1 if one dimension serves it."""
    to_base = np.log(max(len(importance), 2))
    return 1 - np.nan_to_num(entropy(importance) / to_base, nan=1.0)  # 0 for a column of zeros


def mutual_information(z: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Mutual information of a factor and each dimension in 20 equally wide bins, nats [D].

    I = H(bin) + H(class) - H(bin, class).
    """
    low, span = z.min(0), np.ptp(z, axis=0)
    bins = ((z - low) / np.where(span > 0, span, 1) * BINS).astype(np.int64).clip(0, BINS - 1)
    classes = int(labels.max()) + 1
    keys = (bins * classes + labels[:, None]).T
    counts = np.stack([np.bincount(key, minlength=BINS * classes) for key in keys], 1).astype(float)
    table = counts.reshape(BINS, classes, -1)
    return entropy(table.sum(1)) + entropy(table.sum(0)) - entropy(counts)


def information_gap(z: np.ndarray, labels: np.ndarray) -> float:
    """Mutual information gap of a factor: (I of its best dimension - I of the next) / H."""
    size = np.bincount(labels).astype(float)
    best = np.sort([0.0, *mutual_information(z, labels)])[::-1]
    return float((best[0] - best[1]) / entropy(size[:, None])[0])


def change(z: np.ndarray, swapped: np.ndarray) -> np.ndarray:
    """How much each dimension changes [D] from z to `swapped`, codes of the same objects elsewhere.

    Mean (z_i - s_i)^2 over the mean of (z_i - s_k)^2 over all i and k: 0 if nothing changes, 1 if
    as much as between two images that have nothing to do with each other. NaN where both are
    constant.
    """
    z, swapped = z.astype(np.float64), swapped.astype(np.float64)
    paired = np.square(z - swapped).mean(0)
    any_two = z.var(0) + swapped.var(0) + np.square(z.mean(0) - swapped.mean(0))
    return np.asarray(paired / np.where(any_two > 1e-15, any_two, np.nan))


def summary(
    z: Array, factors: Mapping[str, Array], *, swapped: Array | None = None,
    queries: int | None = None, seed: int = 0,
) -> tuple[Tree, Tree]:  # fmt: skip
    """Every measure of codes [N, D] with two or more factors, labels [N] by name.

    `swapped` are codes [N, D] of the same objects on another background. The second dict is by
    chance, with labels and these shuffled. docs/measures.md defines every key.
    """
    if len(factors) < 2:
        raise InputError(f"two or more factors are needed, got {len(factors)}")
    codes = unit_codes(z)
    n = len(codes)
    indexed = {name: as_labels(y, n)[0] for name, y in factors.items()}
    rng = np.random.default_rng(seed)
    some = np.sort(rng.permutation(n)[:MAX_ROWS])
    dense = as_tensor(codes[some]).numpy()
    moved: list[np.ndarray | None] = [None, None]  # the same object, any other
    if swapped is not None:
        other = unit_codes(swapped)
        if other.shape != codes.shape:
            raise InputError(f"swapped codes are {list(other.shape)}, not {list(codes.shape)}")
        twins = as_tensor(other[some]).numpy()
        moved = [change(dense, twins), change(dense, rng.permutation(twins))]
    true = {name: y[some] for name, y in indexed.items()}
    shuffled = {name: rng.permutation(y) for name, y in true.items()}
    read = {name: importances(dense, y, seed=seed) for name, y in true.items()}
    luck = {name: importances(dense, y, read[name][2], seed) for name, y in shuffled.items()}
    both = _measure(dense, true, read, moved[0]), _measure(dense, shuffled, luck, moved[1])
    for name, y in indexed.items():
        kept = topk.summary(codes, y, ks=topk.FACTOR_KS, queries=queries, seed=seed)
        for tree, by_k in zip(both, kept):
            for k, row in by_k.items():
                tree["each"][name][f"owned_{k}"] = row["classes_owned"]
                tree["each"][name][f"p5_{k}"] = row["p5"]
    return both


def _measure(
    z: np.ndarray, factors: Mapping[str, np.ndarray],
    read: Mapping[str, tuple[np.ndarray, float, float]], moved: np.ndarray | None,
) -> Tree:  # fmt: skip
    """The values of `summary` by labels, their `importances` and how much dimensions change."""
    related = np.stack([about(z, y) for y in factors.values()])  # [F, D]
    count = related.sum(0)
    matrix = np.stack([importance for importance, _, _ in read.values()], axis=1)  # [D, F]
    complete = completeness(matrix)
    each: dict[str, dict[str, float | None]] = {}
    for i, (name, y) in enumerate(factors.items()):
        own = related[i] & (count == 1)
        each[name] = {
            "alone": 100 * float(own.mean()),
            "neutral": 100 * float((~related[i]).mean()),
            "completeness": float(complete[i]),
            "informativeness": read[name][1],
            "mig": information_gap(z, y),
        }
        if moved is not None:
            each[name]["swap"] = mean(moved[own])
    values: Tree = {"each": each} | {
        key: mean(np.array([row[key] for row in each.values()], float))
        for key in ("completeness", "informativeness", "mig")
    }
    values |= {
        "mixed": 100 * float((count > 1).mean()),
        "nothing": 100 * float((count == 0).mean()),
        "disentanglement": disentanglement(matrix),
    }
    return values if moved is None else values | {"swap": mean(moved)}
