"""Results as a table for the terminal, csv, markdown or LaTeX.

Results are nested dicts; a row is a number in them, named by its keys. The branch `chance` mirrors the others and
becomes a column; `parameters` is left to the JSON.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import InputError

KINDS = ("table", "csv", "markdown", "latex")
Row = tuple[str, ...]


def render(results: Mapping[str, Any], kind: str = "table", width: int = 100) -> str:
    """One set of results: a row per value, with its chance level where there is one.

    Parameters
    ----------
    results : as `measure_features` returns them; any nested dict of numbers will do.
    kind : table, csv, markdown or latex.
    width : of the table, characters.
    """
    chance = dict(_leaves(results.get("chance", {})))
    rows = [(*_names(path), _number(value, kind), _number(chance.get(path), kind)) for path, value in _shown(results)]
    return _write(("definition", "measure", "value", "chance"), rows, kind, width)


def compare(results: Mapping[str, Mapping[str, Any]], kind: str = "table", width: int = 100) -> str:
    """Several sets of results side by side: a column per name, a row per value that any of them has."""
    columns = {name: dict(_shown(result)) for name, result in results.items()}
    paths = dict.fromkeys(path for column in columns.values() for path in column)
    rows = [(*_names(path), *(_number(column.get(path), kind) for column in columns.values())) for path in paths]
    return _write(("definition", "measure", *columns), rows, kind, width)


def render_theory(rows: Sequence[Mapping[str, Any]], width: int = 100) -> str:
    """What the paper's theory predicts of a model against what is seen, a statement a row, with a sentence each."""
    table = Table(title="theory: predicted against observed", title_justify="left", box=None, show_edge=False)
    for column, side in (("statement", "left"), ("predicted", "right"), ("observed", "right"), ("holds", "left")):
        table.add_column(column, justify=side)  # type: ignore[arg-type]
    for row in rows:
        holds = {None: "cannot tell", True: "yes", False: "no"}[row["holds"]]
        numbers = (_number(row[key], "table") for key in ("predicted", "observed"))
        table.add_row(Text(f"{row['statement']}\n  {row['note']}"), *numbers, holds)
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]


def to_json(results: Mapping[str, Any]) -> str:
    """JSON that any reader takes: no NaN, no infinity."""
    return json.dumps(results, indent=2, allow_nan=False) + "\n"


def _shown(results: Mapping[str, Any]) -> Iterator[tuple[Row, Any]]:
    return _leaves({key: value for key, value in results.items() if key not in ("chance", "parameters")})


def _leaves(tree: Mapping[Any, Any], path: Row = ()) -> Iterator[tuple[Row, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, str(key)))
        elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            yield (*path, str(key)), value


def _names(path: Row) -> Row:
    """Definition and measure: ('retrieval', 'sound', '64', '5') is precision at 5 with 64 dimensions, by `sound`."""
    if path[0] == "retrieval" and len(path) == 4:
        return path[1], f"retrieval, {path[2]} dimensions, precision at {path[3]}"
    return (path[0], " ".join(path[1:])) if len(path) > 1 else ("", path[0])


def _number(value: Any, kind: str) -> str:
    if value is None:
        return "" if kind == "csv" else "-"
    if kind == "csv":
        return repr(value)
    if isinstance(value, int) or (float(value).is_integer() and abs(value) >= 1000):
        return f"{int(value):,}"
    return f"{value:.3f}" if 0.001 <= abs(value) < 1e6 or value == 0 else f"{value:.3g}"


def _write(header: Row, rows: list[Row], kind: str, width: int) -> str:
    match kind:
        case "table":
            table = Table(box=None, pad_edge=False)
            for i, name in enumerate(header):
                table.add_column(name, justify="left" if i < 2 else "right", no_wrap=i != 1)
            previous = ""
            for row in rows:
                table.add_row(row[0] if row[0] != previous else "", *row[1:])
                previous = row[0]
            text = io.StringIO()
            Console(file=text, width=width, highlight=False, markup=False).print(table)
            return text.getvalue()
        case "csv":
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows([header, *rows])
            return text.getvalue()
        case "markdown":
            rule = ("---", "---", *("---:" for _ in header[2:]))
            lines = [[cell.replace("|", "\\|") for cell in row] for row in (header, rule, *rows)]
            return "".join("| " + " | ".join(line) + " |\n" for line in lines)
        case "latex":
            body = "".join(" & ".join(map(_latex, row)) + " \\\\\n" for row in rows)
            head = " & ".join(map(_latex, header)) + " \\\\\n"
            layout = "ll" + "r" * (len(header) - 2)
            return f"\\begin{{tabular}}{{{layout}}}\n\\hline\n{head}\\hline\n{body}\\hline\n\\end{{tabular}}\n"
    raise InputError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")


def _latex(text: str) -> str:
    for character in "\\&%$#_{}~^":
        replacement = {"\\": "\\textbackslash ", "~": "\\textasciitilde ", "^": "\\textasciicircum "}
        text = text.replace(character, replacement.get(character, "\\" + character))
    return text
