"""Results as tables: for the terminal, as csv, Markdown or LaTeX.

A row is a measure of the registry, by definition, with its chance level and that of an untrained head beside it. The
csv has every number there is, under its key.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ..errors import InputError
from ..files import write_atomic
from ..measure import verdict
from ..measure.measures import at_kept, find
from ..measure.measures import value as look_up
from ..measure.result import Result
from ..tables import guard_cell

KINDS = ("table", "csv", "markdown", "latex")
LATEX = str.maketrans(
    {sign: "\\" + sign for sign in "&%$#_{}"}
    | {"\\": "\\textbackslash ", "~": "\\textasciitilde ", "^": "\\textasciicircum "}
)
Row = Sequence[str]


def render(result: Result, kind: str = "table", width: int | None = None, everything: bool = False) -> str:
    """One result: a row per measure, with its chance level where there is one.

    `kind` is one of KINDS; `width` in characters, see `printed`. `everything` adds what is no headline: measures at
    other thresholds, the spectrum, curves; a csv always has them.
    """
    chance, control, rows = dict(_leaves(result.chance)), dict(_leaves(result.control or {})), []
    beside = ("chance", "untrained") if control else ("chance",)
    aside = ("chance", "control", "parameters", "verdict")
    for path, number in _leaves({k: v for k, v in result.to_dict().items() if k not in aside}):
        known = None if kind == "csv" else find(path)
        others = (chance.get(path), control.get(path))[: len(beside)]
        if known is not None and (everything or known[0].headline):
            measure, definition = known
            cells = (measure.text(v) if v is not None else "" for v in others)
            rows.append((definition, measure.title(), measure.text(number), *cells))
        elif kind == "csv":
            rows.append((*_names(path), exact(number), *map(exact, others)))
        elif everything and known is None and number is not None:
            rows.append((*_names(path), plain(number), *map(plain, others)))
    return write(("definition", "measure", "value", *beside), rows, kind, width)


def render_verdict(result: Result) -> str:
    """What a person should know first: the verdict, and what is left at k kept dimensions; 80 columns."""
    if result.verdict is None:
        return ""
    parts = [verdict.render(result.verdict)]
    if result.kept:
        header = ("dimensions kept (chance)", *result.kept)
        parts.append("\n" + write(header, _kept_rows(result), width=verdict.WIDTH, left=1).rstrip())
    return "\n".join(parts)


def _kept_rows(result: Result) -> list[Row]:
    rows: list[Row] = []
    for measure in at_kept(1):
        paths = [("kept", k, measure.key.rsplit("/", 1)[1]) for k in result.kept or {}]
        found = [(look_up(result.to_dict(), path), look_up(result.chance, path)) for path in paths]
        if any(each is not None for each, _ in found):
            cells = [measure.text(v, min(measure.decimals, 1)) + ("" if c is None else f" ({c:.0f})") for v, c in found]
            rows.append((measure.short + f" ({measure.unit})" * bool(measure.unit), *cells))
    return rows


def show(result: Result, files: Mapping[str, Path | None], everything: bool = False) -> None:
    """Write the files asked for, by kind (json or one of KINDS), and print the verdict; the rest with `everything`."""
    try:  # files first, as the reader of a pipe may leave; then the verdict, whatever became of the files
        for kind, path in files.items():
            if path is not None:
                write_atomic(path, result.to_json() if kind == "json" else render(result, kind, everything=everything))
    finally:
        print(render_verdict(result))
        print("\n" + (render(result, everything=True) if everything else "--all prints every measure."))
        if everything and result.theory:
            print(render_theory(result.theory))


def compare(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Several trees of numbers side by side: a column per name, a row per value that any of them has."""
    columns = {name: dict(_leaves(result)) for name, result in results.items()}
    paths = dict.fromkeys(path for column in columns.values() for path in column)
    rows = [(*_names(path), *(plain(column.get(path)) for column in columns.values())) for path in paths]
    return write(("definition", "measure", *columns), rows)


