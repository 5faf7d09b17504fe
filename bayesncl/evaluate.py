"""Every measure of features, of a file of them, or of a trained run: one Result, with the chance level of each."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .arrays import FEATURES, Array, array_names, as_features, as_labels, find_features, read_arrays, read_embeddings
from .data import DATASETS
from .data import load as load_split
from .data.images import spread_evenly
from .errors import InputError
from .labels import class_labels, read_labels
from .measure import conflict, counts, interpretability, measures, probe, readable, retrieval, stability, theory
from .measure.dimensions import OWNED, describe
from .measure.result import Result, Tree, rounded
from .measure.verdict import in_words, to_dict
from .objective import ACTIVE

if TYPE_CHECKING:  # who only measures a file waits for no model: what evaluates one imports it
    from .data.images import Images
    from .features import Extracted, Progress
    from .model import Encoder

KEPT_DIMS = (64, 128, 256)  # numbers of dimensions for retrieval, besides all
MANY_ROWS = 50_000  # above, neighbours are sought for a sample of queries
SAMPLED_QUERIES = 2_000
JUDGED_ROWS = 20_000  # ... and so many rows are judged for the verdict
SUPPORTS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100)
CURVE_DIMS = (16, 32, 48, 64, 80, 96, 128, 192, 256, 384, 512, 1024)
NEIGHBOURS = 20  # of the kNN classifier
PUBLISHED_SEEDS = (42, 43, 44)
LISTED = 12  # of lists that could be long
DIGITS = 6  # of what is listed by dimension
FEW = 20  # test images of a class: with fewer on average its numbers are mostly chance
KINDS = ("h", "z", "gated")
SEED = 0  # of shuffled labels and drawn rows


def scarce(train: Images, test: Images) -> str | None:
    """A warning where the test images are too few to say much, or lack classes of the training images."""
    if train.labels is None or test.labels is None:
        return None
    known, met = len(np.unique(train.labels)), len(np.unique(test.labels))
    if len(test) < FEW * met:
        return f"only {len(test)} test images, of {met} of {known} classes: these numbers are a rough guide at most"
    return None if met == known else f"the test images are of {met} of {known} classes"


def measure_file(
    path: str | Path, labels_path: str | Path | None = None, embeddings_path: str | Path | None = None, *,
    progress: Progress | None = None, **options: Any,
) -> Result:  # fmt: skip
    """Measure a file of features: an `.npz` with `z` [N, D] and perhaps `y` [N], or a `.npy` of z with a `.npy` of y.

    Other names that `fit` takes will do: `embeddings`, `features`, `labels`. Arrays that are not compressed are read
    from disk block by block, so that memory does not grow with N. See `measure_features` for options and result;
    `parameters` also names the file. What the file may also hold:

    - `e` [N, F], a second encoder's embeddings of the same images, or `h`, those the codes were made from; a file of
      their own, `embeddings_path`, is a second encoder's;
    - `y_coarse` [N], superclasses; `control` [N, D], codes of an untrained head; `again` [N, D], of another seed.
    """
    features, names, labels = read_embeddings(Path(path), named=labels_path is not None)
    held = array_names(path)
    found = read_arrays(path, ("e", "h", "y_coarse", "control", "again")) if held else {}
    if not held & set(FEATURES[: FEATURES.index("h")]):  # then h is what is measured
        found.pop("h", None)
    if labels_path is not None:
        as_features(np.atleast_1d(features)[:1])  # which has a length
        labels = read_labels(Path(labels_path), names, len(features))[1]
    given_labels, labels = labels, class_labels(labels)
    if labels_path is not None and labels is None:
        why = "no labels in it" if given_labels is None else "no labels to judge by"
        raise InputError(f"{labels_path}: {why}, expected a whole number or a word for every row")
    if embeddings_path is not None:
        found["e"] = find_features(embeddings_path, read_arrays(embeddings_path, (FEATURES,)))
    given: Tree = {"embeddings": found.get("e", found.get("h")), "second": "e" in found}
    given["control"] = found.get("control")
    if "y_coarse" in found:
        given["levels"] = {"superclass": found["y_coarse"]}
    if "again" in found:
        given["stability"] = stability.summary(features, found["again"])
    result = measure_features(features, labels, progress=progress, **given, **options)
    result.parameters = {"file": str(path), "stored_as": str(features.dtype)} | result.parameters
    return result


def measure_features(
    features: Array | Mapping[str, Array],
    labels: Array | None = None,
    *,
    dims: Sequence[int] = KEPT_DIMS,
    ks: Sequence[int] = retrieval.KS,
    ranking: Array | None = None,
    spectrum: bool = True,
    everything: bool = False,
    progress: Progress | None = None,
    **given: Any,
) -> Result:
    """Interpretability and retrieval in both definitions, with chance levels, and the verdict.

    Parameters
    ----------
    features : [N, D]; or by definition, where they were extracted differently, `{"paper": ..., "sound": ...}`.
    labels : [N]; without them there is the verdict and what it is made of.
    dims : numbers of kept dimensions for retrieval, besides all; those of D or more are left out.
    ks : neighbours for retrieval; those of N or more are left out.
    ranking : [D] for retrieval by `sound`, say the column sums of the training split; default those of the features.
    spectrum : whether to compute `effective_rank` and `orthogonality`; None in the result if not.
    everything : also F1 and IoU of dimensions where very many entries fire.
    progress : called with (done, total, what).
    given : what else is known for the verdict: `label_names`, `levels`, `embeddings`, `second`, `control`, `train`,
        `stability`; see `readable.figures`.

    Returns
    -------
    Result with `paper`, `sound`, `retrieval`, `chance` (less what no label enters), `parameters`, and the `verdict`
    with the figures behind it. Of more than 50,000 rows 2,000 serve as queries, and 20,000 are judged for the verdict.
    """
    both = interpretability.DEFINITIONS
    by_definition = features if isinstance(features, Mapping) else dict.fromkeys(both, features)
    groups: dict[int, tuple[np.ndarray, list[str]]] = {}  # definitions that share an array share its passes
    for name, array in by_definition.items():
        if id(array) not in groups:
            groups[id(array)] = as_features(array), []
        groups[id(array)][1].append(name)
    arrays = {name: array for array, members in groups.values() for name in members}
    if len({len(array) for array in arrays.values()}) != 1:
        raise InputError(f"features differ in rows: { {name: len(array) for name, array in arrays.items()} }")
    judged = arrays.get("sound", next(iter(arrays.values())))
    n = len(judged)
    if labels is None:
        counted = {"images": n, "dimensions": {"sound": judged.shape[1]}, "seed": SEED}
        return _add_verdict(Result(parameters=counted), judged, None, everything=everything, **given)
    index, names = as_labels(labels, n)
    labellings = [index, interpretability.shuffled(index, SEED)]
    queries = _sample(n, SAMPLED_QUERIES) if n > MANY_ROWS else None
    ks = [k for k in ks if k < n]
    if not ks:
        raise InputError(f"no number of neighbours fits {n} rows")
    values: Tree = {}
    found: Tree = {name: {} for name in arrays}
    chance: Tree = {name: {} for name in arrays} | {"retrieval": {name: {} for name in arrays}}
    for array, members in groups.values():
        measured = interpretability.evaluate(array, labellings, members, spectrum=spectrum, progress=progress)
        for name in members:
            values[name] = measured[0][name]
            chance[name] = {key: v for key, v in measured[1][name].items() if measures.named(key).needs_labels}
            for extra in measures.MEASURES:
                if extra.function is not None and name in extra.definitions:
                    values[name][extra.key] = extra.function(array, index)
                    if extra.needs_labels:
                        chance[name][extra.key] = extra.function(array, labellings[1])

        def relevance(kept: int | None, ranking: Array, array: np.ndarray = array) -> Tree:
            columns = retrieval.choose(array, kept, ranking)
            return retrieval.rank_relevance(array, labellings, max(ks), columns, queries=queries, progress=progress)

        own = counts.column_sums(array, progress)
        for kept in [*(k for k in dims if k < array.shape[1]), None]:
            near = relevance(kept, own)
            if ranking is not None and kept is not None and "sound" in members:
                near["sound"] = relevance(kept, ranking)["sound"]
            for name in members:
                for place, share in zip((found, chance["retrieval"]), near[name]):
                    precision = retrieval.precision(share, ks)
                    place[name][str(kept or "all")] = {str(k): percent for k, percent in precision.items()}
    parameters = {
        "images": n,
        "dimensions": {name: array.shape[1] for name, array in arrays.items()},
        "classes": len(names),
        "images_per_class": [int(size) for size in (np.bincount(index).min(), np.bincount(index).max())],
        "epsilon": ACTIVE,
        "min_support": counts.MIN_SUPPORT,
        "thresholds": list(interpretability.CURVE),
        "matched_l0": list(interpretability.MATCHED),
        "matched_slack": interpretability.MATCHED_SLACK,
        "owned_precision": OWNED[0],
        "owned_recall": OWNED[1],
        "spectrum_dims_limit": interpretability.SPECTRUM_DIMS,
        "ap_exact_up_to_entries": counts.EXACT_ENTRIES,
        "ap_mantissa_bits_above": counts.BIN_BITS,
        "retrieval_ks": ks,
        "retrieval_dims": [k for k in dims if k < max(array.shape[1] for array in arrays.values())],
        "retrieval_ranking": "column sums" if ranking is None else "given",
        "retrieval_ties": "expected over all orders",
        "queries": n if queries is None else len(queries),
        "queries_sampled": queries is not None,
        "seed": SEED,
    }
    result = Result(**values, retrieval=found, chance=chance, parameters=parameters)
    asked = None if queries is None else len(queries)
    return _add_verdict(result, judged, labels, everything=everything, queries=asked, **given)


def _sample(n: int, count: int) -> np.ndarray:
    return np.sort(np.random.default_rng(SEED).choice(n, count, replace=False))


def _add_verdict(result: Result, z: np.ndarray, labels: Array | None, **given: Any) -> Result:
    """The result with the verdict on codes [N, D], and the figures it is made of; see `readable.figures`."""
    n = len(z)
    if n > max(MANY_ROWS, JUDGED_ROWS):
        chosen = _sample(n, JUDGED_ROWS)
        result.parameters["judged_rows"] = JUDGED_ROWS

        def some(rows: Array | None) -> np.ndarray | None:
            return None if rows is None else np.asarray(rows)[chosen]

        z, labels = z[chosen], some(labels)
        given |= {name: some(given.get(name)) for name in ("embeddings", "control")}
        given["levels"] = {name: some(level) for name, level in (given.get("levels") or {}).items()}
    tree = readable.figures(z, labels, seed=SEED, **given)
    result.verdict = to_dict(in_words(tree, labels is not None))
    result.chance |= rounded(tree["chance"])
    for name in ("readable", "kept", "detectors", "coverage", "labelfree", "whole", "seeds", "control"):
        if tree.get(name):
            setattr(result, name, rounded(tree[name]))
    return result


def evaluate(
    model: Encoder, train: Images, test: Images, *, paper_probe: bool = False, again: Encoder | None = None,
    everything: bool = False, progress: Progress | None = None,
) -> Result:  # fmt: skip
    """All measures of a model.

    Parameters
    ----------
    model : trained; comes back as it was.
    train, test : both splits; the test split must be labelled.
    paper_probe : also run the published 50-epoch linear probe, which takes far longer than all the rest.
    again : the same method trained with another seed: does it find the same dimensions?
    everything : also F1 and IoU of dimensions where very many entries fire.
    progress : called with (done, total, what).

    Returns
    -------
    Result, whose `labelfree` measures are by h, which the codes are made from and which favours them. Without labels of
    the training images it has no `probe` and `knn`; `theory` and `gates` need gates that open and close, and the
    branches on the background need backgrounds.
    """
    from .features import extract
    from .heat import CHECKED, find_layer, masking_drop, see_model

    began = time.perf_counter()
    if test.labels is None:
        raise InputError("the images have no labels: nothing to evaluate against (embed and atlas need none)")
    if len(np.unique(test.labels)) < 2:
        raise InputError(f"the test split has one class only ({len(test)} images): nothing to tell apart")
    seen = extract(model, train, "sound", progress=progress)
    sound = extract(model, test, "sound", progress=progress)
    paper = extract(model, test, "paper", progress=progress)
    dims = sorted({*KEPT_DIMS, DATASETS[model.recipe.data.name].paper_dims})
    ranking = counts.column_sums(seen.gated)
    control = untrained_codes(model, sound.h)
    same = None
    if again is not None:
        other = extract(again, test, "sound", progress=progress)
        twin = untrained_codes(again, other.h, seed=1)
        same = stability.summary(sound.gated, other.gated, control=(control, twin))
    coarse = DATASETS[model.recipe.data.name].coarse
    result = measure_features(
        {"paper": paper.gated, "sound": sound.gated},
        test.labels,
        dims=dims,
        ranking=ranking,
        progress=progress,
        everything=everything,
        label_names=test.class_names,
        levels={"superclass": np.array(coarse)[test.labels]} if coarse else None,
        embeddings=sound.h,
        control=control,
        train=None if train.labels is None else (seen.gated, train.labels),
        stability=same,
    )
    table = describe(sound.gated, as_labels(test.labels, len(test))[0])
    columns = ("support", "consistency", "entropy_freq", "mass")
    result.dimensions = {key: rounded(getattr(table, key).astype(float), DIGITS) for key in columns}
    result.curves = curves(sound, paper, test.labels, ranking, result.retrieval)
    result.conflicting = {str(t): conflicting(sound.gated, test, t) for t in (0.9, 0.5)}
    if train.labels is not None:
        result.probe = {"fast": probe.fast_probe(seen.h, train.labels, sound.h, test.labels)}
        k = result.parameters["knn_k"] = min(NEIGHBOURS, len(train))
        known = [train.labels, interpretability.shuffled(train.labels)]
        near = {
            name: retrieval.knn_accuracies(getattr(seen, name), known, getattr(sound, name), test.labels, k)
            for name in ("h", "gated")
        }
        result.knn, result.chance["knn"] = ({name: both[i] for name, both in near.items()} for i in (0, 1))
        if paper_probe:
            result.probe["paper"] = published_probe(model, train, test, progress)
    if sound.open is not None:  # the theory is of gates that are open or closed
        both = test.labels, test.backgrounds
        result.theory = theory.compare(sound.z, sound.gated, sound.open, *both, model.recipe.gate.prior)
        result.gates = {
            "open": float(sound.open.mean()),
            "open_where_active": float(sound.open[sound.z > 0].mean()) if (sound.z > 0).any() else None,
        }
    sight, some = see_model(model), test.pixels[spread_evenly(len(test), CHECKED)]
    if (layer := find_layer(sight, some)) is not None:
        drop = masking_drop(sight, some, layer)
        result.heat, result.chance["heat"] = dict(drop), {"hottest": drop["random"]}
    if test.backgrounds is not None:
        for name, value in background_measures(model, train, test, seen, sound).items():
            setattr(result, name, value)
    result.seconds = round(time.perf_counter() - began, 2)
    return result


@torch.inference_mode()
def untrained_codes(model: Encoder, h: np.ndarray, seed: int = 0) -> np.ndarray:
    """Codes [N, D] of the trained h [N, F] by a head as the recipe's, with fresh weights."""
    from .model import Encoder

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        head = Encoder(model.recipe, model.backbone).head.eval().to(model.mean.device)
    parts = torch.from_numpy(h).split(4096)
    return torch.cat([head(part.to(model.mean.device)).gated.cpu() for part in parts]).numpy()


