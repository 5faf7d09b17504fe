"""Features of one's own images or embeddings, written as arrays, tables or sparse vectors."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bayesncl import distributed
from bayesncl.codes.dense import dense_codes, novelty
from bayesncl.codes.folder import PhotoCodes
from bayesncl.codes.names import FINGERPRINT_DIGITS, find_names, read_names
from bayesncl.codes.photos import Reason, embed_entries
from bayesncl.codes.table import check_table, write_table
from bayesncl.data.cache import Entry, read_images
from bayesncl.data.decode import Square
from bayesncl.data.folder import existing_folder, folder_classes, no_images, scan
from bayesncl.data.images import PATH_LENGTH, Progress
from bayesncl.errors import InputError, printable
from bayesncl.inputs import (
    COLUMNS,
    ENDINGS,
    as_features,
    factorize,
    read_embeddings,
)
from bayesncl.io import check_not_input, check_output_file, digest, write_atomic, write_saved
from bayesncl.method.encoder import Encoder
from bayesncl.method.features import extract
from bayesncl.method.losses import check_n_active, keep_strongest

LONG_ACTIVE = 5  # dimensions per image in a long table or sparse vectors, without n_active
SPARSEVEC, POINTS = ".sparsevec.csv", ".jsonl"


@dataclass(frozen=True)
class Table:
    """Features z [N, D] with a name per row, and classes if there are any."""

    z: np.ndarray
    names: Sequence[str]
    labels: Sequence[str] | None = None
    columns: Sequence[str] | None = None  # names of the dimensions
    novelty: np.ndarray | None = None  # [N], of codes: entropy of the dense code


def embed_images(
    model: Encoder | PhotoCodes, source: Path | None, out: Path, *, n_active: int | None = None,
    gated: bool = True, names: Path | None = None, long: bool = False,
    progress: Progress | None = None,
) -> tuple[int, int]:  # fmt: skip
    """Write the features of an image, a folder of images or an array of embeddings (for codes).

    Codes without `source` are those of the rows they were fitted on. `long` writes one row per
    active dimension: image, dimension, name, value.

    An .npz contains z [N, D] and names [N]; with class subfolders also y [N] and class_names. A
    table has the columns name, label (with class subfolders), novelty (for codes) and z0, z1, ...
    or the names that people gave to the dimensions in the file `names` (default: names.json of the
    codes). A .sparsevec.csv has sparse vectors for pgvector, a .jsonl points for Qdrant. Returns N
    and D.
    """
    if out.suffix not in ("", ".npz", ".csv", ".parquet", POINTS):
        endings = f".npz, .csv, .parquet, {SPARSEVEC}, {POINTS}"
        raise InputError(f"{out}: expected a name that ends in {endings}")
    sparse = out.name.endswith((SPARSEVEC, POINTS))
    if out.suffix in (".csv", ".parquet"):
        check_table(out)
    if long and (sparse or out.suffix not in (".csv", ".parquet")):
        raise InputError(f"{out}: --long writes a .csv or a .parquet")
    check_output_file(out)
    check_not_input(out, source)
    dim = model.codes.n_components_ if isinstance(model, PhotoCodes) else model.head.dim
    check_n_active(n_active, dim)
    columns = column_names(model, names, dim)
    if isinstance(model, Encoder):
        if source is None:
            raise InputError("a trained run needs images to embed")
        table = _run_features(model, source, n_active, gated, progress)
    else:
        if (long or sparse) and n_active is None and model.codes.n_active is None:
            n_active = min(LONG_ACTIVE, dim)
        table = codes_of(model, source, n_active, progress)
    table = replace(table, columns=columns)
    if distributed.rank() == 0:
        write(table, out, long)
    return len(table.z), table.z.shape[1]


def codes_of(
    model: PhotoCodes, source: Path | None, n_active: int | None = None,
    progress: Progress | None = None,
) -> Table:  # fmt: skip
    """Codes of images, of an array of embeddings, or (None) of the rows they were fitted on."""
    if source is None:
        rows, classes = model.folder.rows(), model.folder.rows().class_names
        labels = None
        if rows.labels is not None and classes:
            labels = [classes[label] for label in rows.labels]
        names = [printable(name, PATH_LENGTH) for name in rows.names]
        return _transform(model, model.folder.embeddings(), names, labels, n_active)
    if source.suffix.lower() in ENDINGS and source.is_file():
        return _array_codes(model, source, n_active)
    return _photo_codes(model, source, n_active, progress)


def _transform(
    model: PhotoCodes, x: np.ndarray, names: Sequence[str], labels: Sequence[str] | None,
    n_active: int | None,
) -> Table:  # fmt: skip
    z = model.transform(x, n_active)
    score = novelty(dense_codes(model.codes, x)) if len(x) else np.empty(0)
    return Table(z, names, labels, novelty=score.astype(np.float32))


def column_names(model: Encoder | PhotoCodes, path: Path | None, dim: int) -> list[str] | None:
    """Names of the dimensions of this model, from a names.json or from the folder of codes."""
    if path is None:
        return getattr(model.codes, "names_", None) if isinstance(model, PhotoCodes) else None
    if isinstance(model, PhotoCodes):
        fingerprint = model.folder.fingerprint()
    else:
        fingerprint = digest(model.state_dict())[:FINGERPRINT_DIGITS]
    return find_names(read_names(path), fingerprint, dim).columns(dim)


def _run_features(
    model: Encoder, source: Path, n_active: int | None, gated: bool, progress: Progress | None
) -> Table:
    entries, others = find_entries(source)
    square = Square(model.recipe.data.size, model.recipe.data.size)
    strict = os.path.isfile(source)
    images = read_images(
        entries, square, what=source, strict=strict, others=others, progress=progress
    )
    found = extract(model, images, "sound", progress=progress)
    z = keep_strongest(torch.from_numpy(found.gated if gated else found.z), n_active).numpy()
    assert images.names is not None
    return Table(z, images.names, folder_classes(images.names, source))


def _array_codes(model: PhotoCodes, source: Path, n_active: int | None) -> Table:
    x, names, labels = read_embeddings(source)
    x = as_features(x)
    if x.shape[1] != (width := model.codes.n_features_in_):
        raise InputError(f"{source}: {x.shape[1]} columns, but {model.folder} needs {width}")
    given = range(len(x)) if names is None else names
    texts = [printable(str(name), PATH_LENGTH) for name in given]
    return _transform(
        model, x, texts, None if labels is None else [str(v) for v in labels], n_active
    )


def _photo_codes(
    model: PhotoCodes, source: Path, n_active: int | None, progress: Progress | None
) -> Table:
    entries, others = find_entries(source)
    parts: list[Table] = []
    reasons: list[Reason] = []
    for rows, why in embed_entries(entries, model.encoder):
        good = [reason is None for reason in why]
        parts.append(_transform(model, rows[good], (), None, n_active))
        reasons += why
        if progress:
            progress(len(reasons), len(entries), "embedding images")
    z = np.concatenate([part.z for part in parts])
    score = np.concatenate([part.novelty for part in parts if part.novelty is not None])
    bad = [f"{e.name} ({why})" for e, why in zip(entries, reasons) if why is not None]
    if bad and (not len(z) or os.path.isfile(source)):
        reason = printable(bad[0], 200)
        raise InputError(f"{source}: none of {len(entries)} images can be used: {reason}")
    if bad or others:
        skipped = [*bad, *others]
        warnings.warn(f"{len(skipped):,} files skipped, e.g. {printable(skipped[0])}", stacklevel=2)
    names = [printable(e.name, PATH_LENGTH) for e, why in zip(entries, reasons) if why is None]
    return Table(z, names, folder_classes(names, source), novelty=score)


def find_entries(source: Path) -> tuple[list[Entry], list[str]]:
    """One image file, or all at and below a folder; and the names of other files."""
    if os.path.isfile(source):
        return [Entry(source.name, source)], []
    entries, others = scan(existing_folder(str(source)))
    if not entries:
        raise no_images(source)
    return entries, others


def write(table: Table, path: Path, long: bool = False) -> None:
    """Write features as .npz, or as a table; `long`: one row per active dimension."""
    z, headings = table.z, _headings(table)
    if path.suffix in ("", ".npz"):
        arrays: dict[str, np.ndarray] = {"z": z, "names": np.array(table.names)}
        if table.labels is not None:
            arrays["y"], arrays["class_names"] = factorize(np.array(table.labels))
        if table.novelty is not None:
            arrays["novelty"] = table.novelty
        if table.columns is not None:
            arrays["dimensions"] = np.array(table.columns)
        return write_saved(path, np.savez, **arrays)
    columns: dict[str, Any] = {}
    if path.suffix == POINTS:
        return write_atomic(path, _points(table))
    if long:
        rows, dims = (index.tolist() for index in np.nonzero(z))
        columns["image"], columns["dimension"] = [table.names[i] for i in rows], dims
        columns["name"], columns["value"] = [headings[k] for k in dims], z[rows, dims]
    else:
        columns["name"] = list(table.names)
        if table.labels is not None:
            columns["label"] = list(table.labels)
        if path.name.endswith(SPARSEVEC):
            columns["codes"] = [_sparsevec(row) for row in z]
            return write_table(path, columns)
        if table.novelty is not None:
            columns["novelty"] = table.novelty
        columns |= dict(zip(headings, z.T.copy()))
    write_table(path, columns)


def _entries(row: np.ndarray) -> tuple[list[int], list[float]]:
    """Index and value of the entries that are not 0; nine digits restore a float32."""
    index = np.flatnonzero(row)
    return index.tolist(), [float(f"{value:.9g}") for value in row[index]]


def _sparsevec(row: np.ndarray) -> str:
    """A row in the text form of pgvector, which counts from 1."""
    pairs = ",".join(f"{i + 1}:{value}" for i, value in zip(*_entries(row)))
    return f"{{{pairs}}}/{len(row)}"


def _points(table: Table) -> str:
    """A JSON object per line: a point of Qdrant with the sparse vector `codes`."""
    payload: dict[str, Sequence[Any]] = {"name": table.names}
    if table.labels is not None:
        payload["label"] = table.labels
    if table.novelty is not None:
        payload["novelty"] = table.novelty.tolist()
    lines = []
    for i, row in enumerate(table.z):
        vector = {"codes": dict(zip(("indices", "values"), _entries(row)))}
        known = {key: column[i] for key, column in payload.items()}
        lines.append(json.dumps({"id": i, "vector": vector, "payload": known}) + "\n")
    return "".join(lines)


def _headings(table: Table) -> list[str]:
    """Names of the dimensions, never one that means something else in a table."""
    given = list(table.columns or (f"z{i}" for i in range(table.z.shape[1])))
    taken = [name.strip().lower() in COLUMNS for name in given]
    return [f"{name} (z{i})" if taken[i] else name for i, name in enumerate(given)]
