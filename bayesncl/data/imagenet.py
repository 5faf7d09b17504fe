"""Two subsets of ImageNet, ImageNet-100 and Tiny-ImageNet; a class is a WordNet id."""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from bayesncl import recipes
from bayesncl.data.cache import Entry, read_images
from bayesncl.data.decode import BILINEAR, Square
from bayesncl.data.folder import existing_folder, scan
from bayesncl.data.images import Images, Progress
from bayesncl.errors import InputError, as_input_error

LAYOUTS = ("", "ILSVRC/Data/CLS-LOC", "Data/CLS-LOC")  # of train/ and val/ in the usual copies


def imagenet100_classes() -> list[str]:
    """The WordNet ids of the 100 classes of Tian et al., sorted."""
    return sorted((resources.files(__package__) / "imagenet100.txt").read_text("ascii").split())


def load_imagenet100(data: recipes.Data, split: str, progress: Progress | None = None) -> Images:
    """Read one split from train/WNID and val/WNID of ImageNet or of just these classes.

    Training images are stored with a short side of data.size (256), cropped to the center square.
    Test images are cropped to 224 / 256 of it, bilinear, as in the published evaluation.
    """
    root = existing_folder(data.root)
    names = ("train",) if split == "train" else ("val", "test")
    folders = [root / layout / name for layout in LAYOUTS for name in names]
    folder = next((folder for folder in folders if folder.is_dir()), None)
    if folder is None:
        expected = "expected train/WNID/*.JPEG and val/WNID/*.JPEG"
        raise InputError(f"{root}: no folder {' or '.join(names)}; {expected}")
    wnids, square = imagenet100_classes(), None
    entries = _scan_classes(folder, wnids)
    if missing := sorted(set(wnids) - {entry.name.split("/")[0] for entry in entries}):
        problem = f"{len(missing)} of the 100 classes have no images, e.g. {missing[0]}"
        raise InputError(f"{folder}: {problem}; expected a folder per class")
    if split == "test":
        square = Square(data.size, round(data.size * 224 / 256), BILINEAR)
    return read_images(entries, data, progress, class_names=wnids, square=square)


def load_tinyimagenet(data: recipes.Data, split: str, progress: Progress | None = None) -> Images:
    """Read train/WNID/images/*.JPEG, or val/images/*.JPEG as the test split.

    val/val_annotations.txt names the classes of val; the official test images have no labels.
    """
    root = existing_folder(data.root)
    with as_input_error(f"cannot read {root}/train, expected train/WNID/images/*.JPEG"):
        wnids = sorted(path.name for path in (root / "train").iterdir() if path.is_dir())
    if split == "train":
        entries = _scan_classes(root / "train", wnids)
    else:
        path, images = root / "val" / "val_annotations.txt", root / "val" / "images"
        with as_input_error(f"cannot read {path}", OSError, ValueError):
            rows = [line.split("\t")[:2] for line in path.read_text("utf-8").splitlines() if line]
            entries = [Entry(f"{wnid}/{name}", images / name) for name, wnid in rows]
        if unknown := sorted({wnid for _, wnid in rows} - set(wnids)):
            raise InputError(f"{path} has the class {unknown[0]}, which train lacks")
    if not entries:
        raise InputError(f"{root}: no images of the {split} split")
    return read_images(entries, data, progress, class_names=wnids)


def _scan_classes(folder: Path, wnids: Sequence[str]) -> list[Entry]:
    found = {wnid: scan(folder / wnid)[0] for wnid in wnids if (folder / wnid).is_dir()}
    return [Entry(f"{wnid}/{e.name}", e.path) for wnid in found for e in found[wnid]]