def curves(sound: Extracted, paper: Extracted, labels: np.ndarray, ranking: np.ndarray, known: Tree) -> Tree:
    """Consistency by minimum support, and retrieval over the number of kept dimensions.

    `known` is the retrieval that was measured: what it has is not sought again, unless it is that of a sample.
    """
    ks = tuple(k for k in (1, 3, 5, 10) if k < len(labels))

    def curve(definition: str, features: np.ndarray, ranking: np.ndarray | None) -> Tree:
        width = features.shape[1]
        dims = [kept for kept in CURVE_DIMS if kept <= width]
        whole = known[definition] if len(labels) <= MANY_ROWS else {}
        had = {kept: whole.get("all" if kept == width else str(kept)) for kept in dims}
        missing = [kept for kept in dims if had[kept] is None]
        return rounded(had | retrieval.retrieval_curve(features, labels, missing, ks, definition, ranking))

    by_support = interpretability.consistency_by_support(sound.gated, labels, SUPPORTS)
    return {
        "consistency_by_support": rounded(dict(zip(SUPPORTS, by_support["consistency"].tolist()))),
        "dimensions_by_support": rounded(dict(zip(SUPPORTS, by_support["dimensions"].tolist()))),
        "retrieval_paper": curve("paper", paper.gated, None),
        "retrieval_sound": curve("sound", sound.gated, ranking),
    }


