"""How well feature dimensions line up with classes, in the published definition and a sound one.

`paper` follows the published evaluation to the letter: three different sets of active dimensions,
no minimum support, entropy terms with p <= 1e-5 dropped. `sound` normalizes rows, lets a dimension
fire where |z| > 1e-5, and counts dimensions that fire on at least ten images. docs/measures.md
defines every key and works through an example.
"""

from collections.abc import Sequence

import numpy as np
import torch

from bayesncl.device import find_device
from bayesncl.errors import InputError
from bayesncl.inputs import Array, as_features, as_labels
from bayesncl.measure import dimensions as dims
from bayesncl.measure.dimensions import MIN_SUPPORT, Counts, Labelings, count, entropy, mean
from bayesncl.measure.rows import as_tensor, blocks, unit_codes
from bayesncl.method.losses import ACTIVE

DEFINITIONS = ("paper", "sound")
THRESHOLDS = (ACTIVE, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)  # of the sparsity curve
MATCHED = (10, 5, 2)  # mean active dimensions per image at which consistency is compared
MATCHED_TOLERANCE = 0.05  # relative; ties can make an exact match impossible
MAX_SPECTRUM_DIMS = 8192  # above, effective rank and orthogonality take too long: D^3 operations

Value = float | None
Values = dict[str, Value]


def at_threshold(name: str, threshold: float) -> str:
    """Key of a measure at a threshold other than ACTIVE, such as `l0_at_0.2`."""
    return f"{name}_at_{threshold:g}"


def at_l0(active: int) -> str:
    """Key of the consistency at this many active dimensions, such as `consistency_at_l0_5`."""
    return f"consistency_at_l0_{active}"


def interpretability(
    features: Array, labels: Array, definition: str = "sound", *, min_support: int = MIN_SUPPORT,
    spectrum: bool = False,
) -> Values:  # fmt: skip
    """Score the dimensions of features against class labels.

    Parameters
    ----------
    features : [N, D] numpy or torch, float16 to float64, in memory or memory-mapped.
    labels : [N] integers, integer-valued floats or strings; at least two classes.
    definition : ``sound``, or ``paper`` for the published one.
    min_support : images a dimension must fire on to count; ``sound`` only.
    spectrum : also compute `effective_rank` and `orthogonality`, which take longer than the rest.

    Returns
    -------
    dict of floats; None where a value does not exist (no dimension counts, no threshold gives the
    sparsity) or was not asked for. Both definitions: `consistency` (percent), `entropy_sum`,
    `entropy_mean`, `entropy_freq` (nats), `activation_ratio`, `sparsity`, `effective_rank`,
    `orthogonality`. ``sound`` also: `consistency_mass`, `dead_share`, `near_dead_share`, `l0`,
    `detector_ap`, `classes_owned`; `consistency_at_T`, `l0_at_T`, `classes_owned_at_T` for T in
    0.05, 0.1, ... 0.5; `consistency_at_l0_10`, `_5`, `_2`.

    Examples
    --------
    >>> z = [[1, 0], [1, 0], [0, 1], [0.6, 0.8]]
    >>> round(interpretability(z, [0, 0, 1, 1], "paper")["consistency"], 2)
    83.33
    """
    features = as_features(features)
    index, _ = as_labels(labels, len(features))
    return score(features, [index], definition, min_support=min_support, spectrum=spectrum)[0]


def score(
    features: np.ndarray, labelings: Labelings, definition: str = "sound", *,
    min_support: int = MIN_SUPPORT, spectrum: bool = False,
) -> list[Values]:  # fmt: skip
    """The values of `interpretability` for each labeling (int64 0..C-1)."""
    if min_support < 1:
        raise InputError(f"min_support must be at least 1, got {min_support}")
    if definition not in DEFINITIONS:
        raise InputError(f"definition must be paper or sound, got {definition!r}")
    unit = unit_codes(features)
    if definition == "paper":
        both = count(unit, labelings), count(features, labelings, floor=0.0)
        results = [_paper_means(*counts) for counts in zip(*both)]
    else:
        cuts = _matching_cuts(unit)
        counts = count(unit, labelings, (*THRESHOLDS, *cuts.values()))
        precision = dims.detector_precision(unit, labelings, counts)
        results = [_sound_means(*of, list(cuts), min_support) for of in zip(counts, precision)]
    rank: Values = {"effective_rank": None, "orthogonality": None}
    if spectrum and features.shape[1] <= MAX_SPECTRUM_DIMS:
        rank |= _spectrum(features if definition == "paper" else unit, definition)
    return [result | rank for result in results]


def shuffle_labels(labels: np.ndarray, seed: int = 0) -> np.ndarray:
    """The labels in an order that depends on the seed and their number alone."""
    return np.random.default_rng(seed).permutation(labels)


