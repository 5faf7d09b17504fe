"""A verdict on a code in at most eight lines that a person understands, each with its chance and control."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..arrays import Array
from .counts import MIN_SUPPORT
from .dimensions import OWNED
from .measures import value
from .readable import ALIKE, FEW_IMAGES, KEPT, NOISE, TOP, figures

DENSE = 0.5  # share of entries that fire from which codes are called dense
DENSELY = "Most dimensions"  # so begins the line that says it
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

    images: int
    dimensions: int
    collapsed: bool
    lines: tuple[Line, ...]


def verdict(z: Array, labels: Array | None = None, **options: Any) -> Verdict:
    """Judge the codes of images nobody fitted them on; see `readable.figures` for the options."""
    return in_words(figures(z, labels, **{"ks": (KEPT,)} | options), labels is not None)


def in_words(found: Mapping[str, Any], labelled: bool = True) -> Verdict:
    """The figures of `readable.figures` in words; `labelled` where there were labels, be it of one class only."""
    n, width, known = found["images"], found["dimensions"], found["classes"] is not None
    collapsed = found["coverage"]["collapsed"]
    lines = []
    if collapsed:
        text = f"Collapsed: {found['coverage']['reason']}. The other lines mean little."
        lines.append(Line(text, "coverage of the images"))
    if n < FEW_IMAGES:
        text = f"{n:,} images are too few to judge single dimensions by: {FEW_IMAGES} or more are needed."
        lines.append(Line(text, "number of images", float(n)))
    else:
        lines.append(_readable(found))
    if not known:
        why = "all images have one label" if labelled else "no labels were given"
        lines.append(Line(f"Nothing is said of classes: {why}.", "needs labels of two classes or more"))
    elif n >= FEW_IMAGES:
        lines.append(_one_class(found))
    if known and look_up(found, f"kept/{KEPT}/p5")[0] is not None:
        lines.append(_retrieval(found))
    lines += [_activity(found), _distinct(found)]
    if "labelfree" in found and n >= FEW_IMAGES:
        lines.append(_intruder(found))
    if look_up(found, "seeds/mean_cosine")[0] is not None:
        lines.append(_stability(found))
    return Verdict(n, width, collapsed, tuple(lines))


def look_up(found: Mapping[str, Any], place: str) -> tuple[float | None, float | None, float | None]:
    """The figure at a place, such as `kept/5/p5`, with its chance level and that of the untrained head."""
    path = tuple(place.split("/"))
    values = [value(found, (*above, *path)) for above in ((), ("chance",), ("control",))]
    return tuple(None if each is None else float(each) for each in values)  # type: ignore[return-value]


def _readable(found: Mapping[str, Any]) -> Line:
    if "readable" not in found:
        text = "Without labels or embeddings it cannot be said how many dimensions are readable."
        return Line(text, "needs labels, or embeddings of the images")
    count, chance, control = look_up(found, "readable/count")
    by, noise = found["readable"]["by"], found["readable"].get("noise")
    beside = _beside(chance, control)
    are, their = ("is", "its") if count == 1 else ("are", "their")
    if by == "embeddings":
        who = found["labelfree"]["by"]
        second = who == "a second encoder"
        what = f"{their} {TOP} strongest images are alike by {who if second else 'the embeddings'}"
        who += "" if second else ", which favour codes made from them"
        rule = f"mean cosine by {who}: half-way or more from {TOP} random images to an image and its neighbours"
        if noise is not None:
            beside += f", noise {noise:,}"
            rule += f", and more than {NOISE:.0%} of dimensions fitted to the same columns, each shuffled (noise)"
    else:
        what = f"at least {ALIKE} of {their} {TOP} strongest images share a {by}"
        rule = f"the {TOP} strongest images of a dimension by |z|, and their labels"
    text = f"{count:,.0f} of {found['dimensions']:,} dimensions {are} readable: {what} ({beside})."
    for who, others in (("Chance", chance), ("Noise", noise)):
        if count and others is not None and others + 2 * others**0.5 >= count:  # two deviations of so rare a thing
            text += f" {who} {'has' if others >= count else 'could have'} as many: they say nothing of these images."
            return Line(text, rule, count, chance, control)
    if count and control is not None and control >= count:
        text += " An untrained head has as many: they say nothing of the training."
    return Line(text, rule, count, chance, control)


def _one_class(found: Mapping[str, Any]) -> Line:
    rule = (
        f"{KEPT} strongest dimensions an image, dimensions kept by {MIN_SUPPORT} or more; a class has its own "
        f"with precision {OWNED[0]} and recall {OWNED[1]}"
    )
    share, chance, control = look_up(found, f"kept/{KEPT}/about_one_class")
    if share is None:
        return Line("No dimension is kept by enough images to be about a class.", rule)
    own = look_up(found, f"kept/{KEPT}/classes_owned")[0] or 0
    best = value(found, ("readable", "clearest"))
    example = ""
    if best:
        number = "class " if best["class"].removeprefix("-").isdigit() else ""
        example = f"; the clearest is dimension {best['dimension']} ({number}{best['class']})"
    text = (
        f"{_percent(share)} are about one class, which has at least half of the images that keep them "
        f"({_beside(chance, control, _percent)}); {own:,.0f} of {found['classes']:,} classes "
        f"{'has a dimension of its' if own == 1 else 'have a dimension of their'} own{example}."
    )
    return Line(text, rule, share, chance, control)


def _retrieval(found: Mapping[str, Any]) -> Line:
    kept = min(KEPT, found["dimensions"])
    p5, chance, control = look_up(found, f"kept/{KEPT}/p5")
    l0, probe, whole = (look_up(found, place)[0] for place in (f"kept/{KEPT}/l0", f"kept/{KEPT}/probe", "whole/p5"))
    uncut = "" if whole is None else f"{found['whole']['of']}: {whole:.0f}, "
    probed = "" if probe is None else f" A linear probe on them is right for {probe:.0f} of 100."
    begin = "One dimension an image retrieves" if (l0 or 0) < 1.5 else f"{kept} dimensions an image retrieve"
    text = f"{begin} {p5:.0f} of 100 right ({uncut}{_beside(chance, control)}).{probed}"
    return Line(text, "share of the 5 nearest images by cosine that have the class of the image", p5, chance, control)


def _activity(found: Mapping[str, Any]) -> Line:
    n, width = found["images"], found["dimensions"]
    without = round(found["coverage"]["images_without"] * n)
    l0, _, control = look_up(found, "coverage/l0")
    assert l0 is not None
    if l0 > DENSE * width and width > 2 * KEPT:
        text = f"{DENSELY} fire on an image ({l0:,.0f} of {width:,} on average)"
        if found["classes"] is not None:
            text += ", so consistency over the images that one fires on is near chance by construction: read it at "
            text += f"{KEPT} kept dimensions instead"
        text += "."
    else:
        text = f"An image has {l0:,.1f} active dimensions; {without:,} of {n:,} images have none."
    return Line(text, "|z| above 1e-5 in rows of unit length", l0, None, control)


def _distinct(found: Mapping[str, Any]) -> Line:
    live = found["coverage"]["live"]
    if not live:
        return Line("All dimensions are dead.", "firing on any image", 0.0)
    distinct, _, control = look_up(found, "coverage/distinct")
    beside = "" if control is None else f" (untrained {control:,.0f})"
    text = (
        f"{live:,} dimensions are in use, {found['dimensions'] - live:,} dead; they do the work of {distinct:,.0f} "
        f"distinct ones{beside}."
    )
    return Line(text, "exp of the entropy of their usage, correlated columns counted together", distinct, None, control)


def _intruder(found: Mapping[str, Any]) -> Line:
    figures = found["labelfree"]
    rule = f"of 4 images a dimension fires on strongly and one it does not, the least alike by {figures['by']}"
    if figures["intruder"] is None:
        return Line("No dimension fires on four images that differ: no intruder to find.", rule)
    share, chance, control = (None if v is None else 100 * v for v in look_up(found, "labelfree/intruder"))
    text = (
        f"A machine finds the image that does not belong in {share:.0f} of 100 tries "
        f"({100 * figures['intruder_low']:.0f} to {100 * figures['intruder_high']:.0f}; {_beside(chance, control)})."
    )
    return Line(text, rule, share, chance, control)


def _stability(found: Mapping[str, Any]) -> Line:
    cosine, _, control = look_up(found, "seeds/mean_cosine")
    share = look_up(found, "seeds/share_same")[0]
    beside = "" if control is None else f"; untrained {control:.2f}"
    same = "" if share is None else f", and {_percent(100 * share)} of the dimensions come back"
    text = f"Another seed finds them again with a mean cosine of {cosine:.2f}{same}{beside}."
    return Line(text, "columns matched one to one; back: cosine above 0.7", cosine, None, control)


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0f} %" if value >= 1 or value == 0 else "under 1 %"


def _beside(chance: float | None, control: float | None, say: Callable[[float | None], str] = "{:,.0f}".format) -> str:
    return f"chance {say(chance)}" + ("" if control is None else f", untrained {say(control)}")


def render(found: Mapping[str, Any]) -> str:
    """The verdict of `to_dict` as plain text, wrapped, with how each line was measured below it."""
    parts = [f"{found['images']:,} images, {found['dimensions']:,} dimensions"]
    for line in found["lines"]:
        parts.append(textwrap.fill(line["text"], WIDTH, initial_indent="- ", subsequent_indent="  "))
        rule = textwrap.fill(f"[{line['measured_by']}]", WIDTH - 4)
        parts.append(textwrap.indent(rule, "    "))
    return "\n".join(parts)


def to_dict(found: Verdict) -> dict[str, Any]:
    """The verdict as plain values, for JSON."""
    return asdict(found) | {"lines": [asdict(line) for line in found.lines]}