def render_theory(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the paper's theory predicts of a model against what is seen, a statement a row, with a sentence each."""
    table = Table(title="theory: predicted against observed", title_justify="left", box=None, show_edge=False)
    for column, side in (("statement", "left"), ("predicted", "right"), ("observed", "right"), ("holds", "left")):
        table.add_column(column, justify=side)  # type: ignore[arg-type]
    for row in rows:
        holds = {None: "cannot tell", True: "yes", False: "no"}[row["holds"]]
        numbers = (plain(row[key]) for key in ("predicted", "observed"))
        table.add_row(Text(f"{row['statement']}\n  {row['note']}"), *numbers, holds)
    return printed(table)


def write(header: Row, rows: Sequence[Row], kind: str = "table", width: int | None = None, left: int = 2) -> str:
    """A table of text; the first `left` columns are aligned left. On the terminal a repeated first cell is blank."""
    match kind:
        case "table":
            table = Table(box=None, pad_edge=False)
            for i, name in enumerate(header):
                table.add_column(name, justify="left" if i < left else "right", no_wrap=i != 1)
            previous = ""
            for row in rows:
                table.add_row(row[0] if row[0] != previous else "", *row[1:])
                previous = row[0]
            return printed(table, width)
        case "csv":
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows([map(guard_cell, row) for row in (header, *rows)])
            return text.getvalue()
        case "markdown":
            rule = ["---" if i < left else "---:" for i in range(len(header))]
            lines = [[cell.replace("|", "\\|") for cell in row] for row in (header, rule, *rows)]
            return "".join("| " + " | ".join(line) + " |\n" for line in lines)
        case "latex":
            layout, body = "l" * left + "r" * (len(header) - left), "".join(map(_latex, rows))
            head = f"\\begin{{tabular}}{{{layout}}}\n\\hline\n{_latex(header)}\\hline\n"
            return f"{head}{body}\\hline\n\\end{{tabular}}\n"
    raise InputError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")


def open_console(width: int | None = None, file: Any = None) -> Console:
    """A console that prints text as it is; where standard output is no terminal, wide enough for a table."""
    console = Console(highlight=False, markup=False, width=width, file=file)
    return console if width or console.is_terminal else Console(highlight=False, markup=False, width=140, file=file)


def printed(table: Table, width: int | None = None) -> str:
    """A table as the terminal shows it: at most 100 wide, less on a narrow terminal, as far as nothing is cut off."""
    console = Console()
    if width is None:
        least = Measurement.get(console, console.options.update(width=1000), table).minimum
        width = max(least, min(100, console.width)) if console.is_terminal else 100
    text = io.StringIO()
    open_console(width, text).print(table)
    return text.getvalue()


def exact(value: Any) -> str:
    """A number with all its digits."""
    return "" if value is None else repr(value)


def plain(value: Any) -> str:
    """A number of unknown unit."""
    if value is None:
        return "-"
    if isinstance(value, int) or (float(value).is_integer() and abs(value) >= 1000):
        return f"{int(value):,}"
    return f"{value:.3f}" if 0.001 <= abs(value) < 1e6 or value == 0 else f"{value:.3g}"


def _leaves(tree: Mapping[Any, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, str(key)))
        elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            yield (*path, str(key)), value


def _names(path: tuple[str, ...]) -> tuple[str, str]:
    """Definition and measure: ('retrieval', 'sound', '64', '5') is precision at 5 with 64 dimensions, by `sound`."""
    if path[0] == "retrieval" and len(path) == 4:
        return path[1], f"retrieval, {path[2]} dimensions, precision at {path[3]}"
    return (path[0], " ".join(path[1:])) if len(path) > 1 else ("", path[0])


def _latex(row: Row) -> str:
    return " & ".join(cell.translate(LATEX) for cell in row) + " \\\\\n"
