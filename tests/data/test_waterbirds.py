"""Waterbirds: splits, swapped backgrounds, damaged tables."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bayesncl import data, recipes
from bayesncl.data import waterbirds
from bayesncl.errors import InputError


def of(root: Path) -> recipes.Data:
    return recipes.Data(name="waterbirds", root=str(root), size=8)


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    """18 images of gray value i, their swapped twins of 100 + i; swapped.csv runs backwards."""
    root = tmp_path / "birds"
    rows, swaps = [], []
    for i in range(18):
        name = f"{i % 3:03}.Bird/{i}.png"
        for file, value in ((root / name, i), (root / "swapped" / name, 100 + i)):
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (value,) * 3).save(file)
        y, place, split = i % 2, i // 2 % 2, i % 3
        rows.append([i, name, y, split, place, "x"])
        if split == 2:
            swaps.append([i, name, f"swapped/{name}", place, 1 - place])
    head = ["img_id", "img_filename", "y", "split", "place", "place_filename"]
    _table(root / "metadata.csv", head, rows)
    head = ["img_id", "img_filename", "swapped_filename", "place", "swapped_place"]
    _table(root / "swapped.csv", head, swaps[::-1])
    return root


def _table(path: Path, head: list[str], rows: list[list[object]]) -> None:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([head, *rows])


def test_splits_labels_and_backgrounds(birds: Path) -> None:
    for number, split in enumerate(("train", "val", "test")):
        got = data.load(of(birds), split)
        values = np.arange(18)[np.arange(18) % 3 == number]
        assert (got.pixels[:, 0, 0, 0] == values).all()
        assert (got.labels == values % 2).all()
        assert (got.backgrounds == values // 2 % 2).all()
        assert got.class_names == ("landbird", "waterbird")
        assert got.background_names == ("land", "water")
    test, other = data.load(of(birds), "test"), waterbirds.swapped(of(birds))
    assert (other.pixels[:, 0, 0, 0] == test.pixels[:, 0, 0, 0] + 100).all()
    assert (other.backgrounds == 1 - test.backgrounds).all()
    assert (other.labels == test.labels).all()


def test_bad_tables_get_one_line(birds: Path, tmp_path: Path) -> None:
    head = ["img_filename", "y", "split", "place"]
    _table(birds / "metadata.csv", head, [["000.Bird/0.png", 2, 0, 0]])
    with pytest.raises(InputError, match="holds: '2'"):
        data.load(of(birds), "train")
    _table(birds / "metadata.csv", head, [["gone.png", 0, 0, 0]])
    with pytest.raises(InputError, match=r"gone\.png: No such file"):
        data.load(of(birds), "train")
    with pytest.raises(InputError, match="no image of the test split"):
        data.load(of(birds), "test")
    _table(birds / "metadata.csv", head, [["000.Bird/0.png"]])
    with pytest.raises(InputError, match="no image of the train split"):
        data.load(of(birds), "train")
    (birds / "metadata.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot read"):
        data.load(of(birds), "train")
    (birds / "metadata.csv").unlink()
    with pytest.raises(InputError, match=r"metadata\.csv: No such file"):
        data.load(of(birds), "train")
    with pytest.raises(InputError, match="no such folder"):
        data.load(of(tmp_path / "none"), "train")


def test_an_image_that_cannot_be_decoded_is_an_error(birds: Path) -> None:
    (birds / "000.Bird" / "0.png").write_bytes(b"x")
    with pytest.raises(InputError, match=r"1 of 6 .*000.Bird/0.png"):
        data.load(of(birds), "train")
