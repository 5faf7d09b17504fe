"""The table of per-dimension statistics, which every mean, ranking, gallery and page reads.

A dimension fires on an image where its unit-norm feature exceeds ACTIVE in size. Shares are in percent, entropies in
nats. What does not exist is NaN: a dimension that never fires has no consistency.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..arrays import Array, as_numpy
from ..errors import InputError
from ..objective import ACTIVE
from .counts import MIN_SUPPORT, Counts, Labellings, Progress, average_precision, blocks, count, unit
from .sparse import as_codes

OWNED = (0.5, 0.1)  # precision and recall from which a class owns a dimension


@dataclass(frozen=True)
class Dimensions:
    """Statistics of D dimensions over N images. What needs labels, backgrounds or gates is None without them."""

    images: int  # N
    support: np.ndarray  # int [D], images on which a dimension fires
    mass: np.ndarray  # [D], sum of the unit-norm |z_k| over those images
    classes: np.ndarray | None = None  # [C], the distinct labels in sorted order; classes below are numbers into it
    class_sizes: np.ndarray | None = None  # int [C], images by class
    class_counts: np.ndarray | None = None  # int [D, C], firing images by class
    # [D], share of the most frequent class among the labelled images a dimension fires on, percent; it is also the
    # precision of the dimension as a detector of that class
    consistency: np.ndarray | None = None
    best_class: np.ndarray | None = None  # int [D], that class, of equals the one with more mass; -1 without any
    recall: np.ndarray | None = None  # [D], share of the best class on which the dimension fires, percent
    detected_class: np.ndarray | None = None  # int [D], the class of the highest mean activation, or -1
    ap: np.ndarray | None = None  # [D], average precision of |z_k| as a detector of that, 0 to 1; if asked for
    entropy_freq: np.ndarray | None = None  # [D], entropy over classes of firing counts,
    entropy_sum: np.ndarray | None = None  # ... of mass,
    entropy_mean: np.ndarray | None = None  # ... of mass per image
    backgrounds: np.ndarray | None = None  # [B], the distinct backgrounds
    background_counts: np.ndarray | None = None  # int [D, B], firing images by background
    open_rate: np.ndarray | None = None  # [D], share of all images on which the gate is open, percent
    closed_rate: np.ndarray | None = None  # [D], share of the images a dimension fires on where it is closed, percent
    open_counts: np.ndarray | None = None  # int [D, C], images with an open gate by class

    @property
    def dead(self) -> np.ndarray:
        """bool [D], never fires."""
        return self.support == 0

    @property
    def near_dead(self) -> np.ndarray:
        """bool [D], fires on fewer than MIN_SUPPORT images."""
        return (self.support > 0) & (self.support < MIN_SUPPORT)

    @property
    def counted(self) -> np.ndarray:
        """bool [D], fires on enough images to say something about."""
        return self.support >= MIN_SUPPORT

    @property
    def l0(self) -> float:
        """Mean number of dimensions that fire on an image."""
        return float(self.support.sum() / self.images)


def describe(
    z: Array, labels: Array | None = None, *, backgrounds: Array | None = None, open: np.ndarray | None = None,
    detectors: bool = False,
) -> Dimensions:  # fmt: skip
    """Describe every column of z, block by block.

    Parameters
    ----------
    z : [N, D], dense or scipy sparse, of any scale and sign; rows are made unit length.
    labels, backgrounds : [N] integers or words, or None. A negative number is no label.
    open : bool [N, D], whether each gate is open; z are then the features before the gates.
    detectors : also compute `ap`, which sorts all entries that fire.
    """
    z = as_codes(z)
    (classes, index), (places, where) = (_factorise(each, z.shape[0]) for each in (labels, backgrounds))
    everything = [index] if places is None else [index, where]
    counted = count(z, everything, mass=True)
    table = _columns(counted[0], classes)
    if classes is not None and detectors:
        ap = detector_precision(z, [index], counted[:1], classes=len(classes))[0]
        table["ap"] = np.where(table["detected_class"] < 0, np.nan, ap)
    if places is not None:
        table |= {"backgrounds": places, "background_counts": _whole(counted[1].fires[0][: len(places)].T)}
    if open is not None:
        table |= _gates(z, open, table["support"], index if classes is not None else None, len(counted[0].sizes))
        if classes is not None:
            table["open_counts"] = table["open_counts"][:, : len(classes)]
    return Dimensions(images=z.shape[0], **table)


def most_mixed(table: Dimensions) -> np.ndarray:
    """Dimensions by the class entropy of their mass, highest first; without labels by support.

    Those with too little support are left out. Equals come in the order of their mass.
    """
    value = table.support if table.entropy_sum is None else np.nan_to_num(table.entropy_sum, nan=-1.0)
    order = np.lexsort((-table.mass, -value))
    return order[table.counted[order]]


def most_suppressed(table: Dimensions) -> np.ndarray:
    """Dimensions by the share of the images they fire on where their gate is closed, highest first.

    Those with too little support, or that are never closed, are left out. Equals come in the order of their mass.
    """
    if table.closed_rate is None:
        raise InputError("there are no gates that open and close: nothing is suppressed")
    closed = np.nan_to_num(table.closed_rate)
    order = np.lexsort((-table.mass, -closed))
    return order[(table.counted & (closed > 0))[order]]


def from_counts(counts: Counts) -> Dimensions:
    """The table of features whose every row is labelled, from a count with `mass` that was already taken."""
    return Dimensions(images=counts.rows, **_columns(counts, np.arange(len(counts.sizes))))


def largest_share(fires: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Support [D] and, in percent, the share of the most frequent class [D], from firing counts [C, D]."""
    support = fires.sum(0)
    return support, 100 * np.divide(fires.max(0), support, out=np.full(len(support), np.nan), where=support > 0)


