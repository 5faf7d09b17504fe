"""Step time and memory against batch size and feature width.

    python benchmarks/sweep.py --json sweep.json               # batch 256 to 4096, dimensions 256 to 4096
    python benchmarks/sweep.py --compile                       # the compiled step: about a minute more for each size
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from epoch import print_row, time_ours

from bayesncl.device import find_device
from bayesncl.recipes import change, named


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="cifar100-bayesncl")
    parser.add_argument("--batches", type=int, nargs="*", default=[256, 512, 1024, 2048, 4096])
    parser.add_argument("--dims", type=int, nargs="*", default=[256, 512, 1024, 2048, 4096])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    base = change(named(options.recipe), [f"run.compile={options.compile}"])
    sizes = [(b, base.model.dim) for b in options.batches] + [(base.run.batch, d) for d in options.dims]
    rows = []
    for batch, dim in dict.fromkeys(sizes):
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        recipe = change(base, [f"run.batch={batch}", f"model.dim={dim}"])
        rows.append({"batch": batch, "dim": dim} | time_ours(recipe, find_device(), options.steps, parts=False))
        print_row(rows[-1])
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
