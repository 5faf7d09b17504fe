"""The data files of the page: scripts with base64, because a page on disk cannot fetch files."""

import base64
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from bayesncl.atlas import ranking
from bayesncl.atlas.pictures import Photos, large_side, picture_size, thumbnail_side, write_sprites
from bayesncl.atlas.ranking import Labels, Top
from bayesncl.codes.heat import Heatmaps
from bayesncl.codes.names import Annotations, names_tree
from bayesncl.data.images import Images, spread_evenly
from bayesncl.errors import InputError
from bayesncl.measure import vectors
from bayesncl.measure.dimensions import Dimensions, describe, mean, most_mixed, most_suppressed
from bayesncl.measure.labelfree import draw_trials
from bayesncl.measure.neighbors import nearest_rows
from bayesncl.measure.rows import fired
from bayesncl.measure.topk import strongest
from bayesncl.measure.vectors import SCALE, columns_of, quantize

TOP_IMAGES = 200  # on the page of a dimension
STRIP_IMAGES = 12  # of a dimension elsewhere
NEIGHBORS = 12  # of an image and of a dimension
HISTOGRAM_BINS = 24
FEATURES_PER_RUN = 1_280_000  # stored, divided among the images; at least 64 per image
DIMS_PER_FILE, IMAGES_PER_FILE = 128, 500
GALLERY_DIMS = 24
QUIZ_DIMS, QUIZ_TRIALS = 1024, 2  # dimensions in the quiz, questions for each
PAGE_SIDE = 224  # pixels, of a picture on the page of a job
OVERVIEW_STRIPS = 24  # dimensions with different images at the head of the overview

Tree = dict[str, Any]  # what a data file holds: JSON values, NumPy arrays, None
JobPage = tuple[Tree, Images | Photos | None]  # result of a job, and the images that it names


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
    explain : a classifier on these codes, as `jobs.explain` keeps it.
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


def prepare(run: AtlasRun, images: Images | Photos) -> AtlasRun:
    """Check the arrays of a run, and return it with CSR features of unit rows.

    `gated` is None without gates, `open` is None without hard gates.
    """
    arrays = {"z": run.z, "gated": run.gated, "open": run.open}
    shapes = {name: np.shape(x) for name, x in arrays.items() if x is not None}
    shape = (len(images), *shapes["z"][1:2])
    if len(shape) < 2 or set(shapes.values()) != {shape}:
        seen = ", ".join(f"{name} {list(each)}" for name, each in shapes.items())
        raise InputError(f"run {run.name!r}: wanted [{len(images)}, D] for each array; got {seen}")
    try:
        z, gated = (None if x is None else fired(x) for x in (run.z, run.gated))
    except InputError as error:
        raise InputError(f"run {run.name!r}: {error}") from None
    open = None if run.open is None else np.asarray(run.open, dtype=bool)
    if gated is None and open is not None:
        gated = vectors.mask_rows(z, open)
    elif gated is not None and open is None and abs(gated - z).max() <= 1e-6:
        gated = None
    return replace(run, z=z, gated=gated, open=open, fingerprint=run.fingerprint or _hash(z))


def _hash(z: sparse.csr_array) -> str:
    some = spread_evenly(z.nnz, 1 << 16)
    indices = z.indices[some].astype("<i8").tobytes()
    parts = str(z.shape).encode() + indices + quantize(z.data[some]).tobytes()
    return hashlib.blake2b(parts, digest_size=8).hexdigest()


