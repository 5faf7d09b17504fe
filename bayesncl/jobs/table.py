"""Results of a job as a table: lists of named tuples, written as .csv or .parquet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bayesncl.codes import table


def write_table(path: Path | None, rows: Sequence[Any], fields: Sequence[str]) -> None:
    """Write named tuples with these fields, texts and numbers; nothing without a path."""
    if path is not None:
        columns = {field: [row[i] for row in rows] for i, field in enumerate(fields)}
        table.write_table(path, columns)
