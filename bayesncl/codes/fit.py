"""`bayesncl fit`: from photos, an array or a run to a folder of readable codes with a verdict.

Each kind of source is a function that returns the rows and their embeddings; the rest is shared.
A killed fit keeps its embeddings; the same command continues.
"""

from __future__ import annotations

import copy
import os
import shlex
import shutil
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from bayesncl.codes.encoders import (
    RUNS_CODE,
    Notify,
    PhotoEncoder,
    Request,
    default_request,
    find_kind,
    open_encoder,
)
from bayesncl.codes.estimator import ReadableCodes
from bayesncl.codes.factors import splits_in_two
from bayesncl.codes.folder import About, CodesFolder, Rows, encoder_dict, file_stat, hash_tree
from bayesncl.codes.names import merge_names, write_names
from bayesncl.codes.photos import (
    ROWS_PER_BLOCK,
    Batches,
    EmbeddingCache,
    embed_entries,
    find_photos,
    photo_labels,
)
from bayesncl.codes.transfer import carry_names
from bayesncl.data import load as load_split
from bayesncl.data.cache import count_suffixes
from bayesncl.data.decode import SUFFIXES, describe_sizes
from bayesncl.data.folder import scan
from bayesncl.data.images import PATH_LENGTH, Images, fingerprint, held_out, spread_evenly
from bayesncl.errors import InputError, printable
from bayesncl.inputs import (
    ENDINGS,
    array_names,
    as_features,
    class_labels,
    factorize,
    read_arrays,
    read_embeddings,
    read_labels,
)
from bayesncl.io import is_codes
from bayesncl.measure.figures import MIN_IMAGES
from bayesncl.measure.verdict import Verdict, to_dict, verdict
from bayesncl.method.features import center_crop
from bayesncl.progress import Display, duration, plural
from bayesncl.training.run_folder import RunFolder, load_run

# from MIN_ROWS rows on, a tenth is held out to judge by, at most MAX_HELD_OUT
MIN_ROWS, HELD_OUT_SHARE, MAX_HELD_OUT = 5000, 0.1, 5000
MAX_JUDGED_ROWS = 5000
MAX_NOISE_COMPONENTS = 1024  # with more, the control on noise takes minutes on a CPU
MAX_VALUE = 1e15  # of an embedding: sums of squares stay within float32
IMAGES_PER_BATCH = 512  # of a run
FACTOR_NOTE = (
    "The images split in two by something unrelated to the rest, such as a background: "
    "`--method factors` gives the rest dimensions of its own."
)
ARTICLES = {"array": "an array of embeddings", "run": "a run, which is its own encoder"}


@dataclass(frozen=True)
class Options:
    """Options of `bayesncl fit`."""

    method: str = "prototypes"
    n_components: int | None = None
    n_active: int | None = None
    seed: int = 0
    encoder: Request | None = None
    labels: Path | None = None
    images: Path | None = None
    fresh: bool = False  # embed every photo again


class Material(NamedTuple):
    """Rows to fit on, with their embeddings [N, F] in blocks."""

    about: About
    rows: Rows
    blocks: Iterator[np.ndarray]
    features: int


def fit(
    source: Path, out: Path, options: Options, device: torch.device, display: Display
) -> Verdict:
    """Fit codes into the folder `out`; returns the verdict."""
    kind = find_source(source, out)
    check_source_options(source, kind, options)
    codes = ReadableCodes(
        options.n_components or "auto", method=options.method, n_active=options.n_active,
        random_state=options.seed, device=str(device),
    )  # fmt: skip
    codes.check_options()  # before any image is read
    began, folder = time.perf_counter(), CodesFolder(out)
    staged = folder.staged
    with folder.lock():
        publish(folder, display)  # what a killed fit has left
        folder.all_names()  # a damaged names.json is refused before the work
        staged.write_rows(*SOURCES[kind](source, folder, options, device, display))
        about = staged.about()
        rows, embeddings = staged.rows(about), staged.embeddings(about)
        x = embeddings[: len(rows) - rows.held]
        if codes.fit(x, neighbors_file=folder.neighbors_file, progress=display.count).interrupted_:
            raise KeyboardInterrupt
        codes.save(staged.codes_file)
        display.busy("judging")
        found = judge(codes, embeddings, rows, options.seed)
        staged.write_verdict(to_dict(found))
        publish(folder, display)
        shutil.rmtree(folder.log, ignore_errors=True)
        folder.neighbors_file.unlink(missing_ok=True)
    display.close()
    judged = f"{rows.held:,} held-out rows" if rows.held else f"the same {len(rows):,} rows"
    what = f"{plural(codes.n_components_, 'dimension')} by {codes.method}"
    took = duration(time.perf_counter() - began)
    lines = [f"{out}: {what} in {took}; judged by {judged}:", *headlines(found)]
    print("\n".join(lines), flush=True)
    if codes.method == "prototypes" and splits_in_two(codes, x):
        display.note(FACTOR_NOTE)
    for line in next_commands(about, out):
        display.note(line, wrap=False)
    return found


