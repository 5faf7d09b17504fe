"""Every measure of features and labels that asks for nothing else, of arrays or of a file of any size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from . import counts, interpretability, retrieval
from .arrays import Array, as_features, as_labels, read

KEPT_DIMS = (64, 128, 256)  # numbers of dimensions for retrieval, besides all
MANY_ROWS = 50_000  # above, neighbours are sought for a sample of queries
SAMPLED_QUERIES = 2_000


def measure_file(
    path: str | Path, labels_path: str | Path | None = None, *, progress: counts.Progress | None = None, **options: Any
) -> dict[str, Any]:
    """Measure a file of features: an `.npz` with `z` [N, D] and `y` [N], or a `.npy` of z with a `.npy` of y.

    Arrays that are not compressed are read from disk block by block, so that memory does not grow with N. `read` says
    more of the file, `measure_features` of the options and the result; `parameters` also names the file.
    """
    features, labels = read(path, labels_path)
    result = measure_features(features, labels, progress=progress, **options)
    result["parameters"] = {"file": str(path), "stored_as": str(features.dtype)} | result["parameters"]
    return result


def measure_features(
    features: Array | Mapping[str, Array],
    labels: Array,
    *,
    definitions: Sequence[str] = interpretability.DEFINITIONS,
    dims: Sequence[int] = KEPT_DIMS,
    ks: Sequence[int] = retrieval.KS,
    ranking: Array | None = None,
    min_support: int = interpretability.MIN_SUPPORT,
    queries: int | None = None,
    seed: int = 0,
    progress: counts.Progress | None = None,
) -> dict[str, Any]:
    """Interpretability and retrieval in both definitions, with chance levels.

    Parameters
    ----------
    features : [N, D]; or by definition, where they were extracted differently, `{"paper": ..., "sound": ...}`.
    labels : [N].
    dims : numbers of kept dimensions for retrieval, besides all; those of D or more are left out.
    ks : neighbours for retrieval; those of N or more are left out.
    ranking : [D] for retrieval by `sound`, say the column sums of the training split; default those of the features.
    min_support : images a dimension must fire on to count in `sound`.
    queries : how many rows serve as queries; default all, or 2,000 of more than 50,000.
    seed : of the shuffled labels and of the sampled queries.
    progress : called with (done, total, what).

    Returns
    -------
    `paper` and `sound` (see `interpretability`), `retrieval` by definition, kept dimensions and k (percent), `chance`
    (the same with shuffled labels, less what no label enters) and `parameters` (every setting). JSON can hold it all.
    """
    by_definition = features if isinstance(features, Mapping) else dict.fromkeys(definitions, features)
    once = {id(array): as_features(array) for array in by_definition.values()}
    arrays = {name: once[id(array)] for name, array in by_definition.items()}
    if len({len(array) for array in arrays.values()}) != 1:
        raise InputError(f"features differ in rows: { {name: len(array) for name, array in arrays.items()} }")
    n = len(next(iter(arrays.values())))
    index, names = as_labels(labels, n)
    labellings = [index, interpretability.shuffled(index, seed)]
    rows = None
    if queries is None and n > MANY_ROWS:
        queries = SAMPLED_QUERIES
    if queries is not None and queries < n:
        rows = np.sort(np.random.default_rng(seed).choice(n, queries, replace=False))
    ks = [k for k in ks if k < n]
    if not ks:
        raise InputError(f"no number of neighbours fits {n} rows")
    result: dict[str, Any] = {name: {} for name in arrays}
    found: dict[str, Any] = {name: {} for name in arrays}
    chance: dict[str, Any] = {name: {} for name in arrays} | {"retrieval": {name: {} for name in arrays}}
    for members in _alike(arrays):
        array = arrays[members[0]]
        measured = interpretability.evaluate(array, labellings, members, min_support=min_support, progress=progress)
        for name in members:
            result[name] = measured[0][name]
            chance[name] = {key: v for key, v in measured[1][name].items() if not _label_free(key)}
        own = counts.column_sums(array, progress)
        for kept in [*(k for k in dims if k < array.shape[1]), None]:
            columns = retrieval.choose(array, kept, own)
            relevance = retrieval.rank_relevance(array, labellings, max(ks), columns, queries=rows, progress=progress)
            if ranking is not None and kept is not None and "sound" in members:
                columns = retrieval.choose(array, kept, ranking)
                strict = retrieval.rank_relevance(array, labellings, max(ks), columns, queries=rows, progress=progress)
                relevance["sound"] = strict["sound"]
            for name in members:
                for place, share in zip((found, chance["retrieval"]), relevance[name]):
                    place[name]["all" if kept is None else str(kept)] = _by_k(share, ks)
    parameters = {
        "images": n,
        "dimensions": {name: array.shape[1] for name, array in arrays.items()},
        "classes": len(names),
        "images_per_class": [int(size) for size in (np.bincount(index).min(), np.bincount(index).max())],
        "epsilon": counts.EPSILON,
        "min_support": min_support,
        "thresholds": list(interpretability.CURVE),
        "matched_l0": list(interpretability.MATCHED),
        "matched_slack": interpretability.MATCHED_SLACK,
        "owned_precision": interpretability.OWNED[0],
        "owned_recall": interpretability.OWNED[1],
        "spectrum_dims_limit": interpretability.SPECTRUM_DIMS,
        "ap_exact_up_to_entries": counts.EXACT_ENTRIES,
        "ap_mantissa_bits_above": counts.BIN_BITS,
        "retrieval_ks": ks,
        "retrieval_dims": [k for k in dims if k < max(array.shape[1] for array in arrays.values())],
        "retrieval_ranking": "column sums" if ranking is None else "given",
        "retrieval_ties": "expected over all orders",
        "queries": n if rows is None else len(rows),
        "queries_sampled": rows is not None,
        "seed": seed,
    }
    return result | {"retrieval": found, "chance": chance, "parameters": parameters}


def _alike(arrays: dict[str, np.ndarray]) -> list[list[str]]:
    """Definitions that share an array, so that its passes are shared too."""
    groups: dict[int, list[str]] = {}
    for name, array in arrays.items():
        groups.setdefault(id(array), []).append(name)
    return list(groups.values())


def _label_free(key: str) -> bool:
    return key in interpretability.LABEL_FREE or key.startswith("l0_at_")


def _by_k(relevance: np.ndarray, ks: Sequence[int]) -> dict[str, float]:
    return {str(k): percent for k, percent in retrieval.precision(relevance, ks).items()}
