"""Measures of dimensions without labels: how alike are the images a dimension fires on, by a second encoder?

The embeddings [N, F] of the images come from an encoder other than the one whose codes are judged, where there is one;
they are centred and made unit length, for embeddings of many encoders share a large mean that makes all images alike.
Rows of many columns are first brought to unit length, as `rows` does for the codes: a few long ones would be the mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..arrays import Array, as_features
from ..errors import InputError
from ..rows import FEW
from . import wilson
from .counts import place
from .dimensions import mean
from .sparse import Codes, as_codes, column_blocks, strongest_images, unit_blocks

TOP = 10  # strongest images of a dimension
POOL = 20  # ... from which the four of an intruder test are drawn
DUPLICATE = 0.98  # cosine from which two images count as near duplicates
TRIALS = 4  # intruder tests a dimension
CANDIDATES = 64  # images drawn in search of an odd one


def prepare(embeddings: Array, count: int) -> np.ndarray:
    """Embeddings as float32 [N, F] at unit length, before (if 16 columns or more) and after centring; 0 stays 0."""
    e = as_features(embeddings).astype(np.float32)
    if len(e) != count:
        raise InputError(f"{len(e)} embeddings for {count} rows of features")
    if not np.isfinite(e).all():
        raise InputError("embeddings must be finite numbers, got NaN or infinity")
    e = _unit(e) if e.shape[1] >= FEW else e
    return _unit(e - e.mean(0))


def _unit(e: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(e, axis=1, keepdims=True)
    return e / np.where(length > 0, length, 1)


def monosemanticity(z: Array, embeddings: np.ndarray) -> np.ndarray:
    """Mean similarity of pairs of images, weighted by the activations of a dimension on both.

    MS_j = (|sum_n a_n e_n|^2 - sum_n a_n^2 |e_n|^2) / ((sum_n a_n)^2 - sum_n a_n^2), with a_n the activation of
    dimension j on image n, rows at unit length, scaled to 0..1 by its least and largest value; float64 [D], NaN where a
    dimension is constant or weighs one image only. Embeddings [N, F] are as `prepare` gives them.
    """
    codes = as_codes(z)
    width = codes.shape[1]
    device = place()
    low, high = (torch.full((width,), limit, device=device) for limit in (torch.inf, -torch.inf))
    for _, block in unit_blocks(codes):
        block = block.to(device).float()
        low, high = torch.minimum(low, block.amin(0)), torch.maximum(high, block.amax(0))
    span = high - low
    scale = span.where(span > 0, 1.0)
    e = torch.from_numpy(embeddings).to(device)
    e_square = e.square().sum(1)
    along = torch.zeros(width, e.shape[1], dtype=torch.float64, device=device)  # sum a_n e_n
    total, squares, self_pairs = along.new_zeros(3, width)  # sum a_n, a_n^2 and a_n^2 |e_n|^2
    for part, block in unit_blocks(codes):
        a = (block.to(device).float() - low) / scale
        along += a.T @ e[part]
        total += a.sum(0)
        squared = a.square_()
        squares += squared.sum(0)
        self_pairs += squared.T @ e_square[part]
    pairs = total**2 - squares
    there = (span > 0) & (pairs > 1e-6 * squares)
    similar = along.square().sum(1) - self_pairs
    return (similar / pairs).where(there, torch.nan).cpu().numpy()


def mean_alike(images: np.ndarray, embeddings: np.ndarray) -> np.ndarray:
    """Mean cosine over pairs of the images [D, T] of each dimension; NaN where fewer than T fire (-1)."""
    full = (images >= 0).all(1)
    e = embeddings[images[full]]  # [D, T, F]
    count = images.shape[1]
    pairs = np.square(e.sum(1)).sum(1) - np.square(e).sum((1, 2))
    result = np.full(len(images), np.nan)
    result[full] = pairs / (count * (count - 1))
    return result


def duplicate_share(images: np.ndarray, embeddings: np.ndarray) -> np.ndarray:
    """Share of the images [D, T] of each dimension with a near duplicate among the others; NaN where none fires."""
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
    """Intruder tests: of five images, which does not belong? Made for people and machines alike."""

    dimension: np.ndarray  # [T]
    images: np.ndarray  # [T, 5] rows, in random order
    odd: np.ndarray  # [T] place of the odd one, 0..4


def draw_trials(
    z: Array, embeddings: np.ndarray | None = None, *, trials: int = TRIALS, dims: Array | None = None, seed: int = 0,
    strong: np.ndarray | None = None,
) -> Trials:  # fmt: skip
    """Draw intruder tests.

    The four are drawn from the POOL strongest images of the dimension (all that fire, if fewer), no two of them near
    duplicates. The odd one is drawn from the images on which the dimension is not stronger than its median over all
    images, that is, does not fire where it fires on less than half; it is no near duplicate of any of the four. A
    dimension for which that cannot be had, four firing images or an odd one, has no trial. What is drawn for one
    dimension depends on the seed and that dimension alone.

    Parameters
    ----------
    embeddings : [N, F] as `prepare` gives them, to know near duplicates by; None knows none.
    trials : a dimension.
    dims : dimensions to draw for; default all.
    strong : the POOL strongest images of each dimension, as `strongest_images` gives them, where known.
    """
    codes = as_codes(z)
    width = codes.shape[1]
    wanted = np.zeros(width, bool)
    wanted[np.arange(width) if dims is None else np.asarray(dims)] = True
    strong = strongest_images(codes, POOL) if strong is None else strong
    wanted &= (strong >= 0).sum(1) >= 4
    found: list[tuple[int, np.ndarray, int]] = []
    for j, weak in _weak(codes, wanted):
        rng = np.random.default_rng((seed, j))
        own = strong[j][strong[j] >= 0]
        alike = None if embeddings is None else embeddings[own] @ embeddings[own].T >= DUPLICATE
        for _ in range(trials):
            test = _draw(own, alike, weak, embeddings, rng)
            if test is not None:
                found.append((j, *test))
    dimension, images, odd = (np.array(column, np.int64) for column in (zip(*found) if found else ((), (), ())))
    return Trials(dimension, images.reshape(-1, 5), odd)


def _weak(codes: Codes, wanted: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Wanted dimensions, and the images [N] on which each is not above its median over all images."""
    middle = codes.shape[0] - 1 - codes.shape[0] // 2
    for part, block in column_blocks(codes):
        here = np.flatnonzero(wanted[part])
        values = block.numpy()[here]
        middles, often = np.zeros(len(here)), (values > 0).sum(1) > codes.shape[0] // 2  # else the median is 0
        middles[often] = np.partition(values[often], middle, axis=1)[:, middle]
        for j, own, median in zip(here.tolist(), values, middles):
            yield part.start + j, own <= median


