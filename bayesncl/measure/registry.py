"""The registry: every reported number with its name, unit and precision.

Tables and pages are made from this list. A new measure is one function and one line here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from bayesncl.errors import InputError
from bayesncl.measure.interpretability import (
    DEFINITIONS,
    MATCHED,
    THRESHOLDS,
    Value,
    at_l0,
    at_threshold,
)
from bayesncl.measure.topk import FACTOR_KS, KS

Path = tuple[str, ...]


@dataclass(frozen=True)
class Measure:
    """One reported number.

    Attributes
    ----------
    key : its path in the results, separated by slashes, below the definition if it has several;
        `*` stands for the name of a factor.
    label : what it is, without unit and definition.
    unit : such as % or nats; "" for a plain number.
    decimals : in tables.
    needs_labels : whether it depends on labels and so has a chance level.
    definitions : the definitions it exists in; empty if there is only one.
    headline : whether tables show it by default.
    short : heading of a narrow column.
    function : takes features [N, D] and labels (int [N], 0..C-1), returns the value; for measures
        that share no computation with others. It is called for each definition and for chance.
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

    def title(self) -> str:
        """Label and unit."""
        return self.label + (f" ({self.unit})" if self.unit else "")

    def text(self, value: float | None, decimals: int | None = None) -> str:
        """A value as tables show it."""
        decimals = self.decimals if decimals is None else decimals
        return "-" if value is None else f"{value:,.{decimals}f}"


BOTH, SOUND = DEFINITIONS, ("sound",)
OWNED, EVENLY = "classes that own a dimension", "classes that own an even share"
ABOUT, ACTIVE_DIMS = "dimensions about ", "active dimensions per image"
BY_FACTOR = "retrieval precision at 5 by this factor"
CHANGED = "change when the background is exchanged"
percent = partial(Measure, unit="%", decimals=2)
share = partial(Measure, unit="share", needs_labels=False)
number = partial(Measure, decimals=0)
unlabeled = partial(Measure, needs_labels=False)
hidden = partial(Measure, needs_labels=False, headline=False)


def at_kept(k: int) -> list[Measure]:
    """The measures with k dimensions kept per image; those with a short name are in its table."""
    path, end = f"kept/{k}", f", {k} kept" if k > 1 else ", one kept"
    return [
        percent(f"{path}/consistency", "consistency" + end, short="consistency"),
        percent(f"{path}/about_one_class", ABOUT + "one class" + end, short="about one class"),
        number(f"{path}/classes_owned", OWNED + end, short="classes owned"),
        percent(f"{path}/p5", "retrieval precision at 5" + end, short="precision@5"),
        percent(f"{path}/probe", "linear probe" + end, short="linear probe"),
        hidden(f"{path}/l0", f"{ACTIVE_DIMS}, {k} kept", decimals=1),
        number(f"{path}/classes_owned_evenly", f"{EVENLY}, {k} kept", headline=False),
    ]


def at_each_threshold(t: float) -> list[Measure]:
    """The measures at an activation threshold."""
    sound = partial(Measure, decimals=1, definitions=SOUND, headline=False)
    return [
        sound(at_threshold("consistency", t), f"consistency, threshold {t:g}", "%"),
        sound(at_threshold("l0", t), f"{ACTIVE_DIMS}, threshold {t:g}", needs_labels=False),
        sound(at_threshold("classes_owned", t), f"{OWNED}, threshold {t:g}"),
    ]


