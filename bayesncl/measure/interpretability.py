"""How well feature dimensions line up with classes, in the published definition and in a sound one.

`paper` follows the published evaluation to the letter: three different sets of active dimensions, no least support,
entropy terms with p <= 1e-5 dropped. `sound` makes rows unit length, lets a dimension fire where |z| > 1e-5, and counts
dimensions that fire on at least ten images. docs/measures.md defines every key and works an example out by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..errors import InputError
from .arrays import Array, as_features, as_labels
from .counts import EPSILON, Counts, Progress, average_precision, count, gram

DEFINITIONS = ("paper", "sound")
MIN_SUPPORT = 10  # images a dimension must fire on to count
CURVE = (EPSILON, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)  # thresholds of the sparsity curve; the first is the plain definition
MATCHED = (10, 5, 2)  # mean active dimensions per image at which consistency is compared
MATCHED_SLACK = 0.05  # a threshold matches if the mean comes this close, relatively; ties can make that impossible
OWNED = (0.5, 0.1)  # precision and recall from which a class owns a dimension
SPECTRUM_DIMS = 8192  # above, effective rank and orthogonality are left out: D^3 operations, D^2 memory

Value = float | None
LABEL_FREE = ("activation_ratio", "sparsity", "effective_rank", "orthogonality", "dead_share", "near_dead_share", "l0")


def interpretability(
    features: Array,
    labels: Array,
    definition: str = "sound",
    *,
    min_support: int = MIN_SUPPORT,
    progress: Progress | None = None,
) -> dict[str, Value]:
    """Score the dimensions of features against class labels.

    Parameters
    ----------
    features : [N, D] numpy or torch, float16 to float64, in memory or mapped from disk.
    labels : [N] integers, integer-valued floats or strings; at least two classes.
    definition : ``sound``, or ``paper`` for the published one.
    min_support : images a dimension must fire on to count; ``sound`` only.
    progress : called with (done, total, what).

    Returns
    -------
    dict of floats; None where a value does not exist (no dimension counts, no threshold gives the wanted sparsity).
    Both: `consistency` (percent), `entropy_sum`, `entropy_mean`, `entropy_freq` (nats), `activation_ratio`, `sparsity`,
    `effective_rank`, `orthogonality`. ``sound`` also: `consistency_mass`, `dead_share`, `near_dead_share`, `l0`,
    `detector_ap`, `classes_owned`; `consistency_at_T`, `l0_at_T`, `classes_owned_at_T` for T in 0.05, 0.1, ... 0.5;
    `consistency_at_l0_10`, `_5`, `_2`.

    Examples
    --------
    >>> z = [[1, 0], [1, 0], [0, 1], [0.6, 0.8]]
    >>> round(interpretability(z, [0, 0, 1, 1], "paper")["consistency"], 2)
    83.33
    """
    features = as_features(features)
    index, _ = as_labels(labels, len(features))
    return evaluate(features, [index], (definition,), min_support=min_support, progress=progress)[0][definition]


def evaluate(
    features: np.ndarray,
    labellings: Sequence[np.ndarray],
    definitions: Iterable[str] = DEFINITIONS,
    *,
    min_support: int = MIN_SUPPORT,
    progress: Progress | None = None,
) -> list[dict[str, dict[str, Value]]]:
    """Several definitions for several labellings (int64 0..C-1) of the same rows, sharing the passes over them.

    Returns
    -------
    For each labelling, the dict of `interpretability` by definition.
    """
    definitions = tuple(_checked(definition) for definition in definitions)
    if min_support < 1:
        raise InputError(f"min_support must be 1 or more images, got {min_support}")
    sound, paper = "sound" in definitions, "paper" in definitions
    n = len(features)
    thresholds = CURVE if sound else (EPSILON,)
    wanted = max(MATCHED) * n + 1 if sound else 0
    counts = count(features, labellings, thresholds, raw=paper, mass=sound, largest=wanted, progress=progress)
    results: list[dict[str, dict[str, Value]]] = [{} for _ in labellings]
    product = None
    if paper:
        product = _gram(features, normalise=False, progress=progress)
        rank = spectrum(product, "paper")
        for result, counted in zip(results, counts):
            result["paper"] = _paper_means(counted) | rank
    if sound:
        if product is None or not counts[0].unit:
            product = _gram(features, normalise=True, progress=progress)
        rank = spectrum(product, "sound")
        precision = _detectors(features, labellings, counts, progress)
        matched = _matched(features, labellings, counts, min_support, progress)
        for result, counted, ap, at_l0 in zip(results, counts, precision, matched):
            result["sound"] = _sound_means(counted, ap, min_support) | at_l0 | rank
    return results


def per_dimension(
    features: Array, labels: Array, definition: str = "sound", *, progress: Progress | None = None
) -> dict[str, np.ndarray]:
    """The values behind the means, an entry per dimension; NaN where there is none, as for one that never fires.

    Returns
    -------
    dict of arrays [D]. Both: `support` (images it fires on), `mass` (sum of |z|), `consistency` (percent),
    `entropy_sum`, `entropy_mean`, `entropy_freq`, `best_class` (the most frequent class where it fires, as an index
    into the sorted distinct labels; -1 if it never fires). ``paper`` also `active`. ``sound`` also `dead`, `near_dead`,
    `precision` and `recall` (of the best class, shares), `detected_class` (highest mean activation) and `ap` (average
    precision for it).
    """
    features = as_features(features)
    index, _ = as_labels(labels, len(features))
    paper = _checked(definition) == "paper"
    counts = count(features, [index], raw=paper, mass=not paper, progress=progress)
    if paper:
        return _paper_columns(counts[0])
    columns = _sound_columns(counts[0])
    ap = _detectors(features, [index], counts, progress)[0]
    return columns | {"ap": np.where(columns["dead"], np.nan, ap)}


def consistency_by_support(
    features: Array, labels: Array, supports: Iterable[int] = range(1, 101), *, progress: Progress | None = None
) -> dict[str, np.ndarray]:
    """Consistency (percent) over the dimensions that fire on at least s images, for each s.

    Returns
    -------
    `support` s, `consistency` (NaN where no dimension is left), `dimensions` (how many are left).
    """
    columns = per_dimension(features, labels, "paper", progress=progress)
    least = np.array(list(supports))
    kept = [columns["consistency"][columns["support"] >= max(s, 1)] for s in least]
    return {
        "support": least,
        "consistency": np.array([_nan_mean(share) for share in kept]),
        "dimensions": np.array([len(share) for share in kept]),
    }


def chance(measure: Callable[[np.ndarray], Any], labels: Array, seed: int = 0) -> Any:
    """What a measure gives by chance: its value with the labels shuffled.

    Examples
    --------
    >>> chance(lambda y: interpretability(z, y), labels)  # doctest: +SKIP
    """
    return measure(shuffled(np.asarray(labels), seed))


def shuffled(labels: np.ndarray, seed: int = 0) -> np.ndarray:
    """The labels in an order that depends on the seed and their number alone."""
    return np.random.default_rng(seed).permutation(labels)


def _gram(features: np.ndarray, *, normalise: bool, progress: Progress | None) -> np.ndarray | None:
    return gram(features, normalise=normalise, progress=progress) if features.shape[1] <= SPECTRUM_DIMS else None


def spectrum(product: np.ndarray | None, definition: str) -> dict[str, Value]:
    """Effective rank and orthogonality, from F^T F [D, D].

    With s the singular values, p = s / sum s, and c_jk the cosine between columns j and k:
    ``sound`` exp(-sum p log p), and the mean of |c_jk| over pairs of distinct columns that are not zero;
    ``paper`` -sum p log(p + 1e-6), an entropy, and the mean over all D^2 entries of |c - I| / (D (D - 1)): divided
    twice.
    """
    if product is None or not product.any():  # all zero, or so small that squares are
        return {"effective_rank": None, "orthogonality": None}
    dims = len(product)
    norm = np.sqrt(np.diag(product))
    live = norm > 0
    product = product[np.ix_(live, live)]
    cosines = np.abs(product / norm[live, None] / norm[live])
    distinct = cosines.sum() - np.trace(cosines)
    eigenvalues = np.linalg.eigvalsh(product)
    floor = eigenvalues[-1] * len(product) * np.finfo(np.float64).eps  # what rounding makes of a zero
    singular = np.sqrt(eigenvalues[eigenvalues > floor])
    p = singular / singular.sum()
    if definition == "paper":
        zero_columns = dims - len(product)  # |0 - 1| on the diagonal
        pairs = dims * (dims - 1)
        return {
            "effective_rank": float(-(p * np.log(p + 1e-6)).sum()),
            "orthogonality": float((distinct + zero_columns) / pairs / dims**2) if pairs else None,
        }
    pairs = len(product) * (len(product) - 1)
    return {
        "effective_rank": float(np.exp(-(p * np.log(p)).sum())),
        "orthogonality": float(distinct / pairs) if pairs else None,
    }


def entropy(weights: np.ndarray, floor: float = 0.0) -> np.ndarray:
    """-sum_c p log p of each column of weights [C, D], p = weights / their sum; terms with p <= floor are dropped."""
    total = weights.sum(0)
    p = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    terms = p * np.log(p, out=np.zeros_like(p), where=p > floor)
    return np.asarray(np.where(total > 0, -terms.sum(0), np.nan))


def _checked(definition: str) -> str:
    if definition not in DEFINITIONS:
        raise InputError(f"definition must be paper or sound, got {definition!r}")
    return definition


def _nan_mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _mean(values: np.ndarray) -> Value:
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else None


def _share(fires: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Support [D] and, in percent, the share of the most frequent class among the images a dimension fires on [D]."""
    support = fires.sum(0)
    return support, 100 * np.divide(fires.max(0), support, out=np.full_like(support, np.nan), where=support > 0)


