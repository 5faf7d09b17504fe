"""Waterbirds: splits, swapped backgrounds, damaged tables."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from bayesncl import data
from bayesncl.data import waterbirds
from bayesncl.errors import InputError
from tests.data.conftest import of, save


def load(root: Path, split: str = "train") -> data.Images:
    return data.load(of("waterbirds", root), split)


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    """18 images of gray value i, their swapped twins of 100 + i; swapped.csv runs backwards."""
    root = tmp_path / "birds"
    rows, swaps = [], []
    for i in range(18):
        name = f"{i % 3:03}.Bird/{i}.png"
        save(root / name, i)
        save(root / "swapped" / name, 100 + i)
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
        got = load(birds, split)
        values = np.arange(18)[np.arange(18) % 3 == number]
        assert (got.pixels[:, 0, 0, 0] == values).all()
        assert (got.labels == values % 2).all()
        assert (got.backgrounds == values // 2 % 2).all()
        assert got.class_names == ("landbird", "waterbird")
        assert got.background_names == ("land", "water")
    test, other = load(birds, "test"), waterbirds.swapped(of("waterbirds", birds))
    assert (other.pixels[:, 0, 0, 0] == test.pixels[:, 0, 0, 0] + 100).all()
    assert (other.backgrounds == 1 - test.backgrounds).all()
    assert (other.labels == test.labels).all()


def test_bad_tables_get_one_line(birds: Path, tmp_path: Path) -> None:
    head = ["img_filename", "y", "split", "place"]
    for row, problem in (
        (["000.Bird/0.png", 2, 0, 0], "holds: '2'"),
        (["gone.png", 0, 0, 0], r"gone\.png: No such file"),
        (["000.Bird/0.png", 0, 2, 0], "no image of the train split"),
        (["000.Bird/0.png"], "no image of the train split"),
    ):
        _table(birds / "metadata.csv", head, [row])
        with pytest.raises(InputError, match=problem):
            load(birds)
    (birds / "metadata.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot read"):
        load(birds)
    (birds / "metadata.csv").unlink()
    with pytest.raises(InputError, match=r"metadata\.csv: No such file"):
        load(birds)
    with pytest.raises(InputError, match="no such folder"):
        load(tmp_path / "none")


def test_an_image_that_cannot_be_decoded_is_an_error(birds: Path) -> None:
    (birds / "000.Bird" / "0.png").write_bytes(b"x")
    with pytest.raises(InputError, match=r"1 of 6 .*000.Bird/0.png"):
        load(birds)
