"""What the page reads: numbers as base64 in small scripts, because a page opened from disk may not fetch files."""

from __future__ import annotations

import base64
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..data.images import Images
from ..errors import InputError
from .dimensions import (
    FIRES,
    Dimensions,
    describe_dimensions,
    describe_gates,
    headline,
    one_hot,
    rank_entropy,
    rank_suppressed,
    unit_rows,
)
from .sprites import write_sprites
from .vectors import SCALE, histograms, nearest_rows, quantise, sparsify, top_images

TOP = 200  # images shown of a dimension
STRIP = 12  # images shown of a dimension in passing
NEAR = 12  # neighbours of an image and of a dimension
BINS = 24
ENTRIES = 1_280_000  # features stored per run, shared by its images; at least 64 an image
DIMS_A_FILE, IMAGES_A_FILE = 128, 500
GALLERY = 24
TYPES = {"u1": "Uint8Array", "u2": "Uint16Array", "u4": "Uint32Array", "i2": "Int16Array", "f4": "Float32Array"}

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class AtlasRun:
    """Features of one model on the images of the atlas.

    Attributes
    ----------
    name : shown wherever two runs must be told apart.
    z : float [N, D], features before gating; rows are scaled to length 1. May be signed.
    gated : float [N, D], features after gating, or None (then z * open, scaled to length 1, where there are gates).
    open : bool [N, D], whether each gate is open, or None for a model without gates, or with soft ones.
    summary : headline numbers by definition, such as {"paper": {...}, "sound": {...}}, or None.
    sentence : one sentence on the run.
    """

    name: str
    z: np.ndarray
    gated: np.ndarray | None = None
    open: np.ndarray | None = None
    summary: dict | None = None
    sentence: str = ""


@dataclass(frozen=True)
class Features:
    """The checked arrays of a run, rows of length 1; `gated` is None without gates, `open` where none closes."""

    z: np.ndarray
    gated: np.ndarray | None = None
    open: np.ndarray | None = None


def prepare(run: AtlasRun, images: Images) -> Features:
    """Check the arrays of a run against the images, and scale rows to length 1."""
    z, n = np.asarray(run.z), len(images)
    if z.ndim != 2 or z.shape[0] != n or z.shape[1] < 1:
        raise InputError(f"run {run.name!r}: z must be [{n}, D] for {n} images, got {list(z.shape)}")
    for what, x in (("gated", run.gated), ("open", run.open)):
        if x is not None and np.shape(x) != z.shape:
            raise InputError(f"run {run.name!r}: {what} must be {list(z.shape)} like z, got {list(np.shape(x))}")
    for what, x in (("z", z), ("gated", run.gated)):
        if x is not None and not np.isfinite(x).all():
            count = np.count_nonzero(~np.isfinite(x))
            raise InputError(f"run {run.name!r}: {what} holds {count} values that are not finite")
    z = unit_rows(z)
    open = None if run.open is None else np.asarray(run.open, dtype=bool)
    if run.gated is not None:
        gated = unit_rows(run.gated)
    elif open is not None:
        gated = unit_rows(z * open)
    else:
        return Features(z)
    if open is None and np.allclose(gated, z, atol=1e-6):
        return Features(z)
    return Features(z, gated, open)


def name_labels(what: str, labels: np.ndarray | None, names: tuple[str, ...] | None) -> list[str] | None:
    """Names by label, made up where there are labels without names; None without labels."""
    if labels is None:
        return None
    count = int(np.max(labels, initial=0)) + 1
    if names is None:
        return [str(c) for c in range(count)]
    if len(names) < count:
        raise InputError(f"{what} go up to {count - 1} but there are {len(names)} names")
    return [str(name) for name in names]


def encode_labels(images: Images) -> tuple[np.ndarray | None, np.ndarray | None]:
    """One-hot classes and backgrounds, float32 [N, C], or None."""
    classes = name_labels("labels", images.labels, images.class_names)
    grounds = name_labels("backgrounds", images.backgrounds, images.background_names)
    return (
        None if images.labels is None or classes is None else one_hot(images.labels, len(classes)),
        None if images.backgrounds is None or grounds is None else one_hot(images.backgrounds, len(grounds)),
    )


def write_images(folder: Path, images: Images, runs: list[AtlasRun], title: str) -> None:
    """What belongs to the images and to no run: pictures, labels, names."""
    plain: dict[str, object] = {
        "title": title,
        "count": len(images),
        "sprites": write_sprites(images.pixels, folder / "sprites"),
        "classes": name_labels("labels", images.labels, images.class_names),
        "backgrounds": name_labels("backgrounds", images.backgrounds, images.background_names),
        "named": images.names is not None,
        "runs": [{"name": run.name, "sentence": run.sentence, "summary": tabulate(run.summary)} for run in runs],
        "files": {"dims": DIMS_A_FILE, "images": IMAGES_A_FILE},
        "scale": SCALE,
    }
    arrays: Arrays = {}
    for what, labels in (("labels", images.labels), ("backs", images.backgrounds)):
        if labels is not None:
            arrays[what] = _small(np.maximum(np.asarray(labels), -1) + 1)  # 0 is no label
    _write(folder, "atlas", plain, arrays)
    if images.names is not None:
        for i, a in enumerate(range(0, len(images), IMAGES_A_FILE)):
            _write(folder, f"names-{i}", {"names": [str(name) for name in images.names[a : a + IMAGES_A_FILE]]}, {})


