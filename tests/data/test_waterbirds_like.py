"""The script that builds a set like Waterbirds, on a few made-up birds and scenes."""

import csv
import runpy
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bayesncl.data import load, waterbirds
from bayesncl.recipes import Data

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
    data = Data(name="waterbirds", root=str(built), size=32)
    splits = {name: load(data, name) for name in ("train", "val", "test")}
    assert {name: len(images) for name, images in splits.items()} == {
        "train": 32, "val": 8, "test": 38,  # 40 test birds, two without a bird in their mask
    }  # fmt: skip
    swapped = waterbirds.swapped(data)
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
