"""Images like a photo, by the embedding, or images strong in named dimensions, by the codes."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from bayesncl.codes.open import PhotoCodes
from bayesncl.errors import InputError
from bayesncl.inputs import Array, as_features
from bayesncl.measure.neighbors import search
from bayesncl.method.losses import unit_rows


class Match(NamedTuple):
    """One line of the table."""

    image: str
    label: str
    score: float  # cosine, or sum of activations, each relative to the largest of its dimension


def find_similar(query: Array, embeddings: Array, n: int = 50) -> tuple[np.ndarray, np.ndarray]:
    """The n rows of `embeddings` [N, F] nearest to `query` [F], and their centered cosines."""
    x = torch.from_numpy(np.array(as_features(embeddings), np.float32))
    q = torch.from_numpy(np.array(query, np.float32)[None])
    if q.shape[1:] != x.shape[1:]:
        raise InputError(f"the query must be one row [{x.shape[1]}], got {list(q.shape[1:])}")
    mean = x.mean(0)
    cosine, index = search(unit_rows(q - mean), unit_rows(x - mean), min(n, len(x)))
    return index[0].numpy(), cosine[0].numpy()


def find_strongest(
    codes: np.ndarray, plus: Sequence[Sequence[int]], minus: Sequence[Sequence[int]] = (),
    n: int = 50,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """The n rows of `codes` [N, D] with the largest score, and the scores; only positive ones.

    Each item of `plus` adds, each of `minus` subtracts the largest activation of its dimensions,
    relative to the largest of each dimension over all rows.
    """
    largest = codes.max(0)
    relative = codes / np.where(largest > 0, largest, 1)
    score = np.zeros(len(codes), np.float32)
    for dims in plus:
        score += relative[:, list(dims)].max(1)
    for dims in minus:
        score -= relative[:, list(dims)].max(1)
    order = np.argsort(-score, kind="stable")[:n]
    order = order[score[order] > 0]
    return order, score[order]


def find_images(
    model: PhotoCodes, photo: Path | None = None, plus: Sequence[str] = (),
    minus: Sequence[str] = (), *, n: int = 50,
) -> list[Match]:  # fmt: skip
    """Fitted images like `photo`, or strong in the dimensions named `plus` and not `minus`.

    `z17` means dimension 17.
    """
    rows, x = model.rows, model.embeddings
    if (photo is None) == (not plus):
        raise InputError("find needs either a photo or --name")
    if photo is not None:
        if minus:
            raise InputError("--without applies to --name, not to a photo")
        index, score = find_similar(model.embed(photo)[0], x, n)
    else:
        codes, names = model.codes.transform(x), model.folder.names(model.codes)
        add, subtract = ([names.find(name) for name in group] for group in (plus, minus))
        index, score = find_strongest(codes, add, subtract, n)
    text = rows.texts() or [""] * len(rows)
    return [Match(rows.names[i], text[i], float(s)) for i, s in zip(index, score)]
