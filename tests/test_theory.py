"""The theory's predictions against loops, and on models made to fit or to break them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from bayesncl.errors import InputError
from bayesncl.measure import theory
from bayesncl.measure.conflict import conflict
from bayesncl.measure.retrieval import retrieval
from bayesncl.objective import ipw_similarity
from tests.conftest import unit_length


def sparse(n: int = 200, pi: tuple[float, ...] = (0.02, 0.1, 0.3, 0.6, 0.9, 1.0), seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return unit_length((rng.random((n, len(pi))) < pi) * (0.5 + rng.random((n, len(pi)))))


def labelled(n: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 3, n), rng.integers(0, 2, n)


def test_prevalence_is_the_loop() -> None:
    z = sparse()
    assert theory.prevalence(z) == pytest.approx([np.mean([v > 1e-5 for v in z[:, k]]) for k in range(6)])
    assert theory.prevalence(-z) == pytest.approx(theory.prevalence(z)), "size, not sign"


def test_ipw_effect_is_that_of_the_weighted_similarity() -> None:
    z, (y, b) = sparse(60), labelled(60)
    z[:, 5] = 0  # never fires
    found = theory.ipw_effect(z, y, b, ks=(1, 5))
    weights = np.append(1 / theory.prevalence(z)[:5], 0)
    s = ipw_similarity(*(torch.from_numpy(z),) * 2, torch.from_numpy(theory.prevalence(z))).numpy()
    np.testing.assert_allclose(s, (z * weights) @ z.T)
    off = ~np.eye(60, dtype=bool)
    other, shared = (y[:, None] != y), (b[:, None] == b)
    error = s[other & shared].mean() - s[other & ~shared].mean()
    assert found["conflict"]["ipw"]["error"] == pytest.approx(error)
    assert found["conflict"]["ipw"]["error_relative"] == pytest.approx(error / s[~other & off].mean())
    assert found["conflict"]["dot"]["error"] == conflict(z, y, b)["error"]
    assert found["retrieval"]["dot"] == retrieval(z, y, ks=(1, 5))
    assert found["retrieval"]["ipw"] == retrieval(z, y, ks=(1, 5), weights=weights)
    other_pi = theory.ipw_effect(z, y, b, pi=np.full(6, 0.5))["conflict"]
    assert other_pi["ipw"]["error"] == pytest.approx(2 * other_pi["dot"]["error"])


@pytest.mark.parametrize("prior", [0.1, 0.4, 0.5, 0.6, 0.8])
def test_gate_costs_are_the_kl_of_training(prior: float) -> None:
    found = theory.gate_costs(prior)
    assert found["open"] == pytest.approx(math.log(1 / prior))
    assert found["closed"] == pytest.approx(math.log(1 / (1 - prior)))
    by_hand = [q * math.log(q / prior) + (1 - q) * math.log((1 - q) / (1 - prior)) for q in (0.99, 0.01)]
    assert found["net_clamped"] == pytest.approx(by_hand[0] - by_hand[1], abs=1e-6)
    assert (found["net"] > 0) == (prior < 0.5)
    assert found["net"] == pytest.approx(math.log((1 - prior) / prior))


def test_costs_at_the_published_prior() -> None:
    assert round(theory.gate_costs(0.8)["net_clamped"], 3) == -1.359
    with pytest.raises(InputError, match=r"between 0 and 1, got 1.0"):
        theory.gate_costs(1.0)


def test_filtering_rates_are_loops() -> None:
    z = sparse()
    opened = np.random.default_rng(2).random(z.shape) < [0.9, 0.1, 0.8, 0.3, 0.7, 0.2]
    found = theory.filtering(z, opened)
    for k in range(6):
        fires = [i for i in range(len(z)) if z[i, k] > 1e-5]
        assert found["open_rate"][k] == pytest.approx(np.mean([opened[i, k] for i in fires]))
        assert found["closed"][k] == (np.mean([opened[i, k] for i in fires]) < 0.5)


def test_best_gamma_is_the_best_of_all() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        utility, closed = rng.choice(np.linspace(0, 0.25, 6), 15), rng.random(15) < 0.4
        if closed.all() or not closed.any():
            continue
        best = -1.0
        for t in [*np.unique(utility), 1.0]:
            predicted = utility < t
            best = max(best, (predicted[closed].mean() + (~predicted[~closed]).mean()) / 2)
        (agreement,), (threshold,) = theory._best_threshold(utility, closed[None])
        assert agreement == pytest.approx(best)
        predicted = utility < threshold
        assert (predicted[closed].mean() + (~predicted[~closed]).mean()) / 2 == pytest.approx(best)


def gates(z: np.ndarray, shut: np.ndarray) -> np.ndarray:
    return np.broadcast_to(~shut, z.shape).copy()


def test_filtering_on_a_model_that_obeys_the_theorem() -> None:
    pi = np.linspace(0.05, 1, 30)
    z = sparse(400, tuple(pi))
    true = theory.prevalence(z)
    shut = true * (1 - true) < 0.12
    found = theory.filtering(z, gates(z, shut))
    assert found["agreement"] == 100
    assert found["agreement_chance"] < 90
    assert np.array_equal(found["predicted"], shut)


def rows_by_statement(table: list[dict]) -> dict[str, dict]:
    for row in table:
        assert set(row) == {"statement", "predicted", "observed", "holds", "note"}
        assert row["holds"] in (True, False, None)
        assert row["note"]
    return {row["statement"]: row for row in table}


def compare(z: np.ndarray, opened: np.ndarray, prior: float, seed: int = 1) -> dict[str, dict]:
    y, b = labelled(len(z), seed)
    return rows_by_statement(theory.compare(z, unit_length(z * opened), opened, y, b, prior))


def test_common_dimensions_shut() -> None:
    """What the theory describes: every dimension with prevalence >= 0.5 is closed, the rest open."""
    z = sparse(400, tuple(np.linspace(0.05, 1, 30)))
    pi = theory.prevalence(z)
    found = compare(z, gates(z, pi >= 0.5), prior=0.3)
    spearman = found["filtering: Spearman of prevalence and open rate"]
    assert spearman["holds"] is True
    assert spearman["observed"] < -0.8
    assert "are the ones closed" in spearman["note"]
    assert "0.00 at prevalence >= 0.5, 1.00 below" in spearman["note"]
    error = found["error reduction: noise set of prevalence >= 0.5"]
    assert error["observed"] == pytest.approx(error["predicted"])
    assert error["holds"] is True
    assert error["observed"] == found["error reduction: noise set of observed closed"]["observed"]


def test_rare_dimensions_shut() -> None:
    """The opposite: said plainly, and the predicted drop does not come."""
    z = sparse(400, tuple(np.linspace(0.05, 1, 30)))
    found = compare(z, gates(z, theory.prevalence(z) < 0.5), prior=0.8)
    spearman = found["filtering: Spearman of prevalence and open rate"]
    assert spearman["holds"] is False
    assert spearman["observed"] > 0.8
    assert "left open; rare ones are closed" in spearman["note"]
    assert found["error reduction: noise set of prevalence >= 0.5"]["holds"] is False
    cost = found["filtering: KL cost of opening a gate (nats)"]
    assert cost["holds"] is False
    assert cost["predicted"] == pytest.approx(math.log(1 / 0.8))
    assert cost["observed"] == pytest.approx(math.log(0.2 / 0.8))
    corrected = found["filtering, cost corrected: closed dimensions"]
    assert corrected["predicted"] == 0
    assert corrected["observed"] > 0
    assert corrected["holds"] is False


def test_all_gates_open() -> None:
    z = sparse()
    found = compare(z, np.ones(z.shape, bool), prior=0.8)
    assert found["filtering: closed dimensions, best gamma"]["holds"] is None
    assert found["filtering, cost corrected: closed dimensions"]["holds"] is True
    assert found["filtering: Spearman of prevalence and open rate"]["holds"] is None
    assert found["error reduction: noise set of observed closed"]["holds"] is None
    strictly = found["error reduction: strictly less, renormalised"]
    assert strictly["observed"] == pytest.approx(0)


def test_error_rows_are_loops_over_pairs() -> None:
    z = sparse(50)
    opened = np.random.default_rng(5).random(z.shape) < 0.6
    y, b = labelled(50)
    gated = unit_length(z * opened)
    found = rows_by_statement(theory.compare(z, gated, opened, y, b, 0.8))
    pairs = [(i, j) for i in range(50) for j in range(i) if y[i] != y[j] and b[i] == b[j]]
    common = theory.prevalence(z) >= 0.5
    predicted = np.mean([(z[i] * z[j])[common].sum() for i, j in pairs])
    m = z * opened
    drop = np.mean([z[i] @ z[j] - m[i] @ m[j] for i, j in pairs])
    final = np.mean([z[i] @ z[j] - gated[i] @ gated[j] for i, j in pairs])
    row = found["error reduction: noise set of prevalence >= 0.5"]
    assert row["predicted"] == pytest.approx(predicted)
    assert row["observed"] == pytest.approx(drop)
    assert row["holds"] == bool(drop > 0 and abs(drop - predicted) <= 0.25 * predicted)
    strictly = found["error reduction: strictly less, renormalised"]
    assert strictly["observed"] == pytest.approx(final)
    assert strictly["holds"] == bool(final > 0)


def entropy(counts: dict) -> float:
    n = sum(counts.values())
    return -sum(c / n * math.log(c / n) for c in counts.values())


@pytest.mark.parametrize("signed", [False, True])
def test_information_is_the_loop(signed: bool) -> None:
    z = sparse(80)
    z[40:] = z[:40]  # every row twice
    if signed:
        z = z * np.random.default_rng(6).choice([-1, 1], 6)
    opened = np.random.default_rng(7).random(z.shape) < 0.7
    gated = unit_length(z * opened)
    found = theory.information(gated, opened, bins=4)
    rows: dict = {}
    columns: list[dict] = [{} for _ in range(6)]
    for row in gated:
        code = tuple(min(max(math.floor(4 * v), -4), 3) for v in row)
        rows[code] = rows.get(code, 0) + 1
        for k, v in enumerate(code):
            columns[k][v] = columns[k].get(v, 0) + 1
    levels = math.log(8 if signed else 4)
    p = opened.mean(0)
    bound = sum(q * levels - q * math.log(q) - (1 - q) * math.log(1 - q) for q in p)
    assert found["information"] == pytest.approx(entropy(rows))
    assert found["marginals"] == pytest.approx(sum(entropy(c) for c in columns))
    assert found["bound"] == pytest.approx(bound)
    assert found["bound_zero"] == pytest.approx(bound - levels * p.sum())
    assert found["bound_ungated"] == pytest.approx(6 * levels)
    assert found["cap"] == pytest.approx(math.log(80))
    assert found["information"] <= found["marginals"] <= found["bound"] + 1e-9
    assert found["information"] <= found["cap"]


def test_information_row_says_when_the_bound_is_empty() -> None:
    z = sparse(50, tuple(np.linspace(0.1, 1, 30)))
    row = compare(z, np.ones(z.shape, bool), 0.8)["information bound (nats)"]
    assert row["holds"] is True
    assert "says nothing" in row["note"]
    shut = np.zeros(z.shape, bool)
    shut[:, 0] = True
    row = compare(z, shut, 0.8)["information bound (nats)"]
    assert "says something" in row["note"]


def test_without_backgrounds_the_error_rows_are_left_out() -> None:
    z = sparse()
    table = theory.compare(z, z, np.ones(z.shape, bool), labelled(200)[0], None, 0.8)
    assert not any(row["statement"].startswith("error") for row in table)
    assert len(table) == 5


def test_gates_must_fit_the_features() -> None:
    with pytest.raises(InputError, match=r"gates must be \[200, 6\], as the features, got \[200, 5\]"):
        theory.filtering(sparse(), np.ones((200, 5), bool))
