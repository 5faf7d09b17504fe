"""The atlas of codes folders: verdict, rows, heat maps, and names in a table."""

import csv
import json
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from bayesncl.atlas import sources
from bayesncl.atlas.page_data import AtlasRun
from bayesncl.codes.folder import CodesFolder
from bayesncl.codes.heat import Heatmaps
from bayesncl.data.folder import scan
from tests.commands import draw_folder, refused

NET, BLIND = "tests.atlas.test_codes:Parts", "tests.codes.test_encoders:Net"


class Parts(nn.Module):
    """Colors of 4 x 4 parts of an image, averaged."""

    preprocess: ClassVar = {"size": 32, "resize": 40, "mean": (0.5,) * 3, "std": (0.5,) * 3}

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Conv2d(3, 8, 8, 8, bias=False), nn.ReLU())
        weight = torch.linspace(-99, 99, 1536).sin().view(8, 3, 8, 8)  # always the same
        self.parts[0].weight = nn.Parameter(weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.parts(x).mean((2, 3))


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[AtlasRun]:
    """The runs of the last atlas."""
    last: list[AtlasRun] = []
    build_atlas = sources.build_atlas

    def watch(out, runs, *rest):
        last[:] = runs
        return build_atlas(out, runs, *rest)

    monkeypatch.setattr(sources, "build_atlas", watch)
    return last


def fit(run, source, *options: str, out="codes", encoder=BLIND, dims: int = 4) -> None:
    words = ("fit", source, "-o", out, "--components", str(dims), "--quiet", *options)
    assert run(*words, *(("--encoder", encoder) if encoder else ())).status == 0


def transform(folder: str) -> np.ndarray:
    return CodesFolder(folder).codes().transform(CodesFolder(folder).embeddings())


def test_the_page_has_the_verdict_of_fit(run, tmp_path: Path, built: list[AtlasRun]) -> None:
    draw_folder(tmp_path / "pictures", each=20)
    before = scan(tmp_path / "pictures")
    for active, options in ((sources.KEPT, ("--mirror",)), (3, ("--active", "3"))):
        fit(run, "pictures", *options, dims=8)
        assert run("atlas", "codes", "-o", "pictures/page", "--quiet").status == 0
        lines = json.loads(Path("codes/verdict.json").read_text())["lines"]
        assert built[0].verdict == tuple((line["text"], line["measured_by"]) for line in lines)
        text = json.dumps(lines[0]["text"])[1:-1].replace("<", "\\u003c")
        assert text in Path("pictures/page/data/atlas.js").read_text()
        shown = built[0].z if active == 3 else built[0].z.toarray()  # dense codes are cut
        assert ((shown > 0).sum(1) == active).all()
        assert (shown.argmax(1) == transform("codes").argmax(1)).all()
        assert ("5 strongest" in built[0].sentence) == (active == sources.KEPT)
        assert ("60 images and their mirror images" in built[0].sentence) == (active != 3)
    assert scan(tmp_path / "pictures") == before  # the atlas adds no photos


def test_rows_are_matched_by_image_name(run, tmp_path: Path, built: list[AtlasRun]) -> None:
    draw_folder(tmp_path / "pictures", each=20)
    paths = sorted((tmp_path / "pictures").rglob("*.png"))
    names = np.array([str(path.relative_to(tmp_path / "pictures")) for path in paths])
    z = np.random.default_rng(0).normal(size=(len(names), 6)).astype(np.float32)
    options = ("--images", "pictures", "--active", "2")
    for folder, order in (("a", slice(None)), ("b", slice(None, None, -1))):
        np.savez(f"{folder}.npz", z=z[order], names=names[order])
        fit(run, f"{folder}.npz", *options, out=folder, encoder="")
    assert run("atlas", "a", "b", "-o", "both", "--quiet").status == 0
    place = {name: i for i, name in enumerate(CodesFolder("b").rows().names)}
    rows = [place[name] for name in CodesFolder("a").rows().names]
    assert np.allclose(built[0].z, transform("a"), atol=1e-6)
    assert np.allclose(built[1].z, transform("b")[rows], atol=1e-6)
    names[1] = names[0]
    np.savez("b.npz", z=z[::-1], names=names[::-1])
    fit(run, "b.npz", *options, out="b", encoder="")
    refused(run("atlas", "a", "b", "-o", "both", "--quiet"), "different images")


def test_heat_maps_are_made_if_asked_for_and_the_encoder_is_named(run, tmp_path, built) -> None:
    draw_folder(tmp_path / "pictures")
    fit(run, "pictures", encoder=NET)
    assert run("atlas", "codes", "--quiet").status == 0
    assert built[0].heat == sources.NO_HEAT
    answer = run("atlas", "codes", "--heat")
    assert "--encoder" in built[0].heat  # a folder runs no code unless asked
    assert built[0].heat in answer.err
    assert run("atlas", "codes", "--heat", "--encoder", NET, "--quiet").status == 0
    heat = built[0].heat
    assert isinstance(heat, Heatmaps), heat
    assert heat.share == 32 / 40 and len(heat.maps) == 24


def test_codes_of_a_run_are_shown_with_its_backgrounds(run, trained: Path, built) -> None:
    fit(run, trained, encoder="", dims=8)
    assert run("atlas", "codes", "--quiet").status == 0
    page = Path("codes/atlas/data/atlas.js").read_text()
    assert '"digit 3"' in page and '"petals"' in page
    assert built[0].heat is not None


def test_a_name_goes_from_the_page_through_embed_into_a_table(run, tmp_path: Path, driver) -> None:
    draw_folder(tmp_path / "pictures")
    fit(run, "pictures", dims=6)
    assert run("atlas", "codes", "--quiet").status == 0
    z = transform("codes")
    k = int(z[0].argmax())
    index = tmp_path / "codes/atlas/index.html"
    driver.visit(index, f"#/dim/{k}")
    driver.type("name", "blue, spots")
    driver.visit(index, "#/names")
    driver.download(".controls button", tmp_path / "names.json")
    words = ("embed", "codes", "pictures", "--names", "names.json", "--encoder", BLIND, "--quiet")
    assert run(*words, "-o", "e.csv").status == 0
    with open("e.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    columns = [name for name in rows[0] if name not in ("name", "label", "novelty")]
    assert columns == ["blue, spots" if j == k else f"z{j}" for j in range(6)]
    place = {name: i for i, name in enumerate(CodesFolder("codes").rows().names)}
    for row in rows:
        assert float(row["blue, spots"]) == pytest.approx(z[place[row["name"]], k], abs=1e-4)
