"""A folder of .tar shards in the WebDataset layout: KEY.jpg (png, webp, ...) with KEY.cls.

ROOT/train/*.tar with ROOT/test/*.tar (or val) are the splits; otherwise a share is held out.
Nothing is unpacked.
"""

import posixpath
import tarfile
from itertools import compress
from pathlib import Path

from bayesncl import recipes
from bayesncl.data.cache import Entry, read_images
from bayesncl.data.decode import SUFFIXES
from bayesncl.data.folder import existing_folder, split_folders
from bayesncl.data.images import Images, Progress, in_split, track
from bayesncl.errors import InputError, as_input_error

# What tarfile raises on damaged archives; a chain of long-name headers recurses.
TAR_ERRORS = (tarfile.TarError, OSError, EOFError, ValueError, RecursionError)
MAX_DIGITS = 6  # of a class number


def load(data: recipes.Data, split: str, progress: Progress | None = None) -> Images:
    """Read one split; images are ordered by shard name, then key."""
    train, test = split_folders(existing_folder(data.root))
    folder = test if test and split == "test" else train
    shards = sorted(path for path in folder.glob("*.tar") if path.is_file())
    pairs = [
        pair
        for shard in track(shards, len(shards), "listing shards", progress)
        for pair in _list_images(shard)
    ]
    if not pairs:
        raise InputError(f"{folder}: no images in {len(shards)} .tar files")
    if test is None:
        pairs = list(compress(pairs, in_split([image.name for image, _ in pairs], data, split)))
    labels = [_read_label(label) for _, label in pairs if label is not None]
    if 0 < len(labels) < len(pairs):
        missing = len(pairs) - len(labels)
        raise InputError(f"{data.root}: {missing} of {len(pairs)} images have no .cls file")
    return read_images([image for image, _ in pairs], data, progress, labels=labels or None)


def _list_images(shard: Path) -> list[tuple[Entry, Entry | None]]:
    """The images of an uncompressed tar and their .cls files; of equal names the last counts."""
    problem = f"{shard}: not a readable tar file"
    with as_input_error(problem, *TAR_ERRORS), tarfile.open(shard, "r:") as tar:
        files = {posixpath.normpath(member.name): member for member in tar if member.isreg()}
    entries = {
        name: Entry(f"{shard.name}/{name}", shard, member.offset_data, member.size)
        for name, member in files.items()
    }
    images: dict[str, Entry] = {}
    for name in sorted(entries):
        parent, _, base = name.rpartition("/")
        stem, _, suffix = base.partition(".")  # the key ends at the first dot of the last part
        if f".{suffix.lower()}" in SUFFIXES:
            images.setdefault(f"{parent}/{stem}", entries[name])
    found = sorted(images.items())
    return [(image, entries.get(f"{key}.cls".removeprefix("/"))) for key, image in found]


def _read_label(entry: Entry) -> int:
    text = entry.read().strip()
    if not text.isdigit() or len(text) > MAX_DIGITS:
        raise InputError(f"{entry.path.parent}: {entry.name} holds no class number")
    return int(text)
