"""What each dimension does over a set of images: how often it fires, on which classes, and when its gate is closed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse, stats

from .labels import Labels
from .rows import FIRES

MIN_SUPPORT = 10  # fewer firing images than this say little about a dimension
STRONGEST = 50  # images a sentence about a dimension speaks of
DOUBT = 0.01  # a share is told where chance alone gives as much in fewer than this of all dimensions
VISIBLE = 0.1  # mean activation of the strongest images from which a dimension counts as strong


@dataclass(frozen=True)
class Dimensions:
    """Numbers of D dimensions over N images; what needs labels is None without them.

    Attributes
    ----------
    support : int [D], images on which the dimension fires; 0 is a dead dimension.
    mass : float [D], sum of |z_k| over images.
    class_counts, background_counts : int [D, C], firing images by class.
    best : int [D], the most frequent class among firing images.
    consistency : float [D], its share among the firing images that have a label (0 where there is none).
    entropy_freq, entropy_sum, entropy_mean : float [D], nats over classes: of firing counts, of summed, of mean |z_k|.
    """

    support: np.ndarray
    mass: np.ndarray
    class_counts: np.ndarray | None = None
    background_counts: np.ndarray | None = None
    best: np.ndarray | None = None
    consistency: np.ndarray | None = None
    entropy_freq: np.ndarray | None = None
    entropy_sum: np.ndarray | None = None
    entropy_mean: np.ndarray | None = None


@dataclass(frozen=True)
class Gates:
    """Decisions of the gates, by dimension.

    Attributes
    ----------
    open_rate : float [D], share of all images whose gate is open.
    closed_rate : float [D], of the images on which the dimension fires, the share whose gate is closed (0 without any).
    open_counts : int [D, C], images with an open gate by class, or None without labels.
    """

    open_rate: np.ndarray
    closed_rate: np.ndarray
    open_counts: np.ndarray | None = None


def one_hot(labels: np.ndarray) -> sparse.csr_array:
    """float32 [N, C]; a negative label is no label, and its row is empty."""
    y = np.asarray(labels)
    rows = np.flatnonzero(y >= 0)
    shape = (len(y), int(y.max(initial=0)) + 1)
    return sparse.csr_array((np.ones(len(rows), np.float32), (rows, y[rows])), shape=shape)


def entropy(weights: np.ndarray) -> np.ndarray:
    """Entropy in nats of each row of non-negative weights; 0 for a row without weight."""
    total = weights.sum(1, keepdims=True)
    p = weights / np.where(total > 0, total, 1)
    return -(p * np.log(np.where(p > 0, p, 1))).sum(1)


def describe_dimensions(
    z: sparse.csr_array, labels: np.ndarray | None = None, backgrounds: np.ndarray | None = None
) -> Dimensions:
    """Describe every column of `z`.

    Parameters
    ----------
    z : float32 CSR [N, D], unit-norm rows that hold what fires.
    labels, backgrounds : int [N] in 0..C-1, negative for none; or None.
    """
    d = z.shape[1]
    size = abs(z)
    fires = sparse.csr_array(((size.data > FIRES).astype(np.float32), z.indices, z.indptr), shape=z.shape)
    support = np.bincount(z.indices, fires.data, minlength=d).round().astype(np.int64)
    mass = np.bincount(z.indices, size.data, minlength=d)
    background_counts = None if backgrounds is None else _count(fires, one_hot(backgrounds))
    if labels is None:
        return Dimensions(support, mass, background_counts=background_counts)
    classes = one_hot(labels)
    counts = _count(fires, classes)
    sums = (size.astype(np.float64).T @ classes).toarray()
    labelled = counts.sum(1)
    return Dimensions(
        support,
        mass,
        class_counts=counts,
        background_counts=background_counts,
        best=counts.argmax(1),
        consistency=counts.max(1) / np.maximum(labelled, 1),
        entropy_freq=entropy(counts.astype(np.float64)),
        entropy_sum=entropy(sums),
        entropy_mean=entropy(sums / np.maximum(np.asarray(classes.sum(0)), 1)),
    )


def describe_gates(z: sparse.csr_array, open: np.ndarray, labels: np.ndarray | None = None) -> Gates:
    """Describe the gates `open` (bool [N, D]) of features `z` before gating."""
    d = z.shape[1]
    rows = np.repeat(np.arange(z.shape[0]), np.diff(z.indptr))
    fires = np.bincount(z.indices, minlength=d)
    closed = np.bincount(z.indices, ~open[rows, z.indices], minlength=d) / np.maximum(fires, 1)
    if labels is None:
        return Gates(open.mean(0), closed)
    classes = one_hot(labels)
    counts = np.zeros((d, classes.shape[1]), np.int64)
    for a in range(0, len(open), 1024):
        counts += (classes[a : a + 1024].T @ open[a : a + 1024].astype(np.float32)).T.round().astype(np.int64)
    return Gates(open.mean(0), closed, counts)


def rank_entropy(dims: Dimensions) -> np.ndarray:
    """Dimensions from the highest entropy over classes down (without labels: from the most prevalent down).

    Only dimensions with enough support are named; equal entropies are ordered by mass.
    """
    first = dims.support if dims.entropy_freq is None else dims.entropy_freq
    order = np.lexsort((-dims.mass, -first))
    return order[dims.support[order] >= MIN_SUPPORT]


def rank_suppressed(dims: Dimensions, gates: Gates) -> np.ndarray:
    """Dimensions from the one most often closed where it fires down; ties by mass, and only with enough support."""
    order = np.lexsort((-dims.mass, -gates.closed_rate))
    return order[(dims.support[order] >= MIN_SUPPORT) & (gates.closed_rate[order] > 0)]


def telling(z: sparse.csr_array, index: np.ndarray, value: np.ndarray, few: int = 12) -> np.ndarray:
    """How telling each dimension is, in [0, 1], from the features alone: coherence x concentration x strength.

    Coherence is the mean cosine between the features of its `few` strongest images, the dimension itself left out,
    on a scale from 0 (a random pair) to 1. Concentration is 1 - (sum a)^2 / (N sum a^2): 0 for a dimension that
    fires alike on all images. Strength is the mean activation of those images, 1 from 0.1 on. A dimension that fires
    on fewer than 10 images scores 0.

    Parameters
    ----------
    z : float32 CSR [N, D], unit-norm rows.
    index, value : [D, >= few], each dimension's strongest images, and their activations, 0 where fewer fire.
    """
    n, d = z.shape
    squares = np.bincount(z.indices, z.data.astype(np.float64) ** 2, minlength=d)
    mass = np.bincount(z.indices, np.abs(z.data), minlength=d)
    concentration = 1 - mass**2 / np.maximum(n * squares, 1e-12)
    centre = np.asarray(z.sum(0)) / max(n, 1)
    chance = float(centre @ centre)  # mean cosine of a random pair
    score = np.zeros(d)
    support = np.bincount(z.indices, minlength=d)
    for k in np.flatnonzero(support >= MIN_SUPPORT):
        a = value[k, :few]
        top = index[k, :few][a > 0]
        if len(top) < 2:
            continue
        x = z[top].toarray()
        x[:, k] = 0
        length = np.sqrt((x * x).sum(1))
        x = x / np.where(length > 1e-3, length, np.inf)[:, None]  # a one-hot row has nothing else to agree in
        s = x.sum(0)
        cosine = (float(s @ s) - float((x * x).sum())) / (len(top) * (len(top) - 1))
        coherence = max((cosine - chance) / max(1 - chance, 1e-6), 0.01)
        score[k] = coherence * max(concentration[k], 0) * min(1, float(a[a > 0].mean()) / VISIBLE)
    return score


def recognise(index: np.ndarray, value: np.ndarray, labels: Labels | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The class that stands out most among each dimension's strongest images, if any does so beyond chance.

    Beyond chance: with the class's share of all images, as many among so few would come up by luck in fewer than
    one dimension in a hundred, all classes considered (binomial tail, Bonferroni).

    Returns
    -------
    label : int [D], -1 where nothing stands out; share : float [D] of the strongest images; surprise : float [D],
    the logarithm of that probability, lowest for what stands out most.
    """
    d = len(index)
    label, share, surprise = np.full(d, -1), np.zeros(d), np.zeros(d)
    if labels is None or not labels.names:
        return label, share, surprise
    c = len(labels.names)
    y = np.where(value[:, :STRONGEST] > 0, labels.index[index[:, :STRONGEST]], -1)
    counts = np.zeros((d, c), np.int64)
    rows, columns = np.nonzero(y >= 0)
    np.add.at(counts, (rows, y[rows, columns]), 1)
    total = counts.sum(1)
    chance = np.bincount(labels.index[labels.index >= 0], minlength=c) / max(int((labels.index >= 0).sum()), 1)
    luck = stats.binom.logsf(counts - 1, total[:, None], chance)
    best = luck.argmin(1)
    k = np.arange(d)
    sure = (luck[k, best] < np.log(DOUBT / c)) & (total > 0)
    label[sure] = best[sure]
    share[sure] = (counts[k, best] / np.maximum(total, 1))[sure]
    surprise[sure] = luck[k, best][sure]
    return label, share, surprise


def headline(count: int, dims: Dimensions) -> dict[str, float | int | None]:
    """The few numbers that describe all dimensions together over `count` images."""
    supported = dims.support >= MIN_SUPPORT
    consistency = None
    if dims.consistency is not None and supported.any():
        consistency = float(dims.consistency[supported].mean())
    return {
        "dead": int((dims.support == 0).sum()),
        "supported": int(supported.sum()),
        "active": float(dims.support.sum() / max(count, 1)),
        "consistency": consistency,
    }


def _count(flags: sparse.csr_array, classes: sparse.csr_array) -> np.ndarray:
    return (flags.T @ classes).toarray().round().astype(np.int64)
