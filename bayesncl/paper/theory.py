"""The paper's theory on a trained model: predictions beside observations.

Notation: z are the features before the gates, m the gates, z m the gated features before they are
renormalized; pi_k is the prevalence of dimension k, the share of images on which z_k fires; rho is
the prior and lambda the weight of the KL term. Features and gates (`opened`, bool) are [N, D].
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_curve

from bayesncl.measure.dimensions import describe, entropy, mean
from bayesncl.measure.retrieval import retrieval
from bayesncl.method.gates import bernoulli_kl
from bayesncl.method.losses import ACTIVE
from bayesncl.paper.conflict import PairMeans, conflict
from bayesncl.training.dynamics import spearman

COMMON = 0.5  # prevalence from which a dimension is common (the theory's background noise set)
CLOSED = 0.5  # a dimension is closed if its gate is open on a smaller share of its firing images
TOLERANCE = 0.25  # "approximately": observed within a quarter of predicted
SHUFFLES = 200
LEVELS = 16  # to which features are rounded for the information bound
CLOSED_AS_PREDICTED = "filtering: closed dimensions, best gamma"
RANK_CORRELATION = "filtering: Spearman of prevalence and open rate"

Row = dict[str, Any]


def prevalence(features: np.ndarray) -> np.ndarray:
    """Share of images on which each dimension fires, [D]."""
    return np.asarray((np.abs(features) > ACTIVE).mean(0))


def ipw_effect(
    features: np.ndarray, labels: np.ndarray, backgrounds: np.ndarray, pi: np.ndarray
) -> dict[str, Any]:
    """`retrieval` and `conflict` by dot product (`dot`) and inverse-prevalence weighting (`ipw`).

    The weights change the scale of the similarity, so only `error_relative` compares conflicts.
    A dimension of prevalence `pi` [D] 0 has weight 0.
    """
    kinds = {"dot": None, "ipw": np.divide(1.0, pi, out=np.zeros_like(pi), where=pi > 0)}
    errors = {name: conflict(features, labels, backgrounds, w) for name, w in kinds.items()}
    keys = ("error", "error_relative", "chance_error", "similarity_same_class")
    return {
        "retrieval": {name: retrieval(features, labels, weights=w) for name, w in kinds.items()},
        "conflict": {name: {k: error[k] for k in keys} for name, error in errors.items()},
    }


def compare(
    z: np.ndarray, gated: np.ndarray, opened: np.ndarray, prior: float,
    pairs: Sequence[PairMeans] = (),
) -> list[Row]:  # fmt: skip
    """Predicted against observed, one row per statement of the theory section.

    z and gated are unit-norm features before and after the gates; `pairs` are the similarities of
    z, of z m and of gated over pairs of images, without which there are no rows on the error.
    `holds` is None if the data cannot tell.
    """
    found = filtering(z, opened)
    errors = error_rows(found, *pairs) if pairs else []
    return [gate_cost(prior), *filtering_rows(found, prior), *errors, information(gated, opened)]


def _row(*values: Any) -> Row:
    return dict(zip(("statement", "predicted", "observed", "holds", "note"), values, strict=True))


def gate_cost(prior: float) -> Row:
    """KL cost of an open gate: the paper's, and the observed one beyond that of a closed gate.

    The paper charges an open gate KL(Bern(1) || Bern(rho)) = log(1/rho) and a closed gate nothing.
    But a closed gate costs log(1/(1 - rho)), so opening costs log((1 - rho)/rho) more than closing,
    which is negative for rho > 0.5.
    """
    opened, closed = -math.log(prior), -math.log(1 - prior)
    gates = torch.tensor([[[1.0]], [[0.0]]], dtype=torch.float64)
    trained = [float(bernoulli_kl(gate, prior)) for gate in gates]
    net = opened - closed
    effect = "rewards open gates, against the theorem" if net < 0 else "presses gates shut"
    note = (
        f"at rho = {prior:g} an open gate costs {opened:.3f} nats and a closed one "
        f"{closed:.3f}, so the KL {effect} (as clamped {trained[0] - trained[1]:+.3f})"
    )
    return _row("filtering: KL cost of opening a gate (nats)", opened, net, net > 0, note)


def filtering(z: np.ndarray, opened: np.ndarray) -> dict[str, Any]:
    """The filtering theorem: dimension k is closed if gamma pi_k (1 - pi_k) < lambda log(1/rho).

    The theory does not give gamma, so the one whose predicted closed set agrees best with the
    observed one is used. Agreement is balanced: the mean of the shares of closed and of open
    dimensions predicted right, 50 % for calling everything open. By chance: the 95th percentile
    over shuffled dimensions, gamma fitted to each. Both only if some are closed and some open.
    """
    table = describe(z, open=opened)
    assert table.closed_rate is not None
    pi, open_rate = table.support / table.images, 1 - table.closed_rate / 100
    alive, closed = pi > 0, open_rate < CLOSED  # False for NaN
    found = {"prevalence": pi, "open_rate": open_rate, "closed": closed, "counted": alive.sum()}
    if not closed.any() or closed[alive].all():
        return found
    utility, rng = pi * (1 - pi), np.random.default_rng(0)
    agreement, cut = best_cut(utility[alive], closed[alive])
    shuffled = (rng.permutation(closed[alive]) for _ in range(SHUFFLES))
    chance = [best_cut(utility[alive], each)[0] for each in shuffled]
    return found | {
        "predicted": alive & (utility <= cut),
        "agreement": 100 * agreement,
        "agreement_chance": 100 * float(np.quantile(chance, 0.95)),
    }


def best_cut(utility: np.ndarray, closed: np.ndarray) -> tuple[float, float]:
    """Best balanced agreement of {utility <= cut} with the closed dimensions, and that cut."""
    wrong, hits, scores = roc_curve(closed, -utility)
    balanced = (hits + 1 - wrong) / 2
    return float(balanced.max()), -float(scores[balanced.argmax()])


def filtering_rows(found: dict[str, Any], prior: float) -> list[Row]:
    """Closed dimensions as predicted, with the cost as corrected, and their order by prevalence."""
    closed, counted = int(found["closed"].sum()), int(found["counted"])
    predicted: int | None = None
    beats: bool | None = None
    note = f"{closed} of the {counted} firing dimensions are closed, so any gamma fits"
    if "predicted" in found:
        predicted = int(found["predicted"].sum())
        agreement, chance = found["agreement"], found["agreement_chance"]
        beats = agreement > chance
        note = f"balanced agreement {agreement:.1f} %, up to {chance:.1f} % by chance"
    first = _row(CLOSED_AS_PREDICTED, predicted, closed, beats, note)
    note = "at rho < 0.5 the corrected condition differs only in scale"
    if prior >= 0.5:
        note = f"gamma pi (1-pi) < lambda log((1-rho)/rho) closes nothing at rho = {prior:g}"
        predicted, beats = 0, closed == 0
    second = _row("filtering, cost corrected: closed dimensions", predicted, closed, beats, note)
    pi, rate = found["prevalence"], found["open_rate"]
    rank = spearman(pi, rate)
    # two standard errors of a rank correlation of independent values
    clear = rank is not None and counted > 2 and abs(rank) > 2 / math.sqrt(counted - 1)
    common, rare = (
        "no such dimension" if (each := mean(rate[kept])) is None else f"{each:.2f}"
        for kept in (pi >= COMMON, pi < COMMON)
    )
    note = f"mean open rate where active {common} at prevalence >= {COMMON:g}, {rare} below"
    holds = None if rank is None else bool(clear and rank < 0)
    third = _row(RANK_CORRELATION, -1.0, rank, holds, note)
    return [first, second, third]


def error_rows(
    found: dict[str, Any], before: PairMeans, closed: PairMeans, after: PairMeans
) -> list[Row]:
    """E is the mean similarity over pairs of different classes on one background."""
    totals = [float(each.shared.sum()) for each in (before, closed, after)]
    drop, final = totals[0] - totals[1], totals[0] - totals[2]
    sets = {"prevalence >= 0.5": found["prevalence"] >= COMMON, "observed closed": found["closed"]}
    table = []
    for name, noise in sets.items():
        predicted = float(before.shared[noise].sum())
        near = drop > 0 and abs(drop - predicted) <= TOLERANCE * predicted
        note = (
            f"{int(noise.sum())} dimensions in the noise set; E {totals[0]:.4f} before the gates, "
            f"{totals[1]:.4f} after; on pairs with another background the gates take "
            f"{float((before.apart - closed.apart).sum()):.4f}"
        )
        holds = near if predicted > 0 else None
        table.append(_row(f"error reduction: noise set of {name}", predicted, drop, holds, note))
    note = (
        f"E {totals[0]:.4f} before, {totals[2]:.4f} after; error (shared - other background) over "
        f"the similarity within classes {before.relative:.4f} before, {after.relative:.4f} after"
    )
    name = "error reduction: strictly less, renormalized"
    return [*table, _row(name, None, final, final > 0, note)]


def information(features: np.ndarray, opened: np.ndarray) -> Row:
    """The information bound in nats beside the information, with features rounded to LEVELS.

    The bound is sum_k E[m_k] C_cont + H_b(E[m_k]), the information the entropy of the gated rows.
    The encoder is deterministic, so with exact features I(z m; X) is log N on N images. The bound
    mixes discrete entropies of gates with differential ones of values (at most log 1 = 0 for values
    in [0, 1]). Rounding makes both sides meaningful: C_cont, the entropy of a value, is then at
    most log(LEVELS).
    """
    codes = np.clip(np.floor(features * float(LEVELS)), -LEVELS, LEVELS - 1).astype(np.int8)
    repeats = np.unique(codes, axis=0, return_counts=True)[1]
    value = math.log(2 * LEVELS if (features < 0).any() else LEVELS)
    p, cap = opened.mean(0), math.log(len(features))
    gates = float(entropy(np.stack([p, 1 - p])).sum())
    bound, found = float(p.sum() * value) + gates, float(entropy(repeats[:, None].astype(float))[0])
    word = "empty" if bound >= cap else "informative"
    note = (
        f"{LEVELS} levels per feature; {word} beside log N = {cap:.2f}; all gates open "
        f"{len(p) * value:.1f}, C_cont = 0 {gates:.1f}"
    )
    return _row("information bound (nats)", bound, found, found <= bound + 1e-9, note)
