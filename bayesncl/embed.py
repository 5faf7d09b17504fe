"""Features of one's own images, as a file: .npz, or a table as .csv or .parquet."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path

import numpy as np
import torch

from . import distributed
from .data.archive import Entry
from .data.cache import decoded
from .data.decode import SUFFIXES, Square
from .data.folder import existing_folder, scan
from .data.images import Images, Progress
from .errors import InputError
from .features import extract
from .files import check_place, write_atomic
from .model import Encoder
from .objective import keep_strongest

ENDINGS = (".npz", ".csv", ".parquet")


def embed_images(
    model: Encoder,
    place: Path,
    out: Path,
    *,
    keep: int | None = None,
    gated: bool = True,
    progress: Progress | None = None,
) -> tuple[int, int]:
    """Write the features of an image, or of a folder's.

    An .npz holds z [N, D] and names [N]; of class subfolders also y [N] and class_names. A table has a row for each
    image: name, label (of class subfolders), z0, z1, ...

    Returns
    -------
    N and D.
    """
    check_out(out)
    images = images_at(place, model.recipe.data.size, progress)
    found = extract(model, images, "sound", progress=progress)
    z = keep_strongest(torch.from_numpy(found.gated if gated else found.z), keep).numpy()
    if distributed.rank() == 0:
        pack = {".npz": _npz, ".csv": _csv, ".parquet": _parquet}[out.suffix or ".npz"]
        write_atomic(out, pack(z, images))
    return len(z), z.shape[1]


def check_out(out: Path) -> None:
    """Refuse, before the work, a name that could not be written after it."""
    if out.suffix not in ("", *ENDINGS):
        raise InputError(f"{out}: expected a name that ends in {', '.join(ENDINGS)}")
    check_place(out)
    if out.suffix == ".parquet":
        _import_pyarrow()


def _npz(z: np.ndarray, images: Images) -> bytes:
    arrays: dict[str, np.ndarray] = {"z": z, "names": np.array(images.names)}
    if images.labels is not None:
        arrays |= {"y": images.labels, "class_names": np.array(images.class_names)}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def _columns(images: Images) -> dict[str, list[str]]:
    assert images.names is not None
    columns = {"name": list(images.names)}
    if images.labels is not None and images.class_names is not None:
        columns["label"] = [images.class_names[label] for label in images.labels]
    return columns


def _csv(z: np.ndarray, images: Images) -> bytes:
    columns = _columns(images)
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*columns, *(f"z{i}" for i in range(z.shape[1]))])
    for *words, row in zip(*columns.values(), z):
        writer.writerow([*words, *(f"{value:.9g}" for value in row)])  # nine digits give the same float32 back
    return text.getvalue().encode()


def _parquet(z: np.ndarray, images: Images) -> bytes:
    pyarrow, parquet = _import_pyarrow()
    table = pyarrow.table({**_columns(images), **{f"z{i}": column for i, column in enumerate(z.T.copy())}})
    buffer = io.BytesIO()
    parquet.write_table(table, buffer)
    return buffer.getvalue()


def _import_pyarrow():  # type: ignore[no-untyped-def]
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError("a .parquet file needs the extra: pip install 'bayesncl[tables]'") from None
    return pyarrow, parquet


def images_at(place: Path, size: int, progress: Progress | None) -> Images:
    """One image, or every one at and below a folder: no split; the first folder of its path is an image's class."""
    alone = os.path.isfile(place)
    entries, others = ([Entry(place.name, place)], []) if alone else scan(existing_folder(str(place)))
    if not entries:
        raise InputError(f"{place}: no image files in it (looked for {' '.join(SUFFIXES)})")
    square = Square(size, size)
    pixels, kept = decoded(entries, square, what=str(place), strict=alone, others=others, progress=progress)
    names = tuple(entries[i].name for i in kept)
    tops = [name.partition("/")[0] for name in names]
    if not all("/" in name for name in names):
        return Images(pixels, names=names)
    classes, labels = np.unique(tops, return_inverse=True)
    return Images(pixels, labels.astype(np.int64), class_names=tuple(classes.tolist()), names=names)
