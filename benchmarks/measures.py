"""Class-by-dimension statistics as matrix products against loops over dimensions.

N = 10,000, D = 2,048, C = 100, float32. The first loop is made as the published evaluation is: one loop over dimensions
per measure, a host value per dimension. The second is the tightest loop we could write: one numpy loop for all four
measures. All three give the same consistency and entropies, which is checked. Run it on an idle machine.

    python benchmarks/measures.py [--json OUT] [--images N] [--dims D] [--classes C]

With --large FOLDER: writes a hundred times as many rows there (1,000,000 in float16, 4 GB), measures the file as
`bayesncl measure` does, prints seconds and peak memory, and removes it.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from bayesncl.evaluate import measure_file
from bayesncl.measure.dimensions import count
from bayesncl.measure.interpretability import _paper_means
from bayesncl.measure.rows import unit_codes
from bayesncl.method.losses import ACTIVE

KEYS = ("consistency", "entropy_sum", "entropy_mean", "entropy_freq")


def products(z: np.ndarray, y: np.ndarray) -> list[float]:
    means = _paper_means(count(unit_codes(z), [y])[0], count(z, [y], floor=0.0)[0])
    return [float(means[key] or 0) for key in KEYS]


def loop_per_measure(z: np.ndarray, y: np.ndarray) -> list[float]:
    features, labels = torch.from_numpy(z), torch.from_numpy(y)
    classes = int(labels.max()) + 1
    sizes = torch.bincount(labels, minlength=classes)

    def entropy(weights: torch.Tensor) -> float:
        p = weights / weights.sum()
        p = p[p > ACTIVE]
        return -(p * p.log()).sum().item()

    unit = torch.nn.functional.normalize(features)
    values: list[list[float]] = [[], [], [], []]
    for j in range(features.shape[1]):
        fired = labels[unit[:, j].abs() > ACTIVE]
        if len(fired):
            values[0].append(100 * (torch.bincount(fired).max() / len(fired)).item())
    for measure in (1, 2, 3):
        for j in range(features.shape[1]):
            column = features[:, j].abs()
            if column.sum().item() <= ACTIVE:
                continue
            if measure == 3:
                column = (column > ACTIVE).float()
            weights = torch.zeros(classes).index_add_(0, labels, column)
            if measure == 2:
                weights = weights / (sizes + ACTIVE)
            if weights.sum().item() >= ACTIVE:
                values[measure].append(entropy(weights))
    return [float(np.mean(value)) for value in values]


def loop_once(z: np.ndarray, y: np.ndarray) -> list[float]:
    classes = int(y.max()) + 1
    sizes = np.bincount(y, minlength=classes)
    unit = z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12)
    values: list[list[float]] = [[], [], [], []]
    for j in range(z.shape[1]):
        column = np.abs(z[:, j])
        fired = np.bincount(y[np.abs(unit[:, j]) > ACTIVE], minlength=classes)
        if fired.sum():
            values[0].append(100 * fired.max() / fired.sum())
        if column.sum() <= ACTIVE:
            continue
        mass = np.bincount(y, weights=column, minlength=classes)
        for measure, weights in enumerate(
            (mass, mass / (sizes + ACTIVE), np.bincount(y[column > ACTIVE], minlength=classes)), 1
        ):
            if weights.sum() >= ACTIVE:
                p = weights / weights.sum()
                p = p[p > ACTIVE]
                values[measure].append(-(p * np.log(p)).sum())
    return [float(np.mean(value)) for value in values]


def best_of(runs: int, run: Callable[[], list[float]]) -> tuple[float, list[float]]:
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        result = run()
        seconds.append(time.perf_counter() - start)
    return min(seconds), result


def large(folder: Path, images: int, dims: int, classes: int) -> dict[str, float]:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, images)
    np.save(folder / "y.npy", y)
    with open(folder / "z.npy", "wb") as file:
        header = {"descr": "<f2", "fortran_order": False, "shape": (images, dims)}
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, images, 4096):
            labels = y[start : start + 4096]
            block = rng.standard_normal((len(labels), dims), dtype=np.float32) - 1.5
            block[np.arange(len(labels)), labels % dims] += 2
            np.maximum(block, 0, out=block)
            block /= np.maximum(np.linalg.norm(block, axis=1, keepdims=True), 1e-12)
            file.write(block.astype(np.float16).tobytes())
    began = time.perf_counter()

    def progress(done: int, total: int, what: str) -> None:
        if done == total:
            print(f"{time.perf_counter() - began:7.1f} s  {what}", flush=True)

    try:
        measure_file(folder / "z.npy", progress=progress)
    finally:
        for name in ("z.npy", "y.npy"):
            (folder / name).unlink()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"images": images, "dims": dims, "seconds": time.perf_counter() - began, "peak_gib": peak / 2**20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--dims", type=int, default=2_048)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--large", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    if options.large:
        print(json.dumps(large(options.large, options.images * 100, options.dims, options.classes)))
        return
    rng = np.random.default_rng(0)
    y = rng.integers(0, options.classes, options.images)
    z = np.maximum(rng.standard_normal((options.images, options.dims), dtype=np.float32) - 1.5, 0)
    z /= np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12)
    fast, ours = best_of(9, lambda: products(z, y))
    slow, published = best_of(2, lambda: loop_per_measure(z, y))
    tight, tightest = best_of(2, lambda: loop_once(z, y))
    np.testing.assert_allclose(published, ours, rtol=1e-4)
    np.testing.assert_allclose(tightest, ours, rtol=1e-4)
    result = {
        "images": options.images,
        "dims": options.dims,
        "classes": options.classes,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "seconds_products": fast,
        "seconds_loop_per_measure": slow,
        "seconds_tight_loop": tight,
        "ratio": slow / fast,
        "ratio_tight": tight / fast,
    }
    print(f"products {fast * 1e3:.1f} ms, a loop per measure {slow * 1e3:.0f} ms: {slow / fast:.0f} times as fast")
    print(f"one tight numpy loop {tight * 1e3:.0f} ms: {tight / fast:.0f} times as fast")
    print(json.dumps(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
