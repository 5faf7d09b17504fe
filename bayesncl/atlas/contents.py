"""What the page reads: numbers as base64 in small scripts, because a page opened from disk may not fetch files."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from ..data.images import Images, spread_evenly
from ..errors import InputError
from ..heat import Heat
from ..measure.dimensions import Dimensions, describe, mean, most_mixed, most_suppressed
from ..measure.labelfree import draw_trials
from ..measure.sparse import as_codes, fired
from .pictures import Photos, large_side, picture_size, thumbnail_side, write_sprites
from .telling import Labels, pick_wall, recognise, telling
from .vectors import SCALE, columns_of, histograms, mask_rows, nearest_rows, quantise, sparsify, strongest, top_images

TOP = 200  # images shown of a dimension
STRIP = 12  # images shown of a dimension in passing
NEAR = 12  # neighbours of an image and of a dimension
BINS = 24
ENTRIES = 1_280_000  # features stored per run, shared by its images; at least 64 an image
DIMS_A_FILE, IMAGES_A_FILE = 128, 500
GALLERY = 24
QUESTIONS, QUIZZED = 2, 1024  # of the quiz, a dimension; dimensions it asks about, drawn at random
WALL, HEAVIEST = 24, 64  # dimensions whose pictures the overview shows, in strips and on its map
MOST_DIMS = 1_000_000
TYPES = {"u1": "Uint8Array", "u2": "Uint16Array", "u4": "Uint32Array", "i2": "Int16Array", "f4": "Float32Array"}

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class AtlasRun:
    """Features of one model on the images of the atlas.

    Attributes
    ----------
    name : shown wherever runs must be told apart.
    z : float [N, D], dense or SciPy sparse, features before gating; rows are scaled to length 1. May be signed.
    gated : like z, features after gating, or None (then z * open, scaled to length 1, where there are gates).
    open : bool [N, D], whether each gate is open, or None for a model without gates, or with soft ones.
    summary : headline numbers by definition, such as {"paper": {...}, "sound": {...}}, or None.
    sentence : one sentence on the run.
    fingerprint : says which codes they are, so that names given to dimensions find them again; default made from z.
    heat : where in each image its strongest dimensions fire (see `Heat`), or in words why that is not known, or None.
    verdict : (text, by what it was measured) line by line, from the run's evaluation; the page opens with the first.
    """

    name: str
    z: Any
    gated: Any = None
    open: np.ndarray | None = None
    summary: dict | None = None
    sentence: str = ""
    fingerprint: str = ""
    heat: Heat | str | None = None
    verdict: tuple[tuple[str, str], ...] = ()


def prepare(run: AtlasRun, images: Images | Photos) -> AtlasRun:
    """The run with its arrays checked against the images: CSR, rows of length 1.

    `gated` is None without gates, `open` where none closes.
    """
    n, shape = len(images), tuple(np.shape(run.z))
    if len(shape) != 2 or shape[0] != n or not 1 <= shape[1] <= MOST_DIMS:
        raise InputError(f"run {run.name!r}: z must be [{n}, D] for {n} images, got {list(shape)}")
    for what, x in (("gated", run.gated), ("open", run.open)):
        if x is not None and np.shape(x) != shape:
            raise InputError(f"run {run.name!r}: {what} must be {list(shape)} like z, got {list(np.shape(x))}")
    try:
        z, gated = (None if x is None else fired(as_codes(x)) for x in (run.z, run.gated))
    except InputError as error:
        raise InputError(f"run {run.name!r}: {error}") from None
    open = None if run.open is None else np.asarray(run.open, dtype=bool)
    if gated is None and open is not None:
        gated = mask_rows(z, open)
    elif gated is not None and open is None and abs(gated - z).max() <= 1e-6:
        gated = None
    return replace(run, z=z, gated=gated, open=open)


def fingerprint(run: AtlasRun) -> str:
    """The run's own, or a hash of up to 65,536 entries of its features."""
    if run.fingerprint:
        return run.fingerprint
    z = run.z
    some = spread_evenly(z.nnz, 1 << 16)
    parts = [str(z.shape).encode(), z.indices[some].astype("<i8").tobytes(), quantise(z.data[some]).tobytes()]
    return hashlib.blake2b(b"".join(parts), digest_size=8).hexdigest()


