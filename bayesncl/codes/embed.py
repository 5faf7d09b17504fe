"""`bayesncl embed`: features of one's own images or embeddings, written to a file."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from bayesncl import distributed
from bayesncl.codes.names import find_names, fingerprint, read_names
from bayesncl.codes.open import PhotoCodes
from bayesncl.codes.table import POINTS, SPARSEVEC, Table, check_table, write_features
from bayesncl.data.cache import read_images
from bayesncl.data.folder import folder_classes, list_images
from bayesncl.data.images import PATH_LENGTH, Progress, track
from bayesncl.errors import InputError, printable
from bayesncl.inputs import ENDINGS, as_features, read_embeddings
from bayesncl.io import check_not_input
from bayesncl.method.encoder import Encoder, extract
from bayesncl.method.losses import check_n_active, keep_strongest

LONG_ACTIVE = 5  # dimensions per image in a long table or sparse vectors, without n_active


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
    check_table(out, "", ".npz", POINTS)
    check_not_input(out, source)
    sparse = out.name.endswith((SPARSEVEC, POINTS))
    if long and (sparse or out.suffix in ("", ".npz")):
        raise InputError(f"{out}: --long writes a .csv or a .parquet")
    if isinstance(model, PhotoCodes):
        dim, own = model.codes.n_components_, model.folder.fingerprint()
        if (long or sparse) and n_active is None and model.codes.n_active is None:
            n_active = min(LONG_ACTIVE, dim)
    else:
        dim, own = model.head.dim, fingerprint(model.state_dict())
    check_n_active(n_active, dim)
    columns = find_names(read_names(names), own, dim).columns(dim) if names else None
    if isinstance(model, PhotoCodes):
        table = codes_of(model, source, n_active, progress)
        columns = columns or model.codes.names_
    else:
        table = features_of(model, source, n_active, gated, progress)
    if distributed.rank() == 0:
        write_features(out, replace(table, columns=columns), long)
    return len(table.z), dim


def features_of(
    model: Encoder, source: Path | None, n_active: int | None, gated: bool,
    progress: Progress | None,
) -> Table:  # fmt: skip
    """Features of an image or a folder of images by a trained run."""
    if source is None:
        raise InputError("a trained run needs images to embed")
    entries, others = list_images(source)
    data = replace(model.recipe.data, root=str(source), strict=source.is_file())
    images = read_images(entries, data, progress, others=others)
    found = extract(model, images, "sound", progress=progress)
    z = keep_strongest(torch.from_numpy(found.gated if gated else found.z), n_active).numpy()
    assert images.names is not None
    return Table(z, images.names, folder_classes(images.names, source))


def codes_of(
    model: PhotoCodes, source: Path | None, n_active: int | None = None,
    progress: Progress | None = None,
) -> Table:  # fmt: skip
    """Codes of images, of an array of embeddings, or (None) of the rows they were fitted on."""
    labels: Sequence[str] | None
    index = None
    if source is None:
        fitted, x = model.rows, model.embeddings
        index = np.arange(len(x))
        names, labels = fitted.names, fitted.texts()
    elif source.suffix.lower() in ENDINGS and source.is_file():
        x, own, given, columns = read_embeddings(source)
        x = as_features(x)
        if x.shape[1] != (width := model.codes.n_features_in_):
            raise InputError(f"{source}: {x.shape[1]} columns, but {model.folder} needs {width}")
        wanted = model.folder.about().columns
        if columns is not None and wanted is not None:
            position = {name: i for i, name in enumerate(columns.tolist())}
            if missing := [name for name in wanted if name not in position]:
                some = f"{len(missing):,} of the {len(wanted):,} columns used by fit"
                raise InputError(f"{source} lacks {some}, e.g. {printable(missing[0], 60)}")
            x = x[:, [position[name] for name in wanted]]
        names = tuple(map(str, range(len(x)) if own is None else own))
        labels = None if given is None else [str(label) for label in given]
    else:
        entries, others = list_images(source)
        embedded = model.encoder.embed_files(entries)
        found = list(zip(entries, track(embedded, len(entries), "embedding images", progress)))
        bad = [f"{printable(e.name)} ({row})" for e, row in found if isinstance(row, str)]
        if len(bad) == len(entries):
            raise InputError(f"{source}: none of {len(entries)} images can be used: {bad[0]}")
        if skipped := [*bad, *map(printable, others)]:
            warnings.warn(f"{len(skipped):,} files skipped, e.g. {skipped[0]}", stacklevel=2)
        x = np.stack([row for _, row in found if not isinstance(row, str)])
        names = tuple(entry.name for entry, row in found if not isinstance(row, str))
        labels = folder_classes(names, source)
    score = model.novelty(x, index).astype(np.float32)
    shown = [printable(name, PATH_LENGTH) for name in names]
    return Table(model.transform(x, n_active), shown, labels, novelty=score)
