"""bayesncl explain: a planted shortcut is found, shown and switched off."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bayesncl.codes.folder import CodesFolder
from bayesncl.codes.names import Annotations, Entry
from bayesncl.codes.open import PhotoCodes
from bayesncl.jobs.explain import explain, explain_codes, explain_image, summarize
from bayesncl.measure.factors import about, average_auc, beyond_luck
from tests.measure.test_linear import shortcut


@pytest.fixture(scope="module")
def planted() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Codes, labels, places and held-out marks; label and place are tied in training only."""
    parts = shortcut(1200, 0.95, 0), shortcut(800, 0.5, 1)
    z, y, place = (np.concatenate(both) for both in zip(*parts))
    labels, places = np.array(["land bird", "water bird"])[y], np.array(["land", "water"])[place]
    return z, labels, places, np.arange(2000) >= 1200


def test_a_planted_shortcut_is_found_and_switched_off(planted) -> None:
    z, y, place, test = planted
    found = explain(z, y, test, embeddings=z, groups=place)
    assert found.groups is not None and found.groups[:4] == ["land", "water", "", ""]
    assert found.group_share > 50
    few = found.scores["codes, few dimensions"]
    assert few["worst"] < 40 and found.scores["full embedding"]["worst"] < 40
    assert few["groups"][0]["class"].split()[0] != few["groups"][0]["group"]
    strongest = {each.label: each.dimension for each in reversed(found.weights) if each.weight > 0}
    assert strongest == {"land bird": 0, "water bird": 1}
    better = explain(z, y, test, groups=place, irrelevant=[0, 1])
    for name in ("few, irrelevant ones off", "all, irrelevant ones off"):
        assert better.scores[name]["worst"] > 60
    assert better.scores["codes, few dimensions"] == few
    assert not better.model.used[:2].any() and better.group_share == 0
    text = summarize(found)
    assert max(map(len, text.splitlines())) <= 80 and "about water" in text
    small = found._replace(model=replace(found.model, weight=found.model.weight / 100))
    assert "about water" not in summarize(small)  # no weight is shown as 0.00


def test_a_tie_of_label_and_group_does_not_make_a_dimension_about_the_group(planted) -> None:
    z, labels, places, test = planted
    y, place = ((each == np.unique(each)[1])[~test].astype(int) for each in (labels, places))
    assert about(z[~test], place)[2]  # it shows the bird, and birds are tied to places
    assert beyond_luck(average_auc(z[~test], place, y))[:4].tolist() == [True, True, False, False]
    slow = 0.0
    total = 0.0
    for c in (0, 1):  # the mean over classes, weighted by the precision of each
        rows = np.flatnonzero(y == c)
        inside = place[rows] == 1
        pairs = [(a > b) for a in z[rows[inside], 0] for b in z[rows[~inside], 0]]
        error = np.sqrt((len(rows) + 1) / (12 * inside.sum() * (~inside).sum()))
        slow, total = slow + np.mean(pairs) / error**2, total + 1 / error**2
    assert average_auc(z[~test], place, y).auc[1, 0] == pytest.approx(slow / total)


def test_an_image_is_explained_by_its_contributions(planted) -> None:
    z, y, place, test = planted
    found = explain(z, y, test, groups=place)
    text = explain_image(found, z[0]).splitlines()
    label = found.model.predict(z[:1])[0]
    assert label in text[0]
    added = found.model.contributions(z[:1])[0, :, list(found.model.classes).index(label)]
    assert f"z{np.abs(added).argmax()} " in text[1] and f"{np.abs(added).max():.2f}" in text[1]


def test_marks_and_files(run, planted, tmp_path: Path) -> None:
    z, y, place, _ = planted
    rows = [f"{i}.png" for i in range(600)]
    np.savez(tmp_path / "x.npz", z=z[:600].astype(np.float32), y=y[:600], names=np.array(rows))
    table = "\n".join(["name,label", *(f"{n},{p}" for n, p in zip(rows, place))])
    (tmp_path / "places.csv").write_text(table)
    assert run("fit", "x.npz", "-o", "codes", "--components", "8", "--quiet").status == 0
    answer = run("explain", "codes", "--groups", "places.csv", "-o", "w.csv", "--quiet")
    assert answer.status == 0, answer.err
    folder = CodesFolder("codes")
    found, _ = explain_codes(PhotoCodes(folder), groups=Path("places.csv"))
    table = list(csv.DictReader(Path("w.csv").read_text().splitlines()))
    assert [int(row["dimension"]) for row in table] == [each.dimension for each in found.weights]
    saved = folder.load_result("explain")
    assert len(saved["weights"]) == len(table) and "codes, few dimensions" in saved["scores"]
    entries = {3: [Entry(mark="irrelevant", author="Ann")], 4: [Entry(name="sea", author="Ann")]}
    folder.save_names(Annotations(folder.fingerprint(), "codes", 8, entries))
    assert explain_codes(PhotoCodes(folder), without=["sea"])[0].irrelevant == [3, 4]
    one = run("explain", "codes", "--image", "7.png", "--quiet")
    assert one.status == 0 and "predicted" in one.out
    Path("codes/explain.json").write_text('{"identity": "other"}')
    assert folder.load_result("explain") is None
