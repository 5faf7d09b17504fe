"""Seconds of `evaluate` (all but the 50-epoch probe) at the size of CIFAR-100: random pixels, untrained weights.

    python benchmarks/evaluation.py --json evaluation.json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from bayesncl.data.images import Images
from bayesncl.evaluate import evaluate
from bayesncl.model import build_model
from bayesncl.recipes import named
from bayesncl.train import default_device


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="cifar100-bayesncl")
    parser.add_argument("--train", type=int, default=50_000)
    parser.add_argument("--test", type=int, default=10_000)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    recipe, device = named(options.recipe), default_device()
    rng = np.random.default_rng(0)
    side = recipe.data.size
    splits = []
    for n in (options.train, options.test):
        labels = np.arange(n) % options.classes
        tint = rng.integers(0, 160, (options.classes, 3, 1, 1))  # a colour a class: features are not all noise
        pixels = (tint[labels] + rng.integers(0, 96, (n, 3, side, side))).astype(np.uint8)
        splits.append(Images(pixels, labels))
    model = build_model(recipe).to(device).eval()
    marks: dict[str, float] = {}
    began = last = time.perf_counter()

    def progress(done: int, total: int, what: str) -> None:
        nonlocal last
        now = time.perf_counter()
        marks[what] = marks.get(what, 0.0) + now - last
        last = now

    evaluate(model, *splits, progress=progress)
    row = {"seconds": time.perf_counter() - began, "parts": {k: round(v, 2) for k, v in marks.items()}}
    row["device"] = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(json.dumps(row, indent=2))
    if options.json:
        options.json.write_text(json.dumps(row, indent=2) + "\n")


if __name__ == "__main__":
    main()
