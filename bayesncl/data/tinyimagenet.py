"""Tiny-ImageNet-200 in its official layout; its validation images are the test split.

train/WNID/images/*.JPEG, and val/images/*.JPEG with val/val_annotations.txt, which names the class
of each file. The official test images have no labels and are not read.
"""

from __future__ import annotations

from pathlib import Path

from bayesncl import recipes
from bayesncl.data import Dataset
from bayesncl.data.archive import Entry
from bayesncl.data.decode import Square
from bayesncl.data.folder import existing_folder, no_images, read_images, scan
from bayesncl.data.images import Images, Progress
from bayesncl.errors import InputError, as_input_error, printable_path

ANNOTATIONS = Path("val", "val_annotations.txt")


def load(data: recipes.Data, split: str, progress: Progress | None = None) -> Images:
    """Read one split; a class number is an index into the sorted WordNet ids."""
    root = existing_folder(data.root)
    what, train = printable_path(root), root / "train"
    if not train.is_dir():
        raise InputError(f"{what}: no folder train; expected train/WNID/images/*.JPEG")
    wnids = sorted(path.name for path in train.iterdir() if path.is_dir())
    # Entry names start with the class: WNID/...
    entries = scan(train)[0] if split == "train" else _validation(root)
    if not entries:
        raise no_images(train if split == "train" else root / "val")
    if unknown := sorted({entry.name.split("/")[0] for entry in entries} - set(wnids)):
        raise InputError(f"{what}: {ANNOTATIONS} has the class {unknown[0]}, which train lacks")
    square = Square(data.size, data.size)
    return read_images(
        entries, square, wnids, what=what, strict=data.strict, progress=progress
    )  # fmt: skip


def _validation(root: Path) -> list[Entry]:
    """The validation images, named by their class."""
    path = root / ANNOTATIONS
    with as_input_error(f"cannot read {printable_path(path)}", OSError, UnicodeDecodeError):
        rows = [line.split("\t") for line in path.read_text("utf-8").splitlines() if line]
    if any(len(row) < 2 for row in rows):
        raise InputError(f"{printable_path(path)}: expected lines of FILE, WNID and a box")
    files = root / "val" / "images"
    return [Entry(f"{wnid}/{name}", files / name) for name, wnid, *_ in rows]


TINYIMAGENET = Dataset(
    name="tinyimagenet", title="Tiny-ImageNet", load=load, classes=200, images=100_000,
    paper_dims=256, probe="imagenet",
)  # fmt: skip