def _paper_columns(counts: Counts) -> dict[str, np.ndarray]:
    fires, mass = counts.fires[0], counts.raw_mass
    support, share = _share(fires)  # of rows made unit length again, unlike what follows
    total = mass.sum(0)
    means = mass / (counts.sizes[:, None] + EPSILON)
    kept = total > EPSILON
    return {
        "support": support,
        "mass": total,
        "active": total > 0,
        "best_class": np.where(support > 0, fires.argmax(0), -1),
        "consistency": share,
        "entropy_sum": np.where(kept, entropy(mass, EPSILON), np.nan),
        "entropy_mean": np.where(kept & (means.sum(0) >= EPSILON), entropy(means, EPSILON), np.nan),
        "entropy_freq": np.where(kept, entropy(counts.raw_fires, EPSILON), np.nan),
    }


def _paper_means(counts: Counts) -> dict[str, Value]:
    columns = _paper_columns(counts)
    names = ("consistency", "entropy_sum", "entropy_mean", "entropy_freq")
    entries = counts.rows * len(columns["support"])
    return {name: _mean(columns[name]) for name in names} | {
        "activation_ratio": float(columns["active"].mean()),
        "sparsity": float(1 - counts.raw_fires.sum() / entries),
    }


def _sound_columns(counts: Counts) -> dict[str, np.ndarray]:
    fires, mass, sizes = counts.fires[0], counts.mass, counts.sizes
    support, share = _share(fires)
    total = mass.sum(0)
    # equally frequent classes: the one with more activation mass, and of equals the first
    tied = fires == fires.max(0)
    best = np.where(tied, mass, -1.0).argmax(0)
    dead = support == 0
    means = mass / sizes[:, None]
    return {
        "support": support,
        "mass": total,
        "dead": dead,
        "near_dead": (support > 0) & (support < MIN_SUPPORT),
        "best_class": np.where(dead, -1, best),
        "consistency": share,
        "precision": share / 100,
        "recall": np.where(dead, np.nan, fires.max(0) / sizes[best]),
        "detected_class": np.where(dead, -1, means.argmax(0)),
        "entropy_sum": entropy(mass),
        "entropy_mean": entropy(means),
        "entropy_freq": entropy(fires),
    }


