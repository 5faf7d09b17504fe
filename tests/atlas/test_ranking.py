"""The order of dimensions and the classes that stand out, against plain loops."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from bayesncl.atlas.ranking import (
    TWIN_COSINE,
    Labels,
    clarity,
    clean_names,
    fold_twins,
    number_labels,
    pick_diverse,
    prominent_class,
)
from bayesncl.measure.vectors import top_images
from tests.conftest import unit_length


def test_clarity_follows_its_formula() -> None:
    rng = np.random.default_rng(0)
    group = np.arange(200) // 20
    own = (group[:, None] == np.arange(10)) * rng.random((200, 10))  # dimensions 0-9: a group each
    own[:, 9] = rng.random(200) < 0.1  # 9: images with nothing in common
    shared = (group[:, None] == np.arange(9)) * 0.9
    z = unit_length(np.c_[own, np.full(200, 0.8), shared, 1e-4 * (group == 0)])
    index, value = top = top_images(csr_array(z), 12)
    score = clarity(csr_array(z), top)
    chance = z.mean(0) @ z.mean(0)
    for k in (0, 5, 9):
        x = unit_length(np.delete(z[index[k]], k, axis=1).astype(np.float64))
        cosine = np.mean([x[i] @ x[j] for i in range(12) for j in range(12) if i != j])
        coherence = max((cosine - chance) / (1 - chance), 0.01)
        a = z[:, k].astype(np.float64)
        concentration = 1 - a.sum() ** 2 / (200 * (a**2).sum())
        strength = min(1, value[k].mean() / 0.1)
        assert score[k] == pytest.approx(coherence * concentration * strength, rel=1e-3)
    assert score[:9].min() > 2 * score[9]
    assert score[10] < 0.1 * score[:9].min()  # fires on all images
    assert score[-1] < 0.02 * score[0]  # fires weakly
    rare = csr_array(unit_length(np.eye(30)[:, :3]))
    assert not clarity(rare, top_images(rare, 12)).any()


def test_diverse_dimensions_come_before_similar_ones() -> None:
    rng = np.random.default_rng(0)
    group = np.arange(120) // 20
    z = unit_length((group[:, None] == np.arange(12) // 2) * (0.5 + rng.random((120, 12))))
    top = top_images(csr_array(z), 12)
    score = np.linspace(1, 0.5, 12)
    score[4] = 0  # never picked
    means = [unit_length(z[top[0][k]].mean(0)[None])[0] for k in range(12)]
    order: list[int] = []

    def gain(k: int) -> float:
        return score[k] * (1 - max((float(means[k] @ means[j]) for j in order), default=0))

    while len(order) < 8:
        order.append(max((k for k in range(12) if k not in order and score[k] > 0), key=gain))
    assert pick_diverse(csr_array(z), top, score, 8).tolist() == order
    assert sorted(k // 2 for k in order[:6]) == list(range(6))  # two dimensions per group
    assert len(pick_diverse(csr_array(z), top, np.zeros(12), 8)) == 0


def test_a_class_stands_out_only_beyond_chance() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, 500)
    random, tigers = rng.permutation(500)[:50], np.flatnonzero(y == 3)[:40]
    mixed = np.r_[tigers[:30], np.flatnonzero(y != 3)[:20]]
    index, value = np.zeros((3, 50), np.int64), np.zeros((3, 50), np.float32)
    for k, images in enumerate((random, tigers, mixed)):
        index[k, : len(images)], value[k, : len(images)] = images, 0.5
    labels = Labels(y, [str(c) for c in range(10)])
    label, share, log_p = prominent_class((index, value), labels)
    assert label.tolist() == [-1, 3, 3]
    assert share.tolist() == pytest.approx([0, 1, 0.6])
    assert log_p[1] < log_p[2] < log_p[0] == 0
    assert prominent_class((index, value), Labels())[0].tolist() == [-1, -1, -1]


def test_labels_are_numbered_by_the_classes_that_occur() -> None:
    labels = np.random.default_rng(0).choice([3, 64_000_000, 2**62, -1], 60)
    found = number_labels(labels, None)
    assert found.names == ["class 3", "class 64000000", f"class {2**62}"]
    assert (found.index == np.searchsorted([-1, 3, 64_000_000, 2**62], labels) - 1).all()
    many = number_labels(np.r_[np.arange(5000), np.arange(100)], None)
    assert len(many.names) == 2000
    assert (many.index[:100] >= 0).all()  # the most frequent ones
    assert (many.index[2000:5000] == -1).all()


def test_names_are_cleaned() -> None:
    names = ["001.Black_footed_Albatross", "3", "tiger", "_"]
    assert clean_names(names) == ["Black footed Albatross", "class 3", "tiger", "_"]
    assert clean_names(["a_b", "a b"]) == ["a_b", "a b"]  # must stay distinct


def test_twins_are_folded_into_the_clearest() -> None:
    rng = np.random.default_rng(0)
    x = np.repeat(rng.random((40, 4)) < 0.2, 4, axis=1) + 0.3 * rng.random((40, 16))
    x /= np.linalg.norm(x, axis=0)
    cosine = x.T @ x
    np.fill_diagonal(cosine, -1)
    near = np.argsort(-cosine, axis=1)[:, :12]
    score = rng.random(16)
    leader = fold_twins(near, np.take_along_axis(cosine, near, 1), score)
    want = {}  # the same, one by one
    for k in sorted(range(16), key=lambda k: -score[k]):
        if k not in want:
            want[k] = k
            want |= {j: k for j in range(16) if j not in want and cosine[k, j] > TWIN_COSINE}
    assert leader.tolist() == [want[k] for k in range(16)]
    assert 4 <= len(set(want.values())) < 16
