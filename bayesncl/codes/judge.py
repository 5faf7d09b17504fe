"""The verdict on fitted codes: rows to judge by, and controls without training and on noise."""

from typing import Any

import numpy as np

from bayesncl.codes.estimator import ReadableCodes
from bayesncl.codes.folder import Rows
from bayesncl.data.images import spread_evenly
from bayesncl.measure.verdict import MIN_IMAGES

MAX_JUDGED_ROWS = 5000
MAX_NOISE_COMPONENTS = 1024  # with more, the control on noise takes minutes on a CPU


def judged_rows(rows: Rows) -> np.ndarray:
    """Indices of the rows to judge by: held-out rows, or all; at most 5,000, spread evenly."""
    first = rows.fitted if rows.held else 0
    return first + spread_evenly(len(rows) - first, MAX_JUDGED_ROWS)


def judging_data(
    codes: ReadableCodes, embeddings: np.ndarray, rows: Rows
) -> tuple[np.ndarray, np.ndarray | None, dict[str, Any]]:
    """Codes [N, D] and labels [N] of the rows to judge by, and further options of `verdict`.

    The control is the head from which these codes started. Without labels there is also a control
    on noise, because codes of few rows look readable by their embeddings even on noise.
    """
    train, chosen = rows.fitted, judged_rows(rows)
    x = np.asarray(embeddings[chosen])
    labels = None if rows.labels is None else rows.labels[chosen]
    if labels is not None and len(np.unique(labels)) < 2:
        labels = None
    untrained = {"n_components": codes.n_components_, "max_iter": 0, "positives": "self"}
    options = codes.get_params() | untrained | {"sparse_output": False}
    control = ReadableCodes(**options).fit(embeddings[:train]).transform(x)
    further = {"label_names": rows.class_names, "embeddings": x, "control": control}
    if labels is None and len(x) >= MIN_IMAGES and codes.n_components_ <= MAX_NOISE_COMPONENTS:
        fitted = embeddings[spread_evenly(train, MAX_JUDGED_ROWS)] if rows.held else None
        further["noise"] = fit_noise(codes, x, fitted)
    return codes.with_options().transform(x), labels, further


def fit_noise(
    codes: ReadableCodes, x: np.ndarray, fitted: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Codes and rows of noise, which is x with each column shuffled.

    The head is fitted on `fitted`, shuffled together with x; where no rows are held out (None), on
    the noise itself.
    """
    real = x if fitted is None else np.concatenate([x, fitted])
    noise = np.random.default_rng(0).permuted(real, axis=0)
    judged = noise[: len(x)]
    names = ("method", "n_active", "random_state", "device")
    head = ReadableCodes(codes.n_components_, **{name: getattr(codes, name) for name in names})
    head.fit(judged if fitted is None else noise[len(x) :])
    if head.interrupted_:
        raise KeyboardInterrupt
    return head.transform(judged), judged
