"""Do the defaults of ReadableCodes hold elsewhere? Made rows with one trouble each, scikit-learn's digits, and yours.

    python benchmarks/defaults.py  # the table of docs/log/other-data.md
    python benchmarks/defaults.py --only plain,heaps
    python benchmarks/defaults.py --files train.npz test.npz        # arrays z [N, F] and y [N] in each

Codes with every option as it comes, beside k-means with as many clusters, an untrained head and the whole row; judged
on rows that were not fitted. `again` matches the dimensions of two seeds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from readable import K, load, whole
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits

from bayesncl import ReadableCodes
from bayesncl.measure import coverage
from bayesncl.measure import topk as kept
from bayesncl.measure.columns import stability, twin_share
from bayesncl.measure.interpretability import interpretability

Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # rows and classes to fit on, and to judge by
TEST = 2000


def make(
    n: int = 4000,
    columns: int = 128,
    rank: int = 24,
    noise: Callable[[np.random.Generator, tuple[int, int]], np.ndarray] = lambda rng, shape: rng.normal(size=shape),
    sizes: np.ndarray | None = None,
    change: Callable[[np.ndarray], np.ndarray] = lambda x: x,
) -> Split:
    """20 classes of three clusters each in `rank` dimensions, turned into columns, with noise; then changed."""
    rng = np.random.default_rng(0)
    turn = rng.normal(size=(rank, columns)) / np.sqrt(rank)
    centers = 0.9 * rng.normal(size=(20, 1, rank)) + 0.6 * rng.normal(size=(20, 3, rank))
    y, cluster = rng.choice(20, n + TEST, p=sizes), rng.integers(0, 3, n + TEST)
    x = (centers[y, cluster] + rng.normal(size=(n + TEST, rank))) @ turn + 0.5 * noise(rng, (n + TEST, columns))
    x = change(x).astype(np.float32)
    return x[:n], y[:n], x[n:], y[n:]


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def cone(x: np.ndarray) -> np.ndarray:
    """Two rows have a cosine of 0.7, as in the embeddings of some models of text and images."""
    return unit(x + np.sqrt(0.7 / 0.3) * np.linalg.norm(x, axis=1).mean() / np.sqrt(x.shape[1]))


def huge(x: np.ndarray) -> np.ndarray:
    return np.concatenate([100 * x[:, :3] + 500, x[:, 3:]], axis=1)


def repeated() -> Split:
    """Every row four times, nearly."""
    x, y, test, y_test = make(1000)
    x = np.repeat(x, 4, axis=0)
    return x + 0.02 * np.random.default_rng(1).normal(size=x.shape).astype(np.float32), np.repeat(y, 4), test, y_test


def heaps() -> Split:
    """15 clusters in three heaps, twenty times farther apart than wide."""
    rng = np.random.default_rng(5)
    heap, cluster = rng.integers(0, 3, 4000 + TEST), rng.integers(0, 5, 4000 + TEST)
    x = (20 * rng.normal(size=(3, 64)))[heap] + (0.45 * rng.normal(size=(3, 5, 64)))[heap, cluster]
    x, y = (x + rng.normal(size=x.shape)).astype(np.float32), 5 * heap + cluster
    return x[:4000], y[:4000], x[4000:], y[4000:]


def digits() -> Split:
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.data))
    x, y = data.data[order].astype(np.float32), data.target[order]
    return x[:1200], y[:1200], x[1200:], y[1200:]


SETS: dict[str, Callable[[], Split]] = {
    "digits": digits,
    "plain": make,
    "500 rows": lambda: make(500),
    "200 rows": lambda: make(200),
    "4096 columns": lambda: make(2000, 4096),
    "12 columns": lambda: make(columns=12, rank=8),
    "rank 8": lambda: make(rank=8),
    "heavy tails": lambda: make(change=lambda x: np.sinh(1.2 * x)),
    "student": lambda: make(noise=lambda rng, shape: rng.standard_t(2, size=shape)),
    "huge columns": lambda: make(change=huge),
    "repeated": repeated,
    "imbalanced": lambda: make(sizes=np.array([0.8] + [0.2 / 19] * 19)),
    "cone": lambda: make(change=cone),
    "unit length": lambda: make(change=unit),
    "signs": lambda: make(change=lambda x: x > 0),
    "heaps": heaps,
}


def judge(z: np.ndarray, y: np.ndarray) -> dict[str, float]:
    at = kept.summary(z, y, ks=(K,))[0][K]
    ap = interpretability(z, y)["detector_ap"] or 0
    dead = 1 - len(np.unique(kept.keep(z, K).indices)) / z.shape[1]
    found = {"AP": ap, "owned": at["classes_owned"] or 0, "P@5": at["p5"] or 0}
    return found | {"dead": dead, "twins": twin_share(z)}


def compare(name: str, x: np.ndarray, test: np.ndarray, y: np.ndarray) -> None:
    """Print what is measured of one set, a line for each way to encode it."""
    began = time.perf_counter()
    model = ReadableCodes(random_state=0).fit(x)
    seconds = time.perf_counter() - began
    z = model.transform(test)
    again = stability(z, ReadableCodes(random_state=1).fit(x).transform(test))["mean_cosine"]
    near = KMeans(model.n_components_, random_state=0).fit(unit(x - x.mean(0))).predict(unit(test - x.mean(0)))
    untrained = ReadableCodes(model.n_components_, max_iter=0, positives="self", random_state=0)
    codes = {
        "codes": z,
        "k-means": np.eye(model.n_components_, dtype=np.float32)[near],
        "untrained": untrained.fit(x).transform(test),
    }
    sizes = f"{x.shape[0]:,} x {x.shape[1]:,} to {model.n_components_} dimensions"
    print(f"{name}: {sizes}, {seconds:.0f} s, again {again:.2f}")
    for label, each in codes.items():
        print(f"  {label:10}", "  ".join(f"{key} {value:.3g}" for key, value in judge(each, y).items()))
    print(f"  the row    P@5 {whole(x, test, y):.3g}", coverage.summary(z)["reason"] or "", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SETS), help=f"of {', '.join(SETS)}")
    parser.add_argument("--files", type=Path, nargs=2, metavar=("TRAIN", "TEST"))
    options = parser.parse_args()
    if options.files:
        (x, _), (test, y) = (load(path) for path in options.files)
        compare(options.files[0].stem, x, test, y)
        return
    for name in options.only.split(","):
        x, _, test, y = SETS[name]()
        compare(name, x, test, y)


if __name__ == "__main__":
    main()
