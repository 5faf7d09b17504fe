"""The paper's theory on a trained model: what each statement predicts beside what is observed.

z are the features before the gates, m the gates, z m the gated features before they are brought to unit length again;
pi_k is the prevalence of dimension k, the share of images on which z_k fires; rho the prior and lambda the weight of
the KL.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..arrays import Array, as_features
from ..errors import InputError
from ..gates import bernoulli_kl
from .conflict import conflict, pair_similarity, prepare, rows
from .counts import count
from .dimensions import describe, entropy, mean
from .retrieval import KS, retrieval

NOISE = 0.5  # prevalence from which a dimension counts as common (the theory's background noise set)
CLOSED = 0.5  # a dimension is closed where its gate is open on less than this share of the images it fires on
CLOSE = 0.25  # "approximately": observed within a quarter of predicted
SHUFFLES = 200

Row = dict[str, Any]


def prevalence(features: Array) -> np.ndarray:
    """pi [D], the share of images on which each dimension fires."""
    z = as_features(features)
    return count(z, [np.zeros(len(z), np.int64)], raw=True)[0].raw_fires[0] / len(z)


def spearman(a: np.ndarray, b: np.ndarray) -> float | None:
    """Rank correlation over the entries finite in both, ties at their average rank; None where a side is constant."""
    a, b = (side[np.isfinite(a) & np.isfinite(b)] for side in (a, b))
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Rank of each value from 1, equals at their mean rank; scipy.stats has it, but takes a second to import."""
    _, which, many = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(many) - (many - 1) / 2)[which]


def ipw_effect(
    features: Array, labels: Array, backgrounds: Array, pi: np.ndarray | None = None, ks: Sequence[int] = KS
) -> dict[str, Any]:
    """`retrieval` and `conflict` by the dot product (`dot`) and by the inverse-prevalence weighted similarity (`ipw`).

    The weights change the scale of the similarity, so conflicts compare by `error_relative` alone. Without `pi`, the
    prevalence [D], that of the features is taken; pass the training split's to be strict. A dimension that never fires
    weighs nothing.
    """
    pi = prevalence(features) if pi is None else pi
    kinds = {"dot": None, "ipw": np.divide(1.0, pi, out=np.zeros_like(pi), where=pi > 0)}
    errors = {name: conflict(features, labels, backgrounds, w) for name, w in kinds.items()}
    wanted = ("error", "error_relative", "chance_error", "similarity_same_class")
    return {
        "retrieval": {name: retrieval(features, labels, ks=tuple(ks), weights=w) for name, w in kinds.items()},
        "conflict": {name: {key: error[key] for key in wanted} for name, error in errors.items()},
    }


def gate_costs(prior: float) -> dict[str, float]:
    """KL of a gate to the prior, nats: `open`, `closed`, `net` (opening instead of closing), `net_clamped` as trained.

    The paper charges an open gate KL(Bern(1) || Bern(rho)) = log(1/rho) and a closed one nothing. A closed gate costs
    log(1/(1 - rho)), so opening costs log((1 - rho)/rho) more than closing: with rho > 0.5, less than nothing.
    """
    if not 0 < prior < 1:
        raise InputError(f"the prior must lie between 0 and 1, got {prior}")
    opened, closed = -math.log(prior), -math.log(1 - prior)
    trained = [float(bernoulli_kl(torch.tensor([[q]], dtype=torch.float64), prior)) for q in (1.0, 0.0)]
    return {"open": opened, "closed": closed, "net": opened - closed, "net_clamped": trained[0] - trained[1]}


def filtering(z: Array, opened: np.ndarray) -> dict[str, Any]:
    """The filtering theorem: dimension k is closed if gamma pi_k (1 - pi_k) < lambda log(1/rho).

    gamma is not given by the theory, so it gets its best chance: every gamma is tried, and the one whose predicted
    closed set agrees best with the observed one is kept. Agreement is balanced (mean of the shares of closed and of
    open dimensions that are predicted right): to call everything open gives 50 percent. z are the features before the
    gates, `opened` is bool [N, D].

    Returns
    -------
    Arrays `prevalence`, `open_rate` (over images where z_k fires; NaN if none), `closed` (observed) and `predicted`,
    over dimensions; `counted` of them fire at all. `agreement` (percent, None unless some are closed and some open),
    `agreement_chance` (95th percentile over shuffled dimensions, gamma fitted to each); `spearman` (prevalence against
    open rate), `open_rate_common`, `open_rate_rare`: mean open rate of dimensions with prevalence >= 0.5 and < 0.5.
    """
    table = describe(z, open=opened)
    assert table.closed_rate is not None
    pi, open_rate = table.support / table.images, 1 - table.closed_rate / 100
    alive, closed = pi > 0, open_rate < CLOSED  # NaN is not
    utility = pi * (1 - pi)
    agreement, threshold = _best_threshold(utility[alive], closed[alive][None])
    rng = np.random.default_rng(0)
    shuffled = np.stack([rng.permutation(closed[alive]) for _ in range(SHUFFLES)])
    chance = _best_threshold(utility[alive], shuffled)[0]
    known = bool(closed.any() and not closed[alive].all())
    return {
        "prevalence": pi,
        "open_rate": open_rate,
        "closed": closed,
        "predicted": alive & (utility < threshold[0]) & known,
        "counted": int(alive.sum()),
        "agreement": 100 * float(agreement[0]) if known else None,
        "agreement_chance": 100 * float(np.quantile(chance, 0.95)) if known else None,
        "spearman": spearman(pi, open_rate),
        "open_rate_common": mean(open_rate[pi >= NOISE]),
        "open_rate_rare": mean(open_rate[pi < NOISE]),
    }