def write_images(
    folder: Path, images: Images | Photos, labels: Labels | None, grounds: Labels | None, runs: list[AtlasRun],
    title: str, first_seen: list[int],
) -> None:  # fmt: skip
    """What belongs to the images and to no run: pictures, labels, names."""
    n = len(images)
    side, large = thumbnail_side(n), large_side(n)
    order = _by_dimension(runs[0].z) if n > 1000 else None
    cover = np.array(list(dict.fromkeys(first_seen))[:512], np.int64)
    plain: dict[str, object] = {
        "title": title,
        "count": n,
        "sprites": write_sprites(images, folder / "sprites", side, order),
        "classes": None if labels is None else labels.names,
        "backgrounds": None if grounds is None else grounds.names,
        "named": images.names is not None,
        "runs": [
            {
                "name": run.name, "sentence": run.sentence, "summary": tabulate(run.summary),
                "fingerprint": fingerprint(run), "verdict": [list(line) for line in run.verdict],
            }
            for run in runs
        ],
        "files": {"dims": DIMS_A_FILE, "images": IMAGES_A_FILE},
        "scale": SCALE,
    }  # fmt: skip
    arrays: Arrays = {}
    if large and max(picture_size(images)) > side:
        plain["large"] = write_sprites(images, folder / "large", large)
    if len(cover) and n > 1000:  # what the overview shows lies scattered over many sheets: on one it opens at once
        plain["cover"] = write_sprites(images, folder / "cover", side, cover)
        arrays["covered"] = _small(cover)
    if order is not None:
        arrays["place"] = _small(np.argsort(order))
    for what, found in (("labels", labels), ("backs", grounds)):
        if found is not None:
            arrays[what] = _small(found.index + 1)  # 0 is no label
    _write(folder, "atlas", plain, arrays)
    if images.names is not None:
        for i, a in enumerate(range(0, n, IMAGES_A_FILE)):
            _write(folder, f"names-{i}", {"names": [str(name) for name in images.names[a : a + IMAGES_A_FILE]]}, {})


def _by_dimension(z: sparse.csr_array) -> np.ndarray:
    """Images by their strongest dimension, the strongest first: those shown together lie on the same sheets."""
    first, n = strongest(z, 1), z.shape[0]
    dim, value = np.full(n, z.shape[1]), np.zeros(n, np.float32)
    held = np.flatnonzero(np.diff(first.indptr))
    dim[held], value[held] = first.indices, first.data
    return np.lexsort((-value, dim))


