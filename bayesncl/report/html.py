"""The report of several runs as one HTML page: a table, the theory, the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from ..files import write_atomic
from ..measure.measures import title
from ..measure.measures import value as look_up
from ..measure.result import Result, to_json

Table = list[tuple[str, list[str]]]  # a label and a cell per run
# What the pictures of the report show, by file.
CAPTIONS = {
    "consistency.png": "Each dot a dimension: how many test images it fires on, and the share of its largest class.",
    "entropy.png": "How mixed the dimensions are: entropy over classes of the images each fires on.",
    "retrieval.png": "Share of the nearest images that have the right class, with only so many dimensions kept.",
    "thresholds.png": "Consistency as small features are cut away: compare the methods at equal activity.",
    "conflict.png": "How much a shared background adds to the similarity of different objects, by dimension.",
    "dynamics.png": "Correlations across dimensions while training went on.",
    "high-entropy.png": "The most mixed dimensions of BayesNCL: a row each, the images it fires on most.",
    "most-suppressed.png": "The dimensions its gates close most: a row each, with the images where they would fire.",
}


def summarise(results: Mapping[str, Result], rows: Sequence[tuple[tuple[str, ...], int]]) -> Table:
    """Chosen measures of several results, a cell per result.

    Parameters
    ----------
    rows : path in the results (see `measures.Measure.path`) and decimals.
    """
    trees = [result.to_dict() for result in results.values()]
    table: Table = []
    for path, decimals in rows:
        cells = [look_up(tree, path) for tree in trees]
        table.append((title(path), ["-" if cell is None else f"{cell:.{decimals}f}" for cell in cells]))
    return table


def write_report(
    folder: Path,
    names: Sequence[str],
    table: Table,
    figures: Sequence[str],
    theory: list | None,
    verdicts: Mapping[str, Mapping[str, Any]] | None = None,
) -> Path:
    """Write index.html and table.json into a folder that has the figures.

    Parameters
    ----------
    names : of the runs, a column each.
    figures : file names; those that do not exist are left out.
    theory : rows of `theory.compare`.
    verdicts : of the runs that have one, by name; see `verdict.to_dict`.
    """
    template = jinja2.Template((resources.files(__package__) / "report.html").read_text(), autoescape=True)
    captions = [(name, CAPTIONS.get(name, "")) for name in figures if (folder / name).exists()]
    page = folder / "index.html"
    shown = {"methods": names, "table": table, "figures": captions, "theory": theory or [], "verdicts": verdicts or {}}
    write_atomic(page, template.render(**shown))
    write_atomic(folder / "table.json", to_json(dict(table)))
    return page
