"""Build a set like Waterbirds from public sources that you download yourself.

    python benchmarks/waterbirds_like.py --cub CUB_200_2011 --masks segmentations \
        --land scenes/forest --water scenes/sea --out waterbirds-like

Birds are cut out of CUB-200-2011 by their segmentation masks and set on photographs of land or
water. The result has the layout of the official Waterbirds release, which `bayesncl train
waterbirds` reads, and `swapped/`: every test bird again on the other place. It is not the published
set: other photographs, other crops. Its numbers do not compare with published ones.

--cub: the folder with images/, images.txt and train_test_split.txt. --masks: SPECIES/NAME.png, gray
by the number of annotators who saw bird there. --land, --water: folders of photographs.

Rules. A bird is a waterbird if its species name contains one of WATER_SPECIES, as in the original
(so `tern` also takes Eastern_Towhee). CUB's training images become 80 % train and 20 % val, its test
images test. In train 95 % of the birds are on their own place, in val and test half, within each
class. No photograph is used in two splits. The mask is where 3 of 5 annotators agree. The square crop
is 1.4 times the longer side of the mask's box, moved into the photo where it fits; where it does
not, the scene goes on past the photo's edge, except on a side where the photo cuts the bird.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

WATER_SPECIES = (
    "albatross", "auklet", "cormorant", "frigatebird", "fulmar", "gull", "jaeger", "kittiwake",
    "pelican", "puffin", "tern", "gadwall", "grebe", "mallard", "merganser", "guillemot",
    "pacific_loon",
)  # fmt: skip
SPLITS = ("train", "val", "test")
TIED = {"train": 0.95, "val": 0.5, "test": 0.5}  # share of birds on their own place
VALIDATION = 0.2  # of CUB's training images
AGREEMENT = 2.5 / 5  # of the annotators
MARGIN = 1.4  # side of the crop over the longer side of the bird's box
QUALITY = 89
SUFFIXES = (".jpg", ".jpeg", ".png")


def read_birds(cub: Path, masks: Path) -> list[tuple[int, str, int]]:
    """(number, file name, 1 if CUB trains on it) of the birds whose mask is not empty."""
    names = dict(line.split() for line in (cub / "images.txt").read_text().splitlines())
    train = dict(line.split() for line in (cub / "train_test_split.txt").read_text().splitlines())
    birds = [(int(i), name, int(train[i])) for i, name in names.items()]
    return [bird for bird in birds if _has_bird((masks / bird[1]).with_suffix(".png"))]


def _has_bird(path: Path) -> bool:
    if not path.is_file():
        return False
    with Image.open(path) as mask:
        return bool(mask.convert("L").getextrema()[1] > 255 * AGREEMENT)


def is_waterbird(name: str) -> int:
    """1 if the species in SPECIES/FILE lives on water, by the original's rule."""
    species = name.split("/")[0].lower()
    return int(any(word in species for word in WATER_SPECIES))


