"""Features of one's own images, as a file."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import torch

from . import distributed
from .data.archive import Entry
from .data.cache import decoded
from .data.decode import Square
from .data.folder import existing_folder, scan
from .data.images import Images
from .errors import InputError
from .features import Progress, extract
from .files import write_atomic
from .gates import top_k_mask
from .model import Encoder
from .objective import normalise


def embed_images(
    model: Encoder,
    place: Path,
    out: Path,
    *,
    keep: int | None = None,
    gated: bool = True,
    progress: Progress | None = None,
) -> tuple[int, int]:
    """Write z [N, D] and names [N] of an image, or of a folder's; of class subfolders also y [N] and class_names.

    Returns
    -------
    N and D.
    """
    images = images_at(place, model.recipe.data.size, progress)
    found = extract(model, images, "sound", progress=progress)
    z = found.gated if gated else found.z
    if keep is not None and keep < z.shape[1]:
        rows = torch.from_numpy(z)
        z = normalise(rows * top_k_mask(rows.abs(), keep)).numpy()
    arrays: dict[str, np.ndarray] = {"z": z, "names": np.array(images.names)}
    if images.labels is not None:
        arrays |= {"y": images.labels, "class_names": np.array(images.class_names)}
    if distributed.rank() == 0:
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # type: ignore[arg-type]
        write_atomic(out, buffer.getvalue())
    return len(z), z.shape[1]


def images_at(place: Path, size: int, progress: Progress | None) -> Images:
    """One image, or every one at and below a folder: no split; the first folder of its path is an image's class."""
    alone = os.path.isfile(place)
    entries = [Entry(place.name, place)] if alone else scan(existing_folder(str(place)))
    if not entries:
        raise InputError(f"{place}: no image files in it")
    pixels, kept = decoded(entries, Square(size, size), what=str(place), strict=alone, progress=progress)
    names = tuple(entries[i].name for i in kept)
    tops = [name.partition("/")[0] for name in names]
    if not all("/" in name for name in names):
        return Images(pixels, names=names)
    classes = sorted(set(tops))
    return Images(pixels, np.array([classes.index(top) for top in tops]), class_names=tuple(classes), names=names)
