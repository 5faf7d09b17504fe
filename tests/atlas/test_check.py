"""The page of things to check: findings, decisions by keyboard, and where they are stored."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bayesncl.atlas import AtlasRun, build_atlas
from bayesncl.atlas.pictures import Photos
from bayesncl.atlas.sources import load_findings
from bayesncl.codes.folder import CodesFolder
from bayesncl.codes.names import Check, read_names
from bayesncl.jobs.audit import EXACT, NEAR, WRONG
from tests.atlas.browser import click, download, press, resize, text, visit, wait_for
from tests.atlas.conftest import HOSTILE, Case
from tests.atlas.test_codes import fit
from tests.commands import draw_folder, refused


@pytest.fixture
def page(case: Case, tmp_path: Path) -> Path:
    """Two wrong labels and a duplicate, of photos that are not in the atlas."""
    names = [f"{HOSTILE}{i}.png" for i in range(5)]
    paths = [tmp_path / f"{i}.png" for i in range(5)]
    for i, path in enumerate(paths):
        Image.fromarray(np.full((80, 40 + 20 * i, 3), 50 * i, np.uint8)).save(path)
    findings = [
        [WRONG, 0, 1, "cat", HOSTILE, 0.5], [WRONG, 2, -1, "cat", "dog", 0.25],
        [EXACT, 3, 4, "cat", "", 1.0],
    ]  # fmt: skip
    images = Photos(paths, names=tuple(names))
    page = ({"findings": findings, "totals": {WRONG: 7, EXACT: 1, NEAR: 0}}, images)
    run = AtlasRun("r", case.z, fingerprint="c" * 16)
    return build_atlas(tmp_path / "atlas", [run], case.images, "Check", {"check": page})


def test_findings_are_decided_by_keys_and_exported(driver, page: Path, tmp_path: Path) -> None:
    visit(driver, page)
    click(driver, "nav a[href*='check']")
    wait_for(driver, "document.querySelectorAll('.finding').length === 3")
    assert "Labeled cat" in text(driver, ".finding")[0]
    assert HOSTILE in text(driver, ".finding")[0]
    sizes = "return [...document.querySelectorAll('.sides canvas')].map(c => [c.width, c.height])"
    assert driver.execute_script(sizes) == [[40, 80], [60, 80], [80, 80], [100, 80], [120, 80]]
    assert any("7" in t for t in text(driver, ".note"))  # the list was cut
    current = "return Number(document.querySelector('.finding.current').dataset.finding)"
    press(driver, "a")
    assert driver.execute_script(current) == 1
    press(driver, "n")
    press(driver, "x")
    assert text(driver, ".decision") == ["accepted", "", "dismissed"]
    assert text(driver, ".lede")[0].startswith("2 of 3 checked: 1 accepted, 1 dismissed")
    press(driver, "p", "p", "p", "a")  # a second time takes it back
    assert text(driver, ".decision") == ["", "", "dismissed"]
    press(driver, "x")
    driver.get("about:blank")
    visit(driver, page, "#/check?kind=wrong+label")
    assert text(driver, ".decision") == ["dismissed", ""]
    visit(driver, page, "#/check?show=open")
    assert len(text(driver, ".finding")) == 1
    visit(driver, page, "#/names")
    (own,) = read_names(download(driver, ".controls button", tmp_path / "names.json"))
    kept = {(c.kind, c.image, c.other, c.decision) for c in own.checks}
    assert kept == {
        (WRONG, f"{HOSTILE}0.png", f"{HOSTILE}1.png", "dismissed"),
        (EXACT, f"{HOSTILE}3.png", f"{HOSTILE}4.png", "dismissed"),
    }
    resize(driver, 390, 800)
    visit(driver, page, "#/check")
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 390
    click(driver, ".finding:nth-child(2) [data-decision=accepted]")
    assert text(driver, ".decision")[1] == "accepted"


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
    copies = [(names[f[1]], names[f[2]]) for f in findings if f[0] == EXACT]
    assert any(other.endswith("zz.png") for _, other in copies)
    assert {i for f in findings for i in f[1:3]} - {-1} == set(range(len(names)))
    assert check[0]["totals"][EXACT] == len(copies)
    own = folder.names()
    own.checks = [Check(EXACT, *copies[0], "accepted", "Ann", "2026")]
    folder.save_names(own)
    assert run("audit", "codes", "-o", "check.csv", "--quiet").status == 0
    rows = list(csv.DictReader(Path("check.csv").read_text().splitlines()))
    decided = [row for row in rows if row["decision"]]
    assert [(r["image"], r["decision"]) for r in decided] == [(copies[0][0], "accepted")]
    fit(run, "pictures", dims=5)
    assert load_findings(folder, folder.rows(), None) is None  # of other codes


def test_damaged_findings_are_refused(run, tmp_path: Path) -> None:
    draw_folder(tmp_path / "pictures", each=8)
    fit(run, "pictures")
    identity = CodesFolder("codes").about().identity
    tree = {"identity": identity, "findings": [["wrong label", 3]]}
    Path("codes/audit.json").write_text(json.dumps(tree))
    refused(run("atlas", "codes", "--quiet"), "audit.json")
    Path("codes/audit.json").write_text("[")
    assert run("atlas", "codes", "--quiet").status == 0
