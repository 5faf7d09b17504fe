"""Label-free measures against loops over pairs, and the rules by which intruder tests are drawn."""

import numpy as np
import pytest
import scipy.sparse as sp

from bayesncl.errors import InputError
from bayesncl.measure import labelfree
from bayesncl.measure.topk import strongest_images
from tests.conftest import unit_length
from tests.measure.test_topk import codes


def embed(y: np.ndarray, noise: float = 0.5, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((y.max() + 1, 16))[y] + noise * rng.standard_normal((len(y), 16)) + 3


def test_monosemanticity_over_all_pairs() -> None:
    z, y = codes(n=60, d=8, signed=True)
    z[:, 6], z[3] = 0, np.eye(8)[6]  # fires once: no pairs
    e = labelfree.prepare(embed(y), len(z))
    e[4] = 0
    unit = unit_length(z)
    found = labelfree.monosemanticity(z, e)
    for j in range(z.shape[1]):
        span = unit[:, j].max() - unit[:, j].min()
        if not span or j == 6:
            assert np.isnan(found[j])
            continue
        a = (unit[:, j] - unit[:, j].min()) / span
        weight = np.outer(a, a) * (1 - np.eye(len(z)))
        assert found[j] == pytest.approx((weight * (e @ e.T)).sum() / weight.sum(), abs=1e-5)


def test_likeness_and_duplicates_of_the_strongest() -> None:
    rng = np.random.default_rng(0)
    e = labelfree.prepare(rng.standard_normal((30, 4)), 30)
    e[9] = e[2]
    images = np.array([[2, 9, 5], [1, 4, 7], [3, 8, -1], [-1, -1, -1]])
    alike = labelfree.mean_cosine(images, e)
    pairs = [e[a] @ e[b] for a, b in ((1, 4), (1, 7), (4, 7))]
    assert alike[1] == pytest.approx(np.mean(pairs), abs=1e-6)
    assert np.isnan(alike[2:]).all()
    shares = labelfree.duplicate_share(images, e)
    assert shares[:3] == pytest.approx([2 / 3, 0, 0]) and np.isnan(shares[3])


def test_trials_keep_their_rules() -> None:
    z, y = codes(n=300)
    z[:, 2] = np.arange(1, 301)  # fires everywhere
    z[:, 3] = 0
    z[:3, 3] = 1  # on too few
    e = labelfree.prepare(embed(y, 0.3), len(z))
    e[::7] = e[0]  # near duplicates
    unit = np.abs(unit_length(z)).astype(np.float32)
    found = labelfree.draw_trials(z, e, trials=5, seed=3)
    assert np.bincount(found.dimension).max() <= 5 and len(found.odd) > 100
    assert not {3, 5} & set(found.dimension.tolist())
    for j, images, odd in zip(found.dimension, found.images, found.odd):
        four = np.delete(images, odd)
        assert len(set(images.tolist())) == 5
        assert (unit[four, j] >= np.sort(unit[:, j])[-20]).all()
        assert unit[images[odd], j] <= np.sort(unit[:, j])[::-1][150]  # the median, 0 for most
        cosine = e[images] @ e[images].T - 2 * np.eye(5)
        assert cosine.max() < 0.98
    assert len(set(found.odd.tolist())) == 5  # any place
    again = labelfree.draw_trials(sp.csr_array(z), e, trials=5, seed=3, dims=[2, 8])
    for j in (2, 8):  # neither the form of z nor the other dimensions matter
        own = found.images[found.dimension == j]
        np.testing.assert_array_equal(again.images[again.dimension == j], own)
    other = labelfree.draw_trials(z, e, trials=5, seed=4)
    assert other.images.shape != found.images.shape or (other.images != found.images).any()


def test_intruders_found_are_the_least_alike() -> None:
    z, y = codes()
    e = labelfree.prepare(embed(y, 1.5), len(z))
    trials = labelfree.draw_trials(z, e)
    found = labelfree.find_intruders(trials, e)
    for images, odd, hit in zip(trials.images, trials.odd, found):
        means = [np.mean([e[a] @ e[b] for b in images if b != a]) for a in images]
        assert hit == (int(np.argmin(means)) == odd)
    assert 0 < found.mean() < 1
    same = np.ones_like(e) / 4
    assert labelfree.find_intruders(trials, same) == pytest.approx(0.2)


def test_summary_beats_chance_and_has_no_nan() -> None:
    z, y = codes(n=400)
    judge = labelfree.prepare(embed(y), 400)
    found, chance = labelfree.summary(z, judge, top=strongest_images(z, 20))
    for name in ("monosemanticity", "top10_similarity", "intruder"):
        assert found[name] > chance[name] + 0.1
    assert found["intruder_low"] < found["intruder"] < found["intruder_high"]
    nothing = np.full((3, 20), -1)
    judge = labelfree.prepare(embed(np.arange(20) % 2), 20)
    empty, _ = labelfree.summary(np.zeros((20, 3)), judge, top=nothing)
    assert empty["monosemanticity"] is empty["intruder"] is empty["duplicates"] is None
    with pytest.raises(InputError, match="embeddings"):
        labelfree.prepare(embed(y), 20)
