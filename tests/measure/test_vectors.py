"""Strongest entries, nearest rows, top images and histograms against plain loops."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from bayesncl.measure import neighbors
from bayesncl.measure.neighbors import nearest_rows
from bayesncl.measure.vectors import histograms, sparsify, top_images
from tests.conftest import unit_length


def features(signed: bool = False) -> np.ndarray:
    """Unit-length rows [60, 23], float32, with a zero row and a dead column."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal((60, 23)) * (rng.random((60, 23)) < 0.4)
    z[7], z[:, 5] = 0, 0
    return unit_length(z if signed else np.maximum(z, 0)).astype(np.float32)


@pytest.mark.parametrize("keep", [5, 23])
def test_sparse_rows_hold_the_strongest_entries(keep: int) -> None:
    z = features(signed=True)
    open = np.random.default_rng(1).random(z.shape) < 0.6
    gated = unit_length(z * open).astype(np.float32)
    rows, dims, stored, share = sparsify(csr_array(z), csr_array(gated), keep)
    for i in range(len(z)):
        score = np.maximum(np.abs(z[i]), np.abs(gated[i]))
        want = sorted((k for k in range(23) if score[k] > 0), key=lambda k: -score[k])[:keep]
        part = rows == i
        assert dims[part].tolist() == want
        assert np.array_equal(stored[:, part], [z[i, want], gated[i, want]])
        total = (z[i] ** 2).sum()
        covered = (z[i, want] ** 2).sum() / total if total else 1
        assert share[0, i] == pytest.approx(covered, abs=1e-5)


@pytest.mark.parametrize("thin", [0, 1])
def test_nearest_rows_leave_self_out_by_identity(
    thin: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbors, "THIN", thin)  # dense and sparse products
    monkeypatch.setitem(neighbors.ROWS_PER_BLOCK, "cpu", 13)
    x = features()
    x[11] = x[12]  # each is the other's nearest, though self has the same similarity
    index, value = nearest_rows(csr_array(x), 5)
    assert (index[11, 0], index[12, 0]) == (12, 11)
    for i in range(len(x)):
        assert i not in index[i] and len(set(index[i])) == 5
        assert np.allclose(value[i], x[index[i]] @ x[i], atol=1e-6)
        others = [float(x[i] @ x[j]) for j in range(len(x)) if j != i]
        assert np.allclose(value[i], sorted(others, reverse=True)[:5], atol=1e-6)
    index, value = nearest_rows(csr_array(x[:3]), 1, csr_array(x))
    assert np.allclose(value[:, 0], (x[:3] @ x.T).max(1), atol=1e-6)
    assert nearest_rows(csr_array(x[:1]), 5)[0].shape == (1, 0)


def test_top_images_and_histograms() -> None:
    z = features()
    index, value = top_images(csr_array(z), 9)
    counts, edges = histograms(csr_array(z), 6)
    for k in range(23):
        want = sorted(range(len(z)), key=lambda i: (-z[i, k], i))[:9]
        assert index[k][value[k] > 0].tolist() == [i for i in want if z[i, k] > 0]
        firing = z[z[:, k] > 0, k]
        assert counts[k].sum() == len(firing)
        if len(firing):
            expected = np.histogram(firing, 6, (0, z[:, k].max()))[0]
            assert counts[k].tolist() == expected.tolist()
            assert edges[k, 1] == z[:, k].max()
    index, value = top_images(csr_array(np.array([[-0.9], [0], [0.4]], np.float32)), 3)
    assert index[0, 0] == 2 and value[0] == pytest.approx([0.4, 0, 0])
