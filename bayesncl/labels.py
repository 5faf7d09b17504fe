"""Labels of rows, to judge by."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .arrays import LABELS, NAMES, find_column, read_arrays
from .errors import InputError, printable


def read_labels(path: Path, names: np.ndarray | None, n: int) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Names and labels of rows from a file: row by row, or by name where both have names."""
    found = read_arrays(path, (*LABELS, *NAMES))
    labels, theirs = find_column(found, LABELS), find_column(found, NAMES)
    for column in (labels, theirs):
        if column is not None and column.ndim != 1:
            raise InputError(f"{path}: labels and names must be [N], got {list(column.shape)}")
    if labels is None and theirs is None:
        raise InputError(f"{path}: no labels in it, expected y [N], or a table with the column label")
    if names is not None and theirs is not None and labels is not None:
        return names, np.array(find_labels(path, [str(name) for name in names], theirs, labels, "rows"))
    column = labels if labels is not None else theirs
    assert column is not None
    if len(column) != n:
        raise InputError(f"{path}: {len(column):,} rows, the embeddings have {n:,}")
    if theirs is not None and names is None:
        warnings.warn(f"the embeddings have no names: rows of {path} are taken to be in the same order", stacklevel=2)
    return (names if theirs is None else theirs), labels


def find_labels(path: Path, wanted: Sequence[str], names: np.ndarray, labels: np.ndarray, what: str) -> list[Any]:
    """The label that a file has for each name, or for the last part of its path if no other has that.

    InputError for none, or two.
    """
    by_name: dict[str, Any] = {}
    for name, label in zip(map(str, names), labels.tolist()):
        known = by_name.setdefault(name, label)
        if known is not label and known != label:  # NaN differs from itself
            raise InputError(f"{path}: {printable(name)} has the labels {known} and {label}: keep only one")
    ends = [name.rpartition("/")[2] for name in wanted]
    often = Counter(ends)
    found = [by_name.get(name, by_name.get(end) if often[end] == 1 else None) for name, end in zip(wanted, ends)]
    if missing := [name for name, label in zip(wanted, found) if label is None]:
        some = f"{len(missing):,} of {len(wanted):,} {what}, e.g. {printable(missing[0])}"
        raise InputError(f"{path}: no label for {some}")
    return found


def class_labels(labels: np.ndarray | None) -> np.ndarray | None:
    """Labels to judge by; None, with a warning, where some rows have none or where numbers are no classes."""
    if labels is None:
        return None
    missing = np.count_nonzero(labels == "") if labels.dtype.kind == "U" else 0
    if missing:
        warnings.warn(f"{missing:,} of {len(labels):,} rows have no label: nothing is judged by labels", stacklevel=2)
    elif labels.dtype.kind == "f":
        warnings.warn("labels are neither whole numbers nor text: nothing is judged by labels", stacklevel=2)
    elif labels.dtype.kind == "i" and len(labels) and labels.min() == -1:
        count = np.count_nonzero(labels == -1)
        warnings.warn(f"{count:,} of {len(labels):,} rows have the label -1, which counts as a class", stacklevel=2)
    return None if missing or labels.dtype.kind == "f" else labels
