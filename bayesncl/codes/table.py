"""Tables as files: features with names as .npz, .csv, .parquet or sparse vectors."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bayesncl.errors import InputError
from bayesncl.inputs import COLUMNS, factorize, guard_cell, import_pyarrow
from bayesncl.io import check_output_file, write_atomic, write_saved

SPARSEVEC, POINTS = ".sparsevec.csv", ".jsonl"  # for pgvector and Qdrant


@dataclass(frozen=True)
class Table:
    """Features z [N, D] with a name per row, and classes if there are any."""

    z: np.ndarray
    names: Sequence[str]
    labels: Sequence[str] | None = None
    columns: Sequence[str] | None = None  # names of the dimensions
    novelty: np.ndarray | None = None  # [N], of codes

    def rows(self) -> dict[str, Sequence[Any]]:
        """Name, and label and novelty if there are any, of each row."""
        found = {"name": self.names, "label": self.labels, "novelty": self.novelty}
        return {heading: list(values) for heading, values in found.items() if values is not None}


def check_table(path: Path, *others: str) -> None:
    """Raise InputError, before the work, if a .csv, .parquet or `others` cannot be written."""
    endings = (".csv", ".parquet", *others)
    if path.suffix not in endings:
        expected = ", ".join(filter(None, endings))
        raise InputError(f"{path}: expected a name that ends in {expected}")
    if path.suffix == ".parquet":
        import_pyarrow()
    check_output_file(path)


def write_table(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write columns of texts and numbers by heading, as .csv or .parquet."""
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


def write_tuples(path: Path, kind: Any, rows: Sequence[Any]) -> None:
    """Write named tuples of one kind as a table."""
    write_table(path, {name: [row[i] for row in rows] for i, name in enumerate(kind._fields)})


def write_features(path: Path, table: Table, long: bool = False) -> None:
    """Write features in the format of the path; `long`: one row per active dimension."""
    z, given = table.z, table.rows()
    headings = list(table.columns or (f"z{i}" for i in range(z.shape[1])))
    for i, name in enumerate(headings):  # none may mean something else in a table
        headings[i] = f"{name} (z{i})" if name.strip().lower() in COLUMNS else name
    if path.suffix in ("", ".npz"):
        arrays = {"z": z, "names": np.array(table.names)}
        if table.labels is not None:
            arrays["y"], arrays["class_names"] = factorize(np.array(table.labels))
        more = {"novelty": table.novelty, "dimensions": table.columns}
        arrays |= {name: np.array(v) for name, v in more.items() if v is not None}
        write_saved(path, np.savez, **arrays)
    elif path.suffix == POINTS:
        write_atomic(path, "".join(_point(i, row, given) for i, row in enumerate(z)))
    elif path.name.endswith(SPARSEVEC):
        given.pop("novelty", None)  # pgvector counts from 1
        pairs = [",".join(f"{k + 1}:{_cell(row[k])}" for k in np.flatnonzero(row)) for row in z]
        write_table(path, given | {"codes": [f"{{{text}}}/{z.shape[1]}" for text in pairs]})
    elif long:
        rows, dims = (index.tolist() for index in np.nonzero(z))
        long_table: dict[str, Any] = {"image": [table.names[i] for i in rows], "dimension": dims}
        long_table |= {"name": [headings[k] for k in dims], "value": z[rows, dims]}
        write_table(path, long_table)
    else:
        write_table(path, given | dict(zip(headings, z.T.copy())))


def _point(i: int, row: np.ndarray, given: Mapping[str, Sequence[Any]]) -> str:
    """A line of JSON: a point of Qdrant with the sparse vector `codes`."""
    index = np.flatnonzero(row)
    codes = {"indices": index.tolist(), "values": [float(_cell(value)) for value in row[index]]}
    payload = {key: column[i] for key, column in given.items()}
    point = {"id": i, "vector": {"codes": codes}, "payload": payload}
    return json.dumps(point, default=float) + "\n"


def _encodable(value: Any) -> Any:
    r"""A name of a file that is not UTF-8 is written with escapes such as \udcff."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def _cell(value: Any) -> Any:
    if isinstance(value, np.float32):
        return f"{value:.9g}"  # nine digits restore a float32
    if isinstance(value, float):
        return f"{value:.6g}"
    return guard_cell(value) if isinstance(value, str) else value
