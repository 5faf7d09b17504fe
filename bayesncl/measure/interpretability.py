"""How well feature dimensions line up with classes, in the published definition and in a sound one.

`paper` follows the published evaluation to the letter: three different sets of active dimensions, no least support,
entropy terms with p <= 1e-5 dropped. `sound` makes rows unit length, lets a dimension fire where |z| > 1e-5, and counts
dimensions that fire on at least ten images. docs/measures.md defines every key and works an example out by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from ..arrays import Array, as_features, as_labels
from ..errors import InputError
from ..objective import ACTIVE
from .counts import MIN_SUPPORT, Counts, Labellings, Progress, count, gram, place
from .dimensions import (
    consistency,
    describe,
    detector_precision,
    entropy,
    from_counts,
    largest_share,
    mean,
    owned_classes,
)

DEFINITIONS = ("paper", "sound")
CURVE = (ACTIVE, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)  # thresholds of the sparsity curve; the first is the plain definition
MATCHED = (10, 5, 2)  # mean active dimensions per image at which consistency is compared
MATCHED_SLACK = 0.05  # a threshold matches if the mean comes this close, relatively; ties can make that impossible

SPECTRUM_DIMS = 8192  # above, effective rank and orthogonality are left out: D^3 operations, D^2 memory

Value = float | None
UNKNOWN: dict[str, dict[str, Value]] = {name: {"effective_rank": None, "orthogonality": None} for name in DEFINITIONS}


def at(name: str, threshold: float) -> str:
    """Key of a measure at a threshold other than ACTIVE, such as `l0_at_0.2`."""
    return f"{name}_at_{threshold:g}"


def at_l0(active: int) -> str:
    """Key of the consistency with so many active dimensions per image, such as `consistency_at_l0_5`."""
    return f"consistency_at_l0_{active}"


def interpretability(
    features: Array,
    labels: Array,
    definition: str = "sound",
    *,
    min_support: int = MIN_SUPPORT,
    spectrum: bool = True,
) -> dict[str, Value]:
    """Score the dimensions of features against class labels.

    Parameters
    ----------
    features : [N, D] numpy or torch, float16 to float64, in memory or mapped from disk.
    labels : [N] integers, integer-valued floats or strings; at least two classes.
    definition : ``sound``, or ``paper`` for the published one.
    min_support : images a dimension must fire on to count; ``sound`` only.
    spectrum : whether to compute `effective_rank` and `orthogonality`, which take longer than all the rest together.

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
    return evaluate(features, [index], (definition,), min_support=min_support, spectrum=spectrum)[0][definition]


def evaluate(
    features: np.ndarray, labellings: Labellings, definitions: Iterable[str] = DEFINITIONS, *,
    min_support: int = MIN_SUPPORT, spectrum: bool = True, progress: Progress | None = None,
) -> list[dict[str, dict[str, Value]]]:  # fmt: skip
    """Several definitions for several labellings (int64 0..C-1) of the same rows, sharing the passes over them.

    Returns for each labelling the dict of `interpretability` by definition.
    """
    definitions = tuple(definitions)
    for definition in definitions:
        if definition not in DEFINITIONS:
            raise InputError(f"definition must be paper or sound, got {definition!r}")
    if min_support < 1:
        raise InputError(f"min_support must be 1 or more images, got {min_support}")
    sound, paper = "sound" in definitions, "paper" in definitions
    n = len(features)
    thresholds = CURVE if sound else (ACTIVE,)
    wanted = max(MATCHED) * n + 1 if sound else 0
    counts = count(features, labellings, thresholds, raw=paper, mass=sound, largest=wanted, progress=progress)
    results: list[dict[str, dict[str, Value]]] = [{} for _ in labellings]
    wide = features.shape[1] > SPECTRUM_DIMS or not spectrum
    shared = paper and counts[0].unit  # rows of unit length as given: one product serves both
    spectra = dict.fromkeys(DEFINITIONS, UNKNOWN)
    for name in () if wide else definitions:
        if name == "paper" or not shared:
            spectra[name] = spectrum_of(gram(features, normalise=name == "sound", progress=progress))
    if paper:
        for result, counted in zip(results, counts):
            result["paper"] = _paper_means(counted) | spectra["paper"]["paper"]
    if sound:
        rank = spectra["paper" if shared else "sound"]["sound"]
        precision = detector_precision(features, labellings, counts, progress=progress)
        matched = _matched(features, labellings, counts, min_support, progress)
        for result, counted, ap, thinned in zip(results, counts, precision, matched):
            result["sound"] = _sound_means(counted, ap, min_support) | thinned | rank
    return results


def consistency_by_support(
    features: Array, labels: Array, supports: Iterable[int] = range(1, 101)
) -> dict[str, np.ndarray]:
    """Consistency (percent) over the dimensions that fire on at least s images, for each s.

    Returns `support` s, `consistency` (NaN where no dimension is left), `dimensions` (how many are left).
    """
    features = as_features(features)
    table = describe(features, as_labels(labels, len(features))[0])
    assert table.consistency is not None
    least = np.array(list(supports))
    kept = [table.consistency[table.support >= max(s, 1)] for s in least]
    return {
        "support": least,
        "consistency": np.array([share.mean() if len(share) else np.nan for share in kept]),
        "dimensions": np.array([len(share) for share in kept]),
    }


