"""A gate and a measure of your own in a training run.

    python examples/custom.py --out custom-example

docs/extending.md explains the two, and adds a head and a data set.
"""

import argparse
from pathlib import Path

import numpy as np

import bayesncl
from bayesncl.data import load
from bayesncl.evaluate import evaluate
from bayesncl.gates import GATES, GateKind, at_least_float32, straight_through
from bayesncl.measure.measures import Measure, register
from bayesncl.recipes import change, named
from bayesncl.report.tables import render


class HalfOpen(GateKind):
    """Opens, of each row, the half of the gates with the largest logits, whatever their size."""

    def mask(self, logits, threshold=0.5, temperature=1.0, uniform=None):
        logits = at_least_float32(logits) / temperature
        median = logits.median(1, keepdim=True).values
        return straight_through((logits > median).to(logits.dtype), logits.sigmoid())


def evenness(features, labels):
    """How evenly the images use the dimensions: 1 if all fire equally often, 0 if one does all the work."""
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
    register(Measure("evenness", "evenness of use", needs_labels=False, definitions=("sound",), function=evenness))

    sizes = [f"data.train_images={options.images}", f"data.test_images={options.images // 2}"]
    recipe = change(named("scenes"), [*sizes, f"run.epochs={options.epochs}", "gate.kind=half-open"])
    train, test = (load(recipe.data, split) for split in ("train", "test"))
    model = bayesncl.train(recipe, train, options.out)
    print(render(evaluate(model, train, test)))


if __name__ == "__main__":
    main()