def assign_splits(trained: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """Split numbers [N]: 0 train, 1 val, 2 test."""
    splits = np.where(np.array(trained) == 1, 0, 2)
    known = rng.permutation(np.flatnonzero(splits == 0))
    splits[known[: round(VALIDATION * len(known))]] = 1
    return splits


def assign_places(y: np.ndarray, splits: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Places [N], 0 land and 1 water: in each split and class the share TIED is on its own."""
    places = 1 - y
    for number, split in enumerate(SPLITS):
        for label in (0, 1):
            group = rng.permutation(np.flatnonzero((splits == number) & (y == label)))
            places[group[: round(TIED[split] * len(group))]] = label
    return places


def share_scenes(
    scenes: Sequence[Path], counts: Sequence[int], rng: np.random.Generator
) -> list[list[Path]]:
    """For each split, `counts` photographs; none in two splits, each used about equally often."""
    if len(scenes) < len(SPLITS):
        raise SystemExit(f"needs at least {len(SPLITS)} photographs of each place")
    order = rng.permutation(len(scenes))
    shares = np.cumsum([max(count, 1) for count in counts])[:-1] / max(sum(counts), 1)
    cuts = np.clip(np.round(shares * len(scenes)).astype(int), [1, 2], len(scenes) - np.array([2, 1]))
    parts = np.split(order, cuts)
    return [[scenes[i] for i in np.resize(part, count)] for part, count in zip(parts, counts)]


def crop_box(mask: np.ndarray) -> tuple[int, int, int]:
    """Left, top and side of the square around the bird, inside the photo where it fits."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    spans = (columns[0], columns[-1] + 1), (rows[0], rows[-1] + 1)
    side = max(1, round(MARGIN * max(high - low for low, high in spans)))
    corner = []
    for (low, high), length in zip(spans, reversed(mask.shape)):
        start = round((low + high - side) / 2)
        if side <= length:
            start = min(max(start, 0), length - side)
        elif low == 0 and high < length:  # the photo cuts the bird: no scene on that side
            start = 0
        elif high == length and low > 0:
            start = length - side
        corner.append(start)
    return corner[0], corner[1], side


def composite(photo: Image.Image, mask: Image.Image, scene: Image.Image, size: int) -> Image.Image:
    """The bird of a photo on a scene, [size, size]; beyond the photo's edge there is only scene."""
    seen = np.asarray(mask.convert("L").resize(photo.size, Image.Resampling.NEAREST))
    inside = seen > 255 * AGREEMENT
    left, top, side = crop_box(inside)
    box = left, top, left + side, top + side
    alpha = Image.fromarray((inside * 255).astype(np.uint8))
    bird, cut = (image.crop(box).resize((size, size), Image.Resampling.LANCZOS)
                 for image in (photo.convert("RGB"), alpha))  # fmt: skip
    short = min(scene.size)
    x, y = ((length - short) // 2 for length in scene.size)
    square = scene.convert("RGB").crop((x, y, x + short, y + short))
    ground = square.resize((size, size), Image.Resampling.LANCZOS)
    return Image.composite(bird, ground, cut)


def build(
    cub: Path, masks: Path, land: Path, water: Path, out: Path, size: int = 64, seed: int = 0
) -> None:
    """Write images, metadata.csv and swapped.csv."""
    rng = np.random.default_rng(seed)
    birds = read_birds(cub, masks)
    y = np.array([is_waterbird(name) for _, name, _ in birds])
    splits = assign_splits([train for *_, train in birds], rng)
    places = assign_places(y, splits, rng)
    # a test bird needs a photograph of its own place and one of the other
    needed = [[int(((splits == s) & ((places == p) | (s == 2))).sum()) for s in range(3)]
              for p in (0, 1)]  # fmt: skip
    scenes = []
    for folder, counts in zip((land, water), needed):
        found = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES)
        scenes.append([iter(part) for part in share_scenes(found, counts, rng)])
    rows, swapped = [], []
    for (number, name, _), label, split, place in zip(birds, y, splits, places):
        with Image.open(cub / "images" / name) as photo, \
                Image.open((masks / name).with_suffix(".png")) as mask:  # fmt: skip
            for other in range(2 if split == 2 else 1):
                where = int(place) if other == 0 else 1 - int(place)
                target = f"swapped/{name}" if other else name
                source = next(scenes[where][split])
                with Image.open(source) as scene:
                    image = composite(photo, mask, scene, size)
                path = out / target
                path.parent.mkdir(parents=True, exist_ok=True)
                image.save(path, "JPEG", quality=QUALITY)
                if other:
                    swapped.append([number, name, target, int(place), where])
                else:
                    rows.append([number, name, int(label), int(split), where, source.name])
    tables = {
        "metadata.csv": ("img_id img_filename y split place place_filename", rows),
        "swapped.csv": ("img_id img_filename swapped_filename place swapped_place", swapped),
    }
    for name, (head, lines) in tables.items():
        with open(out / name, "w", newline="") as file:
            csv.writer(file).writerows([head.split(), *lines])
    print(f"wrote {len(rows)} images and {len(swapped)} swapped ones to {out}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the options and build the set."""
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=summary)
    for name in ("cub", "masks", "land", "water", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    build(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    main()
