"""Conflict: how much a shared background adds to the similarity of images of different classes.

The background-induced error is, over pairs of images of different classes,

    error = E[s(z, z') | same background] - E[s(z, z') | another background]
    s(z, z') = sum_k w_k z_k z'_k

with w = 1 (dot product) or w_k = 1 / prevalence_k. It is a sum over dimensions, exact over all
pairs: sums of the features by class and background give the products over pairs, so nothing of
size N x N is computed. Features are [N, D], labels and backgrounds [N].
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from bayesncl.errors import InputError
from bayesncl.inputs import factorize
from bayesncl.method.losses import ACTIVE, unit_rows

MAX_LISTED = 12  # conflicting dimensions, and classes of each


class PairMeans(NamedTuple):
    """Means of w_k z_k z'_k, [D] float64, over three kinds of unordered pairs of images."""

    shared: np.ndarray  # other class, same background
    apart: np.ndarray  # other class, another background
    same: np.ndarray  # same class; 0 without such pairs

    @property
    def error(self) -> float:
        """Background-induced error."""
        return float((self.shared - self.apart).sum())

    @property
    def relative(self) -> float:
        """The error over the similarity within classes, which no scale of w or z changes."""
        within = float(self.same.sum())
        return self.error / within if within else 0.0


def pair_similarity(
    features: np.ndarray, labels: np.ndarray, backgrounds: np.ndarray,
    weights: np.ndarray | None = None,
) -> PairMeans:  # fmt: skip
    """Mean products over pairs of images, with weights w [D]; InputError without such pairs.

    The sum over the pairs within groups is sum_g (S_g^2 - Q_g) / 2, with S_g the sum of the
    features over a group and Q_g that of their squares. A column of ones counts the pairs.
    """
    (y, classes), (b, places) = factorize(labels), factorize(backgrounds)
    z = np.column_stack([features, np.ones(len(features))]).astype(np.float64)
    squares = (z**2).sum(0)

    def within(group: np.ndarray) -> np.ndarray:
        sums = np.zeros((group.max() + 1, z.shape[1]))
        np.add.at(sums, group, z)
        return np.asarray(((sums**2).sum(0) - squares) / 2)

    same, shared = within(y), within(b) - within(y * len(places) + b)
    apart = within(np.zeros_like(y)) - same - shared
    if not shared[-1] or not apart[-1]:
        raise InputError(
            "conflict needs pairs of different classes both on one background and on two; got "
            f"{len(classes)} classes on {len(places)} backgrounds"
        )
    w = 1.0 if weights is None else weights
    return PairMeans(*(w * sums[:-1] / max(sums[-1], 1) for sums in (shared, apart, same)))


def conflict(
    features: np.ndarray, labels: np.ndarray, backgrounds: np.ndarray,
    weights: np.ndarray | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Background-induced error, in total and by dimension [D].

    `chance_error` is that with backgrounds shuffled within each class; see `PairMeans`.
    """
    found = pair_similarity(features, labels, backgrounds, weights)
    shuffled = np.empty_like(backgrounds)
    mixed = np.lexsort((np.random.default_rng(0).random(len(labels)), labels))
    shuffled[np.argsort(labels, kind="stable")] = backgrounds[mixed]
    return {
        "similarity_shared": float(found.shared.sum()),
        "similarity_apart": float(found.apart.sum()),
        "similarity_same_class": float(found.same.sum()),
        "error": found.error,
        "error_relative": found.relative,
        "chance_error": pair_similarity(features, labels, shuffled, weights).error,
        "by_dimension": found.shared - found.apart,
    }


def gate_effect(before: PairMeans, closed: PairMeans, after: PairMeans) -> dict[str, float]:
    """How much of the background-induced error the hard gates of a model remove.

    The pairs are those of z, of z * m and of the renormalized features. Closing gates can only take
    similarity away (z >= 0); renormalizing gives some back.
    """
    relative_drop = before.relative - after.relative
    return {
        "error_ungated": before.error,
        "error_closed": closed.error,
        "error_gated": after.error,
        "removed_by_closing": before.error - closed.error,
        "returned_by_renormalizing": after.error - closed.error,
        "relative_ungated": before.relative,
        "relative_gated": after.relative,
        "removed_relative_share": relative_drop / before.relative if before.relative else 0.0,
    }


def stability(features: np.ndarray, counterfactual: np.ndarray) -> dict[str, float]:
    """Cosine between each image's feature and that of its object on another background.

    Zero rows have cosine 0. `chance` is the mean cosine to the counterfactuals of all other images:
    a collapsed representation is stable and gains nothing.
    """
    both = features, counterfactual
    a, b = (unit_rows(torch.from_numpy(x).double()).numpy() for x in both)
    n, cosines = len(a), (a * b).sum(1)
    mean = float(cosines.mean())
    chance = float((a.sum(0) @ b.sum(0) - cosines.sum()) / (n * (n - 1)))
    return {
        "cosine": mean,
        "spread": float(cosines.std()),
        "zero_rows": float((~(a.any(1) & b.any(1))).mean()),
        "chance": chance,
        "gain": mean - chance,
    }


def conflicting_features(
    features: np.ndarray, labels: np.ndarray, name: Callable[[int], str], threshold: float
) -> dict[str, Any]:
    """Dimensions that fire with high probability in two or more classes (the paper's definition).

    Dimension k conflicts if P(z_k fires | c) P(z_k fires | c') >= threshold for two classes. It
    joins all classes whose product with some other class reaches the threshold. `chance_count` are
    dimensions that would conflict if firing were independent of the class; `worst` are those of the
    greatest products, with their classes, likeliest first.
    """
    fired, (index, classes) = np.abs(features) > ACTIVE, factorize(labels)
    probability = np.stack([fired[index == c].mean(0) for c in range(len(classes))])  # [C, D]
    order = np.argsort(-probability, axis=0, kind="stable")
    ranked = np.take_along_axis(probability, order, axis=0)
    product = ranked[0] * ranked[1]
    count = int((product >= threshold).sum())
    worst = []
    for k in np.argsort(-product, kind="stable")[: min(count, MAX_LISTED)].tolist():
        joined = ranked[:, k] * ranked[0, k] >= threshold  # the likeliest class is the best partner
        names = [name(c) for c in classes[order[joined, k]][:MAX_LISTED].tolist()]
        worst.append({"dim": k, "product": float(product[k]), "classes": names})
    by_chance = int((fired.mean(0) ** 2 >= threshold).sum())
    return {"count": count, "chance_count": by_chance, "worst": worst}
