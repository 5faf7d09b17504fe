"""Wrong labels, odd images and duplicates against slow twins and planted cases."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bayesncl.codes.folder import CodesFolder
from bayesncl.jobs import audit as module
from bayesncl.jobs.audit import ACROSS, EXACT, NEAR, ODD, WRONG, Finding, audit, audit_folder
from tests.commands import draw_folder
from tests.conftest import unit_length


def clusters(n: int = 60, classes: int = 3, width: int = 24) -> tuple[np.ndarray, np.ndarray]:
    """Rows around one center per class."""
    rng = np.random.default_rng(0)
    y = np.arange(n) % classes
    centers = 3 * rng.normal(size=(classes, width))
    return (centers[y] + rng.normal(size=(n, width))).astype(np.float32), y


def of_kind(found: list[Finding], kind: str) -> list[Finding]:
    return [finding for finding in found if finding.kind == kind]


def test_left_out_predictions_equal_refits_without_the_row() -> None:
    x, y = clusters(24, width=5)
    x = unit_length(x - x.mean(0))
    found = module.predict_left_out(torch.from_numpy(x), y)
    for i in range(len(x)):
        rest = np.arange(len(x)) != i
        a, onehot = x[rest].astype(np.float64), np.eye(3)[y[rest]]
        mean, prior = a.mean(0), onehot.mean(0)
        gram = (a - mean).T @ (a - mean) + module.PENALTY * np.eye(5)
        weights = np.linalg.solve(gram, (a - mean).T @ (onehot - prior))
        np.testing.assert_allclose(found[i], (x[i] - mean) @ weights + prior, atol=1e-4)


def test_neighbors_and_pairs_equal_a_loop() -> None:
    x, _ = clusters(40)
    x = unit_length(x - x.mean(0))
    cosine, index = module.find_neighbors(torch.from_numpy(x), 39)
    pairs = {}
    for i in range(40):
        order = sorted((j for j in range(40) if j != i), key=lambda j: -float(x[i] @ x[j]))
        np.testing.assert_allclose(cosine[i], x[i] @ x[index[i]].T, atol=1e-5)
        np.testing.assert_allclose(cosine[i], x[i] @ x[order].T, atol=1e-5)
        pairs |= {(i, j): x[i] @ x[j] for j in range(i + 1, 40) if x[i] @ x[j] >= 0.8}
    found = module.near_pairs(cosine, index, 0.8)
    assert found.keys() == pairs.keys() and pairs
    np.testing.assert_allclose([found[p] for p in pairs], list(pairs.values()), atol=1e-5)


def test_planted_cases_are_found() -> None:
    (x, y), rng = clusters(120), np.random.default_rng(1)
    odd = 40 * unit_length(rng.normal(size=(1, 24)))
    near = x[4:5] + 0.01 * rng.normal(size=(1, 24))
    x = np.concatenate([x, odd, x[2:3], near]).astype(np.float32)
    labels = np.array(["ant", "bee", "cat", "dog"])[[*y, 0, y[2], y[4]]]
    labels[7] = "cat" if labels[7] != "cat" else "ant"
    held_out = np.arange(len(x)) >= 121
    found = audit(x, labels, [f"{i}.png" for i in range(len(x))], held_out=held_out)
    wrong = of_kind(found, WRONG)[0]
    assert (wrong.image, wrong.label, wrong.suggested) == ("7.png", labels[7], labels[7 % 3])
    assert labels[int(wrong.other[:-4])] == wrong.suggested
    assert of_kind(found, ODD)[0].image == "120.png"
    assert [f[1:3] for f in of_kind(found, EXACT)] == [("2.png", "121.png")]
    assert ("4.png", "122.png") in [f[1:3] for f in of_kind(found, NEAR)]
    assert ("2.png", "121.png") not in [f[1:3] for f in of_kind(found, NEAR)]
    assert {f[1:3] for f in of_kind(found, ACROSS)} >= {("2.png", "121.png"), ("4.png", "122.png")}
    folder = "a folder with a long name"
    found = [f._replace(image=f"{folder}/{folder}/{f.image}") for f in found]
    lines = module.summarize(found).splitlines()
    assert max(map(len, lines)) <= 80 and "  …e/a folder with a long name/7.png" in "\n".join(lines)
    assert not of_kind(audit(x) + audit(x, np.zeros(len(x))), WRONG)  # of no or one class


def test_copies_are_found_by_their_pixels() -> None:
    rng, cpu = np.random.default_rng(0), torch.device("cpu")
    pictures = [rng.uniform(0, 255, (16, 16)).astype(np.float32) for _ in range(6)]
    faint = 100 + 0.12 * pictures[0]
    noise = 2 * rng.normal(size=(16, 16)).astype(np.float32)
    copies = [0.5 * pictures[1] + 60, faint, faint + noise, pictures[2] + 6 * noise]
    flat = [np.full((16, 16), 7, np.float32)] * 2
    found = module.pixel_pairs([*pictures, *copies, None, *flat, None], cpu)
    doubtful = copies[1:3], (pictures[2], copies[3])
    correlation = [np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in doubtful]
    assert 0.95 < min(correlation) < max(correlation) < 0.99
    assert found == [(0, 7), (1, 6), (7, 8)]  # 7 and 8 differ by two gray levels, 2 and 9 by twelve
    assert module.pixel_pairs([pictures[3], None], cpu) == []


def test_columns_of_a_shuffled_data_frame() -> None:
    pandas = pytest.importorskip("pandas")
    x, y = clusters(40)
    x[9] = x[4]
    frame = pandas.DataFrame({"name": [f"{i}.png" for i in range(40)], "held": np.arange(40) < 8})
    frame = frame.assign(y=y, content=[f"content {i}" for i in range(40)])
    frame.loc[7, "content"] = "content 30"
    some = frame.iloc[np.random.default_rng(0).permutation(40)]
    given = {"held_out": "held", "contents": "content"}
    as_series = {name: some[column] for name, column in given.items()}
    found = audit(x[some.index], some.y, some["name"], **as_series)
    as_lists = {name: column.tolist() for name, column in as_series.items()}
    assert found == audit(x[some.index], some.y.tolist(), some["name"].tolist(), **as_lists)
    assert {frozenset(f[1:3]) for f in of_kind(found, EXACT)} == {frozenset(("7.png", "30.png"))}


def test_copies_of_files_are_found_in_codes(run, tmp_path: Path) -> None:
    """Bytes decide on exact duplicates; pixels find a copy that the embedding sets far apart."""
    photos = draw_folder(tmp_path / "photos", each=20)
    names = sorted(str(p.relative_to(photos)) for p in photos.rglob("*.png"))
    ramp = np.add.outer(np.arange(40), 3 * np.arange(40)).astype(np.uint8)
    Image.fromarray(ramp).save(photos / names[0])
    Image.fromarray(ramp).resize((80, 80)).save(photos / names[1])
    (photos / names[5]).write_bytes((photos / names[4]).read_bytes())
    x = np.random.default_rng(0).normal(size=(len(names), 16)).astype(np.float32)
    x[1] = x[0] + 0.7 * x[1]
    np.savez(tmp_path / "x.npz", z=x, names=np.array(names))
    fit = ("fit", "x.npz", "-o", "codes", "--images", photos, "--components", "4", "--quiet")
    assert run(*fit).status == 0
    found = audit_folder(CodesFolder(tmp_path / "codes"))
    assert {frozenset(f[1:3]) for f in of_kind(found, EXACT)} == {frozenset(names[4:6])}
    assert {frozenset(f[1:3]) for f in of_kind(found, NEAR)} == {frozenset(names[:2])}
    answer = run("audit", "codes", "-o", "t.csv", "-n", "2", "--quiet")
    assert answer.status == 0 and "1 exact duplicate\n" in answer.out
    assert Path("t.csv").read_text().count("\n") == len(found) + 1
    (photos / names[0]).unlink()
    assert not of_kind(audit_folder(CodesFolder("codes")), NEAR)
    assert "page To check" in run("audit", "codes").err
    assert run("fit", "x.npz", "-o", "bare", "--components", "4", "--quiet").status == 0
    assert "atlas" not in run("audit", "bare").err  # it has no images to show
