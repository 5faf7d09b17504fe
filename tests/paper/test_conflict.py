"""Conflict, stability and conflicting features against loops over pairs, rows and classes."""

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from bayesncl.errors import InputError
from bayesncl.paper.conflict import (
    conflict,
    conflicting_features,
    gate_effect,
    pair_similarity,
    stability,
)
from tests.conftest import unit_length

Scene = tuple[np.ndarray, np.ndarray, np.ndarray]


@pytest.fixture
def scene() -> Scene:
    """Three class dimensions, two of the background, one of noise; classes tied to backgrounds."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 60)
    b = np.where(rng.random(60) < 0.7, y % 2, 1 - y % 2)
    z = np.concatenate([np.eye(3)[y], 0.7 * np.eye(2)[b], np.zeros((60, 1))], axis=1)
    return unit_length(z + 0.3 * rng.random((60, 6))), y, b


def pairs_by_loop(z: np.ndarray, y: np.ndarray, b: np.ndarray, w: Any = 1.0) -> dict[str, Any]:
    kinds: dict[str, list[np.ndarray]] = {"shared": [], "apart": [], "same": []}
    for i, j in combinations(range(len(z)), 2):
        kind = "same" if y[i] == y[j] else "shared" if b[i] == b[j] else "apart"
        kinds[kind].append(w * z[i] * z[j])
    return kinds


def test_conflict_is_the_loop_over_pairs(scene: Scene) -> None:
    z, y, b = scene
    w = np.random.default_rng(1).random(6)
    kinds = pairs_by_loop(z, y, b, w)
    found = conflict(z, y + 5, 10 * b - 3, w)
    shared, apart, same = (np.mean(kinds[k], axis=0) for k in ("shared", "apart", "same"))
    np.testing.assert_allclose(found["by_dimension"], shared - apart, atol=1e-12)
    assert found["similarity_shared"] == pytest.approx(shared.sum())
    assert found["similarity_apart"] == pytest.approx(apart.sum())
    assert found["similarity_same_class"] == pytest.approx(same.sum())
    assert found["error"] == pytest.approx((shared - apart).sum())
    assert found["error_relative"] == pytest.approx((shared - apart).sum() / same.sum())


def test_the_background_dimensions_carry_the_error(scene: Scene) -> None:
    z, y, b = scene
    found = conflict(z, y, b)
    assert found["by_dimension"][[3, 4]].sum() > 0.9 * np.maximum(found["by_dimension"], 0).sum()
    assert abs(found["chance_error"]) < 0.2 * found["error"]


def test_gate_effect_is_three_loops(scene: Scene) -> None:
    z, y, b = scene
    mask = np.ones_like(z)
    mask[:, 3] = 0  # one background dimension closed for all
    mask[::2, 0] = 0
    gated = unit_length(z * mask)

    def error(features: np.ndarray) -> tuple[np.ndarray, float]:
        kinds = {k: np.mean(v, axis=0) for k, v in pairs_by_loop(features, y, b).items()}
        return kinds["shared"] - kinds["apart"], float(kinds["same"].sum())

    (before, scale), (closed, _), (after, scale_after) = error(z), error(z * mask), error(gated)
    pairs = [pair_similarity(x, y, b) for x in (z, z * mask, gated)]
    found = gate_effect(*pairs)
    assert found["error_ungated"] == pytest.approx(before.sum())
    assert found["error_closed"] == pytest.approx(closed.sum())
    assert found["error_gated"] == pytest.approx(after.sum())
    both = found["removed_by_closing"] - found["returned_by_renormalizing"]
    assert both == pytest.approx(before.sum() - after.sum())
    relative, relative_after = before.sum() / scale, after.sum() / scale_after
    assert found["removed_relative_share"] == pytest.approx(1 - relative_after / relative)
    assert gate_effect(*pairs[:1] * 3)["removed_relative_share"] == 0


def test_stability_is_the_loop() -> None:
    rng = np.random.default_rng(2)
    a, b = 3 * rng.random((25, 4)), rng.random((25, 4))
    a[7] = 0
    table = unit_length(a) @ unit_length(b).T
    found = stability(a, b)
    assert found["cosine"] == pytest.approx(np.diag(table).mean())
    assert found["spread"] == pytest.approx(np.diag(table).std())
    others = [table[i, j] for i, j in product(range(25), repeat=2) if i != j]
    assert found["chance"] == pytest.approx(np.mean(others))
    assert found["zero_rows"] == 1 / 25
    collapsed = stability(np.ones((5, 3)), np.ones((5, 3)))
    assert (collapsed["cosine"], collapsed["gain"]) == pytest.approx((1, 0))


@pytest.mark.parametrize("threshold", [0.9, 0.5, 0.2])
def test_conflicting_features_are_those_of_the_definition(threshold: float) -> None:
    rng = np.random.default_rng(4)
    y = rng.integers(0, 5, 300)
    fires = rng.random((300, 12)) < rng.choice([0.0, 0.6, 0.8, 0.97, 1.0], (5, 12))[y]
    z = np.where(fires, rng.normal(size=fires.shape), 0)
    p = np.array([[fires[y == c, k].mean() for k in range(12)] for c in range(5)])
    pairs = list(product(range(5), repeat=2))
    every = ({c for c, d in pairs if c != d and p[c, k] * p[d, k] >= threshold} for k in range(12))
    expected = {k: joined for k, joined in enumerate(every) if joined}
    found = conflicting_features(z, y, str, threshold)
    assert {row["dim"]: set(map(int, row["classes"])) for row in found["worst"]} == expected
    assert found["count"] == len(expected)
    assert found["chance_count"] == int((fires.mean(0) ** 2 >= threshold).sum())
    products = [row["product"] for row in found["worst"]]
    assert products == sorted(products, reverse=True)
    for row in found["worst"]:
        shares = [p[int(c), row["dim"]] for c in row["classes"]]
        assert shares == sorted(shares, reverse=True)
        assert row["product"] == pytest.approx(np.prod(np.sort(p[:, row["dim"]])[-2:]))


@pytest.mark.parametrize("backgrounds", [np.zeros(8, int), np.arange(8) % 2])
def test_conflict_needs_both_kinds_of_pairs(backgrounds: np.ndarray) -> None:
    with pytest.raises(InputError, match="2 classes on"):
        conflict(np.ones((8, 3)), np.arange(8) % 2, backgrounds)