def publish(folder: CodesFolder, display: Display) -> None:
    """Make complete codes in `.new` those of the folder, and move names to them."""
    if folder.staged.finished:
        keep_names(folder, folder.staged, display)
        folder.publish()


def keep_names(folder: CodesFolder, staged: CodesFolder, display: Display) -> None:
    """Add the names that move to the new codes to names.json. Those of the old codes stay in it."""
    if not folder.names_file.is_file():
        return
    try:
        names, transfer = carry_names(folder, staged)
    except InputError as error:
        display.note(f"the names were not moved to the new dimensions: {error}")
        return
    write_names(folder.names_file, merge_names([*folder.all_names(), names]))
    for line in transfer.lines():
        display.note(line)


def find_source(source: Path, out: Path) -> str:
    """``photos``, ``array`` or ``run``; InputError for anything else, or for a wrong `out`."""
    shown = printable(str(source), 300)
    if not os.path.exists(source):
        raise InputError(f"{shown}: no such folder or file, expected photos, an array or a run")
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file, expected a folder to write to")
    if Path(os.path.realpath(source)).is_relative_to(os.path.realpath(out)):
        raise InputError(f"{shown} lies in the output folder {out}: choose another -o")
    if is_codes(source):
        raise InputError(f"{shown} was written by fit: use the photos or array it was fitted on")
    ours = is_codes(out) or (out / ".new").exists()
    if out.is_dir() and not ours:
        names = [path.name for path in out.iterdir()]
        strange = [n for n in names if not n.startswith((".", "embeddings.part", "neighbors."))]
        if strange:
            what = f"it contains {printable(strange[0])}"
            raise InputError(f"{out} was not written by fit ({what}): choose another folder")
    if source.is_dir():
        run = RunFolder(source)
        return "run" if run.recipe_file.is_file() or run.weights.is_file() else "photos"
    if source.suffix.lower() in SUFFIXES:
        raise InputError(f"{shown} is one image: give a folder of images")
    if source.suffix.lower() not in ENDINGS:
        expected = f"a folder of photos, a run, or an array file ({' '.join(ENDINGS)})"
        raise InputError(f"{shown}: expected {expected}")
    return "array"


def check_source_options(source: Path, kind: str, options: Options) -> None:
    """Refuse options that do not apply to this kind of source."""
    if options.encoder is not None and kind != "photos":
        given = [k for k, v in asdict(options.encoder).items() if v not in (None, "")] or ["spec"]
        if kind == "array" or given != ["mirror"]:
            option = given[0].replace("spec", "encoder")
            raise InputError(f"--{option} applies to photos, and {source} is {ARTICLES[kind]}")
    if options.images is not None and kind != "array":
        raise InputError(f"--images applies to an array of embeddings, and {source} is a folder")
    if options.fresh and kind != "photos":
        raise InputError(f"--fresh applies to photos, and {source} is {ARTICLES[kind]}")
    if options.labels is not None and kind == "run":
        raise InputError("--labels does not apply to a run: its dataset has labels")


