"""The atlas at 10,000 images x 2,048 dimensions: seconds to build, megabytes on disk, milliseconds to a ready page.

    python benchmarks/atlas.py [--images 10000] [--dims 2048] [--runs 2] [--keep FOLDER]
    python benchmarks/atlas.py --images 100000 --dims 4096 --active 32 --side 64     # one run of sparse codes

Features are synthetic, with about 40 active dimensions an image: a few for its class, a few shared by all, and noise;
or, with --active, so many of each image, as CSR. `peak_mb` is the memory of the build beyond what it was given.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from scipy import sparse

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bayesncl.atlas import AtlasRun, build_atlas
from bayesncl.data.images import Images
from tests.atlas.browser import find_chromium, open_chromium

VIEWS = (
    "#/dim/7", "#/dims", "#/image/123", "#/pair/123/456", "#/classes", "#/class/5", "#/gallery/entropy", "#/images",
)  # fmt: skip


def make_run(name: str, labels: np.ndarray, dims: int, seed: int, gated: bool) -> AtlasRun:
    rng = np.random.default_rng(seed)
    n, classes = len(labels), int(labels.max()) + 1
    rate = np.full((classes, dims), 0.012, np.float32)
    rate[:, :40] = np.linspace(0.9, 0.1, 40)  # common to all classes
    for c in range(classes):
        rate[c, 40 + (np.arange(8) + 8 * c) % (dims - 140)] = 0.6  # the class's own
    rate[:, -60:] = 0  # dead
    z = rng.random((n, dims), dtype=np.float32)
    z = np.where(z < rate[labels], rng.gamma(2, 1, (n, dims)).astype(np.float32), 0)
    open_ = rng.random((n, dims), dtype=np.float32) > np.clip(rate.mean(0) * 1.2, 0, 0.97) if gated else None
    return AtlasRun(name, z, None, open_, None, f"{name}: synthetic features.")


def make_codes(labels: np.ndarray, dims: int, active: int, seed: int) -> AtlasRun:
    """Sparse codes: half of an image's dimensions are its class's, the others anyone's, common ones more often."""
    rng = np.random.default_rng(seed)
    n, own = len(labels), active // 2
    theirs = (labels[:, None] * 16 + rng.integers(0, 16, (n, own))) % dims
    any_one = (dims * rng.random((n, active - own)) ** 2).astype(np.int64)
    rows, columns = np.repeat(np.arange(n), active), np.c_[theirs, any_one].ravel()
    values = rng.gamma(2, 1, n * active).astype(np.float32)
    return AtlasRun("codes", sparse.csr_array((values, (rows, columns)), shape=(n, dims)), sentence="Synthetic codes.")


def make_images(n: int, classes: int = 100, side: int = 32) -> Images:
    """Blurred color noise, tinted by class: about as hard to compress as photographs."""
    rng = np.random.default_rng(0)
    labels = np.arange(n) % classes
    tints = rng.random((classes, 3, 1, 1), dtype=np.float32)
    pixels = np.empty((n, 3, side, side), np.uint8)
    for a in range(0, n, 10_000):
        part = labels[a : a + 10_000]
        coarse = rng.random((len(part), 3, side // 4, side // 4), dtype=np.float32)
        found = np.kron(coarse, np.ones((1, 1, 4, 4), np.float32))
        found += rng.normal(0, 0.06, found.shape).astype(np.float32)
        pixels[a : a + 10_000] = 255 * (0.6 * found + 0.4 * tints[part]).clip(0, 1)
    names = tuple(f"class {c}" for c in range(classes))
    files = tuple(f"{i:05d}.jpg" for i in range(n))
    return Images(pixels, labels, None, names, None, files)


def peak_mb() -> int:
    """Most memory this process has held, of pages that are resident."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) // 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--dims", type=int, default=2_048)
    parser.add_argument("--runs", type=int, default=2, choices=(1, 2))
    parser.add_argument("--active", type=int, help="one run of sparse codes with so many dimensions an image")
    parser.add_argument("--side", type=int, default=32, help="pixels a side of an image")
    parser.add_argument("--keep", type=Path, help="leave the atlas in this folder")
    options = parser.parse_args()

    images = make_images(options.images, side=options.side)
    assert images.labels is not None
    if options.active:
        options.runs, runs = 1, [make_codes(images.labels, options.dims, options.active, 1)]
    else:
        runs = [make_run("BayesNCL", images.labels, options.dims, 1, True)]
    if options.runs == 2:
        runs.append(make_run("NCL", images.labels, options.dims, 2, False))
    with tempfile.TemporaryDirectory() as folder:
        Path("/proc/self/clear_refs").write_text("5")  # the peak of memory counts from here
        begin, before = time.perf_counter(), peak_mb()
        index = build_atlas(options.keep or Path(folder) / "atlas", runs, images, "Benchmark")
        sizes = [f.stat().st_size for f in index.parent.rglob("*") if f.is_file()]
        result: dict[str, object] = {
            "images": options.images, "dims": options.dims, "runs": options.runs,
            "build_s": round(time.perf_counter() - begin, 1),
            "peak_mb": peak_mb() - before,
            "folder_mb": round(sum(sizes) / 1e6, 1), "files": len(sizes),
        }  # fmt: skip
        if find_chromium():
            ready, views = [], {}
            for _ in range(3):
                with open_chromium() as driver:
                    driver.visit(index)
                    ready.append(int(driver.run("document.documentElement.dataset.ready")))
            with open_chromium() as driver:
                driver.visit(index)
                for address in VIEWS + (("#/compare",) if options.runs == 2 else ()):
                    begin = time.perf_counter()
                    driver.visit(index, address)
                    views[address] = round(1000 * (time.perf_counter() - begin))
            result |= {"ready_ms": sorted(ready), "view_ms": views}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
