"""What `bayesncl fit` reads: photos, an array or a run.

Each image is embedded once: a killed fit continues, and a refit embeds only what is new.
"""

import json
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from bayesncl import inputs
from bayesncl.codes.encoders import Embedded, PhotoEncoder, Request, open_encoder, same_signature
from bayesncl.codes.folder import About, CodesFolder, Key, Rows, file_stat, hash_tree
from bayesncl.data import load as load_split
from bayesncl.data.cache import Entry, count_suffixes
from bayesncl.data.decode import describe_sizes
from bayesncl.data.folder import folder_classes, list_images, scan, split_folders
from bayesncl.data.images import PATH_LENGTH, Images, fingerprint, held_out
from bayesncl.errors import InputError, as_input_error, printable
from bayesncl.inputs import as_features, class_labels, factorize
from bayesncl.io import write_saved
from bayesncl.measure.rows import slices
from bayesncl.method.encoder import center_crop
from bayesncl.progress import Display, plural
from bayesncl.training.run_folder import load_run

# from MIN_ROWS rows on, a tenth is held out to judge by, at most MAX_HELD_OUT
MIN_ROWS, HELD_OUT_SHARE, MAX_HELD_OUT = 5000, 0.1, 5000
ROWS_PER_BLOCK = 4096
IMAGES_PER_BATCH = 512  # of a run
LOG_SECONDS = 5.0  # of work that a kill may lose


@dataclass(frozen=True)
class Options:
    """Options of `bayesncl fit`."""

    method: str = "prototypes"
    n_components: int | None = None
    n_active: int | None = None
    seed: int = 0
    encoder: Request = Request("")
    labels: Path | None = None
    images: Path | None = None
    fresh: bool = False  # embed every image again and do not continue earlier codes


class Material(NamedTuple):
    """N rows to fit on, in the order of their source."""

    about: About
    keys: Sequence[Key]
    x: np.ndarray | Sequence[np.ndarray | None]  # embeddings; None if an image cannot be used
    labels: Sequence[object] | np.ndarray | None
    test: Sequence[bool] | np.ndarray | None  # [N], rows of a test split; None without one


def arrange(material: Material, hold_out: bool) -> tuple[Rows, Iterator[np.ndarray]]:
    """The usable rows with the held-out ones last, and their embeddings in blocks.

    Held out are the test split or, with `hold_out`, a tenth of 5,000 rows or more.
    """
    usable = np.array([i for i, row in enumerate(material.x) if row is not None])
    n = len(usable)
    if n < 2:
        raise InputError("only one row; codes need several")
    test = np.zeros(n, bool) if material.test is None else np.array(material.test, bool)[usable]
    if not test.any() or test.all():
        share = min(HELD_OUT_SHARE, MAX_HELD_OUT / n) if hold_out and n >= MIN_ROWS else 0.0
        test = held_out([material.keys[i].name for i in usable], share, 0)
    order = usable[np.argsort(test, kind="stable")]
    labels = classes = None
    if material.labels is not None:
        texts = [str(material.labels[i]) for i in order]
        if len(set(texts)) > 1:
            labels, distinct = factorize(np.array(texts))
            classes = tuple(printable(str(text), 200) for text in distinct)
    keys = [material.keys[i] for i in order]
    names = tuple(key.name for key in keys)
    stats = None
    if material.about.images is not None:
        stats = tuple((key.size, key.time) for key in keys)
    return Rows(names, labels, classes, int(test.sum()), stats), read_blocks(material.x, order)


def read_blocks(x: Any, order: np.ndarray) -> Iterator[np.ndarray]:
    """Rows in this order as float32 blocks; refuses values whose squares overflow."""
    for part in slices(len(order), ROWS_PER_BLOCK):
        with np.errstate(over="ignore"):
            block = np.array([x[i] for i in order[part]], np.float32)
            bad = np.flatnonzero(~np.isfinite(np.square(block).sum(1)))
        if len(bad):
            what = "contains NaN, infinity or values too large to square"
            raise InputError(f"row {order[part][bad[0]]} of the embeddings {what}")
        yield block


