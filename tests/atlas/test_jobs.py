"""The pages of jobs: things to check, new images, and a classifier."""

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bayesncl.atlas import AtlasRun, Photos, build_atlas
from bayesncl.atlas.sources import load_explanation, load_findings, load_new
from bayesncl.codes.folder import CodesFolder
from bayesncl.codes.names import Check, read_names
from bayesncl.jobs.audit import EXACT, NEAR, WRONG
from tests.atlas.conftest import HOSTILE, Case
from tests.atlas.test_codes import BLIND, fit
from tests.commands import draw_folder


@pytest.fixture
def page(case: Case, tmp_path: Path) -> Path:
    """Two wrong labels and a duplicate, of photos that are not in the atlas."""
    names = [f"{HOSTILE}{i}.png" for i in range(5)]
    paths = [tmp_path / f"{i}.png" for i in range(5)]
    for i, path in enumerate(paths):
        Image.fromarray(np.full((80, 40 + 20 * i, 3), 50 * i, np.uint8)).save(path)
    findings = [
        [WRONG, *names[:2], "cat", HOSTILE, 0.5], [WRONG, names[2], "", "cat", "dog", 0.25],
        [EXACT, *names[3:], "cat", "", 1.0],
    ]  # fmt: skip
    images = Photos(paths, names=tuple(names))
    page = ({"findings": findings, "totals": {WRONG: 7, EXACT: 1, NEAR: 0}}, images)
    run = AtlasRun("r", case.z, fingerprint="c" * 16)
    return build_atlas(tmp_path / "atlas", [run], case.images, "Check", {"check": page})


def test_findings_are_decided_by_keys_and_exported(driver, page: Path, tmp_path: Path) -> None:
    driver.visit(page)
    driver.click("nav a[href*='check']")
    driver.wait_for("document.querySelectorAll('.finding').length === 3")
    assert "Labeled cat" in driver.text(".finding")[0]
    assert HOSTILE in driver.text(".finding")[0]
    assert any("7" in t for t in driver.text(".note"))  # the list was cut
    driver.press("a")
    assert driver.data(".finding.current", "finding") == [1]
    driver.press("n")
    driver.press("x")
    assert driver.text(".decision") == ["accepted", "", "dismissed"]
    assert driver.text(".lede")[0].startswith("2 of 3 checked: 1 accepted, 1 dismissed")
    driver.press("p", "p", "p", "a")  # a second time takes it back
    assert driver.text(".decision") == ["", "", "dismissed"]
    driver.press("x")
    driver.get("about:blank")
    driver.visit(page, "#/check?kind=wrong+label")
    assert driver.text(".decision") == ["dismissed", ""]
    driver.visit(page, "#/names")
    (own,) = read_names(driver.download(".controls button", tmp_path / "names.json"))
    kept = {(c.kind, c.image, c.other, c.decision) for c in own.checks}
    assert kept == {
        (WRONG, f"{HOSTILE}0.png", f"{HOSTILE}1.png", "dismissed"),
        (EXACT, f"{HOSTILE}3.png", f"{HOSTILE}4.png", "dismissed"),
    }
    driver.resize(390, 800)
    driver.visit(page, "#/check")
    assert driver.run("document.documentElement.scrollWidth") <= 390


def test_audit_leaves_findings_for_the_atlas_and_takes_decisions(run, tmp_path: Path) -> None:
    draw_folder(tmp_path / "pictures", each=20)
    first = sorted((tmp_path / "pictures").rglob("*.png"))[0]
    (first.parent / "zz.png").write_bytes(first.read_bytes())
    fit(run, "pictures")
    folder = CodesFolder("codes")
    assert load_findings(folder, folder.rows(), None) is None
    assert run("atlas", "codes", "--audit", "--quiet").status == 0
    check = load_findings(folder, folder.rows(), None)
    assert check is not None and check[1] is not None
    names, findings = check[1].names, check[0]["findings"]
    copies = [tuple(f[1:3]) for f in findings if f[0] == EXACT]
    assert any(other.endswith("zz.png") for _, other in copies)
    assert {name for f in findings for name in f[1:3]} - {""} == set(names)
    assert check[0]["totals"][EXACT] == len(copies)
    own = folder.names()
    own.checks = [Check(EXACT, *copies[0], "accepted", "Ann", "2026")]
    folder.save_names(own)
    assert run("audit", "codes", "-o", "check.csv", "--quiet").status == 0
    rows = csv.DictReader(Path("check.csv").read_text().splitlines())
    assert [row["image"] for row in rows if row["decision"] == "accepted"] == [copies[0][0]]
    fit(run, "pictures", dims=5)
    assert load_findings(folder, folder.rows(), None) is None  # of other codes


