"""Waterbirds: splits, swapped backgrounds, damaged tables; the script that builds such a set."""

from __future__ import annotations

import csv
import runpy
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bayesncl import data
from bayesncl.data import waterbirds
from bayesncl.errors import InputError
from tests.data.conftest import of, save


def load(root: Path, split: str = "train", size: int = 8) -> data.Images:
    return data.load(of("waterbirds", root, size), split)


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


SCRIPT = Path(__file__).parents[2] / "benchmarks" / "waterbirds_like.py"
SPECIES = ("001.Black_footed_Albatross", "017.Cardinal", "021.Eastern_Towhee", "070.Violetear")
LAND, WATER, BIRD = (10, 200, 10), (10, 10, 200), (250, 0, 0)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 birds per species on plain scenes; one bird has no mask, one an empty mask."""
    root = tmp_path_factory.mktemp("sources")
    of_species = [f"{kind}/{s}" for kind in ("cub/images", "masks") for s in SPECIES]
    for folder in (*of_species, "land", "water"):
        (root / folder).mkdir(parents=True)
    names = [f"{SPECIES[i % 4]}/bird_{i}" for i in range(80)]
    for i, name in enumerate(names):
        photo, mask = np.zeros((40, 60, 3), np.uint8), np.zeros((40, 60), np.uint8)
        photo[10:30, 20:40], mask[10:30, 20:40] = BIRD, 153 if i != 79 else 102
        Image.fromarray(photo).save(root / "cub/images" / f"{name}.jpg", quality=100)
        if i != 78:
            Image.fromarray(mask).save(root / "masks" / f"{name}.png")
    train = [f"{i + 1} {int(i % 8 < 4)}\n" for i in range(80)]
    (root / "cub/train_test_split.txt").write_text("".join(train))
    lines = [f"{i} {name}.jpg\n" for i, name in enumerate(names, 1)]
    (root / "cub/images.txt").write_text("".join(lines))
    for place, color in (("land", LAND), ("water", WATER)):
        for i in range(12):
            Image.new("RGB", (50, 30), color).save(root / place / f"{place}{i}.jpg", quality=100)
    options = [f"--{n}={root / n}" for n in ("cub", "masks", "land", "water", "out")]
    runpy.run_path(str(SCRIPT))["main"]([*options, "--size=32"])
    return root / "out"


def test_the_package_reads_it(built: Path) -> None:
    splits = {name: load(built, name, 32) for name in ("train", "val", "test")}
    assert {name: len(images) for name, images in splits.items()} == {
        "train": 32, "val": 8, "test": 38,  # 40 test birds, two without a bird in their mask
    }  # fmt: skip
    swapped = waterbirds.swapped(of("waterbirds", built, 32))
    for images in (*splits.values(), swapped):
        for name, pixels, y, place in zip(
            images.names, images.pixels, images.labels, images.backgrounds
        ):
            species = name.split("/")[-2]
            assert y == (species in (SPECIES[0], SPECIES[2]))  # `tern` is in Eastern
            corner, middle = pixels[:, 1, 1].astype(int), pixels[:, 16, 16].astype(int)
            assert np.abs(corner - (WATER if place else LAND)).max() < 30
            assert np.abs(middle - BIRD).max() < 60
    assert (swapped.backgrounds == 1 - splits["test"].backgrounds).all()
    assert [Path(n).name for n in swapped.names] == [Path(n).name for n in splits["test"].names]
    own = {name: (im.labels == im.backgrounds).mean() for name, im in splits.items()}
    assert own["train"] > 0.9 and abs(own["val"] - 0.5) < 0.2 and abs(own["test"] - 0.5) < 0.1
    with open(built / "metadata.csv") as file:
        rows = list(csv.DictReader(file))
    for place in "01":  # no scene is in two splits
        here = [row for row in rows if row["place"] == place]
        used = [{row["place_filename"] for row in here if row["split"] == s} for s in "012"]
        assert sum(map(len, used)) == len(set.union(*used)) > 3
