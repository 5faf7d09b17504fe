"""Every measure of how readable a code is, as one tree of numbers, from which `verdict` makes its lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..arrays import Array, as_features, as_labels, as_numpy
from ..errors import InputError, printable
from . import coverage, detectors, kept, labelfree
from .counts import MIN_SUPPORT
from .dimensions import largest_share
from .retrieval import retrieval
from .sparse import Codes, as_codes, strongest_images

TOP, ALIKE = 10, 7  # a dimension is readable if so many of its strongest images share a class
KEPT = 5  # dimensions kept an image where one number must do
FEW_IMAGES = 50  # below, nothing is said of single dimensions
QUERIES = 2000  # images that retrieval with an untrained head and with whole embeddings asks with, at most
REFERENCE = 512  # groups of ten images that tell how alike chance and neighbours are
NOISE = 0.95  # quantile over the dimensions read from noise, which a readable one passes
SAME = 1 - 1e-5  # mean cosine of images that are the same, but for rounding
NAME_LENGTH = 40  # of a class in the verdict
SORTED = 2**21  # entries that fire, above which F1 and IoU are left out unless asked for: they sort all

Tree = dict[str, Any]


def figures(
    z: Array,
    labels: Array | None = None,
    *,
    label_names: Sequence[str] | Mapping[Any, str] | None = None,
    levels: Mapping[str, Array] | None = None,
    embeddings: Array | None = None,
    second: bool = False,
    control: Array | None = None,
    noise: tuple[Array, Array] | None = None,
    train: tuple[Array, Array] | None = None,
    stability: Mapping[str, float | None] | None = None,
    ks: Sequence[int] = kept.KS,
    queries: int | None = QUERIES,
    everything: bool = False,
    seed: int = 0,
) -> Tree:
    """All that can be measured of the codes of images nobody fitted them on.

    Parameters
    ----------
    z : [N, D] numpy, torch or scipy sparse.
    labels : [N]; without them, `embeddings` tell what is alike.
    label_names : names of the labels, by label or in the order of whole-number labels.
    levels : coarser labels [N] by name (``{"superclass": ...}``); a dimension may be readable at any level.
    embeddings : [N, F] of the same images, those the codes were made from or a second encoder's.
    second : whether the embeddings are a second encoder's; only then they are no judge in their own cause.
    control : codes [N, D] of an untrained head.
    noise : codes [M, D] and embeddings [M, F] of rows whose columns were shuffled, by a head that was fitted to such
        rows. Without labels a readable dimension is more alike than 95 of 100 of these.
    train : codes and labels of training rows, for a linear probe of the kept codes and for sparse probing.
    stability : what `stability.summary` returns for this code and that of another seed.
    ks : dimensions kept an image; 5 is among them.
    queries : images that retrieval asks with; None asks with all.
    everything : also F1 and IoU of codes with very many entries that fire.
    seed : of shuffled labels and drawn images.

    Returns
    -------
    `images`, `dimensions`, `classes`, `coverage`; `readable` (`count`, of at least 50 images); with labels `kept` by k
    and `detectors`; with embeddings `labelfree`; `whole`, retrieval without a cut; `seeds`. `chance` and `control` hold
    the same with labels (or embeddings) shuffled and of the untrained head.
    """
    codes = as_codes(z)
    n, width = codes.shape
    other = None if control is None else as_codes(control)
    if other is not None and other.shape != codes.shape:
        raise InputError(f"the control must be {list(codes.shape)} as the codes are, got {list(other.shape)}")
    given = None if embeddings is None else labelfree.prepare(embeddings, n)
    noisy = None
    if noise is not None:  # mean cosine of the ten strongest images of each dimension [D]
        images = strongest_images(as_codes(noise[0]), TOP)
        noisy = labelfree.mean_alike(images, labelfree.prepare(noise[1], noise[0].shape[0]))
    known, names = _labels(labels, n)
    levelled = {name: as_labels(y, n)[0] for name, y in (levels or {}).items()}
    by_label = [] if known is None else [known, *levelled.values()]
    tellable = n >= FEW_IMAGES and (known is not None or given is not None)
    least = least_alike(given, noisy, seed) if tellable and known is None and given is not None else None

    def measure(codes: Codes, strong: np.ndarray, train: tuple[Array, Array] | None, queries: int | None) -> Tree:
        """The branches that exist for trained and untrained codes alike, chance levels beside what they are of."""
        found = coverage.summary(codes, seed=seed, strong=strong)
        tree: Tree = {"coverage": found}
        if known is not None:
            rows = kept.summary(codes, labels, train=train, ks=ks, queries=queries, seed=seed)
            tree["kept"] = {str(k): row for k, row in rows.items()}
            f1 = everything or found["l0"] * n <= SORTED
            all_levels = {"class": known, **levelled} if levelled else None
            tree["detectors"] = detectors.summary(codes, labels, train=train, levels=all_levels, f1=f1, seed=seed)
        if given is not None:
            tree["labelfree"] = labelfree.summary(codes, given, seed=seed, strong=strong)
        return tree

    def count_readable(top: np.ndarray, order: np.ndarray | slice = slice(None)) -> Tree:
        """How many dimensions with these strongest images are readable, labels and embeddings taken in some order."""
        if given is None or least is None:
            return {"count": int(readable(top, [y[order] for y in by_label]).sum())}
        return {"count": int((labelfree.mean_alike(top, given[order]) >= least).sum())}  # NaN is not

    result: Tree = {"images": n, "dimensions": width, "classes": None if known is None else int(known.max()) + 1}
    strong = strongest_images(codes, labelfree.POOL)
    measured, chance = part(measure(codes, strong, train, queries), "_chance")
    result |= measured
    if tellable:
        top = strong[:, :TOP]
        chance["readable"] = count_readable(top, np.random.default_rng(seed).permutation(n))
        found = count_readable(top)
        by = "embeddings" if known is None else " or ".join(["class", *levelled])
        result["readable"] = found | {"share": found["count"] / width, "by": by}
        if least is not None and noisy is not None:
            result["readable"]["noise"] = int((noisy >= least).sum())
        if known is not None:
            result["readable"] |= _clearest(codes, known, names, label_names)
    if given is not None:
        result["labelfree"]["by"] = "a second encoder" if second else "the embeddings given"
    if known is not None and n > KEPT + 1:
        result["whole"] = _whole(codes, embeddings, given, known, seed)
    result["chance"], result["control"] = chance, {}
    if other is not None:
        asked = QUERIES if queries is None else min(queries, QUERIES)
        strong = strongest_images(other, labelfree.POOL)
        result["control"] = part(measure(other, strong, None, asked), "_chance")[0]
        if tellable:
            result["control"]["readable"] = count_readable(strong[:, :TOP])
    if stability is not None:
        result["seeds"], result["control"]["seeds"] = part(dict(stability), "_control")
    return result


def part(tree: Tree, end: str) -> tuple[Tree, Tree]:
    """The tree without the keys that end so, and a tree of these alone, under their names without the end."""
    rest: Tree = {}
    taken: Tree = {}
    for key, value in tree.items():
        if key.endswith(end):
            taken[key.removesuffix(end)] = value
        elif isinstance(value, dict):
            rest[key], inner = part(value, end)
            if inner:
                taken[key] = inner
        else:
            rest[key] = value
    return rest, taken


def _labels(labels: Array | None, n: int) -> tuple[np.ndarray | None, np.ndarray]:
    """Labels from 0 and what they stand for; None where there are none or one class only."""
    plain = np.zeros(n) if labels is None else as_numpy(labels)
    if plain.shape == (n,) and len(np.unique(plain)) < 2:
        return None, np.empty(0)
    return as_labels(plain, n)


def readable(top: np.ndarray, labellings: Sequence[np.ndarray]) -> np.ndarray:
    """Which dimensions are readable by labels, bool [D]: at least 7 of the ten strongest images [D, 10] share a class.

    Any of the labellings (int [N] from 0) will do. A dimension that fires on fewer than ten images (-1) is not.
    """
    labels = np.stack(labellings)[:, top]  # [L, D, 10]
    most = (labels[..., None] == labels[..., None, :]).sum(-1).max(-1)
    return (most >= ALIKE).any(0) & (top >= 0).all(1)


def least_alike(embeddings: np.ndarray, noise: np.ndarray | None, seed: int) -> float:
    """The mean cosine from which ten images are alike.

    It is half-way from that of ten random images to that of an image and its nine nearest neighbours; and, where rows
    are few or narrow and noise is as alike as that, what 95 of 100 dimensions read from `noise` [D] do not reach.
    """
    rng = np.random.default_rng(seed)
    n = len(embeddings)
    random = np.stack([rng.choice(n, TOP, replace=False) for _ in range(REFERENCE)])
    chosen, near = rng.choice(n, min(n, REFERENCE), replace=False), []
    for rows in np.split(chosen, range(64, len(chosen), 64)):
        cosine = embeddings[rows] @ embeddings.T
        near.append(np.argpartition(-cosine, TOP - 1, axis=1)[:, :TOP])
    half = float(sum(labelfree.mean_alike(rows, embeddings).mean() for rows in (random, np.concatenate(near)))) / 2
    known = np.empty(0) if noise is None else noise[~np.isnan(noise)]
    least = max(half, float(np.quantile(known, NOISE))) if len(known) else half
    return min(least, SAME)


def _clearest(codes: Codes, known: np.ndarray, labels: np.ndarray, names: Any) -> Tree:
    """The dimension whose largest class has the greatest share of the images that keep it, and that class."""
    fires = kept.class_counts(kept.keep(codes, KEPT), known)
    support, share = largest_share(fires)
    used = support >= MIN_SUPPORT
    j = int(np.where(used, share, -1).argmax())
    if not used.any() or share[j] < kept.ABOUT:
        return {}
    label = labels[fires[:, j].argmax()].item()
    label = int(label) if isinstance(label, float) else label
    named = names if isinstance(names, Mapping) else dict(enumerate(names or ()))
    text = printable(str(named.get(label, label)), NAME_LENGTH)  # perhaps a stranger's
    return {"clearest": {"dimension": j, "class": text}}


def _whole(
    codes: Codes, embeddings: Array | None, centred: np.ndarray | None, known: np.ndarray, seed: int
) -> Tree | None:
    """Retrieval precision at 5 by all there is: the embeddings, as they are or centred, or all dimensions of the codes.

    Of few columns, rows that differ in length do better as they are, those with a large common mean centred.
    """
    n = len(known)
    asked = None if n <= QUERIES else np.sort(np.random.default_rng(seed).choice(n, QUERIES, replace=False))
    if embeddings is not None and centred is not None:
        ways, what = [as_features(embeddings), centred], "the whole embedding"
    elif codes.shape[0] * codes.shape[1] < 2**26 or not hasattr(codes, "toarray"):
        ways, what = [codes.toarray() if hasattr(codes, "toarray") else codes], "all dimensions"
    else:
        return None
    return {"p5": max(retrieval(way, known, ks=(5,), queries=asked)[5] for way in ways), "of": what}
