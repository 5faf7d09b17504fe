"""How good fitted codes are: a verdict in words, and every measure where there are labels."""

from __future__ import annotations

import copy
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from .codes import ReadableCodes
from .codes_folder import CodesFolder, Rows
from .data.images import Progress, spread_evenly
from .evaluate import measure_features
from .measure.result import Result
from .measure.verdict import Verdict, verdict

MOST_JUDGED = 5_000  # rows; more say little more


def judged(rows: Rows) -> np.ndarray:
    """Which rows codes are judged by: those held out, or all; at most 5,000, spread evenly."""
    first, count = (len(rows) - rows.held, rows.held) if rows.held else (0, len(rows))
    return first + spread_evenly(count, MOST_JUDGED)


def judge(codes: ReadableCodes, embeddings: np.ndarray, rows: Rows, *, seed: int = 0) -> Verdict:
    """The verdict on codes, beside an untrained head; by labels where there are any, else by the embeddings."""
    z, labels, given = gather(codes, embeddings, rows)
    return verdict(z, labels, **given, seed=seed)


def gather(
    codes: ReadableCodes, embeddings: np.ndarray, rows: Rows
) -> tuple[np.ndarray, np.ndarray | None, dict[str, Any]]:
    """Codes [N, D] and labels [N] of the rows to judge by, and what else is known of them; see `readable.figures`."""
    chosen = judged(rows)
    x = np.asarray(embeddings[chosen])
    train = embeddings[: len(rows) - rows.held]
    options = {**codes.get_params(), "dim": codes.dim_, "steps": 0, "positives": "self", "sparse_output": False}
    control = ReadableCodes(**options).fit(train).transform(x)
    labels = None if rows.labels is None else rows.labels[chosen]
    z = copy.copy(codes).set_params(sparse_output=False).transform(x)
    return z, labels, {"label_names": rows.class_names, "embeddings": x, "control": control}


def headlines(found: Verdict, most: int = 4, width: int = 80) -> list[str]:
    """The most important lines of a verdict, wrapped."""
    lines = [line.text for line in found.lines if line.value is not None or line.text.startswith("Collapsed")]
    lines = [text for text in lines if not text.startswith("Nearly every dimension fires")]  # as prototypes always do
    return [textwrap.fill(text, width, initial_indent="- ", subsequent_indent="  ") for text in lines[:most]]


def measure_codes(
    folder: Path, *, spectrum: bool = True, everything: bool = False, progress: Progress | None = None
) -> Result:
    """Every measure of a folder of codes, and the verdict on them; see `measure_features`."""
    here = CodesFolder(folder)
    about = here.about()
    codes, rows = here.codes(), here.rows(about)
    z, labels, given = gather(codes, here.embeddings(about), rows)
    if labels is not None and len(np.unique(labels)) < 2:
        labels = None
    result = measure_features(z, labels, spectrum=spectrum, everything=everything, progress=progress, **given)
    judged_by = "held out" if rows.held else "fitted on"
    result.parameters = {"codes": str(folder), "method": codes.method, "judged_by": judged_by} | result.parameters
    return result
