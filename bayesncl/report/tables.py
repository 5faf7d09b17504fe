"""Results as text: tables for the terminal, CSV and Markdown.

A row is a measure of the registry, with its chance level and the value of an untrained head beside
it. A CSV file has every number, under its key.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from bayesncl.inputs import guard_cell
from bayesncl.io import write_atomic
from bayesncl.measure import verdict
from bayesncl.measure.registry import at_kept, find
from bayesncl.measure.result import Result, leaves

WIDTH = 100  # columns of a table that is not printed to a terminal
COST_WORDS = {"params": "parameters", "macs": "multiply-adds", "flops": "operations"}
Row = Sequence[str]


def render(result: Result, kind: str = "table", everything: bool = False) -> str:
    """Format a result as a table with one row per measure.

    Parameters
    ----------
    result : what `evaluate` or `measure` returned.
    kind : table, csv or markdown.
    everything : also curves, the spectrum and measures at other thresholds. A CSV always has them.
    """
    beside = ("chance", "untrained") if result.control else ("chance",)
    rows = []
    for path, figure in result.figures().items():
        numbers = figure[: 1 + len(beside)]
        known = None if kind == "csv" else find(path)
        if kind == "csv":
            cells = ("" if each is None else repr(each) for each in numbers)
            rows.append((*_names(path), *cells))
        elif known is not None and (everything or known[0].headline):
            measure, definition = known
            cells = ("" if each is None else measure.text(each) for each in numbers[1:])
            rows.append((definition, measure.title(), measure.text(figure.value), *cells))
        elif everything and known is None and figure.value is not None:
            rows.append((*_names(path), *map(format_number, numbers)))
    return format_table(("definition", "measure", "value", *beside), rows, kind)


def render_verdict(result: Result) -> str:
    """Format the verdict, and the measures with k active dimensions, at 80 columns."""
    if not result.verdict:
        return ""
    text = verdict.render(result.verdict)
    if result.kept:
        header = ("active dimensions (chance)", *result.kept)
        table = format_table(header, _kept_rows(result), width=verdict.WIDTH, left=1)
        text += "\n\n" + table.rstrip()
    return text


def _kept_rows(result: Result) -> list[Row]:
    rows: list[Row] = []
    for same in zip(*(at_kept(int(k)) for k in result.kept)):  # a measure at each k
        cells, first = [], same[0]
        for measure in same:
            number, chance, _ = result[measure.key]
            beside = "" if chance is None else f" ({chance:.0f})"
            cells.append(measure.text(number, min(measure.decimals, 1)) + beside)
        if first.short and any(cell != "-" for cell in cells):
            rows.append((first.short + f" ({first.unit})" * bool(first.unit), *cells))
    return rows


def show(result: Result, files: Mapping[str, Path | None], everything: bool = False) -> None:
    """Write files by kind (json, csv or markdown) and print the verdict, or every measure."""
    try:
        for kind, path in files.items():
            if path is not None:
                as_json = kind == "json"
                text = result.to_json() if as_json else render(result, kind, everything=everything)
                write_atomic(path, text)
    finally:  # print the verdict even if a file cannot be written
        print(render_verdict(result))
        print("\n" + (render(result, everything=True) if everything else "--all: every measure"))
        if everything and result.theory:
            print(render_theory(result.theory))


def render_costs(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Format the costs of several recipes side by side, one column per recipe."""
    columns = {name: dict(leaves(result)) for name, result in results.items()}
    paths = dict.fromkeys(path for column in columns.values() for path in column)
    rows = []
    for path in paths:  # such as (params_by_part, backbone)
        words = path[0].removesuffix("_by_part").split("_")
        quantity = " ".join(COST_WORDS.get(word, word) for word in words)
        cells = (format_number(column.get(path)) for column in columns.values())
        rows.append((quantity, " ".join(path[1:]), *cells))
    return format_table(("quantity", "part", *columns), rows)


def render_theory(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format what the paper's theory predicts beside what is observed."""
    words = {None: "cannot tell", True: "yes", False: "no"}
    numbers = [[format_number(row[key]) for key in ("predicted", "observed")] for row in rows]
    body = [
        ("", f"{row['statement']}\n  {row['note']}", *pair, words[row["holds"]])
        for row, pair in zip(rows, numbers)
    ]
    return format_table(("theory", "statement", "predicted", "observed", "holds"), body)


def format_table(
    header: Row, rows: Sequence[Row], kind: str = "table", width: int | None = None, left: int = 2
) -> str:
    """Format a table of text; the first `left` columns are left-aligned.

    On the terminal, a first cell that repeats the one above it is blank.
    """
    if kind == "csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows(map(guard_cell, row) for row in (header, *rows))
        return text.getvalue()
    if kind == "markdown":
        rule = ["---" if i < left else "---:" for i in range(len(header))]
        lines = [[cell.replace("|", "\\|") for cell in row] for row in (header, rule, *rows)]
        return "".join("| " + " | ".join(line) + " |\n" for line in lines)
    table = Table(box=None, pad_edge=False)
    for i, name in enumerate(header):
        table.add_column(name, justify="left" if i < left else "right", no_wrap=i != 1)
    previous = ""
    for row in rows:
        table.add_row("" if row[0] == previous else row[0], *row[1:])
        previous = row[0]
    console = Console()
    if width is None and console.is_terminal:  # at most 100 columns, but never cut off
        least = Measurement.get(console, console.options.update(width=1000), table).minimum
        width = max(least, min(WIDTH, console.width))
    text = io.StringIO()
    open_console(width or WIDTH, text).print(table)
    return text.getvalue()


def open_console(width: int | None = None, file: Any = None) -> Console:
    """Open a console without markup; one that is not a terminal is wide enough for a table."""
    console = Console(highlight=False, markup=False, width=width, file=file)
    if width is None and not console.is_terminal:
        console.width = 140
    return console


def format_number(value: Any) -> str:
    """Format a number of unknown unit."""
    if value is None:
        return "-"
    if isinstance(value, int) or (float(value).is_integer() and abs(value) >= 1000):
        return f"{int(value):,}"
    return f"{value:.3f}" if 0.001 <= abs(value) < 1e6 or value == 0 else f"{value:.3g}"


def _names(path: tuple[str, ...]) -> tuple[str, str]:
    """Definition and measure of a path, such as ('retrieval', 'sound', '64', '5')."""
    if path[0] == "retrieval" and len(path) == 4:
        return path[1], f"retrieval, {path[2]} dimensions, precision at {path[3]}"
    return (path[0], " ".join(path[1:])) if len(path) > 1 else ("", path[0])
