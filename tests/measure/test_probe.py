"""Linear probes against slow twins: scikit-learn's logistic regression."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from bayesncl.errors import InputError
from bayesncl.measure import linear as probe


def blobs(
    n: int, seed: int, classes: int = 7, width: int = 12, noise: float = 1.5
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    centers = np.random.default_rng(99).normal(size=(classes, width))
    y = rng.integers(0, classes, n)
    scale = np.linspace(0.01, 30, width)  # standardization has work to do
    return ((centers[y] + noise * rng.normal(size=(n, width))) * scale + 5).astype(np.float32), y


def test_fit_is_the_minimum_scikit_learn_finds() -> None:
    x, y = blobs(400, 0)
    x = (x - x.mean(0)) / x.std(0)
    for penalty in (1e-1, 1e-2, 1e-3):
        weight = probe.fit(
            torch.from_numpy(x), torch.from_numpy(y), torch.zeros(13, 7), penalty, steps=300
        ).numpy()
        twin = LogisticRegression(C=1 / (penalty * len(x)), tol=1e-8, max_iter=5000).fit(x, y)
        np.testing.assert_allclose(
            weight[:-1] - weight[:-1].mean(1, keepdims=True), twin.coef_.T, atol=2e-2
        )
        np.testing.assert_allclose(
            weight[-1] - weight[-1].mean(), twin.intercept_ - twin.intercept_.mean(), atol=2e-2
        )


def test_minimize_goes_down_a_bent_valley() -> None:
    """Rosenbrock's function: full steps overshoot, first steps fall short."""
    calls = []

    def valley(x: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(x)
        a, b = x
        along, across = 1 - a, b - a * a
        return along**2 + 100 * across**2, torch.stack(
            [-2 * along - 400 * a * across, 200 * across]
        )

    found = probe.minimize(valley, torch.tensor([-1.2, 1.0]).double(), 200)
    torch.testing.assert_close(found, torch.ones(2).double(), atol=1e-3, rtol=0)
    assert len(calls) < 100
    with torch.no_grad():
        ends = [probe.minimize(valley, torch.tensor([-1.2, 1.0]), n) for n in range(12)]
        values = [float(valley(end)[0]) for end in ends]
    assert values == sorted(values, reverse=True)  # no step goes up


def test_fit_in_blocks_is_the_fit_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = (torch.from_numpy(a) for a in blobs(300, 1))
    x = (x - x.mean(0)) / x.std(0)
    whole = probe.fit(x, y, torch.zeros(13, 7), 1e-2)
    monkeypatch.setitem(probe.ROWS_PER_BLOCK, "cpu", 37)
    torch.testing.assert_close(probe.fit(x, y, torch.zeros(13, 7), 1e-2), whole, atol=1e-3, rtol=0)


def test_fast_probe_against_a_slow_twin() -> None:
    (x, y), (x_test, y_test) = blobs(500, 2), blobs(300, 3)
    found = probe.fast_probe(x, y, x_test, y_test, seeds=(0, 5), device="cpu")
    mean, std = x.astype(float).mean(0), x.astype(float).std(0)
    a, b = (x - mean) / std, (x_test - mean) / std
    for i, seed in enumerate((0, 5)):
        order = np.random.default_rng(seed).permutation(500)
        out, rest = order[:100], order[100:]
        scores = {}
        for penalty in probe.PENALTIES:
            twin = LogisticRegression(
                C=1 / (penalty * 400), tol=1e-6, max_iter=5000
            ).fit(a[rest], y[rest])
            scores[penalty] = 100 * twin.score(a[out], y[out])
        # fits that stop at slightly different points may swap penalties of nearly equal merit
        assert found["validation_acc1"][i] == pytest.approx(max(scores.values()), abs=2.0)
        assert scores[found["penalty"][i]] >= max(scores.values()) - 2.0
        twin = LogisticRegression(
            C=1 / (found["penalty"][i] * 500), tol=1e-6, max_iter=5000
        ).fit(a, y)
        ranked = np.argsort(-twin.decision_function(b), axis=1)
        assert found["acc1_per_seed"][i] == pytest.approx(
            100 * (ranked[:, 0] == y_test).mean(), abs=0.7
        )
        top5 = 100 * np.mean([t in r for t, r in zip(y_test, ranked[:, :5])])
        assert found["acc5_per_seed"][i] == pytest.approx(top5, abs=0.7)
    assert found["acc1"] == pytest.approx(np.mean(found["acc1_per_seed"]))
    assert found["acc1_spread"] == pytest.approx(np.std(found["acc1_per_seed"], ddof=1))
    assert 20 < found["acc1"] < 95, "the problem must be neither trivial nor hopeless"
    assert found == probe.fast_probe(x, y, x_test, y_test, seeds=(0, 5), device="cpu")


def test_penalty_follows_the_noise() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 60))
    clean = (x[:, :3].sum(1) > 0).astype(int)
    noisy = np.where(rng.random(400) < 0.4, 1 - clean, clean)
    penalty = {
        name: probe.rank_classes(x, y, x[:5], seeds=(0,), device="cpu")[0].penalty
        for name, y in (("clean", clean), ("noisy", noisy))
    }
    assert penalty["clean"] < penalty["noisy"]


