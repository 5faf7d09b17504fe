"""Readable codes against what people would use instead: quality, seconds and stability on the same rows.

    python benchmarks/codes.py TRAIN.npy TEST.npy LABELS.npy --json codes.json

TRAIN: embeddings [N, F] to fit on (several files: with commas between); TEST: rows to judge on; LABELS: a class for
each of these. No label is used in fitting. AP: detector average precision; k5: with the five strongest dimensions of
a row; SC: share of the largest class among the rows a dimension fires on (10 or more); own: classes with a dimension
of precision 0.5 and recall 0.1; P@5: retrieval; same: mean cosine of matched dimensions of two seeds (and untrained).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import MiniBatchKMeans
from sklearn.decomposition import MiniBatchDictionaryLearning, MiniBatchNMF

sys.path.insert(0, str(Path(__file__).parents[1]))

from bayesncl.codes import ReadableCodes
from bayesncl.heads import HEADS

KEEP = 5


def judge(codes: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """AP, SC k5, own k5, P@5 k5 and the share of dimensions that no row keeps."""
    z, y = torch.from_numpy(np.asarray(codes, np.float32)), torch.from_numpy(labels)
    member = F.one_hot(y).float()  # [N, C]
    sizes = member.sum(0)
    target = (member.T @ z / sizes[:, None]).argmax(0)  # class of highest mean activation
    hit = (y[z.argsort(0, descending=True)] == target).float()
    ap = (hit.cumsum(0) / torch.arange(1, len(z) + 1)[:, None] * hit).sum(0) / sizes[target]
    value, place = z.topk(min(KEEP, z.shape[1]), 1)
    kept = F.normalize(torch.zeros_like(z).scatter_(1, place, value))
    fires = (kept > 0).float()
    counts, support = member.T @ fires, fires.sum(0)
    enough = support >= 10
    owned = (counts >= 0.5 * support) & (counts >= 0.1 * sizes[:, None]) & enough
    near = torch.cat([_nearest(kept, start, 1000) for start in range(0, len(kept), 1000)])
    return {
        "AP": float(ap[(z > 1e-5).any(0)].mean()),
        "SC k5": 100 * float((counts.amax(0) / support.clamp_min(1))[enough].mean()),
        "own k5": float(owned.any(1).sum()),
        "P@5 k5": 100 * float((y[near] == y[:, None]).float().mean()),
        "dead": float((support == 0).float().mean()),
    }


def _nearest(z: torch.Tensor, start: int, size: int) -> torch.Tensor:
    s = z[start : start + size] @ z.T
    rows = torch.arange(len(s))
    s[rows, start + rows] = -1
    return s.topk(5, 1).indices


def same(a: np.ndarray, b: np.ndarray) -> float:
    """Mean cosine of columns, matched one to one."""
    x, y = (v / np.maximum(np.linalg.norm(v, axis=0), 1e-12) for v in (a, b))
    cosine = x.T @ y
    return float(cosine[linear_sum_assignment(-cosine)].mean())


def others(dim: int) -> dict[str, Callable[[int], Any]]:
    """What else people use, by seed; inputs to NMF are shifted to be non-negative."""
    return {
        "k-means (one-hot)": lambda seed: MiniBatchKMeans(dim, random_state=seed, n_init=1, batch_size=4096),
        "MiniBatchNMF": lambda seed: MiniBatchNMF(dim, random_state=seed, batch_size=1024, max_iter=5),
        "MiniBatchDictionaryLearning": lambda seed: MiniBatchDictionaryLearning(
            dim, random_state=seed, batch_size=512, max_iter=1, transform_algorithm="omp", transform_n_nonzero_coefs=5
        ),
    }


def public_autoencoder(train: np.ndarray, test: np.ndarray, dim: int, seed: int) -> np.ndarray:
    """The TopK autoencoder of the package overcomplete (installed with --no-deps), trained by its own loop."""
    from overcomplete.sae import TopKSAE, train_sae  # its package asks for torchvision, which may be missing

    torch.manual_seed(seed)
    mean, scale = train.mean(0), train.std(0) + 1e-6
    x, t = (torch.from_numpy(((v - mean) / scale).astype(np.float32)) for v in (train, test))
    model = TopKSAE(x.shape[1], nb_concepts=dim, top_k=32)
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), 1024, shuffle=True)
    train_sae(
        model,
        batches,
        lambda x, x_hat, *rest: (x - x_hat).square().mean(),
        torch.optim.Adam(model.parameters(), 1e-3),
        nb_epochs=12,
    )
    with torch.no_grad():
        return model.encode(t)[1].numpy()


def report(name: str, seconds: float, codes: list[np.ndarray], labels: np.ndarray, more: dict[str, float]) -> dict:
    row = {"method": name, **judge(codes[0], labels), "seconds": seconds, **more}
    if len(codes) > 1:
        row["same"] = same(codes[0], codes[1])
    print(name.ljust(30), "  ".join(f"{k} {v:.3g}" for k, v in row.items() if k != "method"), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("labels")
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--rows", type=int, help="fit on the first so many rows")
    parser.add_argument("--methods", default=",".join(HEADS))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--skip-others", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    train = np.concatenate([np.load(file) for file in options.train.split(",")])[: options.rows]
    test, labels = np.load(options.test), np.load(options.labels).astype(np.int64)
    rows = []
    for method in options.methods.split(","):
        codes, seconds = [], []
        for seed in range(options.seeds):
            began = time.perf_counter()
            model = ReadableCodes(options.dim, method, random_state=seed).fit(train)
            seconds.append(time.perf_counter() - began)
            began = time.perf_counter()
            codes.append(model.transform(test))
            speed = len(test) / (time.perf_counter() - began)
        more = {"rows/s": speed}
        if options.seeds > 1:
            blank = [ReadableCodes(options.dim, method, steps=0, random_state=s).fit(train[:2000]) for s in (0, 1)]
            more["untrained AP"] = judge(blank[0].transform(test), labels)["AP"]
            more["untrained same"] = same(*(b.transform(test) for b in blank))
        rows.append(report(method, min(seconds), codes, labels, more))
    if not options.skip_others:
        x, t = train.astype(np.float32), test.astype(np.float32)
        low = x.min(0)
        for name, build in others(options.dim).items():
            codes, seconds = [], []
            for seed in range(options.seeds):
                a, b = (x - low, np.maximum(t - low, 0)) if "NMF" in name else (x - x.mean(0), t - x.mean(0))
                began = time.perf_counter()
                model = build(seed).fit(a)
                seconds.append(time.perf_counter() - began)
                if "means" in name:
                    codes.append(np.eye(options.dim, dtype=np.float32)[model.predict(b)])
                else:
                    codes.append(np.abs(model.transform(b)).astype(np.float32))
            rows.append(report(name, min(seconds), codes, labels, {}))
        try:
            began = time.perf_counter()
            codes = [public_autoencoder(x, t, options.dim, seed) for seed in range(options.seeds)]
            rows.append(report("TopK SAE (overcomplete)", time.perf_counter() - began, codes, labels, {}))
        except ImportError as error:
            print(f"TopK SAE of a public package: not importable here ({error})")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
