"""How far dimensions predict each other, against regressions one by one."""

import numpy as np
import pytest

from bayesncl.errors import InputError
from bayesncl.measure.columns import group_similarity, independence, predictability
from tests.conftest import unit_length

RNG = np.random.default_rng(0)


def test_predictability_equals_regressions_one_by_one() -> None:
    z = RNG.normal(size=(200, 6))
    z[:, 5] += z[:, 0]
    z = unit_length(np.c_[z, np.zeros(200)])
    slow = []
    for j in range(6):
        others = np.c_[np.delete(z[:, :6], j, axis=1), np.ones(200)]
        rest = z[:, j] - others @ np.linalg.lstsq(others, z[:, j], rcond=None)[0]
        slow.append(1 - rest.var() / z[:, j].var() * 199 / 194)
    assert predictability(z) == pytest.approx(np.mean(slow), abs=1e-4)
    assert predictability(z[:10]) is None


def test_groups_are_compared_by_cka() -> None:
    z = unit_length(RNG.normal(size=(300, 6)))
    groups = np.array([0, 1, 0, 1, 2, 2])
    x = z - z.mean(0)
    parts = [x[:, groups == g] for g in range(3)]
    grams = [part @ part.T for part in parts]
    slow = [
        (grams[a] * grams[b]).sum() / np.linalg.norm(grams[a]) / np.linalg.norm(grams[b])
        for a, b in ((0, 1), (0, 2), (1, 2))
    ]
    assert group_similarity(z, groups) == pytest.approx(np.mean(slow))
    turned = z[:, :3] @ np.linalg.qr(RNG.normal(size=(3, 3)))[0]
    assert group_similarity(np.c_[z[:, :3], turned], [0, 0, 0, 1, 1, 1]) > 0.99
    assert independence(z, groups)[1]["groups"] < 0.05
    with pytest.raises(InputError):
        group_similarity(z, [0] * 6)