def gram(features: np.ndarray) -> np.ndarray:
    """F^T F [D, D] in float64: its eigenvalues are squares of the singular values."""
    width, device = features.shape[1], find_device()
    product = torch.zeros(width, width, dtype=torch.float64, device=device)
    for _, block in blocks(features):
        rows = block.to(device).double()
        product.addmm_(rows.T, rows)
    return product.cpu().numpy()


def _spectrum(features: np.ndarray, definition: str) -> Values:
    """Effective rank and orthogonality of features [N, D], at unit length for ``sound``.

    With p the singular values over their sum and c_jk the cosine of columns j and k:
    ``sound`` exp(-sum p log p), and the mean |c_jk| over pairs of columns that are not zero;
    ``paper`` -sum p log(p + 1e-6), an entropy, and the mean over all D^2 entries of
    |c - I| / (D (D - 1)), which divides twice.
    """
    product = gram(features)
    norm = np.sqrt(np.diag(product))
    live = norm > 0
    if not live.any():
        return {}
    product = product[np.ix_(live, live)]
    cosine = np.abs(product / norm[live, None] / norm[live])
    cosines = float(cosine.sum() - np.trace(cosine))
    # torch's: numpy's threads spin while they wait, which beside other work takes ten times as long
    values = torch.linalg.eigvalsh(torch.from_numpy(product).to(find_device())).cpu().numpy()
    rounding = values[-1] * len(product) * np.finfo(np.float64).eps
    singular = np.sqrt(values[values > rounding])
    p = singular / singular.sum()
    if definition == "sound":
        rank, pairs = np.exp(-(p * np.log(p)).sum()), len(product) * (len(product) - 1)
    else:  # a zero column adds |0 - 1| on the diagonal
        width = features.shape[1]
        rank, pairs = -(p * np.log(p + 1e-6)).sum(), width * (width - 1) * width**2
        cosines += width - len(product)
    return {"effective_rank": float(rank), "orthogonality": cosines / pairs if pairs else None}


def _paper_means(unit: Counts, raw: Counts) -> Values:
    """Consistency is counted on unit-length rows, all else on the features as given."""
    fires, total = raw.fires[0], raw.mass.sum(0)
    means = raw.mass / (raw.sizes[:, None] + ACTIVE)
    kept = total > ACTIVE
    return {
        "consistency": mean(dims.largest_share(unit.fires[0])[1]),
        "entropy_sum": mean(entropy(raw.mass, ACTIVE)[kept]),
        "entropy_mean": mean(entropy(means, ACTIVE)[kept & (means.sum(0) >= ACTIVE)]),
        "entropy_freq": mean(entropy(fires, ACTIVE)[kept]),
        "activation_ratio": float((total > 0).mean()),
        "sparsity": float(1 - fires.sum() / (raw.sizes.sum() * len(total))),
    }


def _sound_means(
    counts: Counts, ap: np.ndarray, matched: Sequence[int], min_support: int
) -> Values:
    """`counts` at THRESHOLDS, then at those that leave each number of `matched` dimensions."""
    fires, sizes, mass = counts.fires[0], counts.sizes, counts.mass.sum(0)
    support, columns = fires.sum(0), dims.purity(fires, counts.mass, sizes)
    live, kept = support > 0, support >= min_support
    share, l0 = columns["consistency"], float(support.sum() / sizes.sum())
    result = {key: mean(column[kept]) for key, column in columns.items()} | {
        "activation_ratio": float(live.mean()),
        "sparsity": 1 - l0 / len(support),
        "consistency_mass": float((share * mass)[live].sum() / mass.sum()) if live.any() else None,
        "dead_share": float((~live).mean()),
        "near_dead_share": float((live & ~kept).mean()),
        "l0": l0,
        "detector_ap": mean(ap[live]),
        "classes_owned": dims.owned_classes(fires, sizes, min_support),
    }
    for t, fires in zip(THRESHOLDS[1:], counts.fires[1:]):
        result[at_threshold("consistency", t)] = dims.consistency(fires, min_support)
        result[at_threshold("l0", t)] = float(fires.sum() / sizes.sum())
        result[at_threshold("classes_owned", t)] = dims.owned_classes(fires, sizes, min_support)
    result |= {at_l0(wanted): None for wanted in MATCHED}
    for wanted, fires in zip(matched, counts.fires[len(THRESHOLDS) :]):
        if abs(fires.sum() / sizes.sum() - wanted) <= MATCHED_TOLERANCE * wanted:
            result[at_l0(wanted)] = dims.consistency(fires, min_support)
    return result


def _matching_cuts(unit: np.ndarray) -> dict[int, float]:
    """By L0 the threshold that leaves as many active dimensions per image on average."""
    n = unit.shape[0]
    every = as_tensor(unit).abs()
    size = every[every > ACTIVE].numpy()
    rest = {l0: len(size) - l0 * n for l0 in MATCHED}  # entries up to the cut, unless it has equals
    return {
        l0: float(np.partition(size, many - 1)[many - 1]) if many else ACTIVE
        for l0, many in rest.items() if many >= 0
    }  # fmt: skip
