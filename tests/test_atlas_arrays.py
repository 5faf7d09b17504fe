"""The numbers of the atlas against plain loops over the arrays."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import sparse

from bayesncl.atlas import AtlasRun
from bayesncl.atlas.contents import prepare
from bayesncl.atlas.telling import Labels, in_words, pick_wall, recognise, telling
from bayesncl.atlas.vectors import SCALE, histograms, nearest_rows, sparsify, top_images
from bayesncl.errors import InputError
from bayesncl.measure.dimensions import describe

from .conftest import unit_length
from .test_atlas import csr, make_features, make_images


@pytest.mark.parametrize("signed", [False, True])
def test_dimensions_of_sparse_codes_are_those_of_dense_ones(signed: bool) -> None:
    z, images = make_features(signed=signed), make_images()
    gates_open = np.random.default_rng(1).random(z.shape) < 0.7
    given = {"backgrounds": images.backgrounds, "open": gates_open}
    dense, thin = describe(z, images.labels, **given), describe(csr(z), images.labels, **given)
    for field in dataclasses.fields(dense):
        a, b = getattr(dense, field.name), getattr(thin, field.name)
        assert (a is None) == (b is None), field.name
        assert a is None or np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind == "f"), field.name


@pytest.mark.parametrize("keep", [1, 5, 23])
def test_sparse_rows_hold_the_strongest_entries(keep: int) -> None:
    z = make_features(signed=True)
    gates_open = np.random.default_rng(1).random(z.shape) < 0.6
    gated = unit_length(z * gates_open)
    rows = sparsify(csr(z), csr(gated), gates_open, keep)
    for i in range(len(z)):
        score = np.maximum(np.abs(z[i]), np.abs(gated[i]))
        want = sorted((k for k in range(23) if score[k] > 1e-5), key=lambda k: -score[k])[:keep]
        part = slice(rows.start[i], rows.start[i + 1])
        assert rows.dims[part].tolist() == want
        assert np.allclose(rows.z[part] / SCALE, z[i, want], atol=1 / SCALE)
        assert np.allclose(rows.gated[part] / SCALE, gated[i, want], atol=1 / SCALE)
        assert rows.open[part].tolist() == gates_open[i, want].tolist()
        assert rows.covered[0, i] == pytest.approx((z[i, want] ** 2).sum() / max((z[i] ** 2).sum(), 1e-12), abs=1e-5)


def slow_nearest(x: np.ndarray, count: int) -> np.ndarray:
    """Similarities of the nearest rows, best first."""
    rows = range(len(x))
    return np.array([sorted((float(x[i] @ x[j]) for j in rows if j != i), reverse=True)[:count] for i in rows])


@pytest.mark.parametrize("way", ["dense", "sparse", "thinned"])
def test_nearest_rows_leave_self_out_by_identity(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = make_features()
    x[11] = x[12]  # twins: each is the other's nearest, though self has the same similarity
    if way != "dense":
        monkeypatch.setattr("bayesncl.atlas.vectors.DENSE_BYTES", 0)
    if way == "thinned":
        monkeypatch.setattr("bayesncl.atlas.vectors.PRODUCTS", 4_000)
    index, value = nearest_rows(csr(x), 5)
    assert index[11, 0] == 12
    assert index[12, 0] == 11
    for i in range(len(x)):
        assert i not in index[i]
        assert len(set(index[i])) == 5
        assert np.allclose(value[i], [x[i] @ x[j] for j in index[i]], atol=1e-6)  # exact whichever were found
    slow = slow_nearest(x, 5)
    assert np.allclose(value, slow, atol=1e-6) if way != "thinned" else np.mean(value >= slow - 1e-6) > 0.5
    assert nearest_rows(csr(x[:1]), 5)[0].shape == (1, 0)


def test_nearest_rows_may_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    opposite = np.array([[1, 0], [-1, 0]], np.float32)
    assert nearest_rows(csr(opposite), 1)[0].tolist() == [[1], [0]]
    monkeypatch.setattr("bayesncl.atlas.vectors.DENSE_BYTES", 0)
    index, value = nearest_rows(csr(np.eye(4, dtype=np.float32)), 2)
    assert index.tolist() == [[1, 2], [0, 2], [0, 1], [0, 1]]
    assert not value.any()


def test_top_images_and_histograms_like_plain_loops() -> None:
    z = make_features()
    index, value = top_images(csr(z), 9)
    counts, edges = histograms(csr(z), 6)
    for k in range(23):
        want = sorted(range(len(z)), key=lambda i: (-z[i, k], i))[:9]
        held = value[k] > 0
        assert index[k][held].tolist() == [i for i in want if z[i, k] > 1e-5]
        firing = z[z[:, k] > 1e-5, k]
        assert counts[k].sum() == len(firing)
        if len(firing):
            assert counts[k].tolist() == np.histogram(firing, 6, (0, z[:, k].max()))[0].tolist()
            assert edges[k, 1] == z[:, k].max()


def test_top_images_are_those_that_fire_upwards() -> None:
    index, value = top_images(csr(np.array([[-0.9], [0], [0.4]], np.float32)), 3)
    assert index[0, 0] == 2
    assert value[0] == pytest.approx([0.4, 0, 0])


def test_telling_follows_its_formula_and_passes_over_what_fires_on_everything() -> None:
    rng = np.random.default_rng(0)
    group = np.arange(200) // 20
    own = (group[:, None] == np.arange(10)) * rng.random((200, 10))  # dimensions 0-9: a group each
    own[:, 9] = rng.random(200) < 0.1  # 9: images with nothing in common
    z = unit_length(np.c_[own, np.full(200, 0.8), (group[:, None] == np.arange(9)) * 0.9, 1e-4 * (group == 0)])
    index, value = top_images(csr(z), 12)
    score = telling(csr(z), index, value)
    centre = z.mean(0)
    for k in (0, 5, 9):
        top = index[k]
        x = np.delete(z[top], k, axis=1).astype(np.float64)
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        pairs = [x[i] @ x[j] for i in range(12) for j in range(12) if i != j]
        coherence = max((np.mean(pairs) - centre @ centre) / (1 - centre @ centre), 0.01)
        a = z[:, k].astype(np.float64)
        concentration = 1 - a.sum() ** 2 / (200 * (a**2).sum())
        strength = min(1, value[k].mean() / 0.1)
        assert score[k] == pytest.approx(coherence * concentration * strength, rel=1e-3)
    assert score[:9].min() > 2 * score[9]
    assert score[10] < 0.1 * score[:9].min()  # on everything
    assert score[-1] < 0.02 * score[0]  # prints as 0.00
    rare = unit_length(np.eye(30)[:, :3])
    assert not telling(csr(rare), *top_images(csr(rare), 12)).any()  # fewer than ten images each


def test_the_wall_shows_unlike_dimensions_before_similar_ones() -> None:
    rng = np.random.default_rng(0)
    group = np.arange(120) // 20
    z = unit_length((group[:, None] == np.arange(12) // 2) * (0.5 + rng.random((120, 12))))  # two dimensions a group
    index, _ = top_images(csr(z), 12)
    score = np.linspace(1, 0.5, 12)
    score[4] = 0  # never shown
    means = [unit_length(z[index[k]].mean(0)[None])[0] for k in range(12)]
    order: list[int] = []
    while len(order) < 8:
        def worth(k: int) -> float:
            return score[k] * (1 - max((float(means[k] @ means[j]) for j in order), default=0))
        order.append(max((k for k in range(12) if k not in order and score[k] > 0), key=worth))
    assert pick_wall(csr(z), index, score, 8).tolist() == order
    assert sorted(k // 2 for k in order[:6]) == list(range(6))  # every group before any comes again
    assert len(pick_wall(csr(z), index, np.zeros(12), 8)) == 0


def test_what_stands_out_is_told_beyond_chance_only() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, 500)
    luck, tigers = rng.permutation(500)[:50], np.flatnonzero(y == 3)[:40]
    mixed = np.r_[tigers[:30], np.flatnonzero(y != 3)[:20]]
    index = np.zeros((3, 50), np.int64)
    value = np.zeros((3, 50), np.float32)
    for k, images in enumerate((luck, tigers, mixed)):
        index[k, : len(images)], value[k, : len(images)] = images, 0.5
    label, share, surprise = recognise(index, value, Labels(y, [str(c) for c in range(10)]))
    assert label.tolist() == [-1, 3, 3]
    assert share.tolist() == pytest.approx([0, 1, 0.6])
    assert surprise[1] < surprise[2] < surprise[0] == 0
    assert recognise(index, value, None)[0].tolist() == [-1, -1, -1]


def test_names_read_as_words() -> None:
    assert in_words(["001.Black_footed_Albatross", "3", "tiger"]) == ["Black footed Albatross", "class 3", "tiger"]
    assert in_words(["a_b", "a b"]) == ["a_b", "a b"]  # or they would be one
    assert in_words(["_"]) == ["_"]


@pytest.mark.parametrize("scale", [1e20, 1e-30, 1e300, 1e-300])
def test_the_scale_of_rows_does_not_matter(scale: float) -> None:
    z, images = make_features(), make_images()
    found = prepare(AtlasRun("r", z.astype(np.float64) * scale), images).z
    assert np.allclose(found.toarray(), z, atol=1e-6)
    mixed = z.astype(np.float64) * np.logspace(-300, 300, 60)[:, None]
    for given in (mixed, sparse.csr_array(mixed)):
        assert np.allclose(prepare(AtlasRun("r", given), images).z.toarray(), z, atol=1e-6)


@pytest.mark.parametrize("kind", ["complex128", "datetime64[s]", "U3", "O"])
def test_what_is_no_number_is_refused(kind: str) -> None:
    with pytest.raises(InputError, match="run 'r': features must be float16, float32 or float64"):
        prepare(AtlasRun("r", np.zeros((60, 3), kind)), make_images())


