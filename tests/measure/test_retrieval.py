"""Retrieval and kNN against full sorts, with ties resolved by enumeration."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from bayesncl.errors import InputError
from bayesncl.measure import neighbors
from bayesncl.measure.retrieval import knn_accuracies, retrieval
from bayesncl.method.losses import ipw_similarity
from tests.conftest import unit_length


def knn_accuracy(z: np.ndarray, labels: list, *others: Any, **options: Any) -> float:
    return knn_accuracies(z, [labels], *others, **options)[0]


def kept(z: np.ndarray, dims: int | None, ranking: np.ndarray | None = None) -> np.ndarray:
    z = unit_length(z)
    if dims is None:
        return z
    order = np.argsort(-(z.sum(0) if ranking is None else ranking), kind="stable")
    return unit_length(z[:, order[:dims]])


def expected_precision(sims: np.ndarray, right: np.ndarray, places: range) -> float:
    """Mean over all orders of the ties: by enumeration of permutations, for a handful of rows."""
    total, orders = 0.0, 0
    for order in itertools.permutations(range(len(sims))):
        if all(sims[a] >= sims[b] for a, b in itertools.pairwise(order)):
            total += np.mean([right[order[p]] for p in places])
            orders += 1
    return total / orders


@pytest.mark.parametrize("definition", ["sound", "paper"])
@pytest.mark.parametrize("dims", [None, 5])
def test_agrees_with_a_full_sort(definition: str, dims: int | None) -> None:
    rng = np.random.default_rng(0)
    z, labels = rng.standard_normal((150, 12)), rng.integers(0, 4, 150)
    f = kept(z, dims)
    sims = f @ f.T
    if definition == "sound":
        np.fill_diagonal(sims, -np.inf)
    first = 0 if definition == "sound" else 1
    order = np.argsort(-sims, axis=1)[:, first:]
    result = retrieval(z, labels, dims, definition=definition)
    for k in (1, 3, 5, 10):
        assert result[k] == pytest.approx(100 * (labels[order[:, :k]] == labels[:, None]).mean())


@pytest.mark.parametrize("definition", ["sound", "paper"])
def test_ties_score_their_expectation(definition: str) -> None:
    """Few distinct rows, zero rows among them: the mean over every order the ties allow."""
    z = np.array([[1, 0], [1, 0], [1, 0], [0, 1], [0, 1], [0, 0], [1, 1]], float)
    labels = np.array([0, 1, 0, 1, 1, 0, 0])
    f = unit_length(z)
    result = retrieval(z, labels, ks=(1, 2, 4), definition=definition)
    for k in (1, 2, 4):
        scores = []
        for i in range(len(z)):
            rows = [j for j in range(len(z)) if definition == "paper" or j != i]
            places = range(1, k + 1) if definition == "paper" else range(k)
            sims = np.round(f[rows] @ f[i], 9)
            scores.append(expected_precision(sims, labels[rows] == labels[i], places))
        assert result[k] == pytest.approx(100 * np.mean(scores))


@pytest.mark.parametrize("features", ["dense", "tied"])
def test_blocks_and_order_change_nothing(features: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 90)
    z = rng.standard_normal((90, 6))
    z = z if features == "dense" else (z > 0.7).astype(float)
    whole = {d: retrieval(z, labels, definition=d) for d in ("sound", "paper")}
    shuffle = rng.permutation(90)
    monkeypatch.setitem(neighbors.QUERIES_PER_BLOCK, "cpu", 13)
    monkeypatch.setitem(neighbors.ROWS_PER_BLOCK, "cpu", 17)
    for definition, expected in whole.items():
        assert retrieval(z, labels, definition=definition) == pytest.approx(expected)
        found = retrieval(z[shuffle], labels[shuffle], definition=definition)
        assert found == pytest.approx(expected)


def test_ranking_chooses_the_dimensions() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 4
    z = np.c_[0.3 * np.eye(4)[labels] + 0.01 * rng.random((200, 4)), rng.random((200, 4))]
    assert retrieval(z, labels, 4)[5] < 60  # the column sums choose the noise
    assert retrieval(z, labels, 4, ranking=np.array([1, 1, 1, 1, 0, 0, 0, 0]))[5] == 100
    assert retrieval(z, labels, 8) == pytest.approx(retrieval(z, labels))


def test_weights_are_the_inverse_prevalence_similarity() -> None:
    rng = np.random.default_rng(0)
    z = np.maximum(rng.standard_normal((120, 10)) - 0.3, 0)
    z[:, :3] += 0.1 * rng.random((120, 3))  # no two rows alike, so nothing ties
    labels = rng.integers(0, 3, 120)
    prevalence = (z > 0).mean(0)
    f = torch.from_numpy(unit_length(z))
    sims = ipw_similarity(f, f, torch.from_numpy(prevalence)).fill_diagonal_(-torch.inf)
    order = sims.argsort(1, descending=True)[:, :5].numpy()
    result = retrieval(z, labels, ks=(5,), weights=1 / prevalence)
    assert result[5] == pytest.approx(100 * (labels[order] == labels[:, None]).mean())
    assert retrieval(z, labels, weights=np.full(10, 3.0)) == retrieval(z, labels)


def test_knn_agrees_with_loops() -> None:
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((5, 8))
    labels, wanted = rng.integers(0, 5, 200), rng.integers(0, 5, 50)
    z, queries = (centers[y] + rng.standard_normal((len(y), 8)) for y in (labels, wanted))
    right = 0
    for q, y in zip(unit_length(queries), wanted):
        sims = unit_length(z) @ q
        near = np.argsort(-sims)[:20]
        right += np.bincount(labels[near], np.exp(sims[near] / 0.07)).argmax() == y
    assert 25 < right < 50
    assert knn_accuracy(z, labels, queries, wanted) == pytest.approx(100 * right / 50)


def test_knn_of_several_labelings_is_that_of_each() -> None:
    """Also with classes missing from a labeling, and ties beyond the last place."""
    rng = np.random.default_rng(0)
    z = (rng.random((200, 6)) < 0.3).astype(float)
    labels = rng.integers(0, 5, 200)
    wanted = labels[:50]
    labelings = [labels, rng.permutation(labels), labels // 4 * 4, labels + 7]
    each = [knn_accuracy(z, y, z[:50], wanted, k=7) for y in labelings]
    assert knn_accuracies(z, labelings, z[:50], wanted, k=7) == each
    assert len(set(each)) == 4
    assert each[3] == 0  # no class of theirs is asked for


def test_knn_ties_share_places() -> None:
    """Three rows tie for one place: the class with two of them wins, in any order."""
    z = np.array([[1.0, 0], [1, 0], [1, 0], [0, 1]])
    for labels in ([0, 1, 1, 0], [1, 0, 1, 0], [1, 1, 0, 0]):
        assert knn_accuracy(z, labels, z[:2], [1, 0], k=1) == 50
    assert knn_accuracy(z, [0, 0, 0, 1], z[3:], [1], k=1) == 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dims": 4}, "1 to 3"),
        ({"dims": 2.5}, "whole number"),
        ({"ranking": np.array([1, np.nan, 1]), "dims": 1}, "ranking"),
        ({"ranking": np.ones(2), "dims": 1}, "ranking"),
        ({"weights": np.array([1, np.inf, 1])}, "weights"),
    ],
)
def test_bad_options(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        retrieval(np.random.default_rng(0).random((6, 3)), [0, 1, 0, 1, 0, 1], ks=(1,), **options)
