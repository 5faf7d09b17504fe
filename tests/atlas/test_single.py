"""An atlas in a single file, and whole photographs with their frame and path."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bayesncl.atlas import AtlasRun, Photos, build_atlas
from bayesncl.atlas.build import pack
from bayesncl.codes.heat import Heatmaps
from bayesncl.jobs.audit import NEAR
from tests.atlas.conftest import HOSTILE, Case, serving
from tests.atlas.test_codes import fit
from tests.commands import draw_folder


@pytest.fixture
def page(case: Case, tmp_path: Path) -> Path:
    """The first 60 digits as photos of 96 x 48 pixels, with a near-duplicate."""
    root = tmp_path / "my #photos?"
    root.mkdir()
    for i in range(60):
        photo = np.tile(case.images.pixels[i].transpose(1, 2, 0), (3, 6, 1))[:, :96]
        Image.fromarray(photo).resize((192, 96)).save(root / f"{i}.png")
    paths = [root / f"{i}.png" for i in range(60)]
    names = ("red", HOSTILE)
    photos = Photos(paths, case.labels[:60] % 2, class_names=names)
    plain = {"findings": [[NEAR, "3.png", "4.png", "red", "", 0.97]], "totals": {NEAR: 1}}
    pages = {"check": (plain, Photos(paths[3:5], names=("3.png", "4.png")))}
    run = AtlasRun("r", case.z[:60], seen=0.5)
    return build_atlas(tmp_path / "atlas", [run], photos, f"One {HOSTILE}", pages)


def drawn(driver, selector: str) -> float:
    """How much the pixels of a canvas differ from each other."""
    driver.wait_for("document.querySelector(arguments[0])", selector)
    driver.execute_async_script("setTimeout(arguments[0], 200)")
    shot = driver.find_element("css selector", selector).screenshot_as_png
    (path := Path("shot.png")).write_bytes(shot)
    with Image.open(path) as image:
        return float(np.asarray(image.convert("L")).std())


def test_a_single_file_works_from_disk(driver, page: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    one, small = tmp_path / "one.html", tmp_path / "small.html"
    one.write_bytes(pack(page.parent))
    small.write_bytes(pack(page.parent, small=True))
    page.parent.rename(tmp_path / "gone")
    for width, path in ((192, one), (96, small)):
        driver.visit(path, "#/image/5")
        assert drawn(driver, ".portrait canvas") > 10
        assert driver.run("document.querySelector('.portrait canvas').width") == width
    for address in ("#/dims", "#/pair/5/8", "#/find?plus=2", "#/check", "#/quiz"):
        driver.visit(one, address)
        assert driver.text("h1") != ["Not found"], address
    driver.visit(one, "#/")
    assert len(driver.find_elements("css selector", ".hung image")) > 3
    driver.visit(one, "#/dim/2")
    driver.type("name", "hook")
    driver.get("about:blank")
    driver.visit(one, "#/dim/2")
    assert driver.text("h1") == ["hook"]
    html = one.read_text()  # only its own script may run, and where the photos are stays private
    assert html.count("<script>") == 1 and "unsafe" not in html and "<img" not in html
    assert re.search(r"script-src 'sha256-[\w+/=]+';", html)
    assert "my #photos" not in html


def test_whole_photos_have_a_frame_and_their_path(driver, page: Path) -> None:
    driver.visit(page, "#/image/7")
    canvas = "document.querySelector('.portrait canvas')"
    assert driver.run(f"[{canvas}.width, {canvas}.height]") == [192, 96]
    boxes = [driver.find_element("css selector", s).rect for s in (".framed canvas", ".frame")]
    photo, frame = (np.array([box[k] for k in ("x", "y", "width", "height")]) for box in boxes)
    assert frame[2:] == pytest.approx([photo[3] / 2] * 2, abs=1)  # half the shorter side
    assert frame[:2] + frame[2:] / 2 == pytest.approx(photo[:2] + photo[2:] / 2, abs=1)
    path = page.parent.parent / "my #photos?" / "7.png"
    assert str(path) in driver.text(".facts dd")
    driver.click(".facts a[href^=file]")
    driver.wait_for("location.href.endsWith('7.png')")


def test_heat_lies_on_the_part_that_the_encoder_saw(driver, case: Case, tmp_path: Path) -> None:
    Image.fromarray(np.full((96, 192, 3), 100, np.uint8)).save(tmp_path / "wide.png")
    dims = np.argsort(-case.z[:1], axis=1)[:, :1]
    maps = np.full((1, 1, 4, 4), 255, np.uint8)
    heat = Heatmaps(dims, maps, {"hottest": 0.4, "random": 0.1}, share=0.5)
    run = AtlasRun("r", case.z[:1], heat=heat, seen=0.5)
    page = build_atlas(tmp_path / "atlas", [run], Photos([tmp_path / "wide.png"]), "Heat")
    with serving(page) as base:  # a canvas cannot be read from disk
        driver.visit(base, "#/image/0")
        driver.click(".where")
        driver.execute_async_script("setTimeout(arguments[0], 300)")
        canvas = "document.querySelector('.portrait canvas').getContext('2d')"
        pixels = driver.run(f"[...{canvas}.getImageData(0, 0, 192, 96).data]")
        driver.get("about:blank")
    red = np.array(pixels).reshape(96, 192, 4)[..., 0].astype(int)
    hot = red > 150
    assert hot[32:64, 80:112].all()  # the middle of the square of 48 x 48
    assert not hot[:, :66].any() and not hot[:, 126:].any() and not hot[:14].any()
    edge = red[48, 60:80]
    assert np.abs(np.diff(edge)).max() < 0.5 * (red[48, 96] - 100)  # fades out, no sharp edge


def test_single_file_from_the_command_line(run, tmp_path: Path) -> None:
    draw_folder(tmp_path / "pictures", each=8)
    fit(run, "pictures")
    for name, options in (("one", ()), ("small", ("--small",))):
        assert run("atlas", "codes", "--single-file", f"{name}.html", *options).status == 0
    assert 0 < Path("small.html").stat().st_size < Path("one.html").stat().st_size
