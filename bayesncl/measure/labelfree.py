"""Measures of dimensions without labels: how alike are the images a dimension fires on?

Embeddings [N, F] of the images judge that, best of an encoder other than the one behind the codes.
They are prepared as for a head: without centering, a large common mean makes all images alike, and
without scaling, a few outlier columns decide every cosine.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import torch

from bayesncl.device import find_device
from bayesncl.errors import InputError
from bayesncl.inputs import Array, as_features
from bayesncl.measure import preprocess
from bayesncl.measure.dimensions import mean
from bayesncl.measure.result import Tree
from bayesncl.measure.rows import active, blocks, slices, unit_codes
from bayesncl.measure.topk import TOP, strongest_images
from bayesncl.method.losses import unit_rows

POOL = 20  # strongest images from which the four of an intruder test are drawn
DUPLICATE = 0.98  # cosine from which two images are near duplicates
TRIALS = 4  # intruder tests per dimension
CANDIDATES = 64  # images drawn in search of an intruder
INTRUDER_CHANCE = 0.2


def prepare(embeddings: Array, count: int) -> np.ndarray:
    """Embeddings float32 [N, F], prepared as for a head, of unit length; [N, F + 1] for small F."""
    x, every = as_features(embeddings), np.arange(count)
    if len(x) != count:
        raise InputError(f"{len(x)} embeddings for {count} rows of features")
    moments = preprocess.measure_moments(x, every)
    return unit_rows(preprocess.load_rows(x, every, moments, torch.device("cpu"))).numpy()


def monosemanticity(z: Array, embeddings: np.ndarray) -> np.ndarray:
    """Mean similarity of pairs of images, weighted by a dimension's activations on both [D].

    MS_j = (|sum_n a_n e_n|^2 - sum_n a_n^2 |e_n|^2) / ((sum_n a_n)^2 - sum_n a_n^2), with a_n the
    activation of dimension j on image n at unit length, scaled to 0..1 by its minimum and maximum.
    NaN where a dimension is constant or weighs one image only.
    """
    codes, device = unit_codes(z), find_device()
    low, span = (torch.from_numpy(f(codes, axis=0)).float().to(device) for f in (np.min, np.ptp))
    scale = span.where(span > 0, 1.0)
    e = torch.from_numpy(embeddings).to(device)
    along = torch.zeros(len(span), e.shape[1], dtype=torch.float64, device=device)  # sum a_n e_n
    total, squares, self_pairs = along.new_zeros(3, len(span))  # sums of a_n, a_n^2, a_n^2 |e_n|^2
    for part, block in blocks(codes):
        a = (block.to(device).float() - low) / scale
        along += a.T @ e[part]
        total += a.sum(0)
        squares += a.square().sum(0)
        self_pairs += a.square().T @ e[part].square().sum(1)
    pairs = total**2 - squares
    defined = (span > 0) & (pairs > 1e-6 * squares)
    similar = along.square().sum(1) - self_pairs
    return (similar / pairs).where(defined, torch.nan).cpu().numpy()


def mean_cosine(images: np.ndarray, embeddings: np.ndarray) -> np.ndarray:
    """Mean cosine over pairs of a dimension's images [D, T]; NaN where fewer than T fire."""
    full = (images >= 0).all(1)
    e = embeddings[images[full]]  # [D, T, F]
    count = images.shape[1]
    pairs = np.square(e.sum(1)).sum(1) - np.square(e).sum((1, 2))
    result = np.full(len(images), np.nan)
    result[full] = pairs / (count * (count - 1))
    return result


def duplicate_share(images: np.ndarray, embeddings: np.ndarray) -> np.ndarray:
    """Share of the images [D, T] of each dimension with a near duplicate among the others."""
    result = np.full(len(images), np.nan)
    for j, row in enumerate(images):
        e = embeddings[row[row >= 0]]
        if len(e):
            cosine = e @ e.T
            np.fill_diagonal(cosine, -1)
            result[j] = (cosine.max(1) >= DUPLICATE).mean()
    return result


@dataclass(frozen=True)
class Trials:
    """Intruder tests, for people and machines: which of five images does not belong?"""

    dimension: np.ndarray  # [T]
    images: np.ndarray  # [T, 5] rows, in random order
    odd: np.ndarray  # [T] position of the intruder, 0..4


