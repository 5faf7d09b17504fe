"""What each dimension does over a set of images: how often it fires, on which classes, and when its gate is closed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FIRES = 1e-5  # a dimension fires on an image where its unit-norm feature exceeds this in size
MIN_SUPPORT = 10  # fewer firing images than this say little about a dimension


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


def unit_rows(x: np.ndarray) -> np.ndarray:
    """Rows scaled to length 1; a row of zeros stays zero."""
    x = np.ascontiguousarray(x, dtype=np.float32)
    norm = np.sqrt(np.einsum("nd,nd->n", x, x))[:, None]
    return x / np.where(norm > 0, norm, 1)


def one_hot(labels: np.ndarray, classes: int) -> np.ndarray:
    """float32 [N, C]; a negative label is no label, and its row is zero."""
    y = np.asarray(labels)
    return (y[:, None] == np.arange(classes)).astype(np.float32)


def entropy(weights: np.ndarray) -> np.ndarray:
    """Entropy in nats of each row of non-negative weights; 0 for a row without weight."""
    total = weights.sum(1, keepdims=True)
    p = weights / np.where(total > 0, total, 1)
    return -(p * np.log(np.where(p > 0, p, 1))).sum(1)


def describe_dimensions(
    z: np.ndarray, classes: np.ndarray | None = None, backgrounds: np.ndarray | None = None
) -> Dimensions:
    """Describe every column of `z`.

    Parameters
    ----------
    z : float32 [N, D], unit-norm rows.
    classes, backgrounds : one-hot float32 [N, C], or None where there are no labels.
    """
    size = np.abs(z)
    fires = (size > FIRES).astype(np.float32)  # counts stay exact in float32 up to 2^24 images
    support = fires.sum(0, dtype=np.float64).round().astype(np.int64)
    mass = size.sum(0, dtype=np.float64)
    background_counts = None if backgrounds is None else _count(fires, backgrounds)
    if classes is None:
        return Dimensions(support, mass, background_counts=background_counts)
    counts = _count(fires, classes)
    sums = (size.T @ classes).astype(np.float64)
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
        entropy_mean=entropy(sums / np.maximum(classes.sum(0, dtype=np.float64), 1)),
    )


def describe_gates(z: np.ndarray, open: np.ndarray, classes: np.ndarray | None = None) -> Gates:
    """Describe the gates `open` (bool [N, D]) of features `z` before gating."""
    fires = np.abs(z) > FIRES
    closed = (fires & ~open).sum(0) / np.maximum(fires.sum(0), 1)
    return Gates(open.mean(0), closed, None if classes is None else _count(open.astype(np.float32), classes))


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


def headline(z: np.ndarray, dims: Dimensions) -> dict[str, float | int | None]:
    """The few numbers that describe all dimensions together."""
    supported = dims.support >= MIN_SUPPORT
    consistency = None
    if dims.consistency is not None and supported.any():
        consistency = float(dims.consistency[supported].mean())
    return {
        "dead": int((dims.support == 0).sum()),
        "supported": int(supported.sum()),
        "active": float(dims.support.sum() / max(len(z), 1)),
        "consistency": consistency,
    }


def _count(flags: np.ndarray, classes: np.ndarray) -> np.ndarray:
    return (flags.T @ classes).round().astype(np.int64)
