"""Conflict: how much images of different classes resemble each other because they share a background.

The background-induced error is, over pairs of images of different class,

    error = E[s(z, z') | same background] - E[s(z, z') | another background],   s(z, z') = sum_k w_k z_k z'_k

with w = 1 (dot product) or w_k = 1 / prevalence_k. It is a sum over dimensions and exact over all pairs: the products
over pairs follow from the sums S_cb of the features of class c on background b, so nothing of size N x N is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from ..arrays import Array, as_features, as_labels
from ..errors import InputError
from . import counts


def conflict(
    features: Array, labels: Array, backgrounds: Array, weights: np.ndarray | None = None
) -> dict[str, Any]:
    """Background-induced error, in total and by dimension.

    Features [N, D] are taken as they are (unit-norm rows make the dot product a cosine); `weights` [D] are the w of the
    weighted similarity, ones if None.

    Returns
    -------
    `similarity_shared`, `similarity_apart` (means over pairs of different class), `error` (their difference),
    `similarity_same_class` (self left out), `error_relative` (error / similarity_same_class, which no scale of w or z
    changes), `chance_error` (backgrounds shuffled within each class), `added` and `cancelled` (positive and negative
    parts of the error over dimensions), `dims_for_half` (how many dimensions carry half of `added`), `pairs_shared`,
    `pairs_apart`, `ranking` (dimensions by error, greatest first) and `by_dimension`: arrays `shared`, `apart`,
    `error`, `share` (of `added`).
    """
    features, labels, backgrounds = prepare(features, labels, backgrounds)
    shared, apart, same, pairs_shared, pairs_apart = pair_similarity(features, labels, backgrounds, weights)
    error = shared - apart
    by_chance = pair_similarity(features, labels, _shuffle_within(backgrounds, labels), weights)
    added = np.maximum(error, 0)
    ranking = np.argsort(-error, kind="stable")
    carried = np.cumsum(added[ranking])
    scale = float(same.sum())
    return {
        "similarity_shared": float(shared.sum()),
        "similarity_apart": float(apart.sum()),
        "error": float(error.sum()),
        "similarity_same_class": scale,
        "error_relative": _ratio(float(error.sum()), scale),
        "chance_error": float((by_chance[0] - by_chance[1]).sum()),
        "added": float(added.sum()),
        "cancelled": float(np.minimum(error, 0).sum()),
        "dims_for_half": int(np.searchsorted(carried, 0.5 * carried[-1]) + 1) if carried[-1] else 0,
        "pairs_shared": pairs_shared,
        "pairs_apart": pairs_apart,
        "ranking": ranking,
        "by_dimension": {"shared": shared, "apart": apart, "error": error, "share": added / max(added.sum(), 1e-300)},
    }


def pair_similarity(
    features: np.ndarray, labels: np.ndarray, backgrounds: np.ndarray, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int, int]:
    """Mean of w_k z_k z'_k over all unordered pairs of each kind, [D] float64, and how many pairs there are.

    Kinds: other class on the same background, other class on another background, same class (0 without such pairs).

    With S the sum over all images, S_c over a class, S_b over a background and S_g over a class on a background,
    2 sum over pairs of other class = S^2 - sum_c S_c^2, and of those on one background sum_b S_b^2 - sum_g S_g^2.
    """
    groups, number = np.unique(np.stack([labels, backgrounds]), axis=1, return_inverse=True)
    group = torch.from_numpy(number.reshape(-1))
    size = np.bincount(group).astype(float)  # [G]
    sums, own = np.zeros((len(size), features.shape[1])), np.zeros(features.shape[1])
    for part, z in rows(features):
        sums += torch.zeros(sums.shape, dtype=torch.float64).index_add_(0, group[part], torch.from_numpy(z)).numpy()
        own += np.einsum("nd,nd->d", z, z)

    def squares(values: np.ndarray) -> list[np.ndarray]:
        """Sums of squares of the sums of `values` over all images, classes, backgrounds and groups."""
        found = []
        for index in (np.zeros_like(classes), classes, places, np.arange(len(size))):
            joined = np.zeros((index.max() + 1, *values.shape[1:]))
            np.add.at(joined, index, values)
            found.append((joined**2).sum(0))
        return found

    classes, places = groups
    images, products = squares(size), squares(sums)
    pairs_shared = round((images[2] - images[3]) / 2)
    pairs_apart = round((images[0] - images[1]) / 2) - pairs_shared
    pairs_same = round((images[1] - size.sum()) / 2)
    if not pairs_shared or not pairs_apart:
        found = f"{len(np.unique(classes))} classes on {len(np.unique(places))} backgrounds"
        raise InputError(f"conflict needs pairs of different class both on one and on two backgrounds; found {found}")
    w = np.ones(features.shape[1]) if weights is None else np.asarray(weights, dtype=float)
    if w.shape != features.shape[1:]:
        raise InputError(f"weights must be [{features.shape[1]}], one per dimension, got {list(w.shape)}")
    shared = w * (products[2] - products[3]) / 2 / pairs_shared
    apart = w * (products[0] - products[1] - products[2] + products[3]) / 2 / pairs_apart
    same = w * (products[1] - own) / 2 / max(pairs_same, 1)
    return shared, apart, same, pairs_shared, pairs_apart


def gate_effect(z: Array, gated: Array, labels: Array, backgrounds: Array) -> dict[str, Any]:
    """How much of the background-induced error the hard gates of one model remove.

    z and gated, [N, D], are features at unit length before and after the gates; gated are z * m at unit length again.
    Closing gates can only take similarity away (z >= 0); renormalising gives some back, for what stays open grows.
    Both steps are reported.

    Returns
    -------
    `error_ungated`, `error_closed` (of z * m), `error_gated`, `removed` (ungated - gated) and
    `removed_share` of it, `removed_by_closing`, `returned_by_renormalising`; `relative_ungated`, `relative_gated`
    (error over the similarity within classes, of which the gates take some too) and `removed_relative_share`;
    `by_dimension`: `removed`.
    """
    z, labels, backgrounds = prepare(z, labels, backgrounds)
    gated = as_features(gated)
    if z.shape != gated.shape:
        raise InputError(f"features before the gates are {list(z.shape)}, after them {list(gated.shape)}")

    def error_and_scale(features: np.ndarray) -> tuple[np.ndarray, float, float]:
        shared, apart, same, _, _ = pair_similarity(features, labels, backgrounds)
        return shared - apart, float((shared - apart).sum()), float(same.sum())

    before, ungated, scale_before = error_and_scale(z)
    _, masked, _ = error_and_scale(z * (gated != 0))
    after, final, scale_after = error_and_scale(gated)
    relative_before, relative_after = _ratio(ungated, scale_before), _ratio(final, scale_after)
    return {
        "error_ungated": ungated,
        "error_closed": masked,
        "error_gated": final,
        "removed": ungated - final,
        "removed_share": _ratio(ungated - final, ungated),
        "removed_by_closing": ungated - masked,
        "returned_by_renormalising": final - masked,
        "relative_ungated": relative_before,
        "relative_gated": relative_after,
        "removed_relative_share": _ratio(relative_before - relative_after, relative_before),
        "by_dimension": {"removed": before - after},
    }


def stability(features: Array, counterfactual: Array) -> dict[str, float]:
    """Cosine between each image's feature and that of the same object on another background, both [N, F].

    Returns
    -------
    `cosine` (mean; that of a zero row is 0), `spread` (standard deviation over images), `zero_rows` (share of pairs
    with a zero row), `chance` (mean cosine to the counterfactuals of all other images, exact) and `gain` (cosine -
    chance: a representation that maps everything to one point is perfectly stable and gains nothing).
    """
    first, second = as_features(features), as_features(counterfactual)
    if first.shape != second.shape:
        raise InputError(f"the two sets of features must be aligned, got {list(first.shape)} and {list(second.shape)}")
    n = len(first)
    if n < 2:
        raise InputError("stability needs at least two images, got 1")
    cosines, zero = np.empty(n), 0
    totals = np.zeros((2, first.shape[1]))
    for (part, a), (_, b) in zip(rows(first), rows(second)):
        a, b = (counts.unit(torch.from_numpy(each)).numpy() for each in (a, b))
        cosines[part] = np.einsum("nd,nd->n", a, b)
        zero += int((~(a.any(1) & b.any(1))).sum())
        totals += a.sum(0), b.sum(0)
    chance = float((totals[0] @ totals[1] - cosines.sum()) / (n * (n - 1)))
    mean, spread = float(cosines.mean()), float(cosines.std())
    return {"cosine": mean, "spread": spread, "zero_rows": zero / n, "chance": chance, "gain": mean - chance}


def conflicting_features(features: Array, labels: Array, threshold: float = 0.9) -> dict[str, Any]:
    """Dimensions that fire with high probability in two or more classes (the paper's definition).

    Dimension k conflicts if P(z_k fires | c) P(z_k fires | c') >= threshold for two classes; the classes it joins are
    all those for which the product with some other class reaches the threshold.

    Returns
    -------
    `threshold`, `count`, `share` (of D), `chance_count` (dimensions whose prevalence squared reaches the threshold:
    those that would conflict if firing had nothing to do with the class), `dims`: a list, greatest product first, of
    `dim`, `classes` and their `probabilities` (likeliest first), `product` of the two greatest.
    """
    features = as_features(features)
    index, classes = as_labels(labels, len(features))
    counted = counts.count(features, [index], raw=True)[0]
    probability = counted.raw_fires / counted.sizes[:, None]  # [C, D]
    prevalence = counted.raw_fires.sum(0) / len(features)
    order = np.argsort(-probability, axis=0, kind="stable")  # [C, D]
    ranked = np.take_along_axis(probability, order, axis=0)
    product = ranked[0] * ranked[1]
    dims = []
    for k in np.argsort(-product, kind="stable")[: (product >= threshold).sum()].tolist():
        joined = ranked[:, k] * ranked[0, k] >= threshold  # with the likeliest class, each class's best partner
        names, shares = classes[order[joined, k]].tolist(), ranked[joined, k].tolist()
        dims.append({"dim": k, "classes": names, "probabilities": shares, "product": float(product[k])})
    return {
        "threshold": threshold,
        "count": len(dims),
        "share": len(dims) / probability.shape[1],
        "chance_count": int((prevalence**2 >= threshold).sum()),
        "dims": dims,
    }


def prepare(features: Array, labels: Array, backgrounds: Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features as an array (which may stay memory-mapped), labels and backgrounds as indices."""
    z = as_features(features)
    if len(backgrounds) != len(z):
        raise InputError(f"{len(backgrounds)} backgrounds for {len(z)} rows of features")
    return z, as_labels(labels, len(z))[0], np.unique(np.asarray(backgrounds), return_inverse=True)[1]


def rows(features: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """The features in float64, a block of rows at a time; NaN and infinity raise."""
    for part, block in counts.blocks(features):
        counts.norms(block, part.start)
        yield part, block.double().numpy()


def _ratio(part: float, whole: float) -> float:
    """part / whole, 0 where there is no whole."""
    return part / whole if whole else 0.0


def _shuffle_within(backgrounds: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Backgrounds permuted among the images of each class."""
    shuffled, mixed = np.empty_like(backgrounds), np.lexsort((np.random.default_rng(0).random(len(labels)), labels))
    shuffled[np.argsort(labels, kind="stable")] = backgrounds[mixed]
    return shuffled
