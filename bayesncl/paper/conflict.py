"""Conflict: how much a shared background adds to the similarity of images of different classes.

The background-induced error is, over pairs of images of different classes,

    error = E[s(z, z') | same background] - E[s(z, z') | another background]
    s(z, z') = sum_k w_k z_k z'_k

with w = 1 (dot product) or w_k = 1 / prevalence_k. It is a sum over dimensions, exact over all
pairs: sums of the features by class and background give the products over pairs, so nothing of
size N x N is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from bayesncl.errors import InputError
from bayesncl.inputs import Array, as_features, as_labels
from bayesncl.measure.counts import count
from bayesncl.measure.rows import blocks, lengths
from bayesncl.method.losses import unit_rows


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
        return _ratio(self.error, float(self.same.sum()))


def conflict(
    features: Array, labels: Array, backgrounds: Array, weights: np.ndarray | None = None
) -> dict[str, Any]:
    """Background-induced error, in total and by dimension.

    Parameters
    ----------
    features : [N, D], used as they are; rows of unit length make the dot product a cosine.
    labels, backgrounds : [N].
    weights : w [D] of the similarity; ones by default.

    Returns
    -------
    `similarity_shared`, `similarity_apart` : means over pairs of different classes;
        `similarity_same_class` : without self.
    `error`, `error_relative` : see `PairMeans`; `chance_error` : with backgrounds shuffled within
        each class; `by_dimension` : the error's parts [D].
    """
    features, labels, backgrounds = prepare(features, labels, backgrounds)
    found = pair_similarity(features, labels, backgrounds, weights)
    shuffled = _shuffle_within(backgrounds, labels)
    return {
        "similarity_shared": float(found.shared.sum()),
        "similarity_apart": float(found.apart.sum()),
        "similarity_same_class": float(found.same.sum()),
        "error": found.error,
        "error_relative": found.relative,
        "chance_error": pair_similarity(features, labels, shuffled, weights).error,
        "by_dimension": found.shared - found.apart,
    }


def pair_similarity(
    features: np.ndarray, labels: np.ndarray, backgrounds: np.ndarray,
    weights: np.ndarray | None = None,
) -> PairMeans:  # fmt: skip
    """Mean products over pairs of images.

    With S the sum over all images, S_c over a class, S_b over a background and S_g over a class on
    a background, 2 x the sum over pairs of different classes is S^2 - sum_c S_c^2; over those on
    one background it is sum_b S_b^2 - sum_g S_g^2.
    """
    (classes, places), index = np.unique(
        np.stack([labels, backgrounds]), axis=1, return_inverse=True
    )
    group = torch.from_numpy(index.reshape(-1))
    size = np.bincount(group).astype(float)  # [G]
    sums, own = np.zeros((len(size), features.shape[1])), np.zeros(features.shape[1])
    for part, z in rows(features):
        block = torch.zeros(sums.shape, dtype=torch.float64)
        sums += block.index_add_(0, group[part], torch.from_numpy(z)).numpy()
        own += np.einsum("nd,nd->d", z, z)

    def squares(values: np.ndarray) -> list[np.ndarray]:
        """Sums of squares of the sums over all images, classes, backgrounds and groups."""
        out = []
        for index in (np.zeros_like(classes), classes, places, np.arange(len(size))):
            joined = np.zeros((index.max() + 1, *values.shape[1:]))
            np.add.at(joined, index, values)
            out.append((joined**2).sum(0))
        return out

    def kinds(s: list[np.ndarray], own: Any) -> tuple[Any, Any, Any]:
        """Sums over pairs: shared, apart, same."""
        return (s[2] - s[3]) / 2, (s[0] - s[1] - s[2] + s[3]) / 2, (s[1] - own) / 2

    shared, apart, same = (round(float(n)) for n in kinds(squares(size), size.sum()))
    if not shared or not apart:
        raise InputError(
            "conflict needs pairs of different classes both on one background and on two; got "
            f"{len(np.unique(classes))} classes on {len(np.unique(places))} backgrounds"
        )
    w = np.ones(features.shape[1]) if weights is None else np.asarray(weights, dtype=float)
    if w.shape != features.shape[1:]:
        raise InputError(f"weights must be [{features.shape[1]}], got {list(w.shape)}")
    products = zip(kinds(squares(sums), own), (shared, apart, max(same, 1)))
    return PairMeans(*(w * total / count for total, count in products))


def gate_effect(z: Array, gated: Array, labels: Array, backgrounds: Array) -> dict[str, float]:
    """How much of the background-induced error the hard gates of a model remove.

    z and gated, [N, D], are unit-norm features before and after the gates. Closing gates can only
    take similarity away (z >= 0); renormalizing gives some back.

    Returns
    -------
    `error_ungated`, `error_closed` (of z * m), `error_gated`; `removed_by_closing`,
    `returned_by_renormalizing`; `relative_ungated`, `relative_gated` (error over the similarity
    within classes) and `removed_relative_share`.
    """
    z, labels, backgrounds = prepare(z, labels, backgrounds)
    gated = as_features(gated)
    if z.shape != gated.shape:
        raise InputError(f"features are {list(z.shape)}, gated features {list(gated.shape)}")
    before, closed, after = (
        pair_similarity(x, labels, backgrounds) for x in (z, z * (gated != 0), gated)
    )
    return {
        "error_ungated": before.error,
        "error_closed": closed.error,
        "error_gated": after.error,
        "removed_by_closing": before.error - closed.error,
        "returned_by_renormalizing": after.error - closed.error,
        "relative_ungated": before.relative,
        "relative_gated": after.relative,
        "removed_relative_share": _ratio(before.relative - after.relative, before.relative),
    }


def stability(features: Array, counterfactual: Array) -> dict[str, float]:
    """Cosine between each image's feature and that of its object on another background, [N, F].

    Returns
    -------
    `cosine` (mean; 0 for a zero row), `spread` (standard deviation over images), `zero_rows` (share
    of pairs with a zero row), `chance` (mean cosine to the counterfactuals of all other images) and
    `gain`, cosine - chance: a collapsed representation is stable and gains nothing.
    """
    first, second = as_features(features), as_features(counterfactual)
    if first.shape != second.shape:
        raise InputError(f"features differ in shape: {list(first.shape)}, {list(second.shape)}")
    n = len(first)
    if n < 2:
        raise InputError("stability needs at least two images")
    cosines, zero, totals = np.empty(n), 0, np.zeros((2, first.shape[1]))
    for (part, a), (_, b) in zip(rows(first), rows(second)):
        a, b = (unit_rows(torch.from_numpy(each)).numpy() for each in (a, b))
        cosines[part] = np.einsum("nd,nd->n", a, b)
        zero += int((~(a.any(1) & b.any(1))).sum())
        totals += a.sum(0), b.sum(0)
    chance = float((totals[0] @ totals[1] - cosines.sum()) / (n * (n - 1)))
    mean, spread = float(cosines.mean()), float(cosines.std())
    gain = mean - chance
    return {"cosine": mean, "spread": spread, "zero_rows": zero / n, "chance": chance, "gain": gain}


def conflicting_features(features: Array, labels: Array, threshold: float = 0.9) -> dict[str, Any]:
    """Dimensions that fire with high probability in two or more classes (the paper's definition).

    Dimension k conflicts if P(z_k fires | c) P(z_k fires | c') >= threshold for two classes. It
    joins all classes whose product with some other class reaches the threshold.

    Returns
    -------
    `count`; `chance_count` (dimensions that would conflict if firing were independent of the class:
    prevalence squared reaches the threshold); and `dims`, greatest product first: `dim`, `classes`
    (likeliest first), `product`.
    """
    features = as_features(features)
    index, classes = as_labels(labels, len(features))
    counted = count(features, [index])[0]
    probability = counted.fires[0] / counted.sizes[:, None]  # [C, D]
    prevalence = counted.fires[0].sum(0) / len(features)
    order = np.argsort(-probability, axis=0, kind="stable")  # [C, D]
    ranked = np.take_along_axis(probability, order, axis=0)
    product = ranked[0] * ranked[1]
    dims = []
    for k in np.argsort(-product, kind="stable")[: (product >= threshold).sum()].tolist():
        joined = ranked[:, k] * ranked[0, k] >= threshold  # the likeliest class is the best partner
        names = classes[order[joined, k]].tolist()
        dims.append({"dim": k, "classes": names, "product": float(product[k])})
    by_chance = int((prevalence**2 >= threshold).sum())
    return {"count": len(dims), "chance_count": by_chance, "dims": dims}


def prepare(
    features: Array, labels: Array, backgrounds: Array
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features as an array, labels and backgrounds as indices."""
    z = as_features(features)
    if len(backgrounds) != len(z):
        raise InputError(f"{len(backgrounds)} backgrounds for {len(z)} rows of features")
    places = np.unique(np.asarray(backgrounds), return_inverse=True)[1]
    return z, as_labels(labels, len(z))[0], places


def rows(features: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Blocks of rows in float64; NaN and infinity raise InputError."""
    lengths(features)  # raises for NaN and infinity
    for part, block in blocks(features):
        yield part, block.double().numpy()


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _shuffle_within(backgrounds: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Backgrounds permuted among the images of each class."""
    shuffled = np.empty_like(backgrounds)
    mixed = np.lexsort((np.random.default_rng(0).random(len(labels)), labels))
    shuffled[np.argsort(labels, kind="stable")] = backgrounds[mixed]
    return shuffled
