"""The report of several runs as one HTML page: a table, the theory, the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from ..files import write_atomic
from ..measure.measures import value as look_up
from ..measure.result import Result, to_json

Table = list[tuple[str, list[str]]]  # a label and its cells
EVEN = "even: no further apart than two seeds of one method"
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


class Row(NamedTuple):
    """A measure in the table."""

    label: str  # in plain words
    path: tuple[str, ...]  # in the results; see `measures.Measure.path`
    decimals: int  # shown
    more: bool  # whether more is better
    apart: float  # what two seeds of one method may differ by


def summarise(results: Mapping[str, Result], rows: Sequence[Row]) -> Table:
    """Chosen measures of several results: a cell per result, then which are better."""
    trees = {name: result.to_dict() for name, result in results.items()}
    table: Table = []
    for row in rows:
        found = {name: look_up(tree, row.path) for name, tree in trees.items()}
        cells = ["-" if value is None else f"{value:.{row.decimals}f}" for value in found.values()]
        table.append((row.label, [*cells, better(found, row)]))
    return table


def better(found: Mapping[str, float | None], row: Row) -> str:
    """Those as good as the best one, but for what seeds may do; "even" if that is all of them."""
    gains = {name: value if row.more else -value for name, value in found.items() if value is not None}
    good = [name for name, gain in gains.items() if gain > max(gains.values()) - row.apart]
    return "-" if len(gains) < len(found) else "even" if len(good) == len(found) else ", ".join(good)


def write_report(
    folder: Path, names: Sequence[str], table: Table, figures: Sequence[str], theory: list | None,
    verdicts: Mapping[str, Mapping[str, Any]] | None = None,
) -> Path:  # fmt: skip
    """Write index.html and table.json into a folder that has the figures; those that do not exist are left out.

    `names` are of the columns, `theory` rows of `theory.compare`, `verdicts` those of `verdict.to_dict` by run.
    """
    template = jinja2.Template((resources.files(__package__) / "report.html").read_text(), autoescape=True)
    captions = [(name, CAPTIONS.get(name, "")) for name in figures if (folder / name).exists()]
    page = folder / "index.html"
    shown = {"columns": names, "table": table, "figures": captions, "theory": theory or [], "verdicts": verdicts or {}}
    write_atomic(page, template.render(**shown, even=EVEN))
    write_atomic(folder / "table.json", to_json(dict(table)))
    return page
