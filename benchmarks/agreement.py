"""The compiled, graphed step against the step as it is written, on the GPU at hand: losses and weights.

    python benchmarks/agreement.py                             # cifar100-bayesncl, float32 and bf16, 20 steps
    python benchmarks/agreement.py --recipe cifar100-ncl --steps 50 --json agreement.json

Both start from the same weights and see the same blurry random images, at the rates of the recipe's warm-up with
epochs of `--steps`. Apart: the distance between the two at the end, as a share of the way the eager one went (1 if the
compiled one did not move).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from bayesncl.device import find_device
from bayesncl.method.encoder import build_model
from bayesncl.recipes import Recipe, change, named
from bayesncl.training.loop import assemble, learning_rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="cifar100-bayesncl")
    parser.add_argument("--set", nargs="*", default=[], dest="changes", metavar="PART.FIELD=VALUE")
    parser.add_argument("--precision", nargs="+", default=["float32", "bf16"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if find_device().type != "cuda":
        sys.exit("only on a GPU is the step compiled; on a CPU tests/training/test_compile.py compares the two")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    rows = []
    for precision in options.precision:
        recipe = change(named(options.recipe), [*options.changes, f"run.precision={precision}"])
        rows.append({"recipe": recipe.name, "precision": precision} | compare(recipe, options.steps))
        print(
            "  ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in rows[-1].items()), flush=True
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


def compare(recipe: Recipe, steps: int) -> dict[str, Any]:
    """Largest relative difference of the losses; median and largest distance of the parameters."""
    eager, eager_weights = follow(change(recipe, ["run.compile=false"]), steps)
    compiled, compiled_weights = follow(recipe, steps)
    start = dict(build_model(recipe).named_parameters())
    apart = {
        name: float((compiled_weights[name] - w).norm() / (w - start[name].detach()).norm().clamp_min(1e-12))
        for name, w in eager_weights.items()
    }
    worst = max(apart, key=lambda name: apart[name])
    return {
        "steps": steps,
        "loss_apart": max(abs(b / a - 1) for a, b in zip(eager, compiled)),
        "median_apart": statistics.median(apart.values()),
        "worst_apart": apart[worst],
        "worst": worst,
        "first_loss": eager[0],
        "last_loss": eager[-1],
    }


def follow(recipe: Recipe, steps: int) -> tuple[list[float], dict[str, Tensor]]:
    """Loss of every step and the parameters after the last, by the step that training takes."""
    device, batch, side = find_device(), recipe.run.batch, recipe.data.size
    coarse = torch.rand(4 * batch, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    blurry = F.interpolate(coarse, side, mode="bicubic").mul(255).clamp(0, 255)
    pixels = blurry.byte().to(device)
    model, _, meter, step = assemble(recipe, pixels, device)
    rates = learning_rates(recipe, steps).to(device)
    losses, total = [], 0.0
    for i in range(steps):
        index = torch.arange(batch, device=device) + i % 4 * batch
        step(pixels[index], index, i // 4, rates[i])
        losses.append(float(meter.sums[0]) - total)
        total += losses[-1]
    return losses, {name: p.detach().cpu() for name, p in model.named_parameters()}


if __name__ == "__main__":
    main()