def test_novel_images_and_changed_dimensions(driver, case: Case, tmp_path: Path) -> None:
    Image.fromarray(np.full((40, 80, 3), 90, np.uint8)).save(tmp_path / "a.png")
    images = [(f"{HOSTILE}.png", 0.9), ("gone.png", 0.8)]
    photos = Photos([tmp_path / "a.png"], names=(f"{HOSTILE}.png",))
    changes = [(3, 0.1, 0.4), (7, 0.2, 0.1)]
    plain = {"headline": f"50 % {HOSTILE}", "images": images, "changes": changes}
    pages = {"new": (plain, photos)}
    page = build_atlas(tmp_path / "p", [AtlasRun("r", case.z)], case.images, "New", pages)
    driver.resize(390, 800)
    driver.visit(page, "#/new")
    assert driver.run("document.documentElement.scrollWidth") <= 390
    assert driver.text(".lede") == [f"50 % {HOSTILE}."]
    assert driver.text(".novel small") == [f"{HOSTILE}.png", "gone.png"]
    size = "[...document.querySelectorAll('.novel canvas')].map(c => [c.width, c.height])"
    assert driver.run(size) == [[80, 40]]
    assert driver.text("h3") == ["More", "Less"]
    assert driver.data(".features li", "dim") == [3, 7]
    shares = driver.text(".features .bar-text")
    assert shares == ["fitted 10.0 %", "new 40.0 %", "fitted 20.0 %", "new 10.0 %"]


def test_compare_leaves_its_result_for_the_atlas(run, tmp_path: Path) -> None:
    draw_folder(tmp_path / "pictures", each=20)
    draw_folder(tmp_path / "others", each=4)
    fit(run, "pictures")
    folder = CodesFolder("codes")
    assert load_new(folder) is None
    assert run("compare", "codes", "others", "--encoder", BLIND, "--quiet").status == 0
    plain, photos = load_new(folder)
    names, scores = zip(*plain["images"])
    assert names == photos.names and len(names) == 12
    assert scores == tuple(sorted(scores, reverse=True))
    assert "12 images" in plain["headline"]
    first = Path(photos.paths[0])
    first.write_bytes(first.read_bytes() + b" ")  # no other file is shown
    plain, photos = load_new(folder)
    assert [name for name, _ in plain["images"]] == [names[0], *photos.names]
    assert run("atlas", "codes", "--quiet").status == 0
    assert Path("codes/atlas/data/new.js").exists()


def test_an_explanation_names_classes_as_the_page_does(run, tmp_path: Path) -> None:
    draw_folder(tmp_path / "pictures", ("1.red_bee", "2.owl"), each=20)
    fit(run, "pictures")
    folder = CodesFolder("codes")
    assert load_explanation(folder) is None
    assert run("explain", "codes", "--quiet").status == 0
    found = load_explanation(folder)
    assert found is not None
    assert {weight["label"] for weight in found["weights"]} == {"red bee", "owl"}


def test_dimensions_for_and_against_a_class(driver, case: Case, tmp_path: Path) -> None:
    common = {"label": HOSTILE, "name": "", "group": "sea", "irrelevant": "no"}
    weights = [{"dimension": k, "weight": w, **common} for k, w in ((4, 1.25), (2, -0.5))]
    score = {"average": 63.2, "worst": 20.1, "where": "owl, sea"}
    chance = {"average": 50.5, "worst": None, "where": ""}
    scores = {"codes, few dimensions": score, "chance": chance}
    found = {"scores": scores, "weights": weights, "group_share": 87.0}
    page = build_atlas(tmp_path / "atlas", [AtlasRun("a", case.z, explain=found)], case.images)
    driver.visit(page, "#/explain")
    (main,) = driver.text("main")
    assert all(word in main for word in (HOSTILE, "63.2 %", "20.1 % (owl, sea)", "50.5 %", "87 %"))
    tiles = driver.find_elements("css selector", "a.tile")
    assert [tile.get_attribute("href").split("#")[1] for tile in tiles] == ["/dim/4", "/dim/2"]
    assert main.index("+1.25") < main.index("Against") < main.index("0.50")
