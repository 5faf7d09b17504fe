"""The figures of one or several evaluated runs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..measure.result import Result, as_array
from . import plots


def draw_figures(runs: Mapping[str, tuple[Path, Result]], out: Path) -> list[Path]:
    """Draw what the results hold: consistency by support, entropies, retrieval, thresholds, dynamics, conflict.

    Parameters
    ----------
    runs : run folder and result of `evaluate`, by name.
    out : folder for the PNGs.
    """
    out.mkdir(parents=True, exist_ok=True)
    results = {name: result for name, (_, result) in runs.items()}
    columns = {name: {k: as_array(v) for k, v in (r.dimensions or {}).items()} for name, r in results.items()}
    first = next(iter(results.values()))
    k = first.parameters["retrieval_ks"][-1]
    written = [
        plots.plot_consistency(
            {n: (c["support"], c["consistency"]) for n, c in columns.items()}, out / "consistency.png"
        ),
        plots.plot_entropy(
            {n: c["entropy_freq"] for n, c in columns.items()}, out / "entropy.png", first.parameters["classes"]
        ),
        plots.plot_retrieval(
            {n: r.by_dims(k) for n, r in results.items()},
            out / "retrieval.png",
            k,
            first.chance["retrieval"]["sound"]["all"][str(k)],
        ),
        plots.plot_thresholds({n: r.by_threshold() for n, r in results.items()}, out / "thresholds.png"),
    ]
    conflict = {
        f"{name}, {kind}" if kind == "gated" and r.gates else name: as_array(r.conflict[kind]["by_dimension"])
        for name, r in results.items()
        if r.conflict
        for kind in (("z", "gated") if r.gates else ("gated",))
    }
    if conflict:
        written.append(plots.plot_conflict(conflict, out / "conflict.png"))
    rows = {name: dynamics_rows(folder) for name, (folder, _) in runs.items()}
    if any(rows.values()):
        written.append(plots.plot_dynamics({name: r for name, r in rows.items() if r}, out / "dynamics.png"))
    return written


def dynamics_rows(run: Path) -> list[dict[str, Any]]:
    """The gradient dynamics a run recorded."""
    return [line for line in read_metrics(run) if line.get("kind") == "dynamics"]


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl, less one that a kill cut short."""
    path, lines = run / "metrics.jsonl", []
    for text in path.read_text(errors="replace").splitlines() if path.is_file() else ():
        with contextlib.suppress(ValueError):
            line = json.loads(text)
            if isinstance(line, dict):
                lines.append(line)
    return lines