def embed_photos(
    source: Path, folder: CodesFolder, options: Options, device: torch.device, display: Display
) -> Material:
    """Embed the photos of a folder that have no embedding yet."""
    photos = find_photos(source, folder.folder)
    n = len(photos)
    if n < 2:
        raise InputError(f"{source}: only one photo; codes need several")
    labels = photo_labels(photos, options.labels)
    encoder = choose_encoder(folder, options, device, display)
    keys = [(name, *stat) for name, stat in zip(photos.names, photos.stats)]
    cache = EmbeddingCache(keys, encoder, folder)
    if options.fresh:
        cache.found.clear()
    missing = cache.missing
    held = int(hold_out(photos.names, photos.test).sum())
    classes = len(set(labels or ()))
    others = ", ".join(count_suffixes(photos.others))
    sizes = describe_sizes([entry.path for entry in photos.entries])
    embedded = "" if len(missing) == n else f" ({n - len(missing):,} embedded before)"
    parts = [
        plural(n, "photo") + embedded + (f" of {sizes} pixels" if sizes else ""),
        f"{plural(classes, 'class')} {'given' if options.labels else 'by subfolder'}"
        if labels else "no classes",
        f"{plural(len(photos.others), 'other file')} skipped ({others})" if others else "",
        describe(encoder),
        f"{held:,} held out to judge by" if held else "",
    ]  # fmt: skip
    display.note("; ".join(filter(None, parts)))
    batches = embed_entries([photos.entries[i] for i in missing], encoder)
    cache.embed(missing, batches, display.count)
    display.close()
    usable, failures = cache.usable(), cache.failures()
    if failures:
        example = f"{printable(failures[0][0])} ({printable(str(failures[0][3]))})"
        if len(usable) < 2:
            raise InputError(f"{source}: {len(usable)} of {n} photos can be used, e.g. {example}")
        display.note(f"{len(failures):,} of {n:,} photos cannot be used, e.g. {example}")
    in_test = None if photos.test is None else photos.test[usable]
    test = hold_out([photos.names[i] for i in usable], in_test)
    order = usable[np.argsort(test, kind="stable")]
    rows = Rows(
        names=tuple(photos.names[i] for i in order),
        **as_classes(None if labels is None else [labels[i] for i in order]),
        held=int(test.sum()),
        stats=tuple(photos.stats[i] for i in order),
        broken=tuple(each for each in failures if isinstance(each[3], str)),  # type: ignore[misc]
    )
    path = folder.relative(source)
    about = About("photos", path, path, encoder_dict(encoder))
    return Material(about, rows, cache.blocks(order), encoder.features)


def read_array(
    source: Path, folder: CodesFolder, options: Options, device: torch.device, display: Display
) -> Material:
    """Embeddings from a file, with labels and names if there are any."""
    z, names, labels = read_embeddings(source)
    if z.ndim == 4 or (z.ndim == 3 and z.dtype == np.uint8):
        raise InputError(f"{source} contains images {list(z.shape)}, expected embeddings [N, F]")
    z = as_features(z)
    n = len(z)
    if n < 2:
        raise InputError(f"{source}: only one row; codes need several")
    if options.labels is not None:
        names, labels = read_labels(options.labels, names, n)
    labels = class_labels(labels)
    texts = [str(name) for name in (range(n) if names is None else names)]
    stats = None
    if options.images is not None:
        texts = match_images(texts, options.images, display.note)
        stats = [file_stat(options.images / name) for name in texts]
    else:
        texts = [printable(text, PATH_LENGTH) for text in texts]
    own = read_arrays(source, ("test",)).get("test") if "test" in array_names(source) else None
    if own is not None and own.shape != (n,):
        raise InputError(f"{source}: test must be [{n}], one per row, got {list(own.shape)}")
    test = hold_out(texts, None if own is None else own.astype(bool))
    order = np.argsort(test, kind="stable")
    rows = Rows(
        names=tuple(texts[i] for i in order),
        **as_classes(None if labels is None else [str(labels[i]) for i in order]),
        held=int(test.sum()),
        stats=None if stats is None else tuple(stats[i] for i in order),
    )
    classes = plural(len(rows.class_names), "class") if rows.class_names else "no classes"
    held = f"; {rows.held:,} held out to judge by" if rows.held else ""
    display.note(f"{n:,} rows of {plural(z.shape[1], 'number')}; {classes}{held}")
    images = None if options.images is None else folder.relative(options.images)
    about = About("array", folder.relative(source), images)
    return Material(about, rows, checked_blocks(z, order), z.shape[1])


