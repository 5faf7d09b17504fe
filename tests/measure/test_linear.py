"""Linear classifiers against slow twins; the trim test on a planted shortcut."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from bayesncl.errors import InputError
from bayesncl.measure import linear
from bayesncl.measure.linear import fit_linear, fit_sparse, group_accuracy, trim


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
        given = torch.from_numpy(x), torch.from_numpy(y), torch.zeros(13, 7), penalty
        weight = linear.fit(*given, steps=300).numpy()
        twin = LogisticRegression(C=1 / (penalty * len(x)), tol=1e-8, max_iter=5000).fit(x, y)
        bias = twin.intercept_ - twin.intercept_.mean()
        wanted = np.concatenate([twin.coef_.T, bias[None]])
        np.testing.assert_allclose(weight - weight.mean(1, keepdims=True), wanted, atol=2e-2)


def test_minimize_goes_down_a_bent_valley() -> None:
    """Rosenbrock's function: full steps overshoot, first steps fall short."""
    calls = []

    def valley(x: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(x)
        a, b = x
        along, across = 1 - a, b - a * a
        slope = torch.stack([-2 * along - 400 * a * across, 200 * across])
        return along**2 + 100 * across**2, slope

    found = linear.minimize(valley, torch.tensor([-1.2, 1.0]).double(), 200)
    torch.testing.assert_close(found, torch.ones(2).double(), atol=1e-3, rtol=0)
    assert len(calls) < 100
    ends = [linear.minimize(valley, torch.tensor([-1.2, 1.0]), n) for n in range(12)]
    values = [float(valley(end)[0]) for end in ends]
    assert values == sorted(values, reverse=True)  # no step goes up


def test_fast_probe_against_a_slow_twin() -> None:
    def twin(penalty: float, x: np.ndarray, y: np.ndarray) -> LogisticRegression:
        return LogisticRegression(C=1 / (penalty * len(x)), tol=1e-6, max_iter=5000).fit(x, y)

    (x, y), (x_test, y_test) = blobs(500, 2), blobs(300, 3)
    found = linear.fast_probe(x, y, x_test, y_test)
    mean, std = x.astype(float).mean(0), x.astype(float).std(0)
    a, b = (x - mean) / std, (x_test - mean) / std
    for i, seed in enumerate(linear.SEEDS):
        order = np.random.default_rng(seed).permutation(500)
        out, rest = order[:100], order[100:]
        scores = {
            penalty: 100 * twin(penalty, a[rest], y[rest]).score(a[out], y[out])
            for penalty in linear.PENALTIES
        }
        # fits that stop at slightly different points may swap penalties of nearly equal merit
        assert found["validation_acc1"][i] == pytest.approx(max(scores.values()), abs=2.0)
        assert scores[found["penalty"][i]] >= max(scores.values()) - 2.0
        ranked = np.argsort(-twin(found["penalty"][i], a, y).decision_function(b), axis=1)
        top1 = 100 * (ranked[:, 0] == y_test).mean()
        assert found["acc1_per_seed"][i] == pytest.approx(top1, abs=0.7)
        top5 = 100 * np.mean([t in r for t, r in zip(y_test, ranked[:, :5])])
        assert found["acc5_per_seed"][i] == pytest.approx(top5, abs=0.7)
    per_seed = found["acc1_per_seed"]
    assert found["acc1"] == pytest.approx(np.mean(per_seed))
    assert found["acc1_spread"] == pytest.approx(np.std(per_seed, ddof=1))
    assert 20 < found["acc1"] < 95, "the problem must be neither trivial nor hopeless"
    assert found == linear.fast_probe(x, y, x_test, y_test)


def test_chance_is_the_mean_over_shuffled_labels() -> None:
    rng = np.random.default_rng(4)
    truth = rng.choice(5, 200, p=[0.5, 0.2, 0.1, 0.1, 0.1])
    top = np.stack([rng.permutation(5)[:3] for _ in truth])
    shuffled = [100 * (top == rng.permutation(truth)[:, None]).any(1).mean() for _ in range(500)]
    assert linear.expected_chance(top, truth) == pytest.approx(np.mean(shuffled), abs=0.3)


def test_a_probe_needs_a_few_images() -> None:
    with pytest.raises(InputError, match="at least 5"):
        linear.fast_probe(np.eye(4, 3), np.arange(4) % 2, np.eye(20, 3), np.arange(20) % 2)


@pytest.mark.gpu
def test_gpu_and_cpu_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    given = *blobs(500, 2), *blobs(300, 3)
    gpu = linear.fast_probe(*given)
    assert gpu == linear.fast_probe(*given)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu["acc1"] == pytest.approx(linear.fast_probe(*given)["acc1"], abs=2.0)


def split(n: int, tied: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two classes on two backgrounds; the background has the stronger signal."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    b = np.where(rng.random(n) < tied, y, 1 - y)
    signs = np.stack([1.0 * (2 * y - 1), 2.0 * (2 * b - 1), np.zeros(n)], axis=1)
    return (signs + rng.normal(size=(n, 3))).astype(np.float32), y, b


def test_group_probe_is_the_loop_over_groups() -> None:
    (x, y, b), (x_test, y_test, b_test) = split(300, 0.95, 0), split(400, 0.5, 1)
    found = linear.group_probe(x, y, b, x_test, y_test, b_test)
    rights = [r.top[:, 0] == y_test for r in linear.rank_classes(x, y, x_test)]
    groups = [(y_test == c) & (b_test == d) for c in range(2) for d in range(2)]
    accuracy = np.array([[100 * right[own].mean() for own in groups] for right in rights])
    worst = accuracy.min(1)
    assert found["worst_per_seed"] == pytest.approx(worst.tolist())
    assert (found["worst"], found["worst_spread"]) == pytest.approx((worst.mean(), worst.std(ddof=1)))
    assert found["balanced"] == pytest.approx(accuracy.mean())
    assert found["average"] == pytest.approx(linear.fast_probe(x, y, x_test, y_test)["acc1"])
    for row in found["groups"]:
        c, d = row["label"], row["background"]
        assert row["accuracy"] == pytest.approx(accuracy.mean(0)[2 * c + d])
        assert row["train_images"] == ((y == c) & (b == d)).sum()
    for name, rows in (("usual", y_test == b_test), ("unusual", y_test != b_test)):
        assert found[name] == pytest.approx(np.mean([100 * right[rows].mean() for right in rights]))
    assert found["worst"] < found["average"] - 10
    some = ~((y == 0) & (b == 1))
    rest = linear.group_probe(x, y, b, x[some], y[some], b[some])
    assert (rest["missing"], len(rest["groups"])) == (1, 3)
    only = linear.group_probe(x, y, b, x[y == b], y[y == b], b[y == b])
    assert only["unusual"] is None and only["usual"] == pytest.approx(only["average"])


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
    best = (model.contributions(z).sum(1) + model.bias).argmax(1)
    np.testing.assert_array_equal(model.classes[best], model.predict(z))
    np.testing.assert_allclose(model.contributions(z.mean(0, keepdims=True)), 0, atol=1e-5)


def test_sparse_uses_few_dimensions() -> None:
    rng = np.random.default_rng(2)
    y = rng.integers(2, size=400)
    z = rng.normal(size=(400, 30))
    z[:, 7] += 4 * y
    z = np.c_[z, np.zeros((400, 50))]  # dimensions switched off
    model = fit_linear(z, y, sparse=True)
    assert model.used[7] and model.used.sum() < 10 and not model.used[30:].any()
    assert (model.predict(z) == y).mean() > 0.95


def test_group_accuracy_equals_counting() -> None:
    rng = np.random.default_rng(3)
    y, place = rng.choice(["a", "b"], 50), rng.integers(3, size=50)
    predicted = rng.choice(["a", "b"], 50)
    found = group_accuracy(predicted, y, place)
    for row in found["groups"]:
        inside = (y == row["class"]) & (place == row["group"])
        share = 100 * (predicted == y)[inside].mean()
        assert (row["images"], row["accuracy"]) == (inside.sum(), pytest.approx(share))
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
    for wrong in ([8], [-1], range(8)):
        with pytest.raises(InputError):
            trim(z, y, test_z, test_y, place, wrong)
