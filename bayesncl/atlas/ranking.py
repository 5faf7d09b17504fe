"""Which dimensions the page shows first, and which class stands out among their images."""

from dataclasses import dataclass

import numpy as np
from scipy import sparse, stats
from sklearn.preprocessing import normalize

from bayesncl.codes.names import clean_names
from bayesncl.errors import InputError
from bayesncl.inputs import factorize
from bayesncl.measure.dimensions import MIN_SUPPORT

MAX_CLASSES = 2000  # the most frequent ones; images of the others count as unlabeled
STRONGEST_IMAGES = 50  # per dimension, among which a class may stand out
SIGNIFICANCE = 0.01  # for a class to stand out, over all classes of a dimension
TWIN_COSINE = 0.9  # of the activations of two dimensions that the page folds into one
STRONG = 0.1  # mean activation of the strongest images from which clarity does not grow


# The strongest images of each dimension, strongest first: rows int [D, K] and their activations
# float [D, K], 0 if fewer than K images fire.
Top = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Labels:
    """Classes of N images; None without labels."""

    index: np.ndarray | None = None  # int64 [N], -1 for an unlabeled image
    names: list[str] | None = None  # [C]

    @property
    def numbers(self) -> np.ndarray | None:
        """Classes of the images from 1 on, 0 for an unlabeled image."""
        return None if self.index is None else self.index + 1


def number_labels(values: np.ndarray | None, names: tuple[str, ...] | None) -> Labels:
    """Number the classes that occur 0, 1, ...; negative values are no labels."""
    if values is None:
        return Labels()
    if np.asarray(values).dtype.kind not in "iu":
        raise InputError(f"labels must be integers, got {np.asarray(values).dtype}")
    index, classes = factorize(values)
    if names is not None and len(classes) and classes[-1] >= len(names):
        raise InputError(f"labels go up to {classes[-1]}, but there are {len(names)} class names")
    counts = np.where(classes >= 0, np.bincount(index), 0)
    kept = np.sort(np.argsort(-counts, kind="stable")[: min(MAX_CLASSES, (counts > 0).sum())])
    number = np.full(len(classes), -1)
    number[kept] = np.arange(len(kept))
    texts = [f"class {c}" if names is None else names[c] for c in classes[kept].tolist()]
    return Labels(number[index], clean_names(texts))


def clarity(z: sparse.csr_array, top: Top, few: int = 12) -> np.ndarray:
    """Score each dimension by coherence x concentration x strength, in [0, 1], without labels.

    Coherence is the mean cosine of the features (unit rows) of its `few` strongest images, without
    the dimension itself, scaled so that a random pair has 0. Concentration is
    1 - (sum a)^2 / (N sum a^2), 0 if the dimension fires equally on all images. Strength is the
    mean activation of those images, 1 from STRONG on. Dimensions with little support score 0.
    """
    n, d = z.shape
    support = np.bincount(z.indices, minlength=d)
    squares = np.bincount(z.indices, z.data.astype(np.float64) ** 2, minlength=d)
    mass = np.bincount(z.indices, np.abs(z.data), minlength=d)
    concentration = 1 - mass**2 / np.maximum(n * squares, 1e-12)
    center = np.asarray(z.sum(0)) / max(n, 1)
    chance = float(center @ center)  # mean cosine of a random pair
    score = np.zeros(d)
    for k in np.flatnonzero(support >= MIN_SUPPORT):
        a = top[1][k, :few]
        images = top[0][k, :few][a > 0]
        if len(images) < 2:
            continue
        x = z[images].toarray()
        x[:, k] = 0
        length = np.sqrt((x * x).sum(1))
        x = x / np.where(length > 1e-3, length, np.inf)[:, None]  # a one-hot row becomes zero
        s = x.sum(0)
        cosine = (float(s @ s) - float((x * x).sum())) / (len(images) * (len(images) - 1))
        coherence = max((cosine - chance) / max(1 - chance, 1e-6), 0.01)
        strength = min(1, float(a[a > 0].mean()) / STRONG)
        score[k] = coherence * max(concentration[k], 0) * strength
    return score


def pick_diverse(z: sparse.csr_array, top: Top, score: np.ndarray, count: int) -> np.ndarray:
    """Pick up to `count` dimensions with high scores and different images, greedily.

    The next one has the highest score x (1 - cosine), with the cosine between the mean features of
    the 12 strongest images and those of the most similar dimension picked before.
    """
    candidates = np.argsort(-score, kind="stable")[: 8 * count]
    candidates = candidates[score[candidates] > 0]
    if not len(candidates):
        return candidates
    sums = np.stack([np.asarray(z[top[0][k, :12]].sum(0)).ravel() for k in candidates])
    means = normalize(sums)
    nearest = np.zeros(len(candidates))
    picked: list[int] = []
    for _ in range(min(count, len(candidates))):
        gain = score[candidates] * (1 - nearest)
        gain[picked] = -1
        picked.append(int(gain.argmax()))
        nearest = np.maximum(nearest, np.clip(means @ means[picked[-1]], 0, 1))
    return candidates[picked]


def fold_twins(near: np.ndarray, cosine: np.ndarray, score: np.ndarray) -> np.ndarray:
    """The dimension that each one is folded into, int [D]: itself, or a twin of higher score.

    `near` and `cosine` [D, K] are the most similar dimensions. From the highest score down, a
    dimension takes all of them above TWIN_COSINE that are not folded yet and have taken none.
    """
    leader = np.arange(len(near))
    free = np.ones(len(near), bool)
    for k in np.argsort(-score, kind="stable"):
        if free[k]:
            free[k] = False
            twins = near[k][cosine[k] > TWIN_COSINE]
            twins = twins[free[twins]]
            leader[twins], free[twins] = k, False
    return leader


def prominent_class(top: Top, labels: Labels) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the class most overrepresented among the strongest images of each dimension.

    It must be significant in a binomial test with its frequency among all images, with Bonferroni
    correction for the number of classes. Returns the class, int [D], -1 if none stands out; its
    share of the strongest images, float [D]; and the logarithm of the p-value, float [D].
    """
    index, value = (x[:, :STRONGEST_IMAGES] for x in top)
    d = len(index)
    if labels.index is None or not labels.names:
        return np.full(d, -1), np.zeros(d), np.zeros(d)
    c, k = len(labels.names), np.arange(d)
    y = np.where(value > 0, labels.index[index], -1)
    counts = np.bincount((k[:, None] * c + y)[y >= 0], minlength=d * c).reshape(d, c)
    total = counts.sum(1)
    labeled = labels.index[labels.index >= 0]
    chance = np.bincount(labeled, minlength=c) / max(len(labeled), 1)
    log_p = stats.binom.logsf(counts - 1, total[:, None], chance)
    best = log_p.argmin(1)
    sure = (log_p[k, best] < np.log(SIGNIFICANCE / c)) & (total > 0)
    share = counts[k, best] / np.maximum(total, 1)
    return np.where(sure, best, -1), np.where(sure, share, 0), np.where(sure, log_p[k, best], 0)