def _draw(
    strong: np.ndarray, alike: np.ndarray | None, weak: np.ndarray, embeddings: np.ndarray | None,
    rng: np.random.Generator,
) -> tuple[np.ndarray, int] | None:  # fmt: skip
    """Five rows in random order and the place of the odd one; the four from `strong` [P], the odd one where `weak` [N].

    `alike` [P, P] tells near duplicates among the strong ones.
    """
    chosen: list[int] = []
    for i in rng.permutation(len(strong)).tolist():
        if alike is None or not alike[i, chosen].any():
            chosen.append(i)
        if len(chosen) == 4:
            break
    else:
        return None
    four = strong[chosen]
    drawn = rng.integers(len(weak), size=CANDIDATES)
    for odd in drawn[weak[drawn]].tolist():
        if odd not in four and (embeddings is None or (embeddings[four] @ embeddings[odd] < DUPLICATE).all()):
            order = rng.permutation(5)
            return np.array([*four, odd])[order], int(np.flatnonzero(order == 4)[0])
    return None


def find_intruders(trials: Trials, embeddings: np.ndarray) -> np.ndarray:
    """Whether the odd one has the least mean cosine to the other four, float [T]; equals share the find."""
    found = np.zeros(len(trials.odd))
    for start in range(0, len(found), 1024):
        part = slice(start, start + 1024)
        e = embeddings[trials.images[part]]  # [t, 5, F]
        alike = np.einsum("tif,tjf->tij", e, e)
        alike = np.round(alike.sum(2) - np.einsum("tii->ti", alike), 5)
        least = alike == alike.min(1, keepdims=True)
        found[part] = least[np.arange(len(least)), trials.odd[part]] / least.sum(1)
    return found


def summary(z: Array, embeddings: np.ndarray, *, seed: int = 0, strong: np.ndarray | None = None) -> dict[str, Any]:
    """Every measure without labels, of codes [N, D] by embeddings [N, F] as `prepare` gives them.

    `strong` are the POOL strongest images of each dimension, as `strongest_images` gives them, where known.

    Returns
    -------
    `monosemanticity`, `top10_similarity` (mean cosine of a dimension's ten strongest images) and `duplicates` (share of
    these with a near duplicate among them), means over dimensions, each with `_chance` (images shuffled by the seed);
    `intruder` (share found, 0..1), its `intruder_low` and `intruder_high` (Wilson, 95 %, as if trials of one dimension
    were independent), `intruder_chance` 0.2, `intruder_trials`.
    """
    codes, e = as_codes(z), embeddings
    shuffled = e[np.random.default_rng(seed).permutation(len(e))]
    strong = strongest_images(codes, POOL) if strong is None else strong
    top = strong[:, :TOP]
    result: dict[str, Any] = {}
    for given, end in ((e, ""), (shuffled, "_chance")):
        result["monosemanticity" + end] = mean(monosemanticity(codes, given))
        result["top10_similarity" + end] = mean(mean_alike(top, given))
        result["duplicates" + end] = mean(duplicate_share(top, given))
    tests = draw_trials(codes, e, seed=seed, strong=strong)
    found = find_intruders(tests, e)
    low, high = wilson(float(found.sum()), len(found)) if len(found) else (None, None)
    return result | {
        "intruder": mean(found),
        "intruder_low": low,
        "intruder_high": high,
        "intruder_chance": 0.2,
        "intruder_trials": len(found),
    }
