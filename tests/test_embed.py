"""Features of one's own images: names, formats, what is said before the work."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bayesncl import embed
from bayesncl.arrays import read_arrays
from bayesncl.embed import embed_images
from bayesncl.errors import InputError
from bayesncl.model import build_model
from bayesncl.objective import keep_strongest
from tests.commands import call
from tests.conftest import tiny_recipe

RNG = np.random.default_rng(0)


def photo(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RNG.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(path)


def test_names_do_not_collide(tmp_path: Path) -> None:
    for name in ("a\nb.png", "a\\nb.png", "a\\\\nb.png"):
        photo(tmp_path / "photos" / name)
    embed_images(build_model(tiny_recipe("ncl")), tmp_path / "photos", tmp_path / "e.npz")
    names = read_arrays(tmp_path / "e.npz", ("names",))["names"]
    assert len(set(names.tolist())) == 3
    assert all(name.isprintable() for name in names.tolist())


def test_what_is_read_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("x.npz", z=RNG.random((60, 8)), y=np.arange(60) % 3)
    before = Path("x.npz").read_bytes()
    Path("same.csv").symlink_to("x.npz")
    assert call("fit", "x.npz", "-o", "codes", "--dim", "4", "--quiet") == 0
    assert call("embed", "codes", "x.npz", "-o", tmp_path / "x.npz", "--quiet") == 2
    assert call("embed", "codes", "x.npz", "-o", "same.csv", "--quiet") == 2
    assert call("measure", "x.npz", "--csv", "same.csv", "--quiet") == 2
    assert Path("x.npz").read_bytes() == before
    assert call("embed", "codes", "x.npz", "-o", "other.npz", "--quiet") == 0


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_tables_hold_what_arrays_do(tmp_path: Path, ending: str) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    for name in ("dog/1.png", 'cat/"2",.png', "cat/3.png"):
        photo(tmp_path / "photos" / name)
    model = build_model(tiny_recipe("bayesncl"))
    for out in ("e.npz", f"e.{ending}"):
        assert embed_images(model, tmp_path / "photos", tmp_path / out, keep=3)[0] == 3
    wanted = read_arrays(tmp_path / "e.npz", ("z", "y", "names", "class_names"))
    table = read_arrays(tmp_path / f"e.{ending}", ("z", "y", "names"))
    assert np.array_equal(table["z"].astype(np.float32), wanted["z"])
    assert table["y"].tolist() == wanted["class_names"][wanted["y"]].tolist() == ["cat", "cat", "dog"]
    assert table["names"].tolist() == wanted["names"].tolist()
    if ending == "csv":
        with open(tmp_path / "e.csv", newline="") as file:
            assert next(csv.reader(file))[:3] == ["name", "label", "z0"]


def test_what_cannot_be_written_is_said_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed, "read_images", lambda *_: pytest.fail("work was done"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    model = build_model(tiny_recipe("ncl"))
    for name, message in (
        ("x" * 252 + ".npz", "too long"),
        ("e.xlsx", r"ends in .npz, .csv, .parquet"),
        ("e.parquet", r"bayesncl\[tables\]"),
    ):
        with pytest.raises(InputError, match=message):
            embed_images(model, tmp_path, tmp_path / name)
    (tmp_path / ("x" * 226 + ".npz")).touch()


def test_keep_strongest() -> None:
    z = torch.tensor([[0.6, -0.8, 0.0], [0.1, 0.2, 0.3]])
    assert torch.equal(keep_strongest(z, 1), torch.tensor([[0.0, -1.0, 0.0], [0.0, 0.0, 1.0]]))
    for keep in (None, 3):
        assert keep_strongest(z, keep) is z
    with pytest.raises(InputError, match="from 1 to the 3 dimensions, got 100"):
        keep_strongest(z, 100)


def test_encode_turns_images_as_embed_does(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[:8] = 255
    (tmp_path / "photos").mkdir()
    Image.fromarray(pixels).save(tmp_path / "photos" / "turned.png", exif=exif)
    model = build_model(tiny_recipe("ncl"))
    embed_images(model, tmp_path / "photos", tmp_path / "e.npz")
    z = model.encode([Image.open(tmp_path / "photos" / "turned.png")])
    assert torch.allclose(z, torch.from_numpy(np.array(read_arrays(tmp_path / "e.npz", ("z",))["z"])), atol=1e-5)
    upright = model.encode([Image.fromarray(np.rot90(pixels, -1).copy())])
    assert torch.allclose(z, upright, atol=1e-5)
    assert not torch.allclose(z, model.encode([Image.fromarray(pixels)]), atol=1e-3)
