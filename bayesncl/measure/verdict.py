"""The verdict on a code: at most nine figures beside chance and control, each with what to do.

It is plain data, as JSON holds it: `images`, `dimensions`, `collapsed` and `lines`.
"""

import math
from html import escape
from typing import Any

from bayesncl.errors import wrap
from bayesncl.measure.columns import SAME
from bayesncl.measure.dimensions import MIN_SUPPORT, OWNED_PRECISION, OWNED_RECALL
from bayesncl.measure.result import Figure, Result, Tree
from bayesncl.measure.topk import CLASS_KEPT, KEPT, TOP

ALIKE = 7  # a dimension is readable if so many of its TOP strongest images share a class
MIN_IMAGES = 50  # below, single dimensions are not judged
NOISE_QUANTILE = 0.95  # over dimensions fitted to noise, which a readable dimension exceeds
DENSE_SHARE = 0.5  # share of dimensions active per image from which codes are dense
MANY_COPIES = 4  # dimensions in use per effective dimension from which fewer are advised
MANY_TWINS = 0.2  # share of dimensions with a twin from which fewer are advised
FAR_BELOW = 10  # points of precision@5 below the full embedding from which more are advised
UNSTABLE = 0.5  # mean cosine between seeds below which single dimensions are not reliable
ABOUT_ONE_CLASS = "dimensions about one class"
UNKNOWN = Figure(None)
WIDTH, LABEL_WIDTH, FIGURE_WIDTH = 80, 37, 12


def judge(found: Result, images: int, dimensions: int, classes: int | None) -> Tree:
    """The verdict on the measures of a code, the most important line first.

    `classes` is None without labels.
    """
    judgeable = images >= MIN_IMAGES
    lines = []
    if collapsed := found.coverage["collapsed"]:
        advice = "Ignore the figures below. "
        advice += "Train longer, or with fewer dimensions or another method."
        rule, reason = "coverage of the images", found.coverage["reason"]
        lines.append(_line("collapsed", "Collapsed", reason, "", advice, rule))
    if judgeable:
        lines.append(_readable(found, dimensions))
    else:
        advice = f"Too few to judge single dimensions: use {MIN_IMAGES} or more."
        rule = "number of images"
        lines.append(_line("images", "images", f"{images:,}", "", advice, rule, Figure(images)))
    if classes is None:
        why, advice = "no labels were given", "Give labels of two or more classes to measure this."
        lines.append(_line("classes", ABOUT_ONE_CLASS, "unknown", why, advice, "labels"))
    elif judgeable:
        lines += [_one_class(found), _own_dimension(found, classes)]
    if found[f"kept/{KEPT}/p5"].value is not None:
        lines.append(_precision(found, dimensions))
    lines.append(_activity(found, images, dimensions, classes is not None))
    lines.append(_effective_number(found, dimensions))
    if found.labelfree and judgeable:
        lines.append(_intruders(found))
    if found["seeds/mean_cosine"].value is not None:
        lines.append(_stability(found))
    return {"images": images, "dimensions": dimensions, "collapsed": collapsed, "lines": lines}


def _line(
    key: str, label: str, figure: str, beside: str, advice: str, measured_by: str,
    numbers: Figure = UNKNOWN,
) -> Tree:  # fmt: skip
    """One figure beside chance and control, with its advice; `text` is all that as a sentence."""
    line = {"key": key, "label": label, "figure": figure, "beside": beside, "advice": advice}
    line["measured_by"] = measured_by
    values = {k: None if v is None else float(v) for k, v in numbers._asdict().items()}
    text = f"{label}: {figure}{f' ({beside})' * bool(beside)}. {advice}".rstrip()
    return line | values | {"text": text[0].upper() + text[1:]}


class Verdict(Tree):
    """A verdict that prints as a table, in a notebook too; ``verdict["lines"]`` are its lines."""

    def __repr__(self) -> str:
        return render(self)

    def _repr_html_(self) -> str:
        return render_html(self)


def render(tree: Tree) -> str:
    """The verdict as text with aligned figures."""
    parts = [_header(tree)]
    indent = " " * (LABEL_WIDTH + FIGURE_WIDTH + 3)
    for line in tree["lines"]:
        if line["key"] == "collapsed":
            head = f"{line['label']}: {line['figure']}."
            parts.append(wrap(head, WIDTH, later="    "))
        else:
            head = f"{line['label']:<{LABEL_WIDTH}}{line['figure']:>{FIGURE_WIDTH}}   "
            row = wrap(line["beside"], WIDTH - len(indent))
            parts.append((head + row.replace("\n", "\n" + indent)).rstrip())
        if line["advice"]:
            parts.append(wrap(line["advice"], WIDTH, "    ", "    "))
    return "\n".join(parts)


