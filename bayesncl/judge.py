"""How good fitted codes are: a verdict in words, and every measure where there are labels."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np

from .codes import ReadableCodes
from .codes_folder import CodesFolder, Rows
from .data.images import Progress
from .evaluate import measure_features
from .measure.result import Result
from .measure.verdict import Verdict, to_dict, verdict

MOST_JUDGED = 5_000  # rows; more say little more


def judged(rows: Rows) -> np.ndarray:
    """Which rows codes are judged by: those held out, or all; at most 5,000, spread evenly."""
    first, count = (len(rows) - rows.held, rows.held) if rows.held else (0, len(rows))
    if count <= MOST_JUDGED:
        return np.arange(first, len(rows))
    return first + np.linspace(0, count - 1, MOST_JUDGED).astype(np.int64)


def judge(codes: ReadableCodes, embeddings: np.ndarray, rows: Rows, *, seed: int = 0) -> Verdict:
    """The verdict on codes, beside those of an untrained head; by labels if there are any, else by the embeddings."""
    chosen = judged(rows)
    x = np.asarray(embeddings[chosen])
    train = embeddings[: len(rows) - rows.held]
    options = {**codes.get_params(), "dim": codes.dim_, "steps": 0, "positives": "self", "sparse_output": False}
    control = ReadableCodes(**options).fit(train).transform(x)
    labels = None if rows.labels is None else rows.labels[chosen]
    z = codes.set_params(sparse_output=False).transform(x)
    return verdict(z, labels, label_names=rows.class_names, embeddings=x, control=control, seed=seed)


def headlines(found: Verdict, most: int = 4, width: int = 80) -> list[str]:
    """The most important lines of a verdict, wrapped."""
    lines = [line.text for line in found.lines if line.value is not None or line.text.startswith("Collapsed")]
    lines = [text for text in lines if not text.startswith("Nearly every dimension fires")]  # as prototypes always do
    return [textwrap.fill(text, width, initial_indent="- ", subsequent_indent="  ") for text in lines[:most]]


def measure_codes(folder: Path, *, spectrum: bool = True, progress: Progress | None = None) -> tuple[Result, Verdict]:
    """Every measure of a folder of codes, and the verdict on them.

    Returns
    -------
    Result, which holds no more than the verdict where there are no labels of two classes; and the Verdict.
    """
    here = CodesFolder(folder)
    about = here.about()
    codes, rows, embeddings = here.codes(), here.rows(about), here.embeddings(about)
    found = judge(codes, embeddings, rows)
    chosen = judged(rows)
    result = Result()
    if rows.labels is not None and len(np.unique(rows.labels[chosen])) > 1:
        z = codes.transform(np.asarray(embeddings[chosen]))
        result = measure_features(z, rows.labels[chosen], spectrum=spectrum, progress=progress)
    judged_by = "held out" if rows.held else "fitted on"
    result.parameters = {"codes": str(folder), "method": codes.method, "judged_by": judged_by} | result.parameters
    result.verdict = to_dict(found)
    return result, found
