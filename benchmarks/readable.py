"""What makes a dimension readable: heads on the frozen embeddings of one encoder, judged on test rows.

    python benchmarks/readable.py train.npz test.npz --name cifar100-cl        # arrays z [N, F] and y [N] in each
    python benchmarks/readable.py RUN_TRAIN.npz RUN_TEST.npz --only width,method --seeds 1

No label is used to fit a code. Each variant differs from the default in one thing. With three seeds it reports mean
and spread, and how many dimensions come back: columns of two seeds matched on test rows, beside two untrained heads.
Writes results/readable/NAME.json, with a checksum, after every variant.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from bayesncl import ReadableCodes
from bayesncl.arrays import read_features
from bayesncl.files import write_atomic
from bayesncl.measure import coverage, kept, stability
from bayesncl.measure.dimensions import describe
from bayesncl.run import environment

K = 5  # dimensions kept of a row
TOP, ALIKE = 10, 7  # a dimension is readable if so many of its strongest rows share a class

# what is changed, by the question it answers
STUDY: dict[str, dict[str, dict[str, Any]]] = {
    "default": {"prototypes": {}},
    "method": {name: {"method": name} for name in ("ncl", "bayesncl", "sae", "csr")},
    "positives": {
        f"{name}, itself as partner": {"method": name, "positives": "self"}
        for name in ("prototypes", "ncl", "bayesncl", "csr")
    },
    "width": {f"prototypes, D = {d}": {"dim": d} for d in (64, 256, 4096)},
    "gates": {f"{name}, D = 256": {"method": name, "dim": 256} for name in ("ncl", "bayesncl")},
    "neighbours": {f"prototypes, {k} neighbours": {"neighbours": k} for k in (3, 30)},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--name", default="study")
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="questions, separated by commas")
    parser.add_argument("--out", type=Path, default=Path("results/readable"))
    options = parser.parse_args()
    rows = [read_features(path) for path in (options.train, options.test)]
    (train, y_train), (test, y_test) = [(np.asarray(x, np.float32), y) for x, y in rows]
    centre = train.mean(0)
    whole = kept.precision(kept.keep(test - centre, test.shape[1]), [y_test])[0]
    print(f"{len(train):,} + {len(test):,} rows; all {test.shape[1]} numbers of the embedding: P@5 {whole:.1f}")
    variants = {}
    for question, found in STUDY.items():
        if options.only and question not in options.only.split(","):
            continue
        for label, changes in found.items():
            seeds = [judge(changes, options.dim, s, train, y_train, test, y_test) for s in range(options.seeds)]
            codes = [one.pop("codes") for one in seeds]
            row = {"question": question, "label": label, "changes": changes, "seeds": seeds}
            if len(codes) > 1:
                untrained = [encode(changes | {"steps": 0}, options.dim, s, train, test)[1] for s in range(2)]
                row["stability"] = stability.summary(codes[0], codes[1], control=(untrained[0], untrained[1]))
            variants[label] = row
            print(line(row), flush=True)
            write(options, len(train), test, whole, list(variants.values()))


def write(options: argparse.Namespace, rows: int, test: np.ndarray, whole: float, variants: list[Any]) -> None:
    """Put what is known so far on disk: a study that is stopped keeps its first half."""
    entry: dict[str, Any] = {
        "kind": "readable",
        "name": options.name,
        "rows": [rows, len(test)],
        "width": int(test.shape[1]),
        "p5_embedding": whole,
        "variants": variants,
        "environment": {k: v for k, v in environment().items() if k != "command"},
    }
    entry["checksum"] = hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()
    options.out.mkdir(parents=True, exist_ok=True)
    write_atomic(options.out / f"{options.name}.json", json.dumps(entry, indent=1) + "\n")


def encode(
    changes: dict[str, Any], dim: int, seed: int, train: np.ndarray, test: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Codes of the training and the test rows, and the seconds of the fit."""
    codes = ReadableCodes(**({"dim": dim} | changes), random_state=seed)
    began = time.perf_counter()
    codes.fit(train)
    seconds = time.perf_counter() - began
    return codes.transform(train), codes.transform(test), seconds


def judge(
    changes: dict[str, Any],
    dim: int,
    seed: int,
    train: np.ndarray,
    y_train: np.ndarray,
    test: np.ndarray,
    y_test: np.ndarray,
) -> dict[str, Any]:
    """One fit and what is measured of it."""
    z_train, z, seconds = encode(changes, dim, seed, train, test)
    at = kept.summary(z, y_test, train=(z_train, y_train), ks=(K,))[K]
    table = describe(z, y_test, detectors=True)
    assert table.ap is not None
    strongest = np.argsort(-z, axis=0)[:TOP]  # [10, D]
    alike = np.array([np.bincount(column).max() for column in np.unique(y_test, return_inverse=True)[1][strongest].T])
    return {
        "seed": seed,
        "seconds": seconds,
        "ap": float(np.nanmean(table.ap)),
        "top10": float(10 * alike.mean()),
        "readable": float(100 * (alike >= ALIKE).mean()),
        "dead": float(table.dead.mean()),
        "collapsed": coverage.summary(z)["collapsed"],
        **{key: at[key] for key in ("consistency", "classes_owned", "p5", "probe")},
        "chance": {key: at[f"{key}_chance"] for key in ("consistency", "classes_owned", "p5", "probe")},
        "codes": z,
    }


def line(row: dict[str, Any]) -> str:
    """A variant as a line of a table: mean and, with several seeds, spread."""

    def cell(key: str, decimals: int) -> str:
        values = [one[key] for one in row["seeds"]]
        spread = f" ± {np.std(values, ddof=1):.{decimals}f}" if len(values) > 1 else ""
        return f"{np.mean(values):.{decimals}f}{spread}"

    names = {"ap": 3, "consistency": 1, "classes_owned": 0, "p5": 1, "probe": 1, "dead": 2, "readable": 0, "seconds": 1}
    text = "  ".join(f"{name} {cell(name, decimals)}" for name, decimals in names.items())
    same = row.get("stability")
    again = f"  same again {same['mean_cosine']:.2f} (untrained {same['mean_cosine_control']:.2f})" if same else ""
    return f"{row['label']:32} {text}{again}{'  COLLAPSED' if row['seeds'][0]['collapsed'] else ''}"


if __name__ == "__main__":
    main()