def embed_photos(
    source: Path, folder: CodesFolder, options: Options, device: torch.device, display: Display
) -> Material:
    """The photos of a folder."""
    entries, others, test = find_photos(source)
    names, n = [entry.name for entry in entries], len(entries)
    labels: Sequence[str] | np.ndarray | None
    if options.labels is None:
        labels, origin = folder_classes(names, source), "by subfolder"
    else:
        _, column = inputs.read_labels(options.labels, np.array(names, object), n)
        labels, origin = class_labels(column), "given"
    request, earlier = options.encoder, None
    with suppress(InputError):  # nothing is there yet, or it is damaged
        earlier = folder.about().encoder
    if request.spec or earlier is None:
        encoder = open_encoder(request, device, display.note)
    else:  # as in the earlier fit
        encoder = folder.open_encoder(device, check=False, **request.given())
    path = folder.relative(source)
    about = About("photos", path, path, encoder.request)
    keys = [Key(entry.name, *file_stat(entry.path)) for entry in entries]
    sizes = describe_sizes([entry.path for entry in entries])
    parts = [
        plural(n, "photo") + (f" of {sizes} pixels" if sizes else ""),
        "no classes" if labels is None else f"{plural(len(set(labels)), 'class')} {origin}",
    ]
    if others:
        kinds = ", ".join(count_suffixes(others))
        parts.append(f"{plural(len(others), 'other file')} skipped ({kinds})")
    note = "; ".join([*parts, f"encoder {encoder.name}"])
    x = embed_missing(
        folder, encoder, keys, lambda missing: encoder.embed_files([entries[i] for i in missing]),
        display, note, fresh=options.fresh,
    )  # fmt: skip
    return Material(about, keys, x, labels, test)


def find_photos(root: Path) -> tuple[list[Entry], list[str], list[bool] | None]:
    """The N images of a folder, names of other files, and which images are in its test split."""
    entries, others = list_images(root)
    train, test = split_folders(root)
    if train == root:
        return entries, others, None
    splits = [path.name for path in (train, test) if path is not None]
    folders = [entry.name.split("/")[0] for entry in entries]
    if unused := sorted(set(folders) - set(splits)):
        shown = ", ".join(map(printable, unused[:3]))
        warnings.warn(f"only {'/, '.join(splits)}/ are used, not {shown}", stacklevel=2)
    entries = [entry for entry, folder in zip(entries, folders) if folder in splits]
    in_test = [test is not None and entry.name.startswith(f"{test.name}/") for entry in entries]
    return entries, others, in_test


def embed_missing(
    folder: CodesFolder, encoder: PhotoEncoder, keys: Sequence[Key],
    embed: Callable[[list[int]], Embedded], display: Display, note: str, *, stamp: str = "",
    fresh: bool = False,
) -> list[np.ndarray | None]:  # fmt: skip
    """Embeddings of images: known ones, and by `embed` those of the others, which are logged.

    The log is a folder with one file for every few seconds of work. `stamp` identifies the dataset
    of a run, whose keys are only numbers.
    """
    signature = encoder.request.signature
    known = {} if fresh else known_embeddings(folder, signature, stamp)
    missing = [i for i, key in enumerate(keys) if key not in known]
    before = len(keys) - len(missing)
    note += f", {encoder.features:,} numbers per image"
    note += ", averaged with mirror images" if encoder.view.mirror else ""
    display.note(note + (f"; {before:,} embedded before" if before else ""))
    new: dict[Key, np.ndarray] = {}
    failed: list[str] = []
    began = time.monotonic()
    for done, (i, found) in enumerate(zip(missing, embed(missing)), 1):
        if isinstance(found, str):
            failed.append(f"{printable(keys[i].name)} ({found})")
        else:
            new[keys[i]] = known[keys[i]] = found
        if new and (time.monotonic() - began > LOG_SECONDS or done == len(missing)):
            write_log(folder, [signature, stamp, list(new)], list(new.values()))
            new, began = {}, time.monotonic()
        display.count(done, len(missing), "embedding images")
    if failed:
        example = f"{len(failed):,} of {len(keys):,} images cannot be used, e.g. {failed[0]}"
        if len(failed) > len(keys) - 2:
            raise InputError(example)
        display.note(example)
    return [known.get(key) for key in keys]


def known_embeddings(folder: CodesFolder, signature: Any, stamp: str) -> dict[Key, np.ndarray]:
    """Embeddings from the earlier fit and from the log of a killed one.

    They must be by an encoder with the same signature, and of a dataset with the same stamp.
    """
    rows: dict[Key, np.ndarray] = {}
    try:
        if folder.about_file.exists():
            old = folder.about()
            made_by = old.encoder.signature if old.encoder else None
            if old.stamp == stamp and same_signature(made_by, signature):
                rows |= zip(folder.rows().keys(), np.asarray(folder.embeddings()))
    except InputError as error:
        warnings.warn(f"embedding again, since {error}", stacklevel=2)
    for path in sorted(folder.log.glob("*.npz")):
        # NumPy raises many types over damaged files
        with suppress(Exception), np.load(path, allow_pickle=False) as part:
            old_signature, old_stamp, keys = json.loads(str(part["about"]))
            if old_stamp == stamp and same_signature(old_signature, signature):
                rows |= zip((Key(*key) for key in keys), part["rows"])
    return rows


def write_log(folder: CodesFolder, about: list[Any], rows: list[np.ndarray]) -> None:
    """Add embeddings to the log, with the signature, the stamp and their keys."""
    with as_input_error(f"cannot write to {folder.log}"):
        folder.log.mkdir(exist_ok=True)
        path = folder.log / f"{len(list(folder.log.iterdir())):06}.npz"
        write_saved(path, np.savez, about=json.dumps(about), rows=np.stack(rows))