def embed_run(
    source: Path, folder: CodesFolder, options: Options, device: torch.device, display: Display
) -> Material:
    """Embed both splits of the dataset of a run with its backbone; the test split judges."""
    recipe = load_run(source).recipe
    mirror = options.encoder.mirror if options.encoder else None
    encoder = open_encoder(Request(str(source), mirror=mirror), device)
    splits = [load_split(recipe.data, "train", display.count)]
    try:
        splits.append(load_split(recipe.data, "test", display.count))
    except InputError as error:
        display.note(f"{error}: the training images judge")
    content = [recipe.to_dict()["data"], [fingerprint(images.pixels) for images in splits]]
    stamp = hash_tree(content)
    parts = list(zip(("train", "test"), splits))
    names = [f"{split}/{i}" for split, images in parts for i in range(len(images))]
    cache = EmbeddingCache([(n, 0, 0) for n in names], encoder, folder, stamp)
    missing = cache.missing
    display.close()
    known = f" ({len(names) - len(missing):,} embedded before)" if len(missing) < len(names) else ""
    what = f"{len(splits[0]):,} training images of {recipe.data.name}{known}"
    display.note(f"{source}: {what}; {describe(encoder)}")
    cache.embed(missing, embed_splits(encoder, splits, missing), display.count)
    display.close()
    labels = [images.labels for images in splits if images.labels is not None]
    classes = splits[0].class_names
    values = [str(classes[i]) if classes else str(i) for part in labels for i in part]
    held = sum(map(len, splits[1:]))
    labeled = len(labels) == len(splits)
    rows = Rows(tuple(names), **as_classes(values if labeled else None), held=held)
    about = About(
        "run", folder.relative(source), None, encoder_dict(encoder), recipe.to_dict(), stamp
    )
    return Material(about, rows, cache.blocks(np.arange(len(names))), encoder.features)


def embed_splits(
    encoder: PhotoEncoder, splits: Sequence[Images], missing: Sequence[int]
) -> Batches:
    """Embeddings of the images with these indices, counted through all splits, in batches."""
    first = 0
    for images in splits:
        index = np.array([i - first for i in missing if first <= i < first + len(images)], int)
        for start in range(0, len(index), IMAGES_PER_BATCH):
            pixels = np.asarray(images.pixels[index[start : start + IMAGES_PER_BATCH]])
            rows = encoder.embed(center_crop(pixels, encoder.view.crop))
            yield rows, [None] * len(rows)
        first += len(images)


Source = Callable[[Path, CodesFolder, Options, torch.device, Display], Material]
SOURCES: dict[str, Source] = {"photos": embed_photos, "array": read_array, "run": embed_run}


def describe(encoder: PhotoEncoder) -> str:
    """An encoder in a few words."""
    mirrored = ", averaged with mirror images" if encoder.view.mirror else ""
    return f"encoder {encoder.name}, {encoder.features:,} numbers per image{mirrored}"


def match_images(names: list[str], root: Path, notify: Notify) -> list[str]:
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
        notify(f"rows have no names: matching them to the sorted images of {root}")
        return found
    if missing:
        text = f"{len(missing):,} of {len(names):,} images missing, e.g. {printable(missing[0])}"
        if len(missing) == len(names):
            raise InputError(f"--images {root}: {text}")
        notify(f"--images {root}: {text}")
    return names


def hold_out(names: Sequence[str], test: np.ndarray | None) -> np.ndarray:
    """Rows to judge by, bool [N]: the test split, or a tenth of 5,000 rows or more."""
    if test is not None and test.any() and not test.all():
        return test
    share = min(HELD_OUT_SHARE, MAX_HELD_OUT / len(names)) if len(names) >= MIN_ROWS else 0.0
    return held_out(names, share, 0)


def as_classes(values: Sequence[str] | None) -> dict[str, Any]:
    """Labels and class names for `Rows`; None where all labels are the same."""
    if values is None or len(set(values)) < 2:
        return {"labels": None, "class_names": None}
    index, names = factorize(np.array(values, dtype=object).astype(str))
    return {"labels": index, "class_names": tuple(printable(str(name), 200) for name in names)}


def checked_blocks(z: np.ndarray, order: np.ndarray) -> Iterator[np.ndarray]:
    """Rows as float32 blocks; refuses values that overflow float32 when squared."""
    for start in range(0, len(order), ROWS_PER_BLOCK):
        rows = order[start : start + ROWS_PER_BLOCK]
        block = np.asarray(z[rows])
        good = (np.abs(block.astype(np.float64)) <= MAX_VALUE).all(1)
        if not good.all():
            row = int(rows[np.flatnonzero(~good)[0]])
            raise InputError(f"row {row} contains NaN, infinity or a value above {MAX_VALUE:g}")
        yield block.astype(np.float32)