def test_chance_is_the_mean_over_shuffled_labels() -> None:
    rng = np.random.default_rng(4)
    truth = rng.choice(5, 200, p=[0.5, 0.2, 0.1, 0.1, 0.1])
    top = np.stack([rng.permutation(5)[:3] for _ in truth])
    shuffled = [100 * (top == rng.permutation(truth)[:, None]).any(1).mean() for _ in range(2000)]
    assert probe.expected_chance(top, truth) == pytest.approx(np.mean(shuffled), abs=0.3)


def test_labels_need_not_be_consecutive_and_unknown_ones_are_wrong() -> None:
    x, y = blobs(200, 5, classes=3, noise=0.1)
    x[:, 0] = 2.5  # a constant column is harmless
    names = np.array([-3, 40, 7])
    found = probe.fast_probe(x, names[y], x, names[y], seeds=(0,), device="cpu")
    assert found["acc1"] == 100
    assert found["acc5"] == 100
    unknown = probe.fast_probe(x, names[y], x, np.full(200, 11), seeds=(0,), device="cpu")
    assert unknown["acc1"] == 0
    assert unknown["acc1_chance"] == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_h": np.full((20, 3), np.nan)}, "NaN"),
        ({"train_y": np.zeros(20, int)}, "class"),
        ({"train_y": np.zeros(19, int)}, "labels"),
        ({"test_h": np.zeros((20, 4))}, "dimensions"),
        ({"test_h": np.zeros((0, 3)), "test_y": np.zeros(0, int)}, "empty"),
        ({"train_y": np.linspace(0, 1, 20)}, "whole numbers"),
        ({"test_y": np.zeros(19, int)}, "test labels"),
        ({"train_h": np.eye(4, 3), "train_y": np.arange(4) % 2}, "at least 5"),
    ],
)
def test_bad_input_gets_one_clear_line(change: dict, message: str) -> None:
    x, y = np.eye(20, 3), np.arange(20) % 2
    good = {"train_h": x, "train_y": y, "test_h": x, "test_y": y}
    with pytest.raises(InputError, match=message):
        probe.fast_probe(**(good | change))


@pytest.mark.gpu
def test_gpu_and_cpu_agree() -> None:
    (x, y), (x_test, y_test) = blobs(500, 2), blobs(300, 3)
    found = {
        d: probe.fast_probe(x, y, x_test, y_test, seeds=(0, 5), device=d) for d in ("cpu", "cuda")
    }
    assert found["cuda"]["acc1"] == pytest.approx(found["cpu"]["acc1"], abs=2.0)
    assert found["cuda"] == probe.fast_probe(x, y, x_test, y_test, seeds=(0, 5), device="cuda")
