"""Measures at k kept dimensions against loops, and against the dense measures they stand in for."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from bayesncl.measure import topk as kept
from bayesncl.measure.linear import fast_probe, probe_kept
from bayesncl.measure.retrieval import retrieval
from bayesncl.measure.topk import strongest_images
from tests.conftest import unit_length


def codes(
    n: int = 240, d: int = 30, classes: int = 6, seed: int = 0, signed: bool = False
) -> tuple:
    """Codes that predict their labels, rounded so that many tie; a zero row, a dead column."""
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=n)
    y[:classes] = np.arange(classes)
    z = rng.standard_normal((n, d)) - 0.5 + 2 * (np.arange(d) % classes == y[:, None])
    z = np.round((z if signed else np.maximum(z, 0)) * 2) / 2
    z[7], z[:, 5] = 0, 0
    return z, y


def slow_keep(z: np.ndarray, k: int) -> np.ndarray:
    result = np.zeros_like(z)
    for i, row in enumerate(z):
        length = np.linalg.norm(row)
        order = sorted(range(len(row)), key=lambda j: (-abs(row[j]), j))[:k]
        for j in order:
            if length and abs(row[j]) / length > 1e-5:
                result[i, j] = row[j]
        length = np.linalg.norm(result[i])
        result[i] /= length if length else 1
    return result


@pytest.mark.parametrize("k", [1, 5, 99])
@pytest.mark.parametrize("signed", [False, True])
def test_keep_takes_the_strongest_and_of_equals_the_lower_column(k: int, signed: bool) -> None:
    z, _ = codes(signed=signed)
    wanted = slow_keep(z, k)
    for given in (z, z.astype(np.float32), torch.from_numpy(z), sp.csr_array(z), sp.coo_matrix(z)):
        np.testing.assert_allclose(kept.keep(given, k).toarray(), wanted, atol=1e-6)


@pytest.mark.parametrize("k", [1, 5])
def test_consistency_and_owned_classes_against_counting(k: int) -> None:
    z, y = codes()
    on = slow_keep(z, k) != 0
    shares, owned = [], set()
    for column in on.T[on.sum(0) >= 10]:
        by_class = np.bincount(y[column])
        shares.append(100 * by_class.max() / column.sum())
        own = (by_class / column.sum() >= 0.5) & (by_class / np.bincount(y)[: len(by_class)] >= 0.1)
        owned |= set(np.flatnonzero(own).tolist())
    found = kept.summary(z, y, ks=(k,))[0][k]
    assert found["consistency"] == pytest.approx(np.mean(shares))
    assert found["about_one_class"] == pytest.approx(100 * np.mean(np.array(shares) >= 50))
    assert found["classes_owned"] == len(owned) > 0
    assert found["l0"] == pytest.approx(on.sum(1).mean())


@pytest.mark.parametrize(("k", "d"), [(1, 30), (2, 600), (10, 30)])
def test_precision_is_that_of_the_dense_codes(k: int, d: int) -> None:
    """Products are dense where few columns are kept, sparse where there are many."""
    z, y = codes(d=d, signed=True)
    cut = kept.keep(z, k)
    for asked in (None, np.array([3, 7, 100, 41])):
        wanted = retrieval(cut.toarray(), y, ks=(5,), queries=asked)[5]
        assert kept.kept_precision(cut, [y], asked)[0] == pytest.approx(wanted, abs=1e-6)


def test_probe_solves_the_problem_of_fast_probe() -> None:
    z, y = codes(n=900)
    names = np.array(list("abcdef"))[y]
    train, test = kept.keep(z[:600], 3), kept.keep(z[600:], 3)
    accuracy, chance = probe_kept(train, names[:600], test, names[600:])
    dense = fast_probe(train.toarray(), y[:600], test.toarray(), y[600:])
    assert accuracy == pytest.approx(dense["acc1"], abs=2.5)
    assert 10 < chance < 25 < accuracy


def test_labels_beat_shuffled_ones() -> None:
    z, y = codes(n=600)
    train = z[300:], y[300:]
    found, chance = kept.summary(z[:300], y[:300], train=train, ks=(5,), queries=100)
    for name in ("consistency", "p5", "probe"):
        assert found[5][name] > chance[5][name]


def test_strongest_images_of_a_dimension() -> None:
    z, _ = codes()
    z[:, 3] = 0
    z[[4, 9], 3] = 1
    unit = np.abs(unit_length(z)).astype(np.float32)
    for given in (z, sp.csr_array(z)):
        found = strongest_images(given, 4)
        for j in range(z.shape[1]):
            order = np.argsort(-unit[:, j], kind="stable")[:4]
            order = [int(i) for i in order if unit[i, j] > 1e-5]
            assert found[j].tolist() == order + [-1] * (4 - len(order))
        # so that one search serves all
        np.testing.assert_array_equal(strongest_images(given, 9)[:, :4], found)
