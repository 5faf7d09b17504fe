"""Do codes take composed images apart? One row per method and seed, for docs/log/factors.md.

    python benchmarks/factors.py birds.npz --methods prototypes factors --seeds 0 1 2

The file has the embeddings x [N, F], split [N] (0 train, 1 validation, 2 test), and the labels y
(0 or 1, to be classified), place (0 or 1, the background) and kind of each image. In the training
split y and place may be tied; in the others they must be independent.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

sys.path.insert(0, str(Path(__file__).parents[1]))

from bayesncl import ReadableCodes, retrieval
from bayesncl.measure.columns import stability
from bayesncl.measure.factors import class_auc
from bayesncl.method.losses import keep_strongest

MAX_ACTIVE = 16
NEUTRAL = 0.1  # largest |AUC - 0.5| of a dimension that is neutral, and least of one that is not
MAX_CORRELATION = 0.1  # with the place, of dimensions that the trimmed classifier may read
PENALTIES = (0.001, 0.003, 0.01, 0.03, 0.1, 1)


def keep(z: np.ndarray, n_active: int) -> np.ndarray:
    return keep_strongest(torch.from_numpy(z), n_active).numpy()


def precision_at_5(z: np.ndarray, labels: np.ndarray) -> float:
    return float(retrieval(z, labels, ks=(5,))[5])


def accuracies(parts: list[np.ndarray], data: list[dict[str, np.ndarray]], dims: np.ndarray) -> str:
    """Average and worst-group test accuracy of a logistic regression on these dimensions."""
    center, scale = parts[0][:, dims].mean(0), parts[0][:, dims].std(0).clip(1e-6)
    train, val, test = ((z[:, dims] - center) / scale for z in parts)
    models = [
        LogisticRegression(C=c, max_iter=300, class_weight="balanced").fit(train, data[0]["y"])
        for c in PENALTIES
    ]
    best = max(models, key=lambda model: float(model.score(val, data[1]["y"])))
    right = best.predict(test) == data[2]["y"]
    groups = [
        right[(data[2]["y"] == y) & (data[2]["place"] == p)].mean()
        for y, p in itertools.product((0, 1), repeat=2)
    ]
    return f"{100 * right.mean():.1f} / {100 * min(groups):.1f}"


def describe(parts: list[np.ndarray], data: list[dict[str, np.ndarray]]) -> list[str]:
    test, labels = parts[2], data[2]
    far = {f: np.abs(class_auc(test, labels[f])[0][1] - 0.5) for f in ("place", "y")}
    neutral = far["place"] < NEUTRAL
    place = data[1]["place"].astype(float)
    correlation = np.array([np.corrcoef(column, place)[0, 1] for column in parts[1].T])
    trimmed = np.abs(np.nan_to_num(correlation)) < MAX_CORRELATION
    kept = keep(test, MAX_ACTIVE)
    kind = np.unique(labels["kind"], return_inverse=True)[1]
    everything = np.ones(test.shape[1], bool)
    return [
        f"{100 * neutral.mean():.0f} %",
        f"{100 * (neutral & (far['y'] > NEUTRAL)).mean():.1f} %",
        f"{precision_at_5(kept, kind):.1f} / {precision_at_5(kept, labels['place']):.1f}",
        accuracies(parts, data, everything),
        f"{accuracies(parts, data, trimmed)} ({trimmed.sum()})" if trimmed.any() else "-",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--methods", nargs="+", default=["prototypes", "factors", "sae", "csr"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--components", type=int, default=256)
    options = parser.parse_args()
    with np.load(options.file) as file:
        arrays: dict[str, Any] = dict(file)
    splits = [arrays["split"] == s for s in (0, 1, 2)]
    data = [{k: arrays[k][rows] for k in ("x", "y", "place", "kind")} for rows in splits]
    print("| codes | seed | neutral | about y, neutral | P@5 kind / place | all | trimmed (left) | s |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for method in options.methods:
        tests = []
        for seed in options.seeds:
            began = time.perf_counter()
            codes = ReadableCodes(options.components, method=method, random_state=seed).fit(data[0]["x"])
            took = time.perf_counter() - began
            parts = [codes.transform(each["x"]) for each in data]
            tests.append(keep(parts[2], 5))
            row = [method, str(seed), *describe(parts, data), f"{took:.0f}"]
            print("| " + " | ".join(row) + " |", flush=True)
        pairs = itertools.combinations(tests, 2)
        cosines = [stability(a, b)["mean_cosine"] for a, b in pairs]
        print(f"{method}: same dimensions from another seed, 5 active: {np.mean(cosines):.2f}")


if __name__ == "__main__":
    main()
