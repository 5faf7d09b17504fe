"""Read the arrays, tables and labels that users bring: .npy, .npz, .safetensors, .csv, .parquet.

Nothing is unpickled. Errors of NumPy, safetensors and pyarrow become one InputError.
"""

import contextlib
import csv
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors

from bayesncl.errors import InputError, as_input_error, import_extra, printable

Array = Any  # numpy array, torch tensor, or anything np.asarray takes

ENDINGS = (".npy", ".npz", ".safetensors", ".csv", ".parquet")
# Names of arrays that hold embeddings, labels and row names, in order of preference.
FEATURES = ("z", "embeddings", "embedding", "features", "X", "x", "h", "arr_0", "data")
LABELS = ("y", "labels", "label", "Y", "target", "targets")
NAMES = ("names", "paths", "files", "filenames")
# Headings of table columns, in lower case and in order of preference; pandas writes the last four.
LABEL_COLUMNS = ("y", "label", "labels", "class", "target", "category")
NAME_COLUMNS = (
    "name", "names", "file", "path", "filename", "file_name", "filepath", "image_path", "id",
    "index", "__index_level_0__", "unnamed: 0", "",
)  # fmt: skip
COLUMNS = {*LABEL_COLUMNS, *NAME_COLUMNS, "novelty"}  # all others are features
NEEDS_TABLES = "a .parquet file needs the extra `tables`: pip install pandas pyarrow"
FORMULA = re.compile(r"'*[=+@\t\r-]")  # a spreadsheet would run a cell that begins like this


