"""ImageNet-100: the 100 classes of Tian et al. out of a full ImageNet folder, or a folder prepared with just these."""

from __future__ import annotations

from importlib import resources

from .. import recipes
from ..errors import InputError, shown
from . import Dataset
from .decode import BILINEAR, Square
from .folder import IMAGENET_MEAN, IMAGENET_STD, existing_folder, read_images, scan
from .images import Images, Progress

LAYOUTS = ("", "ILSVRC/Data/CLS-LOC", "Data/CLS-LOC")  # where train/ and val/ lie in the usual copies


def classes() -> tuple[str, ...]:
    """The 100 WordNet ids, sorted; the class number is the place in this list."""
    text = (resources.files(__package__) / "imagenet100.txt").read_text("ascii")
    return tuple(sorted(text.split()))


def load(data: recipes.Data, split: str, progress: Progress | None = None) -> Images:
    """Read one split.

    Training images are stored with data.size (256) as their short side, cropped to the centre square; test images
    are cropped to 224 / 256 of it: resize 256, crop 224, bilinear as in the published evaluation.
    """
    root = existing_folder(data.root)
    folders = ("train",) if split == "train" else ("val", "test")
    found = [root / layout / f for layout in LAYOUTS for f in folders if (root / layout / f).is_dir()]
    if not found:
        wanted = " or ".join(folders)
        raise InputError(f"{shown(root)}: no folder {wanted} in it; expected train/WNID/*.JPEG and val/WNID/*.JPEG")
    wnids = classes()
    entries = [entry for entry in scan(found[0], only=frozenset(wnids))[0] if "/" in entry.name]
    missing = sorted(set(wnids) - {entry.name.split("/")[0] for entry in entries})
    if missing:
        flat = split == "test" and len(missing) == 100
        hint = "; sort the validation images into class folders first" if flat else f", the first is {missing[0]}"
        raise InputError(f"{shown(found[0])}: {len(missing)} of the 100 classes have no images{hint}")
    stored, evaluated = Square(data.size, data.size), Square(data.size, round(data.size * 224 / 256), BILINEAR)
    square = stored if split == "train" else evaluated
    return read_images(entries, square, wnids, what=shown(root), strict=data.strict, progress=progress)


IMAGENET100 = Dataset(
    name="imagenet100",
    title="ImageNet-100",
    settings=recipes.Recipe(
        data=recipes.Data(size=256, mean=IMAGENET_MEAN, std=IMAGENET_STD),
        views=recipes.Views(size=224),
        model=recipes.Model(stem="imagenet", hidden=16384, dim=2048, rectifier="relu"),
        gate=recipes.Gate(prior=0.6, lr=0.0375),
        optimiser=recipes.Optimiser(lr=0.3),
        run=recipes.Run(epochs=100, batch=128),
    ),
    load=load,
    images=126_689,
    seconds=12.0,
    paper_dims=256,
    probe="imagenet",
)