def read_array(
    source: Path, folder: CodesFolder, options: Options, device: torch.device, display: Display
) -> Material:
    """Embeddings from a file, with labels and names if there are any."""
    z, names, labels, columns = inputs.read_embeddings(source)
    if z.ndim == 4 or (z.ndim == 3 and z.dtype == np.uint8):
        raise InputError(f"{source} contains images {list(z.shape)}, expected embeddings [N, F]")
    if z.ndim != 2:
        raise InputError(f"{source}: embeddings must be [N, F], got shape {list(z.shape)}")
    z = as_features(z)
    n = len(z)
    if options.labels is not None:
        names, labels = inputs.read_labels(options.labels, names, n)
    labels = class_labels(labels)
    texts = [str(name) for name in (range(n) if names is None else names)]
    keys, images = [Key(printable(text, PATH_LENGTH)) for text in texts], None
    if options.images is not None:
        texts = match_images(texts, options.images, display)
        keys = [Key(name, *file_stat(options.images / name)) for name in texts]
        images = folder.relative(options.images)
    given = None if columns is None else columns.tolist()
    about = About("array", folder.relative(source), images, columns=given)
    test = None
    if "test" in inputs.array_names(source):
        test = inputs.read_arrays(source, ("test",))["test"]
        if test.shape != (n,) or test.dtype.kind == "U" or not np.isin(test, (0, 1)).all():
            got = f"{test.dtype} {list(test.shape)}"
            raise InputError(f"{source}: test must be true or false per row, [{n}], got {got}")
    count = 0 if labels is None else len(np.unique(labels))
    classes = plural(count, "class") if count > 1 else "no classes"
    display.note(f"{n:,} rows of {plural(z.shape[1], 'number')}; {classes}")
    return Material(about, keys, z, labels, test)


def match_images(names: list[str], root: Path, display: Display) -> list[str]:
    """Row names as paths below `root`; rows without names are its images in sorted order."""
    if not root.is_dir():
        raise InputError(f"--images {root}: no such folder")
    base = os.path.abspath(root) + os.sep
    names = [name.removeprefix(base) for name in names]
    missing = [name for name in names if not os.path.isfile(root / name)]
    if len(missing) == len(names) and all(name.isdigit() for name in names):
        found = [entry.name for entry in scan(root)[0]]
        if len(found) != len(names):
            raise InputError(f"--images {root}: {len(found):,} images for {len(names):,} rows")
        display.note(f"rows have no names: matching them to the sorted images of {root}")
        return found
    if missing:
        text = f"{len(missing):,} of {len(names):,} images missing, e.g. {printable(missing[0])}"
        if len(missing) == len(names):
            raise InputError(f"--images {root}: {text}")
        display.note(f"--images {root}: {text}")
    return names


def embed_run(
    source: Path, folder: CodesFolder, options: Options, device: torch.device, display: Display
) -> Material:
    """Both splits of the dataset of a run, by its backbone; the test split judges."""
    recipe = load_run(source).recipe
    encoder = open_encoder(Request(str(source), mirror=options.encoder.mirror), device)
    splits = {"train": load_split(recipe.data, "train", display.count)}
    try:
        splits["test"] = load_split(recipe.data, "test", display.count)
    except InputError as error:
        display.note(f"{error}: the training images judge")
    tree, each = recipe.to_dict(), list(splits.values())
    stamp = hash_tree([tree["data"], [fingerprint(images.pixels) for images in each]])
    about = About("run", folder.relative(source), None, encoder.request, tree, stamp)
    keys = [Key(f"{name}/{i}") for name, images in splits.items() for i in range(len(images))]
    note = f"{source}: {len(each[0]):,} training images of {recipe.data.name}"
    embed = partial(embed_splits, encoder, each)
    x = embed_missing(
        folder, encoder, keys, embed, display, note, stamp=stamp, fresh=options.fresh
    )
    classes = [(images.class_names, images.labels) for images in each if images.labels is not None]
    labels = [str(names[y] if names else y) for names, ys in classes for y in ys]
    test = [key.name.startswith("test/") for key in keys]
    return Material(about, keys, x, labels if len(labels) == len(keys) else None, test)


def embed_splits(encoder: PhotoEncoder, splits: list[Images], missing: list[int]) -> Embedded:
    """Embeddings of the images with these indices, counted through all splits."""
    first = 0
    for images in splits:
        index = [i - first for i in missing if first <= i < first + len(images)]
        for part in slices(len(index), IMAGES_PER_BATCH):
            pixels = np.asarray(images.pixels[index[part]])
            yield from encoder.embed(center_crop(pixels, encoder.view.crop))
        first += len(images)


SOURCES = {"photos": embed_photos, "array": read_array, "run": embed_run}