def write_data(
    folder: Path, runs: list[AtlasRun], images: Images | Photos, title: str,
    pages: Mapping[str, JobPage],
) -> None:  # fmt: skip
    """Write the data files and pictures of prepared runs and of the pages of jobs."""
    labels = ranking.number_labels(images.labels, images.class_names)
    backgrounds = ranking.number_labels(images.backgrounds, images.background_names)
    for r, run in enumerate(runs):
        write_run(folder, f"run{r}", run, labels, backgrounds)
        if r:  # the most similar dimension of this run for each dimension of the first
            match, cosine = nearest_rows(columns_of(runs[0].z), 1, columns_of(run.z))
            write(folder, f"compare-{r}", {"match": match, "cosine": quantize(cosine)})
    number = {name: i for i, name in enumerate(images.names or ())}
    for key, (tree, shown) in pages.items():
        names = () if shown is None else shown.names or ()
        tree = tree | {"names": names, "shown": [number.get(name, -1) for name in names]}
        if shown is not None:
            tree["sprites"] = write_sprites(shown, folder / key, PAGE_SIDE, whole=True)
        write(folder, key, tree)
    n, root = len(images), images.root if isinstance(images, Photos) else None
    side, large = thumbnail_side(n), large_side(n)
    order = np.arange(n)
    if n > 1000:  # keep images together that are shown together: by their strongest dimension
        dims, values = (x[:, 0] for x in strongest(runs[0].z, 1))
        order = np.lexsort((-values, np.where(values == 0, runs[0].z.shape[1], dims)))
    tree = {
        "title": title, "count": n, "classes": labels.names, "backgrounds": backgrounds.names,
        "labels": labels.numbers, "backs": backgrounds.numbers, "named": images.names is not None,
        "pages": list(pages), "rooted": root is not None,
        "runs": [
            {
                "name": run.name, "sentence": run.sentence, "summary": _numbers(run.summary),
                "fingerprint": run.fingerprint, "verdict": run.verdict, "explain": run.explain,
                "names": run.names and names_tree([run.names])["codes"][0], "seen": run.seen,
            }
            for run in runs
        ],
        "files": {"dims": DIMS_PER_FILE, "images": IMAGES_PER_FILE}, "scale": SCALE,
        "place": np.argsort(order),
        "sprites": write_sprites(images, folder / "sprites", side, order),
    }  # fmt: skip
    if large and max(picture_size(images)) > side:
        tree["large"] = write_sprites(images, folder / "large", large, whole=True)
    write(folder, "atlas", tree)
    if root is not None:
        write(folder, "root", {"root": root})
    names = images.names or ()
    for i, a in enumerate(range(0, len(names), IMAGES_PER_FILE)):
        write(folder, f"names-{i}", {"names": names[a : a + IMAGES_PER_FILE]})


def _numbers(summary: dict | None) -> dict[str, dict[str, float]]:
    """The single numbers in the figures by definition."""
    number = (int, float, np.number)
    return {
        name: {key: float(v) for key, v in group.items() if isinstance(v, number)}
        for name, group in (summary or {}).items() if group
    }  # fmt: skip


