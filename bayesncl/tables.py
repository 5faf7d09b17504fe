"""Tables that are not trusted, .csv and .parquet, as arrays: features, labels and names by the headings of columns."""

from __future__ import annotations

import array
import csv
import itertools
import json
import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .arrays import FEATURES, Reader, check_room, memory
from .errors import InputError, import_extra, or_refuse, printable, shown

COLUMNS = {  # of tables: what they hold by their heading; all other columns are features
    **dict.fromkeys(("y", "label", "labels", "class", "target", "category"), "y"),
    **dict.fromkeys(("name", "names", "file", "path", "filename", "file_name", "filepath", "image_path"), "names"),
    **dict.fromkeys(("", "unnamed: 0", "__index_level_0__", "index"), "index"),  # of pandas
    "id": "id",
}
FORMULA = re.compile(r"'*[=+@\t\r-]")  # how a cell begins that a spreadsheet would take for a formula


def read_csv(path: Path) -> dict[str, Reader]:
    """Features, labels and names of a table with a heading; one of numbers alone may do without."""
    check_room(16 * os.path.getsize(path), f"{shown(path)}: the table")
    with open(path, newline="", encoding="utf-8-sig") as file:
        heading = file.readline()
        file.seek(0)
        rows = csv.reader(file, delimiter="," if "," in heading else max(",;\t", key=heading.count))
        first = next(rows, [])
        filled = [cell for cell in first if cell.strip()]
        counted = len(filled) > 1 and filled == [str(i) for i in range(len(filled))]  # pandas' heading of plain arrays
        plain = bool(filled) and all(_is_number(cell) for cell in filled) and not counted  # there is no heading
        ends = plain and not first[-1].strip()  # lines end in a comma
        kinds = ["z"] * (len(first) - ends) if plain else _kinds(first, path)
        columns: dict[str, list[str]] = {kind: [] for kind in kinds if kind in ("y", "names", "index")}
        values = array.array("d")
        for row in filter(None, itertools.chain([first] if plain else [], rows)):  # blank lines say nothing
            row = row[:-1] if ends and not row[-1].strip() else row
            if len(row) != len(kinds):
                raise InputError(f"{shown(path)}, line {rows.line_num}: {len(row)} columns, expected {len(kinds)}")
            try:
                values.extend([float(cell) for cell, kind in zip(row, kinds) if kind == "z"])
            except ValueError:
                at = next(i for i, cell in enumerate(row) if kinds[i] == "z" and not _is_number(cell))
                raise InputError(f"{shown(path)}, line {rows.line_num}: {_no_number(first[at], row[at])}") from None
            for cell, kind in zip(row, kinds):
                if kind in columns:
                    columns[kind].append(cell[1:] if cell[:1] == "'" and FORMULA.match(cell) else cell)
    width = kinds.count("z")
    found = _readers(columns, measured=True)
    if width:
        found["z"] = lambda: np.frombuffer(values, np.float64).reshape(-1, width)
    return found


def _kinds(headings: list[str], path: Path) -> list[str]:
    """What each column of a table holds; InputError for two columns of labels, or of names.

    Without names a column `id` stands for them, and without that an index: such columns hold nothing else.
    """
    kinds = [COLUMNS.get(cell.strip().lower(), "z") for cell in headings]
    for kind in ("y", "names"):
        if kinds.count(kind) > 1:
            some = " and ".join(printable(cell) for cell, k in zip(headings, kinds) if k == kind)
            raise InputError(f"{shown(path)}: columns {some} hold the same kind of thing: keep only one")
    best = next((kind for kind in ("names", "id", "index") if kind in kinds), "")
    used = kinds.index(best) if best else None
    if best == "index" and "index" in (known := [cell.strip().lower() for cell in headings]):
        used = known.index("index")  # pandas numbers the rows in a column before it
    named = "names" if best == "id" else best
    return [named if i == used else kind if kind in ("y", "z") else "" for i, kind in enumerate(kinds)]


def _readers(columns: dict[str, list[Any]], measured: bool = False) -> dict[str, Reader]:
    """Labels and names, where they say something; an index stands for names."""
    if not _name_nothing(ids := columns.pop("index", [])):
        columns["names"] = ids
    said = {kind: cells for kind, cells in columns.items() if kind == "y" or any(cells)}
    return {kind: partial(_text, cells, measured and kind == "y") for kind, cells in said.items()}


def _name_nothing(ids: Sequence[Any]) -> bool:
    """Whether these are numbers of rows, from 0 or from 1, or empty."""
    counted = any(all(str(i) == str(each) for i, each in enumerate(ids, start)) for start in (0, 1))
    return counted or all(each in ("", None) for each in ids)