def _sound_means(counts: Counts, ap: np.ndarray, min_support: int) -> dict[str, Value]:
    columns = _sound_columns(counts)
    support, dead = columns["support"], columns["dead"]
    kept = support >= max(min_support, 1)
    names = ("consistency", "entropy_sum", "entropy_mean", "entropy_freq")
    result = {name: _mean(columns[name][kept]) for name in names}
    share, mass = columns["consistency"][~dead], columns["mass"][~dead]
    l0 = float(support.sum() / counts.rows)
    result |= {
        "activation_ratio": float(1 - dead.mean()),
        "sparsity": 1 - l0 / len(support),
        "consistency_mass": float((share * mass).sum() / mass.sum()) if len(mass) else None,
        "dead_share": float(dead.mean()),
        "near_dead_share": float(((support > 0) & (support < min_support)).mean()),
        "l0": l0,
        "detector_ap": _mean(ap[~dead]),
        "classes_owned": _owned(counts.fires[0], counts.sizes, min_support),
    }
    for threshold, fires in zip(counts.thresholds[1:], counts.fires[1:]):
        result[f"consistency_at_{threshold:g}"] = _consistency(fires, min_support)
        result[f"l0_at_{threshold:g}"] = float(fires.sum() / counts.rows)
        result[f"classes_owned_at_{threshold:g}"] = _owned(fires, counts.sizes, min_support)
    return result


