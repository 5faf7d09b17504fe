"""Measures on a GPU agree with those on a CPU."""

import numpy as np
import pytest
import torch

from bayesncl.measure import figures, interpretability, neighbors, retrieval, topk

pytestmark = pytest.mark.gpu


def codes(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 6, 900)
    return np.maximum(rng.standard_normal((900, 40)) + 3 * np.eye(40)[y] - 1, 0), y


def test_retrieval_and_knn(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    rows = neighbors.QUERIES_PER_BLOCK["cuda"] + 900  # several blocks of queries
    z = np.where(rng.random((rows, 24)) < 0.2, rng.random((rows, 24)).round(1), 0)  # many ties
    z, y, columns = z.astype(np.float32), rng.integers(0, 5, rows), np.arange(0, 24, 2)
    found = []
    for visible in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda visible=visible: visible)
        relevance = retrieval.relevance(retrieval.prepare(z, columns), [y], 10)
        accuracy = retrieval.knn_accuracies(z[:-500], [y[:-500]], z[-500:], y[-500:])
        found.append([relevance["sound"], relevance["paper"], np.array(accuracy)])
    for gpu, cpu in zip(*found):
        np.testing.assert_allclose(gpu, cpu, rtol=1e-6)


def test_codes_with_few_active_dimensions(monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = codes()
    gpu, _ = topk.summary(z[:300], y[:300], train=(z[300:], y[300:]))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    cpu, _ = topk.summary(z[:300], y[:300], train=(z[300:], y[300:]))
    for k, row in cpu.items():
        for name, value in row.items():
            tolerance = 1.5 if "probe" in name else 1e-6
            assert gpu[k][name] == pytest.approx(value, abs=tolerance), (k, name)


def test_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = codes()
    z = z.round(1).astype(np.float32)  # ties
    e = np.eye(12)[y] + 0.5 * np.random.default_rng(1).standard_normal((900, 12))
    found = []
    for visible in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda visible=visible: visible)
        tree = figures.figures(z, y, embeddings=e, control=z[::-1])
        trees = [tree.labelfree, tree.coverage, tree.detectors]
        trees += [tree.control["labelfree"], interpretability.interpretability(z, y)]
        found.append([{k: v for k, v in t.items() if isinstance(v, float)} for t in trees])
    for gpu, cpu in zip(*found):
        assert gpu and gpu == pytest.approx(cpu, rel=1e-5)
