"""The ledger: one JSON file per run, with a checksum that reveals edits by hand.

The recipe identifies a run, without the fields that cannot change the result: its name, the path of
the images, how often it logs and saves. Runs of one setting differ only in their seed. An entry is
never replaced; measures can be added to it.
"""

import hashlib
import json
import re
from pathlib import Path
from statistics import median_high
from typing import Any

from bayesncl.errors import InputError
from bayesncl.io import read_json, read_object, write_atomic
from bayesncl.measure.result import Result, rounded
from bayesncl.recipes import Recipe, recipe_from_dict
from bayesncl.training.run_folder import RunFolder, environment

FORMAT = 1
WITHOUT_EFFECT = (
    "checkpoint_every", "keep_checkpoints", "log_every", "dynamics_every", "knn_every", "compile"
)  # fmt: skip
DIGITS = 7  # significant digits of a measure; float32 has no more

Entry = dict[str, Any]


def identity(recipe: Recipe) -> str:
    """16 hex digits that identify a run."""
    return _digest(_effective(recipe))[:16]


def setting(recipe: Recipe) -> str:
    """16 hex digits that all seeds of a recipe share."""
    tree = _effective(recipe)
    del tree["run"]["seed"]
    return _digest(tree)[:16]


def file_name(recipe: Recipe) -> str:
    """File name of a run's entry, such as cifar100-bayesncl-s0-1234abcd.json."""
    return f"{recipe.name}-s{recipe.run.seed}-{identity(recipe)[:8]}.json"


def find(results: Path, recipe: Recipe) -> Entry | None:
    """The entry of a run, or None."""
    return by_identity(read(results)).get(identity(recipe))


def enter(
    results: Path, run: RunFolder, recipe: Recipe, evaluation: Result | None = None, *,
    exemplars: dict[str, Any] | None = None, probe: dict[str, Any] | None = None,
    extra: dict[str, Any] | None = None,
) -> Path:  # fmt: skip
    """Enter an evaluated run, or add to its entry what that lacks; nothing it has is changed.

    `probe` is the published one, `extra` has the background probes; training time and gradient
    dynamics come from metrics.jsonl. `added` in the entry says, for each later addition, in which
    environment its weights were trained: the entry's own, or that of a second training.
    """
    known = find(results, recipe)
    if known is None and evaluation is None:
        raise InputError(f"{file_name(recipe)} is not in the ledger: record the run first")
    entry = known or new_entry(run, recipe, evaluation or Result(), exemplars or {})
    around, added = trained_in(run), {}
    for name, tree, key, value in (
        ("probe.paper", entry["measures"].setdefault("probe", {}), "paper", probe),
        ("dynamics", entry, "dynamics", dynamics_of(run)),
        *((f"extra.{key}", entry["extra"], key, value) for key, value in (extra or {}).items()),
    ):
        if value and not tree.get(key):
            tree[key] = rounded(value, DIGITS)
            added[name] = "same run" if around == entry["environment"] else around
    path = results / file_name(recipe_in(entry))
    if known is not None:
        if not added:
            return path
        entry["added"] = entry.get("added", {}) | added
    results.mkdir(parents=True, exist_ok=True)
    write_atomic(path, layout(without(entry, "checksum") | {"checksum": checksum(entry)}))
    return path


def new_entry(
    run: RunFolder, recipe: Recipe, evaluation: Result, exemplars: dict[str, Any]
) -> Entry:
    """An entry of a run as it was evaluated, without its additions and its checksum."""
    seconds, per_epoch = train_seconds(run.metrics(), recipe)
    measures, tree = evaluation.to_dict(), recipe.to_dict()
    # neither names the path of the images
    measures["parameters"] = without(evaluation.parameters, "recipe")
    tree["data"]["root"] = ""
    return {
        "format": FORMAT,
        "name": recipe.name,
        "seed": recipe.run.seed,
        "epochs": recipe.run.epochs,
        "seconds": {"train": seconds, "per_epoch": per_epoch, "evaluate": evaluation.seconds},
        "environment": trained_in(run),
        "recipe": tree,
        "measures": rounded(measures, DIGITS),
        "dynamics": [],
        "exemplars": rounded(exemplars, DIGITS),
        "extra": {},
    }


def trained_in(run: RunFolder) -> dict[str, Any]:
    """Versions, device, revision and date of a run."""
    return without(read_object(run.environment_file) or environment(), "command")


def dynamics_of(run: RunFolder) -> list[dict[str, Any]]:
    """Gradient dynamics that a run logged, one row per recorded epoch."""
    return [rounded(without(line, "kind"), DIGITS) for line in run.metrics("dynamics")]


def layout(entry: Entry) -> str:
    """JSON with a line per field; lists of numbers or words stay on one line."""

    def join(match: re.Match[str]) -> str:
        return "[" + re.sub(r"\s*\n\s*", " ", match[1]).strip() + "]"

    text = json.dumps(entry, indent=1, allow_nan=False)
    return re.sub(r"\[\n([^][{}]*)\n\s*\]", join, text) + "\n"


def read(results: Path) -> list[Entry]:
    """All entries by file name; InputError for a damaged or edited one, [] without a folder."""
    return [read_entry(path) for path in sorted(results.glob("*.json"))]


def read_entry(path: Path) -> Entry:
    """One entry, verified."""
    entry: Entry = read_json(path)
    if not isinstance(entry, dict) or entry.get("format") != FORMAT:
        raise InputError(f"{path}: not a ledger entry of format {FORMAT}")
    if entry.get("checksum") != checksum(entry):
        raise InputError(f"{path} does not match its checksum; entries must not be edited by hand")
    return entry


def recipe_in(entry: Entry) -> Recipe:
    """The recipe of an entry; fields newer than the entry have their defaults."""
    return recipe_from_dict(entry["recipe"], f"ledger entry {entry['name']}")


def by_identity(entries: list[Entry]) -> dict[str, Entry]:
    """Entries by the identity of their run."""
    return {identity(recipe_in(entry)): entry for entry in entries}


def by_setting(entries: list[Entry]) -> dict[str, list[Entry]]:
    """Entries of each setting, sorted by seed."""
    groups: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=lambda entry: entry["seed"]):
        groups.setdefault(setting(recipe_in(entry)), []).append(entry)
    return groups


def checksum(entry: Entry) -> str:
    """SHA-256 of an entry's content, independent of its layout."""
    return _digest(without(entry, "checksum"))


def train_seconds(
    lines: list[dict[str, Any]], recipe: Recipe
) -> tuple[float | None, float | None]:
    """Seconds of training and median seconds per epoch, from the logged throughput.

    Throughput, unlike the wall clock, is right for resumed runs too.
    """
    total, rates, before, epoch_images = 0.0, [], 0, 0.0
    for line in lines:
        if (rate := line.get("images_per_second")) and line["step"] > before:
            total += (line["step"] - before) * recipe.run.batch / rate
            rates.append(rate)
            before, epoch_images = line["step"], line["step"] / line["epoch"] * recipe.run.batch
    if not rates:
        return None, None
    return round(total, 2), round(epoch_images / median_high(rates), 4)


def without(tree: dict[str, Any], key: str) -> dict[str, Any]:
    """A copy of the tree that lacks the key."""
    return {k: v for k, v in tree.items() if k != key}


def _effective(recipe: Recipe) -> dict[str, Any]:
    """The recipe's fields that can change the result."""
    tree = recipe.to_identity()
    del tree["name"], tree["data"]["root"]
    for name in WITHOUT_EFFECT:
        tree["run"].pop(name, None)
    return tree


def _digest(tree: Any) -> str:
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
