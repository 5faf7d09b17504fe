"""CL, NCL and BayesNCL on the built-in scenes over several seeds: mean and spread of the measures.

    python benchmarks/scenes.py --out runs/scenes --seeds 0 1 2   # continues where it stopped

Writes table.md and table.json. docs/log/scenes.md has both of one such run.
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
from bayesncl.evaluate import evaluate
from bayesncl.io import read_object, write_atomic
from bayesncl.measure.result import look_up
from bayesncl.paper.measures import paper_measures
from bayesncl.progress import Display
from bayesncl.recipes import Recipe, change, named
from bayesncl.report.tables import format_table
from bayesncl.training.loop import train
from bayesncl.training.run_folder import RunFolder

METHODS = ("cl", "ncl", "bayesncl")
TABLE: tuple[tuple[str, tuple[str, ...], int], ...] = (  # label, path in the results, decimals
    ("object read from h (%)", ("balanced", "object", "acc1"), 1),
    ("background read from h (%)", ("balanced", "background", "acc1"), 1),
    ("images of a dimension that share a class (%)", ("sound", "consistency"), 1),
    ("active dimensions per image", ("sound", "l0"), 1),
    ("nearest 5 images of the same class (%)", ("retrieval", "sound", "all", "5"), 1),
    ("error from a shared background", ("conflict", "gated", "error_relative"), 2),
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
SPEARMAN = "filtering: Spearman"  # the statement in the results' branch `theory`

def main() -> None:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    parser.add_argument("--out", type=Path, default=Path("runs/scenes"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", nargs="*", default=[], dest="changes", metavar="PART.FIELD=VALUE")
    options = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {method: [] for method in METHODS}
    for seed in options.seeds:
        for method in METHODS:
            recipe = change(named(f"scenes-{method}"), [f"run.seed={seed}", *options.changes])
            found[method].append(measured_run(recipe, options.out / f"{method}-s{seed}"))
    write_tables(options.out, found, options.seeds)


def measured_run(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """Measures of the recipe's run in `folder`; what is already there is not computed again."""
    run, display = RunFolder(folder), Display()
    seen, test = (load(recipe.data, split) for split in ("train", "test"))
    model = train(recipe, seen, folder, display=display)
    if not run.evaluation_file.is_file():
        result = evaluate(model, seen, test, extra=paper_measures, progress=display.count)
        write_atomic(run.evaluation_file, result.to_json())
    display.close()
    result = read_object(run.evaluation_file)
    rows = [row for row in result.get("theory", []) if row["statement"].startswith(SPEARMAN)]
    return result | {"spearman": rows[0]["observed"] if rows else None}


def write_tables(out: Path, found: dict[str, list[dict[str, Any]]], seeds: list[int]) -> None:
    """table.md and table.json."""
    table = make_table(found)
    (out / "table.md").write_text(table)
    values = {
        label: {method: [look_up(r, path) for r in results] for method, results in found.items()}
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
            values = [v for v in (look_up(result, path) for result in results) if v is not None]
            spread = f" ± {statistics.stdev(values):.{decimals}f}" if len(values) > 1 else ""
            cells.append(f"{statistics.fmean(values):.{decimals}f}{spread}" if values else "-")
        rows.append([label, *cells])
    return format_table(["measure", *found], rows, "markdown", left=1)


if __name__ == "__main__":
    main()