def _consistency(fires: np.ndarray, min_support: int) -> Value:
    support, share = _share(fires)
    return _mean(share[support >= max(min_support, 1)])


def _owned(fires: np.ndarray, sizes: np.ndarray, min_support: int) -> float:
    """Number of classes with a dimension of enough precision and recall for them."""
    support = fires.sum(0)
    precise = fires >= OWNED[0] * support
    found = fires >= OWNED[1] * sizes[:, None]
    return float((precise & found & (support >= max(min_support, 1))).any(1).sum())


def _detectors(
    features: np.ndarray, labellings: Sequence[np.ndarray], counts: Sequence[Counts], progress: Progress | None
) -> list[np.ndarray]:
    """Average precision of each dimension for the class on which its mean activation is highest."""
    detected = [(counted.mass / counted.sizes[:, None]).argmax(0) for counted in counts]
    return average_precision(features, labellings, detected, int(counts[0].fires[0].sum()), progress=progress)


def _matched(
    features: np.ndarray,
    labellings: Sequence[np.ndarray],
    counts: Sequence[Counts],
    min_support: int,
    progress: Progress | None,
) -> list[dict[str, Value]]:
    """Consistency with one threshold for all entries, so chosen that an image has L0 active dimensions on average."""
    n, largest = len(features), counts[0].largest
    cuts: dict[int, float] = {}
    for l0 in MATCHED:  # exactly L0 N entries exceed the next largest, unless it has equals
        if len(largest) > l0 * n:
            cuts[l0] = float(largest[l0 * n])
        elif len(largest) == l0 * n:
            cuts[l0] = EPSILON
    results: list[dict[str, Value]] = [{f"consistency_at_l0_{l0}": None for l0 in MATCHED} for _ in labellings]
    if cuts:
        what = "matching sparsity"
        second = count(features, labellings, list(cuts.values()), what=what, progress=progress)
        for result, counted in zip(results, second):
            for l0, fires in zip(cuts, counted.fires):
                if abs(fires.sum() / n - l0) <= MATCHED_SLACK * l0:
                    result[f"consistency_at_l0_{l0}"] = _consistency(fires, min_support)
    return results
