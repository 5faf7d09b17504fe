"""Nearest rows against brute force; duplicates, small sets, faiss."""

import numpy as np
import pytest
import torch
from torch import Tensor

from bayesncl.measure import neighbors
from bayesncl.measure.neighbors import DUPLICATE, nearest, shared_neighbors


def brute(x: np.ndarray, k: int) -> list[list[int]]:
    """For each row all others sorted by cosine, without duplicates and dissimilar rows."""
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    out = []
    for i, a in enumerate(unit):
        cosine = unit @ a
        others = [j for j in np.argsort(-cosine) if j != i and 0 < cosine[j] <= DUPLICATE]
        found = [int(j) for j in others[:k]] or [i]
        out.append([found[t % len(found)] for t in range(k)])
    return out


def rows_of(n: int, width: int = 12, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, width))


@pytest.mark.parametrize(("n", "k"), [(2, 1), (40, 5), (300, 10)])
def test_equals_brute_force(monkeypatch: pytest.MonkeyPatch, n: int, k: int) -> None:
    monkeypatch.setitem(neighbors.QUERIES_PER_BLOCK, "cpu", 64)
    monkeypatch.setitem(neighbors.ROWS_PER_BLOCK, "cpu", 128)  # several blocks of both kinds
    x = rows_of(n)
    found, recall = nearest(torch.from_numpy(x).float(), k)
    assert found.tolist() == brute(x, k)
    assert recall == 1.0


def test_duplicates_are_no_neighbors() -> None:
    """Every row four times, once scaled: neighbors are the copies of other rows."""
    x = np.concatenate([rows_of(30), rows_of(30), rows_of(30), 3 * rows_of(30)])
    found = nearest(torch.from_numpy(x).float(), 8)[0].numpy() % 30
    near = np.array(brute(rows_of(30), 2))
    assert [set(row) for row in found] == [set(row) for row in near] * 4


CLUSTERS = torch.eye(10)[torch.arange(40) % 10]


@pytest.mark.parametrize(
    ("x", "k", "wanted"),
    [
        (torch.ones(5, 3), 2, [[i, i] for i in range(5)]),  # copies only
        (torch.tensor([[1.0, 0], [1, 0], [0.1, 1], [0.6, 0.8]]), 3, [[3, 2, 3]]),  # two are repeated
        (CLUSTERS - CLUSTERS.mean(0), 5, [[i] * 5 for i in range(40)]),  # nothing in common
    ],
)
def test_rows_with_few_neighbors(x: Tensor, k: int, wanted: list) -> None:
    assert nearest(x, k)[0].tolist()[: len(wanted)] == wanted


def test_many_rows_without_faiss_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(neighbors.EXACT_ROWS, "cpu", 10)
    monkeypatch.setattr(neighbors.importlib.util, "find_spec", lambda name: None)
    with pytest.warns(UserWarning, match="faiss"):
        found, _ = nearest(torch.from_numpy(rows_of(40)).float(), 3)
    assert found.tolist() == brute(rows_of(40), 3)


def test_faiss_finds_most_and_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    x = np.concatenate([rows_of(1500, 8), rows_of(1500, 8)])  # every row twice
    unit = torch.nn.functional.normalize(torch.from_numpy(x).float())

    def cosines(found: Tensor) -> Tensor:
        return (unit[:, None] * unit[found]).sum(2)

    exact, _ = nearest(unit, 5)
    monkeypatch.setitem(neighbors.EXACT_ROWS, "cpu", 100)
    found, recall = nearest(unit, 5)
    assert recall >= neighbors.RECALL
    assert (cosines(found) >= cosines(exact)[:, -1:] - 1e-5).float().mean() >= 0.9
    assert (found % 1500 != torch.arange(3000)[:, None] % 1500).all()


def test_shared_neighbors_by_a_loop() -> None:
    rng = np.random.default_rng(2)
    a = rng.normal(size=(40, 6)).astype(np.float32)
    b = (a + 0.5 * rng.normal(size=a.shape)).astype(np.float32)
    a, b = (each - each.mean(0) for each in (a, b))

    def neighbors(x: np.ndarray, i: int) -> set[int]:
        cosine = x @ x[i] / np.linalg.norm(x, axis=1)
        return set(sorted((j for j in range(40) if j != i), key=lambda j: -cosine[j])[:5])

    shares = [len(neighbors(a, i) & neighbors(b, i)) / 5 for i in range(40)]
    found = shared_neighbors(torch.from_numpy(a), torch.from_numpy(b), 5)
    assert found == pytest.approx(np.mean(shares)) and 0.3 < found < 0.9
