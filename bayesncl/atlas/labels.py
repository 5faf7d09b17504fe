"""Labels as small numbers with names that read as words, whatever they came as."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ..errors import InputError

MOST = 2000  # classes shown; rarer ones count as unlabelled


@dataclass(frozen=True)
class Labels:
    """Classes of N images.

    Attributes
    ----------
    index : int64 [N], -1 where an image has no label.
    names : a name by index.
    """

    index: np.ndarray
    names: list[str]


def factorise(what: str, labels: np.ndarray | None, names: tuple[str, ...] | None) -> Labels | None:
    """Labels numbered 0, 1, ... in their order, classes without images left out; None where there are no labels.

    The largest label does not matter: memory follows the number of classes that occur.
    """
    if labels is None:
        return None
    values = np.asarray(labels)
    if values.dtype.kind not in "iu":
        raise InputError(f"{what} must be whole numbers, got {values.dtype}")
    found, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    if names is not None and len(found) and found[-1] >= len(names):
        raise InputError(f"{what} go up to {found[-1]} but there are {len(names)} names")
    held = found >= 0
    if held.sum() > MOST:
        order = np.argsort(-np.where(held, counts, 0), kind="stable")[:MOST]
        held = np.isin(np.arange(len(found)), order)
    number = np.where(held, np.cumsum(held) - 1, -1)
    texts = [str(names[c]) if names is not None else f"class {c}" for c in found[held].tolist()]
    return Labels(number[index].astype(np.int64), in_words(texts))


def in_words(names: list[str]) -> list[str]:
    """Names as one would write them: `001.Black_footed_Albatross` loses its number and underscores, `3` is `class 3`.

    Names that would no longer differ stay as they are.
    """
    clean = [re.sub(r"^\d+[._-]+(?=\D)", "", name).replace("_", " ").strip() for name in names]
    clean = [f"class {text}" if re.fullmatch(r"\d+", text) else text or name for text, name in zip(clean, names)]
    return clean if len(set(clean)) == len(set(names)) else names
