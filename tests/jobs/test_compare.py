"""bayesncl compare: novelty and use of dimensions, against slow twins and on planted novelty."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from bayesncl.codes.estimator import ReadableCodes
from bayesncl.codes.folder import CodesFolder
from bayesncl.codes.novelty import SHRINKAGE, Novelty, entropy
from bayesncl.jobs.compare import deviations, usage
from bayesncl.measure.preprocess import prepare
from tests.conftest import unit_length

RNG = np.random.default_rng(0)
CENTERS = RNG.normal(0, 1, (5, 24))


def rows(classes: range, n: int = 240) -> np.ndarray:
    y = RNG.choice(list(classes), n)
    return (CENTERS[y] + 0.3 * RNG.normal(0, 1, (n, 24))).astype(np.float32)


def test_entropy_of_dense_codes_against_a_loop() -> None:
    z = RNG.random((6, 9)) * (RNG.random((6, 9)) < 0.6)
    z[0], z[1], z[2] = 0, np.eye(9)[3], 1
    slow = []
    for row in z.tolist():
        p = [v / sum(row) for v in row if v > 0]
        slow.append(-sum(v * math.log(v) for v in p) / math.log(9))
    np.testing.assert_allclose(entropy(z), slow, atol=1e-12)
    assert entropy(z)[1] == 0 and math.isclose(entropy(z)[2], 1)
    np.testing.assert_allclose(entropy(z), entropy(7 * z), atol=1e-12)  # the scale does not count


def slow_parts(codes: ReadableCodes, fitted: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Entropy and Mahalanobis distance of each row of x."""
    a, b = (prepare(torch.from_numpy(r), codes.moments_).double().numpy() for r in (fitted, x))
    covariance = np.cov(a.T, bias=True)
    covariance += SHRINKAGE * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    away = [math.sqrt(r @ np.linalg.solve(covariance, r)) for r in b - a.mean(0)]
    return np.array([entropy(codes.dense(x)), away])


@pytest.mark.parametrize("held", [0, 40])
def test_novelty_against_a_loop(held: int) -> None:
    x, new = rows(range(4)), rows(range(5), 30)
    fitted = x[: len(x) - held]
    codes = ReadableCodes(8, max_iter=20, random_state=0, device="cpu").fit(fitted)
    found = Novelty(codes, x, held)
    parts = slow_parts(codes, fitted, x[len(x) - held :] if held else x)
    if not held:  # without the row itself, but with its share of the mean and of the shrinkage
        parts[1] = np.sqrt(parts[1] ** 2 / (1 - parts[1] ** 2 / len(x)))
    mean, spread = parts.mean(1), parts.std(1)
    for values, of in ((found.reference, parts), (found(new), slow_parts(codes, fitted, new))):
        each = (of.T - mean) / spread
        slow = [math.log((math.exp(h) + math.exp(m)) / 2) for h, m in each.tolist()]
        np.testing.assert_allclose(values, slow, atol=2e-3)
    np.testing.assert_allclose(found(x, np.arange(len(x)))[found.index], found.reference, atol=1e-5)


def test_usage_counts_images_by_their_strongest_dimensions() -> None:
    z = unit_length(RNG.random((50, 8)))
    slow = np.zeros(8)
    for row in z:
        for k in sorted(range(8), key=lambda k: -row[k])[:3]:
            slow[k] += 1 / 50
    np.testing.assert_allclose(usage(z, 3), slow)


def test_deviations_are_in_standard_errors() -> None:
    found = deviations(np.array([0.1, 0, 0.5]), np.array([0.3, 0, 0.5]), 100, 50)
    pooled = (10 + 15) / 150
    expected = 0.2 / math.sqrt(pooled * (1 - pooled) * (1 / 100 + 1 / 50))
    np.testing.assert_allclose(found, [expected, 0, 0])


def test_an_unseen_class_is_novel(run, tmp_path: Path) -> None:
    np.save("x.npy", rows(range(4)))
    np.savez("new.npz", z=np.concatenate([rows(range(1), 30), rows(range(4, 5), 30)]))
    assert run("fit", "x.npy", "-o", "codes", "--components", "16", "--quiet").status == 0
    answer = run("compare", "codes", "new.npz", "-o", "t.csv", "-n", "3", "--quiet")
    assert answer.status == 0 and "changed in use" in answer.out
    with open("t.csv", newline="") as file:
        table = list(csv.DictReader(file))
    scores = [float(row["novelty"]) for row in table]
    assert scores == sorted(scores, reverse=True) and len(table) == 60
    assert sum(int(row["image"]) >= 30 for row in table[:30]) >= 27
    assert run("embed", "codes", "new.npz", "-o", "e.csv", "--active", "2", "--quiet").status == 0
    with open("e.csv", newline="") as file:
        column = {row["name"]: float(row["novelty"]) for row in csv.DictReader(file)}
    for row in table:  # of the dense code, whatever is kept
        assert math.isclose(column[row["image"]], float(row["novelty"]), rel_tol=1e-4)
    assert CodesFolder("codes").codes().n_active is None
