"""A folder of .tar shards in the WebDataset layout: KEY.jpg (png, webp, ...) with KEY.cls.

ROOT/train/*.tar with ROOT/test/*.tar (or val) are the splits; otherwise a share is held out.
Nothing is unpacked.
"""

from __future__ import annotations

import posixpath
import tarfile
from itertools import compress
from pathlib import Path

from bayesncl import recipes
from bayesncl.data import Dataset
from bayesncl.data.cache import Entry, read_images
from bayesncl.data.decode import SUFFIXES, Square
from bayesncl.data.folder import existing_folder, split_folders
from bayesncl.data.images import Images, Progress, in_split, track
from bayesncl.errors import InputError, as_input_error

# What tarfile raises on damaged archives; a chain of long-name headers recurses.
TAR_ERRORS = (tarfile.TarError, OSError, EOFError, ValueError, RecursionError)
MAX_DIGITS = 6  # of a class number


def load(data: recipes.Data, split: str, progress: Progress | None = None) -> Images:
    """Read one split; images are ordered by shard name, then key."""
    root = existing_folder(data.root)
    train, test = split_folders(root)
    images, texts = _read_shards(test if test and split == "test" else train, progress)
    if test is None:
        chosen = in_split([entry.name for entry in images], data, split, root)
        images = list(compress(images, chosen))
    labels = [_read_label(texts[entry.name]) for entry in images if entry.name in texts]
    if 0 < len(labels) < len(images):
        missing = len(images) - len(labels)
        raise InputError(f"{root}: {missing} of {len(images)} images have no .cls file")
    return read_images(
        images, Square(data.size, data.size), what=root, strict=data.strict,
        labels=labels or None, progress=progress,
    )  # fmt: skip


def _read_shards(
    folder: Path, progress: Progress | None
) -> tuple[list[Entry], dict[str, Entry]]:
    """Every image of the shards in `folder`, and its .cls file by the name of the image."""
    shards = sorted(path for path in folder.glob("*.tar") if path.is_file())
    images: list[Entry] = []
    texts: dict[str, Entry] = {}
    for shard in track(shards, len(shards), "listing shards", progress):
        members = _list_members(shard)
        keys: dict[str, Entry] = {}
        for name, entry in sorted(members.items()):
            parent, _, base = name.rpartition("/")
            stem, _, suffix = base.partition(".")  # the key ends at the first dot of the last part
            if f".{suffix.lower()}" in SUFFIXES:
                keys.setdefault(f"{parent}/{stem}", entry)
        for key, image in sorted(keys.items()):
            images.append(image)
            if label := members.get(f"{key}.cls".removeprefix("/")):
                texts[image.name] = label
    if not images:
        raise InputError(f"{folder}: no images in {len(shards)} .tar files")
    return images, texts


def _list_members(shard: Path) -> dict[str, Entry]:
    """The regular files of an uncompressed tar by name; of equal names the last."""
    problem = f"{shard}: not a readable tar file"
    with as_input_error(problem, *TAR_ERRORS), tarfile.open(shard, "r:") as tar:
        files = {posixpath.normpath(member.name): member for member in tar if member.isreg()}
    return {
        name: Entry(f"{shard.name}/{name}", shard, member.offset_data, member.size)
        for name, member in files.items()
    }


def _read_label(entry: Entry) -> int:
    text = entry.read().strip()
    if not text.isdigit() or len(text) > MAX_DIGITS:
        raise InputError(f"{entry.path.parent}: {entry.name} holds no class number")
    return int(text)


SHARDS = Dataset(name="shards", title="Shards", load=load, holdout=True)
