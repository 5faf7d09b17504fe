"""Results of a job as a table: lists of named tuples, written as .csv or .parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bayesncl.errors import InputError
from bayesncl.inputs import guard_cell, import_pyarrow
from bayesncl.io import write_atomic


def check_table(path: Path) -> None:
    """Raise InputError, before the work, if the table could not be written."""
    if path.suffix == ".parquet":
        import_pyarrow()
    elif path.suffix != ".csv":
        raise InputError(f"{path}: expected a name that ends in .csv or .parquet")


def write_table(path: Path, rows: Sequence[Any], fields: Sequence[str]) -> None:
    """Write named tuples with these fields, texts and numbers."""
    if path.suffix == ".parquet":
        pyarrow, buffer = import_pyarrow(), io.BytesIO()
        table = pyarrow.table({field: [row[i] for row in rows] for i, field in enumerate(fields)})
        pyarrow.parquet.write_table(table, buffer)
        return write_atomic(path, buffer.getvalue())
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(fields)
    for row in rows:
        writer.writerow(f"{x:.6g}" if isinstance(x, float) else guard_cell(str(x)) for x in row)
    write_atomic(path, text.getvalue())
