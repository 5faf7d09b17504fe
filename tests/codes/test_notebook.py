"""What notebooks show: dimensions, images and verdicts as inline HTML."""

import base64
import io
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import bayesncl
from bayesncl.codes.folder import CodesFolder
from bayesncl.codes.names import Entry
from bayesncl.codes.open import PhotoCodes
from bayesncl.errors import InputError
from tests.commands import draw_folder

NAME = "<i>green</i>"


@pytest.fixture
def codes(run, trained: Path, tmp_path: Path) -> PhotoCodes:
    """Codes of 24 photos, one class of which is called `bee <b>`; dimension 1 has a name."""
    draw_folder(tmp_path / "p")
    fit = ("fit", "p", "-o", "codes", "--encoder", trained, "--components", "4", "--quiet")
    assert run(*fit).status == 0
    folder = CodesFolder("codes")
    names = folder.names()
    names.dimensions = {1: [Entry(NAME)], 2: [Entry("twin")], 3: [Entry("twin")]}
    folder.save_names(names)
    return bayesncl.load("codes")


def pictures(html: str) -> list[Image.Image]:
    data = re.findall(r'<img src="data:image/jpeg;base64,([^"]+)"', html)
    return [Image.open(io.BytesIO(base64.b64decode(each))) for each in data]


def test_a_dimension_shows_its_strongest_images(codes: PhotoCodes) -> None:
    shown = codes.show(1, n=5)._repr_html_()
    z, rows = codes.transform(codes.folder.embeddings()), codes.folder.rows()
    order = np.argsort(-z[:, 1], kind="stable")[:5]
    for picture, i in zip(pictures(shown), order, strict=True):
        with Image.open(Path("p", rows.names[i])) as photo:
            expected = np.asarray(photo.convert("RGB"), float).mean((0, 1))
        assert picture.size == (24, 20)  # never enlarged
        np.testing.assert_allclose(np.asarray(picture, float).mean((0, 1)), expected, atol=4)
    assert [f"{z[i, 1]:.2f}" for i in order] == re.findall(r" (\d\.\d\d)</span>", shown)
    assert "&lt;i&gt;green" in shown and NAME not in shown and "<b>" not in shown[60:]
    assert codes.show(NAME, n=5) == codes.show(1, n=5)
    assert repr(codes.show(1)) == "Html()" and "4 dimensions" in repr(codes)  # short in a terminal
    assert codes.show("Twin").html == "\n".join(codes.show(k).html for k in (2, 3))
    for wrong in (4, -1, "blue", 1.0):
        with pytest.raises(InputError, match="dimension"):
            codes.show(wrong)


def test_an_image_shows_its_strongest_dimensions(codes: PhotoCodes) -> None:
    path = Path("p", "cat", "03.png")
    shown = codes.show_image(path, n_active=2, n=3).html
    assert len(pictures(shown)) == 1 + 2 * 3
    z = codes.encode(path, n_active=2)[0]
    first, second = z.argsort(descending=True)[:2].tolist()
    assert shown.index(f"dimension {first}") < shown.index(f"dimension {second}")
    assert f": {z[first]:.2f}</b>" in shown
    pixels = np.asarray(Image.open(path).convert("RGB"))
    for image in (pixels, pixels.transpose(2, 0, 1) / 255, Image.fromarray(pixels)):
        assert codes.show_image(image, n_active=2, n=3).html.count("<img") == 7


def test_without_images_names_are_shown(codes: PhotoCodes) -> None:
    shutil.rmtree("p")
    shown = codes.show(0, n=24).html
    assert not pictures(shown) and shown.count("bee &lt;b&gt;") == 8


def test_a_verdict_is_a_table(codes: PhotoCodes) -> None:
    tree = codes.folder.verdict()
    shown = codes._repr_html_()
    assert shown.count("<tr") == len(tree["lines"]) and tree["lines"][0]["figure"] in shown
    Path("codes/verdict.json").unlink()
    assert "codes" in codes._repr_html_()
