"""Coverage, distinct dimensions and what counts as collapsed."""

import numpy as np
import pytest

from bayesncl.measure import coverage
from tests.conftest import unit_length
from tests.measure.test_topk import codes


def slow_distinct(z: np.ndarray) -> float:
    unit = unit_length(z)
    n, live = len(z), [j for j in range(z.shape[1]) if unit[:, j].std() > 0]
    table = np.corrcoef(unit[:, live].T)
    mass = {j: np.abs(unit[:, j]).sum() for j in live}
    total, result = sum(mass.values()), 0.0
    for i, row in zip(live, table):
        shared = 0.0
        for j, r in zip(live, row.clip(0)):
            shared += mass[j] / total * (1 if i == j else r**2 - (1 - r**2) * 0.5 / (n - 2))
        result -= mass[i] / total * np.log(max(shared, mass[i] / total))
    return float(np.exp(result))


def test_distinct_dimensions_against_a_loop() -> None:
    thin, _ = codes(d=200)
    thin = thin * (thin > 1) * (np.random.default_rng(0).random(thin.shape) < 0.04)
    for z, rel in ((codes()[0], 1e-4), (codes(signed=True)[0], 1e-4), (thin, 1e-3)):
        assert coverage.distinct_dimensions(z) == pytest.approx(slow_distinct(z), rel=rel)


def test_distinct_dimensions_where_the_number_is_known() -> None:
    labels = np.arange(400) % 8
    onehot = np.eye(8)[labels]
    copies, opposites = np.repeat(onehot, 5, axis=1), np.eye(2)[labels % 2]
    noise = np.random.default_rng(0).standard_normal((300, 100))
    for z, number, rel in ((copies, 8, 0.02), (opposites, 2, 0.02), (noise, 100, 0.1)):
        assert coverage.distinct_dimensions(z) == pytest.approx(number, rel=rel)
    assert coverage.distinct_dimensions(np.ones((50, 6))) == 0


def test_figures_of_a_small_code() -> None:
    z = np.array([[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 3, 4, 0], [0, 0, 0, 0]])
    found = coverage.summary(z)
    assert found["images_without"] == 0.25 and found["dead_share"] == 0.25 and found["live"] == 3
    assert found["l0"] == 1 and found["spread"] == 0.75
    assert found["similarity"] == pytest.approx((0 + 0 + 0.6) / 3)
    assert not found["collapsed"] and found["reason"] is None


def long_tail(n: int = 1000) -> np.ndarray:
    """Six images in ten are of one class, which has 70 dimensions; 19 others have three each."""
    rng = np.random.default_rng(0)
    classes = rng.choice(20, n, p=np.r_[0.6, np.full(19, 0.4 / 19)])
    of = np.r_[np.zeros(70, int), 1 + np.arange(57) % 19]
    return unit_length((classes[:, None] == of) + 0.02 * rng.random((n, 127)))


def groups(which: np.ndarray, wide: int) -> np.ndarray:
    z = np.repeat(np.eye(10)[which], wide, axis=1)
    return z + 0.02 * np.random.default_rng(1).random(z.shape)


RNG = np.random.default_rng(5)
BASE = np.maximum(RNG.standard_normal((500, 3)), 0)
COLLAPSED = {
    "the same few images": np.r_[RNG.random((12, 128)), np.zeros((988, 128))],
    "near copies": BASE[:, :1] * (1 + 0.05 * RNG.random((500, 64))) + 0.01 * RNG.random((500, 64)),
    "near copies of three": np.repeat(BASE, 60, axis=1) + 0.02 * RNG.random((500, 180)),
    "groups that leave out images": np.repeat(np.eye(5)[RNG.integers(5, size=500)][:, :4], 60, 1)
    * (1 + 0.1 * RNG.random((500, 240))),
    "constant but for noise": 1 + 0.01 * RNG.random((200, 32)),
    "near copies and some that hardly fire": np.concatenate(
        [BASE[:, :1] + 0.02 * RNG.random((500, 100)), 9 * np.eye(500)[:, :20]], axis=1
    ),
    "groups, one with nearly all images": np.repeat(np.eye(2)[1 * (RNG.random(500) > 0.96)], 60, 1)
    * (1 + 0.1 * RNG.random((500, 120))),
    "one dimension": np.eye(16)[np.zeros(200, int)],
    "nothing": np.zeros((50, 8)),
}
CLUSTERED = RNG.integers(10, size=500)
SOUND = {
    "groups": groups(CLUSTERED, 50),
    "groups, one with most images": groups(np.where(RNG.random(500) < 0.7, 0, CLUSTERED), 20),
    "sparse": codes()[0],
    "a long tail": long_tail(),
    "copies of a few rows": np.repeat(np.eye(20), 6, axis=1)[np.arange(2000) % 20],
    "signed": RNG.standard_normal((300, 64)) * np.linspace(3, 0.1, 64),
    "small": np.maximum(RNG.standard_normal((8, 5)), 0) + 0.01,
    "two images that are alike": np.outer([1.0, 3.0], np.ones(8)) + 0.2 * RNG.random((2, 8)),
    "wide and few": np.maximum(RNG.standard_normal((30, 400)) - 1, 0),
    "one long row": np.maximum(RNG.standard_normal((300, 40)), 0)
    * np.where(np.arange(300) == 7, 1e6, 1)[:, None],
    "lengths that vary": np.eye(20)[RNG.integers(20, size=300)] * RNG.lognormal(0, 2, (300, 1)),
    "many dead": np.concatenate([codes()[0], np.zeros((240, 300))], axis=1),
}


@pytest.mark.parametrize("name", [*COLLAPSED, *SOUND])
def test_collapsed(name: str) -> None:
    found = coverage.summary((COLLAPSED | SOUND)[name])
    assert found["collapsed"] == (name in COLLAPSED) == isinstance(found["reason"], str), found


def test_rows_are_drawn_where_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    z = np.random.default_rng(0).random((3000, 20))
    whole = coverage.distinct_dimensions(z)
    monkeypatch.setattr(coverage, "MAX_DENSE_ROWS", 1000)
    assert coverage.distinct_dimensions(z) == pytest.approx(whole, rel=0.05)
