"""Linear classifiers on codes against slow twins; the trim test on a planted shortcut."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from bayesncl.errors import InputError
from bayesncl.measure.linear import fit_linear, fit_sparse, group_accuracy, trim


def shortcut(n: int, tied: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Classes 0 and 1; dimensions 0 and 1 show the place clearly, 2 and 3 the class dimly."""
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < 0.3).astype(int)
    place = np.where(rng.random(n) < tied, y, 1 - y)
    z = rng.random((n, 8))
    for k in range(2):
        z[:, k] += 3 * (place == k)
        z[:, 2 + k] += 0.3 * (y == k)
    return z, y, place


def slow_loss(flat: np.ndarray, x: np.ndarray, y: np.ndarray, classes: int) -> float:
    """Balanced mean cross-entropy."""
    w = flat.reshape(-1, classes)
    scores = x @ w[:-1] + w[-1]
    log_p = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    by_class = [-log_p[y == c, c].mean() for c in range(classes)]
    return float(np.mean(by_class))


def test_sparse_weights_reach_the_minimum() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(120, 6)), rng.integers(3, size=120)
    x[:, 0] += y
    x[:, 1] -= y == 1
    balance = 120 / (3 * np.bincount(y))
    start, penalty = torch.zeros(7, 3), 0.05
    given = torch.from_numpy(x).float(), torch.from_numpy(y), start, penalty
    found = fit_sparse(*given, torch.from_numpy(balance).float(), 500).double().numpy()

    def parted(flat: np.ndarray) -> float:  # W = plus - minus, both >= 0: the L1 norm is smooth
        plus, minus, bias = np.split(flat, [18, 36])
        w = np.concatenate([plus - minus, bias])
        return slow_loss(w, x, y, 3) + penalty * (plus + minus).sum()

    bounds = [(0, None)] * 36 + [(None, None)] * 3
    best = minimize(parted, np.zeros(39), bounds=bounds, options={"maxfun": 10**6}).fun
    own = slow_loss(found.ravel(), x, y, 3) + penalty * np.abs(found[:-1]).sum()
    assert own == pytest.approx(best, abs=1e-4)
    assert 0 < (found[:-1] != 0).sum() < 18


def test_classes_weigh_the_same() -> None:
    rng = np.random.default_rng(1)
    y = np.r_[np.zeros(900, int), np.ones(60, int)]
    z = rng.normal(size=(960, 3)) + 0.8 * y[:, None] * [1, 0, 0]
    for sparse in (False, True):
        predicted = fit_linear(z, y, sparse=sparse).predict(z)
        assert (predicted[y == 1] == 1).mean() > 0.55


def test_contributions_sum_to_the_score() -> None:
    z, y, _ = shortcut(300, 0.5, 0)
    model = fit_linear(z, y)
    scores = model.contributions(z).sum(1) + model.bias
    np.testing.assert_array_equal(model.classes[scores.argmax(1)], model.predict(z))
    np.testing.assert_allclose(model.contributions(z.mean(0, keepdims=True)), 0, atol=1e-5)


def test_sparse_uses_few_dimensions() -> None:
    rng = np.random.default_rng(2)
    y = rng.integers(2, size=800)
    z = rng.normal(size=(800, 60))
    z[:, 7] += 4 * y
    z = np.c_[z, np.zeros((800, 200))]  # dimensions switched off
    model = fit_linear(z, y, sparse=True)
    assert model.used[7] and model.used.sum() < 10 and not model.used[60:].any()
    assert (model.predict(z) == y).mean() > 0.95


def test_group_accuracy_equals_counting() -> None:
    rng = np.random.default_rng(3)
    y, place = rng.choice(["a", "b"], 50), rng.integers(3, size=50)
    predicted = rng.choice(["a", "b"], 50)
    found = group_accuracy(predicted, y, place)
    for row in found["groups"]:
        inside = [i for i in range(50) if y[i] == row["class"] and place[i] == row["group"]]
        share = 100 * np.mean([predicted[i] == y[i] for i in inside])
        assert (row["images"], row["accuracy"]) == (len(inside), pytest.approx(share))
    assert found["worst"] == min(row["accuracy"] for row in found["groups"])
    assert found["average"] == pytest.approx(100 * (predicted == y).mean())
    assert len(group_accuracy(predicted, y)["groups"]) == 2


def test_trimming_a_shortcut_repairs_the_worst_group() -> None:
    z, y, _ = shortcut(1500, 0.95, 0)
    test_z, test_y, place = shortcut(1500, 0.5, 1)
    found = trim(z, y, test_z, test_y, place, [1, 0, 0])
    assert found["left"] == 6
    assert found["all"]["worst"] < 40 < 60 < found["trimmed"]["worst"]
    assert found["trimmed"]["average"] > found["all"]["average"]
    assert found["random"]["worst"] < found["trimmed"]["worst"] - 10
    assert abs(found["chance"] - 50) < 10
    held = shortcut(600, 0.5, 2)[:2]
    chosen = trim(z, y, test_z, test_y, place, [0, 1], validation=held)
    assert chosen["trimmed"]["worst"] > 60
    alone = fit_linear(z[:, 2:], y, validation=(held[0][:, 2:], held[1])).predict(test_z[:, 2:])
    assert chosen["trimmed"] == group_accuracy(alone, test_y, place)
    untouched = trim(z, y, test_z, test_y, place, [])
    assert untouched["trimmed"] == untouched["all"] == found["all"]
    for wrong in ([8], [-1], range(8)):
        with pytest.raises(InputError):
            trim(z, y, test_z, test_y, place, wrong)
