"""Results of a job as a table: lists of named tuples, written as .csv or .parquet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bayesncl.codes import table
from bayesncl.codes.table import check_table

__all__ = ["check_table", "write_table"]


def write_table(path: Path, rows: Sequence[Any], fields: Sequence[str]) -> None:
    """Write named tuples with these fields, texts and numbers."""
    table.write_table(path, {field: [row[i] for row in rows] for i, field in enumerate(fields)})
