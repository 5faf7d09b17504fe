"""Features of one's own images or embeddings, as a file: .npz, or a table as .csv or .parquet."""

from __future__ import annotations

import csv
import io
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from . import distributed
from .arrays import ENDINGS, as_features, check_room, read_embeddings
from .codes_folder import PhotoCodes
from .data.archive import Entry
from .data.decode import Square
from .data.folder import classes_of, existing_folder, no_images, read_images, scan
from .data.images import PATH_LENGTH, Progress
from .errors import InputError, printable
from .features import extract
from .files import check_other, check_place, digest, write_atomic
from .model import Encoder
from .names import FINGERPRINT, find_names, read_names
from .objective import check_keep, keep_strongest
from .photos import embed_entries
from .tables import COLUMNS, guard_cell, import_pyarrow

WRITTEN = (".npz", ".csv", ".parquet")  # endings of what can be written; more can be read


@dataclass(frozen=True)
class Table:
    """Features z [N, D], a name a row, and its class where that is known."""

    z: np.ndarray
    names: Sequence[str]
    labels: Sequence[str] | None = None
    columns: Sequence[str] | None = None  # names of the dimensions


def embed_images(
    model: Encoder | PhotoCodes, place: Path, out: Path, *, keep: int | None = None, gated: bool = True,
    names: Path | None = None, progress: Progress | None = None,
) -> tuple[int, int]:  # fmt: skip
    """Write the features of an image, of a folder's, or, by codes, of an array of embeddings; their N and D.

    An .npz holds z [N, D] and names [N]; of class subfolders also y [N] and class_names. A table has a row for each
    image: name, label (of class subfolders), z0, z1, ... or what the dimensions were called in the file `names`.
    """
    if out.suffix not in ("", *WRITTEN):
        raise InputError(f"{out}: expected a name that ends in {', '.join(WRITTEN)}")
    check_place(out)
    check_other(out, place)
    if out.suffix == ".parquet":
        import_pyarrow()  # before the work
    dim = model.codes.dim_ if isinstance(model, PhotoCodes) else model.head.dim
    check_keep(keep, dim)
    columns = None if names is None else column_names(model, names, dim)
    if isinstance(model, Encoder):
        table = _features(model, place, keep, gated, progress)
    elif place.suffix.lower() in ENDINGS and place.is_file():
        table = _codes_of_array(model, place, keep)
    else:
        table = _codes_of_photos(model, place, keep, progress)
    if distributed.rank() == 0:
        pack = {".npz": _npz, ".csv": _csv, ".parquet": _parquet}[out.suffix or ".npz"]
        write_atomic(out, pack(replace(table, columns=columns)))
    return len(table.z), table.z.shape[1]


def check_size(count: int, width: int) -> None:
    """Refuse, before the work, more codes than can be held while a file is made of them."""
    check_room(count * (16 * width + 400), f"{count:,} x {width:,} codes")


def column_names(model: Encoder | PhotoCodes, path: Path, dim: int) -> list[str]:
    """What people called the dimensions of this model, from names.json."""
    mark = model.folder.fingerprint() if isinstance(model, PhotoCodes) else digest(model.state_dict())[:FINGERPRINT]
    return find_names(read_names(path), mark, dim).columns(dim)


def _features(model: Encoder, place: Path, keep: int | None, gated: bool, progress: Progress | None) -> Table:
    entries, others = entries_at(place)
    square = Square(model.recipe.data.size, model.recipe.data.size)
    alone = os.path.isfile(place)
    images = read_images(entries, square, None, what=str(place), strict=alone, others=others, progress=progress)
    found = extract(model, images, "sound", progress=progress)
    z = keep_strongest(torch.from_numpy(found.gated if gated else found.z), keep).numpy()
    assert images.names is not None
    return Table(z, images.names, classes_of(images.names, place))


def _codes_of_array(model: PhotoCodes, place: Path, keep: int | None) -> Table:
    x, names, labels = read_embeddings(place)
    x = as_features(x)
    if x.shape[1] != (width := model.codes.n_features_in_):
        raise InputError(f"{place}: rows of {x.shape[1]} numbers, but {model.folder} was fitted on rows of {width}")
    check_size(len(x), model.codes.dim_)
    named = [str(i) for i in range(len(x))] if names is None else [printable(str(name), PATH_LENGTH) for name in names]
    return Table(model.transform(x, keep), named, None if labels is None else [str(each) for each in labels])


def _codes_of_photos(model: PhotoCodes, place: Path, keep: int | None, progress: Progress | None) -> Table:
    entries, others = entries_at(place)
    check_size(len(entries), model.codes.dim_)
    encoder = model.encoder
    parts: list[np.ndarray] = []
    reasons: list[str | None] = []
    for rows, why in embed_entries(entries, encoder):
        good = [reason is None for reason in why]
        if any(good):
            parts.append(model.transform(rows[good], keep))
        reasons += why
        if progress:
            progress(len(reasons), len(entries), "embedding photos")
    bad = [f"{printable(e.name)} ({printable(why)})" for e, why in zip(entries, reasons) if why is not None]
    if not parts or (bad and os.path.isfile(place)):
        raise InputError(f"{place}: none of the {len(entries)} photos can be used: {bad[0]}")
    if bad or others:
        first = bad[0] if bad else printable(others[0])
        warnings.warn(f"{len(bad) + len(others):,} files skipped, e.g. {first}", stacklevel=2)
    names = [printable(e.name, PATH_LENGTH) for e, why in zip(entries, reasons) if why is None]
    return Table(np.concatenate(parts), names, classes_of(names, place))


def entries_at(place: Path) -> tuple[list[Entry], list[str]]:
    """One image file, or every one at and below a folder; and the names of other files."""
    entries, others = ([Entry(place.name, place)], []) if os.path.isfile(place) else scan(existing_folder(str(place)))
    if not entries:
        raise no_images(place)
    return entries, others


def _npz(table: Table) -> bytes:
    columns: dict[str, np.ndarray] = {"z": table.z, "names": np.array(table.names)}
    if table.labels is not None:
        classes, labels = np.unique(np.array(table.labels), return_inverse=True)
        columns |= {"y": labels.astype(np.int64), "class_names": classes}
    if table.columns is not None:
        columns["dimensions"] = np.array(table.columns)
    buffer = io.BytesIO()
    np.savez(buffer, **columns)  # type: ignore[arg-type]
    return buffer.getvalue()


def _texts(table: Table) -> dict[str, Sequence[str]]:
    return {"name": table.names} | ({} if table.labels is None else {"label": table.labels})


def _headings(table: Table) -> list[str]:
    given = list(table.columns or (f"z{i}" for i in range(table.z.shape[1])))
    return [f"{name} (z{i})" if name.strip().lower() in COLUMNS else name for i, name in enumerate(given)]


def _csv(table: Table) -> bytes:
    columns = _texts(table)
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*columns, *map(guard_cell, _headings(table))])
    for *words, row in zip(*columns.values(), table.z):
        numbers = (f"{value:.9g}" for value in row)  # nine digits give the same float32 back
        writer.writerow([*map(guard_cell, words), *numbers])
    return text.getvalue().encode()


def _parquet(table: Table) -> bytes:
    pyarrow = import_pyarrow()
    columns = {**{k: list(v) for k, v in _texts(table).items()}, **dict(zip(_headings(table), table.z.T.copy()))}
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
    return buffer.getvalue()
