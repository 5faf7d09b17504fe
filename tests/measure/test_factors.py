"""Measures of images with several known factors, against slow twins and on planted codes."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import mutual_info_score

from bayesncl.codes.estimator import ReadableCodes
from bayesncl.codes.folder import CodesFolder
from bayesncl.codes.judge import judged_rows
from bayesncl.data import load
from bayesncl.errors import InputError
from bayesncl.evaluate import backgrounds_of, measure_codes, measure_features, measure_file
from bayesncl.measure import factors as module
from bayesncl.measure.factors import about, change, class_auc, summary
from bayesncl.measure.registry import find
from bayesncl.report.tables import render
from bayesncl.training.run_folder import RunFolder

RNG = np.random.default_rng(0)


def planted(n: int = 600, noise: float = 0.1) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Dimensions 0 to 2 are one kind each, 3 and 4 a place each, 5 is kind 0 on place 0, 6 noise."""
    rng = np.random.default_rng(1)
    kind, place = rng.integers(3, size=n), rng.integers(2, size=n)
    both = 0.3 * ((kind == 0) & (place == 0))  # small: rows are scaled to unit length
    z = np.c_[np.eye(3)[kind], np.eye(2)[place], both, np.zeros(n)] + noise * rng.random((n, 7))
    return z, {"kind": kind, "place": place}


def slow_auc(column: np.ndarray, inside: np.ndarray) -> float:
    gaps = column[inside][:, None] - column[~inside]
    wins, losses = (gaps > 0).sum(), (gaps < 0).sum()
    return wins / (wins + losses) if wins + losses else 0.5


@pytest.mark.parametrize("sparse", [False, True])
def test_auc_equals_counting_untied_pairs(sparse: bool) -> None:
    y = RNG.integers(3, size=40)
    z = RNG.normal(size=(40, 5)) + (y[:, None] == 1)
    z = np.maximum(np.round(z, 1), 0.5) - 0.5 if sparse else z
    z[:, 4] = 2
    auc = class_auc(z, y).auc
    expected = [[slow_auc(z[:, j], y == c) for j in range(5)] for c in range(3)]
    np.testing.assert_allclose(auc, expected, atol=1e-12)


@pytest.mark.parametrize("firing", [1.0, 0.3])
def test_error_is_the_spread_over_shuffled_labels(firing: float) -> None:
    y = np.repeat([0, 1, 1, 1], 50)
    z = RNG.random((200, 1)) * (RNG.random((200, 1)) < firing)
    found = [class_auc(z, RNG.permutation(y)).auc[0, 0] for _ in range(800)]
    assert class_auc(z, y).error[0, 0] == pytest.approx(np.std(found), rel=0.1)


def test_about_needs_a_distance_beyond_luck() -> None:
    n = 4000
    y = np.arange(n) % 2
    shift = [0.0, 0.2, 0.6, -0.6]  # AUC = Phi(shift / sqrt 2): .5, .56, .66, .34
    z = RNG.normal(size=(n, 4)) + np.outer(y, shift)
    assert about(z, y).tolist() == [False, False, True, True]
    assert norm.cdf(0.2 / math.sqrt(2)) - 0.5 < module.MIN_DISTANCE
    rare = np.arange(300) // 5  # 60 classes of 5 images: any dimension is far from 0.5 for some
    z = RNG.normal(size=(300, 400))
    assert (np.abs(class_auc(z, rare).auc - 0.5) > module.MIN_DISTANCE).any(0).all()
    assert about(z, rare).mean() < 0.1
    few = z * (RNG.random(z.shape) < 0.05)  # fires on 15 images: one of a class is many errors
    assert about(few, rare).mean() < 0.1


def test_a_dimension_that_fires_rarely_is_judged_by_where_it_fires() -> None:
    y = np.arange(1000) % 2
    z = np.zeros((1000, 2))
    z[:60, 0] = 1  # both classes alike
    z[1:60:2, 1] = 1  # class 1 alone, on 3 % of the images: its plain AUC is 0.53
    assert about(z, y).tolist() == [False, True]


def test_planted_dimensions_are_told_apart() -> None:
    z, factors = planted()
    found, chance = summary(z, factors)
    kind, place = found["each"]["kind"], found["each"]["place"]
    by_luck = chance["each"]["kind"]
    assert kind["alone"] == pytest.approx(100 * 3 / 7)
    assert place["alone"] == pytest.approx(100 * 2 / 7)
    assert found["mixed"] == pytest.approx(100 / 7) == found["nothing"]
    assert kind["neutral"] == pytest.approx(100 * 3 / 7)
    assert by_luck["alone"] == chance["each"]["place"]["alone"] == 0
    assert found["disentanglement"] > 0.8 > 0.5 > chance["disentanglement"]
    assert kind["informativeness"] > 95 > 60 > by_luck["informativeness"]
    assert kind["p5_16"] > 95 > 60 > by_luck["p5_16"]
    sparse = np.where(z > 0.5, z, 0)
    assert summary(sparse, factors)[0]["each"]["kind"]["owned_5"] == 3
    mixed = z @ np.linalg.qr(RNG.normal(size=(7, 7)))[0]
    turned, _ = summary(mixed, factors)
    assert turned["disentanglement"] < found["disentanglement"] - 0.2


