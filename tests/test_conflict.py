"""Conflict, stability and conflicting features against loops over pairs, rows and classes."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
import torch

from bayesncl.errors import InputError
from bayesncl.measure import conflict as module
from bayesncl.measure import counts
from bayesncl.measure.conflict import conflict, conflicting_features, gate_effect, stability
from tests.conftest import unit_length


@pytest.fixture
def scene() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features with 3 class dimensions, 2 background dimensions, 1 of noise; classes tied to backgrounds."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 60)
    b = np.where(rng.random(60) < 0.7, y % 2, 1 - y % 2)
    z = np.concatenate([np.eye(3)[y], 0.7 * np.eye(2)[b], np.zeros((60, 1))], axis=1) + 0.3 * rng.random((60, 6))
    return unit_length(z), y, b


def pairs_by_loop(z: np.ndarray, y: np.ndarray, b: np.ndarray, w: np.ndarray) -> dict[str, list[np.ndarray]]:
    kinds: dict[str, list[np.ndarray]] = {"shared": [], "apart": [], "same": []}
    for i, j in combinations(range(len(z)), 2):
        kind = "same" if y[i] == y[j] else "shared" if b[i] == b[j] else "apart"
        kinds[kind].append(w * z[i] * z[j])
    return kinds


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("block", [2**21, 50])
def test_conflict_is_the_loop_over_pairs(scene, weighted: bool, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "BLOCK", block)
    z, y, b = scene
    w = np.random.default_rng(1).random(6) if weighted else np.ones(6)
    kinds = pairs_by_loop(z, y, b, w)
    found = conflict(z, y + 5, 10 * b - 3, w if weighted else None)
    shared, apart, same = (np.mean(kinds[k], axis=0) for k in ("shared", "apart", "same"))
    parts = found["by_dimension"]
    np.testing.assert_allclose(parts["shared"], shared, rtol=1e-9)
    np.testing.assert_allclose(parts["apart"], apart, rtol=1e-9)
    np.testing.assert_allclose(parts["error"], shared - apart, atol=1e-12)
    assert found["pairs_shared"] == len(kinds["shared"])
    assert found["pairs_apart"] == len(kinds["apart"])
    assert found["similarity_same_class"] == pytest.approx(same.sum())
    assert found["error"] == pytest.approx((shared - apart).sum())
    assert found["error_relative"] == pytest.approx((shared - apart).sum() / same.sum())
    assert found["added"] + found["cancelled"] == pytest.approx(found["error"])
    assert parts["share"].sum() == pytest.approx(1)


def test_the_background_dimensions_carry_the_error(scene) -> None:
    found = conflict(*scene)
    assert set(found["ranking"][:2]) == {3, 4}
    assert found["by_dimension"]["share"][[3, 4]].sum() > 0.9
    assert found["dims_for_half"] <= 2
    assert abs(found["chance_error"]) < 0.2 * found["error"]


def test_shuffled_backgrounds_stay_within_their_class(scene) -> None:
    _, y, b = scene
    shuffled = module._shuffle_within(b, y)
    assert not np.array_equal(shuffled, b)
    for c in range(3):
        assert sorted(shuffled[y == c]) == sorted(b[y == c])


def test_relative_error_does_not_change_with_scale(scene) -> None:
    z, y, b = scene
    assert conflict(3 * z, y, b)["error_relative"] == pytest.approx(conflict(z, y, b)["error_relative"])
    assert conflict(3 * z, y, b)["error"] == pytest.approx(9 * conflict(z, y, b)["error"])


def test_torch_and_float32_give_the_same(scene) -> None:
    z, y, b = scene
    found = conflict(torch.from_numpy(z).float(), torch.from_numpy(y), torch.from_numpy(b))
    assert found["error"] == pytest.approx(conflict(z, y, b)["error"], rel=1e-5)


def test_gate_effect_is_three_loops(scene) -> None:
    z, y, b = scene
    mask = np.ones_like(z)
    mask[:, 3] = 0  # one background dimension shut for all
    mask[::2, 0] = 0
    gated = unit_length(z * mask)

    def error(features: np.ndarray) -> tuple[np.ndarray, float]:
        kinds = {k: np.mean(v, axis=0) for k, v in pairs_by_loop(features, y, b, np.ones(6)).items()}
        return kinds["shared"] - kinds["apart"], float(kinds["same"].sum())

    (before, scale), (closed, _), (after, scale_after) = error(z), error(z * mask), error(gated)
    found = gate_effect(z, gated, y, b)
    assert found["error_ungated"] == pytest.approx(before.sum())
    assert found["error_closed"] == pytest.approx(closed.sum())
    assert found["error_gated"] == pytest.approx(after.sum())
    assert found["removed"] == pytest.approx(before.sum() - after.sum())
    assert found["removed_share"] == pytest.approx(1 - after.sum() / before.sum())
    assert found["removed_by_closing"] - found["returned_by_renormalising"] == pytest.approx(found["removed"])
    relative, relative_after = before.sum() / scale, after.sum() / scale_after
    assert found["removed_relative_share"] == pytest.approx(1 - relative_after / relative)
    np.testing.assert_allclose(found["by_dimension"]["removed"], before - after, atol=1e-12)
    assert found["removed"] > 0


def test_open_gates_change_nothing(scene) -> None:
    z, y, b = scene
    found = gate_effect(z, z, y, b)
    assert found["removed"] == 0
    assert found["returned_by_renormalising"] == pytest.approx(0)


def test_stability_is_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "BLOCK", 20)
    rng = np.random.default_rng(2)
    a, b = 3 * rng.random((25, 4)), rng.random((25, 4))
    a[7] = 0
    table = unit_length(a) @ unit_length(b).T
    found = stability(a, b)
    assert found["cosine"] == pytest.approx(np.diag(table).mean())
    assert found["spread"] == pytest.approx(np.diag(table).std())
    assert found["chance"] == pytest.approx(np.mean([table[i, j] for i, j in product(range(25), repeat=2) if i != j]))
    assert found["zero_rows"] == 1 / 25
    assert found["gain"] == pytest.approx(found["cosine"] - found["chance"])


def test_a_collapsed_representation_is_stable_and_gains_nothing() -> None:
    found = stability(np.ones((5, 3)), np.ones((5, 3)))
    assert found["cosine"] == pytest.approx(1)
    assert found["gain"] == pytest.approx(0)


@pytest.mark.parametrize("threshold", [0.9, 0.5, 0.2])
def test_conflicting_features_are_those_of_the_definition(threshold: float) -> None:
    rng = np.random.default_rng(4)
    y = rng.integers(0, 5, 300)
    rate = rng.choice([0.0, 0.6, 0.8, 0.97, 1.0], (5, 12))
    fires = rng.random((300, 12)) < rate[y]
    z = np.where(fires, rng.normal(size=fires.shape), 0)
    p = np.array([[fires[y == c, k].mean() for k in range(12)] for c in range(5)])
    expected = {}
    for k in range(12):
        joined = {c for c, d in product(range(5), repeat=2) if c != d and p[c, k] * p[d, k] >= threshold}
        if joined:
            expected[k] = joined
    found = conflicting_features(z, y, threshold)
    assert {row["dim"]: set(row["classes"]) for row in found["dims"]} == expected
    assert found["count"] == len(expected)
    assert found["share"] == len(expected) / 12
    assert found["chance_count"] == int((fires.mean(0) ** 2 >= threshold).sum())
    products = [row["product"] for row in found["dims"]]
    assert products == sorted(products, reverse=True)
    for row in found["dims"]:
        assert row["probabilities"] == [p[c, row["dim"]] for c in row["classes"]]
        assert row["product"] == pytest.approx(np.prod(np.sort(p[:, row["dim"]])[-2:]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.zeros(8, int)}, "one class only"),
        ({"backgrounds": np.zeros(8, int)}, "2 classes on 1 backgrounds"),
        ({"backgrounds": np.arange(8) % 2}, "2 classes on 2 backgrounds"),
        ({"backgrounds": np.zeros(7, int)}, "7 backgrounds for 8 rows"),
        ({"labels": np.zeros(7, int)}, "7 labels for 8 rows"),
        ({"features": np.full((8, 3), np.nan)}, "finite"),
        ({"weights": np.ones(4)}, r"\[3\], one per dimension, got \[4\]"),
    ],
)
def test_bad_input_gets_one_clear_line(change: dict, message: str) -> None:
    good = {"features": np.ones((8, 3)), "labels": np.arange(8) % 2, "backgrounds": np.arange(8) // 4}
    with pytest.raises(InputError, match=message):
        conflict(**(good | change))


def test_features_that_do_not_fit_together_are_refused(scene) -> None:
    z, y, b = scene
    with pytest.raises(InputError, match="before the gates"):
        gate_effect(z, z[:, :4], y, b)
    with pytest.raises(InputError, match="aligned"):
        stability(z, z[:10])
    with pytest.raises(InputError, match="two images"):
        stability(z[:1], z[:1])
