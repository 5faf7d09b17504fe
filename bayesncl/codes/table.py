"""Tables as .csv or .parquet files."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bayesncl.errors import InputError
from bayesncl.inputs import guard_cell, import_pyarrow
from bayesncl.io import write_atomic


def check_table(path: Path) -> None:
    """Raise InputError, before the work, if the table could not be written."""
    if path.suffix == ".parquet":
        import_pyarrow()
    elif path.suffix != ".csv":
        raise InputError(f"{path}: expected a name that ends in .csv or .parquet")


def write_table(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write columns of texts and numbers by heading."""
    columns = {heading: list(map(_encodable, values)) for heading, values in columns.items()}
    if path.suffix == ".parquet":
        pyarrow, buffer = import_pyarrow(), io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table(dict(columns)), buffer)
        return write_atomic(path, buffer.getvalue())
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    for row in (columns, *zip(*columns.values())):
        writer.writerow(map(_cell, row))
    write_atomic(path, text.getvalue())


def _encodable(value: Any) -> Any:
    r"""A name of a file that is not UTF-8 is written with escapes such as \udcff."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def _cell(value: Any) -> Any:
    if isinstance(value, np.float32):
        return f"{value:.9g}"  # nine digits restore a float32
    if isinstance(value, float):
        return f"{value:.6g}"
    return guard_cell(value) if isinstance(value, str) else value