def test_dci_equals_its_published_definition() -> None:
    def concentration(weights: np.ndarray) -> float:
        p = weights / weights.sum()
        return 1 + sum(q * math.log(q, len(p)) for q in p if q)

    matrix = RNG.random((5, 3))
    matrix[1], matrix[4] = [1, 0, 0], 0
    slow = sum(row.sum() / matrix.sum() * concentration(row) for row in matrix[:4])
    assert module.disentanglement(matrix) == pytest.approx(slow)
    assert module.completeness(matrix) == pytest.approx([concentration(c) for c in matrix.T])
    np.testing.assert_allclose(module.completeness(np.zeros((4, 2))), 0)


def test_mutual_information_equals_counting() -> None:
    y = RNG.integers(3, size=200)
    z = np.stack([y + 0.5 * RNG.random(200), RNG.random(200), np.ones(200)], 1)
    bins = [np.digitize(c, np.linspace(c.min(), c.max() + 1e-9, 21)) for c in z.T]
    slow = [mutual_info_score(y, each) for each in bins]
    assert module.mutual_information(z, y) == pytest.approx(slow)
    gap = (slow[0] - slow[1]) / mutual_info_score(y, y)
    assert module.information_gap(z, y) == pytest.approx(gap) and gap > 0.5


def test_change_equals_a_loop_over_pairs() -> None:
    z, other = RNG.random((12, 3)), RNG.random((12, 3))
    other[:, 1] = z[:, 1]
    z[:, 2] = other[:, 2] = 0.5
    pairs = np.square(z[:, None] - other)  # [12, 12, 3]
    wanted = np.diagonal(pairs).mean(1) / pairs.mean((0, 1)).clip(1e-9)
    found = change(z, other)
    assert found[:2] == pytest.approx(wanted[:2])
    assert found[1] == 0 and np.isnan(found[2])


def test_a_swap_changes_the_dimensions_of_the_background() -> None:
    z, factors = planted()
    swapped = z.copy()
    swapped[:, 3:5] = z[:, 4:2:-1]
    swapped[:, 5] = 0.3 * ((factors["kind"] == 0) & (factors["place"] == 1))
    found, chance = summary(z, factors, swapped=swapped)
    assert found["each"]["kind"]["swap"] < 0.1 < 1 < found["each"]["place"]["swap"]
    assert found["each"]["kind"]["swap"] < found["swap"] < found["each"]["place"]["swap"]
    assert chance["swap"] == pytest.approx(1, abs=0.1)
    for bad in ((factors, swapped[:-1]), ({"kind": factors["kind"]}, None)):
        with pytest.raises(InputError):
            summary(z, bad[0], swapped=bad[1])


def test_a_file_names_its_factors(run, tmp_path: Path) -> None:
    z, factors = planted(300)
    control = np.random.default_rng(2).random(z.shape)
    np.savez(tmp_path / "a.npz", z=z, y=factors["kind"], y_place=factors["place"], control=control)
    result = measure_file(tmp_path / "a.npz")
    options = {"factors": {"class": factors["kind"], "place": factors["place"]}}
    same = measure_features(z, factors["kind"], control=control, **options)
    assert result.factors == same.factors and set(result.factors["each"]) == {"class", "place"}
    for tree in (result.chance, result.control):
        assert tree["factors"]["each"]["class"]["alone"] == 0
    measure, name = find(("factors", "each", "place", "alone"))
    assert name == "place" and measure.title() in render(result)
    np.savez(tmp_path / "b.npz", z=z, y=factors["kind"])
    np.save(tmp_path / "place.npy", factors["place"])
    answer = run("measure", "b.npz", "--factor", "place=place.npy", "--all", "--quiet")
    assert answer.status == 0 and measure.label in answer.out
    for bad in (["place"], ["place=place.npy", "--factor", "place=place.npy"]):
        assert run("measure", "b.npz", "--factor", *bad).status == 2


def test_codes_of_a_run_bring_the_background(
    run, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("fit", trained, "-o", "codes", "--components", "8", "--quiet").status == 0
    folder = CodesFolder("codes")
    rows = folder.rows()
    test = load(RunFolder(trained).recipe().data, "test")
    chosen = judged_rows(rows)
    names = np.array(test.background_names)[test.backgrounds]
    np.testing.assert_array_equal(backgrounds_of(folder, rows, chosen), names)
    result = measure_codes(Path("codes"))
    for tree in (result.factors, result.control["factors"]):
        assert set(tree["each"]) == {"class", "background"}
    assert "groups" not in result.independence
    odd = np.array([f"{name},{i % 2}" for i, name in enumerate(rows.names)])
    Path("odd.csv").write_text("\n".join(["name,label", *odd]))
    monkeypatch.setattr(ReadableCodes, "groups_", np.arange(8) % 2)
    result = measure_codes(Path("codes"), {"odd": Path("odd.csv")})
    assert set(result.factors["each"]) == {"odd", "background"}
    assert 0 < result.independence["groups"] < 1


def test_an_array_file_may_mark_its_test_rows(run, tmp_path: Path) -> None:
    z, test = planted(60)[0], np.arange(60) % 3 == 0
    for marked, name, status in ((test, "codes", 0), (test[1:], "other", 2)):
        np.savez(tmp_path / "x.npz", x=z, test=marked)
        assert run("fit", "x.npz", "-o", name, "--components", "4", "--quiet").status == status
    rows = CodesFolder("codes").rows()
    assert rows.held == 20 and rows.names[-20:] == tuple(map(str, np.flatnonzero(test)))
