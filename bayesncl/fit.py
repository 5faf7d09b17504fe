"""`bayesncl fit`: from photos, an array or a run to a folder of readable codes, and how good these are.

Each kind of source is a function that brings its embeddings into the folder, unless they are there; the rest is the
same for all. A fit that was stopped resumes where it was: photos that are embedded stay so, and so does the head.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import shlex
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from . import distributed
from .arrays import ENDINGS, as_features, check_room, read_embeddings
from .codes import ReadableCodes, choose_batch, choose_dim, choose_steps
from .codes_folder import About, CodesFolder, Rows, encoder_dict, mark
from .data import load as load_split
from .data.cache import count_kinds
from .data.decode import SUFFIXES, sizes_in_words
from .data.folder import scan
from .data.images import PATH_LENGTH, Images, fingerprint, held_out, spread_evenly
from .encoders import RUNS_CODE, PhotoEncoder, Request, Say, default_request, find_kind, open_encoder
from .errors import InputError, or_refuse, printable
from .evaluate import measure_features
from .features import centre_crop
from .files import digest, is_codes
from .labels import class_labels, read_labels
from .measure.readable import FEW_IMAGES
from .measure.result import Result, to_json
from .measure.verdict import DENSELY, Verdict, to_dict, verdict
from .model import load_run
from .photos import BLOCK, Embedded, find_photos, photo_labels
from .progress import Display, plural, words
from .run import Run
from .shelf import BadCheckpoint

HOLD_FROM, SHARE, MOST_HELD = 5000, 0.1, 5000  # rows from which some are held out, and how many
MOST_JUDGED = 5_000  # rows; more say little more
MOST_NOISE = 1024  # dimensions; with more, noise takes minutes to fit on a CPU, and the verdict flatters many rows less
LARGEST = 1e15  # of an embedding: its square, summed over rows, is within float32
BATCH = 512  # images of a run that are embedded at a time
TRIED = 8  # photos embedded to tell how long the rest will take
FIT_PACE = 2e10  # products a second of one thread while a head is trained
GPU_PACE = 1e12, 1.5e13  # of an H200, while a head is trained and while neighbours are searched


@dataclass(frozen=True)
class Options:
    """What can be chosen about a fit; see `bayesncl fit --help`."""

    method: str = "prototypes"
    dim: int | None = None
    keep: int | None = None
    seed: int = 0
    encoder: Request | None = None
    labels: Path | None = None
    images: Path | None = None


def fit(source: Path, out: Path, options: Options, device: torch.device, display: Display) -> Verdict | None:
    """Fit codes of a source into the folder `out`, and say what was found: a verdict, on the first process alone."""
    kind = find_source(source, out, options)
    folder = CodesFolder(out)
    codes = ReadableCodes(options.dim or "auto", options.method, options.keep, options.seed, device=str(device))
    codes._check_options()  # before any photo is read
    distributed.start()
    began = time.perf_counter()
    with folder.lock():
        if distributed.rank() == 0:
            SOURCES[kind](source, folder, options, device, display)
        distributed.barrier()
        about = folder.about()
        rows, embeddings = folder.rows(about), folder.embeddings(about)
        x = embeddings[: len(rows) - rows.held]
        unjudged = _unjudged(codes, x, folder)
        distributed.barrier()  # all have looked before the first writes
        codes = unjudged or codes
        if unjudged is None:
            _train(codes, x, folder, display)
        first = distributed.rank() == 0
        if first:
            for old in (folder.verdict_file, folder.evaluation_file):  # of codes that are replaced
                folder.inside(old).unlink(missing_ok=True)
            codes.save(folder.inside(folder.codes_file))
            display.busy("judging")
        found = judge(codes, embeddings, rows, options.seed)  # by all, since all fit noise
        if first:
            folder.write(folder.verdict_file, to_json(to_dict(found)))
        distributed.barrier()
        distributed.stop()  # one that is still in a group when it ends is taken for lost by the others
    display.close()
    if not first:
        return None
    by = f"{rows.held:,} held-out" if rows.held else f"the same {len(rows):,}"
    seconds = time.perf_counter() - began
    display.note(f"{out}: {codes.dim_:,} dimensions by {codes.method} in {words(seconds)}; judged by {by} rows:")
    for text in headlines(found):
        display.note(text)
    for text in next_commands(about, out):
        display.note(text, wrap=False)
    return found


def find_source(source: Path, out: Path, options: Options) -> str:
    """``photos``, ``array`` or ``run``; InputError for anything else, and for options that do not go with it."""
    shown = printable(str(source), 300)
    with or_refuse(shown):
        there, is_folder = source.exists(), source.is_dir()
    if not there:
        raise InputError(f"{shown}: no such folder or file, expected photos, an array or a run")
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: a file, expected a folder to write to")
    if Path(os.path.realpath(source)).is_relative_to(os.path.realpath(out)):
        raise InputError(f"{shown} is, or lies in, the folder -o {out}, which fit writes: choose another folder")
    if is_folder and is_codes(source):
        raise InputError(f"{shown} was written by fit: give it the photos or the array that it was fitted on")
    run = Run(source)
    if is_folder:
        kind = "run" if run.recipe_file.is_file() or run.weights.is_file() else "photos"
    elif source.suffix.lower() in SUFFIXES:
        raise InputError(f"{shown}: one image; codes are read from many: give its folder")
    elif source.suffix.lower() in ENDINGS:
        kind = "array"
    else:
        raise InputError(f"{shown}: expected a folder of photos, a run, or an array file ({' '.join(ENDINGS)})")
    asked = options.encoder
    if asked is not None and kind != "photos":
        given = [name for name, value in asdict(asked).items() if value not in (None, "")] or ["spec"]
        if kind == "array" or given != ["mirror"]:
            what = "an array of embeddings" if kind == "array" else "a run, which is its own encoder"
            raise InputError(f"--{given[0].replace('spec', 'encoder')} is for photos; {shown} is {what}")
    if options.images is not None and kind != "array":
        raise InputError(f"--images goes with an array of embeddings; {shown} is a folder")
    if options.labels is not None and kind == "run":
        raise InputError("--labels does not go with a run, whose data set has its own")
    known = CodesFolder(out)
    if out.is_dir() and not known.about_file.exists() and not known.log.exists():
        # codes.json is missing while new rows take the place of old ones
        ours = vars(known).values() if known.rows_file.exists() else ()
        if strange := [path.name for path in out.iterdir() if path not in ours and not path.name.startswith(".")]:
            raise InputError(f"{out} was not written by fit (it has {printable(strange[0])}): choose another folder")
    return kind


def take_photos(source: Path, folder: CodesFolder, options: Options, device: torch.device, display: Display) -> None:
    """Embed the photos of a folder that are not embedded yet."""
    pile = find_photos(source, folder.folder)
    if len(pile) < 2:
        raise InputError(f"{source}: one photo only; codes are read from what photos have in common")
    labels = photo_labels(pile, options.labels)
    encoder = _choose_encoder(folder, options, device, display)
    made = Embedded(pile, encoder, folder)
    todo = made.todo
    began = time.perf_counter()
    made.embed(todo[:TRIED])
    left = (time.perf_counter() - began) * max(0, len(todo) / TRIED - 1)
    n, classes = len(pile), len(set(labels or ()))
    kept = int(hold_out(pile.names, pile.test).sum())
    how = "given" if options.labels else "by subfolder"
    sizes, kinds = sizes_in_words([entry.path for entry in pile.entries]), ", ".join(count_kinds(pile.others))
    parts = [
        f"{plural(n, 'photo')}{'' if len(todo) == n else f' ({n - len(todo):,} known already)'}"
        + (f" of {sizes} pixels" if sizes else ", none of those looked at can be read"),
        f"{classes:,} classes {how}" if classes > 1 else "no classes" if labels is None else "one class only",
        f"{plural(len(pile.others), 'other file')} skipped ({kinds})" if kinds else "",
        f"encoder {encoder.name}, {encoder.features:,} numbers a photo"
        + (" and its mirror image" if encoder.view.mirror else ""),
        _outlook(n - kept, kept, encoder.features, options, device, left),
    ]
    display.note("; ".join(filter(None, parts)))
    made.embed(todo[TRIED:], display.count)
    display.close()
    usable, broken = made.usable()
    if broken:
        name, why = printable(broken[0][0]), printable(broken[0][3])
        count = f"{plural(len(broken), 'photo')} of {n:,}"
        display.note(f"{count} cannot be used and {'is' if len(broken) == 1 else 'are'} left out, e.g. {name} ({why})")
    if len(usable) < 2:
        some = "only one" if len(usable) else "none"
        raise InputError(f"{source}: {some} of the {n} photos can be used, e.g. {printable(broken[0][3], 200)}")
    held = hold_out([pile.names[i] for i in usable], None if pile.test is None else pile.test[usable])
    order = usable[np.argsort(held, kind="stable")]
    rows = Rows(
        names=tuple(pile.names[i] for i in order),
        **_factorise(None if labels is None else [labels[i] for i in order]),
        held=int(held.sum()),
        marks=tuple(pile.marks[i] for i in order),
        broken=tuple(broken),
    )
    place = folder.relative(source)
    about = About("photos", place, place, encoder_dict(encoder))
    _put(folder, about, rows, made.blocks(order), encoder.features)
    made.log.remove()


def take_array(source: Path, folder: CodesFolder, options: Options, device: torch.device, display: Display) -> None:
    """Copy embeddings from a file, with labels and names where there are any."""
    z, names, labels = read_embeddings(source)
    if z.ndim == 4 or (z.ndim == 3 and z.dtype == np.uint8):
        raise InputError(f"{source} holds images {list(z.shape)}: fit takes a folder of photos, or embeddings [N, F]")
    z = as_features(z)
    n = len(z)
    if n < 2:
        raise InputError(f"{source}: one row only; codes are read from what rows have in common")
    if options.labels is not None:
        names, labels = read_labels(options.labels, names, n)
    labels = class_labels(labels)
    check_room(400 * n, f"{source}: names of {n:,} rows")
    texts = [str(i) for i in range(n)] if names is None else [str(name) for name in names]
    if options.images is not None:
        texts = match_images(texts, options.images, display.note)
    held = hold_out(texts, None)
    order = np.argsort(held, kind="stable")
    rows = Rows(
        names=tuple(printable(texts[i], PATH_LENGTH) if options.images is None else texts[i] for i in order),
        **_factorise(None if labels is None else [str(labels[i]) for i in order]),
        held=int(held.sum()),
        marks=None if options.images is None else tuple(mark(options.images / texts[i]) for i in order),
    )
    known = "no labels" if labels is None else "one class only"
    classes = f"{len(rows.class_names):,} classes" if rows.class_names else known
    named = "no names" if names is None else "names"
    outlook = _outlook(n - rows.held, rows.held, z.shape[1], options, device)
    display.note(f"{n:,} rows of {z.shape[1]:,} numbers; {classes}, {named}; {outlook}")
    images = None if options.images is None else folder.relative(options.images)
    about = About("array", folder.relative(source), images, mark=json.dumps(mark(source)))
    _put(folder, about, rows, _sane(z, order), z.shape[1])


def match_images(names: list[str], root: Path, say: Say) -> list[str]:
    """Names of rows as paths below `root`, checked; for numbers of rows its images in the order of their names."""
    if not root.is_dir():
        raise InputError(f"--images {root}: no such folder")
    base = os.path.abspath(root) + os.sep
    names = [name.removeprefix(base) for name in names]
    missing = [name for name in names if not os.path.isfile(root / name)]  # which takes names of any length
    if len(missing) == len(names) and all(name.isdigit() for name in names):
        found = [entry.name for entry in scan(root)[0]]
        if len(found) != len(names):
            raise InputError(f"--images {root}: {len(found):,} images for {len(names):,} rows without names")
        say(f"rows have no names: taken to be the images of {root} in the order of their names")
        return found
    if len(missing) == len(names):
        raise InputError(f"--images {root}: none of the {len(names):,} images is there, e.g. {printable(missing[0])}")
    if missing:
        say(f"--images {root}: {len(missing):,} of {len(names):,} images are not there, e.g. {printable(missing[0])}")
    return names


def take_run(source: Path, folder: CodesFolder, options: Options, device: torch.device, display: Display) -> None:
    """Take h of both splits of the data set of a run; the test split judges."""
    recipe = load_run(source).recipe
    asked = options.encoder.mirror if options.encoder else None
    encoder = open_encoder(Request(str(source), mirror=asked), device)
    splits = [load_split(recipe.data, "train", display.count)]
    try:
        splits.append(load_split(recipe.data, "test", display.count))
    except InputError as error:
        display.note(f"{error}: codes are judged by the training images")
    seen = [recipe.to_dict()["data"], [fingerprint(images.pixels) for images in splits]]
    stamp = hashlib.blake2b(json.dumps(seen, sort_keys=True).encode(), digest_size=16).hexdigest()
    train, held = len(splits[0]), sum(map(len, splits[1:]))
    what = f"{train:,} training images of {recipe.data.name}, {encoder.features:,} numbers an image"
    what += " and its mirror image" if encoder.view.mirror else ""
    display.close()
    display.note(f"{source}: {what}; {_outlook(train, held, encoder.features, options, device)} after embedding")
    labels = [images.labels for images in splits if images.labels is not None]
    classes = splits[0].class_names
    values = [str(classes[i]) if classes else str(i) for part in labels for i in part]
    names = [f"{split}/{i}" for split, images in zip(("train", "test"), splits) for i in range(len(images))]
    rows = Rows(tuple(names), **_factorise(values if len(labels) == len(splits) else None), held=held)
    about = About("run", folder.relative(source), None, encoder_dict(encoder), recipe.to_dict(), stamp)
    if not _put(folder, about, rows, embed_splits(encoder, splits, display), encoder.features):
        display.note(f"{len(rows):,} embeddings of {source} are here already")


def embed_splits(encoder: PhotoEncoder, splits: Sequence[Images], display: Display) -> Iterator[np.ndarray]:
    """h of all images, block by block, as the encoder gives it for photos."""
    done, n = 0, sum(map(len, splits))
    for images in splits:
        for start in range(0, len(images), BATCH):
            pixels = centre_crop(np.array(images.pixels[start : start + BATCH]), encoder.view.crop)
            yield encoder.embed(pixels)
            done += len(pixels)
            display.count(done, n, "features")
    display.close()


Source = Callable[[Path, CodesFolder, Options, torch.device, Display], None]
SOURCES: dict[str, Source] = {"photos": take_photos, "array": take_array, "run": take_run}


def hold_out(names: Sequence[str], test: np.ndarray | None) -> np.ndarray:
    """Which rows are kept for judging, bool [N]: a test split, or a tenth of 5,000 rows or more, at most 5,000."""
    if test is not None and test.any() and not test.all():
        return test
    share = min(SHARE, MOST_HELD / len(names)) if len(names) >= HOLD_FROM else 0.0
    return held_out(names, share, 0)


def gather(
    codes: ReadableCodes, embeddings: np.ndarray, rows: Rows
) -> tuple[np.ndarray, np.ndarray | None, dict[str, Any]]:
    """Codes [N, D] and labels [N] of the rows to judge by, and what else is known of them: see `readable.figures`.

    The rows are those held out, or all; at most 5,000, spread evenly. Labels of one class only are none. The control is
    an untrained head. Without labels the same is done with noise, for such a verdict flatters codes of few rows, most
    of all on the rows they were fitted to.
    """
    train = len(rows) - rows.held
    first, count = (train, rows.held) if rows.held else (0, train)
    chosen = first + spread_evenly(count, MOST_JUDGED)
    x = np.asarray(embeddings[chosen])
    control = _untrained(codes, embeddings[:train]).transform(x)
    labels = None if rows.labels is None or len(np.unique(rows.labels[chosen])) < 2 else rows.labels[chosen]
    z = copy.copy(codes).set_params(sparse_output=False).transform(x)
    given = {"label_names": rows.class_names, "embeddings": x, "control": control}
    if count >= FEW_IMAGES and codes.dim_ <= MOST_NOISE and labels is None:
        given["noise"] = _noise(codes, x, embeddings[spread_evenly(train, MOST_JUDGED)] if rows.held else None)
    return z, labels, given


def judge(codes: ReadableCodes, embeddings: np.ndarray, rows: Rows, seed: int) -> Verdict:
    """The verdict on codes, beside an untrained head; by labels where there are any, else by the embeddings."""
    z, labels, given = gather(codes, embeddings, rows)
    return verdict(z, labels, **given, seed=seed)


def measure_codes(folder: Path, **options: Any) -> Result:
    """Every measure of a folder of codes, and the verdict on them; see `measure_features` for the options."""
    here = CodesFolder(folder)
    about = here.about()
    codes, rows = here.codes(), here.rows(about)
    z, labels, given = gather(codes, here.embeddings(about), rows)
    result = measure_features(z, labels, **options, **given)
    judged_by = "held out" if rows.held else "fitted on"
    result.parameters = {"codes": str(folder), "method": codes.method, "judged_by": judged_by} | result.parameters
    return result


def headlines(found: Verdict) -> list[str]:
    """The four most important lines of a verdict, wrapped."""
    lines = [line.text for line in found.lines if line.value is not None or line.text.startswith("Collapsed")]
    lines = [text for text in lines if not text.startswith(DENSELY)]  # as prototypes always do
    return [textwrap.fill(text, 80, initial_indent="- ", subsequent_indent="  ") for text in lines[:4]]


def next_commands(about: About, out: Path) -> list[str]:
    """What to do next, as commands that can be copied."""
    place = shlex.quote(str(out))
    seen = about.kind != "array" or about.images is not None
    how = f"bayesncl atlas {place} --serve" if seen else "fit again with --images DIR, the folder of the images"
    if about.encoder is None:
        other = f"codes of other rows:     bayesncl embed {place} FILE.npy -o codes.csv"
    else:
        spec = about.encoder["spec"]
        again = f" --encoder {shlex.quote(spec)}" if find_kind(spec) in RUNS_CODE else ""
        other = f"codes of other photos:   bayesncl embed {place} PHOTOS -o codes.csv{again}"
    return [f"see what they mean:      {how}", other]


def _noise(codes: ReadableCodes, x: np.ndarray, fitted: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Codes and rows of noise that has the columns of x, each shuffled; fitted to others where such are given."""
    rows = x if fitted is None else np.concatenate([x, fitted])
    noise = np.random.default_rng(0).permuted(rows, axis=0)
    judged = noise[: len(x)]
    # what `fit` leaves to choose is chosen anew: codes may be a stranger's, and ask for any number of steps
    head = ReadableCodes(codes.dim_, codes.method, codes.keep, codes.random_state, device=codes.device)
    if head.fit(judged if fitted is None else noise[len(x) :]).interrupted_:
        raise KeyboardInterrupt
    return head.transform(judged), judged