def write_run(folder: Path, key: str, run: AtlasRun, labels: Labels, backgrounds: Labels) -> None:
    """Write the numbers of a run, before and after gating."""
    n, d = run.z.shape
    last = run.z if run.gated is None else run.gated
    keep = min(d, max(64, FEATURES_PER_RUN // n))
    rows, dims, stored, covered = vectors.sparsify(run.z, last, keep)
    core: Tree = {
        "dims": d, "gated": run.open is not None, "groups": run.groups,
        "keep": keep, "covered": covered.mean(1).tolist(),
        "whole": bool((covered > 1 - 1e-6).all()),
    }  # fmt: skip
    entries = {
        "dims": dims, "z": quantize(stored[0]),
        "gated": None if run.gated is None else quantize(stored[1]),
        "open": None if run.open is None else run.open[rows, dims],
    }  # fmt: skip
    counts, by_dim, by_image = Tree(), Tree(), Tree()
    for stage, x in (("before", run.z), ("after", run.gated)):
        if x is None:
            continue
        gates = run.open if stage == "before" else None
        table = describe(x, labels.index, backgrounds=backgrounds.index, open=gates)
        top = index, value = vectors.top_images(x, TOP_IMAGES)
        near, cosine = nearest_rows(columns_of(x), NEIGHBORS)
        shapes, edges = vectors.histograms(x, HISTOGRAM_BINS)
        core[stage] = _statistics(x, table, top, labels, backgrounds)
        core[stage]["twin"] = ranking.fold_twins(near, cosine, core[stage]["clarity"])
        counts[stage] = {"classes": table.class_counts, "backgrounds": table.background_counts}
        by_dim[stage] = {
            "index": index, "value": quantize(value), "histogram": shapes, "edges": edges,
            "near": near, "cosine": quantize(cosine),
            "open": None if run.open is None else run.open[index, np.arange(d)[:, None]],
        }  # fmt: skip
        near, cosine = nearest_rows(x, NEIGHBORS)
        by_image[stage] = {"near": near, "similarity": quantize(cosine)}
        if table.closed_rate is not None:
            closed = np.nansum(table.closed_rate * table.support) / max(table.support.sum(), 1)
            core["closed"] = _share(closed)  # of the firing features
            core["suppressed"] = most_suppressed(table)[:GALLERY_DIMS]
            core["open_rate"] = _share(table.open_rate)
            core["closed_rate"] = _share(table.closed_rate)
            counts["open"] = table.open_counts
    if isinstance(run.heat, Heatmaps):
        core["heat"] = [*run.heat.maps.shape[1:], run.heat.share]
        core["check"] = [run.heat.check["hottest"], run.heat.check["random"]]
        by_image["hot"] = {"dims": run.heat.dims, "maps": run.heat.maps}
    else:
        core["no_heat"] = run.heat
    write(folder, key, core)
    some = np.random.default_rng(0).permutation(d)[:QUIZ_DIMS]
    quiz = draw_trials(last, trials=QUIZ_TRIALS, dims=some)
    asked = {"dims": quiz.dimension, "images": quiz.images, "odd": quiz.odd}
    write(folder, f"{key}-quiz", asked)
    if labels.names or backgrounds.names:
        write(folder, f"{key}-classes", counts)
    for i, a in enumerate(range(0, d, DIMS_PER_FILE)):
        write(folder, f"{key}-dims-{i}", _cut(by_dim, slice(a, a + DIMS_PER_FILE)))
    for i, a in enumerate(range(0, n, IMAGES_PER_FILE)):
        b = min(n, a + IMAGES_PER_FILE)
        start = np.searchsorted(rows, np.arange(a, b + 1))
        tree = _cut(by_image, slice(a, b)) | {"start": start - start[0]}
        tree |= _cut(entries, slice(start[0], start[-1])) | {"covered": covered[:, a:b]}
        write(folder, f"{key}-images-{i}", tree)


def _statistics(
    x: sparse.csr_array, dims: Dimensions, top: Top, labels: Labels, backgrounds: Labels
) -> Tree:
    """What the page shows of all dimensions at once."""
    score = ranking.clarity(x, top)
    consistent = None if dims.consistency is None else mean(dims.consistency[dims.counted])
    # kind 1: a class stands out, 2: a background, 0: neither
    one, share, log_p = ranking.prominent_class(top, labels)
    two, share_two, log_p_two = ranking.prominent_class(top, backgrounds)
    second, mixed = log_p_two < log_p, most_mixed(dims)
    return {
        "dead": int(dims.dead.sum()), "supported": int(dims.counted.sum()), "active": dims.l0,
        "mean_consistency": _share(consistent), "support": dims.support, "mass": dims.mass,
        "clarity": score, "wall": ranking.pick_diverse(x, top, score, OVERVIEW_STRIPS),
        "mixed": mixed[share[mixed] < 0.5][:GALLERY_DIMS],  # no class has half the images
        "top": top[0][:, :STRIP_IMAGES], "shown": (top[1][:, :STRIP_IMAGES] > 0).sum(1),
        "consistency": _share(dims.consistency), "entropy_freq": dims.entropy_freq,
        "entropy_sum": dims.entropy_sum, "entropy_mean": dims.entropy_mean,
        "kind": np.where(second, 2, one >= 0), "share": np.where(second, share_two, share),
        "word": np.maximum(np.where(second, two, one), 0),
    }  # fmt: skip


def _share(percent: Any) -> Any:
    return None if percent is None else percent / 100


def _cut(tree: Tree, rows: slice) -> Tree:
    """Some rows of all arrays."""
    return {
        key: _cut(x, rows) if isinstance(x, dict) else None if x is None else x[rows]
        for key, x in tree.items()
    }


def write(folder: Path, key: str, tree: Tree) -> None:
    """Write data/KEY.js, a call of atlasData."""
    text = json.dumps([key, _pack(tree)], allow_nan=False, separators=(",", ":"))
    text = text.replace("<", "\\u003c")  # so that no text can end a script element
    (folder / "data" / f"{key}.js").write_text(f"atlasData({text[1:-1]});\n", "ascii")


def arguments(path: Path) -> str:
    """The arguments of the call in a data file, as a JSON list."""
    return f"[{path.read_text('ascii').strip().removeprefix('atlasData(').removesuffix(');')}]"


def _pack(x: Any) -> Any:
    """Turn arrays into their type and base64, with NaN as 0; a NaN outside of arrays into None."""
    if isinstance(x, dict):
        return {str(key): _pack(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [_pack(value) for value in x]
    if isinstance(x, float):
        return x if math.isfinite(x) else None
    if not isinstance(x, np.ndarray):
        return x
    if x.dtype == bool:
        x = np.packbits(x.ravel(), bitorder="little")
    elif x.dtype.kind == "f":
        x = np.nan_to_num(x).astype(np.float32)
    elif x.dtype != np.int16:  # int16 are signed, from `quantize`
        x = x.astype(np.min_scalar_type(int(x.max(initial=0))))
    raw = np.ascontiguousarray(x, x.dtype.newbyteorder("<")).tobytes()
    return {"array": x.dtype.name, "base64": base64.b64encode(raw).decode()}
