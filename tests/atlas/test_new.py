"""The page of new images: what `bayesncl compare` left in the folder of codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

from bayesncl.atlas import AtlasRun, Photos, build_atlas
from bayesncl.atlas.sources import load_new
from bayesncl.codes.folder import CodesFolder
from tests.atlas.browser import click, data, resize, text, visit
from tests.atlas.conftest import HOSTILE, Case
from tests.atlas.test_codes import BLIND, fit
from tests.commands import draw_folder, refused


def test_novel_images_and_changed_dimensions(driver, case: Case, tmp_path: Path) -> None:
    Image.fromarray(np.full((40, 80, 3), 90, np.uint8)).save(tmp_path / "a.png")
    images = [(f"{HOSTILE}.png", 0.9, 0), ("gone.png", 0.8, -1)]
    photos = Photos([tmp_path / "a.png"], names=(f"{HOSTILE}.png",))
    changes = [(3, 0.1, 0.4), (7, 0.2, 0.1)]
    plain = {"headline": f"50 % {HOSTILE}", "images": images, "changes": changes}
    pages = {"new": (plain, photos)}
    page = build_atlas(tmp_path / "p", [AtlasRun("r", case.z)], case.images, "New", pages)
    visit(driver, page)
    click(driver, "nav a[href*='new']")
    visit(driver, page, "#/new")
    assert text(driver, ".lede") == [f"50 % {HOSTILE}."]
    assert text(driver, ".novel small") == [f"{HOSTILE}.png", "gone.png"]
    size = "return [...document.querySelectorAll('.novel canvas')].map(c => [c.width, c.height])"
    assert driver.execute_script(size) == [[80, 40]]
    assert text(driver, "h3") == ["Grew", "Shrank"]
    assert data(driver, ".features li", "dim") == [3, 7]
    shares = text(driver, ".features .bar-text")
    assert shares == ["before 10.0 %", "now 40.0 %", "before 20.0 %", "now 10.0 %"]
    resize(driver, 390, 800)
    visit(driver, page, "#/dim/2")
    visit(driver, page, "#/new")
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 390


def test_compare_leaves_its_result_for_the_atlas(run, tmp_path: Path) -> None:
    draw_folder(tmp_path / "pictures", each=20)
    draw_folder(tmp_path / "others", each=4)
    fit(run, "pictures")
    folder = CodesFolder("codes")
    assert load_new(folder) is None
    assert run("compare", "codes", "others", "--encoder", BLIND, "--quiet").status == 0
    plain, photos = load_new(folder)
    names, scores, rows = zip(*plain["images"])
    assert names == photos.names and rows == tuple(range(12))
    assert scores == tuple(sorted(scores, reverse=True))
    assert "12 images" in plain["headline"]
    first = Path(photos.paths[0])
    first.write_bytes(first.read_bytes() + b" ")  # no other file is shown
    plain, photos = load_new(folder)
    assert [row for _, _, row in plain["images"]] == [-1, *range(11)] and len(photos) == 11
    assert run("atlas", "codes", "--quiet").status == 0
    assert Path("codes/atlas/data/new.js").exists()
    tree = json.loads(Path("codes/compare.json").read_text())
    Path("codes/compare.json").write_text(json.dumps(tree | {"changes": [[99, 0, 1]]}))
    refused(run("atlas", "codes", "--quiet"), "compare.json")