def write_run(folder: Path, key: str, run: AtlasRun, labels: Labels | None, grounds: Labels | None) -> list[int]:
    """The numbers of a run: by dimension, by class, by image; each before and, where there are gates, after gating.

    Returns the images its overview shows.
    """
    z, gated, open, heat = run.z, run.gated, run.open, run.heat
    n, d = z.shape
    plain: dict = {"dims": d, "signed": bool(z.min() < 0), "gated": open is not None, "stages": {}}
    y, backgrounds = (None if each is None else each.index for each in (labels, grounds))
    core, counts, by_dim, by_image = Arrays(), Arrays(), Arrays(), Arrays()
    seen: list[int] = []
    for stage, x in (("before", z), ("after", gated)):
        if x is None:
            continue
        dims = describe(x, y, backgrounds=backgrounds, open=open if stage == "before" else None)
        index, value = top_images(x, TOP)
        score = telling(x, index, value)
        plain["stages"][stage] = _headline(dims) | {"gallery": {"entropy": most_mixed(dims)[:GALLERY].tolist()}}
        words = _describe_words(index, value, labels, grounds)
        core |= _prefix(stage, _describe_core(dims, index, value, score) | words)
        by_dim |= _prefix(stage, _describe_detail(x, index, value, open))
        near, similarity = nearest_rows(x, NEAR)
        by_image |= _prefix(stage, {"near": _small(near), "similarity": quantise(similarity)})
        wall = pick_wall(x, index, score, WALL)
        core[f"{stage}.wall"] = _small(wall, d)
        heavy = np.argsort(-dims.mass, kind="stable")[:HEAVIEST]
        seen += [*index[wall, :8][value[wall, :8] > 0].tolist(), *index[heavy, 0][value[heavy, 0] > 0].tolist()]
        by_label = {"classes": dims.class_counts, "backgrounds": dims.background_counts}
        counts |= _prefix(stage, {what: _small(count) for what, count in by_label.items() if count is not None})
        if stage == "before" and open is not None:
            core |= {"open_rate": _floats(dims.open_rate, 100), "closed_rate": _floats(dims.closed_rate, 100)}
            # of all entries that fire, those that the gates close
            plain["closed"] = float(np.nansum(dims.closed_rate * dims.support) / max(dims.support.sum(), 1)) / 100
            plain["stages"]["before"]["gallery"]["suppressed"] = most_suppressed(dims)[:GALLERY].tolist()
            if dims.open_counts is not None:
                counts["open"] = _small(dims.open_counts)
    some = np.random.default_rng(0).permutation(d)[:QUIZZED]
    asked = draw_trials(z if gated is None else gated, trials=QUESTIONS, dims=some)  # of what the model gives
    questions = {"dims": _small(asked.dimension, d), "images": _small(asked.images, n), "odd": _small(asked.odd)}
    _write(folder, f"{key}-quiz", {}, questions)
    if counts:
        _write(folder, f"{key}-classes", {}, counts)
    for i, a in enumerate(range(0, d, DIMS_A_FILE)):
        _write(folder, f"{key}-dims-{i}", {}, {name: x[a : a + DIMS_A_FILE] for name, x in by_dim.items()})
    if isinstance(heat, str):
        plain["coldness"] = heat
    elif heat is not None:
        if heat.dims.shape != heat.maps.shape[:2] or len(heat.dims) != n:
            raise InputError(f"heat maps must be [{n}, K] dimensions and [{n}, K, h, w] maps, got {heat.maps.shape}")
        plain |= {"heat": [*heat.maps.shape[1:], heat.share], "check": [heat.check["hottest"], heat.check["random"]]}
        by_image |= {"hot.dims": _small(heat.dims, d), "hot.maps": heat.maps.astype("u1")}
    plain |= _write_vectors(folder, key, run, by_image)
    _write(folder, key, plain, core)
    return seen


def _describe_core(dims: Dimensions, index: np.ndarray, value: np.ndarray, score: np.ndarray) -> Arrays:
    """What is known of every dimension as soon as the page opens."""
    core = {
        "support": _small(dims.support),
        "mass": dims.mass.astype("f4"),
        "telling": score.astype("f4"),
        "top": _small(index[:, :STRIP]),
        "shown": (value[:, :STRIP] > 0).sum(1).astype("u1"),
    }
    for what, scale in (("entropy_freq", 1), ("entropy_sum", 1), ("entropy_mean", 1), ("consistency", 100)):
        if (column := getattr(dims, what)) is not None:
            core[what] = _floats(column, scale)
    return core


def _headline(dims: Dimensions) -> dict[str, float | int | None]:
    """The few numbers that describe all dimensions together."""
    share = None if dims.consistency is None else mean(dims.consistency[dims.counted])
    whole = {"dead": int(dims.dead.sum()), "supported": int(dims.counted.sum()), "active": dims.l0}
    return whole | {"consistency": None if share is None else share / 100}


def _floats(x: np.ndarray | None, scale: float) -> np.ndarray:
    """Numbers in units of `scale`; 0 for what does not exist."""
    return np.nan_to_num(np.asarray(x) / scale).astype("f4")


def _describe_words(index: np.ndarray, value: np.ndarray, labels: Labels | None, grounds: Labels | None) -> Arrays:
    """The class (1) or background (2) that stands out among a dimension's strongest images, 0 where none does."""
    found = [recognise(index, value, each) for each in (labels, grounds)]
    (label, share, surprise), (ground, ground_share, ground_surprise) = found
    second = ground_surprise < surprise
    kind = np.where(second, 2, np.where(label >= 0, 1, 0))
    word = _small(np.maximum(np.where(second, ground, label), 0))
    return {"kind": kind.astype("u1"), "word": word, "share": np.where(second, ground_share, share).astype("f4")}


