"""The registry: every number that is reported, with its name, unit and precision.

Tables and pages are made from this list. A new measure is one function, and one line here.
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
    needs_labels : whether labels enter it; its chance level is then that of shuffled labels.
    definitions : the definitions it exists in; empty where there is one definition only.
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
    return Measure(f"retrieval/*/{dims}/{k}", f"retrieval precision at {k}, {dims} dimensions", "%", 2, True, BOTH)


def at_kept(k: int) -> list[Measure]:
    """The measures with k dimensions kept an image."""
    kept = f"{k} kept" if k > 1 else "one kept"
    return [
        Measure(f"kept/{k}/consistency", f"consistency, {kept}", "%", 2, short="consistency"),
        Measure(f"kept/{k}/about_one_class", f"dimensions about one class, {kept}", "%", 2, short="about one class"),
        Measure(f"kept/{k}/classes_owned", f"classes that own a dimension, {kept}", "", 0, short="classes owned"),
        Measure(f"kept/{k}/p5", f"retrieval precision at 5, {kept}", "%", 2, short="retrieval at 5"),
        Measure(f"kept/{k}/probe", f"linear probe, {kept}", "%", 2, short="linear probe"),
    ]


MEASURES = [
    Measure("readable/count", "readable dimensions", "", 0),
    Measure("readable/share", "readable dimensions", "share", headline=False),
    *(measure for k in (1, 2, 5, 10) for measure in at_kept(k)),
    *(Measure(f"kept/{k}/l0", f"active dimensions per image, {kept} kept", "", 1, False, headline=False)
      for k, kept in ((1, "one"), (2, 2), (5, 5), (10, 10))),
    Measure("whole/p5", "retrieval precision at 5 of the whole embedding, or all dimensions", "%", 2),
    Measure("coverage/images_without", "images without an active dimension", "share", 3, False),
    Measure("coverage/distinct", "distinct dimensions", "", 0, False),
    *(Measure(f"coverage/{key}", label, unit, decimals, False, headline=False)
      for key, label, unit, decimals in (
          ("l0", "active dimensions per image", "", 1), ("dead_share", "dead dimensions", "share", 3),
          ("live", "dimensions in use", "", 0), ("similarity", "cosine of two images' codes", "", 3),
          ("spread", "images among the ten strongest of any dimension", "share", 3))),
    *(Measure(f"detectors/{key}", f"best {name} of a dimension" + ", best class" * key.startswith("best"),
              headline=not key.startswith("best"))
      for key, name in (("f1", "F1"), ("iou", "IoU"), ("best_f1", "F1"), ("best_iou", "IoU"))),
    *(Measure(f"detectors/sparse_probe/{k}", f"class read from its {best}", "%", 2)
      for k, best in ((1, "best dimension"), (2, "2 best dimensions"), (4, "4 best dimensions"))),
    Measure("detectors/hierarchy/consistency", "consistency at the level that fits, 5 kept", "%", 2),
    Measure("labelfree/intruder", "intruders found", "share", 3, False),
    Measure("labelfree/intruder_low", "intruders found, at least", "share", 3, False, headline=False),
    Measure("labelfree/intruder_high", "intruders found, at most", "share", 3, False, headline=False),
    Measure("labelfree/intruder_trials", "intruders found, tries", "", 0, False, headline=False),
    Measure("labelfree/monosemanticity", "monosemanticity", "", 3, False),
    Measure("labelfree/top10_similarity", "cosine of a dimension's ten strongest images", "", 3, False),
    Measure("labelfree/duplicates", "near duplicates among a dimension's ten strongest images", "share", 3, False),
    Measure("seeds/mean_cosine", "same dimensions from another seed", "cosine", 3, False),
    Measure("seeds/share_same", "dimensions that come back with another seed", "share", 3, False),
    Measure("consistency", "consistency", "%", 2, True, BOTH, short="Cons."),
    Measure("consistency_mass", "consistency weighted by mass", "%", 2, True, SOUND, short="by mass"),
    *(Measure(at_l0(n), f"consistency at {n} active dimensions", "%", 2, True, SOUND, headline=False,
              short=f"at L0 {n}") for n in MATCHED),
    Measure("entropy_freq", "class entropy of a dimension", "nats", 2, True, BOTH),
    Measure("entropy_sum", "class entropy of its mass", "nats", 2, True, BOTH),
    Measure("entropy_mean", "class entropy of its mean activation", "nats", 2, True, BOTH),
    Measure("detector_ap", "detector average precision", "", 3, True, SOUND, short="AP"),
    Measure("classes_owned", "classes that own a dimension", "", 0, True, SOUND, short="classes owned"),
    Measure("l0", "active dimensions per image", "", 1, False, SOUND, short="L0"),
    Measure("dead_share", "dead dimensions", "share", 3, False, SOUND, short="dead %"),
    Measure("near_dead_share", "nearly dead dimensions", "share", 3, False, SOUND, short="nearly dead %"),
    Measure("activation_ratio", "dimensions in use", "share", 3, False, BOTH),
    Measure("sparsity", "entries that do not fire", "share", 3, False, BOTH),
    Measure("effective_rank", "effective rank", "", 2, False, BOTH, headline=False),
    Measure("orthogonality", "cosine between dimensions", "", 3, False, BOTH, headline=False),
    *(Measure(at(name, t), f"{label}, threshold {t:g}", unit, 1, name != "l0", SOUND, headline=False)
      for t in CURVE[1:]
      for name, label, unit in (("consistency", "consistency", "%"), ("l0", "active dimensions per image", ""),
                                ("classes_owned", "classes that own a dimension", ""))),
    Measure("probe/fast/acc1", "linear probe, object", "%", 2),
    Measure("probe/fast/acc5", "linear probe, object, best five", "%", 2),
    Measure("probe/paper/acc1", "linear probe of the paper", "%", 2),
    Measure("probe/paper/acc5", "linear probe of the paper, best five", "%", 2),
    Measure("knn/h", "nearest-neighbour classifier on h", "%", 2),
    Measure("knn/gated", "nearest-neighbour classifier on features", "%", 2),
    Measure("gates/open", "open gates", "share", 3, False),
    Measure("gates/open_where_active", "open gates where the feature fires", "share", 3, False),
    Measure("heat/hottest", "lost of the strongest dimension without its hottest quarter", "share", 3, False),
    *(Measure(f"conflicting/{t}/count", f"dimensions that join two classes, product {t}", "", 0)
      for t in ("0.9", "0.5")),
    *(Measure(f"background/{kind}/acc1", "linear probe, background" + (f", on {KINDS[kind]}" if kind != "h" else ""),
              "%", 2) for kind in KINDS),
    Measure("balanced/object/acc1", "linear probe, object, fitted on a balanced split", "%", 2),
    Measure("balanced/background/acc1", "linear probe, background, fitted on a balanced split", "%", 2),
    Measure("worst_group/worst", "worst group, object probe", "%", 2),
    Measure("worst_group/average", "all groups, object probe", "%", 2),
    Measure("conflict/gated/error_relative", "background-induced error, relative"),
    Measure("conflict/z/error_relative", "background-induced error before the gates, relative"),
    Measure("gate_effect/removed_relative_share", "background-induced error removed by the gates", "share"),
    *(Measure(f"stability/{kind}/cosine", "same object, other background" + (f", {KINDS[kind]}" * (kind != "gated")),
              "cosine", 3, False) for kind in ("gated", "z", "h")),
    Measure("seconds", "seconds of measuring", "", 1, False, headline=False),
]  # fmt: skip


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
    return next(((m, d) for m in MEASURES for d in m.definitions or ("",) if m.path(d) == path), None)


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
