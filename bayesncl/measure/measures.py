"""The registry: every number that is reported, with its name, unit and precision.

Tables, pages and help texts are made from this list. A new measure is one function, and one line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InputError
from .interpretability import CURVE, DEFINITIONS, MATCHED, Value, at, at_l0

Path = tuple[str, ...]


@dataclass(frozen=True)
class Measure:
    """One reported number.

    Attributes
    ----------
    key : its name in the results; slashes lead into branches, and `*` stands for the definition.
    label : in words, without unit and definition.
    unit : such as % or nats; "" for a plain number.
    decimals : of a table.
    needs_labels : whether labels enter it. If not it has no chance level.
    definitions : the definitions it exists in; empty where there is one definition only.
    higher_is_better : None where neither is.
    doc : one sentence.
    headline : whether tables show it unless asked for everything.
    short : heading of a narrow column.
    function : features [N, D] and labels (int [N], 0..C-1) in, the value out; for a measure that needs nothing else and
        shares no pass with others. It is then computed for each of its definitions, with its chance level.
    """

    key: str
    label: str
    unit: str = ""
    decimals: int = 3
    needs_labels: bool = True
    definitions: tuple[str, ...] = ()
    higher_is_better: bool | None = None
    doc: str = ""
    headline: bool = True
    short: str = ""
    function: Callable[[np.ndarray, np.ndarray], Value] | None = None

    def path(self, definition: str = "sound") -> Path:
        """Where its value is in the results."""
        if self.definitions and "*" not in self.key:
            return definition, self.key
        return tuple(definition if part == "*" else part for part in self.key.split("/"))

    def title(self) -> str:
        """Label and unit."""
        return self.label + (f" ({self.unit})" if self.unit else "")

    def text(self, value: float | None, decimals: int | None = None) -> str:
        """A value as a table shows it."""
        return "-" if value is None else f"{value:,.{self.decimals if decimals is None else decimals}f}"


BOTH, SOUND = DEFINITIONS, ("sound",)
KINDS = {"h": "h", "z": "features before the gates", "gated": "features"}


def precision_at(dims: str, k: str) -> Measure:
    """Retrieval precision at k with so many dimensions, or `all`."""
    kept = "all dimensions" if dims == "all" else f"{dims} dimensions"
    doc = "Share of the k nearest images that have the class of the query."
    return Measure(f"retrieval/*/{dims}/{k}", f"retrieval precision at {k}, {kept}", "%", 2, True, BOTH, True, doc)


def at_kept(k: int) -> list[Measure]:
    """The measures with k dimensions kept an image."""
    kept = f"{k} kept" if k > 1 else "one kept"
    return [
        Measure(f"kept/{k}/consistency", f"consistency, {kept}", "%", 2, True, (), True,
                "Share of the commonest class among the images that keep a dimension.", short="consistency"),
        Measure(f"kept/{k}/about_one_class", f"dimensions about one class, {kept}", "%", 2, True, (), True,
                "Dimensions of which one class has at least half of the images.", short="about one class"),
        Measure(f"kept/{k}/classes_owned", f"classes that own a dimension, {kept}", "", 0, True, (), True,
                "Classes with a dimension of precision 0.5 and recall 0.1 for them.", short="classes owned"),
        Measure(f"kept/{k}/p5", f"retrieval precision at 5, {kept}", "%", 2, True, (), True,
                "Share of the 5 nearest images that have the class of the query.", short="retrieval at 5"),
        Measure(f"kept/{k}/probe", f"linear probe, {kept}", "%", 2, True, (), True,
                "Logistic regression on the kept codes.", short="linear probe"),
    ]  # fmt: skip


MEASURES = [
    Measure("readable/count", "readable dimensions", "", 0, True, (), True,
            "Dimensions of which 7 of the 10 strongest images share a class; without labels, are alike."),
    Measure("readable/share", "readable dimensions", "share", 3, True, (), True, "As a share.", headline=False),
    *(measure for k in (1, 2, 5, 10) for measure in at_kept(k)),
    *(Measure(f"kept/{k}/l0", f"active dimensions per image, {k if k > 1 else 'one'} kept", "", 1, False, (), None,
              "Fewer than are kept where fewer fire.", headline=False) for k in (1, 2, 5, 10)),
    Measure("whole/p5", "retrieval precision at 5 of the whole embedding, or all dimensions", "%", 2, True, (), True,
            "The same without a cut."),
    Measure("coverage/images_without", "images without an active dimension", "share", 3, False, (), False,
            "Images on which no dimension fires."),
    Measure("coverage/distinct", "distinct dimensions", "", 0, False, (), True,
            "Effective number of dimensions, correlated ones counted together."),
    *(Measure(f"coverage/{key}", label, unit, decimals, False, (), better, doc, headline=False)
      for key, label, unit, decimals, better, doc in (
          ("l0", "active dimensions per image", "", 1, None, "Mean number of dimensions that fire on an image."),
          ("dead_share", "dead dimensions", "share", 3, False, "Dimensions that fire on no image."),
          ("live", "dimensions in use", "", 0, True, "Dimensions that fire at all."),
          ("similarity", "cosine of two images' codes", "", 3, False, "Mean over pairs of images."),
          ("spread", "images among the ten strongest of any dimension", "share", 3, True, "Of as many as could be."))),
    *(Measure(f"detectors/{key}", f"best {name} of a dimension" + ", best class" * key.startswith("best"), "", 3, True,
              (), True, "Over thresholds; mean over dimensions in use.", headline=not key.startswith("best"))
      for key, name in (("f1", "F1"), ("iou", "IoU"), ("best_f1", "F1"), ("best_iou", "IoU"))),
    *(Measure(f"detectors/sparse_probe/{k}", f"class read from its {k} best dimensions" if k > 1 else
              "class read from its best dimension", "%", 2, True, (), True, "Balanced accuracy, mean over classes.")
      for k in (1, 2, 4)),
    Measure("detectors/hierarchy/consistency", "consistency at the level that fits, 5 kept", "%", 2, True, (), True,
            "Each dimension at the level of the hierarchy of labels where it fits best."),
    Measure("labelfree/intruder", "intruders found", "share", 3, False, (), True,
            "Of four images a dimension fires on and one it does not, the odd one is the least alike."),
    *(Measure(f"labelfree/intruder_{key}", f"intruders found, {label}", unit, decimals, False, (), None, doc,
              headline=False)
      for key, label, unit, decimals, doc in (("low", "at least", "share", 3, "Lower end of the 95 % interval."),
                                              ("high", "at most", "share", 3, "Upper end of the 95 % interval."),
                                              ("trials", "tries", "", 0, "Number of tries."))),
    Measure("labelfree/monosemanticity", "monosemanticity", "", 3, False, (), True,
            "Mean cosine of the images of a dimension, weighted by its activations."),
    Measure("labelfree/top10_similarity", "cosine of a dimension's ten strongest images", "", 3, False, (), True,
            "By the embeddings, centred."),
    Measure("labelfree/duplicates", "near duplicates among a dimension's ten strongest images", "share", 3, False, (),
            False, "Images with another of cosine 0.98 among them."),
    Measure("seeds/mean_cosine", "same dimensions from another seed", "cosine", 3, False, (), True,
            "Columns matched one to one on the test images."),
    Measure("seeds/share_same", "dimensions that come back with another seed", "share", 3, False, (), True,
            "Those with a partner of cosine above 0.7."),
    Measure("consistency", "consistency", "%", 2, True, BOTH, True,
            "Share of the commonest class among the images a dimension fires on.", short="Cons."),
    Measure("consistency_mass", "consistency weighted by mass", "%", 2, True, SOUND, True,
            "The same over all dimensions that fire, weighted by activation mass.", short="by mass"),
    *(Measure(at_l0(n), f"consistency at {n} active dimensions", "%", 2, True, SOUND, True,
              f"Consistency with one threshold that leaves {n} active dimensions per image.", short=f"at L0 {n}",
              headline=False)
      for n in MATCHED),
    Measure("entropy_freq", "class entropy of a dimension", "nats", 2, True, BOTH, False,
            "Entropy over classes of the images a dimension fires on."),
    Measure("entropy_sum", "class entropy of its mass", "nats", 2, True, BOTH, False,
            "Entropy over classes of a dimension's activation mass."),
    Measure("entropy_mean", "class entropy of its mean activation", "nats", 2, True, BOTH, False,
            "Entropy over classes of a dimension's mean activation."),
    Measure("detector_ap", "detector average precision", "", 3, True, SOUND, True,
            "Average precision of a dimension as a detector of its best class.", short="AP"),
    Measure("classes_owned", "classes that own a dimension", "", 0, True, SOUND, True,
            "Classes with a dimension of precision 0.5 and recall 0.1 for them.", short="classes owned"),
    Measure("l0", "active dimensions per image", "", 1, False, SOUND, None,
            "Mean number of dimensions that fire on an image.", short="L0"),
    Measure("dead_share", "dead dimensions", "share", 3, False, SOUND, False,
            "Dimensions that fire on no image.", short="dead %"),
    Measure("near_dead_share", "nearly dead dimensions", "share", 3, False, SOUND, False,
            "Dimensions that fire on fewer than ten images.", short="nearly dead %"),
    Measure("activation_ratio", "dimensions in use", "share", 3, False, BOTH, True, "Dimensions that fire at all."),
    Measure("sparsity", "entries that do not fire", "share", 3, False, BOTH, None, "Share of entries that are zero."),
    Measure("effective_rank", "effective rank", "", 2, False, BOTH, True,
            "Entropy of the singular values; its exponential in the sound definition.", headline=False),
    Measure("orthogonality", "cosine between dimensions", "", 3, False, BOTH, False,
            "Mean size of the cosine between columns; the published definition divides it twice.", headline=False),
    *(Measure(at(name, t), f"{label}, threshold {t:g}", unit, 1, name != "l0", SOUND, better, headline=False,
              doc="With features cut at a higher threshold.")
      for t in CURVE[1:]
      for name, label, unit, better in (("consistency", "consistency", "%", True),
                                        ("l0", "active dimensions per image", "", None),
                                        ("classes_owned", "classes that own a dimension", "", True))),
    Measure("probe/fast/acc1", "linear probe, object", "%", 2, True, (), True, "Logistic regression on h."),
    Measure("probe/fast/acc5", "linear probe, object, best five", "%", 2, True, (), True, "The same, top five."),
    Measure("probe/paper/acc1", "linear probe of the paper", "%", 2, True, (), True, "The published 50-epoch probe."),
    Measure("probe/paper/acc5", "linear probe of the paper, best five", "%", 2, True, (), True, "The same, top five."),
    *(Measure(f"knn/{kind}", f"nearest-neighbour classifier on {name}", "%", 2, True, (), True,
              "Accuracy of a weighted vote of the 20 nearest training images.")
      for kind, name in (("h", "h"), ("gated", "features"))),
    Measure("gates/open", "open gates", "share", 3, False, (), None, "Share of gates that are open."),
    Measure("gates/open_where_active", "open gates where the feature fires", "share", 3, False, (), None,
            "Share of the features that would fire whose gate is open."),
    Measure("heat/hottest", "lost of the strongest dimension without its hottest quarter", "share", 3, False, (), True,
            "What greying out the hottest quarter of an image's heat map takes; chance is a random quarter."),
    *(Measure(f"conflicting/{t}/count", f"dimensions that join two classes, product {t}", "", 0, True, (), False,
              "Dimensions that fire with high probability in two classes.") for t in ("0.9", "0.5")),
    *(Measure(f"background/{kind}/acc1", "linear probe, background" + (f", on {KINDS[kind]}" if kind != "h" else ""),
              "%", 2, True, (), None, "Logistic regression for the background.") for kind in KINDS),
    *(Measure(f"balanced/{what}/acc1", f"linear probe, {what}, fitted on a balanced split", "%", 2, True, (), better,
              "Logistic regression on h, fitted where object and background are independent.")
      for what, better in (("object", True), ("background", None))),
    Measure("worst_group/worst", "worst group, object probe", "%", 2, True, (), True,
            "Accuracy of the object probe on the class and background it does worst on."),
    Measure("worst_group/average", "all groups, object probe", "%", 2, True, (), True, "The same over all images."),
    Measure("conflict/gated/error_relative", "background-induced error, relative", "", 3, True, (), False,
            "Similarity that a shared background adds to different objects, over that within classes."),
    Measure("conflict/z/error_relative", "background-induced error before the gates, relative", "", 3, True, (), False,
            "The same for the features before the gates."),
    Measure("gate_effect/removed_relative_share", "background-induced error removed by the gates", "share", 3, True,
            (), True, "Share of the relative error that gating takes away."),
    *(Measure(f"stability/{kind}/cosine", "same object, other background" + (f", {KINDS[kind]}" * (kind != "gated")),
              "cosine", 3, False, (), True, "Cosine of an image and the same object on another background.")
      for kind in ("gated", "z", "h")),
    Measure("seconds", "seconds of measuring", "", 1, False, (), None, "Wall-clock time.", headline=False),
]  # fmt: skip


def by_path() -> dict[Path, tuple[Measure, str]]:
    """Measure and definition by place in the results."""
    return {m.path(d): (m, d) for m in MEASURES for d in m.definitions or ("",)}


def register(measure: Measure) -> Measure:
    """Add a measure: every table, page and file then has it."""
    if any(measure.key == known.key for known in MEASURES):
        raise InputError(f"there is a measure {measure.key!r} already")
    MEASURES.append(measure)
    return measure


def find(path: Path) -> tuple[Measure, str] | None:
    """The measure at a place in the results, and the definition; None for a number that is no measure."""
    if len(path) == 4 and path[0] == "retrieval" and path[1] in DEFINITIONS:
        return precision_at(*path[2:]), path[1]
    return by_path().get(path)


def named(key: str) -> Measure:
    """The measure of a key."""
    for measure in MEASURES:
        if measure.key == key:
            return measure
    raise InputError(f"there is no measure {key!r}")


def value(tree: Any, path: Path) -> Any:
    """What nested results hold at a path; None where there is nothing."""
    for key in path:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree
