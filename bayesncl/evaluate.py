"""Every measure of a trained run: features once, then each measure in both definitions with its chance level."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from . import probe as published
from .data import DATASETS
from .data.images import Images
from .errors import InputError
from .features import Extracted, Progress, extract
from .measure import background, conflict, counts, probe, theory
from .measure.file import measure_features
from .measure.interpretability import consistency_by_support, per_dimension, shuffled
from .measure.retrieval import knn_accuracy, retrieval_curve
from .model import Encoder

SUPPORTS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100)
CURVE_DIMS = (16, 32, 48, 64, 80, 96, 128, 192, 256, 384, 512, 1024)
NEIGHBOURS = 20  # of the kNN classifier
PUBLISHED_SEEDS = (42, 43, 44)
LISTED = 12  # of lists that could be long
FEW = 20  # test images of a class: with fewer on average its numbers are mostly chance


def scarce(train: Images, test: Images) -> str | None:
    """A warning where the test images are too few to say much, or lack classes of the training images."""
    if train.labels is None or test.labels is None:
        return None
    known, met = len(np.unique(train.labels)), len(np.unique(test.labels))
    if len(test) < FEW * met:
        return f"only {len(test)} test images, of {met} of {known} classes: these numbers are a rough guide at most"
    return None if met == known else f"the test images are of {met} of {known} classes"


def evaluate(
    model: Encoder, train: Images, test: Images, *, paper_probe: bool = False, progress: Progress | None = None
) -> dict[str, Any]:
    """All measures of a model.

    Parameters
    ----------
    model : trained; comes back as it was.
    train, test : both splits; the test split must be labelled.
    paper_probe : also run the published 50-epoch linear probe, which takes far longer than all the rest.
    progress : called with (done, total, what).

    Returns
    -------
    dict ready for JSON: `paper`, `sound`, `retrieval`, `chance`, `parameters` (see measure_features), `dimensions` (a
    list per measure), `curves`, `conflicting`, `probe`, `knn`, `seconds`; with gates `theory` and `gates`; with
    backgrounds `background`, `worst_group`, `conflict`, `ipw`, `gate_effect`, `stability`.
    """
    began = time.perf_counter()
    if test.labels is None:
        raise InputError("the images have no labels: nothing to evaluate against (embed and atlas need none)")
    if len(np.unique(test.labels)) < 2:
        raise InputError(f"the test split has one class only ({len(test)} images): nothing to tell apart")
    seen = extract(model, train, "sound", progress=progress)
    sound = extract(model, test, "sound", progress=progress)
    paper = extract(model, test, "paper", progress=progress)
    dims = sorted({64, 128, 256, DATASETS[model.recipe.data.name].paper_dims})
    ranking = counts.column_sums(seen.gated)
    results = measure_features(
        {"paper": paper.gated, "sound": sound.gated}, test.labels, dims=dims, ranking=ranking, progress=progress
    )
    per = per_dimension(sound.gated, test.labels)
    results["dimensions"] = {key: rounded(per[key]) for key in ("support", "consistency", "entropy_freq", "mass")}
    results["curves"] = curves(sound, paper, test.labels, ranking)
    results["conflicting"] = {str(t): conflicting(sound.gated, test, t) for t in (0.9, 0.5)}
    if train.labels is not None:
        results["probe"] = {"fast": probe.fast_probe(seen.h, train.labels, sound.h, test.labels)}
        k = results["parameters"]["knn_k"] = min(NEIGHBOURS, len(train))
        labellings = {"knn": train.labels, "chance": shuffled(train.labels)}
        found = {
            what: {
                name: knn_accuracy(getattr(seen, name), labels, getattr(sound, name), test.labels, k)
                for name in ("h", "gated")
            }
            for what, labels in labellings.items()
        }
        results["knn"], results["chance"]["knn"] = found["knn"], found["chance"]
        if paper_probe:
            results["probe"]["paper"] = published_probe(model, train, test, progress)
    if sound.open is not None:  # the theory is of gates that are open or closed
        gate = model.recipe.gate
        results["theory"] = theory.compare(
            sound.z, sound.gated, sound.open, test.labels, test.backgrounds, gate.prior, gate.weight
        )
        results["gates"] = {
            "open": float(sound.open.mean()),
            "open_where_active": float(sound.open[sound.z > 0].mean()) if (sound.z > 0).any() else None,
        }
    if test.backgrounds is not None:
        results.update(background_measures(model, train, test, seen, sound))
    results["seconds"] = round(time.perf_counter() - began, 2)
    return results


def curves(sound: Extracted, paper: Extracted, labels: np.ndarray, ranking: np.ndarray) -> dict[str, Any]:
    """Consistency by minimum support, and retrieval over the number of kept dimensions."""
    width = sound.gated.shape[1]
    dims = [k for k in CURVE_DIMS if k <= width]
    ks = tuple(k for k in (1, 3, 5, 10) if k < len(labels))
    by_support = consistency_by_support(sound.gated, labels, SUPPORTS)
    return {
        "consistency_by_support": {str(s): none_if_nan(c) for s, c in zip(SUPPORTS, by_support["consistency"])},
        "dimensions_by_support": {str(s): int(n) for s, n in zip(SUPPORTS, by_support["dimensions"])},
        "retrieval_paper": as_text(retrieval_curve(paper.gated, labels, dims, ks, "paper")),
        "retrieval_sound": as_text(retrieval_curve(sound.gated, labels, dims, ks, "sound", ranking)),
    }


def background_measures(
    model: Encoder, train: Images, test: Images, seen: Extracted, sound: Extracted
) -> dict[str, Any]:
    """Probes for the second label, worst group, conflict with and without gates, stability under another background."""
    assert test.labels is not None and test.backgrounds is not None
    out: dict[str, Any] = {}
    if train.backgrounds is not None and train.labels is not None:
        kinds = ("h", "z", "gated")
        out["background"] = background.background_probe(
            {k: getattr(seen, k) for k in kinds},
            train.backgrounds,
            {k: getattr(sound, k) for k in kinds},
            test.backgrounds,
        )
        group = background.group_probe(seen.h, train.labels, train.backgrounds, sound.h, test.labels, test.backgrounds)
        out["worst_group"] = scalars(group) | {"groups": group["groups"][:LISTED]}
    found = {name: conflict.conflict(getattr(sound, name), test.labels, test.backgrounds) for name in ("z", "gated")}
    out["conflict"] = {
        name: scalars(value) | {"by_dimension": rounded(value["by_dimension"]["error"])}
        for name, value in found.items()
    }
    out["ipw"] = theory.ipw_effect(sound.gated, test.labels, test.backgrounds, pi=theory.prevalence(seen.z))
    out["ipw"]["conflict"] = {k: scalars(v) for k, v in out["ipw"]["conflict"].items()}
    out["ipw"]["retrieval"] = as_text(out["ipw"]["retrieval"])
    if sound.open is not None:
        out["gate_effect"] = scalars(
            conflict.gate_effect(sound.z, sound.gated, test.labels, test.backgrounds, sound.open)
        )
    other = counterfactual(model, test)
    if other is not None:
        moved = extract(model, other, "sound")
        out["stability"] = {
            name: conflict.stability(getattr(sound, name), getattr(moved, name)) for name in ("h", "z", "gated")
        }
    return out


def counterfactual(model: Encoder, test: Images) -> Images | None:
    """The test images again, each object on another background, where the data set can draw them."""
    again = DATASETS[model.recipe.data.name].counterfactual
    return again(model.recipe.data) if again else None


def published_probe(model: Encoder, train: Images, test: Images, progress: Progress | None) -> dict[str, Any]:
    """The 50-epoch probe of the published experiments, with their pixel statistics."""
    data = model.recipe.data
    return published.paper_probe(
        model.backbone,
        train,
        test,
        data.paper_mean or data.mean,
        data.paper_std or data.std,
        DATASETS[data.name].probe,
        seeds=PUBLISHED_SEEDS,
        size=model.recipe.views.size,
        device=model.mean.device,
        progress=progress,
    )


def conflicting(z: np.ndarray, test: Images, threshold: float) -> dict[str, Any]:
    """How many dimensions conflict by the paper's definition, and the worst of them with the classes they join."""
    assert test.labels is not None
    found = conflict.conflicting_features(z, test.labels, threshold)
    name = test.class_names.__getitem__ if test.class_names else str
    worst = [
        {"dim": row["dim"], "product": row["product"], "classes": [name(int(c)) for c in row["classes"][:LISTED]]}
        for row in found["dims"][:LISTED]
    ]
    return {"count": found["count"], "chance_count": found["chance_count"], "worst": worst}


def scalars(tree: dict[str, Any]) -> dict[str, Any]:
    """The plain numbers of a result, without its arrays."""
    return {k: v for k, v in tree.items() if v is None or isinstance(v, bool | int | float)}


def rounded(values: np.ndarray) -> list[float | None]:
    """An array as a list for JSON, six significant digits."""
    return [none_if_nan(float(f"{v:.6g}")) for v in np.asarray(values, float)]


def as_text(tree: Any) -> Any:
    """Keys as text, as JSON wants them."""
    return {str(k): as_text(v) for k, v in tree.items()} if isinstance(tree, dict) else tree


def none_if_nan(value: float) -> float | None:
    """For JSON, which has no NaN."""
    return None if np.isnan(value) else float(value)
