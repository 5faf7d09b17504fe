"""Detectors, sparse probes and hierarchies against loops over every threshold, class and level."""

import numpy as np
import pytest

from bayesncl.measure import detectors
from bayesncl.measure.linear import sparse_probe
from bayesncl.measure.topk import keep
from tests.conftest import unit_length
from tests.measure.test_topk import codes


def slow_f1(values: np.ndarray, own: np.ndarray) -> tuple[float, float]:
    best_f1, best_iou = 0.0, 0.0
    for threshold in np.unique(values[values > 1e-5]):
        said = values >= threshold
        tp = (said & own).sum()
        best_f1 = max(best_f1, 2 * tp / (said.sum() + own.sum()))
        best_iou = max(best_iou, tp / (said | own).sum())
    return best_f1, best_iou


def test_best_f1_and_iou_over_every_threshold() -> None:
    z, y = codes(n=120, d=9, classes=4, signed=True)
    unit = np.abs(unit_length(z)).astype(np.float32)
    unit[unit <= 1e-5] = 0
    own, best = detectors.best_f1(z, [y], 4)[0]
    for j in range(z.shape[1]):
        if not unit[:, j].any():
            assert np.isnan([own[j], best[j]]).all()
            continue
        scores = [slow_f1(unit[:, j], y == c) for c in range(4)]
        means = [unit[y == c, j].astype(np.float64).mean() for c in range(4)]
        wanted = scores[int(np.argmax(means))], max(scores)
        for f1, expected in zip((own[j], best[j]), wanted):
            assert (f1, f1 / (2 - f1)) == pytest.approx(expected)


def test_summary_beats_shuffled_labels_and_has_no_nan() -> None:
    found, chance = detectors.summary(*codes())
    for name in ("f1", "iou", "best_f1", "best_iou"):
        assert found[name] > chance[name]
    assert detectors.summary(np.zeros((20, 3)), np.arange(20) % 2)[0]["f1"] is None


def slow_sparse_probe(train: tuple, test: tuple, k: int) -> float:
    unit = [unit_length(z) for z in (train[0], test[0])]
    scores = []
    for c in np.unique(train[1]):
        own, own_test = train[1] == c, test[1] == c
        gaps = np.abs(unit[0][own].mean(0) - unit[0][~own].mean(0))
        dims = sorted(range(len(gaps)), key=lambda j: -gaps[j])[:k]
        x = unit[0][:, dims]
        within = sum(np.cov(x[part].T, bias=True) * part.mean() for part in (own, ~own))
        within = np.atleast_2d(within)
        within += (1e-3 * np.trace(within) / len(dims) + 1e-12) * np.eye(len(dims))
        weight = np.linalg.inv(within) @ (x[own].mean(0) - x[~own].mean(0))
        score, levels = x @ weight, np.unique((x @ weight).astype(np.float32))[::-1]
        best, cut = -1.0, 0.0
        for high, low in zip(levels, [*levels[1:], -np.inf]):
            middle = (high + low) / 2
            balanced = (score[own] > middle).mean() + (score[~own] <= middle).mean()
            if balanced > best + 1e-9:
                best, cut = balanced, middle
        said = unit[1][:, dims] @ weight > cut
        scores.append(50 * (said[own_test].mean() + (~said[~own_test]).mean()))
    return float(np.mean(scores))


def test_classes_read_from_their_best_dimensions() -> None:
    rng = np.random.default_rng(1)
    y = rng.integers(4, size=500)
    # no ties but zeros
    z = np.maximum(rng.standard_normal((500, 12)) + 1.5 * (np.arange(12) % 4 == y[:, None]), 0)
    train, test = (z[:300], y[:300]), (z[300:], y[300:])
    found = sparse_probe(train, test)
    for k in (1, 2, 4):
        assert found[k] == pytest.approx(slow_sparse_probe(train, test, k), abs=0.5)
    assert found[4] > found[1] > 60
    shuffled = sparse_probe((z[:300], rng.permutation(y[:300])), test)
    assert shuffled[1] == pytest.approx(50, abs=8)
    some = test[0][test[1] > 0], test[1][test[1] > 0]  # a class without test rows is left out
    assert 50 < sparse_probe(train, some)[1] <= 100


def test_the_level_a_dimension_fits_best() -> None:
    rng = np.random.default_rng(0)
    fine = rng.integers(8, size=400)
    z = np.zeros((400, 3))
    z[:, 0] = fine == 3  # one fine class
    z[:, 1] = fine >= 4  # a whole superclass
    z[:5, 2] = 1  # too few images
    coarse = np.array(["x", "y"])[fine // 4]
    found, chance = detectors.fit_levels(z, {"fine": fine, "coarse": coarse})
    assert found["dimensions"] == {"fine": 1, "coarse": 1} and found["consistency"] == 100
    assert chance["consistency"] < 70
    z, y = codes()
    levels, kept, shares = {"fine": y, "coarse": y // 2}, keep(z, 2), []
    for on in kept.toarray().T != 0:
        if on.sum() < 10:
            continue
        fits = []
        for labels in levels.values():
            many = np.bincount(labels[on])
            share, prior = many.max() / on.sum(), (labels == many.argmax()).mean()
            fits.append(((share - prior) / (1 - prior), share))
        shares.append(max(fits)[1])
    assert detectors.fit_levels(kept, levels)[0]["consistency"] == pytest.approx(100 * np.mean(shares))
    assert detectors.fit_levels(np.eye(20), {"fine": np.arange(20) % 2})[0]["consistency"] is None
