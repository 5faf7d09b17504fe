"""The data files of the page: scripts with base64, because a page on disk cannot fetch files."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from bayesncl.atlas.pictures import (
    Photos,
    large_side,
    photo_root,
    picture_size,
    thumbnail_side,
    write_sprites,
)
from bayesncl.atlas.ranking import (
    Labels,
    clarity,
    fold_twins,
    mixed_dimensions,
    pick_diverse,
    prominent_class,
)
from bayesncl.codes.heat import Heatmaps
from bayesncl.codes.names import Annotations, names_tree
from bayesncl.data.images import Images, spread_evenly
from bayesncl.errors import InputError
from bayesncl.measure.dimensions import describe, mean, most_suppressed
from bayesncl.measure.labelfree import draw_trials
from bayesncl.measure.rows import fired
from bayesncl.measure.topk import strongest
from bayesncl.measure.vectors import (
    SCALE,
    columns_of,
    histograms,
    mask_rows,
    nearest_rows,
    quantize,
    sparsify,
    top_images,
)

TOP_IMAGES = 200  # on the page of a dimension
STRIP_IMAGES = 12  # of a dimension elsewhere
NEIGHBORS = 12  # of an image and of a dimension
HISTOGRAM_BINS = 24
FEATURES_PER_RUN = 1_280_000  # stored, divided among the images; at least 64 per image
DIMS_PER_FILE, IMAGES_PER_FILE = 128, 500
GALLERY_DIMS = 24
QUIZ_DIMS, QUIZ_TRIALS = 1024, 2  # dimensions in the quiz, questions for each
PAGE_SIDE = 224  # pixels, of a picture on the page of a job
OVERVIEW_STRIPS, OVERVIEW_MAP = 24, 64  # dimensions whose images the overview shows
OVERVIEW_IMAGES = 512  # on a sheet of their own, in an atlas of more than 1,000 images

Arrays = dict[str, Any]  # numpy arrays; None is left out


@dataclass(frozen=True)
class AtlasRun:
    """Features of one model on the images of the atlas.

    Attributes
    ----------
    name : name of the run on the page.
    z : float [N, D], dense or SciPy sparse, features before gating; scaled to unit rows.
    gated : like z, features after gating; None for z * open, or without gates.
    open : bool [N, D], which gates are open; None without gates, or if they are soft.
    summary : figures by definition, such as {"paper": {...}, "sound": {...}}.
    sentence : a sentence about the run.
    fingerprint : identifies the codes, so that names find them again; default a hash of z.
    heat : maps of where in an image a dimension fires, or the reason why there are none.
    verdict : pairs of a line and how it was measured; the page opens with the first.
    explain : a classifier on these codes, from `jobs.explain.read_saved`.
    names : names of the dimensions, by people and programs, and decisions on findings.
    seen : side of the central square of a photo that the encoder sees, by the shorter side.
    groups : int [D], the group of each dimension, where codes come in groups.
    """

    name: str
    z: Any
    gated: Any = None
    open: np.ndarray | None = None
    summary: dict | None = None
    sentence: str = ""
    fingerprint: str = ""
    heat: Heatmaps | str | None = None
    verdict: tuple[tuple[str, str], ...] = ()
    explain: dict[str, Any] | None = None
    names: Annotations | None = None
    seen: float | None = None
    groups: np.ndarray | None = None


@dataclass(frozen=True)
class JobPage:
    """A page about the result of a job: its data, and pictures of images that it names.

    These may be others than those of the atlas. The page refers to them by number.
    """

    plain: dict[str, Any]
    images: Images | Photos | None


def prepare(run: AtlasRun, images: Images | Photos) -> AtlasRun:
    """Check the arrays of a run, and return it with CSR features of unit rows.

    `gated` is None without gates, `open` is None without hard gates.
    """
    n, shape = len(images), np.shape(run.z)
    if len(shape) != 2 or shape[0] != n:
        raise InputError(f"run {run.name!r}: z must be [{n}, D] for {n} images, got {list(shape)}")
    for name, x in (("gated", run.gated), ("open", run.open)):
        if x is not None and np.shape(x) != shape:
            got = list(np.shape(x))
            raise InputError(f"run {run.name!r}: {name} must be {list(shape)} like z, got {got}")
    try:
        z, gated = (None if x is None else fired(x) for x in (run.z, run.gated))
    except InputError as error:
        raise InputError(f"run {run.name!r}: {error}") from None
    open = None if run.open is None else np.asarray(run.open, dtype=bool)
    if gated is None and open is not None:
        gated = mask_rows(z, open)
    elif gated is not None and open is None and abs(gated - z).max() <= 1e-6:
        gated = None
    return replace(run, z=z, gated=gated, open=open, fingerprint=run.fingerprint or _hash(z))


def _hash(z: sparse.csr_array) -> str:
    some = spread_evenly(z.nnz, 1 << 16)
    indices = z.indices[some].astype("<i8").tobytes()
    parts = str(z.shape).encode() + indices + quantize(z.data[some]).tobytes()
    return hashlib.blake2b(parts, digest_size=8).hexdigest()


def write_images(
    folder: Path, images: Images | Photos, labels: Labels | None, backgrounds: Labels | None,
    runs: list[AtlasRun], title: str, shown: list[int], pages: list[str],
) -> None:  # fmt: skip
    """Write pictures, labels and names of the images, and the list of runs.

    `shown` are the images of the overview, `pages` are those of jobs.
    """
    n, root = len(images), photo_root(images)
    side, large = thumbnail_side(n), large_side(n)
    plain: dict[str, Any] = {
        "title": title,
        "count": n,
        "classes": labels and labels.names,
        "backgrounds": backgrounds and backgrounds.names,
        "named": images.names is not None,
        "pages": pages,
        "rooted": root is not None,
        "runs": [
            {
                "name": run.name, "sentence": run.sentence, "summary": _tabulate(run.summary),
                "fingerprint": run.fingerprint, "verdict": run.verdict, "explain": run.explain,
                "names": run.names and names_tree([run.names])["codes"][0], "seen": run.seen,
            }
            for run in runs
        ],
        "files": {"dims": DIMS_PER_FILE, "images": IMAGES_PER_FILE},
        "scale": SCALE,
    }  # fmt: skip
    arrays: Arrays = {}
    for name, each in (("labels", labels), ("backs", backgrounds)):
        arrays[name] = None if each is None else each.index + 1  # 0 for an unlabeled image
    order = None
    if n > 1000:  # images shown together lie on the same sheets
        order = _by_dimension(runs[0].z)
        arrays["place"] = np.argsort(order)
        if shown:
            arrays["covered"] = np.array(list(dict.fromkeys(shown))[:OVERVIEW_IMAGES])
            plain["cover"] = write_sprites(images, folder / "cover", side, arrays["covered"])
    plain["sprites"] = write_sprites(images, folder / "sprites", side, order)
    if large and max(picture_size(images)) > side:
        plain["large"] = write_sprites(images, folder / "large", large, whole=True)
        arrays["large.sizes"] = plain["large"].pop("sizes", None)
    _write(folder, "atlas", plain, arrays)
    if root is not None:
        _write(folder, "root", {"root": root})
    names = images.names or ()
    for i, a in enumerate(range(0, len(names), IMAGES_PER_FILE)):
        _write(folder, f"names-{i}", {"names": names[a : a + IMAGES_PER_FILE]})


def write_page(folder: Path, key: str, page: JobPage, images: Images | Photos) -> None:
    """Write the page of a job, with the names of its images and their numbers in the atlas."""
    names = () if page.images is None else page.images.names or ()
    number = {name: i for i, name in enumerate(images.names or ())}
    plain = {**page.plain, "names": names, "shown": [number.get(name, -1) for name in names]}
    arrays: Arrays = {}
    if page.images is not None:
        plain["sprites"] = write_sprites(page.images, folder / key, PAGE_SIDE, whole=True)
        arrays["sprites.sizes"] = plain["sprites"].pop("sizes", None)
    _write(folder, key, plain, arrays)


def _by_dimension(z: sparse.csr_array) -> np.ndarray:
    """Sort images by their strongest dimension, then by its activation."""
    dims, values = (x[:, 0] for x in strongest(z, 1))
    return np.lexsort((-values, np.where(values == 0, z.shape[1], dims)))


def write_run(
    folder: Path, key: str, run: AtlasRun, labels: Labels | None, backgrounds: Labels | None
) -> list[int]:
    """Write the numbers of a run, before and after gating; return the images of the overview."""
    d, open, heat = run.z.shape[1], run.open, run.heat
    plain: dict[str, Any] = {"dims": d, "signed": bool(run.z.min() < 0), "stages": {}}
    plain["gated"] = open is not None
    core, counts, by_dim, by_image = Arrays(groups=run.groups), Arrays(), Arrays(), Arrays()
    shown: list[int] = []
    for stage, x in (("before", run.z), ("after", run.gated)):
        if x is None:
            continue

        def put(file: Arrays, prefix: str = stage, **columns: np.ndarray | None) -> None:
            file.update({f"{prefix}.{name}": column for name, column in columns.items()})

        y, where = (None if each is None else each.index for each in (labels, backgrounds))
        dims = describe(x, y, backgrounds=where, open=open if stage == "before" else None)
        index, value = top = top_images(x, TOP_IMAGES)
        score = clarity(x, top)
        first = pick_diverse(x, top, score, OVERVIEW_STRIPS)
        heaviest = np.argsort(-dims.mass, kind="stable")[:OVERVIEW_MAP]
        shown += index[first, :8][value[first, :8] > 0].tolist()
        shown += index[heaviest, 0][value[heaviest, 0] > 0].tolist()
        gallery = {"entropy": mixed_dimensions(dims, top, labels)[:GALLERY_DIMS].tolist()}
        consistency = None
        if dims.consistency is not None:
            consistency = _share(mean(dims.consistency[dims.counted]))
        plain["stages"][stage] = {
            "dead": int(dims.dead.sum()), "supported": int(dims.counted.sum()), "active": dims.l0,
            "consistency": consistency, "gallery": gallery,
        }  # fmt: skip
        if dims.closed_rate is not None:
            closed = np.nansum(dims.closed_rate * dims.support) / max(dims.support.sum(), 1)
            plain["closed"] = _share(closed)  # of the firing features
            gallery["suppressed"] = most_suppressed(dims)[:GALLERY_DIMS].tolist()
            core["open_rate"], core["closed_rate"] = map(_share, (dims.open_rate, dims.closed_rate))
            counts["open"] = dims.open_counts
        put(
            core, support=dims.support, mass=dims.mass, clarity=score, wall=first,
            top=index[:, :STRIP_IMAGES], shown=(value[:, :STRIP_IMAGES] > 0).sum(1),
            consistency=_share(dims.consistency), entropy_freq=dims.entropy_freq,
            entropy_sum=dims.entropy_sum, entropy_mean=dims.entropy_mean,
        )  # fmt: skip
        # kind 1: a class stands out, 2: a background, 0: neither
        one, share, log_p = prominent_class(top, labels)
        two, share_two, log_p_two = prominent_class(top, backgrounds)
        second = log_p_two < log_p
        put(core, kind=np.where(second, 2, one >= 0), share=np.where(second, share_two, share))
        put(core, word=np.maximum(np.where(second, two, one), 0))
        put(counts, classes=dims.class_counts, backgrounds=dims.background_counts)
        near, cosine = nearest_rows(columns_of(x), NEIGHBORS)
        shapes, edges = histograms(x, HISTOGRAM_BINS)
        put(by_dim, index=index, value=quantize(value), histogram=shapes, edges=edges)
        put(by_dim, near=near, cosine=quantize(cosine))
        put(core, twin=fold_twins(near, cosine, score))
        if open is not None:
            put(by_dim, open=open[index, np.arange(d)[:, None]])
        near, similarity = nearest_rows(x, NEIGHBORS)
        put(by_image, near=near, similarity=quantize(similarity))
    if isinstance(heat, Heatmaps):
        plain["heat"] = [*heat.maps.shape[1:], heat.share]
        plain["check"] = [heat.check["hottest"], heat.check["random"]]
        by_image |= {"hot.dims": heat.dims, "hot.maps": heat.maps}
    else:
        plain["no_heat"] = heat
    some = np.random.default_rng(0).permutation(d)[:QUIZ_DIMS]
    quiz = draw_trials(run.z if run.gated is None else run.gated, trials=QUIZ_TRIALS, dims=some)
    asked = {"dims": quiz.dimension, "images": quiz.images, "odd": quiz.odd}
    _write(folder, f"{key}-quiz", {}, asked)
    if labels or backgrounds:
        _write(folder, f"{key}-classes", {}, counts)
    for i, a in enumerate(range(0, d, DIMS_PER_FILE)):
        part = {name: x[a : a + DIMS_PER_FILE] for name, x in by_dim.items()}
        _write(folder, f"{key}-dims-{i}", {}, part)
    plain |= _write_features(folder, key, run, by_image)
    _write(folder, key, plain, core)
    return shown


def _write_features(folder: Path, key: str, run: AtlasRun, by_image: Arrays) -> dict[str, Any]:
    """Write the strongest features of each image, and how much of the squared length they cover."""
    n, d = run.z.shape
    keep = min(d, max(64, FEATURES_PER_RUN // n))
    rows = sparsify(run.z, run.z if run.gated is None else run.gated, run.open, keep)
    for i, a in enumerate(range(0, n, IMAGES_PER_FILE)):
        b = min(n, a + IMAGES_PER_FILE)
        e = slice(rows.start[a], rows.start[b])
        part = {name: x[a:b] for name, x in by_image.items()}
        part |= {"start": rows.start[a : b + 1] - rows.start[a], "dims": rows.dims[e]}
        part |= {"z": rows.z[e], "covered": rows.covered[:, a:b]}
        part["gated"] = None if run.gated is None else rows.gated[e]
        part["open"] = None if run.open is None else rows.open[e]
        _write(folder, f"{key}-images-{i}", {}, part)
    whole = bool((rows.covered > 1 - 1e-6).all())
    return {"keep": keep, "covered": rows.covered.mean(1).tolist(), "whole": whole}


def write_matches(folder: Path, key: str, a: sparse.csr_array, b: sparse.csr_array) -> None:
    """Write the most similar dimension of the other run, for the dimensions of both runs."""
    arrays: Arrays = {}
    for name, x, y in (("first", a, b), ("second", b, a)):
        match, cosine = nearest_rows(columns_of(x), 1, columns_of(y))
        arrays |= {f"{name}.match": match, f"{name}.cosine": quantize(cosine)}
    _write(folder, key, {}, arrays)


def _tabulate(summary: dict | None) -> dict | None:
    """Turn figures into a table with a row per measure and a column per definition."""
    groups = {str(k): v for k, v in (summary or {}).items() if isinstance(v, dict)}
    measures = dict.fromkeys(name for group in groups.values() for name in group)
    rows = [[str(name), *(_number(g.get(name)) for g in groups.values())] for name in measures]
    rows = [row for row in rows if row[1:].count(None) < len(groups)]
    return {"columns": list(groups), "rows": rows} if rows else None


def _share(percent: Any) -> Any:
    return None if percent is None else percent / 100


def _number(value: Any) -> float | None:
    number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    return float(value) if number and np.isfinite(value) else None


def _write(folder: Path, key: str, plain: dict, arrays: Arrays | None = None) -> None:
    """Write data/KEY.js, a call of atlasData; an array becomes its type and base64.

    NaN becomes 0.
    """
    packed = {name: _pack(x) for name, x in (arrays or {}).items() if x is not None}
    text = json.dumps([key, plain, packed], allow_nan=False, separators=(",", ":"))
    text = text.replace("<", "\\u003c")  # so that no text can end a script element
    (folder / "data" / f"{key}.js").write_text(f"atlasData({text[1:-1]});\n", "ascii")


def _pack(x: np.ndarray) -> tuple[str, str]:
    if x.dtype == bool:
        x = np.packbits(x.ravel(), bitorder="little")
    elif x.dtype.kind == "f":
        x = np.nan_to_num(x).astype(np.float32)
    elif x.dtype != np.int16:  # int16 are signed, from `quantize`
        x = x.astype(np.min_scalar_type(int(x.max(initial=0))))
    raw = np.ascontiguousarray(x, x.dtype.newbyteorder("<")).tobytes()
    return f"{x.dtype.name.capitalize()}Array", base64.b64encode(raw).decode()