def _describe_detail(x: sparse.csr_array, index: np.ndarray, value: np.ndarray, open: np.ndarray | None) -> Arrays:
    """What is read when a dimension's page is opened."""
    shapes, edges = histograms(x, BINS)
    near, cosine = nearest_rows(columns_of(x), NEAR)
    detail = {"index": _small(index), "value": quantise(value), "histogram": _small(shapes), "edges": edges}
    detail |= {"near": _small(near), "cosine": quantise(cosine)}
    if open is not None:
        detail["open"] = open[index, np.arange(x.shape[1])[:, None]]
    return detail


def _write_vectors(folder: Path, key: str, run: AtlasRun, by_image: Arrays) -> dict[str, object]:
    """The strongest features of each image; return how many are kept and how much of the squared length they cover."""
    z, gated, open = run.z, run.gated, run.open
    n, d = z.shape
    keep = min(d, max(64, ENTRIES // n))
    rows = sparsify(z, z if gated is None else gated, open, keep)
    for i, a in enumerate(range(0, n, IMAGES_A_FILE)):
        b = min(n, a + IMAGES_A_FILE)
        e = slice(rows.start[a], rows.start[b])
        part = {name: x[a:b] for name, x in by_image.items()}
        part |= {"start": (rows.start[a : b + 1] - rows.start[a]).astype("u4"), "dims": _small(rows.dims[e], d)}
        part |= {"z": rows.z[e], "covered": rows.covered[:, a:b].astype("f4")}
        if gated is not None:
            part["gated"] = rows.gated[e]
        if open is not None:
            part["open"] = rows.open[e]
        _write(folder, f"{key}-images-{i}", {}, part)
    whole = bool((rows.covered > 1 - 1e-6).all())
    return {"keep": keep, "covered": rows.covered.mean(1).tolist(), "whole": whole}


def write_matches(folder: Path, key: str, a: sparse.csr_array, b: sparse.csr_array) -> None:
    """The dimension of the other run that behaves most alike on the same images, both ways."""
    arrays: Arrays = {}
    for name, x, y in (("first", a, b), ("second", b, a)):
        match, cosine = nearest_rows(columns_of(x), 1, columns_of(y))
        arrays |= _prefix(name, {"match": _small(match[:, 0]), "cosine": quantise(cosine[:, 0])})
    _write(folder, key, {}, arrays)


def tabulate(summary: dict | None) -> dict | None:
    """Headline numbers as rows of one measure and columns of one definition; what is no number is left out."""
    groups = {k: v for k, v in (summary or {}).items() if isinstance(v, dict)}
    keys = list(dict.fromkeys(k for group in groups.values() for k, v in group.items() if _number(v) is not None))
    rows = [[str(k), *(_number(group.get(k)) for group in groups.values())] for k in keys]
    return {"columns": [str(k) for k in groups], "rows": rows} if rows else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        return None
    return float(value) if math.isfinite(value) else None


def _prefix(name: str, arrays: Arrays) -> Arrays:
    return {f"{name}.{key}": x for key, x in arrays.items()}


def _small(x: np.ndarray, most: int | None = None) -> np.ndarray:
    """Non-negative integers in the smallest type that holds them."""
    most = int(x.max(initial=0)) if most is None else most
    return x.astype("u1" if most < 1 << 8 else "u2" if most < 1 << 16 else "u4")


def _write(folder: Path, key: str, plain: dict, arrays: Arrays) -> None:
    packed = {name: _pack(x) for name, x in arrays.items()}
    text = json.dumps([key, plain, packed], allow_nan=False, separators=(",", ":"))
    # json.dumps writes ASCII, so neither U+2028 nor U+2029; and without "<" the text cannot end a script anywhere.
    text = text.replace("<", "\\u003c")
    (folder / "data" / f"{key}.js").write_text(f"atlasData({text[1:-1]});\n", encoding="ascii")


def _pack(x: np.ndarray) -> list[str]:
    if x.dtype == bool:
        x = np.packbits(x.reshape(-1), bitorder="little")
    raw = np.ascontiguousarray(x, dtype=x.dtype.newbyteorder("<")).tobytes()
    return [TYPES[x.dtype.str[1:]], base64.b64encode(raw).decode()]