def render_html(tree: Tree) -> str:
    """The verdict as an HTML table."""
    parts = [f"<b>{_header(tree)}</b>", "<table>"]
    for line in tree["lines"]:
        beside = "<br>".join(escape(line[key]) for key in ("beside", "advice") if line[key])
        figure = f'<b style="white-space:nowrap">{escape(line["figure"])}</b>'
        cells = [escape(line["label"]), figure, beside]
        row = "".join(f'<td style="text-align:left">{cell}</td>' for cell in cells)
        parts.append(f'<tr title="{escape(line["measured_by"])}">{row}</tr>')
    return "\n".join([*parts, "</table>"])


def _header(tree: Tree) -> str:
    of = f" of {tree['sampled_from']:,}" if "sampled_from" in tree else ""
    return f"{tree['images']:,}{of} images, {tree['dimensions']:,} dimensions"


def _readable(found: Result, dimensions: int) -> Tree:
    label = "readable dimensions"
    if not found.readable:
        advice = "Give labels, or embeddings of the images, to count them."
        return _line("readable", label, "unknown", "", advice, "labels or embeddings of the images")
    count, chance, control = figure = found["readable/count"]
    by, noise = (found.readable.get(key) for key in ("by", "noise"))
    beside, advice = figure.beside(), ""
    rule = f"at least {ALIKE} of the {TOP} strongest images share a {by}"
    if by == "embeddings":
        judge = found.labelfree["by"]
        judge += "" if judge == "a second encoder" else ", which favor codes made from them"
        rule = f"mean cosine of the {TOP} strongest images by {judge}: at least halfway from {TOP} "
        rule += "random images to an image and its neighbors"
    if noise is not None:
        beside += f", noise {noise:,}"
        rule += f", and above {NOISE_QUANTILE:.0%} of dimensions fitted to shuffled columns (noise)"
    if count and control is not None and control >= count:
        advice = "An untrained head has as many: training added none. Use more images or steps."
    distinct = max(found["coverage/distinct"].value or 0, 1)
    for name, other in (("noise", noise), ("chance", chance)):
        if count and other is not None:
            # two standard deviations of the difference of two shares; copies count together
            share = other / dimensions
            spread = 2 * (2 * share * (1 - share) / distinct) ** 0.5
            if count / dimensions <= share + spread:
                advice = f"Within {name}: they say nothing about these images. Use more images."
    if found.readable.get("largest_class", ALIKE) < ALIKE:
        advice = f"No class has {ALIKE} of these images, so none can be: use coarser labels "
        advice += "or more images."
    text = f"{count:,.0f} of {dimensions:,}"
    return _line("readable", label, text, beside, advice, rule, figure)


def _one_class(found: Result) -> Tree:
    rule = "at least half of the images that keep a dimension are of one class; "
    rule += f"{CLASS_KEPT} kept per image, dimensions kept by {MIN_SUPPORT} or more images"
    figure = found[f"kept/{CLASS_KEPT}/about_one_class"]
    if figure.value is None:
        advice = "No dimension is kept by enough images: use more images or fewer dimensions."
        return _line("one_class", ABOUT_ONE_CLASS, "none", "", advice, rule)
    beside = figure.beside(_percent)
    if clearest := found.readable.get("clearest"):
        prefix = "class " if clearest["class"].removeprefix("-").isdigit() else ""
        beside += f"; clearest: z{clearest['dimension']} ({prefix}{clearest['class']})"
    return _line("one_class", ABOUT_ONE_CLASS, _percent(figure.value), beside, "", rule, figure)


def _own_dimension(found: Result, classes: int) -> Tree:
    figure = found[f"kept/{CLASS_KEPT}/classes_owned_evenly"]
    count = figure.value or 0
    rule = f"a dimension with precision {OWNED_PRECISION} and recall {OWNED_RECALL} for the class, "
    rule += "or half of an even share where dimensions far outnumber classes"
    advice = ""
    if count < classes / 2:
        more = "more images per class"
        if not _has_copies(found):  # otherwise the advice on copies is fewer dimensions
            more = f"more dimensions, or {more}"
        advice = f"Most classes share their dimensions: try {more}."
    label, text = "classes with a dimension of their own", f"{count:,.0f} of {classes:,}"
    return _line("own_dimension", label, text, figure.beside(), advice, rule, figure)