def draw_trials(
    z: Array, embeddings: np.ndarray | None = None, *, trials: int = TRIALS,
    dims: Array | None = None, seed: int = 0, top: np.ndarray | None = None,
) -> Trials:  # fmt: skip
    """Draw intruder tests for all dimensions of codes [N, D], or for `dims`.

    Four images come from the POOL strongest of the dimension (`top`, if known), no two of them near
    duplicates by the embeddings. The intruder is drawn from the images where the dimension is at
    most its median, and is no near duplicate of the four. Dimensions without four such images or an
    intruder have no trial. The draw of a dimension depends on the seed and that dimension alone.
    """
    top = strongest_images(z, POOL) if top is None else top
    wanted = np.flatnonzero((top >= 0).sum(1) >= 4)
    if dims is not None:
        wanted = np.intersect1d(wanted, dims)
    if embeddings is None:
        embeddings = np.zeros((z.shape[0], 1), np.float32)  # no two are near duplicates
    drawn: list[tuple[int, np.ndarray, int]] = []
    size = active(z).abs().numpy()
    for j in wanted.tolist():
        rng = np.random.default_rng((seed, j))
        weak = size[:, j] <= np.quantile(size[:, j], 0.5, method="lower")
        strong = top[j][top[j] >= 0]
        alike = embeddings[strong] @ embeddings[strong].T >= DUPLICATE
        for _ in range(trials):
            if (test := _draw(strong, alike, weak, embeddings, rng)) is not None:
                drawn.append((j, *test))
    columns = zip(*drawn) if drawn else ((), (), ())
    dimension, images, odd = (np.array(column, np.int64) for column in columns)
    return Trials(dimension, images.reshape(-1, 5), odd)


def _draw(
    strong: np.ndarray, alike: np.ndarray, weak: np.ndarray, embeddings: np.ndarray,
    rng: np.random.Generator,
) -> tuple[np.ndarray, int] | None:  # fmt: skip
    """Five rows in random order and the position of the intruder; None if there are not enough.

    Four are of the rows `strong` [P], no two `alike` [P, P]; the intruder is marked in `weak` [N].
    """
    chosen: list[int] = []
    for i in rng.permutation(len(strong)).tolist():
        if not alike[i, chosen].any():
            chosen.append(i)
        if len(chosen) == 4:
            break
    else:
        return None
    four = strong[chosen]
    drawn = rng.integers(len(weak), size=CANDIDATES)
    for odd in drawn[weak[drawn]].tolist():
        if odd not in four and (embeddings[four] @ embeddings[odd] < DUPLICATE).all():
            order = rng.permutation(5)
            return np.array([*four, odd])[order], int(np.flatnonzero(order == 4)[0])
    return None


def find_intruders(trials: Trials, embeddings: np.ndarray) -> np.ndarray:
    """Whether the intruder has the lowest mean cosine to the others, float [T]; ties share."""
    hits = np.zeros(len(trials.odd))
    for part in slices(len(hits), 1024):
        e = embeddings[trials.images[part]]  # [t, 5, F]
        cosine = np.einsum("tif,tjf->tij", e, e)
        alike = np.round(cosine.sum(2) - np.einsum("tii->ti", cosine), 5)
        least = alike == alike.min(1, keepdims=True)
        hits[part] = least[np.arange(len(least)), trials.odd[part]] / least.sum(1)
    return hits


def wilson(hits: float, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval for a share of `hits` among `trials`."""
    z, p = NormalDist().inv_cdf(0.975), hits / trials
    middle = (p + z * z / (2 * trials)) / (1 + z * z / trials)
    spread = math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials))
    half = z / (1 + z * z / trials) * spread
    return max(0.0, middle - half), min(1.0, middle + half)


def summary(
    z: Array, embeddings: np.ndarray, *, top: np.ndarray, seed: int = 0
) -> tuple[Tree, Tree]:
    """Every measure without labels, of codes [N, D] by embeddings [N, F] from `prepare`.

    `top` are the POOL strongest images of each dimension. The interval of `intruder` is Wilson's,
    as if trials were independent. The second dict is by chance, with images shuffled.
    """
    codes = unit_codes(z)

    def measure(e: np.ndarray) -> Tree:
        return {
            "monosemanticity": mean(monosemanticity(codes, e)),
            "top10_similarity": mean(mean_cosine(top[:, :TOP], e)),
            "duplicates": mean(duplicate_share(top[:, :TOP], e)),
        }

    hits = find_intruders(draw_trials(codes, embeddings, seed=seed, top=top), embeddings)
    low, high = wilson(float(hits.sum()), len(hits)) if len(hits) else (None, None)
    found = {"intruder": mean(hits), "intruder_low": low, "intruder_high": high}
    shuffled = embeddings[np.random.default_rng(seed).permutation(len(embeddings))]
    chance = measure(shuffled) | {"intruder": INTRUDER_CHANCE}
    return measure(embeddings) | found | {"intruder_trials": len(hits)}, chance