def _no_number(heading: str, cell: object) -> str:
    if cell == "":
        return f"column {printable(heading)} is empty: fill it in, or leave the row out"
    seen = f"column {printable(heading)} holds {printable(repr(cell))}"
    return f"{seen}, no number; head it label or name, or leave it out"


def guard_cell(text: str) -> str:
    """Text as a cell of a .csv: what a spreadsheet would run as a formula gets an apostrophe; `read_csv` drops it."""
    return f"'{text}" if FORMULA.match(text) and not _is_number(text) else text


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _text(cells: list[Any], measured: bool = False) -> np.ndarray:
    """A column of numbers, or of text: 007 is text, and not 7; 1.5 is a number where numbers may be `measured`."""
    if cells and all(cell is None or type(cell) is float for cell in cells):
        return np.array(cells, np.float64)  # None is NaN
    try:
        numbers = [int(cell) for cell in cells]
        if all(str(number) == str(cell).strip() for number, cell in zip(numbers, cells)):
            return np.array(numbers, np.int64)
    except (ValueError, TypeError, OverflowError):
        pass
    pointed = any("." in str(cell) or str(cell).lower() == "nan" for cell in cells)  # nan stands for nothing
    if measured and pointed and all(cell == "" or _is_number(cell) for cell in cells):
        return np.array([float(cell or "nan") for cell in cells])
    cells = [cell.decode("utf-8", "replace") if type(cell) is bytes else cell for cell in cells]
    texts = ["" if cell is None else str(cell) for cell in cells]
    check_room(4 * len(texts) * max(map(len, texts)), "as an array it")
    return np.array(texts)


def import_pyarrow() -> Any:
    """pyarrow with what reads and writes tables, from the extra."""
    missing = "a .parquet file needs the extra: pip install 'bayesncl[tables]'"
    for part in ("pyarrow.compute", "pyarrow.parquet"):
        import_extra(part, missing)
    return import_extra("pyarrow", missing)


def _holds_lists(kind: Any, pyarrow: Any) -> bool:
    """Whether a type of a column is that of lists of numbers."""
    lists = isinstance(kind, (pyarrow.ListType, pyarrow.LargeListType, pyarrow.FixedSizeListType))
    return lists and (pyarrow.types.is_floating(kind.value_type) or pyarrow.types.is_integer(kind.value_type))


def _index_columns(metadata: Any) -> list[str]:
    """Names of the columns that pandas wrote its index to, as it says beside the table; a stranger may say anything."""
    try:
        return [name for name in json.loads(metadata[b"pandas"])["index_columns"] if isinstance(name, str)]
    except (KeyError, TypeError, ValueError, RecursionError):
        return []


def read_parquet(path: Path) -> dict[str, Reader]:
    """The same of a .parquet."""
    pyarrow = import_pyarrow()
    with or_refuse(f"{shown(path)}: cannot be read", pyarrow.ArrowException):
        batches = []
        free = memory() // 2
        file = pyarrow.parquet.ParquetFile(path)
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        values = sum(group.column(i).num_values for group in groups for i in range(group.num_columns))
        check_room(8 * values, f"{shown(path)}: the table")  # a run of equal numbers takes no room in the file
        for batch in file.iter_batches(1024):
            batches.append(batch)
            free -= 2 * batch.nbytes
            if free < 0:
                raise InputError(f"{shown(path)}: the table would take over half of free memory")
        table = pyarrow.Table.from_batches(batches, file.schema_arrow)
        features = []
        index = _index_columns(table.schema.metadata)
        headings = ["index" if name in index and name.lower() not in COLUMNS else name for name in table.column_names]
        columns = list(zip(table.column_names, _kinds(headings, path), table.columns))
        lists = [name for name, kind, column in columns if kind == "z" and _holds_lists(column.type, pyarrow)]
        lists = [name for name in lists if name in FEATURES][:1] or lists
        if len(lists) > 1:
            some = ", ".join(map(printable, lists))
            raise InputError(f"{shown(path)}: columns {some} hold lists: call one of them embedding, or keep only one")
        found = _readers({kind: column.to_pylist() for _, kind, column in columns if kind not in ("z", "")})
        for name, kind, column in columns:
            if kind != "z" or (lists and name not in lists):
                continue
            if lists:
                if len(lengths := pyarrow.compute.list_value_length(column).unique()) > 1:
                    seen = ", ".join(map(str, lengths.to_pylist()[:4]))
                    raise InputError(f"{shown(path)}, column {printable(name)}: lists of different lengths ({seen})")
                flat = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
                features.append(flat.reshape(len(column), -1))
            else:
                values = column.to_numpy()
                if values.dtype.kind not in "fiub":
                    raise InputError(f"{shown(path)}: {_no_number(name, values[:1].tolist())}")
                features.append(values[:, None])
    if features:
        found["z"] = lambda: features[0] if len(features) == 1 else np.hstack(features)
    return found
