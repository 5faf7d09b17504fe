"""The atlas of codes: the verdict that fit wrote, and where in a photo a dimension fires."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from bayesncl.atlas import sources
from bayesncl.atlas.contents import AtlasRun
from bayesncl.codes_folder import CodesFolder
from bayesncl.data.folder import scan
from bayesncl.heat import Heat
from tests.commands import draw_folder, refused

from .atlas_page import arrived, click
from .chromium import visit

pytest_plugins = ["tests.atlas_fixtures"]

NET, BLIND = "tests.test_atlas_codes:Parts", "tests.test_encoders:Net"


class Parts(nn.Module):
    """How near the colour of each of 4 x 4 parts of an image is to 27 colours, averaged."""

    preprocess: ClassVar = {"size": 32, "resize": 40, "mean": (0.5,) * 3, "std": (0.5,) * 3}

    def __init__(self) -> None:
        super().__init__()
        levels = torch.tensor([-1.0, 0.0, 1.0])
        self.colours = nn.Parameter(torch.cartesian_prod(levels, levels, levels))
        self.parts, self.near = nn.AvgPool2d(8), nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        p = self.parts(x)[:, None] - self.colours[:, :, None, None]  # [n, 27, 3, 4, 4]
        return self.near((-4 * p.square().sum(2)).exp()).mean((2, 3))


def draw_spots(folder: Path, each: int = 20) -> Path:
    """Photos of 40 x 40, patches of five colours with a larger spot of a sixth, the class; its place is in the name."""
    rng = np.random.default_rng(0)
    common = np.array([[255, 255, 0], [0, 255, 255], [255, 0, 255], [0, 0, 0], [255, 255, 255]], np.uint8)
    for c, name in enumerate(("red", "green", "blue")):
        (folder / name).mkdir(parents=True)
        for i in range(each):
            parts = common[rng.permutation(np.arange(16) % 5)].reshape(4, 4, 3)
            y, x = rng.integers(0, 2, 2)
            parts[2 * y : 2 * y + 2, 2 * x : 2 * x + 2] = np.where(np.arange(3) == c, 255, 0)
            pixels = np.pad(np.kron(parts, np.ones((8, 8, 1), np.uint8)), ((4, 4), (4, 4), (0, 0)))
            Image.fromarray(pixels).save(folder / name / f"{i}-{y}-{x}.png")
    return folder


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[AtlasRun]:
    """The runs of the atlas built last."""
    last: list[AtlasRun] = []
    real = sources.build_atlas

    def watch(out, runs, images, title):
        last[:] = runs
        return real(out, runs, images, title=title)

    monkeypatch.setattr(sources, "build_atlas", watch)
    return last


def test_an_atlas_among_the_photos_brings_no_new_ones(run, tmp_path: Path) -> None:
    draw_folder(tmp_path / "pictures", each=8)
    assert run("fit", "pictures", "-o", "codes", "--encoder", BLIND, "--dim", "4", "--quiet").status == 0
    before = scan(tmp_path / "pictures")
    assert run("atlas", "codes", "-o", "pictures/page", "--quiet").status == 0
    assert scan(tmp_path / "pictures") == before


def test_the_verdict_of_fit_opens_the_page(run, tmp_path: Path, built: list[AtlasRun]) -> None:
    draw_folder(tmp_path / "pictures", each=20)
    assert run("fit", "pictures", "-o", "codes", "--encoder", BLIND, "--dim", "8", "--quiet").status == 0
    assert run("atlas", "codes", "--quiet").status == 0
    lines = json.loads(Path("codes/verdict.json").read_text())["lines"]
    assert built[0].verdict == tuple((line["text"], line["measured_by"]) for line in lines)
    text = json.dumps(lines[0]["text"])[1:-1].replace("<", "\\u003c")
    assert text in Path("codes/atlas/data/atlas.js").read_text()
    Path("codes/verdict.json").write_text("[3]")
    assert run("atlas", "codes", "--quiet").status == 0
    assert built[0].verdict == ()
    assert "mirror" not in built[0].sentence
    assert run("fit", "pictures", "-o", "codes", "--encoder", BLIND, "--dim", "8", "--mirror", "--quiet").status == 0
    assert run("atlas", "codes", "--quiet").status == 0
    assert "read from 60 images and their mirror images through" in built[0].sentence


def test_an_image_is_shown_with_its_strongest_dimensions(run, tmp_path: Path, built: list[AtlasRun]) -> None:
    """Of codes without zeros every dimension would fire on every image, and the map be one dot."""
    draw_folder(tmp_path / "pictures", each=20)
    for kept, more in ((sources.KEPT, ()), (3, ("--keep", "3"))):
        assert run("fit", "pictures", "-o", "codes", "--encoder", BLIND, "--dim", "8", "--quiet", *more).status == 0
        assert run("atlas", "codes", "--quiet").status == 0
        z = CodesFolder("codes").codes().transform(CodesFolder("codes").embeddings())
        shown = built[0].z.toarray() if kept == sources.KEPT else built[0].z
        assert ((shown > 0).sum(1) == kept).all()
        assert (shown.argmax(1) == z.argmax(1)).all()
        assert ("5 strongest" in built[0].sentence) == (kept == sources.KEPT)


def test_images_of_one_name_keep_their_own_codes(run, tmp_path: Path, built: list[AtlasRun]) -> None:
    draw_folder(tmp_path / "pictures", each=20)
    rng, paths = np.random.default_rng(0), sorted((tmp_path / "pictures").rglob("*.png"))
    names = np.array([str(path.relative_to(tmp_path / "pictures")) for path in paths])
    names[1] = names[0]
    z = rng.normal(size=(len(names), 6)).astype(np.float32)
    for name, order in (("a", slice(None)), ("b", slice(None, None, -1))):
        np.savez(f"{name}.npz", z=z[order], names=names[order])
        assert run("fit", f"{name}.npz", "-o", name, "--images", "pictures", "--dim", "4", "--keep", "2").status == 0
    assert run("atlas", "a", "--quiet").status == 0
    assert np.array_equal(built[0].z, CodesFolder("a").codes().transform(CodesFolder("a").embeddings()))
    refused(run("atlas", "a", "b", "-o", "both", "--quiet"), "images of one name")


def test_a_place_that_is_taken_is_told_before_the_work(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_folder(tmp_path / "pictures")
    assert run("fit", "pictures", "-o", "codes", "--encoder", BLIND, "--dim", "4", "--quiet").status == 0
    monkeypatch.setattr(sources, "_images", lambda *_: pytest.fail("photos were looked for"))
    refused(run("atlas", "codes", "-o", "pictures", "--quiet"), "pictures")


def test_maps_of_photos_are_hottest_where_the_colour_is(run, tmp_path: Path, built: list[AtlasRun]) -> None:
    draw_spots(tmp_path / "pictures")
    assert run("fit", "pictures", "-o", "codes", "--encoder", NET, "--dim", "6", "--quiet").status == 0
    assert run("atlas", "codes", "--quiet").status == 0
    assert built[0].heat == sources.ASK  # nothing is embedded again unasked
    assert run("atlas", "codes", "--heat", "--quiet").status == 0
    assert "say so with --encoder" in built[0].heat  # a stranger's folder runs no code
    assert run("atlas", "codes", "--heat", "--encoder", NET, "--quiet").status == 0
    heat = built[0].heat
    assert isinstance(heat, Heat), heat
    assert heat.share == 32 / 40
    names = CodesFolder("codes").rows().names
    place = [tuple(map(int, Path(name).stem.split("-")[1:])) for name in names]
    hottest = heat.maps[:, 0].reshape(len(names), -1).argmax(1)
    assert np.mean([(y, x) == (p // 8, p % 4 // 2) for (y, x), p in zip(place, hottest)]) > 0.9
    assert heat.check["hottest"] > heat.check["random"]


def test_why_there_are_no_maps_is_said(run, tmp_path: Path, built: list[AtlasRun]) -> None:
    draw_folder(tmp_path / "pictures")
    assert run("fit", "pictures", "-o", "codes", "--encoder", BLIND, "--dim", "4", "--quiet").status == 0
    answer = run("atlas", "codes", "--heat", "--encoder", BLIND)
    assert built[0].heat == "its encoder gives no features by position"
    assert answer.status == 0 and f"no heat maps: {built[0].heat}\n" in answer.err
    assert "heat maps" not in run("atlas", "codes").err  # nobody asked for them
    np.save("x.npy", np.random.default_rng(0).normal(size=(24, 5)))
    assert run("fit", "x.npy", "-o", "array", "--images", "pictures", "--dim", "4", "--quiet").status == 0
    assert run("atlas", "array", "--heat", "--quiet").status == 0
    assert "no encoder is known" in built[0].heat


def test_codes_of_a_run_are_looked_at_with_its_backgrounds(run, trained: Path, built: list[AtlasRun]) -> None:
    assert run("fit", trained, "-o", "codes", "--dim", "8", "--quiet").status == 0
    assert run("atlas", "codes", "--quiet").status == 0
    page = Path("codes/atlas/data/atlas.js").read_text()
    assert '"digit 3"' in page
    assert '"petals"' in page
    assert isinstance(built[0].heat, Heat) or "by position" in built[0].heat or "mean nothing" in built[0].heat


def test_a_name_travels_from_the_page_through_embed_into_a_table(run, tmp_path: Path, driver) -> None:
    """As docs/atlas.md shows it."""
    draw_spots(tmp_path / "pictures")
    assert run("fit", "pictures", "-o", "codes", "--encoder", NET, "--dim", "6", "--quiet").status == 0
    assert run("atlas", "codes", "--quiet").status == 0
    z = CodesFolder("codes").codes().transform(CodesFolder("codes").embeddings())
    k = int(z[0].argmax())
    driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    visit(driver, tmp_path / "codes/atlas/index.html", f"#/dim/{k}")
    driver.find_element("id", "name").send_keys("blue, spots")
    visit(driver, tmp_path / "codes/atlas/index.html", "#/names")
    click(driver, ".controls button")
    arrived(tmp_path / "names.json")
    words = ("embed", "codes", "pictures", "--names", "names.json", "--encoder", NET, "--quiet")
    assert run(*words, "-o", "e.csv").status == 0
    with open("e.csv", newline="") as file:
        first, *rows = csv.DictReader(file)
    assert [name for name in first if name not in ("name", "label")] == [
        "blue, spots" if j == k else f"z{j}" for j in range(6)
    ]
    place = {name: i for i, name in enumerate(CodesFolder("codes").rows().names)}
    for row in (first, *rows):
        assert float(row["blue, spots"]) == pytest.approx(z[place[row["name"]], k], abs=1e-4)
