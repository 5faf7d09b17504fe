"""The figures of one or several evaluated runs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .measure import plots


def draw_figures(runs: Mapping[str, tuple[Path, dict[str, Any]]], out: Path) -> list[Path]:
    """Draw what the results hold: consistency by support, entropies, retrieval, thresholds, dynamics, conflict.

    Parameters
    ----------
    runs : run folder and results of `evaluate`, by name.
    out : folder for the PNGs.
    """
    out.mkdir(parents=True, exist_ok=True)
    results = {name: result for name, (_, result) in runs.items()}
    columns = {name: {k: as_array(v) for k, v in r["dimensions"].items()} for name, r in results.items()}
    classes = next(iter(results.values()))["parameters"]["classes"]
    k = next(iter(results.values()))["parameters"]["retrieval_ks"][-1]
    written = [
        plots.plot_consistency(
            {n: (c["support"], c["consistency"]) for n, c in columns.items()}, out / "consistency.png"
        ),
        plots.plot_entropy({n: c["entropy_freq"] for n, c in columns.items()}, out / "entropy.png", classes),
        plots.plot_retrieval(
            {n: {int(d): p[str(k)] for d, p in r["curves"]["retrieval_sound"].items()} for n, r in results.items()},
            out / "retrieval.png",
            k,
            next(iter(results.values()))["chance"]["retrieval"]["sound"]["all"][str(k)],
        ),
        plots.plot_thresholds({n: threshold_curve(r["sound"]) for n, r in results.items()}, out / "thresholds.png"),
    ]
    conflict = {
        f"{name}, {kind}" if kind == "gated" and "gates" in r else name: as_array(r["conflict"][kind]["by_dimension"])
        for name, r in results.items()
        if "conflict" in r
        for kind in (("z", "gated") if "gates" in r else ("gated",))
    }
    if conflict:
        written.append(plots.plot_conflict(conflict, out / "conflict.png"))
    rows = {name: dynamics_rows(folder) for name, (folder, _) in runs.items()}
    if any(rows.values()):
        written.append(plots.plot_dynamics({name: r for name, r in rows.items() if r}, out / "dynamics.png"))
    return written


def dynamics_rows(run: Path) -> list[dict[str, Any]]:
    """The gradient dynamics a run recorded."""
    path = run / "metrics.jsonl"
    if not path.exists():
        return []
    rows = []
    for text in path.read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError):  # a line cut short by a kill
            line = json.loads(text)
            if isinstance(line, dict) and line.get("kind") == "dynamics":
                rows.append(line)
    return rows


def threshold_curve(sound: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """L0 and consistency over the activation thresholds, the plain definition first."""
    steps = [key.removeprefix("l0_at_") for key in sound if key.startswith("l0_at_")]
    active = [sound["l0"], *(sound[f"l0_at_{t}"] for t in steps)]
    return as_array(active), as_array([sound["consistency"], *(sound[f"consistency_at_{t}"] for t in steps)])


def as_array(values: Any) -> np.ndarray:
    """Numbers and None as floats and NaN."""
    return np.array([np.nan if v is None else v for v in values], float)