def _untrained(codes: ReadableCodes, x: np.ndarray) -> ReadableCodes:
    """The head that these codes began from, if x [N, F] is what they were fitted on."""
    begun = {"dim": codes.dim_, "steps": 0, "positives": "self", "sparse_output": False}
    return ReadableCodes(**codes.get_params() | begun).fit(x)


def _unjudged(codes: ReadableCodes, x: np.ndarray, folder: CodesFolder) -> ReadableCodes | None:
    """Codes that were fitted here on x by the same options and were not judged: who stopped that is spared the fit."""
    if not folder.verdict_file.exists():
        with contextlib.suppress(InputError):  # there are no codes, or damaged ones
            found = folder.codes(str(codes.device))
            same = not found.interrupted_ and found.get_params() == codes.get_params()
            if same and digest(found.moments_._asdict()) == digest(_untrained(found, x).moments_._asdict()):
                return found
    return None


def _train(codes: ReadableCodes, x: np.ndarray, folder: CodesFolder, display: Display) -> None:
    """Fit, from the checkpoint of one that was stopped if it is of the same rows and options."""
    path = folder.inside(folder.checkpoint)
    try:
        codes.fit(x, checkpoint=path, progress=display.count)
    except BadCheckpoint:
        path.unlink(missing_ok=True)
        codes.fit(x, checkpoint=path, progress=display.count)
    display.close()
    if codes.interrupted_:
        distributed.stop()
        raise KeyboardInterrupt


