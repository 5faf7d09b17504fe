"""Train with your own gate and your own measure.

    python examples/custom.py --out custom-example

docs/extending.md explains both, and how to add a head and a dataset.
"""

import argparse
from pathlib import Path

import numpy as np

import bayesncl
from bayesncl.data import load
from bayesncl.evaluate import evaluate
from bayesncl.measure.registry import Measure, register
from bayesncl.method.gates import GATES, GateKind, at_least_float32, straight_through
from bayesncl.recipes import change, named
from bayesncl.report.tables import render


class HalfOpen(GateKind):
    """Opens the half of the gates with the largest logits in each row."""

    def mask(self, logits, threshold=0.5, temperature=1.0, uniform=None):
        logits = at_least_float32(logits) / temperature
        median = logits.median(1, keepdim=True).values
        return straight_through((logits > median).to(logits.dtype), logits.sigmoid())


def evenness(features, labels):
    """Normalized entropy of activity: 1 if all dimensions fire equally often, 0 if one does."""
    share = (np.asarray(features) > 1e-5).sum(0) + 1e-12
    share = share / share.sum()
    return float(-(share * np.log(share)).sum() / np.log(len(share)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("custom-example"))
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()

    GATES["half-open"] = HalfOpen("half-open")
    about = {"needs_labels": False, "definitions": ("sound",), "function": evenness}
    register(Measure("evenness", "evenness of use", **about))

    sizes = [f"data.train_images={options.images}", f"data.test_images={options.images // 2}"]
    changes = [*sizes, f"run.epochs={options.epochs}", "gate.kind=half-open"]
    recipe = change(named("scenes"), changes)
    train, test = (load(recipe.data, split) for split in ("train", "test"))
    model = bayesncl.train(recipe, train, options.out)
    print(render(evaluate(model, train, test)))


if __name__ == "__main__":
    main()