def read_arrays(
    path: str | Path, names: Sequence[str], needed: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """The arrays of a file with these names; a missing `needed` array raises InputError.

    The array of a .npy file gets the first of `names` and is memory-mapped. A table has the arrays
    z [N, D], columns [D], y [N] and names [N], see `NAME_COLUMNS`.
    """
    with _open_arrays(path, names[0]) as arrays:
        if missing := [name for name in needed if name not in arrays]:
            raise InputError(f"{path}: no array {missing[0]}; {_contents(arrays)}")
        return {name: _plain(arrays, name) for name in names if name in arrays}


def array_names(path: str | Path) -> set[str]:
    """Names of the arrays in an .npz or .safetensors file; empty for other files."""
    with open(path, "rb") as file:
        if file.read(2) != b"PK" and Path(path).suffix.lower() != ".safetensors":
            return set()
    with _open_arrays(path) as arrays:
        return set(arrays)


class Embeddings(NamedTuple):
    """Embeddings of a file, and what it says of their rows and columns."""

    z: np.ndarray  # [N, F]
    names: np.ndarray | None  # [N]
    labels: np.ndarray | None  # [N]
    columns: np.ndarray | None  # [F], distinct


def read_embeddings(path: Path, named: bool = True) -> Embeddings:
    """Embeddings of a file, with names and labels of its rows and names of its columns, if any.

    The labels of a .npy file are y.npy beside it. Labels become words where the file has
    `class_names`. Names are skipped unless `named`: some files hold one per class.
    """
    path = Path(path)
    with _open_arrays(path) as arrays:
        z = _find_features(path, arrays)
        names = find_column(arrays, NAMES) if named else None
        columns = _column_names(arrays, z)
        labels = find_column(arrays, LABELS)
        if labels is not None and "class_names" in arrays:
            # Numbers will do if the names are pickled or too few.
            with contextlib.suppress(ValueError, IndexError):
                classes = _plain(arrays, "class_names")
                labels = classes[labels] if labels.min() >= 0 else labels
    beside = path.with_name("y.npy")
    if path.suffix.lower() == ".npy" and beside.is_file() and beside != path:
        column = find_column(read_arrays(beside, ("y",)), "y")
        if column is not None and column.shape[:1] == z.shape[:1]:  # else it is another array's
            labels = column
    for what, column in (("names", names), ("labels", labels)):
        if column is not None and column.shape != z.shape[:1]:
            shapes = f"embeddings {list(z.shape)}, but {what} {list(column.shape)}"
            raise InputError(f"{path}: {shapes}")
    return Embeddings(z, names, labels, columns)


def find_column(arrays: Mapping[str, Any], names: Sequence[str]) -> np.ndarray | None:
    """The first of these arrays that is there, [N]; whole floats as integers and NaN as ""."""
    name = next((name for name in names if name in arrays), None)
    if name is None:
        return None
    column = _plain(arrays, name)
    column = column[:, 0] if column.ndim == 2 and column.shape[1] == 1 else column
    if column.dtype.kind != "f":
        return column
    present = np.isfinite(column)
    if not (np.abs(column[present]) < 2**53).all() or (column[present] % 1).any():
        return column
    whole = np.where(present, column, 0).astype(np.int64)
    return whole if present.all() else np.where(present, whole.astype(str), "")


def as_numpy(values: Array) -> np.ndarray:
    """A tensor, or anything np.asarray takes, as an array; bfloat16 becomes float32."""
    if hasattr(values, "detach"):  # a tensor
        values = values.detach().cpu()
        values = (values.float() if str(values.dtype) == "torch.bfloat16" else values).numpy()
    return values if isinstance(values, np.ndarray) else np.asarray(values)


def as_features(features: Array) -> np.ndarray:
    """Features [N, D] as float16, float32 or float64; a memory map stays one.

    Sparse matrices become dense.
    """
    features = features.toarray() if hasattr(features, "toarray") else as_numpy(features)
    if features.ndim != 2:
        raise InputError(f"features must be [N, D], got shape {list(features.shape)}")
    if 0 in features.shape:
        raise InputError(f"features are empty: shape {list(features.shape)}")
    if features.dtype.kind in "iub":
        return features.astype(np.float64)
    if features.dtype.kind != "f" or features.dtype.itemsize > 8:
        raise InputError(f"features must be float16, float32 or float64, got {features.dtype}")
    return features.astype(features.dtype.newbyteorder("="), copy=False)


def as_labels(labels: Array, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Validate labels of `count` rows (whole numbers, booleans or strings) and factorize them."""
    labels = _decode_text(as_numpy(labels))
    if labels.dtype == object:  # as pandas stores strings
        kinds = {"str" if isinstance(each, str) else type(each).__name__ for each in labels.flat}
        if "str" in kinds and len(kinds) > 1:
            got = " and ".join(sorted(kinds))
            raise InputError(f"labels must be whole numbers or strings, got {got}")
        with as_input_error("labels must be whole numbers or strings", ValueError):
            labels = np.array(labels.tolist())
    if labels.ndim != 1:
        raise InputError(f"labels must be [N], got shape {list(labels.shape)}")
    if len(labels) != count:
        raise InputError(f"{len(labels)} labels for {count} rows of features")
    if labels.dtype.kind not in "fiubU" or labels.dtype.itemsize == 0:
        raise InputError(f"labels must be whole numbers or strings, got {labels.dtype}")
    if labels.dtype.kind == "f" and not (np.isfinite(labels) & (labels == np.trunc(labels))).all():
        raise InputError("labels must be whole numbers or strings, got fractions or NaN")
    if count < 2:
        raise InputError("only one row of features; the measures need at least two")
    index, classes = factorize(labels)
    if len(classes) < 2:
        raise InputError(f"only one class ({classes[0]}); the measures need at least two")
    return index, classes


def factorize(labels: Array) -> tuple[np.ndarray, np.ndarray]:
    """Index of each label among the distinct labels, int64 [N], and those labels, sorted [C]."""
    classes, index = np.unique(as_numpy(labels), return_inverse=True)
    return index.astype(np.int64).reshape(-1), classes


def read_labels(
    path: Path, names: np.ndarray | None, n: int
) -> tuple[np.ndarray | None, np.ndarray]:
    """Names and labels of `n` rows from a file: matched by name if both have names, else by row.

    A name is matched by its whole path, or by the last part of it where that is unique.
    """
    arrays = read_arrays(path, (*LABELS, *NAMES))
    labels, own_names = find_column(arrays, LABELS), find_column(arrays, NAMES)
    if labels is None:
        raise InputError(f"{path}: no labels; expected y [N] or a table with the column label")
    for column in (labels, own_names):
        if column is not None and column.ndim != 1:
            raise InputError(f"{path}: labels and names must be [N], got {list(column.shape)}")
    if names is None or own_names is None:
        if len(labels) != n:
            raise InputError(f"{path}: {len(labels):,} rows, but the embeddings have {n:,}")
        if own_names is not None:
            order = f"assuming that the rows of {path} are in their order"
            warnings.warn(f"the embeddings have no names: {order}", stacklevel=2)
        return (names if own_names is None else own_names), labels
    by_name: dict[str, Any] = {}
    for name, label in zip(map(str, own_names), labels.tolist()):
        first = by_name.setdefault(name, label)
        if first is not label and first != label:  # NaN differs from itself
            raise InputError(f"{path}: {name} has the labels {first} and {label}")
    wanted = [str(name) for name in names]
    ends = [name.rpartition("/")[2] for name in wanted]
    count = Counter(ends)
    by_end = [by_name.get(end) if count[end] == 1 else None for end in ends]
    found = [by_name.get(name, label) for name, label in zip(wanted, by_end)]
    if missing := [name for name, label in zip(wanted, found) if label is None]:
        some = f"{len(missing):,} of {len(wanted):,} rows, e.g. {missing[0]}"
        raise InputError(f"{path}: no label for {some}")
    return names, np.array(found)


def class_labels(labels: np.ndarray | None) -> np.ndarray | None:
    """Labels to evaluate by; None, with a warning, if some are missing or are fractions."""
    if labels is None:
        return None
    missing = np.count_nonzero(labels == "") if labels.dtype.kind == "U" else 0
    if missing or labels.dtype.kind == "f":
        part = f"{missing:,} of {len(labels):,} rows have no label"
        why = part if missing else "labels are neither whole numbers nor text"
        warnings.warn(f"{why}: evaluating without labels", stacklevel=2)
        return None
    return labels


def physical_memory() -> int:
    """Bytes of physical memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_memory(size: int, what: str) -> None:
    """Raise InputError if `size` bytes are more than half of physical memory."""
    if size > physical_memory() // 2:
        limit = f"more than half of memory ({physical_memory() >> 20:,} MiB)"
        raise InputError(f"{what} would take {size >> 20:,} MiB, {limit}")


def guard_cell(text: str) -> str:
    """A .csv cell; what looks like a formula gets an apostrophe, which the reader drops again."""
    return f"'{text}" if FORMULA.match(text) and not _is_number(text) else text


def import_pyarrow() -> Any:
    """pyarrow with its parquet module, from the extra `tables`."""
    import_extra("pyarrow.parquet", NEEDS_TABLES)
    return import_extra("pyarrow", NEEDS_TABLES)


@contextlib.contextmanager
def _open_arrays(path: str | Path, name: str = FEATURES[0]) -> Iterator[Mapping[str, Any]]:
    """Open a file as a mapping of arrays, read on access; the array of a .npy file is `name`."""
    path = Path(path)
    if not os.path.isfile(path):
        problem = "a folder, expected a file" if os.path.isdir(path) else "no such file"
        raise InputError(f"{path}: {problem}")
    # Damaged files make the libraries raise almost anything.
    with as_input_error(f"cannot read {path}", Exception):
        with open(path, "rb") as file:
            magic = file.read(6)
        if magic == b"\x93NUMPY":
            yield {name: np.load(path, mmap_mode="r", allow_pickle=False)}
        elif magic.startswith(b"PK"):
            with np.load(path, allow_pickle=False) as archive:
                yield archive
        elif magic.startswith(b"PAR1"):
            yield _read_parquet(path)
        elif path.suffix.lower() == ".csv":
            yield _read_csv(path)
        elif path.suffix.lower() == ".safetensors":
            # torch maps the file and knows bfloat16; safetensors.numpy does neither.
            with safetensors.safe_open(path, framework="pt") as file:
                yield {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        else:
            raise InputError(f"{path}: not a {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]} file")


def _plain(arrays: Mapping[str, Any], name: str) -> np.ndarray:
    """An array of numbers, booleans or text; ValueError if it is another."""
    try:
        values = as_numpy(arrays[name])
    except (ValueError, TypeError) as error:  # pickled objects, float8
        raise ValueError(f"array {name}: {error}") from None
    if values.dtype.kind not in "fiubUS" or values.dtype.itemsize == 0:
        expected = "expected real numbers, booleans or text"
        raise ValueError(f"array {name} holds {values.dtype}, {expected}")
    return _decode_text(values)


def _decode_text(values: np.ndarray) -> np.ndarray:
    return np.char.decode(values, "utf-8", "replace") if values.dtype.kind == "S" else values


def _contents(arrays: Mapping[str, Any]) -> str:
    return f"it holds {printable(', '.join(sorted(arrays)) or 'nothing', 200)}"


def _find_features(path: Path, arrays: Mapping[str, Any]) -> np.ndarray:
    """The embeddings: by name, or else the only array that can be meant."""
    others = [name for name in arrays if name not in (*LABELS, *NAMES, "class_names", "columns")]
    known = [name for name in FEATURES if name in arrays]
    if not known and len(others) != 1:
        expected = f"expected an array named {', '.join(FEATURES[:4])}; {_contents(arrays)}"
        raise InputError(f"{path}: no embeddings, {expected}")
    z = _plain(arrays, (known or others)[0])
    width = max(z.shape[1:], default=0)
    if z.ndim > 2 and 0 < z.size == len(z) * width:
        return z.reshape(len(z), width)  # [N, F, 1, 1] is [N, F]
    return z


def _column_names(arrays: Mapping[str, Any], z: np.ndarray) -> np.ndarray | None:
    """The array `columns` [F] if it is text and all names differ, else None."""
    if "columns" not in arrays:
        return None
    with contextlib.suppress(ValueError):  # pickled
        columns = _plain(arrays, "columns")
        if columns.dtype.kind == "U" and columns.shape == z.shape[1:2]:
            return columns if len(np.unique(columns)) == len(columns) else None
    return None


def _read_csv(path: Path) -> dict[str, np.ndarray]:
    """Features, labels and names of a table; one of numbers alone may lack a heading."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        separator = max(",;\t", key=file.readline().count)
        file.seek(0)
        rows = [row for row in csv.reader(file, delimiter=separator) if row]
    heading = rows.pop(0) if rows else []
    filled = [cell for cell in heading if cell]
    counted = filled == [str(i) for i in range(len(filled))]  # by pandas
    if all(map(_is_number, filled)) and not counted:
        rows, heading = [heading, *rows], ["z"] * len(heading)
    if wrong := [i for i, row in enumerate(rows, 1) if len(row) != len(heading)]:
        raise ValueError(f"row {wrong[0]} has not {len(heading)} columns as the first line")
    return _table_arrays(heading, [[row[i] for row in rows] for i in range(len(heading))])


def _read_parquet(path: Path) -> dict[str, np.ndarray]:
    """Features, labels and names of a table; an index that is not a range names the rows."""
    import_pyarrow()
    pandas = import_extra("pandas", NEEDS_TABLES)
    frame = pandas.read_parquet(path)
    if not isinstance(frame.index, pandas.RangeIndex):
        frame = frame.rename_axis("index").reset_index()
    return _table_arrays(list(map(str, frame)), [frame[c].to_numpy() for c in frame])


def _table_arrays(headings: Sequence[str], columns: Sequence[Any]) -> dict[str, np.ndarray]:
    """Features z, their headings, labels y and names of a table, by the headings of its columns.

    A column of lists, if any, holds the features. Names that only count the rows are left out.
    """
    table = {heading.strip().lower(): column for heading, column in zip(headings, columns)}
    found: dict[str, np.ndarray] = {}
    for array_name, known in (("y", LABEL_COLUMNS), ("names", NAME_COLUMNS)):
        for word in [word for word in known if word in table][:1]:
            found[array_name] = np.array([_to_text(cell) for cell in table[word]])
    names = found.get("names", np.array([])).tolist()
    if not any(names) or names in [[str(i + k) for i in range(len(names))] for k in (0, 1)]:
        found.pop("names", None)
    if "y" in found:
        found["y"] = _parse_numbers(found["y"])
    features = [i for i, word in enumerate(headings) if word.strip().lower() not in COLUMNS]
    lists = [i for i in features if len(columns[i]) and isinstance(columns[i][0], np.ndarray)]
    lists = [i for i in lists if headings[i] in FEATURES][:1] or lists
    if len(lists) > 1:
        several = ", ".join(headings[i] for i in lists)
        raise ValueError(f"columns {several} hold lists; keep only one")
    if lists:
        found["z"] = np.stack(columns[lists[0]])
    elif features:
        found["z"] = np.stack([_to_floats(headings[i], columns[i]) for i in features], axis=1)
        found["columns"] = np.array([headings[i].strip() for i in features])
    return found


def _to_floats(heading: str, column: Any) -> np.ndarray:
    if isinstance(column, list) and "" in column:  # of a .csv file
        raise ValueError(f"column {heading} has an empty cell in row {column.index('') + 1}")
    try:
        return np.array(column, np.float64)
    except (ValueError, TypeError) as error:
        raise ValueError(f"column {heading}: {error}; name text columns label or name") from None


def _parse_numbers(texts: np.ndarray) -> np.ndarray:
    """Whole numbers as integers, numbers with points as floats, others as text, such as 007."""
    with contextlib.suppress(ValueError, OverflowError):
        numbers = texts.astype(np.int64)
        if (numbers.astype(str) == texts).all():
            return numbers
    with contextlib.suppress(ValueError):
        if any("." in text for text in texts):
            return np.array([float(text or "nan") for text in texts])
    return texts


def _to_text(cell: Any) -> str:
    """A cell as text, without the apostrophe of `guard_cell`; "" if it is missing."""
    if cell is None or cell != cell:  # NaN
        return ""
    text = cell.decode("utf-8", "replace") if isinstance(cell, bytes) else str(cell)
    return text[1:] if text[:1] == "'" and FORMULA.match(text) else text


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
