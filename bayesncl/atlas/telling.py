"""Which dimensions to show first, and what to say of them in a sentence; labels as names that read as words."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from scipy import sparse, stats

from ..errors import InputError
from ..measure.counts import MIN_SUPPORT

MOST_CLASSES = 2000  # shown; rarer ones count as unlabelled
STRONGEST = 50  # images a sentence about a dimension speaks of
DOUBT = 0.01  # a share is told where chance alone gives as much in fewer than this of all dimensions
VISIBLE = 0.1  # mean activation of the strongest images from which a dimension counts as strong


@dataclass(frozen=True)
class Labels:
    """Classes of N images."""

    index: np.ndarray  # int64 [N], -1 where an image has no label
    names: list[str]  # by index


def factorise(what: str, labels: np.ndarray | None, names: tuple[str, ...] | None) -> Labels | None:
    """Labels numbered 0, 1, ... in their order, classes without images left out; None where there are no labels.

    The largest label does not matter: memory follows the number of classes that occur.
    """
    if labels is None:
        return None
    values = np.asarray(labels)
    if values.dtype.kind not in "iu":
        raise InputError(f"{what} must be whole numbers, got {values.dtype}")
    found, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    if names is not None and len(found) and found[-1] >= len(names):
        raise InputError(f"{what} go up to {found[-1]} but there are {len(names)} names")
    held = found >= 0
    if held.sum() > MOST_CLASSES:
        order = np.argsort(-np.where(held, counts, 0), kind="stable")[:MOST_CLASSES]
        held = np.isin(np.arange(len(found)), order)
    number = np.where(held, np.cumsum(held) - 1, -1)
    texts = [str(names[c]) if names is not None else f"class {c}" for c in found[held].tolist()]
    return Labels(number[index].astype(np.int64), in_words(texts))


def in_words(names: list[str]) -> list[str]:
    """Names as one would write them: `001.Black_footed_Albatross` loses its number and underscores, `3` is `class 3`.

    Names that would no longer differ stay as they are.
    """
    clean = [re.sub(r"^\d+[._-]+(?=\D)", "", name).replace("_", " ").strip() for name in names]
    clean = [f"class {text}" if re.fullmatch(r"\d+", text) else text or name for text, name in zip(clean, names)]
    return clean if len(set(clean)) == len(set(names)) else names


def telling(z: sparse.csr_array, index: np.ndarray, value: np.ndarray, few: int = 12) -> np.ndarray:
    """How telling each dimension is, in [0, 1], from the features alone: coherence x concentration x strength.

    Coherence is the mean cosine between the features of its `few` strongest images, the dimension itself left out,
    on a scale from 0 (a random pair) to 1. Concentration is 1 - (sum a)^2 / (N sum a^2): 0 for a dimension that
    fires alike on all images. Strength is the mean activation of those images, 1 from 0.1 on. A dimension that fires
    on fewer than 10 images scores 0.

    z has unit-norm rows; index, value [D, >= few] are each dimension's strongest images, and their activations, 0 where
    fewer fire.
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


def pick_wall(z: sparse.csr_array, index: np.ndarray, score: np.ndarray, count: int) -> np.ndarray:
    """The dimensions to show first: telling ones, no two with much the same strongest images.

    One after the other, the highest score x (1 - cosine), with the cosine of the mean features of its 12 strongest
    images to those of the most similar dimension picked before. Candidates are the 8 x `count` highest scores.
    """
    candidates = np.argsort(-score, kind="stable")[: 8 * count]
    candidates = candidates[score[candidates] > 0]
    if not len(candidates):
        return candidates
    means = np.stack([np.asarray(z[index[k, :12]].sum(0)).ravel() for k in candidates])
    means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
    nearest = np.zeros(len(candidates))
    picked: list[int] = []
    for _ in range(min(count, len(candidates))):
        worth = score[candidates] * (1 - nearest)
        worth[picked] = -1
        picked.append(int(worth.argmax()))
        nearest = np.maximum(nearest, np.clip(means @ means[picked[-1]], 0, 1))
    return candidates[picked]


def recognise(index: np.ndarray, value: np.ndarray, labels: Labels | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The class that stands out most among each dimension's strongest images, if any does so beyond chance.

    Beyond chance: with the class's share of all images, as many among so few would come up by luck in fewer than
    one dimension in a hundred, all classes considered (binomial tail, Bonferroni). Gives the class, int [D], -1 where
    nothing stands out; its share of the strongest images, float [D]; and the logarithm of that probability, float [D],
    lowest for what stands out most.
    """
    d = len(index)
    if labels is None or not labels.names:
        return np.full(d, -1), np.zeros(d), np.zeros(d)
    c, k = len(labels.names), np.arange(d)
    y = np.where(value[:, :STRONGEST] > 0, labels.index[index[:, :STRONGEST]], -1)
    counts = np.bincount((k[:, None] * c + y)[y >= 0], minlength=d * c).reshape(d, c)
    total = counts.sum(1)
    chance = np.bincount(labels.index[labels.index >= 0], minlength=c) / max(int((labels.index >= 0).sum()), 1)
    luck = stats.binom.logsf(counts - 1, total[:, None], chance)
    best = luck.argmin(1)
    sure = (luck[k, best] < np.log(DOUBT / c)) & (total > 0)
    share = counts[k, best] / np.maximum(total, 1)
    return np.where(sure, best, -1), np.where(sure, share, 0), np.where(sure, luck[k, best], 0)
