"""CL, NCL and BayesNCL on the built-in scenes, in one table.

    python examples/paper.py --out paper-example

A scene is a handwritten digit on a photographed or drawn background. In training, most digits of a
class share a background. These runs are short; docs/results.md and docs/log/scenes.md have numbers
to quote.
"""

import argparse
from pathlib import Path

import bayesncl
from bayesncl.data import load
from bayesncl.evaluate import evaluate
from bayesncl.paper.measures import paper_measures
from bayesncl.recipes import change, named
from bayesncl.report.tables import format_table

ROWS = {
    "consistency, the paper's definition (%)": ("paper", "consistency"),
    "consistency, sound (%)": ("sound", "consistency"),
    "active dimensions per image": ("sound", "l0"),
    "linear probe, object (%)": ("probe", "fast", "acc1"),
    "linear probe, background (%)": ("background", "h", "acc1"),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("paper-example"))
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--methods", nargs="+", default=["cl", "ncl", "bayesncl"])
    options = parser.parse_args()

    sizes = [f"data.train_images={options.images}", f"data.test_images={options.images // 2}"]
    found = {}
    for method in options.methods:
        recipe = change(named(f"scenes-{method}"), [*sizes, f"run.epochs={options.epochs}"])
        train, test = (load(recipe.data, split) for split in ("train", "test"))
        model = bayesncl.train(recipe, train, options.out / method)
        found[method] = evaluate(model, train, test, extra=paper_measures).to_dict()

    def value(tree, path):
        return value(tree[path[0]], path[1:]) if path else f"{tree:.1f}"

    rows = [[label, *(value(t, path) for t in found.values())] for label, path in ROWS.items()]
    print(format_table(["", *found], rows, left=1))


if __name__ == "__main__":
    main()
