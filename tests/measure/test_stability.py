"""Matching of columns against every permutation."""

from itertools import permutations

import numpy as np
import pytest
import scipy.sparse as sp

from bayesncl.errors import InputError
from bayesncl.measure.columns import match_columns, stability
from tests.conftest import unit_length


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return abs(float(a @ b)) / np.sqrt(float(a @ a) * float(b @ b))


@pytest.mark.parametrize("signed", [False, True])
def test_the_best_of_all_permutations(signed: bool) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 40, 5))
    if not signed:
        a, b = np.maximum(a, 0) + 1e-3, np.maximum(b, 0) + 1e-3
    u, v = unit_length(a), unit_length(b)
    table = np.array([[cosine(u[:, i], v[:, j]) for j in range(5)] for i in range(5)])
    best = max(permutations(range(5)), key=lambda p: sum(table[i, j] for i, j in enumerate(p)))
    partner, similarity, _ = match_columns(a, b)
    assert tuple(partner) == best
    assert similarity == pytest.approx([table[i, j] for i, j in enumerate(best)], abs=1e-5)


def test_a_permuted_code_is_the_same_and_dead_columns_have_no_partner() -> None:
    rng = np.random.default_rng(1)
    z = np.maximum(rng.standard_normal((900, 60)) - 2.5, 0)
    z[:, [4, 17]] = 0
    order = rng.permutation(60)
    for a, b in ((z, z[:, order]), (sp.csr_array(z), sp.csr_array(z[:, order]))):
        partner, similarity, counted = match_columns(a, b)
        live = np.flatnonzero(z.any(0))
        assert counted == [len(live), len(live)]
        np.testing.assert_allclose(similarity, z.any(0), atol=1e-5)
        assert (order[partner[live]] == live).all() and (partner[[4, 17]] == -1).all()
    figures = stability(z, z[:, live[:30]])
    assert 0.9 < figures["mean_cosine"] < 1  # rows without the other columns have other lengths
    assert figures["share_same"] == pytest.approx(30 / len(live), abs=1 / len(live))
    assert figures["unmatched"] == len(live) - 30


def test_control_and_empty_codes() -> None:
    rng = np.random.default_rng(3)
    z = np.maximum(rng.standard_normal((100, 8)), 0)
    noise = np.maximum(rng.standard_normal((2, 100, 8)), 0)
    found, control = stability(z, z[:, ::-1] * 2), stability(*noise)
    assert found["mean_cosine"] > control["mean_cosine"] and control["share_same"] < 1
    assert stability(np.zeros((9, 3)), np.zeros((9, 2)))["mean_cosine"] is None
    with pytest.raises(InputError, match="images"):
        match_columns(z, z[:50])