def _choose_encoder(folder: CodesFolder, options: Options, device: torch.device, display: Display) -> PhotoEncoder:
    """The encoder asked for, else the one used here before, else the default."""
    request = options.encoder
    if request is None or not request.spec:
        given = {k: v for k, v in asdict(request).items() if v is not None and k != "spec"} if request else {}
        used = None
        with contextlib.suppress(InputError):  # nothing is here yet, or it is damaged
            used = folder.about().encoder
        if used is not None:
            return folder.open_encoder(device, **given)
        request = replace(default_request(display.note), **given)
    return open_encoder(request, device, display.note)


def _put(folder: CodesFolder, about: About, rows: Rows, blocks: Iterator[np.ndarray], features: int) -> bool:
    """Write rows and take their blocks, unless these very rows are there; tells whether it did.

    Codes of another encoder's embeddings, or of another file, go.
    """
    try:
        old = folder.about()
        same = vars(replace(old, embeddings={})) == json.loads(json.dumps(vars(about)))  # where tuples are lists
        if same and folder.rows(old).to_json() == rows.to_json():
            folder.embeddings(old)
            return False
        changed = (old.fingerprint, old.embeddings.get("features")) != (about.fingerprint, features)
        changed = changed or (about.kind == "array" and (old.source, old.mark) != (about.source, about.mark))
    except InputError as error:
        changed = True
        if about.kind == "run" and folder.about_file.exists():  # of photos it was said
            warnings.warn(f"embeddings are made again: {error}", stacklevel=2)
    folder.put_rows(about, rows, blocks, features, [folder.codes_file] if changed else ())
    return True


