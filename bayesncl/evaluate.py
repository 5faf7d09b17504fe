"""Every measure of a run, of codes or of a file of features: one path, one Result."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from bayesncl import inputs
from bayesncl.codes.folder import CodesFolder, Rows
from bayesncl.codes.heat import N_CHECKED, heatmaps_of_run, masking_drop
from bayesncl.codes.judge import judged_rows, judging_data
from bayesncl.data import DATASETS
from bayesncl.data import load as load_split
from bayesncl.data.images import Images, Progress, spread_evenly
from bayesncl.errors import InputError, as_input_error
from bayesncl.inputs import Array, as_features, as_labels, as_numpy
from bayesncl.measure import interpretability, registry, retrieval
from bayesncl.measure.dimensions import Dimensions, describe, mean
from bayesncl.measure.figures import figures
from bayesncl.measure.interpretability import DEFINITIONS, shuffle_labels
from bayesncl.measure.linear import fast_probe
from bayesncl.measure.result import Result, Tree, rounded
from bayesncl.measure.rows import column_sums
from bayesncl.measure.verdict import Verdict
from bayesncl.method.encoder import Encoder, extract
from bayesncl.recipes import recipe_from_dict, with_root

MAX_ROWS = 50_000  # of more, as many are measured, spread evenly
SAMPLED_QUERIES = 2_000  # ... of which so many are queries
KEPT_DIMS = (64, 128, 256)  # numbers of dimensions for retrieval, besides all
CURVE_DIMS = (
    16, 32, 48, 64, 80, 96, 128, 192, 224, 256, 288, 320, 352, 384, 512, 1024
)  # fmt: skip
SUPPORTS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100)
NEIGHBORS = 20  # of the kNN classifier
DIGITS = 6  # significant digits of values per dimension
MIN_IMAGES_PER_CLASS = 20  # test images; with fewer, numbers are mostly chance
SEED = 0  # of shuffled labels and drawn rows
PER_ROW = ("embeddings", "control", "again", "control_again", "swapped", "levels", "factors")


def warn_of_few(train: Images, test: Images) -> str | None:
    """A warning where test images are few, or lack classes of the training images."""
    if train.labels is None or test.labels is None:
        return None
    known, met = (len(np.unique(labels)) for labels in (train.labels, test.labels))
    if len(test) < MIN_IMAGES_PER_CLASS * met:
        return f"only {len(test)} test images of {met} of {known} classes: treat results as rough"
    return None if met == known else f"the test images are of {met} of {known} classes"


def measure_file(
    path: str | Path, labels_path: str | Path | None = None,
    embeddings_path: str | Path | None = None, factor_paths: Mapping[str, Path] | None = None,
    **options: Any,
) -> Result:  # fmt: skip
    """Measure a file of features: `z` [N, D] and perhaps `y` [N] in .npz, .npy, .csv, ...

    The names that `fit` takes work too. `measure_features` has the options. The file may also hold
    `e` [N, F], a second encoder's embeddings of the same images (or `embeddings_path` does), or
    `h`, those the codes were made from; `y_coarse` [N], superclasses; `control` [N, D], codes of an
    untrained head; `again` [N, D], codes of another seed; `y_NAME` [N], a further factor; `swapped`
    [N, D], codes of the same objects on another background; `groups` [D] of the dimensions.
    """
    features, names, labels, _ = inputs.read_embeddings(Path(path), labels_path is not None)
    held = inputs.array_names(path)
    plain = ("e", "h", "y_coarse", "control", "again", "swapped", "groups")
    further = sorted(name for name in held if name.startswith("y_") and name != "y_coarse")
    arrays = inputs.read_arrays(path, (*plain, *further)) if held else {}
    if not held & set(inputs.FEATURES[: inputs.FEATURES.index("h")]):  # h itself is measured
        arrays.pop("h", None)
    if labels_path is not None:
        as_features(np.atleast_1d(features)[:1])  # refuses what has no rows
        labels = read_factors({"labels": Path(labels_path)}, names, len(features))["labels"]
    labels = inputs.class_labels(labels)
    factors = {name[2:]: arrays[name] for name in further}
    factors |= read_factors(factor_paths or {}, names, len(features))
    if embeddings_path is not None:
        arrays["e"] = inputs.read_embeddings(Path(embeddings_path), named=False).z
    given: Tree = {
        "embeddings": arrays.get("e", arrays.get("h")),
        "second": "e" in arrays,
        "levels": {"superclass": arrays["y_coarse"]} if "y_coarse" in arrays else None,
        "factors": join_factors(labels, factors),
        **{name: arrays.get(name) for name in ("control", "again", "swapped", "groups")},
    }
    result = measure_features(features, labels, **given, **options)
    result.parameters = {"file": str(path), "stored_as": str(features.dtype)} | result.parameters
    return result


def join_factors(labels: Array | None, factors: Mapping[str, Array]) -> Mapping[str, Array] | None:
    """The factors; a single one is joined by the labels, as `class`. None without two."""
    if len(factors) == 1 and labels is not None:
        factors = {"class": labels, **factors}
    return factors if len(factors) > 1 else None


def read_factors(
    paths: Mapping[str, Path], names: np.ndarray | None, n: int
) -> dict[str, np.ndarray]:
    """Labels [N] of further factors from files, by name."""
    found = {}
    for name, path in paths.items():
        labels = inputs.class_labels(inputs.read_labels(path, names, n)[1])
        if labels is None:
            raise InputError(f"{path}: no class labels; expected an integer or string per row")
        found[name] = labels
    return found


def images_of_run(
    folder: CodesFolder, rows: Rows, chosen: np.ndarray, root: str | None = None,
    progress: Progress | None = None,
) -> Images:  # fmt: skip
    """The images of the chosen rows of a run's codes, from its dataset; `root` is where it is."""
    names = tuple(rows.names[i] for i in chosen)
    recipe = recipe_from_dict(folder.about().recipe, str(folder.about_file))
    data, keys = with_root(recipe, root).data, [name.split("/") for name in names]  # as test/17
    splits = {split: load_split(data, split, progress) for split in dict(keys)}
    with as_input_error(f"the dataset of {folder} has changed", IndexError):
        each = [
            splits[split].take(np.array([int(i) for _, i in block]))
            for split, block in groupby(keys, key=lambda key: key[0])  # a split's rows are together
        ]
    grounds: Any = [one.backgrounds for one in each]
    return Images(
        np.concatenate([one.pixels for one in each]),
        None if rows.labels is None else rows.labels[chosen],
        None if grounds[0] is None else np.concatenate(grounds),
        rows.class_names, each[0].background_names, names,
    )  # fmt: skip


