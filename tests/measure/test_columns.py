"""How dimensions relate: matches of two codes, near copies, and how far they predict each other."""

from itertools import permutations

import numpy as np
import pytest
import scipy.sparse as sp

from bayesncl.errors import InputError
from bayesncl.measure.columns import (
    TWIN,
    distinct,
    group_similarity,
    independence,
    match_columns,
    predictability,
    stability,
    twin_share,
)
from bayesncl.measure.figures import figures
from tests.conftest import unit_length

RNG = np.random.default_rng(0)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b) / max(np.sqrt(float(a @ a) * float(b @ b)), 1e-30)


@pytest.mark.parametrize("signed", [False, True])
def test_the_best_of_all_permutations(signed: bool) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 40, 5))
    if not signed:
        a, b = np.maximum(a, 0) + 1e-3, np.maximum(b, 0) + 1e-3
    u, v = unit_length(a), unit_length(b)
    table = np.array([[abs(cosine(u[:, i], v[:, j])) for j in range(5)] for i in range(5)])
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


def with_copies(n: int = 300) -> np.ndarray:
    """Ten columns: 0 to 5 independent, 6 and 7 near copies of 0, 8 of 1, and 9 is dead."""
    rng = np.random.default_rng(0)
    z = np.maximum(rng.normal(size=(n, 10)), 0)
    z[:, [6, 7, 8]] = 0.9 * z[:, [0, 0, 1]] + 0.1 * rng.random((n, 3)) * (z[:, [0, 0, 1]] > 0)
    z[:, 9] = 0
    return z


def test_twin_share_against_a_loop() -> None:
    z = with_copies()
    unit = unit_length(z)
    slow = np.mean([any(cosine(unit[:, i], unit[:, j]) > TWIN for j in range(10) if j != i) for i in range(10)])
    assert twin_share(sp.csr_array(z)) == pytest.approx(slow) == 0.5
    assert figures(z)["coverage/twins"].value == pytest.approx(slow)


def test_verdict_advises_fewer_dimensions_where_twins_abound() -> None:
    y = np.arange(400) % 8
    one = np.eye(8)[y] + 0.02 * np.random.default_rng(0).random((400, 8))
    for copies, advised in ((1, False), (3, True)):
        lines = figures(np.repeat(one, copies, axis=1)).verdict["lines"]
        advice = next(line["advice"] for line in lines if line["key"] == "effective")
        assert ("try 16 dimensions" in advice) == advised


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


def test_distinct_dimensions_against_a_slow_twin() -> None:
    rng = np.random.default_rng(3)
    base = np.maximum(rng.normal(size=(200, 6)), 0)
    noisy = base[:, [0, 0, 1, 1, 1, 2]] + 0.1 * rng.random((200, 6))
    z = unit_length(np.concatenate([base, noisy, np.zeros((200, 1))], axis=1))
    found = distinct(z)
    left, before = list(range(13)), 0
    while len(left) != before:
        u, before, kept = unit_length(z[:, left]), len(left), []
        for k in sorted(range(len(left)), key=lambda k: -u[:, k].max()):
            if all(cosine(u[:, k], u[:, j]) <= TWIN for j in kept):
                kept.append(k)
        left = sorted(left[k] for k in kept)
    assert left == found.tolist() and 7 <= len(found) < 13
    assert twin_share(z[:, found]) == 0 < twin_share(z)