def _factorise(values: Sequence[str] | None) -> dict[str, Any]:
    """Labels as numbers and their names; nothing where all are the same."""
    if values is None or len(set(values)) < 2:
        return {"labels": None, "class_names": None}
    names, index = np.unique(np.array(values, dtype=object).astype(str), return_inverse=True)
    return {"labels": index.astype(np.int64), "class_names": tuple(printable(str(name), 200) for name in names)}


def _sane(z: np.ndarray, order: np.ndarray) -> Iterator[np.ndarray]:
    """Rows as float32, block by block; those whose products float32 cannot hold are refused."""
    largest = 0.0
    for start in range(0, len(order), BLOCK):
        rows = order[start : start + BLOCK]
        block = np.asarray(z[rows])
        sizes = np.abs(block.astype(np.float64))
        if not (sizes <= LARGEST).all():
            row = int(rows[np.flatnonzero(~(sizes <= LARGEST).all(1))[0]])
            raise InputError(f"embeddings must be finite numbers up to {LARGEST:g}, row {row} is not: leave it out")
        largest = max(largest, float(sizes.max()))
        yield block.astype(np.float32)
    if largest < 1 / LARGEST:
        raise InputError(f"all embeddings are below {1 / LARGEST:g}: multiply them by a number")


def _outlook(n: int, held: int, features: int, options: Options, device: torch.device, before: float = 0.0) -> str:
    """Rows held out, and a guess at the time for fitting n others and judging, `before` seconds of other work added."""
    dim = options.dim or choose_dim(max(n, 2))
    batch = choose_batch(max(n, 2), dim)
    products = 128 * (features + dim) if options.method == "prototypes" else features * dim
    training, search = 12 * choose_steps(max(n, 2), batch) * batch * products, n * n * features
    if device.type == "cuda":
        seconds, where = 5 + training / GPU_PACE[0] + search / GPU_PACE[1], "on the GPU"
    else:
        seconds, where = 3 + (training + search) / (FIT_PACE * torch.get_num_threads()), "on this CPU"
    kept = f"{held:,} held out to judge" if held else "none held out"
    return f"{kept}; about {words(before + seconds)} {where}"
