"""Readable codes against what people would use instead: quality and seconds on the same rows, in one table.

    pip install --no-deps overcomplete && pip install einops tqdm              # the public sparse autoencoder; optional
    python benchmarks/codes.py train.npz test.npz --json codes.json            # arrays z [N, F] and y [N] in each
    python benchmarks/codes.py train.npz test.npz --json codes.json --only sae,csr      # more rows of that table

Everybody gets the training rows in the form that suits them, and no label. Measures are those of `readable.py`, on test
rows: AP of the dimensions, and with the five strongest dimensions of a row consistency (SC), classes owned, retrieval
(P@5), a linear probe, and the share of dimensions that no row keeps (dead). Seconds are those of the fit.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from readable import judge, load, sample, whole
from sklearn.cluster import KMeans
from sklearn.decomposition import MiniBatchDictionaryLearning, MiniBatchNMF
from sklearn.exceptions import ConvergenceWarning

from bayesncl import ReadableCodes
from bayesncl.method.heads import HEADS

BATCH = 1024
DICTIONARY_ROWS = 4_000
Encode = Callable[[np.ndarray], np.ndarray]  # rows [M, F] to codes [M, D]


def ours(method: str) -> Callable[[np.ndarray, int], Encode]:
    return lambda x, dim: ReadableCodes(dim, method=method, random_state=0).fit(x).transform


def untrained(x: np.ndarray, dim: int) -> Encode:
    return ReadableCodes(dim, max_iter=0, positives="self", random_state=0).fit(x).transform


def k_means(x: np.ndarray, dim: int, soft: bool = False) -> Encode:
    """One-hot codes; up to 40 rounds from random rows (its own start, k-means++, would take 20 minutes).

    Soft codes are exp(cosine to a center / 0.1); all measures scale rows to unit length.
    """
    mean = x.mean(0)

    def unit(rows: np.ndarray) -> np.ndarray:
        return (rows - mean) / np.linalg.norm(rows - mean, axis=1, keepdims=True)

    model = KMeans(dim, init="random", n_init=1, max_iter=40, random_state=0).fit(unit(x))
    if not soft:
        return lambda t: np.eye(dim, dtype=np.float32)[model.predict(unit(t))]
    centers = model.cluster_centers_ / np.linalg.norm(model.cluster_centers_, axis=1, keepdims=True)
    return lambda t: np.exp(unit(t) @ centers.T / 0.1).astype(np.float32)


def nmf(x: np.ndarray, dim: int) -> Encode:
    """Columns are shifted to begin at 0; up to 5 passes."""
    low = x.min(0)
    model = MiniBatchNMF(dim, batch_size=BATCH, max_iter=5, random_state=0).fit(x - low)
    return lambda t: model.transform(np.maximum(t - low, 0)).astype(np.float32)


def dictionary(x: np.ndarray, dim: int) -> Encode:
    """Five atoms a row, of either sign; a code is their size. One pass over some of the rows, as it is slow."""
    mean = x.mean(0)
    model = MiniBatchDictionaryLearning(
        dim, batch_size=BATCH, max_iter=1, fit_algorithm="cd", transform_algorithm="omp", transform_n_nonzero_coefs=5,
        random_state=0,
    ).fit(x[:DICTIONARY_ROWS] - mean)  # fmt: skip
    return lambda t: np.abs(model.transform(t - mean)).astype(np.float32)


def public_autoencoder(x: np.ndarray, dim: int) -> Encode:
    """The TopK sparse autoencoder of the package overcomplete, k = 32, 12 epochs by its own loop."""
    for name in ("models", "visualization"):  # they ask for torchvision and OpenCV, and are of no use here
        sys.modules.setdefault(f"overcomplete.{name}", MagicMock())
    from overcomplete.sae import TopKSAE, train_sae

    torch.manual_seed(0)
    mean, scale = x.mean(0), x.std(0) + 1e-6
    rows = torch.utils.data.TensorDataset(torch.from_numpy((x - mean) / scale))
    model = TopKSAE(x.shape[1], nb_concepts=dim, top_k=32)
    batches = torch.utils.data.DataLoader(rows, BATCH, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    train_sae(model, batches, lambda x, x_hat, *_: (x - x_hat).square().mean(), optimizer, nb_epochs=12, monitoring=0)
    model.eval()
    with torch.no_grad():
        return lambda t: model.encode(torch.from_numpy((t - mean) / scale))[1].detach().numpy()


METHODS: dict[str, Callable[[np.ndarray, int], Encode]] = {
    **{name: ours(name) for name in ("prototypes", "ncl", "bayesncl", "csr", "sae") if name in HEADS},
    "untrained": untrained,
    "k-means": k_means,
    "soft k-means": partial(k_means, soft=True),
    "nmf": nmf,
    "dictionary": dictionary,
    "overcomplete": public_autoencoder,
}
COLUMNS = {
    "ap": ".3f", "consistency": ".1f", "classes_owned": ".0f", "p5": ".1f", "probe": ".1f", "dead": ".2f",
    "seconds": ".0f", "rows_per_second": ",.0f",
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--rows", type=int, help="fit on the first so many rows")
    parser.add_argument("--only", default=",".join(METHODS), help=f"of {', '.join(METHODS)}")
    parser.add_argument("--json", type=Path, help="file for the table; what it has of other methods stays")
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    (train, y_train), (test, y_test) = load(options.train), load(options.test)
    train, y_train = train[: options.rows], y_train[: options.rows]
    ceiling = whole(train, test, y_test)
    print(f"{len(train):,} + {len(test):,} rows; the embedding itself: P@5 {ceiling:.1f}", flush=True)
    table: dict[str, Any] = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    some = sample(len(train))
    for name in options.only.split(","):
        began = time.perf_counter()
        encode = METHODS[name](train, options.dim)
        seconds = time.perf_counter() - began
        began = time.perf_counter()
        z = encode(test)
        speed = len(test) / (time.perf_counter() - began)
        found = judge(encode(train[some]), y_train[some], z, y_test)
        table[name] = {**found, "seconds": seconds, "rows_per_second": speed}
        print(name.ljust(14), "  ".join(f"{k} {table[name][k]:{f}}" for k, f in COLUMNS.items()), flush=True)
        if options.json:
            options.json.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