def write_run(folder: Path, key: str, features: Features, images: Images) -> None:
    """The numbers of a run: by dimension, by class, by image; each before and, where there are gates, after gating."""
    z, gated, open = features.z, features.gated, features.open
    d = z.shape[1]
    classes, grounds = encode_labels(images)
    plain: dict = {"dims": d, "signed": bool(z.min() < 0), "gated": open is not None, "stages": {}}
    core: Arrays = {}
    counts: Arrays = {}
    by_dim: Arrays = {}
    by_image: Arrays = {}
    for stage, x in (("before", z), ("after", gated)):
        if x is None:
            continue
        dims = describe_dimensions(x, classes, grounds)
        index, value = top_images(x, TOP)
        plain["stages"][stage] = headline(x, dims) | {"gallery": {"entropy": rank_entropy(dims)[:GALLERY].tolist()}}
        core |= _prefix(stage, _describe_core(dims, index, value))
        by_dim |= _prefix(stage, _describe_detail(x, index, value, open))
        near, similarity = nearest_rows(x, NEAR)
        by_image |= _prefix(stage, {"near": _small(near), "similarity": quantise(similarity)})
        for what, count in (("classes", dims.class_counts), ("backgrounds", dims.background_counts)):
            if count is not None:
                counts[f"{stage}.{what}"] = _small(count)
        if stage == "before" and open is not None:
            gates = describe_gates(z, open, classes)
            core |= {"open_rate": gates.open_rate.astype("f4"), "closed_rate": gates.closed_rate.astype("f4")}
            fires = np.abs(z) > FIRES
            plain["closed"] = float((fires & ~open).sum() / max(int(fires.sum()), 1))
            plain["stages"]["before"]["gallery"]["suppressed"] = rank_suppressed(dims, gates)[:GALLERY].tolist()
            if gates.open_counts is not None:
                counts["open"] = _small(gates.open_counts)
    if counts:
        _write(folder, f"{key}-classes", {}, counts)
    for i, a in enumerate(range(0, d, DIMS_A_FILE)):
        _write(folder, f"{key}-dims-{i}", {}, {name: x[a : a + DIMS_A_FILE] for name, x in by_dim.items()})
    plain |= _write_vectors(folder, key, features, by_image)
    _write(folder, key, plain, core)


def _describe_core(dims: Dimensions, index: np.ndarray, value: np.ndarray) -> Arrays:
    """What is known of every dimension as soon as the page opens."""
    core = {
        "support": _small(dims.support),
        "mass": dims.mass.astype("f4"),
        "top": _small(index[:, :STRIP]),
        "shown": (value[:, :STRIP] > 0).sum(1).astype("u1"),
    }
    for what in ("consistency", "entropy_freq", "entropy_sum", "entropy_mean"):
        column = getattr(dims, what)
        if column is not None:
            core[what] = column.astype("f4")
    if dims.best is not None:
        core["best"] = _small(dims.best)
    return core


def _describe_detail(x: np.ndarray, index: np.ndarray, value: np.ndarray, open: np.ndarray | None) -> Arrays:
    """What is read when a dimension's page is opened."""
    shapes, edges = histograms(x, BINS)
    near, cosine = nearest_rows(unit_rows(x.T), NEAR)
    detail = {"index": _small(index), "value": quantise(value), "histogram": _small(shapes), "edges": edges}
    detail |= {"near": _small(near), "cosine": quantise(cosine)}
    if open is not None:
        detail["open"] = open[index, np.arange(x.shape[1])[:, None]]
    return detail


def _write_vectors(folder: Path, key: str, features: Features, by_image: Arrays) -> dict[str, object]:
    """The strongest features of each image; return how many are kept and how much of the squared length they cover."""
    z, gated, open = features.z, features.gated, features.open
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


def write_matches(folder: Path, a: np.ndarray, b: np.ndarray) -> None:
    """The dimension of the other run that behaves most alike on the same images, both ways."""
    arrays: Arrays = {}
    for name, x, y in (("first", a, b), ("second", b, a)):
        match, cosine = nearest_rows(unit_rows(x.T), 1, unit_rows(y.T))
        arrays |= _prefix(name, {"match": _small(match[:, 0]), "cosine": quantise(cosine[:, 0])})
    _write(folder, "compare", {}, arrays)


def tabulate(summary: dict | None) -> dict | None:
    """Headline numbers as rows of one measure and columns of one definition; what is no number is left out."""
    if not summary:
        return None
    groups = {k: v for k, v in summary.items() if isinstance(v, dict)} or {"": summary}
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