def backgrounds_of(folder: CodesFolder, rows: Rows, chosen: np.ndarray) -> np.ndarray | None:
    """The background [n] of the chosen rows of a run's codes, by name; None without any."""
    about = folder.about()
    if about.kind != "run":
        return None
    recipe = recipe_from_dict(about.recipe, str(folder.about_file))
    if not DATASETS[recipe.data.name].second_label:
        return None
    images = images_of_run(folder, rows, chosen)
    return np.array(images.background_names)[images.backgrounds]


def measure_codes(
    folder: Path, factor_paths: Mapping[str, Path] | None = None, **options: Any
) -> Result:
    """Measure a folder of codes; `measure_features` has the options."""
    here = CodesFolder(folder)
    codes, rows = here.codes(), here.rows()
    z, labels, given = judging_data(codes, here.embeddings(), rows)
    chosen = judged_rows(rows)
    every = read_factors(factor_paths or {}, np.array(rows.names), len(rows))
    factors = {name: y[chosen] for name, y in every.items()}
    if (second := backgrounds_of(here, rows, chosen)) is not None:
        factors.setdefault("background", second)
    given["factors"] = join_factors(labels, factors)
    if len(np.unique(codes.groups_)) > 1:
        given["groups"] = codes.groups_
    result = measure_features(z, labels, **options, **given)
    source: Tree = {"codes": str(folder), "identity": here.identity(), "method": codes.method}
    source["judged_by"] = "held out" if rows.held else "fitted on"
    if (share := codes.explained_variance(given["embeddings"])) is not None:
        source["explained_variance"] = share
    result.parameters = source | result.parameters
    return result