def background_measures(model: Encoder, train: Images, test: Images, seen: Extracted, sound: Extracted) -> Tree:
    """Probes for both labels, worst group, conflict with and without gates, stability under another background."""
    from .features import extract

    out: Tree = {}
    data, known = model.recipe.data, DATASETS[model.recipe.data.name]
    both = test.labels, test.backgrounds
    if train.backgrounds is not None and train.labels is not None:
        out["background"], group = background_probes(seen, train, sound, test)
        out["worst_group"] = scalars(group) | {"groups": group["groups"][:LISTED]}
    if known.balanced:  # a probe fitted where object and background are independent cannot take one for the other
        fit = load_split(data, known.balanced)
        h = extract(model, fit, "sound").h
        out["balanced"] = {
            "object": probe.fast_probe(h, fit.labels, sound.h, test.labels),
            "background": probe.fast_probe(h, fit.backgrounds, sound.h, test.backgrounds),
        }
    found = {name: conflict.conflict(getattr(sound, name), *both) for name in ("z", "gated")}
    out["conflict"] = {
        name: scalars(value) | {"by_dimension": rounded(value["by_dimension"]["error"], DIGITS)}
        for name, value in found.items()
    }
    out["ipw"] = theory.ipw_effect(sound.gated, *both, pi=theory.prevalence(seen.z))
    out["ipw"]["retrieval"] = rounded(out["ipw"]["retrieval"])
    if sound.open is not None:
        out["gate_effect"] = scalars(conflict.gate_effect(sound.z, sound.gated, *both))
    other = known.counterfactual(data) if known.counterfactual else None
    if other is not None:
        moved = extract(model, other, "sound")
        out["stability"] = {name: conflict.stability(getattr(sound, name), getattr(moved, name)) for name in KINDS}
    return out


