"""Every measure of how readable a code is, each beside its chance level and an untrained head.

Measures of one kind come as two dicts, the values and those by chance. `figures` collects them by
kind, for the trained and for an untrained head alike, and adds the verdict.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bayesncl.errors import InputError, printable
from bayesncl.inputs import Array, as_features, as_labels
from bayesncl.measure import coverage, detectors, labelfree, topk
from bayesncl.measure.columns import independence, stability
from bayesncl.measure.dimensions import MIN_SUPPORT, largest_share
from bayesncl.measure.factors import summary as factor_summary
from bayesncl.measure.result import Result, Tree, rounded
from bayesncl.measure.retrieval import draw_queries, retrieval
from bayesncl.measure.topk import KEPT, TOP, strongest_images
from bayesncl.measure.verdict import ALIKE, MIN_IMAGES, NOISE_QUANTILE, judge

QUERIES = 2000  # of retrieval with an untrained head and with full embeddings, at most
REFERENCE_GROUPS = 512  # groups of ten images that set the scale from random to neighbors
SAME_IMAGES = 1 - 1e-5  # mean cosine of identical images, but for rounding
NAME_LENGTH = 40  # of a class in the verdict
MAX_SORTED = 2**21  # firing entries above which F1 and IoU, which sort all, are left out


def figures(
    z: Array, labels: Array | None = None, *,
    label_names: Sequence[str] | Mapping[Any, str] | None = None,
    levels: Mapping[str, Array] | None = None, embeddings: Array | None = None,
    second: bool = False, control: Array | None = None, noise: tuple[Array, Array] | None = None,
    train: tuple[Array, Array] | None = None, again: Array | None = None,
    control_again: Array | None = None, factors: Mapping[str, Array] | None = None,
    swapped: Array | None = None, groups: Array | None = None, ks: Sequence[int] = topk.KS,
    queries: int | None = QUERIES, everything: bool = False, seed: int = 0,
) -> Result:  # fmt: skip
    """All measures of the codes z [N, D] of held-out images, and the verdict on them.

    label_names : names by label, or in the order of integer labels.
    levels : coarser labels [N] by name; a dimension may be readable at any level.
    embeddings : [N, F] of the images; without labels they decide which images are alike.
    second : whether they are a second encoder's, which alone is an unbiased judge.
    control : codes [N, D] of an untrained head.
    noise : codes and embeddings of rows with shuffled columns, by a head fitted to such rows;
        without labels a readable dimension exceeds 95 % of these.
    train : codes and labels of training rows, for the linear and sparse probes.
    again, control_again : codes [N, D] of another seed, trained and untrained.
    factors, swapped : labels [N] by name and codes [N, D], see `factors.summary`.
    groups : [D], the group of each dimension, if they come in groups.
    ks, queries : dimensions kept per image, besides 2 and 5; queries of retrieval (None: all).
    everything : also F1 and IoU of codes in which very many entries fire.
    """
    codes = as_features(z)
    n, width = codes.shape
    ks = sorted({*ks, topk.CLASS_KEPT, KEPT})
    untrained = None if control is None else as_features(control)
    if untrained is not None and untrained.shape != codes.shape:
        shapes = f"{list(codes.shape)} like the codes, got {list(untrained.shape)}"
        raise InputError(f"the control must be {shapes}")
    prepared = None if embeddings is None else labelfree.prepare(embeddings, n)
    noisy = None
    if noise is not None:  # mean cosine of the ten strongest images of each dimension [D]
        noise_embeddings = labelfree.prepare(noise[1], len(noise[0]))
        noisy = labelfree.mean_cosine(strongest_images(noise[0]), noise_embeddings)
    index, names = (None, np.empty(0)) if labels is None else as_labels(labels, n)
    levelled = {name: as_labels(y, n)[0] for name, y in (levels or {}).items()}
    judgeable = n >= MIN_IMAGES and (index is not None or prepared is not None)
    least = least_alike(prepared, noisy, seed) if judgeable and index is None else None

    def count_readable(top: np.ndarray, order: Any) -> int:
        """Number of readable dimensions, with labels and embeddings taken in some order."""
        if index is not None:
            return int(readable(top, [y[order] for y in (index, *levelled.values())]).sum())
        assert prepared is not None
        return int((labelfree.mean_cosine(top, prepared[order]) >= least).sum())

    def measure(
        codes: np.ndarray, queries: int | None, again: Array | None, train: Any = None,
        swapped: Array | None = None,
    ) -> tuple[Tree, Tree]:  # fmt: skip
        """Values and those by chance, by kind of measure."""
        top = strongest_images(codes, labelfree.POOL)
        covered = coverage.summary(codes, seed=seed, top=top)
        both: dict[str, tuple[Any, Any]] = {"coverage": (covered, {})}
        both["independence"] = independence(codes, groups, seed=seed)
        if factors:
            few: Tree = {"swapped": swapped, "queries": min(queries or n, QUERIES), "seed": seed}
            both["factors"] = factor_summary(codes, factors, **few)
        if index is not None:
            options: Tree = {"train": train, "seed": seed}
            both["kept"] = topk.summary(codes, labels, ks=ks, queries=queries, **options)
            levels = {"class": index, **levelled} if levelled else None
            f1 = everything or covered["l0"] * n <= MAX_SORTED
            both["detectors"] = detectors.summary(codes, labels, levels=levels, f1=f1, **options)
        if prepared is not None:
            both["labelfree"] = labelfree.summary(codes, prepared, seed=seed, top=top)
        if judgeable:
            orders = slice(None), np.random.default_rng(seed).permutation(n)
            count, by_luck = (count_readable(top[:, :TOP], order) for order in orders)
            both["readable"] = {"count": count}, {"count": by_luck}
        if again is not None:
            both["seeds"] = stability(codes, again), {}
        values, chance = ({kind: pair[i] for kind, pair in both.items() if pair[i]} for i in (0, 1))
        return values, chance

    values, chance = measure(codes, queries, again, train, swapped)
    beside: Tree = {}
    if untrained is not None:
        beside = measure(untrained, min(queries or QUERIES, QUERIES), control_again)[0]
    if judgeable:
        by = "embeddings" if index is None else " or ".join(["class", *levelled])
        values["readable"] |= {"share": values["readable"]["count"] / width, "by": by}
        if least is not None and noisy is not None:
            values["readable"]["noise"] = int((noisy >= least).sum())
        if index is not None:
            sizes = (int(np.bincount(y).max()) for y in (index, *levelled.values()))
            values["readable"] |= {"largest_class": max(sizes)}
            values["readable"] |= _clearest(codes, index, names, label_names)
    if prepared is not None:
        values["labelfree"]["by"] = "a second encoder" if second else "the embeddings given"
    if index is not None and n > KEPT + 1:
        values["whole"] = _full_precision(codes, embeddings, prepared, index, seed)
    result = Result(**rounded(values), chance=rounded(chance), control=rounded(beside))
    classes = None if index is None else int(index.max()) + 1
    result.verdict = judge(result, n, width, classes)
    return result


def readable(top: np.ndarray, labelings: Sequence[np.ndarray]) -> np.ndarray:
    """Whether 7 of the ten strongest images `top` [D, 10] share a class of any labeling [D]."""
    labels = np.stack(labelings)[:, top]  # [L, D, 10]
    most = (labels[..., None] == labels[..., None, :]).sum(-1).max(-1)
    return (most >= ALIKE).any(0) & (top >= 0).all(1)


def least_alike(embeddings: Any, noise: np.ndarray | None, seed: int) -> float:
    """The mean cosine from which ten images are alike; 95 % of the dimensions of noise are below.

    It is at least halfway from ten random images to an image and its nine nearest neighbors.
    """
    rng = np.random.default_rng(seed)
    n = len(embeddings)
    random = np.stack([rng.choice(n, TOP, replace=False) for _ in range(REFERENCE_GROUPS)])
    chosen = rng.choice(n, min(n, REFERENCE_GROUPS), replace=False)
    cosine = embeddings[chosen] @ embeddings.T
    near = np.argpartition(-cosine, TOP - 1, axis=1)[:, :TOP]
    halfway = sum(labelfree.mean_cosine(rows, embeddings).mean() for rows in (random, near)) / 2
    defined = np.empty(0) if noise is None else noise[~np.isnan(noise)]
    least = max(halfway, np.quantile(defined, NOISE_QUANTILE)) if len(defined) else halfway
    return min(float(least), SAME_IMAGES)


def _clearest(codes: np.ndarray, index: np.ndarray, labels: np.ndarray, names: Any) -> Tree:
    """The dimension whose largest class has the greatest share of its images, and that class."""
    fires = topk.class_counts(topk.keep(codes, topk.CLASS_KEPT), index)
    support, share = largest_share(fires)
    counted = support >= MIN_SUPPORT
    j = int(np.where(counted, share, -1).argmax())
    if not counted.any() or share[j] < topk.ABOUT_ONE_CLASS:
        return {}
    label = labels[fires[:, j].argmax()].item()
    label = int(label) if isinstance(label, float) else label
    named = names if isinstance(names, Mapping) else dict(enumerate(names or ()))
    name = printable(str(named.get(label, label)), NAME_LENGTH)
    return {"clearest": {"dimension": j, "class": name}}


def _full_precision(
    codes: np.ndarray, embeddings: Any, prepared: Any, index: np.ndarray, seed: int
) -> Tree:
    """Precision@5 of the full embeddings, as given or prepared, or of all dimensions of the codes.

    Rows that differ in length do better as given, those with a large common mean or with outlier
    columns do better prepared.
    """
    asked = draw_queries(len(index), QUERIES, seed)
    ways, what = [codes], "all dimensions"
    if embeddings is not None:
        ways, what = [as_features(embeddings), prepared], "the whole embedding"
    return {"p5": max(retrieval(way, index, ks=(5,), queries=asked)[5] for way in ways), "of": what}
