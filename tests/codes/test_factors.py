"""Factors: splits found without labels, and codes in groups."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bayesncl import ReadableCodes
from bayesncl.codes import estimator
from bayesncl.codes.factors import N_NEIGHBORS, find_axes, measure_split, splits_in_two, two_means
from bayesncl.measure.columns import stability
from bayesncl.measure.preprocess import prepare


def composed(rows: int = 600, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows [N, 48] of one of eight things on one of two backgrounds, and both labels."""
    rng = np.random.default_rng(seed)
    thing, place = rng.integers(8, size=rows), rng.integers(2, size=rows)
    directions = np.linalg.qr(rng.normal(size=(48, 9)))[0].T  # [9, 48]
    x = 4.0 * directions[thing] + np.where(place, 5.0, -5.0)[:, None] * directions[8]
    return x + rng.normal(0, 0.5, x.shape), thing, place


def one_thing(rows: int = 600) -> np.ndarray:
    """Rows [N, 48] of eight things in two superclasses, each thing in one superclass only."""
    x, thing, place = composed(9 * rows, 1)
    return x[place == thing // 4][:rows]


def centered(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy((x - x.mean(0)).astype(np.float32))


def purity(codes: np.ndarray, labels: np.ndarray) -> float:
    """Share of nearest rows, by cosine, with the same label."""
    s = codes @ codes.T / np.outer(*[np.linalg.norm(codes, axis=1)] * 2)
    np.fill_diagonal(s, -1)
    return float((labels[s.argmax(1)] == labels).mean())


def test_the_background_is_a_factor_and_a_superclass_is_not() -> None:
    x, _, place = composed()
    axes = find_axes(centered(x))
    assert axes.shape == (1, 48)
    between = x[place == 1].mean(0) - x[place == 0].mean(0)
    assert abs(float(axes[0] @ torch.from_numpy(between).float())) > 0.95 * np.linalg.norm(between)
    assert len(find_axes(centered(one_thing()))) == 0
    assert len(find_axes(torch.randn(600, 48, generator=torch.Generator().manual_seed(0)))) == 0


def test_split_measures_against_a_slow_twin() -> None:
    rows = centered(composed(150)[0])
    (axis, found_crossing, independence), side = measure_split(rows), two_means(rows).numpy()
    x, axis = rows.double().numpy(), axis.double().numpy()
    n = len(x)

    def neighbors(x: np.ndarray) -> list[set[int]]:
        u = x / np.linalg.norm(x, axis=1, keepdims=True)
        order = [np.argsort([-9 if i == j else u[i] @ u[j] for j in range(n)]) for i in range(n)]
        return [{int(j) for j in row[::-1][:N_NEIGHBORS]} for row in order]

    before, after = neighbors(x), neighbors(x - np.outer(x @ axis, axis))
    chance = np.mean([side[i] != side[j] for i in range(n) for j in range(n)])
    crossing = np.mean([side[i] != side[j] for i in range(n) for j in before[i]])
    new = np.mean([side[i] != side[j] for i in range(n) for j in after[i] - before[i]])
    assert found_crossing == pytest.approx(crossing / chance, abs=0.01)
    assert independence == pytest.approx(new / chance, abs=0.01)


def test_groups_take_the_picture_apart(tmp_path: Path) -> None:
    x, thing, place = composed()
    codes = ReadableCodes(64, method="factors", random_state=0).fit(x)
    assert codes.groups_.tolist() == [0] * 16 + [1] * 48
    z = codes.transform(x)
    codes.save(tmp_path / "codes.safetensors")
    again = ReadableCodes.load(tmp_path / "codes.safetensors")
    assert (again.groups_ == codes.groups_).all() and (again.transform(x) == z).all()
    assert np.allclose(np.linalg.norm(z, axis=1), 1, atol=1e-5)
    coarse, fine = z[:, codes.groups_ == 0], z[:, codes.groups_ == 1]
    assert purity(coarse, place) > 0.95
    assert purity(fine, thing) > 0.95
    assert purity(fine, place) < 0.65  # chance is 0.5
    plain = ReadableCodes(64, random_state=0).fit(x).transform(x)
    assert purity(plain, place) > 0.9  # one meaning per image: a thing on a background


def test_the_first_group_is_fitted_to_a_few_rows(monkeypatch) -> None:
    x, thing, place = composed()
    monkeypatch.setattr(estimator, "MAX_ROWS", 150)
    codes = ReadableCodes(64, method="factors", batch_size=400, random_state=0).fit(x)
    z = codes.transform(x)
    assert purity(z[:, codes.groups_ == 0], place) > 0.95
    assert purity(z[:, codes.groups_ == 1], thing) > 0.95
    pairs = np.arange(len(x))  # rows as their own partners: all groups need all rows
    codes = ReadableCodes(64, method="factors", max_iter=5, random_state=0).fit(x, pairs=pairs)
    assert set(codes.groups_) == {0, 1}


def test_dimensions_come_back_from_another_seed() -> None:
    x = composed()[0]
    one, two = (
        ReadableCodes(64, method="factors", n_active=5, random_state=s).fit_transform(x)
        for s in (0, 1)
    )
    assert stability(one, two)["mean_cosine"] > 0.8


@pytest.mark.parametrize("width", [32, "auto"])
def test_without_a_factor_codes_are_those_of_prototypes(width: int | str) -> None:
    x = one_thing(300)
    one, two = (
        ReadableCodes(width, method=method, random_state=0).fit(x)
        for method in ("factors", "prototypes")
    )
    assert set(one.groups_) == {0}
    assert np.array_equal(one.transform(x), two.transform(x))


def test_prototypes_of_composed_images_are_told_of_factors() -> None:
    x = composed(300)[0]
    assert splits_in_two(ReadableCodes(16, max_iter=0).fit(x), x)
    x = one_thing(300)
    assert not splits_in_two(ReadableCodes(16, max_iter=0).fit(x), x)


def test_warm_start_keeps_the_groups() -> None:
    x = composed()[0]
    codes = ReadableCodes(32, method="factors", random_state=0).fit(x[:500])
    assert codes.groups_.max() == 1
    z, groups = codes.transform(x), codes.groups_
    codes.set_params(warm_start=True).fit(x)
    assert (codes.groups_ == groups).all()
    after = codes.transform(x)
    cosine = (z * after).sum(0) / np.linalg.norm(z, axis=0) / np.linalg.norm(after, axis=0)
    assert cosine.mean() > 0.95
    axes = find_axes(prepare(torch.from_numpy(x.astype(np.float32)), codes.moments_))
    seen = codes.head_.groups[1].projection.weight @ axes.T
    assert float(seen.detach().abs().max()) < 1e-4  # the second group still does not see the factor
