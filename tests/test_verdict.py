"""The verdict: what it says of known codes, and that it always has something sound to say."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from bayesncl.errors import InputError
from bayesncl.measure import labelfree, stability
from bayesncl.measure.readable import figures, least_alike, readable
from bayesncl.measure.retrieval import retrieval
from bayesncl.measure.sparse import strongest_images
from bayesncl.measure.verdict import Verdict, in_words, render, to_dict, verdict
from tests.test_kept import codes
from tests.test_labelfree import embed


def checked(found: Verdict) -> dict[str, str]:
    """At most eight lines, finite figures, JSON, 80 columns; texts by how they were measured."""
    assert 1 <= len(found.lines) <= 8
    for line in found.lines:
        assert line.text.endswith(".") and line.measured_by
        assert all(v is None or (type(v) is float and np.isfinite(v)) for v in (line.value, line.chance, line.control))
    assert json.loads(json.dumps(to_dict(found), allow_nan=False))["images"] == found.images
    assert max(map(len, render(to_dict(found)).splitlines())) <= 80
    assert "nan" not in render(to_dict(found))
    return {line.measured_by: line.text for line in found.lines}


def clean(n: int = 400, classes: int = 8) -> tuple[np.ndarray, np.ndarray]:
    y = np.arange(n) % classes
    rng = np.random.default_rng(0)
    return np.eye(classes)[y] + 0.05 * rng.random((n, classes)) * (rng.random((n, classes)) < 0.05), y


def test_readable_dimensions_by_a_loop() -> None:
    z, y = codes()
    z[9:, 2] = 0  # fires on fewer than ten
    top = strongest_images(z, 10)
    found = readable(top, [y, y // 2])
    for j, rows in enumerate(top):
        alike = [
            len(rows[rows >= 0]) == 10 and max(Counter(labels[rows].tolist()).values()) >= 7 for labels in (y, y // 2)
        ]
        assert found[j] == any(alike)
    assert found.any() and not found[2]


def test_readable_dimensions_without_labels_by_a_loop() -> None:
    z, y = codes()
    z[9:, 2] = 0  # fires on fewer than ten
    e = labelfree.prepare(embed(y), len(z))
    least = least_alike(e, None, 0)
    near = np.mean([np.sort(row)[-10:-1].mean() for row in e @ e.T])  # an image and its neighbours
    assert 0.05 < least < near
    wanted = 0
    for rows in strongest_images(z, 10):
        pairs = [e[a] @ e[b] for a in rows for b in rows if a < b]
        wanted += (rows >= 0).all() and np.mean(pairs) >= least
    assert 0 < figures(z, embeddings=embed(y))["readable"]["count"] == wanted


def test_everything_given() -> None:
    z, y = clean()
    rng = np.random.default_rng(1)
    untrained = rng.random(z.shape)
    again = stability.summary(z, z[:, ::-1], control=(untrained, rng.random(z.shape)))
    found = verdict(
        z,
        y,
        label_names=[f"kind {c}" for c in range(8)],
        levels={"superclass": y // 4},
        embeddings=embed(y),
        control=untrained,
        train=(z, y),
        stability=again,
    )
    text = " ".join(checked(found).values())
    assert not found.collapsed
    assert "8 of 8 dimensions are readable" in text and "class or superclass" in text
    assert "8 of 8 classes" in text and "kind " in text
    assert "mean cosine of 1.00" in text and "probe" in text and "untrained" in text
    assert all(line.control is not None for line in found.lines[:3])
    assert found.lines[0].value == 8 and found.lines[0].chance < 8


def test_collapsed_comes_first() -> None:
    z = np.zeros((300, 32))
    z[:9] = np.random.default_rng(0).random((9, 32))
    found = verdict(z, np.arange(300) % 5, embeddings=embed(np.arange(300) % 5), control=np.ones((300, 32)))
    checked(found)
    assert found.collapsed and found.lines[0].text.startswith("Collapsed: ")
    assert not verdict(*clean()).collapsed


def test_dense_signed_features_say_what_cannot_apply() -> None:
    rng = np.random.default_rng(0)
    text = " ".join(checked(verdict(rng.standard_normal((200, 30)), np.arange(200) % 4)).values())
    assert "Most dimensions fire on an image (" in text and "near chance by construction" in text
    assert "Most dimensions fire" not in " ".join(checked(verdict(*clean())).values())
    text = " ".join(checked(verdict(rng.standard_normal((200, 30)))).values())
    assert "Most dimensions fire on an image (30 of 30 on average)." in text and "consistency" not in text


def test_a_single_class_that_has_a_dimension() -> None:
    z, y = clean()
    z[:, 1:] = np.random.default_rng(0).random((400, 7))
    text = " ".join(checked(verdict(z, y)).values())
    assert "1 of 8 dimensions is readable: at least 7 of its 10 strongest" in text
    assert "1 of 8 classes has a dimension of its own; the clearest is dimension 0 (class 0)" in text


def test_without_labels() -> None:
    z, y = clean()
    assert "Without labels or embeddings" in " ".join(checked(verdict(z)).values())
    found = verdict(z, embeddings=embed(y, 0.2), second=True)
    text = checked(found)
    assert found.lines[0].text.startswith("8 of 8 dimensions are readable") and found.lines[0].chance == 0
    assert any("second encoder" in by for by in text) and "alike by a second encoder" in found.lines[0].text


def test_lengths_of_embeddings_do_not_judge() -> None:
    """A few rows of great length would be the mean, and all others alike."""
    z, y = codes(n=400)
    x = embed(y, 0.2) - 3
    long = x * np.random.default_rng(0).lognormal(0, 3, (400, 1))
    even, uneven = (figures(z, embeddings=e) for e in (x, long))
    assert even["readable"]["count"] == uneven["readable"]["count"] > 5
    assert even["labelfree"]["intruder"] == pytest.approx(uneven["labelfree"]["intruder"], abs=0.02)
    narrow = np.stack([y % 3 + 1, y % 2 + 1, y + 1], 1) + 0.01 * np.random.default_rng(0).random((400, 3))
    for e in (x, long, narrow, x + 30):  # no less than a cosine finds in them as they are, or centred
        ways = (e, e - e.mean(0))
        assert figures(z, y, embeddings=e)["whole"]["p5"] >= max(retrieval(w, y, ks=(5,))[5] for w in ways) - 1


def test_noise_is_not_praised() -> None:
    x = np.random.default_rng(0).standard_normal((300, 16))
    some, others = (np.maximum(x @ x[i : i + 16].T, 0) for i in (0, 16))  # along any direction lie rows that are alike
    line = verdict(some, embeddings=x, control=others).lines[0]
    assert (line.value, line.chance, line.control) == (16, 0, 16)
    assert "alike by the embeddings (" in line.text and "An untrained head has as many" in line.text
    line = verdict(some, embeddings=x, control=np.ones_like(some)).lines[0]
    assert line.value == 16 and "as many" not in line.text
    line = verdict(some, embeddings=x, noise=(others, x)).lines[0]  # they are as alike as noise
    assert line.value <= 4 and ", noise 1)" in line.text
    assert "Noise has as many" in verdict(some, embeddings=x, noise=(some, x)).lines[0].text
    z, y = clean()
    line = verdict(z, embeddings=embed(y, 0.2), noise=(others, x)).lines[0]
    assert line.value == 8 and "noise 0)" in line.text
    tree = figures(z, embeddings=embed(y, 0.2), noise=(others, x))
    for noise, within in ((3, True), (2, False)):  # 3 may well be 6 another time
        tree["readable"] |= {"noise": noise, "count": 6}
        assert ("Noise could have as many" in in_words(tree).lines[0].text) == within
    rows = np.random.default_rng(0).standard_normal((8, 16))[y]  # the same but for rounding, and so is noise
    assert verdict(z, embeddings=rows, noise=(z, rows)).lines[0].value == 8
    x[0], x[1:] = -1, 1 + 1e-4 * x[1:]  # all other rows lie opposite to it, beyond the mean
    assert "Chance has as many" in verdict(some, embeddings=x).lines[0].text


@pytest.mark.parametrize("n", [1, 2, 3, 7, 30])
def test_few_images_say_so(n: int) -> None:
    z, y = clean(n)
    assert "too few" in " ".join(checked(verdict(z, y, embeddings=embed(y), control=z)).values())


def test_one_class_and_a_class_an_image() -> None:
    z, _ = clean()
    assert "one label" in " ".join(checked(verdict(z, np.zeros(400))).values())
    assert "2 dimensions an image retrieve" in verdict(z[:, :2] + 0.1, np.arange(400) % 8).lines[2].text
    assert "400 classes" in " ".join(checked(verdict(z, [f"image {i}" for i in range(400)])).values())
    checked(verdict(np.zeros((100, 4)), np.arange(100) % 2, embeddings=np.ones((100, 3))))


def test_the_form_of_the_arrays_does_not_matter() -> None:
    z, y = codes(n=300)
    z = z.astype(np.float32)
    wanted = to_dict(verdict(z, y))
    for given, labels in ((torch.from_numpy(z), torch.from_numpy(y)), (sp.csr_array(z), y.tolist())):
        found = to_dict(verdict(given, labels))
        for line, other in zip(found["lines"], wanted["lines"]):
            assert line["value"] == pytest.approx(other["value"], rel=1e-4) and line["chance"] == other["chance"]
    with pytest.raises(InputError, match="control"):
        verdict(z, y, control=z[:, :5])
