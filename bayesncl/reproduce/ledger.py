"""The ledger: one small JSON per run, written by the program, with a checksum so that an edit by hand is seen.

A run is known by its recipe, less what cannot alter the result: its name, where the images lie, how often it logs and
saves. Two runs of one setting differ in their seed alone.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import write_atomic
from ..measure.result import Result, rounded
from ..recipes import Recipe, recipe_from_dict
from ..run import Run, environment

FORMAT = 1
WITHOUT_EFFECT = ("checkpoint_every", "keep_checkpoints", "log_every", "dynamics_every", "compile")
SIGNIFICANT = 7  # digits kept of a measure: float32 has no more

Entry = dict[str, Any]


def identity(recipe: Recipe) -> str:
    """What tells a run from another, as 16 hex digits."""
    return _digest(_effective(recipe))[:16]


def setting(recipe: Recipe) -> str:
    """The same for all seeds of a recipe."""
    tree = _effective(recipe)
    del tree["run"]["seed"]
    return _digest(tree)[:16]


def file_name(recipe: Recipe) -> str:
    """Name of a run's entry, such as cifar100-bayesncl-s0-1234abcd.json."""
    return f"{recipe.name}-s{recipe.run.seed}-{identity(recipe)[:8]}.json"


def record(
    results: Path, run_dir: Path, evaluation: Result, recipe: Recipe, *, exemplars: dict[str, Any] | None = None,
    extra: dict[str, Any] | None = None,
) -> Path:  # fmt: skip
    """Enter a trained and evaluated run into the ledger of a folder; an older entry of the same run is replaced.

    The run's metrics.jsonl gives the time and the gradient dynamics, its environment.json where it was trained.
    `exemplars` and `extra` are what else was taken from the model; see `runner`.
    """
    run = Run(run_dir)
    seconds, per_epoch = train_seconds(run.metrics(), recipe)
    dynamics = [without(line, "kind") for line in run.metrics("dynamics")]
    measures = evaluation.to_dict()
    if "recipe" in evaluation.parameters:  # it has the place of the images, and stands below
        measures["parameters"] = without(evaluation.parameters, "recipe")
    tree = recipe.to_dict()
    tree["data"]["root"] = ""
    around = run.environment() or environment()
    entry: Entry = {
        "format": FORMAT,
        "name": recipe.name,
        "seed": recipe.run.seed,
        "epochs": recipe.run.epochs,
        "seconds": {"train": seconds, "per_epoch": per_epoch, "evaluate": evaluation.seconds},
        "environment": without(around, "command"),
        "recipe": tree,
        "measures": rounded(measures, SIGNIFICANT),
        "dynamics": rounded(dynamics, SIGNIFICANT),
        "exemplars": rounded(exemplars or {}, SIGNIFICANT),
        "extra": rounded(extra or {}, SIGNIFICANT),
    }
    entry["checksum"] = checksum(entry)
    results.mkdir(parents=True, exist_ok=True)
    path = results / file_name(recipe)
    write_atomic(path, layout(entry))
    return path


def layout(entry: Entry) -> str:
    """JSON with a line per field; lists of numbers or words stay on one."""
    text = json.dumps(entry, indent=1, allow_nan=False)
    return re.sub(r"\[\n([^][{}]*)\n\s*\]", lambda m: "[" + re.sub(r"\s*\n\s*", " ", m[1]).strip() + "]", text) + "\n"


def read(results: Path) -> list[Entry]:
    """All entries, by file name; InputError for one that is damaged or was edited. No folder is an empty ledger."""
    return [read_entry(path) for path in sorted(results.glob("*.json"))]


def read_entry(path: Path) -> Entry:
    """One entry, checked."""
    try:
        entry: Entry = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    if not isinstance(entry, dict) or entry.get("format") != FORMAT:
        raise InputError(f"{path}: not a ledger entry of format {FORMAT}")
    if entry.get("checksum") != checksum(entry):
        raise InputError(f"{path} does not match its checksum: entries are written by the program, never by hand")
    return entry


def recipe_in(entry: Entry) -> Recipe:
    """The recipe of an entry; fields that are newer than it have their defaults."""
    return recipe_from_dict(entry["recipe"], f"ledger entry {entry['name']}")


def by_identity(entries: list[Entry]) -> dict[str, Entry]:
    """Entries by the run they are of."""
    return {identity(recipe_in(entry)): entry for entry in entries}


def by_setting(entries: list[Entry]) -> dict[str, list[Entry]]:
    """Entries of each setting, by seed."""
    found: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=lambda entry: entry["seed"]):
        found.setdefault(setting(recipe_in(entry)), []).append(entry)
    return found


def checksum(entry: Entry) -> str:
    """SHA-256 of an entry's content, whatever its layout."""
    return _digest(without(entry, "checksum"))


def train_seconds(lines: list[dict[str, Any]], recipe: Recipe) -> tuple[float | None, float | None]:
    """Seconds of training and the median per epoch, by the throughput in metrics.jsonl: right for resumed runs too."""
    intervals, rates, before = 0.0, [], 0
    steps = None  # per epoch
    for line in lines:
        known = [line.get(name) for name in ("images_per_second", "epoch")]
        sane = all(isinstance(x, int | float) and 0 <= x < math.inf for x in known)
        if not sane or not before < line["step"] < 2**53:
            continue  # of another kind, or a stranger's
        intervals += (line["step"] - before) * recipe.run.batch / max(line["images_per_second"], 1e-9)
        rates.append(line["images_per_second"])
        before = line["step"]
        steps = line["step"] / max(line["epoch"], 1e-9)
    if steps is None:
        return None, None
    middle = sorted(rates)[len(rates) // 2]
    return round(intervals, 2), round(steps * recipe.run.batch / max(middle, 1e-9), 4)


def without(tree: dict[str, Any], key: str) -> dict[str, Any]:
    """A copy of the tree that lacks the key."""
    return {k: v for k, v in tree.items() if k != key}


def _effective(recipe: Recipe) -> dict[str, Any]:
    tree = recipe.to_identity()
    del tree["name"], tree["data"]["root"]
    for name in WITHOUT_EFFECT:
        tree["run"].pop(name, None)
    return tree


def _digest(tree: Any) -> str:
    return hashlib.sha256(json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
