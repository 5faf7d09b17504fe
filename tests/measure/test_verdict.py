"""The verdict: what it says of known codes, and that it always has something sound to say."""

import json
import re
from typing import Any

import numpy as np
import pytest

from bayesncl.errors import InputError
from bayesncl.measure import labelfree
from bayesncl.measure.figures import figures, least_alike, readable
from bayesncl.measure.retrieval import retrieval
from bayesncl.measure.topk import strongest_images
from bayesncl.measure.verdict import judge, render
from tests.measure.test_labelfree import embed
from tests.measure.test_topk import codes


def verdict(*given, **options) -> dict[str, Any]:
    return figures(*given, ks=(), **options).verdict


def checked(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Lines by key; at most nine, with finite figures, as JSON and within 80 columns."""
    lines = found["lines"]
    assert 1 <= len(lines) <= 9
    for line in lines:
        assert line["text"].endswith(".") and line["measured_by"]
        numbers = [line[key] for key in ("value", "chance", "control")]
        assert all(v is None or (type(v) is float and np.isfinite(v)) for v in numbers)
    json.dumps(found, allow_nan=False)
    text = render(found)
    assert max(map(len, text.splitlines())) <= 80
    assert "nan" not in text
    assert all(line["advice"].split()[0] in text for line in lines if line["advice"])
    return {line["key"]: line for line in lines}


def clean(n: int = 400, classes: int = 8) -> tuple[np.ndarray, np.ndarray]:
    rng, y = np.random.default_rng(0), np.arange(n) % classes
    noise = rng.random((n, classes)) * (rng.random((n, classes)) < 0.05)
    return np.eye(classes)[y] + 0.05 * noise, y


def test_readable_dimensions_by_a_loop() -> None:
    z, y = codes()
    z[9:, 2] = 0  # fires on fewer than ten
    top = strongest_images(z, 10)
    found = readable(top, [y, y // 2])
    for j, rows in enumerate(top):
        alike = max(np.bincount(labels[rows]).max() for labels in (y, y // 2)) >= 7
        assert found[j] == (alike and rows.min() >= 0)
    assert found.any() and not found[2]


def test_readable_dimensions_without_labels_by_a_loop() -> None:
    z, y = codes()
    z[9:, 2] = 0  # fires on fewer than ten
    e = labelfree.prepare(embed(y), len(z))
    least = least_alike(e, None, 0)
    near = np.mean([np.sort(row)[-10:-1].mean() for row in e @ e.T])  # an image and its neighbors
    assert 0.05 < least < near
    wanted = 0
    for rows in strongest_images(z, 10):
        pairs = [e[a] @ e[b] for a in rows for b in rows if a < b]
        wanted += (rows >= 0).all() and np.mean(pairs) >= least
    assert 0 < figures(z, embeddings=embed(y))["readable/count"].value == wanted


def test_everything_given() -> None:
    z, y = clean()
    rng = np.random.default_rng(1)
    untrained = rng.random(z.shape)
    again = {"again": z[:, ::-1], "control_again": rng.random(z.shape)}
    names, levels = [f"kind {c}" for c in range(8)], {"superclass": y // 4}
    given = {"embeddings": embed(y), "control": untrained, "train": (z, y), **again}
    found = verdict(z, y, label_names=names, levels=levels, **given)
    lines = checked(found)
    assert not found["collapsed"]
    assert lines["readable"]["figure"] == "8 of 8" and "superclass" in lines["readable"]["measured_by"]
    assert lines["own_dimension"]["figure"] == "8 of 8" and "kind " in lines["one_class"]["beside"]
    assert "full embedding" in lines["precision"]["beside"] and "probe" in lines["precision"]["beside"]
    assert lines["seeds"]["figure"] == "1.00"
    assert all(line["control"] is not None for line in found["lines"][:4])
    assert lines["readable"]["value"] == 8 and lines["readable"]["chance"] < 8
    labels = tuple(line["label"] for line in found["lines"])
    rows = [row for row in render(found).splitlines() if row.startswith(labels)]
    assert len({re.search(r"[\d%]   ", row).start() for row in rows}) == 1  # aligned


def test_collapsed_comes_first() -> None:
    z, y = np.zeros((300, 32)), np.arange(300) % 5
    z[:9] = np.random.default_rng(0).random((9, 32))
    found = verdict(z, y, embeddings=embed(y), control=np.ones((300, 32)))
    checked(found)
    assert found["collapsed"] and found["lines"][0]["text"].startswith("Collapsed: ")
    assert "Ignore the figures below" in found["lines"][0]["advice"]
    assert not verdict(*clean())["collapsed"]


def test_dense_signed_features_are_called_dense() -> None:
    z = np.random.default_rng(0).standard_normal((200, 30))
    assert "consistency" in checked(verdict(z, np.arange(200) % 4))["dense"]["advice"]
    assert "consistency" not in checked(verdict(z))["dense"]["advice"]
    assert "dense" not in checked(verdict(*clean()))


def test_many_dimensions_share_a_class_evenly() -> None:
    """20 dimensions per class: none has a tenth of it, yet each is of one class."""
    rng, y = np.random.default_rng(0), np.arange(1500) % 5
    z = np.zeros((1500, 100))
    z[np.arange(1500), y * 20 + rng.integers(20, size=1500)] = 1
    tree = figures(z, y, ks=())
    assert tree["kept/2/classes_owned"].value == 0
    assert checked(tree.verdict)["own_dimension"]["value"] == 5
    assert tree["kept/2/classes_owned_evenly"].chance < 5


def test_advice_on_copies_is_fewer_dimensions_not_more() -> None:
    y = np.arange(400) % 8
    z = np.eye(2)[np.arange(400) // 8 % 2]  # two dimensions, unrelated to the classes
    advice = {line["key"]: line["advice"] for line in verdict(z, y)["lines"]}
    assert "more dimensions" in advice["own_dimension"] and not advice["effective"]
    copies = {line["key"]: line["advice"] for line in verdict(np.repeat(z, 20, 1), y)["lines"]}
    assert "more dimensions" not in copies["own_dimension"]
    assert "more images" in copies["own_dimension"] and "repeat each" in copies["effective"]


def test_without_labels() -> None:
    z, y = clean()
    assert checked(verdict(z))["readable"]["figure"] == "unknown"
    lines = checked(verdict(z, embeddings=embed(y, 0.2), second=True))
    assert lines["readable"]["figure"] == "8 of 8" and lines["readable"]["chance"] == 0
    assert "second encoder" in lines["readable"]["measured_by"]


def test_lengths_of_embeddings_do_not_judge() -> None:
    """A few rows of great length would be the mean, and all others alike."""
    z, y = codes(n=400)
    x = embed(y, 0.2) - 3
    long = x * np.random.default_rng(0).lognormal(0, 3, (400, 1))
    even, uneven = (figures(z, embeddings=e) for e in (x, long))
    assert even["readable/count"] == uneven["readable/count"] and even["readable/count"].value > 5
    shares = [each["labelfree/intruder"].value for each in (even, uneven)]
    assert shares[0] == pytest.approx(shares[1], abs=0.02)
    narrow = np.stack([y % 3 + 1, y % 2 + 1, y + 1], 1)
    narrow = narrow + 0.01 * np.random.default_rng(0).random((400, 3))
    for e in (x, long, narrow, x + 30):  # no less than a cosine finds, as they are or centered
        best = max(retrieval(way, y, ks=(5,))[5] for way in (e, e - e.mean(0)))
        assert figures(z, y, embeddings=e)["whole/p5"].value >= best - 1


def test_noise_is_not_praised() -> None:
    x = np.random.default_rng(0).standard_normal((300, 16))
    # along any direction lie rows that are alike
    some, others = (np.maximum(x @ x[i : i + 16].T, 0) for i in (0, 16))
    line = verdict(some, embeddings=x, control=others)["lines"][0]
    assert (line["value"], line["chance"], line["control"]) == (16, 0, 16)
    assert "untrained head has as many" in line["advice"]
    line = verdict(some, embeddings=x, control=np.ones_like(some))["lines"][0]
    assert line["value"] == 16 and not line["advice"]
    line = verdict(some, embeddings=x, noise=(others, x))["lines"][0]  # they are as alike as noise
    assert line["value"] <= 4 and "noise 1" in line["beside"]
    assert "noise" in verdict(some, embeddings=x, noise=(some, x))["lines"][0]["advice"]
    z, y = clean()
    tree = figures(z, embeddings=embed(y, 0.2), noise=(others, x))
    assert (tree["readable/count"].value, tree["readable/noise"].value) == (8, 0)
    for noise, within in ((3, True), (2, False)):  # 3 may well be 6 another time
        tree.readable |= {"noise": noise, "count": 6}
        assert ("noise" in judge(tree, 400, 8, None)["lines"][0]["advice"]) == within
    copies = np.repeat(z, 8, axis=1)  # eight copies count as one
    tree = figures(copies, embeddings=embed(y, 0.2))
    for count, within in ((14, True), (20, False)):
        tree.readable |= {"noise": 3, "count": count}
        assert ("noise" in judge(tree, 400, 64, None)["lines"][0]["advice"]) == within
    rows = np.random.default_rng(0).standard_normal((8, 16))[y]  # identical images, as is noise
    assert verdict(z, embeddings=rows, noise=(z, rows))["lines"][0]["value"] == 8
    x[0], x[1:] = -1, 1 + 1e-4 * x[1:]  # all other rows lie opposite to it, beyond the mean
    assert "chance" in verdict(some, embeddings=x)["lines"][0]["advice"]


def test_few_images_and_a_class_per_image() -> None:
    with pytest.raises(InputError, match="control"):
        verdict(*codes(), control=np.ones((240, 5)))
    for n in (1, 2, 7, 30):
        z, y = clean(n)
        labels = y if n > 1 else None
        assert "images" in checked(verdict(z, labels, embeddings=embed(y), control=z))
    z, _ = clean()
    y = np.arange(len(z)) // 6
    assert "coarser labels" in verdict(z, y)["lines"][0]["advice"]
    assert "coarser" not in verdict(z, y, levels={"superclass": y // 2})["lines"][0]["advice"]
    two = checked(verdict(z[:, :2] + 0.1, np.arange(400) % 8))
    assert "2 active" in two["precision"]["label"]
    lines = checked(verdict(z, [f"image {i}" for i in range(400)]))
    assert lines["own_dimension"]["figure"] == "0 of 400"
    checked(verdict(np.zeros((100, 4)), np.arange(100) % 2, embeddings=np.ones((100, 3))))