def choose_encoder(
    folder: CodesFolder, options: Options, device: torch.device, display: Display
) -> PhotoEncoder:
    """The requested encoder, else the one of an earlier fit, else the default."""
    request = options.encoder
    if request is not None and request.spec:
        return open_encoder(request, device, display.note)
    given = {} if request is None else {
        name: value for name, value in asdict(request).items() if value not in (None, "")
    }
    used = None
    with suppress(InputError):  # nothing is there yet, or it is damaged
        used = folder.about().encoder
    if used is not None:
        return folder.open_encoder(device, check=False, **given)
    return open_encoder(replace(default_request(display.note), **given), device, display.note)


def judged_rows(rows: Rows) -> np.ndarray:
    """Indices of the rows to judge by: held-out rows, or all; at most 5,000, spread evenly."""
    train = len(rows) - rows.held
    first, count = (train, rows.held) if rows.held else (0, train)
    return first + spread_evenly(count, MAX_JUDGED_ROWS)


def judging_data(
    codes: ReadableCodes, embeddings: np.ndarray, rows: Rows
) -> tuple[np.ndarray, np.ndarray | None, dict[str, Any]]:
    """Codes [N, D] and labels [N] of the rows to judge by, and further arguments of `figures`.

    These are the held-out rows, or all; at most 5,000, spread evenly. The control is an untrained
    head. Without labels there is also a control on noise: a verdict without labels flatters codes
    of few rows.
    """
    train = len(rows) - rows.held
    count, chosen = rows.held or train, judged_rows(rows)
    x = np.asarray(embeddings[chosen])
    labels = None if rows.labels is None else rows.labels[chosen]
    if labels is not None and len(np.unique(labels)) < 2:
        labels = None
    control = untrained(codes, embeddings[:train]).transform(x)
    given = {"label_names": rows.class_names, "embeddings": x, "control": control}
    if labels is None and count >= MIN_IMAGES and codes.n_components_ <= MAX_NOISE_COMPONENTS:
        fitted = embeddings[spread_evenly(train, MAX_JUDGED_ROWS)] if rows.held else None
        given["noise"] = fit_noise(codes, x, fitted)
    return copy.copy(codes).set_params(sparse_output=False).transform(x), labels, given


def judge(codes: ReadableCodes, embeddings: np.ndarray, rows: Rows, seed: int) -> Verdict:
    """The verdict on codes: by labels if there are any, else by the embeddings."""
    z, labels, given = judging_data(codes, embeddings, rows)
    return verdict(z, labels, **given, seed=seed)


def fit_noise(
    codes: ReadableCodes, x: np.ndarray, fitted: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Codes and rows of noise: x with each column shuffled; fitted on other such rows if given."""
    rows = x if fitted is None else np.concatenate([x, fitted])
    noise = np.random.default_rng(0).permuted(rows, axis=0)
    judged = noise[: len(x)]
    head = ReadableCodes(
        codes.n_components_, method=codes.method, n_active=codes.n_active,
        random_state=codes.random_state, device=codes.device,
    )  # fmt: skip
    if head.fit(judged if fitted is None else noise[len(x) :]).interrupted_:
        raise KeyboardInterrupt
    return head.transform(judged), judged


def untrained(codes: ReadableCodes, x: np.ndarray) -> ReadableCodes:
    """The head from which these codes started, if x [N, F] are the rows they were fitted on."""
    start = {"n_components": codes.n_components_, "max_iter": 0, "positives": "self"}
    options = codes.get_params() | start | {"sparse_output": False}
    return ReadableCodes(**options).fit(x)


def headlines(found: Verdict) -> list[str]:
    """The four most important lines of a verdict, wrapped."""
    lines = [line for line in found.lines if line.value is not None or line.key == "collapsed"]
    texts = [line.text for line in lines if line.key != "dense"]  # as prototypes always are
    fill = partial(textwrap.fill, width=80, initial_indent="- ", subsequent_indent="  ")
    return [fill(text) for text in texts[:4]]


def next_commands(about: About, out: Path) -> list[str]:
    """Commands to continue with, ready to copy."""
    path = shlex.quote(str(out))
    has_images = about.kind != "array" or about.images is not None
    browse = f"bayesncl atlas {path} --serve" if has_images else "fit again with --images DIR"
    if about.encoder is None:
        other = f"codes of other rows:     bayesncl embed {path} FILE.npy -o codes.csv"
    else:
        spec = about.encoder["spec"]
        again = f" --encoder {shlex.quote(spec)}" if find_kind(spec) in RUNS_CODE else ""
        other = f"codes of other photos:   bayesncl embed {path} PHOTOS -o codes.csv{again}"
    return [f"browse the dimensions:   {browse}", other]