def mean(values: np.ndarray) -> float | None:
    """Mean of the values that exist; None where none does."""
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else None


def consistency(fires: np.ndarray, min_support: int = MIN_SUPPORT) -> float | None:
    """Mean share of the most frequent class, percent, over dimensions that fire on enough images."""
    support, share = largest_share(fires)
    return mean(share[support >= max(min_support, 1)])


def owned_classes(fires: np.ndarray, sizes: np.ndarray, min_support: int = MIN_SUPPORT) -> float:
    """Number of classes with a dimension of enough support, precision and recall for them; sizes [C]."""
    support = fires.sum(0)
    precise = fires >= OWNED[0] * support
    found = fires >= OWNED[1] * sizes[:, None]
    return float((precise & found & (support >= max(min_support, 1))).any(1).sum())


def entropy(weights: np.ndarray, floor: float = 0.0) -> np.ndarray:
    """-sum_c p log p of each column of weights [C, D], p = weights / their sum; terms with p <= floor are dropped."""
    total = weights.sum(0)
    p = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    terms = p * np.log(p, out=np.zeros_like(p), where=p > floor)
    return np.asarray(np.where(total > 0, -terms.sum(0), np.nan))


def detector_precision(
    features: np.ndarray, labellings: Labellings, counts: Sequence[Counts], classes: int | None = None,
    progress: Progress | None = None,
) -> list[np.ndarray]:  # fmt: skip
    """Average precision of each dimension for the class (of the first `classes`) on which its mean is highest."""
    detected = [(c.mass[:classes] / c.sizes[:classes, None]).argmax(0) for c in counts]
    return average_precision(features, labellings, detected, int(counts[0].fires[0].sum()), progress=progress)


def _factorise(labels: Array | None, rows: int) -> tuple[np.ndarray | None, np.ndarray]:
    """Distinct labels, and each row's number among them; rows without a label get the number after the last."""
    if labels is None:
        return None, np.zeros(rows, np.int64)
    values = as_numpy(labels)
    if values.shape != (rows,):
        raise InputError(f"labels must be [{rows}], one per row of features, got {list(values.shape)}")
    names, index = np.unique(values, return_inverse=True)
    index = index.reshape(-1).astype(np.int64)
    without = 0 if names.dtype.kind in "US" else int((names < 0).sum())  # negative numbers sort first
    if without == len(names):
        return None, np.zeros(rows, np.int64)
    return names[without:], np.where(index < without, len(names), index) - without


def _columns(counts: Counts, classes: np.ndarray | None) -> dict[str, np.ndarray]:
    fires, mass = counts.fires[0], counts.mass
    table = {"support": _whole(fires.sum(0)), "mass": mass.sum(0)}
    if classes is None:
        return table
    fires, mass, sizes = fires[: len(classes)], mass[: len(classes)], counts.sizes[: len(classes)]
    support, share = largest_share(fires)
    # equally frequent classes: the one with more activation mass, and of equals the first
    best = np.where(fires == fires.max(0), mass, -1.0).argmax(0)
    dead, means = support == 0, mass / sizes[:, None]
    return table | {
        "classes": classes,
        "class_sizes": _whole(sizes),
        "class_counts": _whole(fires.T),
        "consistency": share,
        "best_class": np.where(dead, -1, best),
        "recall": np.where(dead, np.nan, 100 * fires.max(0) / sizes[best]),
        "detected_class": np.where(dead, -1, means.argmax(0)),
        "entropy_freq": entropy(fires),
        "entropy_sum": entropy(mass),
        "entropy_mean": entropy(means),
    }


def _gates(
    z: np.ndarray, open: np.ndarray, support: np.ndarray, index: np.ndarray | None, classes: int
) -> dict[str, np.ndarray]:
    if np.shape(open) != z.shape:
        raise InputError(f"gates must be {list(z.shape)}, as the features, got {list(np.shape(open))}")
    closed, opened = np.zeros(z.shape[1], np.int64), torch.zeros(classes, z.shape[1])
    group = torch.zeros(z.shape[0], dtype=torch.int64) if index is None else torch.from_numpy(index)
    for part, block in blocks(z):
        gate = torch.from_numpy(np.array(open[part], bool))
        closed += ((unit(block, part.start).abs() > ACTIVE) & ~gate).sum(0).numpy()
        opened.index_add_(0, group[part], gate.float())  # exact up to 2^24 images
    rate = 100 * np.divide(closed, support, out=np.full(len(support), np.nan), where=support > 0)
    counts = _whole(opened.numpy().T)
    found = {"open_rate": 100 * counts.sum(1) / z.shape[0], "closed_rate": rate}
    return found if index is None else found | {"open_counts": counts}


def _whole(counts: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.rint(counts), dtype=np.int64)