def shuffled(labels: np.ndarray, seed: int = 0) -> np.ndarray:
    """The labels in an order that depends on the seed and their number alone."""
    return np.random.default_rng(seed).permutation(labels)


def spectrum_of(product: np.ndarray) -> dict[str, dict[str, Value]]:
    """Effective rank and orthogonality by definition, from F^T F [D, D].

    With s the singular values, p = s / sum s, and c_jk the cosine between columns j and k:
    ``sound`` exp(-sum p log p), and the mean of |c_jk| over pairs of distinct columns that are not zero;
    ``paper`` -sum p log(p + 1e-6), an entropy, and the mean over all D^2 entries of |c - I| / (D (D - 1)): divided
    twice.
    """
    if not product.any():  # all zero, or so small that squares are
        return UNKNOWN
    dims = len(product)
    norm = np.sqrt(np.diag(product))
    live = norm > 0
    product = product[np.ix_(live, live)]
    cosines = np.abs(product / norm[live, None] / norm[live])
    distinct = cosines.sum() - np.trace(cosines)
    # not numpy's, whose threads spin while they wait: beside other work it takes ten times as long
    eigenvalues = torch.linalg.eigvalsh(torch.from_numpy(product).to(place())).cpu().numpy()
    floor = eigenvalues[-1] * len(product) * np.finfo(np.float64).eps  # what rounding makes of a zero
    singular = np.sqrt(eigenvalues[eigenvalues > floor])
    p = singular / singular.sum()
    zero_columns = dims - len(product)  # |0 - 1| on the diagonal
    pairs, live_pairs = dims * (dims - 1), len(product) * (len(product) - 1)
    return {
        "paper": {
            "effective_rank": float(-(p * np.log(p + 1e-6)).sum()),
            "orthogonality": float((distinct + zero_columns) / pairs / dims**2) if pairs else None,
        },
        "sound": {
            "effective_rank": float(np.exp(-(p * np.log(p)).sum())),
            "orthogonality": float(distinct / live_pairs) if live_pairs else None,
        },
    }


def _paper_means(counts: Counts) -> dict[str, Value]:
    mass = counts.raw_mass
    _, share = largest_share(counts.fires[0])  # of rows made unit length again, unlike what follows
    total = mass.sum(0)
    means = mass / (counts.sizes[:, None] + ACTIVE)
    kept = total > ACTIVE
    return {
        "consistency": mean(share),
        "entropy_sum": mean(entropy(mass, ACTIVE)[kept]),
        "entropy_mean": mean(entropy(means, ACTIVE)[kept & (means.sum(0) >= ACTIVE)]),
        "entropy_freq": mean(entropy(counts.raw_fires, ACTIVE)[kept]),
        "activation_ratio": float((total > 0).mean()),
        "sparsity": float(1 - counts.raw_fires.sum() / (counts.rows * len(total))),
    }


def _sound_means(counts: Counts, ap: np.ndarray, min_support: int) -> dict[str, Value]:
    table = from_counts(counts)
    support, dead = table.support, table.dead
    kept = support >= max(min_support, 1)
    names = ("consistency", "entropy_sum", "entropy_mean", "entropy_freq")
    result = {name: mean(getattr(table, name)[kept]) for name in names}
    assert table.consistency is not None
    share, mass = table.consistency[~dead], table.mass[~dead]
    result |= {
        "activation_ratio": float(1 - dead.mean()),
        "sparsity": 1 - table.l0 / len(support),
        "consistency_mass": float((share * mass).sum() / mass.sum()) if len(mass) else None,
        "dead_share": float(dead.mean()),
        "near_dead_share": float(((support > 0) & (support < min_support)).mean()),
        "l0": table.l0,
        "detector_ap": mean(ap[~dead]),
        "classes_owned": owned_classes(counts.fires[0], counts.sizes, min_support),
    }
    for threshold, fires in zip(counts.thresholds[1:], counts.fires[1:]):
        result[at("consistency", threshold)] = consistency(fires, min_support)
        result[at("l0", threshold)] = float(fires.sum() / counts.rows)
        result[at("classes_owned", threshold)] = owned_classes(fires, counts.sizes, min_support)
    return result


def _matched(
    features: np.ndarray, labellings: Labellings, counts: Sequence[Counts], min_support: int, progress: Progress | None
) -> list[dict[str, Value]]:
    """Consistency with one threshold for all entries, so chosen that an image has L0 active dimensions on average."""
    n, largest = len(features), counts[0].largest
    cuts: dict[int, float] = {}
    for l0 in MATCHED:  # exactly L0 N entries exceed the next largest, unless it has equals
        if len(largest) > l0 * n:
            cuts[l0] = float(largest[l0 * n])
        elif len(largest) == l0 * n:
            cuts[l0] = ACTIVE
    results: list[dict[str, Value]] = [{at_l0(l0): None for l0 in MATCHED} for _ in labellings]
    if cuts:
        what = "matching sparsity"
        second = count(features, labellings, list(cuts.values()), what=what, progress=progress)
        for result, counted in zip(results, second):
            for l0, fires in zip(cuts, counted.fires):
                if abs(fires.sum() / n - l0) <= MATCHED_SLACK * l0:
                    result[at_l0(l0)] = consistency(fires, min_support)
    return results