def measure_features(
    features: Array, labels: Array | None = None, *, paper: Array | None = None,
    dims: Sequence[int] = KEPT_DIMS, ranking: Array | None = None, spectrum: bool = False,
    progress: Progress | None = None, **given: Any,
) -> Result:  # fmt: skip
    """Interpretability and retrieval in both definitions, with chance levels, and the verdict.

    Parameters
    ----------
    features : [N, D].
    labels : [N]; without them there is only the verdict and the measures behind it.
    paper : [N, D], features for the definition `paper` if they were extracted differently.
    dims : numbers of kept dimensions for retrieval, besides all; those of D or more are left out.
    ranking : [D] for retrieval by `sound`, such as the column sums of the training split; default
        the column sums of the features.
    spectrum : also compute `effective_rank` and `orthogonality`.
    progress : called with (done, total, what).
    given : for the verdict: `label_names`, `levels`, `embeddings`, `second`, `control`, `noise`,
        `train`, `again`, `factors`, `swapped`, `groups`, `everything`; see `figures.figures`.

    Returns
    -------
    Result with `paper`, `sound`, `retrieval`, `chance`, `parameters`, `verdict` and its measures.
    Of more than 50,000 rows, as many are measured, spread evenly, with 2,000 of them as queries;
    `parameters["rows_measured"]` states that.
    """
    features = as_features(features)
    n = len(features)
    parameters: Tree = {"images": n}
    queries = None
    if n > MAX_ROWS:
        rows = spread_evenly(n, MAX_ROWS)

        def take(values: Any) -> Any:
            if isinstance(values, Mapping):
                return {key: take(each) for key, each in values.items()}
            if values is None:
                return None
            return (values.tocsr() if sp.issparse(values) else as_numpy(values))[rows]

        features, labels, paper = take(features), take(labels), take(paper)
        given |= {name: take(given.get(name)) for name in PER_ROW}
        given["queries"] = queries = SAMPLED_QUERIES
        parameters |= {"rows_measured": len(rows), "rows_chosen": "spread evenly"}
    parameters |= {"seed": SEED, "dimensions": {"sound": features.shape[1]}}
    by_class = Result()
    if labels is not None:
        given.setdefault("queries", None)
        by_class = _measure_classes(
            features, labels, paper, dims, ranking, spectrum, queries, progress
        )
    result = figures(features, labels, seed=SEED, **given)
    if n > MAX_ROWS:
        result.verdict["sampled_from"] = n
    result.paper, result.sound = by_class.paper, by_class.sound
    result.retrieval, result.chance = by_class.retrieval, by_class.chance | result.chance
    result.parameters = parameters | by_class.parameters
    return result


def verdict(
    z: Array, labels: Array | None = None, *, embeddings: Array | None = None
) -> Verdict:
    """How readable the dimensions of codes are; prints as a table.

    Parameters
    ----------
    z : [N, D], preferably codes of images that were not fitted.
    labels : [N].
    embeddings : [N, F] of the same images. Without labels, they decide which images are alike; for
        an unbiased verdict, use those of a second encoder.

    Returns
    -------
    Verdict, a dict with the entries `images`, `dimensions`, `collapsed` and `lines`.
    """
    return Verdict(measure_features(z, labels, dims=(), embeddings=embeddings).verdict)


def _measure_classes(
    features: np.ndarray, labels: Array, paper: Array | None, dims: Sequence[int],
    ranking: Array | None, spectrum: bool, queries: int | None, progress: Progress | None,
) -> Result:  # fmt: skip
    """The branches `paper`, `sound` and `retrieval`, with their chance levels and parameters."""
    n, width = features.shape
    index, classes = as_labels(labels, n)
    labelings = [index, shuffle_labels(index, SEED)]
    arrays = {"paper": features if paper is None else as_features(paper), "sound": features}
    result = Result()
    for name, array in arrays.items():
        values, chance = interpretability.score(array, labelings, name, spectrum=spectrum)
        for extra in registry.MEASURES:
            if extra.function is not None and name in extra.definitions:
                values[extra.key] = extra.function(array, labelings[0])
                chance[extra.key] = extra.function(array, labelings[1])
        setattr(result, name, values)
        result.chance[name] = {k: chance[k] for k in values if registry.named(k).needs_labels}
    asked = retrieval.draw_queries(n, queries, SEED)
    ks = [k for k in retrieval.KS if k < n]
    searches: list[tuple[Sequence[str], np.ndarray, Array | None]] = [(DEFINITIONS, features, None)]
    if paper is not None or ranking is not None:  # else one search serves both definitions
        searches = [(("paper",), arrays["paper"], None), (("sound",), features, ranking)]
    branches = result.retrieval, result.chance.setdefault("retrieval", {})
    widths: list[int | None] = [*(k for k in dims if k < width), None]
    for names, array, order in searches:
        order = column_sums(array) if order is None else order
        for done, kept in enumerate(widths, 1):
            rows = retrieval.prepare(array, retrieval.choose_columns(array, kept, order))
            found = retrieval.relevance(rows, labelings, max(ks), queries=asked)
            for name in names:
                for tree, share in zip(branches, found[name]):
                    by_k = rounded(retrieval.precision(share, ks))
                    tree.setdefault(name, {})[str(kept or "all")] = by_k
            if progress:
                progress(done, len(widths), "retrieval")
    sizes = np.bincount(index).tolist()
    result.parameters = {
        "dimensions": {name: array.shape[1] for name, array in arrays.items()},
        "classes": len(classes),
        "images_per_class": [min(sizes), max(sizes)],
        "retrieval_ks": ks,
        "retrieval_dims": widths[:-1],
        "retrieval_ranking": "column sums" if ranking is None else "given",
        "queries": n if asked is None else len(asked),
    }
    return result


