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
    noisy = None if noise is None else _alike(*noise)
    known = _labels(labels, n)
    levelled = {name: as_labels(y, n)[0] for name, y in (levels or {}).items()}
    by_label = [] if known is None else [known, *levelled.values()]
    tellable = n >= FEW_IMAGES and (known is not None or given is not None)
    least = least_alike(given, noisy, seed=seed) if tellable and known is None and given is not None else None

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
        judges = [y[order] for y in by_label], None if given is None else given[order]
        return {"count": int(readable(top, *judges, least=least, seed=seed).sum())}

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
            result["readable"] |= _clearest(codes, known, labels, label_names)
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


def _labels(labels: Array | None, n: int) -> np.ndarray | None:
    """Labels from 0, or None where there are none or one class only."""
    if labels is None:
        return None
    plain = as_numpy(labels)
    if plain.shape == (n,) and len(np.unique(plain)) < 2:
        return None
    return as_labels(plain, n)[0]


def readable(
    top: np.ndarray, labellings: Sequence[np.ndarray] = (), embeddings: np.ndarray | None = None, *,
    least: float | None = None, seed: int = 0,
) -> np.ndarray:  # fmt: skip
    """Which dimensions are readable, bool [D]: their ten strongest images [D, 10], -1 for none, are alike.

    With labels: at least 7 of the ten share a class, by any of the labellings (int [N] from 0). Else by embeddings, as
    `labelfree.prepare` gives them: the mean cosine of the ten is `least` or more, see `least_alike`. A dimension that
    fires on fewer than ten images is not readable.
    """
    if len(labellings):
        return np.any([_largest(top, labels) >= ALIKE for labels in labellings], axis=0)
    if embeddings is None:
        raise InputError("readable dimensions need labels or embeddings to tell what is alike")
    least = least_alike(embeddings, seed=seed) if least is None else least
    return labelfree.mean_alike(top, embeddings) >= least  # NaN is not


def least_alike(embeddings: np.ndarray, noise: np.ndarray | None = None, *, seed: int = 0) -> float:
    """The mean cosine from which ten images are alike.

    It is half-way from that of ten random images to that of an image and its nine nearest neighbours; and, where rows
    are few or narrow and noise is as alike as that, what 95 of 100 dimensions read from `noise` [D] do not reach.
    """
    half = sum(likeness(embeddings, seed=seed)) / 2
    known = np.empty(0) if noise is None else noise[~np.isnan(noise)]
    least = max(half, float(np.quantile(known, NOISE))) if len(known) else half
    return min(least, SAME)


def _alike(codes: Array, embeddings: Array) -> np.ndarray:
    """Mean cosine of the ten strongest images of each dimension [D]."""
    found = as_codes(codes)
    return labelfree.mean_alike(strongest_images(found, TOP), labelfree.prepare(embeddings, found.shape[0]))


def _largest(top: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """How many of the images [D, T] share the most frequent label; 0 where fewer than T fire."""
    found = labels[top]
    most = (found[:, :, None] == found[:, None]).sum(2).max(1)
    return np.where((top >= 0).all(1), most, 0)


def likeness(embeddings: np.ndarray, *, seed: int = 0) -> tuple[float, float]:
    """Mean cosine of ten random images, and of an image and its nine nearest neighbours."""
    rng = np.random.default_rng(seed)
    n = len(embeddings)
    count = min(TOP, n)
    random = np.stack([rng.choice(n, count, replace=False) for _ in range(REFERENCE)])
    seeds = rng.choice(n, min(n, REFERENCE), replace=False)
    near = []
    for start in range(0, len(seeds), 64):
        cosine = embeddings[seeds[start : start + 64]] @ embeddings.T
        near.append(np.argpartition(-cosine, count - 1, axis=1)[:, :count])
    low, high = (labelfree.mean_alike(rows, embeddings).mean() for rows in (random, np.concatenate(near)))
    return float(low), float(high)


def _clearest(codes: Codes, known: np.ndarray, labels: Any, names: Any) -> Tree:
    """The dimension whose largest class has the greatest share of the images that keep it, and that class."""
    fires = kept.class_counts(kept.keep(codes, KEPT), known)
    support, share = largest_share(fires)
    used = support >= MIN_SUPPORT
    j = int(np.where(used, share, -1).argmax())
    if not used.any() or share[j] < kept.ABOUT:
        return {}
    name = printable(_name(int(fires[:, j].argmax()), known, names, labels), NAME_LENGTH)  # perhaps a stranger's
    return {"clearest": {"dimension": j, "class": name}}


def _name(label: int, known: np.ndarray, names: Any, labels: Any) -> str:
    original = as_numpy(labels)[int(np.flatnonzero(known == label)[0])].item()
    original = int(original) if isinstance(original, float) else original
    known_names = names if isinstance(names, Mapping) else dict(enumerate(names or ()))
    return str(known_names.get(original, original))


def _whole(
    codes: Codes, embeddings: Array | None, centred: np.ndarray | None, known: np.ndarray, seed: int
) -> Tree | None:
    """Retrieval precision at 5 by all there is: the embeddings, as they are or centred, or all dimensions of the codes.

    Where embeddings differ in length or have few columns the one is far better, elsewhere the other.
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