MEASURES = [
    number("readable/count", "readable dimensions"),
    Measure("readable/share", "readable dimensions", "share", headline=False),
    number("readable/largest_class", "images of the largest class", headline=False),
    *(measure for k in KS for measure in at_kept(k)),
    percent("whole/p5", "retrieval precision at 5 of the full embedding, or all dimensions"),
    share("coverage/images_without", "images without an active dimension"),
    unlabeled("coverage/distinct", "effective number of dimensions", decimals=0),
    hidden("coverage/l0", ACTIVE_DIMS, decimals=1),
    hidden("coverage/dead_share", "dead dimensions", "share"),
    hidden("coverage/live", "dimensions in use", decimals=0),
    hidden("coverage/twins", "dimensions that nearly repeat another", "share"),
    hidden("coverage/similarity", "cosine of two images' codes"),
    hidden("coverage/spread", "images among the ten strongest of any dimension", "share"),
    share("independence/predictability", "variance of a dimension that the others explain"),
    unlabeled("independence/groups", "similarity of two groups of dimensions", "CKA"),
    percent("factors/each/*/alone", ABOUT + "this factor alone"),
    percent("factors/each/*/neutral", "dimensions neutral to this factor"),
    *(number(f"factors/each/*/owned_{k}", f"{OWNED}, this factor, {k} kept") for k in FACTOR_KS),
    *(percent(f"factors/each/*/p5_{k}", f"{BY_FACTOR}, {k} kept") for k in FACTOR_KS),
    Measure("factors/each/*/completeness", "completeness of the factor (DCI)"),
    percent("factors/each/*/informativeness", "informativeness of the factor (DCI)"),
    Measure("factors/each/*/mig", "mutual information gap of the factor"),
    Measure("factors/each/*/swap", f"{CHANGED}, dimensions of this factor"),
    percent("factors/mixed", ABOUT + "several factors"),
    percent("factors/nothing", ABOUT + "no factor"),
    Measure("factors/disentanglement", "disentanglement (DCI)"),
    Measure("factors/completeness", "completeness (DCI)"),
    percent("factors/informativeness", "informativeness (DCI)"),
    Measure("factors/mig", "mutual information gap"),
    Measure("factors/swap", f"{CHANGED}, all dimensions"),
    Measure("detectors/f1", "best F1 of a dimension"),
    Measure("detectors/iou", "best IoU of a dimension"),
    Measure("detectors/best_f1", "best F1 of a dimension, best class", headline=False),
    Measure("detectors/best_iou", "best IoU of a dimension, best class", headline=False),
    percent("detectors/sparse_probe/1", "class read from its best dimension"),
    percent("detectors/sparse_probe/2", "class read from its 2 best dimensions"),
    percent("detectors/sparse_probe/4", "class read from its 4 best dimensions"),
    percent("detectors/hierarchy/consistency", "consistency at the best level, 5 kept"),
    share("labelfree/intruder", "intruders found"),
    hidden("labelfree/intruder_low", "intruders found, at least", "share"),
    hidden("labelfree/intruder_high", "intruders found, at most", "share"),
    hidden("labelfree/intruder_trials", "intruders found, trials", decimals=0),
    unlabeled("labelfree/monosemanticity", "monosemanticity"),
    unlabeled("labelfree/top10_similarity", "cosine of a dimension's ten strongest images"),
    share("labelfree/duplicates", "near duplicates among a dimension's ten strongest images"),
    unlabeled("seeds/mean_cosine", "same dimensions from another seed", "cosine"),
    share("seeds/share_same", "dimensions that another seed finds again"),
    percent("consistency", "consistency", definitions=BOTH, short="Cons."),
    percent("consistency_mass", "consistency weighted by mass", definitions=SOUND, short="by mass"),
    *(
        percent(at_l0(n), f"consistency at {n} active dimensions", definitions=SOUND,
                headline=False, short=f"at L0 {n}")
        for n in MATCHED
    ),
    Measure("entropy_freq", "class entropy of a dimension", "nats", 2, definitions=BOTH),
    Measure("entropy_sum", "class entropy of its mass", "nats", 2, definitions=BOTH),
    Measure("entropy_mean", "class entropy of its mean activation", "nats", 2, definitions=BOTH),
    Measure("detector_ap", "detector average precision", definitions=SOUND, short="AP"),
    number("classes_owned", OWNED, definitions=SOUND, short="classes owned"),
    unlabeled("l0", ACTIVE_DIMS, "", 1, definitions=SOUND, short="L0"),
    share("dead_share", "dead dimensions", definitions=SOUND, short="dead %"),
    share("near_dead_share", "nearly dead dimensions", definitions=SOUND, short="nearly dead %"),
    share("activation_ratio", "dimensions in use", definitions=BOTH),
    share("sparsity", "entries that do not fire", definitions=BOTH),
    hidden("effective_rank", "effective rank", decimals=2, definitions=BOTH),
    hidden("orthogonality", "cosine between dimensions", definitions=BOTH),
    *(measure for t in THRESHOLDS[1:] for measure in at_each_threshold(t)),
    percent("probe/fast/acc1", "linear probe, object"),
    percent("probe/fast/acc5", "linear probe, object, top 5"),
    percent("probe/paper/acc1", "linear probe of the paper"),
    percent("probe/paper/acc5", "linear probe of the paper, top 5"),
    percent("knn/h", "nearest-neighbor classifier on h"),
    percent("knn/gated", "nearest-neighbor classifier on features"),
    share("gates/open", "open gates"),
    share("gates/open_where_active", "open gates where the feature fires"),
    share("parameters/explained_variance", "variance of the embeddings that codes reconstruct"),
    share("heat/hottest", "strongest activation lost without its hottest quarter of the image"),
    number("conflicting/0.9/count", "dimensions that join two classes, product 0.9"),
    number("conflicting/0.5/count", "dimensions that join two classes, product 0.5"),
    percent("background/h/acc1", "linear probe, background"),
    percent("background/z/acc1", "linear probe, background, on features before the gates"),
    percent("background/gated/acc1", "linear probe, background, on features"),
    percent("balanced/object/acc1", "linear probe, object, fitted on a balanced split"),
    percent("balanced/background/acc1", "linear probe, background, fitted on a balanced split"),
    percent("worst_group/worst", "worst group, object probe"),
    percent("worst_group/average", "all groups, object probe"),
    Measure("conflict/gated/error_relative", "background-induced error, relative"),
    Measure("conflict/z/error_relative", "background-induced error before the gates, relative"),
    Measure("gate_effect/removed_relative_share", "background error removed by the gates", "share"),
    unlabeled("stability/gated/cosine", "same object, other background", "cosine"),
    unlabeled("stability/z/cosine", "same object, other background, before the gates", "cosine"),
    unlabeled("stability/h/cosine", "same object, other background, h", "cosine"),
    hidden("seconds", "seconds of measuring", decimals=1),
]


def register(measure: Measure) -> Measure:
    """Add a measure to every table, page and file."""
    if any(measure.key == each.key for each in MEASURES):
        raise InputError(f"a measure {measure.key!r} exists already")
    MEASURES.append(measure)
    return measure


def find(path: Path) -> tuple[Measure, str] | None:
    """The measure at a path in the results, and its definition or factor; None for others."""
    if path[0] == "retrieval" and len(path) == 4:
        _, definition, dims, k = path
        label = f"retrieval precision at {k}, {dims} dimensions"
        return percent(f"retrieval/{dims}/{k}", label, definitions=BOTH), definition
    within, key = "", path
    if path[0] in DEFINITIONS:
        within, key = path[0], path[1:]
    elif path[:2] == ("factors", "each"):
        within, key = path[2], (*path[:2], "*", *path[3:])
    same = (m for m in MEASURES if m.key == "/".join(key))
    return next(((m, within) for m in same if within in m.definitions or not m.definitions), None)


def named(key: str) -> Measure:
    """The measure with this key."""
    if (measure := next((m for m in MEASURES if m.key == key), None)) is None:
        raise InputError(f"there is no measure {key!r}")
    return measure
