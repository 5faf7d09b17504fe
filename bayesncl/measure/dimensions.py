"""The table of per-dimension statistics behind every mean, ranking, gallery and page.

Shares are in percent, entropies in nats. Undefined values are NaN: a dimension that never fires has
no consistency.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from bayesncl.errors import InputError
from bayesncl.inputs import Array, as_numpy, factorize
from bayesncl.measure.rows import blocks, ranked_columns, unit_codes
from bayesncl.method.losses import ACTIVE

MIN_SUPPORT = 10  # a dimension that fires on fewer images is not counted
CONFLICTS = (0.9, 0.5)  # products of two classes' firing probabilities that count as a conflict
OWNED_PRECISION, OWNED_RECALL = 0.5, 0.1  # a dimension with both for a class belongs to that class

Labelings = Sequence[np.ndarray]  # one or several labelings of the same rows, int64 [N] each


@dataclass(frozen=True)
class Counts:
    """Statistics by class and dimension for one labeling of the rows, float64."""

    sizes: np.ndarray  # [C] images by class
    fires: np.ndarray  # [T, C, D] images of class c on which |z_j| exceeds threshold t
    mass: np.ndarray  # [C, D] sum of |z_j| over the images where it exceeds `floor`


@dataclass(frozen=True)
class Dimensions:
    """Statistics of D dimensions over N images; None without the labels or gates they need."""

    images: int  # N
    support: np.ndarray  # int [D], images on which a dimension fires
    mass: np.ndarray  # [D], sum of the unit-length |z_k| over those images
    classes: np.ndarray | None = None  # [C], distinct labels, sorted; classes below index into it
    class_counts: np.ndarray | None = None  # int [D, C], firing images by class
    # [D], share of the most frequent class among the labeled images a dimension fires on, percent:
    # the precision of the dimension as a detector of that class
    consistency: np.ndarray | None = None
    best_class: np.ndarray | None = None  # int [D], that class; of equals the one with more mass
    recall: np.ndarray | None = None  # [D], share of the best class it fires on, percent
    entropy_freq: np.ndarray | None = None  # [D], entropy over classes of firing counts,
    entropy_sum: np.ndarray | None = None  # ... of mass,
    entropy_mean: np.ndarray | None = None  # ... of mass per image
    background_counts: np.ndarray | None = None  # int [D, B], firing images by background
    open_rate: np.ndarray | None = None  # [D], share of images whose gate is open, percent
    closed_rate: np.ndarray | None = None  # [D], ... closed, of the images it fires on, percent
    open_counts: np.ndarray | None = None  # int [D, C], images with an open gate by class

    @property
    def dead(self) -> np.ndarray:
        """bool [D], never fires."""
        return self.support == 0

    @property
    def counted(self) -> np.ndarray:
        """bool [D], fires on at least MIN_SUPPORT images."""
        return self.support >= MIN_SUPPORT

    @property
    def l0(self) -> float:
        """Mean number of active dimensions per image."""
        return float(self.support.sum() / self.images)


def one_hot(labels: np.ndarray, classes: int) -> sp.csc_array:
    """1 where image n is of class c, float32 [C, N], for labels 0..C-1."""
    ones = np.ones(len(labels), np.float32)
    return sp.csc_array((ones, labels, np.arange(len(labels) + 1)), shape=(classes, len(labels)))


def count(
    z: np.ndarray, labelings: Labelings, thresholds: Sequence[float] = (ACTIVE,),
    floor: float = ACTIVE,
) -> list[Counts]:  # fmt: skip
    """Count the entries of z [N, D] as given, above each threshold, for each labeling.

    A count is the product of the one-hot labels with a matrix made from z: Y^T |z| [C, D] for the
    mass, Y^T 1[|z| > t] for firing images.
    """
    classes = 1 + max(int(labels.max()) for labels in labelings)
    onehot = sp.vstack([one_hot(labels, classes) for labels in labelings], "csc")
    total = np.zeros((1 + len(thresholds), onehot.shape[0], z.shape[1]))
    for part, block in blocks(z):
        size, own = block.abs().numpy(), onehot[:, part].tocsr()
        total[0] += own @ np.where(size > floor, size, 0)
        for fires, threshold in zip(total[1:], thresholds):
            fires += own @ (size > threshold).astype(np.float32)
    return [
        Counts(np.bincount(labels, minlength=classes).astype(float), s[1:], s[0])
        for labels, s in zip(labelings, np.split(total, len(labelings), axis=1))
    ]


def describe(
    z: Array, labels: Array | None = None, *, backgrounds: Array | None = None,
    open: np.ndarray | None = None,
) -> Dimensions:  # fmt: skip
    """Describe every column of z.

    Parameters
    ----------
    z : [N, D], dense or scipy sparse, of any scale and sign; rows are normalized.
    labels, backgrounds : [N] integers or strings, or None. A negative number means no label.
    open : bool [N, D], whether each gate is open; z are then the features before the gates.
    """
    z = unit_codes(z)
    index, classes = _index(labels, z.shape[0])
    ground, grounds = _index(backgrounds, z.shape[0])
    counts = count(z, [index] if grounds is None else [index, ground])
    support = counts[0].fires[0].sum(0).astype(np.int64)
    table: dict[str, np.ndarray] = {"support": support, "mass": counts[0].mass.sum(0)}
    if classes is not None:
        labeled = slice(len(classes))
        sizes, mass = counts[0].sizes[labeled], counts[0].mass[labeled]
        fires = counts[0].fires[0][labeled]
        best, dead = np.where(fires == fires.max(0), mass, -1.0).argmax(0), ~fires.any(0)
        table |= {
            "classes": classes,
            "class_counts": fires.T.astype(np.int64),
            "best_class": np.where(dead, -1, best),
            "recall": np.where(dead, np.nan, 100 * fires.max(0) / sizes[best]),
        } | purity(fires, mass, sizes)
    if grounds is not None:
        table["background_counts"] = counts[1].fires[0][: len(grounds)].T.astype(np.int64)
    if open is not None:
        if np.shape(open) != z.shape:
            raise InputError(f"gates must be {list(z.shape)} like z, got {list(np.shape(open))}")
        open = np.asarray(open, bool)
        closed = ((np.abs(z) > ACTIVE) & ~open).sum(0)
        table["open_rate"] = 100 * open.sum(0) / len(open)
        table["closed_rate"] = 100 * (closed / np.where(support > 0, support, np.nan))
        if classes is not None:
            by_class = [open[index == c].sum(0) for c in range(len(classes))]
            table["open_counts"] = np.stack(by_class, axis=1)
    return Dimensions(images=z.shape[0], **table)


def most_mixed(table: Dimensions) -> np.ndarray:
    """Dimensions with enough support by class entropy of their mass (or support), descending."""
    mixed = table.support if table.entropy_sum is None else table.entropy_sum
    ranked = np.lexsort((-table.mass, -np.nan_to_num(mixed, nan=-1.0)))
    return ranked[table.counted[ranked]]


def most_suppressed(table: Dimensions) -> np.ndarray:
    """Dimensions with enough support that the gates close, by `closed_rate`, descending."""
    if table.closed_rate is None:
        raise InputError("this model has no gates that open and close: nothing is suppressed")
    closed = np.nan_to_num(table.closed_rate)
    ranked = np.lexsort((-table.mass, -closed))
    return ranked[(table.counted & (closed > 0))[ranked]]


def largest_share(fires: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Support [D] and share of the most frequent class [D], percent, from counts [C, D]."""
    support = fires.sum(0)
    return support, 100 * (fires.max(0) / np.where(support > 0, support, np.nan))


