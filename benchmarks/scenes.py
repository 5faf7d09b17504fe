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

from bayesncl.cli.demo import METHODS, ROWS, evaluated, trained
from bayesncl.data import load
from bayesncl.measure.registry import value
from bayesncl.progress import Display
from bayesncl.recipes import change, named
from bayesncl.report.tables import format_table

MORE: tuple[tuple[str, tuple[str, ...], int], ...] = (
    ("object, probe fitted on the tied images (%)", ("probe", "fast", "acc1"), 1),
    ("background, probe fitted on the tied images (%)", ("background", "h", "acc1"), 1),
    ("worst group, object probe on the tied images (%)", ("worst_group", "worst"), 1),
    ("consistency, paper's definition (%)", ("paper", "consistency"), 1),
    ("consistency at 2 active dimensions (%)", ("sound", "consistency_at_l0_2"), 1),
    ("class entropy of a dimension, sound (nats)", ("sound", "entropy_freq"), 2),
    ("dead dimensions (share)", ("sound", "dead_share"), 2),
    ("detector average precision", ("sound", "detector_ap"), 2),
    ("background-induced error before the gates, relative", ("conflict", "z", "error_relative"), 2),
    ("share of that error the gates remove", ("gate_effect", "removed_relative_share"), 2),
    ("same object, other background: h (cosine)", ("stability", "h", "cosine"), 2),
    ("same object, other background: features (cosine)", ("stability", "gated", "cosine"), 2),
    ("same object, other background: gain over chance", ("stability", "gated", "gain"), 2),
    ("share of open gates", ("gates", "open"), 2),
    ("Spearman of prevalence and open rate", ("spearman",), 2),
)
TABLE = (*(row[:3] for row in ROWS), *MORE)


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
            result = evaluated(model, folder, *splits, Display()).to_dict()
            rows = [row for row in result.get("theory", []) if row["statement"].startswith("filtering: Spearman")]
            result["spearman"] = rows[0]["observed"] if rows else None
            found[method].append(result)
    write_tables(options.out, found, options.seeds)


def write_tables(out: Path, found: dict[str, list[dict[str, Any]]], seeds: list[int]) -> None:
    """table.md and table.json."""
    table = make_table(found)
    (out / "table.md").write_text(table)
    values = {
        label: {method: [value(result, path) for result in results] for method, results in found.items()}
        for label, path, _ in TABLE
    }
    (out / "table.json").write_text(json.dumps({"seeds": seeds, "values": values}, indent=1) + "\n")
    print(table)


def make_table(found: dict[str, list[dict[str, Any]]]) -> str:
    """Rows of measures, columns of methods, mean ± standard deviation over seeds."""
    rows = []
    for label, path, decimals in TABLE:
        cells = []
        for results in found.values():
            values = [v for v in (value(result, path) for result in results) if v is not None]
            spread = f" ± {statistics.stdev(values):.{decimals}f}" if len(values) > 1 else ""
            cells.append(f"{statistics.fmean(values):.{decimals}f}{spread}" if values else "-")
        rows.append([label, *cells])
    return format_table(["measure", *found], rows, "markdown", left=1)


if __name__ == "__main__":
    main()
