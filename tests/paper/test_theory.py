"""The theory's predictions against loops, and on models that obey or break them."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from bayesncl.measure.retrieval import retrieval
from bayesncl.method.losses import ipw_similarity
from bayesncl.paper import theory
from bayesncl.paper.conflict import conflict, pair_similarity
from tests.conftest import unit_length

PI = (0.02, 0.1, 0.3, 0.6, 0.9, 1.0)
GRID = tuple(np.linspace(0.05, 1, 30))


def sparse(n: int = 200, pi: tuple[float, ...] = PI, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return unit_length((rng.random((n, len(pi))) < pi) * (0.5 + rng.random((n, len(pi)))))


def labeled(n: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 3, n), rng.integers(0, 2, n)


def gates(z: np.ndarray, closed: np.ndarray) -> np.ndarray:
    return np.broadcast_to(~closed, z.shape).copy()


def compare(z: np.ndarray, opened: np.ndarray, prior: float) -> dict[str, dict[str, Any]]:
    gated, (y, b) = unit_length(z * opened), labeled(len(z))
    pairs = [pair_similarity(x, y, b) for x in (z, z * opened, gated)]
    table = theory.compare(z, gated, opened, prior, pairs)
    return {row["statement"]: row for row in table}


def test_ipw_effect_is_that_of_the_weighted_similarity() -> None:
    z, (y, b) = sparse(60), labeled(60)
    z[:, 5] = 0  # never fires
    pi = theory.prevalence(z)
    found = theory.ipw_effect(z, y, b, pi)
    weights = np.append(1 / pi[:5], 0)
    tensor = torch.from_numpy(z)
    s = ipw_similarity(tensor, tensor, torch.from_numpy(pi)).numpy()
    np.testing.assert_allclose(s, (z * weights) @ z.T)
    other, shared = y[:, None] != y, b[:, None] == b
    error = s[other & shared].mean() - s[other & ~shared].mean()
    scale = s[~other & ~np.eye(60, dtype=bool)].mean()
    errors = found["conflict"]
    assert errors["ipw"]["error"] == pytest.approx(error)
    assert errors["ipw"]["error_relative"] == pytest.approx(error / scale)
    assert errors["dot"]["error"] == conflict(z, y, b)["error"]
    assert found["retrieval"]["dot"] == retrieval(z, y)
    assert found["retrieval"]["ipw"] == retrieval(z, y, weights=weights)


@pytest.mark.parametrize("prior", [0.1, 0.5, 0.8])
def test_the_cost_of_a_gate_is_the_kl_of_training(prior: float) -> None:
    found = theory.gate_cost(prior)
    assert found["predicted"] == pytest.approx(math.log(1 / prior))
    assert found["observed"] == pytest.approx(math.log((1 - prior) / prior))
    assert found["holds"] == (prior < 0.5)
    opened, closed = (
        q * math.log(q / prior) + (1 - q) * math.log((1 - q) / (1 - prior)) for q in (0.99, 0.01)
    )
    assert f"as clamped {opened - closed:+.3f}" in found["note"]


@pytest.mark.parametrize("seed", range(2))
def test_the_best_gamma_is_the_best_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    z = sparse(100, tuple(rng.choice(np.linspace(0.1, 0.9, 9), 15)), seed)
    closed = np.arange(15) < 6
    rng.shuffle(closed)
    opened = gates(z, closed)
    opened[:5] = ~opened[:5]
    found, pi = theory.filtering(z, opened), theory.prevalence(z)
    rates = [opened[z[:, k] > 1e-5, k].mean() for k in range(15)]
    assert found["open_rate"] == pytest.approx(rates)
    np.testing.assert_array_equal(found["closed"], closed)

    def balanced(predicted: np.ndarray) -> float:
        return float(predicted[closed].mean() + (~predicted[~closed]).mean()) / 2

    best = max(balanced(pi * (1 - pi) < t) for t in [*(pi * (1 - pi)), 1.0])
    assert found["agreement"] == pytest.approx(100 * best)
    assert balanced(found["predicted"]) == pytest.approx(best)


def test_what_the_theory_describes_and_its_opposite() -> None:
    """Common dimensions closed; rare dimensions closed: the predicted drop does not come."""
    z = sparse(400, GRID)
    pi = theory.prevalence(z)
    closed = pi * (1 - pi) < 0.12
    obeys = theory.filtering(z, gates(z, closed))
    assert np.array_equal(obeys["predicted"], closed)
    assert obeys["agreement_chance"] < 90 < obeys["agreement"] == 100
    common = pi >= 0.5
    for closed, prior, holds in ((common, 0.3, True), (~common, 0.8, False)):
        found = compare(z, gates(z, closed), prior)
        spearman = found["filtering: Spearman of prevalence and open rate"]
        assert spearman["holds"] is holds
        assert abs(spearman["observed"]) > 0.8
        error = found["error reduction: noise set of prevalence >= 0.5"]
        assert error["holds"] is holds
        assert (error["observed"] == pytest.approx(error["predicted"])) is holds
        assert found["filtering: KL cost of opening a gate (nats)"]["holds"] is holds
    assert "1.00 at prevalence >= 0.5, 0.00 below" in spearman["note"]


def test_all_gates_open() -> None:
    z = sparse()
    found = compare(z, np.ones(z.shape, bool), prior=0.8)
    assert found["filtering: closed dimensions, best gamma"]["holds"] is None
    assert found["filtering, cost corrected: closed dimensions"]["holds"] is True
    assert found["filtering: Spearman of prevalence and open rate"]["holds"] is None
    assert found["error reduction: noise set of observed closed"]["holds"] is None
    assert found["error reduction: strictly less, renormalized"]["observed"] == pytest.approx(0)
    table = theory.compare(z, z, np.ones(z.shape, bool), 0.8)
    assert [r["statement"] for r in table] == [s for s in found if not s.startswith("error")]


def test_error_rows_are_loops_over_pairs() -> None:
    z, (y, b) = sparse(50), labeled(50)
    opened = np.random.default_rng(5).random(z.shape) < 0.6
    gated, m = unit_length(z * opened), z * opened
    found = compare(z, opened, 0.8)
    pairs = [(i, j) for i in range(50) for j in range(i) if y[i] != y[j] and b[i] == b[j]]
    common = theory.prevalence(z) >= 0.5
    predicted = np.mean([(z[i] * z[j])[common].sum() for i, j in pairs])
    drop = np.mean([z[i] @ z[j] - m[i] @ m[j] for i, j in pairs])
    final = np.mean([z[i] @ z[j] - gated[i] @ gated[j] for i, j in pairs])
    row = found["error reduction: noise set of prevalence >= 0.5"]
    assert row["predicted"] == pytest.approx(predicted)
    assert row["observed"] == pytest.approx(drop)
    assert row["holds"] == bool(drop > 0 and abs(drop - predicted) <= 0.25 * predicted)
    strictly = found["error reduction: strictly less, renormalized"]
    assert (strictly["observed"], strictly["holds"]) == (pytest.approx(final), bool(final > 0))


def entropy(values: Any) -> float:
    counts = Counter(values)
    return -sum(c / counts.total() * math.log(c / counts.total()) for c in counts.values())


@pytest.mark.parametrize("signed", [False, True])
def test_information_is_the_loop(signed: bool) -> None:
    z = sparse(80)
    z[40:] = z[:40]  # every row twice
    if signed:
        z = z * np.random.default_rng(6).choice([-1, 1], 6)
    opened = np.random.default_rng(7).random(z.shape) < 0.7
    gated = unit_length(z * opened)
    found = theory.information(gated, opened)
    codes = [tuple(min(max(math.floor(16 * v), -16), 15) for v in row) for row in gated]
    levels, p = math.log(32 if signed else 16), opened.mean(0)
    bound = sum(q * levels - q * math.log(q) - (1 - q) * math.log(1 - q) for q in p)
    assert found["observed"] == pytest.approx(entropy(codes))
    assert found["predicted"] == pytest.approx(bound)
    wanted = f"all gates open {6 * levels:.1f}, C_cont = 0 {bound - levels * sum(p):.1f}"
    assert wanted in found["note"]
    assert "log N = 4.38" in found["note"]


def test_the_information_row_says_whether_the_bound_is_empty() -> None:
    z = sparse(50, tuple(np.linspace(0.1, 1, 30)))
    for closed, word in ((np.zeros(30, bool), "empty"), (np.arange(30) > 0, "informative")):
        row = compare(z, gates(z, closed), 0.8)["information bound (nats)"]
        assert row["holds"] is True and word in row["note"]
