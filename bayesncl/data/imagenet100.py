"""ImageNet-100: the 100 classes of Tian et al. from a full ImageNet folder or one of just these."""

from __future__ import annotations

from importlib import resources

from bayesncl import recipes
from bayesncl.data import Dataset
from bayesncl.data.archive import Entry
from bayesncl.data.decode import BILINEAR, Square
from bayesncl.data.folder import existing_folder, read_images, scan
from bayesncl.data.images import Images, Progress
from bayesncl.errors import InputError, printable_path

LAYOUTS = ("", "ILSVRC/Data/CLS-LOC", "Data/CLS-LOC")  # of train/ and val/ in the usual copies


def classes() -> tuple[str, ...]:
    """The 100 WordNet ids, sorted; a class number is an index into them."""
    text = (resources.files(__package__) / "imagenet100.txt").read_text("ascii")
    return tuple(sorted(text.split()))


def load(data: recipes.Data, split: str, progress: Progress | None = None) -> Images:
    """Read one split.

    Training images are stored with a short side of data.size (256), cropped to the center square.
    Test images are cropped to 224 / 256 of it, bilinear, as in the published evaluation.
    """
    root = existing_folder(data.root)
    names = ("train",) if split == "train" else ("val", "test")
    folders = [root / layout / name for layout in LAYOUTS for name in names]
    folder = next((folder for folder in folders if folder.is_dir()), None)
    if folder is None:
        expected = "expected train/WNID/*.JPEG and val/WNID/*.JPEG"
        raise InputError(f"{printable_path(root)}: no folder {' or '.join(names)}; {expected}")
    wnids = classes()
    found = {wnid: scan(folder / wnid)[0] for wnid in wnids if (folder / wnid).is_dir()}
    if missing := [wnid for wnid in wnids if not found.get(wnid)]:
        problem = f"{len(missing)} of the 100 classes have no images, e.g. {missing[0]}"
        if split == "test" and len(missing) == 100:
            problem += "; sort the validation images into class folders"
        raise InputError(f"{printable_path(folder)}: {problem}")
    entries = [Entry(f"{wnid}/{e.name}", e.path) for wnid in wnids for e in found[wnid]]
    square = Square(data.size, data.size)
    if split == "test":
        square = Square(data.size, round(data.size * 224 / 256), BILINEAR)
    what = printable_path(root)
    return read_images(entries, square, wnids, what=what, strict=data.strict, progress=progress)


IMAGENET100 = Dataset(
    name="imagenet100", title="ImageNet-100", load=load, images=126_689, seconds=14.8,
    paper_dims=256, probe="imagenet",
)  # fmt: skip