def _best_threshold(utility: np.ndarray, closed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Best balanced agreement of {utility < t} with each row of closed [R, K], over all t, and its t."""
    order = np.argsort(utility, kind="stable")
    u, c = utility[order], closed[:, order]
    # cut i predicts the first i in order as closed; a cut between equal utilities is no threshold
    hits, wrong = (
        np.pad(np.cumsum(side, 1), ((0, 0), (1, 0))) / np.maximum(side.sum(1, keepdims=True), 1) for side in (c, ~c)
    )
    allowed = np.concatenate([[True], u[1:] > u[:-1], [True]])
    balanced = np.where(allowed, (hits + 1 - wrong) / 2, -1)  # [R, K + 1]
    best = balanced.argmax(1)
    return balanced[np.arange(len(c)), best], np.append(u, np.inf)[best]


def information(features: Array, opened: np.ndarray, bins: int = 16) -> dict[str, float]:
    """Both sides of the information bound, nats, with features rounded to `bins` levels.

    The encoder is deterministic, so with exact features I(z m; X) is the entropy of the data: log N on N images. The
    bound mixes entropies of gates (discrete) and of values (differential, at most log 1 = 0 for values in [0, 1]).
    Rounding to levels makes both sides mean something: a value then has at most log(bins) nats, C_cont.

    Returns
    -------
    `bound` sum_k E[m_k] log(bins) + H_b(E[m_k]); `bound_ungated`, the same with all gates open; `marginals`, the sum
    over dimensions of the entropy of the rounded gated feature; `information`, the entropy of the rounded gated rows,
    which is I exactly over these N images; `cap`, log N, which no estimate from N images can exceed; `bound_zero`, the
    bound with C_cont = 0.
    """
    z = as_features(features)
    n, d = z.shape
    signed = any(bool((block < 0).any()) for _, block in rows(z))
    levels = 2 * bins if signed else bins
    p = np.asarray(opened).mean(0)
    counts = np.zeros((levels, d))
    # rows by 64-bit hash: equal rows, equal hash
    word = np.random.default_rng(0).integers(1, 2**63, size=d, dtype=np.uint64)
    hashes = np.empty(n, dtype=np.uint64)
    for part, block in rows(z):
        code = np.clip(np.floor(block * bins), -bins, bins - 1).astype(np.int64)
        hashes[part] = code.astype(np.uint64) @ word
        for level in range(levels):
            counts[level] += (code == level - (bins if signed else 0)).sum(0)
    repeats = np.unique(hashes, return_counts=True)[1]
    gate_entropy = float(entropy(np.stack([p, 1 - p])).sum())
    capacity = float(p.sum() * math.log(levels))
    return {
        "bound": capacity + gate_entropy,
        "bound_ungated": d * math.log(levels),
        "bound_zero": gate_entropy,
        "marginals": float(entropy(counts).sum()),
        "information": float(entropy(repeats[:, None].astype(float))[0]),
        "cap": math.log(n),
    }


def compare(
    z: Array, gated: Array, opened: np.ndarray, labels: Array, backgrounds: Array | None, prior: float
) -> list[Row]:
    """Predicted against observed, a row per statement of the theory section.

    z and gated are unit-norm features [N, D] before and after the gates, `opened` is bool [N, D], `prior` the rho of
    the run. Without backgrounds the rows on the error are left out.

    Returns
    -------
    dicts of `statement`, `predicted`, `observed` (numbers), `holds` (bool, or None where the data cannot tell) and
    `note` (a sentence).
    """
    z, gated = as_features(z), as_features(gated)
    found = filtering(z, opened)
    table = [_cost_row(prior), *_filtering_rows(found, prior)]
    if backgrounds is not None:
        table += _error_rows(z, gated, opened, *prepare(z, labels, backgrounds)[1:], found)
    table.append(_information_row(information(gated, opened)))
    return table


def _row(statement: str, predicted: float | None, observed: float | None, holds: bool | None, note: str) -> Row:
    return {"statement": statement, "predicted": predicted, "observed": observed, "holds": holds, "note": note}


def _cost_row(prior: float) -> Row:
    cost = gate_costs(prior)
    side = "pays for open gates, the opposite of the theorem" if cost["net"] < 0 else "does press gates shut"
    note = (
        f"at rho = {prior:g} an open gate costs log(1/rho) = {cost['open']:.3f} nats, "
        f"but a closed one log(1/(1-rho)) = {cost['closed']:.3f}, so the KL {side} "
        f"(opening instead of closing: {cost['net']:+.3f}, with the clamp of training {cost['net_clamped']:+.3f})"
    )
    return _row("filtering: KL cost of opening a gate (nats)", cost["open"], cost["net"], cost["net"] > 0, note)


def _filtering_rows(found: Row, prior: float) -> list[Row]:
    closed, predicted, counted = int(found["closed"].sum()), int(found["predicted"].sum()), found["counted"]
    if found["agreement"] is None:
        share = "none" if closed == 0 else "all"
        note = (
            f"{share} of the {counted} firing dimensions are closed on most images they fire on, "
            "so no gamma can be told from another"
        )
        first = _row("filtering: closed dimensions, best gamma", None, closed, None, note)
    else:
        beats = found["agreement"] > found["agreement_chance"]
        note = (
            f"with the gamma that fits best, balanced agreement {found['agreement']:.1f} %; "
            f"by chance up to {found['agreement_chance']:.1f} % (95th percentile, gamma fitted to shuffled dimensions)"
        )
        first = _row("filtering: closed dimensions, best gamma", predicted, closed, beats, note)
    corrected = 0 if prior >= 0.5 else first["predicted"]
    note = (
        "with the cost of a closed gate counted, gamma pi (1-pi) < lambda log((1-rho)/rho) "
        f"closes nothing at rho = {prior:g}; gates that are closed are so against the KL"
        if prior >= 0.5
        else "at rho < 0.5 the corrected condition differs from the theorem's by its scale alone"
    )
    holds = closed == 0 if prior >= 0.5 else first["holds"]
    second = _row("filtering, cost corrected: closed dimensions", corrected, closed, holds, note)
    rank = found["spearman"]
    # two standard errors of a rank correlation without relation
    clear = rank is not None and counted > 2 and abs(rank) > 2 / math.sqrt(counted - 1)
    if rank is None or not clear:
        said = "prevalence and open gates are not related beyond chance"
    elif rank < 0:
        said = "high-prevalence dimensions are the ones closed"
    else:
        said = "high-prevalence dimensions are the ones left open; rare ones are closed"
    common, rare = (
        "no such dimension" if found[k] is None else f"{found[k]:.2f}" for k in ("open_rate_common", "open_rate_rare")
    )
    note = f"{said}; mean open rate where active: {common} at prevalence >= {NOISE:g}, {rare} below"
    holds = None if rank is None else bool(clear and rank < 0)
    third = _row("filtering: Spearman of prevalence and open rate", -1.0, rank, holds, note)
    return [first, second, third]


def _error_rows(
    z: np.ndarray, gated: np.ndarray, opened: np.ndarray, labels: np.ndarray, backgrounds: np.ndarray, found: Row
) -> list[Row]:
    """E_NCL is the mean similarity of z over pairs of other class on one background; E_Bayes that of gated z."""
    before, apart, same, _, _ = pair_similarity(z, labels, backgrounds)
    masked, masked_apart, _, _, _ = pair_similarity(z * opened, labels, backgrounds)
    after, after_apart, after_same, _, _ = pair_similarity(gated, labels, backgrounds)
    drop = float((before - masked).sum())
    table = []
    for name, noise in (("prevalence >= 0.5", found["prevalence"] >= NOISE), ("observed closed", found["closed"])):
        predicted = float(before[noise].sum())
        note = (
            f"{int(noise.sum())} dimensions in the noise set; "
            f"E_NCL {before.sum():.4f}, E_Bayes of z m {masked.sum():.4f}; "
            f"on pairs with another background the gates take {float((apart - masked_apart).sum()):.4f}"
        )
        holds = drop > 0 and abs(drop - predicted) <= CLOSE * predicted if predicted > 0 else None
        table.append(_row(f"error reduction: noise set of {name}", predicted, drop, holds, note))
    final = float((before - after).sum())
    note = (
        f"gated features at unit length, as trained and used: E_NCL {before.sum():.4f}, E_Bayes {after.sum():.4f}; "
        f"over the similarity within classes {before.sum() / max(same.sum(), 1e-12):.3f} before, "
        f"{after.sum() / max(after_same.sum(), 1e-12):.3f} after; error (shared - other background) "
        f"{float((before - apart).sum()):.4f} before, {float((after - after_apart).sum()):.4f} after"
    )
    table.append(_row("error reduction: strictly less, renormalised", None, final, final > 0, note))
    return table


def _information_row(found: dict[str, float]) -> Row:
    empty = found["bound"] >= found["cap"]
    worth = "above log N, so it says nothing here" if empty else "below log N, so it says something here"
    note = (
        f"bound with 16 levels a feature ({found['bound_ungated']:.1f} with all gates open); information over these "
        f"images, at most log N = {found['cap']:.2f}; the bound is {worth}; with C_cont = 0, as for values in [0, 1] "
        f"by differential entropy, the right side is {found['bound_zero']:.1f}"
    )
    holds = found["information"] <= found["bound"] + 1e-9
    return _row("information bound (nats)", found["bound"], found["information"], holds, note)
