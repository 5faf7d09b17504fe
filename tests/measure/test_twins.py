"""Dimensions that nearly repeat another."""

import numpy as np
import pytest
import scipy.sparse as sp

from bayesncl.measure import coverage
from bayesncl.measure.columns import TWIN, twin_share
from bayesncl.measure.figures import figures
from tests.conftest import unit_length


def with_copies(n: int = 300) -> np.ndarray:
    """Ten columns: 0 to 5 independent, 6 and 7 near copies of 0, 8 of 1, and 9 is dead."""
    rng = np.random.default_rng(0)
    z = np.maximum(rng.normal(size=(n, 10)), 0)
    z[:, [6, 7, 8]] = 0.9 * z[:, [0, 0, 1]] + 0.1 * rng.random((n, 3)) * (z[:, [0, 0, 1]] > 0)
    z[:, 9] = 0
    return z


def cosine(z: np.ndarray, i: int, j: int) -> float:
    a, b = z[:, i], z[:, j]
    return 0.0 if not a.any() or not b.any() else float(a @ b / np.sqrt(a @ a * (b @ b)))


def test_twin_share_against_a_loop() -> None:
    z = with_copies()
    unit = unit_length(z)
    slow = np.mean([any(cosine(unit, i, j) > TWIN for j in range(10) if j != i) for i in range(10)])
    assert twin_share(sp.csr_array(z)) == pytest.approx(slow) == 0.5
    assert coverage.summary(z)["twins"] == pytest.approx(slow)


def test_verdict_advises_fewer_dimensions_where_twins_abound() -> None:
    y = np.arange(400) % 8
    one = np.eye(8)[y] + 0.02 * np.random.default_rng(0).random((400, 8))
    for copies, advised in ((1, False), (3, True)):
        lines = figures(np.repeat(one, copies, axis=1)).verdict["lines"]
        advice = next(line["advice"] for line in lines if line["key"] == "effective")
        assert ("try 16 dimensions" in advice) == advised