def purity(fires: np.ndarray, mass: np.ndarray, sizes: np.ndarray) -> dict[str, np.ndarray]:
    """How far each dimension is of one class [D], from its counts and mass by class [C, D]."""
    return {
        "consistency": largest_share(fires)[1],
        "entropy_sum": entropy(mass),
        "entropy_mean": entropy(mass / sizes[:, None]),
        "entropy_freq": entropy(fires),
    }


def mean(values: np.ndarray) -> float | None:
    """Mean of the values that are not NaN; None without any."""
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else None


def consistency(fires: np.ndarray, min_support: int = MIN_SUPPORT) -> float | None:
    """Mean share of the most frequent class, percent, over dimensions with enough support."""
    support, share = largest_share(fires)
    return mean(share[support >= min_support])


def owned_classes(
    fires: np.ndarray, sizes: np.ndarray, min_support: int = MIN_SUPPORT,
    recall: float = OWNED_RECALL,
) -> float:  # fmt: skip
    """Number of classes with a dimension of enough support, precision and recall; sizes [C]."""
    support = fires.sum(0)
    owned = (fires >= OWNED_PRECISION * support) & (fires >= recall * sizes[:, None])
    return float((owned & (support >= min_support)).any(1).sum())


def entropy(weights: np.ndarray, floor: float = 0.0) -> np.ndarray:
    """-sum_c p log p of each column of weights [C, D]; terms with p <= floor are dropped."""
    total = weights.sum(0)
    p = weights / np.where(total > 0, total, np.nan)
    terms = p * np.log(p, out=np.zeros_like(p), where=p > floor)
    return np.asarray(-terms.sum(0))


def detector_precision(
    z: np.ndarray, labelings: Labelings, counts: Sequence[Counts]
) -> list[np.ndarray]:
    """Average precision [D] of unit-length |z| as a detector of the class with its highest mean.

    Equal values count as one step (as in scikit-learn); all images on which a dimension does not
    fire are equal.
    """
    detected = [(c.mass / c.sizes[:, None]).argmax(0) for c in counts]
    result = np.zeros((len(labelings), z.shape[1]))
    for j, rows, _, depth in ranked_columns(z):
        for i, labels in enumerate(labelings):
            hit, positives = labels[rows] == detected[i][j], counts[i].sizes[detected[i][j]]
            precision = np.cumsum(hit)[depth - 1] / depth
            rest = (positives - hit.sum()) * positives / len(labels)
            result[i, j] = (precision[hit].sum() + rest) / positives
    return list(result)


def _index(labels: Array | None, rows: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Index of each label, and the distinct ones; rows without a label get one past the last."""
    if labels is None:
        return np.zeros(rows, np.int64), None
    if np.shape(labels) != (rows,):
        raise InputError(f"labels must be [{rows}], one per row, got {list(np.shape(labels))}")
    index, names = factorize(as_numpy(labels))
    missing = 0 if names.dtype.kind in "US" else int((names < 0).sum())  # negatives sort first
    if missing == len(names):
        return np.zeros(rows, np.int64), None
    return np.where(index < missing, len(names), index) - missing, names[missing:]
