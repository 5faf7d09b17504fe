"""Accuracy of the object probe by group, against loops over groups."""

from __future__ import annotations

import numpy as np
import pytest

from bayesncl.measure.linear import fast_probe, group_probe, rank_classes


def split(n: int, tied: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two classes on two backgrounds; the background has the stronger signal."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    b = np.where(rng.random(n) < tied, y, 1 - y)
    signs = np.stack([1.0 * (2 * y - 1), 2.0 * (2 * b - 1), np.zeros(n)], axis=1)
    return (signs + rng.normal(size=(n, 3))).astype(np.float32), y, b


def test_group_probe_is_the_loop_over_groups() -> None:
    (x, y, b), (x_test, y_test, b_test) = split(600, 0.95, 0), split(400, 0.5, 1)
    found = group_probe(x, y, b, x_test, y_test, b_test)
    rankings = rank_classes(x, y, x_test)
    by_seed = []
    for ranking in rankings:
        accuracy = {}
        for c in range(2):
            for d in range(2):
                rows = [i for i in range(400) if y_test[i] == c and b_test[i] == d]
                accuracy[c, d] = 100 * np.mean([ranking.top[i, 0] == y_test[i] for i in rows])
        by_seed.append(accuracy)
    assert found["worst_per_seed"] == pytest.approx([min(a.values()) for a in by_seed])
    assert found["worst"] == pytest.approx(np.mean(found["worst_per_seed"]))
    assert found["worst_spread"] == pytest.approx(np.std(found["worst_per_seed"], ddof=1))
    assert found["balanced"] == pytest.approx(np.mean([list(a.values()) for a in by_seed]))
    assert found["average"] == pytest.approx(fast_probe(x, y, x_test, y_test)["acc1"])
    for row in found["groups"]:
        key = row["label"], row["background"]
        assert row["accuracy"] == pytest.approx(np.mean([a[key] for a in by_seed]))
        assert row["images"] == sum(y_test[i] == key[0] and b_test[i] == key[1] for i in range(400))
        assert row["train_images"] == sum(y[i] == key[0] and b[i] == key[1] for i in range(600))
    assert [
        row["accuracy"] for row in found["groups"]
    ] == sorted(row["accuracy"] for row in found["groups"])
    assert found["missing"] == 0
    for name, rows in (("usual", y_test == b_test), ("unusual", y_test != b_test)):
        expected = [100 * np.mean(r.top[rows, 0] == y_test[rows]) for r in rankings]
        assert found[name] == pytest.approx(np.mean(expected))
    assert found["worst"] < found["average"] - 10


def test_missing_groups_are_counted() -> None:
    x, y, b = split(200, 0.95, 2)
    keep = ~((y == 0) & (b == 1))
    found = group_probe(x, y, b, x[keep], y[keep], b[keep])
    assert found["missing"] == 1
    assert len(found["groups"]) == 3
    only = group_probe(x, y, b, x[y == b], y[y == b], b[y == b])
    assert only["unusual"] is None
    assert only["usual"] == pytest.approx(only["average"])
