"""CL, NCL and BayesNCL on the built-in scenes over several seeds: one table, mean and spread, as Markdown and JSON.

    python benchmarks/scenes.py --out runs/scenes --seeds 0 1 2   # goes on where it stopped
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bayesncl.data import load
from bayesncl.demo import METHODS, trained
from bayesncl.demo import ROWS as SHOWN
from bayesncl.evaluate import evaluate
from bayesncl.files import write_atomic
from bayesncl.measure.measures import title, value
from bayesncl.progress import Display
from bayesncl.recipes import change, named
from bayesncl.report.tables import write

ROWS = tuple((title(path), path, decimals) for path, decimals in SHOWN)
MORE: tuple[tuple[str, tuple[str, ...], int], ...] = (
    ("background-induced error before the gates, relative", ("conflict", "z", "error_relative"), 3),
    ("share of that error the gates remove", ("gate_effect", "removed_relative_share"), 3),
    ("same object, other background: h (cosine)", ("stability", "h", "cosine"), 3),
    ("same object, other background: gain over chance", ("stability", "gated", "gain"), 3),
    ("share of open gates", ("gates", "open"), 2),
    ("Spearman of prevalence and open rate", ("spearman",), 2),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/scenes"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", nargs="*", default=[], dest="changes", metavar="PART.FIELD=VALUE")
    options = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {method: [] for method in METHODS}
    for seed in options.seeds:
        for method in METHODS:
            recipe = change(named(f"scenes-{method}"), [f"run.seed={seed}", *options.changes])
            folder = options.out / f"{method}-s{seed}"
            splits = [load(recipe.data, split) for split in ("train", "test")]
            model = trained(recipe, folder, splits[0], Display())
            path = folder / "evaluation.json"
            if not path.exists():
                write_atomic(path, evaluate(model, *splits).to_json())
            result = json.loads(path.read_text())
            rows = [row for row in result.get("theory", []) if row["statement"].startswith("filtering: Spearman")]
            result["spearman"] = rows[0]["observed"] if rows else None
            found[method].append(result)
    table = make_table(found)
    (options.out / "table.md").write_text(table)
    values = {
        label: {method: [value(result, path) for result in results] for method, results in found.items()}
        for label, path, _ in (*ROWS, *MORE)
    }
    (options.out / "table.json").write_text(json.dumps({"seeds": options.seeds, "values": values}, indent=1) + "\n")
    print(table)


def make_table(found: dict[str, list[dict[str, Any]]]) -> str:
    """Rows of measures, columns of methods, mean ± standard deviation over seeds."""
    rows = []
    for label, path, decimals in (*ROWS, *MORE):
        cells = []
        for results in found.values():
            values = [v for v in (value(result, path) for result in results) if v is not None]
            spread = f" ± {statistics.stdev(values):.{decimals}f}" if len(values) > 1 else ""
            cells.append(f"{statistics.fmean(values):.{decimals}f}{spread}" if values else "-")
        rows.append([label, *cells])
    return write(["measure", *found], rows, "markdown", left=1)


if __name__ == "__main__":
    main()
