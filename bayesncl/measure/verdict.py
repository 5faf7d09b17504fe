"""A verdict on a code in at most eight lines that a person understands, each with its chance and control."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..errors import InputError
from . import coverage, kept, labelfree
from .arrays import Array, as_features, as_labels
from .retrieval import retrieval
from .sparse import Codes, as_codes, strongest_images

TOP, ALIKE = 10, 7  # a dimension is readable if so many of its strongest images share a class
KEPT = 5  # dimensions kept an image
ABOUT = 0.5  # a dimension is about a class that has this share of the images that keep it
DENSE = 0.5  # share of entries that fire from which an image is said to use all dimensions
FEW_IMAGES = 50  # below, nothing is said of single dimensions
QUERIES = 2000  # images that retrieval asks with, at most
REFERENCE = 512  # groups of ten images that tell how alike chance and neighbours are
WIDTH = 80


@dataclass(frozen=True)
class Line:
    """One finding: in words, by which rule, and the figure with labels shuffled and of an untrained head."""

    text: str
    measured_by: str
    value: float | None = None
    chance: float | None = None
    control: float | None = None


@dataclass(frozen=True)
class Verdict:
    """What can be said of a code; the most important first."""

    lines: tuple[Line, ...]
    images: int
    dimensions: int
    collapsed: bool


def verdict(
    z: Array,
    labels: Array | None = None,
    *,
    label_names: Sequence[str] | Mapping[Any, str] | None = None,
    levels: Mapping[str, Array] | None = None,
    embeddings: Array | None = None,
    second: bool = False,
    control: Array | None = None,
    train: tuple[Array, Array] | None = None,
    stability: Mapping[str, float | None] | None = None,
    seed: int = 0,
) -> Verdict:
    """Judge the codes of images nobody fitted them on.

    Parameters
    ----------
    z : [N, D] numpy, torch or scipy sparse.
    labels : [N]; without them, `embeddings` tell what is alike.
    label_names : names of the labels, by label or in the order of whole-number labels.
    levels : coarser labels [N] by name (``{"superclass": ...}``); a dimension may be readable at any level.
    embeddings : [N, F] of the same images, those the codes were made from or a second encoder's.
    second : whether the embeddings are a second encoder's; only then they are no judge in their own cause.
    control : codes [N, D] of an untrained head.
    train : codes and labels of training rows, for a linear probe of the kept codes.
    stability : what `stability.summary` returns for this code and that of another seed.
    seed : of shuffled labels and drawn images.
    """
    codes = as_codes(z)
    n, width = codes.shape
    other = None if control is None else as_codes(control)
    if other is not None and other.shape != codes.shape:
        raise InputError(f"the control must be {list(codes.shape)} as the codes are, got {list(other.shape)}")
    given = None if embeddings is None else labelfree.prepare(embeddings, n)
    known = _labels(labels, n)
    found = coverage.summary(codes, seed=seed)
    lines = []
    if found["collapsed"]:
        lines.append(Line(f"Collapsed: {found['reason']}. The other lines mean little.", "coverage of the images"))
    if n < FEW_IMAGES:
        text = f"{n:,} images are too few to judge single dimensions by: {FEW_IMAGES} or more are needed."
        lines.append(Line(text, "number of images", float(n)))
    else:
        lines.append(_readable(codes, other, known, levels, given, second, seed))
    if known is not None and n >= FEW_IMAGES:
        lines.append(_one_class(codes, other, known, label_names, labels, seed))
    elif known is None:
        why = "no labels were given" if labels is None else "all images have one label"
        lines.append(Line(f"Nothing is said of classes: {why}.", "labels"))
    if known is not None and n > KEPT + 1:
        lines.append(_retrieval(codes, other, known, embeddings, train, labels, seed))
    control_found = None if other is None else coverage.summary(other, seed=seed)
    lines.append(_activity(found, control_found, n, width))
    lines.append(_distinct(found, control_found))
    if given is not None and n >= FEW_IMAGES:
        lines.append(_intruder(codes, other, given, second, seed))
    if stability is not None and stability.get("mean_cosine") is not None:
        lines.append(_stability(stability))
    return Verdict(tuple(lines), n, width, found["collapsed"])


def _labels(labels: Array | None, n: int) -> np.ndarray | None:
    """Labels from 0, or None where there are none or one class only."""
    if labels is None:
        return None
    plain = labels.detach().cpu().numpy() if hasattr(labels, "detach") else np.asarray(labels)
    if plain.shape == (n,) and len(np.unique(plain)) < 2:
        return None
    return as_labels(plain, n)[0]


def readable(
    top: np.ndarray, labellings: Sequence[np.ndarray] = (), embeddings: np.ndarray | None = None, *, seed: int = 0
) -> np.ndarray:
    """Which dimensions are readable, bool [D]: their ten strongest images [D, 10], -1 for none, are alike.

    With labels: at least 7 of the ten share a class, by any of the labellings (int [N] from 0). Else by embeddings, as
    `labelfree.prepare` gives them: the mean cosine of the ten is at least half-way from that of ten random images to
    that of an image and its nine nearest neighbours. A dimension that fires on fewer than ten images is not readable.
    """
    if len(labellings):
        return np.any([_largest(top, labels) >= ALIKE for labels in labellings], axis=0)
    if embeddings is None:
        raise InputError("readable dimensions need labels or embeddings to tell what is alike")
    low, high = likeness(embeddings, seed=seed)
    alike = labelfree.mean_alike(top, embeddings)
    return ~np.isnan(alike) & (np.nan_to_num(alike, nan=-1.0) >= (low + high) / 2)


def _largest(top: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """How many of the images [D, T] share the most frequent label; 0 where fewer than T fire."""
    ordered = np.sort(labels[top], axis=1)
    run, most = np.ones(len(top), np.int64), np.ones(len(top), np.int64)
    for t in range(1, top.shape[1]):
        run = np.where(ordered[:, t] == ordered[:, t - 1], run + 1, 1)
        most = np.maximum(most, run)
    return np.where((top >= 0).all(1), most, 0)


def likeness(embeddings: np.ndarray, *, seed: int = 0) -> tuple[float, float]:
    """Mean cosine of ten random images, and of an image and its nine nearest neighbours."""
    rng = np.random.default_rng(seed)
    n = len(embeddings)
    count = min(TOP, n)
    random = np.stack([rng.choice(n, count, replace=False) for _ in range(REFERENCE)])
    seeds = rng.choice(n, min(n, REFERENCE), replace=False)
    near = []
    for start in range(0, len(seeds), 64):
        cosine = embeddings[seeds[start : start + 64]] @ embeddings.T
        near.append(np.argpartition(-cosine, count - 1, axis=1)[:, :count])
    low, high = (labelfree.mean_alike(rows, embeddings).mean() for rows in (random, np.concatenate(near)))
    return float(low), float(high)


def _readable(
    codes: Codes,
    other: Codes | None,
    known: np.ndarray | None,
    levels: Mapping[str, Array] | None,
    given: np.ndarray | None,
    second: bool,
    seed: int,
) -> Line:
    n, width = codes.shape
    top, other_top = strongest_images(codes, TOP), None if other is None else strongest_images(other, TOP)
    order = np.random.default_rng(seed).permutation(n)
    if known is not None:
        labellings = [known, *(as_labels(y, n)[0] for y in (levels or {}).values())]
        kind = " or ".join(["class", *(levels or {})])
        counts = [
            None if rows is None else int(readable(rows, y).sum())
            for rows, y in ((top, labellings), (top, [y[order] for y in labellings]), (other_top, labellings))
        ]
        what = f"at least {ALIKE} of their {TOP} strongest images share a {kind}"
        rule = f"the {TOP} strongest images of a dimension by |z|, and their labels"
    elif given is not None:
        counts = [
            None if rows is None else int(readable(rows, (), e, seed=seed).sum())
            for rows, e in ((top, given), (top, given[order]), (other_top, given))
        ]
        what = f"their {TOP} strongest images are alike"
        by = "a second encoder" if second else "the embeddings given, which favour codes made from them"
        rule = f"mean cosine by {by}: half-way or more from {TOP} random images to an image and its neighbours"
    else:
        return Line("How many dimensions are readable needs labels or embeddings to tell.", "nothing")
    value, chance, control = counts
    text = f"{value:,} of {width:,} dimensions are readable: {what} ({_beside(f'{chance:,}', control)})."
    return Line(text, rule, float(value or 0), float(chance or 0), None if control is None else float(control))


def _one_class(
    codes: Codes, other: Codes | None, known: np.ndarray, names: Any, labels: Array | None, seed: int
) -> Line:
    classes = int(known.max()) + 1
    sizes = np.bincount(known)
    shuffled = np.random.default_rng(seed).permutation(known)
    shares: list[float | None] = []
    own: list[int] = []
    example = ""
    for c, y in ((codes, known), (codes, shuffled), (other, known)):
        if c is None:
            shares.append(None)
            continue
        counts = kept.class_counts(kept.keep(c, KEPT), y, classes)
        support, share, best = kept.largest_shares(counts)
        used = support >= kept.MIN_SUPPORT
        shares.append(float(100 * (share[used] >= ABOUT).mean()) if used.any() else None)
        own.append(kept.owned_classes(counts, sizes))
        if c is codes and y is known and used.any():
            j = int(np.where(used, share, -1).argmax())
            if share[j] >= ABOUT:
                example = f"; the clearest is dimension {j}, {_name(int(best[j]), known, names, labels)}"
    rule = (
        f"{KEPT} strongest dimensions an image, dimensions kept by {kept.MIN_SUPPORT} or more; a class has its own "
        f"with precision {kept.OWNED[0]} and recall {kept.OWNED[1]}"
    )
    value, chance, control = shares
    if value is None:
        return Line("No dimension is kept by enough images to be about a class.", rule)
    beside = _beside(_percent(chance), None if control is None else _percent(control))
    text = (
        f"{_percent(value)} are about one class, that of half the images that keep them or more ({beside}); "
        f"{own[0]:,} of {classes:,} classes have a dimension of their own{example}."
    )
    return Line(text, rule, value, chance, control)


def _retrieval(
    codes: Codes,
    other: Codes | None,
    known: np.ndarray,
    embeddings: Array | None,
    train: tuple[Array, Array] | None,
    labels: Array | None,
    seed: int,
) -> Line:
    n = len(known)
    asked = None if n <= QUERIES else np.sort(np.random.default_rng(seed).choice(n, QUERIES, replace=False))
    five = kept.keep(codes, KEPT)
    value = kept.precision(five, [known], 5, asked)[0]
    # a random other image is right as often as its class is frequent
    sizes = np.bincount(known)
    chance = float(100 * (sizes * (sizes - 1)).sum() / (n * (n - 1)))
    control = None if other is None else kept.precision(kept.keep(other, KEPT), [known], 5, asked)[0]
    whole = ""
    source, what = (codes, "all dimensions") if embeddings is None else (as_features(embeddings), "the whole embedding")
    if embeddings is not None:
        source = source.astype(np.float32) - source.mean(0, dtype=np.float32)
    dense = source.toarray() if hasattr(source, "toarray") and source.shape[0] * source.shape[1] < 2**26 else source
    if isinstance(dense, np.ndarray):
        whole = f"{what}: {retrieval(dense, known, ks=(5,), queries=asked)[5]:.0f}, "
    probed = ""
    if train is not None:
        accuracy = kept.probe(kept.keep(train[0], KEPT), train[1], five, labels, seed=seed)["acc1"]
        probed = f" A linear probe on them is right for {accuracy:.0f} of 100."
    begin = "One dimension an image retrieves" if five.nnz < 1.5 * n else f"{KEPT} dimensions an image retrieve"
    text = (
        f"{begin} {value:.0f} of 100 right "
        f"({whole}{_beside(f'{chance:.0f}', None if control is None else f'{control:.0f}')}).{probed}"
    )
    rule = "share of the 5 nearest images by cosine that have the class of the image"
    return Line(text, rule if asked is None else f"{rule}; {QUERIES:,} images ask", value, chance, control)


def _activity(found: dict[str, Any], control: dict[str, Any] | None, n: int, width: int) -> Line:
    without = round(found["images_without"] * n)
    rule = "|z| above 1e-5 in rows of unit length"
    if found["l0"] > DENSE * width and width > 2 * KEPT:
        text = (
            f"Nearly every dimension fires on every image ({found['l0']:,.0f} of {width:,}), so that consistency over "
            f"the images it fires on is chance by construction: read it at {KEPT} kept dimensions instead."
        )
    else:
        text = f"An image has {found['l0']:,.1f} active dimensions; {without:,} of {n:,} images have none."
    return Line(text, rule, found["l0"], None, None if control is None else control["l0"])


def _distinct(found: dict[str, Any], control: dict[str, Any] | None) -> Line:
    live, dead = found["live"], round(found["dead_share"] * found["live"] / max(1e-12, 1 - found["dead_share"]))
    if not live:
        return Line("All dimensions are dead.", "firing on any image", 0.0)
    beside = "" if control is None else f" (untrained {control['distinct']:,.0f})"
    text = (
        f"{live:,} dimensions are in use, {dead:,} dead; they do the work of {found['distinct']:,.0f} distinct ones"
        f"{beside}."
    )
    rule = "exp of the entropy of their usage, correlated columns counted together"
    return Line(text, rule, found["distinct"], None, None if control is None else control["distinct"])


def _intruder(codes: Codes, other: Codes | None, given: np.ndarray, second: bool, seed: int) -> Line:
    found = labelfree.intruder(codes, given, seed=seed)
    rule = "of 4 images a dimension fires on strongly and one it does not, the least alike by " + (
        "a second encoder" if second else "the embeddings given"
    )
    if found["intruder"] is None:
        return Line("No dimension fires on four images that differ: no intruder to find.", rule)
    control = None if other is None else labelfree.intruder(other, given, seed=seed)["intruder"]
    value, low, high = (100 * found[name] for name in ("intruder", "intruder_low", "intruder_high"))
    beside = _beside("20", None if control is None else f"{100 * control:.0f}")
    text = (
        f"A machine finds the image that does not belong in {value:.0f} of 100 tries "
        f"({low:.0f} to {high:.0f}; {beside})."
    )
    return Line(text, rule, value, 20.0, None if control is None else 100 * control)


def _stability(figures: Mapping[str, float | None]) -> Line:
    value, control, share = (figures.get(name) for name in ("mean_cosine", "mean_cosine_control", "share_same"))
    beside = "" if control is None else f"; untrained {control:.2f}"
    same = "" if share is None else f", and {_percent(100 * share)} of the dimensions come back"
    text = f"Another seed finds them again with a mean cosine of {value:.2f}{same}{beside}."
    return Line(text, "columns matched one to one; back: cosine above 0.7", value, None, control)


def _name(label: int, known: np.ndarray, names: Any, labels: Array | None) -> str:
    original = labels[int(np.flatnonzero(known == label)[0])]  # type: ignore[index]
    original = original.item() if hasattr(original, "item") else original
    if names is not None:
        if isinstance(names, Mapping):
            return str(names.get(original, original))
        if isinstance(original, int | float) and 0 <= original < len(names):
            return str(names[int(original)])
    return str(original)


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0f} %" if value >= 1 or value == 0 else "under 1 %"


def _beside(chance: str, control: Any) -> str:
    return f"chance {chance}" + ("" if control is None else f", untrained {control}")


def render(found: Verdict, width: int = WIDTH) -> str:
    """The verdict as plain text, wrapped, with how each line was measured below it."""
    parts = [f"{found.images:,} images, {found.dimensions:,} dimensions"]
    for line in found.lines:
        parts.append(textwrap.fill(line.text, width, initial_indent="- ", subsequent_indent="  "))
        parts.append(textwrap.fill(f"[{line.measured_by}]", width, initial_indent="    ", subsequent_indent="    "))
    return "\n".join(parts)


def to_dict(found: Verdict) -> dict[str, Any]:
    """The verdict as plain values, for JSON."""
    return {
        "images": found.images,
        "dimensions": found.dimensions,
        "collapsed": found.collapsed,
        "lines": [asdict(line) for line in found.lines],
    }