def _precision(found: Result, dimensions: int) -> Tree:
    p5, _, control = figure = found[f"kept/{KEPT}/p5"]
    paths = f"kept/{KEPT}/l0", f"kept/{KEPT}/probe", "whole/p5"
    l0, probe, full = (found[path].value for path in paths)
    beside, advice = figure.beside(_percent), ""
    if full is not None:
        of = found.whole["of"]
        of = "full embedding" if of == "the whole embedding" else "all dimensions"
        beside = f"{of} {_percent(full)}, {beside}"
    if probe is not None:
        beside += f"; linear probe {_percent(probe)}"
    if control is not None and control >= p5:
        advice = "No better than an untrained head: train longer, or on more images."
    elif full is not None and full - p5 > FAR_BELOW:
        advice = "Far below the full embedding: keep more dimensions per image."
    active = 1 if (l0 or 0) < 1.5 else min(KEPT, dimensions)
    label = f"precision@5 with {active} active dimension{'s' * (active > 1)}"
    rule = "share of the 5 nearest images by cosine that have the class of the query"
    return _line("precision", label, _percent(p5), beside, advice, rule, figure)


def _activity(found: Result, n: int, width: int, labeled: bool) -> Tree:
    without = round(found.coverage["images_without"] * n)
    figure = found["coverage/l0"]
    l0 = figure.value
    key, beside, advice = "activity", f"{without:,} of {n:,} images have none", ""
    if l0 > DENSE_SHARE * width and width > 2 * KEPT:
        key, beside = "dense", f"of {width:,}"
        advice = "Most dimensions are active on every image: keep the strongest per image"
        if labeled:
            advice += f", and read consistency at {KEPT} kept, as it is near chance otherwise"
        advice += "."
    elif without > n / 10:
        advice = "Many images have no active dimension: use more dimensions, or sparsify less."
    label, rule = "active dimensions per image", "|z| above 1e-5 in rows of unit length"
    return _line(key, label, f"{l0:,.1f}", beside, advice, rule, figure)


def _effective_number(found: Result, dimensions: int) -> Tree:
    live, label = found.coverage["live"], "effective number of dimensions"
    if not live:
        advice = "All dimensions are dead: train longer, or sparsify less."
        return _line("effective", label, "0", "", advice, "activity on any image", Figure(0))
    count, _, control = figure = found["coverage/distinct"]
    beside = f"{live:,} in use, {dimensions - live:,} dead"
    beside += "" if control is None else f"; untrained {control:,.0f}"
    advice = ""
    fewer = max(2, 2 ** math.ceil(math.log2(max(count, 1))))
    if _has_copies(found) and count >= 1 and fewer < live:
        advice = f"Many dimensions repeat each other: try {fewer:,} dimensions."
    rule = "exp of the entropy of their usage, correlated columns counted together"
    return _line("effective", label, f"{count:,.0f}", beside, advice, rule, figure)


def _has_copies(found: Result) -> bool:
    """Whether many dimensions repeat each other."""
    distinct = found["coverage/distinct"].value or 0
    crowded = found.coverage["live"] > MANY_COPIES * distinct
    return crowded or found.coverage["twins"] > MANY_TWINS


def _intruders(found: Result) -> Tree:
    measured, label = found.labelfree, "intruders found"
    rule = "of 4 images a dimension fires on strongly and one it does not, the least alike by "
    rule += measured["by"]
    if measured["intruder"] is None:
        advice = "No dimension fires on four different images: use more images."
        return _line("intruder", label, "none", "", advice, rule)
    shares = found["labelfree/intruder"]
    figure = Figure(*(None if each is None else 100 * each for each in shares))
    low, high = (100 * measured[f"intruder_{end}"] for end in ("low", "high"))
    beside = f"{low:.0f} to {high:.0f} %; {figure.beside(_percent)}"
    advice = "Not above chance: the images of a dimension have nothing visible in common."
    advice = advice if low <= figure.chance else ""
    return _line("intruder", label, _percent(figure.value), beside, advice, rule, figure)


def _stability(found: Result) -> Tree:
    cosine, _, control = figure = found["seeds/mean_cosine"]
    share = found["seeds/share_same"].value
    parts = [] if share is None else [f"{_percent(100 * share)} of the dimensions come back"]
    parts += [] if control is None else [f"untrained {control:.2f}"]
    advice = "Single dimensions depend on the seed: use more images or fewer dimensions."
    advice = advice if cosine < UNSTABLE else ""
    rule = f"mean cosine of columns matched one to one; back: cosine above {SAME}"
    label, beside = "same dimensions from another seed", "; ".join(parts)
    return _line("seeds", label, f"{cosine:.2f}", beside, advice, rule, figure)


def _percent(share: Any) -> str:
    return f"{share:.0f} %" if share >= 1 or share == 0 else "under 1 %"