def evaluate(
    model: Encoder, train: Images, test: Images, *, again: Encoder | None = None,
    everything: bool = False, extra: Callable[..., Tree] | None = None,
    progress: Progress | None = None,
) -> Result:  # fmt: skip
    """Measure a trained model; the test split must be labeled.

    `again` is the same method trained with another seed, `everything` adds F1 and IoU of dimensions
    where very many entries fire. `extra` is called with (model, train, test, training features,
    test features) and returns further branches of the Result; `paper.measures.paper_measures` adds
    theory, conflict, background. The `labelfree` measures are by h, from which the codes are made
    and which favors them.
    """
    began = time.perf_counter()
    if test.labels is None:
        raise InputError("the test images have no labels: `evaluate` needs them, `atlas` does not")
    if len(np.unique(test.labels)) < 2:
        raise InputError(f"the test split has one class only ({len(test)} images)")
    seen = extract(model, train, "sound", progress=progress)
    sound = extract(model, test, "sound", progress=progress)
    paper = extract(model, test, "paper", progress=progress)
    dataset = DATASETS[model.recipe.data.name]
    ranking = column_sums(seen.gated)
    twin: Tree = {}
    if again is not None:
        other = extract(again, test, "sound", progress=progress)
        twin["again"] = other.gated
        twin["control_again"] = untrained_codes(again, other.h, seed=1)
    shown = {*KEPT_DIMS, dataset.paper_dims}
    second = {} if test.backgrounds is None else {"background": test.backgrounds}
    result = measure_features(
        sound.gated,
        test.labels,
        paper=paper.gated,
        dims=sorted({*shown, *CURVE_DIMS}),
        ranking=ranking,
        spectrum=True,
        progress=progress,
        everything=everything,
        label_names=test.class_names,
        levels={"superclass": np.array(dataset.coarse)[test.labels]} if dataset.coarse else None,
        embeddings=sound.h,
        control=untrained_codes(model, sound.h),
        train=None if train.labels is None else (seen.gated, train.labels),
        factors=join_factors(test.labels, second),
        **twin,
    )
    table = describe(sound.gated, as_labels(test.labels, len(test))[0])
    columns = ("support", "consistency", "entropy_freq", "mass")
    result.dimensions = {k: rounded(getattr(table, k).astype(float), DIGITS) for k in columns}
    result.curves = curves(result, table, shown)
    if train.labels is not None:
        result.probe = {"fast": fast_probe(seen.h, train.labels, sound.h, test.labels)}
        k = result.parameters["knn_k"] = min(NEIGHBORS, len(train))
        labelings = [train.labels, shuffle_labels(train.labels)]
        result.chance["knn"] = {}
        for kind in ("h", "gated"):
            rows = getattr(seen, kind), labelings, getattr(sound, kind), test.labels
            result.knn[kind], result.chance["knn"][kind] = retrieval.knn_accuracies(*rows, k)
    if sound.open is not None:
        active = sound.z > 0
        where_active = float(sound.open[active].mean()) if active.any() else None
        result.gates = {"open": float(sound.open.mean()), "open_where_active": where_active}
    some = test.pixels[spread_evenly(len(test), N_CHECKED)]
    if (drop := masking_drop(heatmaps_of_run(model), some, progress)) is not None:
        result.heat, result.chance["heat"] = dict(drop), {"hottest": drop["random"]}
    for name, branch in (extra(model, train, test, seen, sound) if extra else {}).items():
        setattr(result, name, result.probe | branch if name == "probe" else branch)
    result.seconds = round(time.perf_counter() - began, 2)
    return result


@torch.inference_mode()
def untrained_codes(model: Encoder, h: np.ndarray, seed: int = 0) -> np.ndarray:
    """Codes [N, D] of the trained h [N, F] by a head of the recipe with fresh weights."""
    device = model.mean.device
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        head = Encoder(model.recipe, model.backbone).head.eval().to(device)
    parts = torch.from_numpy(h).split(4096)
    return torch.cat([head(part.to(device)).gated.cpu() for part in parts]).numpy()


def curves(result: Result, table: Dimensions, shown: Collection[int]) -> Tree:
    """Consistency by minimum support, and retrieval over the number of kept dimensions.

    Retrieval with numbers of dimensions that are not `shown` moves from the result to the curves.
    """
    assert table.consistency is not None
    shares = {s: table.consistency[table.support >= s] for s in SUPPORTS}
    found: Tree = {
        "consistency_by_support": rounded({s: mean(share) for s, share in shares.items()}),
        "dimensions_by_support": rounded({s: len(share) for s, share in shares.items()}),
    }
    parameters = result.parameters
    for name, width in parameters["dimensions"].items():
        by_dims = result.retrieval[name] | {str(width): result.retrieval[name]["all"]}
        found[f"retrieval_{name}"] = {str(d): by_dims[str(d)] for d in CURVE_DIMS if d <= width}
        for tree in (result.retrieval, result.chance["retrieval"]):
            tree[name] = {d: p for d, p in tree[name].items() if d == "all" or int(d) in shown}
    parameters["retrieval_dims"] = [d for d in parameters["retrieval_dims"] if d in shown]
    return found