def background_probes(seen: Extracted, train: Images, found: Extracted, test: Images) -> tuple[Tree, Tree]:
    """Probes for the background by kind of feature, and the object probe on h by group.

    Where object and background are tied in training, part of the background is read off the object.
    """
    probes = {
        kind: probe.fast_probe(getattr(seen, kind), train.backgrounds, getattr(found, kind), test.backgrounds)
        for kind in KINDS
    }
    group = probe.group_probe(seen.h, train.labels, train.backgrounds, found.h, test.labels, test.backgrounds)
    return probes, group


def published_probe(model: Encoder, train: Images, test: Images, progress: Progress | None) -> Tree:
    """The 50-epoch probe of the published experiments, with their pixel statistics."""
    from . import paper_probe as published

    data = model.recipe.data
    given = model.backbone, train, test, data.paper_mean or data.mean, data.paper_std or data.std
    how: Tree = {"variant": DATASETS[data.name].probe, "size": model.recipe.views.size, "device": model.mean.device}
    return published.paper_probe(*given, seeds=PUBLISHED_SEEDS, progress=progress, **how)


def conflicting(z: np.ndarray, test: Images, threshold: float) -> Tree:
    """How many dimensions conflict by the paper's definition, and the worst of them with the classes they join."""
    assert test.labels is not None
    found = conflict.conflicting_features(z, test.labels, threshold)
    name = test.class_names.__getitem__ if test.class_names else str
    worst = [
        {"dim": row["dim"], "product": row["product"], "classes": [name(int(c)) for c in row["classes"][:LISTED]]}
        for row in found["dims"][:LISTED]
    ]
    return {"count": found["count"], "chance_count": found["chance_count"], "worst": worst}


def scalars(tree: Tree) -> Tree:
    """The plain numbers of a result, without its arrays."""
    return {k: v for k, v in tree.items() if v is None or isinstance(v, bool | int | float)}

