"""The ledger: identity of runs, honest entries, and the page that is made of them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest

from bayesncl import recipes
from bayesncl.errors import InputError
from bayesncl.measure.result import Result, rounded
from bayesncl.recipes import Gate, change, named
from bayesncl.reproduce import ledger, page

ROOT = Path(__file__).parent.parent
RECIPE = named("cifar100-bayesncl")
EVALUATION = Result(
    paper={"consistency": 17.123456789},
    sound={"consistency": float("nan")},
    parameters={5: (1, 2.0), "recipe": {"data": {"root": "/home/someone"}}},
    seconds=3.5,
)


def write_run(folder: Path, lines: list[dict[str, object]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "environment.json").write_text(
        json.dumps({"device": "abacus", "command": ["/home/someone/x"], "torch": "2"})
    )
    return folder


@pytest.mark.parametrize(
    "same",
    [
        "data.root=/elsewhere",
        "run.log_every=7",
        "run.checkpoint_every=3",
        "run.keep_checkpoints=9",
        "run.dynamics_every=5",
        "run.compile=false",
    ],
)
def test_what_cannot_alter_the_result_is_not_part_of_a_run(same: str) -> None:
    assert ledger.identity(change(RECIPE, [same])) == ledger.identity(RECIPE)


@pytest.mark.parametrize(
    "other",
    ["run.seed=1", "gate.prior=0.7", "run.epochs=199", "views.blur=0.4", "run.precision=float32", "model.dim=255"],
)
def test_everything_else_is(other: str) -> None:
    changed = change(RECIPE, [other])
    assert ledger.identity(changed) != ledger.identity(RECIPE)
    assert (ledger.setting(changed) == ledger.setting(RECIPE)) == other.startswith("run.seed")


def test_identity_knows_a_recipe_by_its_content_not_its_name() -> None:
    assert ledger.identity(change(RECIPE, ["gate.kind=soft"])) == ledger.identity(named("cifar100-bayesncl-soft"))


def test_an_entry_comes_back_as_it_was_recorded(tmp_path: Path) -> None:
    dynamics = {"kind": "dynamics", "epoch": 10, "step": 4, "paper": {"af_gv": 0.123456789}}
    run = write_run(tmp_path / "run", [{"step": 2, "epoch": 1.0, "images_per_second": 256.0}, dynamics])
    recipe = change(RECIPE, ["data.root=/home/someone/data", "run.seed=2"])
    path = ledger.record(tmp_path / "results", run, EVALUATION, recipe, extra={"waterbirds": {"h": 1}})
    assert path.name == f"cifar100-bayesncl-s2-{ledger.identity(recipe)[:8]}.json"
    assert "/home" not in path.read_text()
    (entry,) = ledger.read(tmp_path / "results")
    assert entry["measures"] == {
        "paper": {"consistency": 17.12346},
        "sound": {"consistency": None},
        "retrieval": {},
        "chance": {},
        "parameters": {"5": [1, 2.0]},
        "seconds": 3.5,
    }
    assert entry["dynamics"] == [{"epoch": 10, "step": 4, "paper": {"af_gv": 0.1234568}}]
    assert (entry["seed"], entry["epochs"], entry["extra"]) == (2, 200, {"waterbirds": {"h": 1}})
    assert entry["environment"] == {"device": "abacus", "torch": "2"}
    assert ledger.by_identity([entry]) == {ledger.identity(recipe): entry}
    assert ledger.by_setting([entry]) == {ledger.setting(RECIPE): [entry]}
    assert ledger.identity(ledger.recipe_in(entry)) == ledger.identity(recipe)


def test_recording_again_replaces_the_entry(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [])
    first = ledger.record(tmp_path, run, Result(paper={"x": 1.0}), RECIPE)
    second = ledger.record(tmp_path, run, Result(paper={"x": 2.0}), change(RECIPE, ["run.log_every=3"]))
    assert first == second
    assert [entry["measures"]["paper"]["x"] for entry in ledger.read(tmp_path)] == [2.0]


def test_the_checksum_is_of_the_canonical_content(tmp_path: Path) -> None:
    path = ledger.record(tmp_path, write_run(tmp_path / "run", []), EVALUATION, RECIPE)
    tree = json.loads(path.read_text())
    claimed = tree.pop("checksum")
    assert claimed == hashlib.sha256(json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    path.write_text(json.dumps({**tree, "checksum": claimed}))  # another layout is no edit
    assert len(ledger.read(tmp_path)) == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("17.12346", "27.12346"),
        ('"seed": 0', '"seed": 1'),
        ('"checksum": "', '"checksum": "0'),
        ('"format": 1', '"format": 2'),
    ],
)
def test_an_edit_by_hand_is_refused(tmp_path: Path, old: str, new: str) -> None:
    path = ledger.record(tmp_path, write_run(tmp_path / "run", []), EVALUATION, RECIPE)
    text = path.read_text()
    assert text.count(old) >= 1
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=path.name):
        ledger.read(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00", "[" * 100_000])
def test_a_damaged_entry_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "broken.json").write_text(text)
    with pytest.raises(InputError, match=r"broken\.json"):
        ledger.read(tmp_path)


def test_an_entry_older_than_a_field_of_recipes_is_still_the_same_run(tmp_path: Path) -> None:
    path = ledger.record(tmp_path, write_run(tmp_path / "run", []), EVALUATION, RECIPE)
    entry = json.loads(path.read_text())
    del entry["recipe"]["views"]["solarise"]
    entry["checksum"] = ledger.checksum(entry)
    assert ledger.identity(ledger.recipe_in(entry)) == ledger.identity(RECIPE)


@dataclasses.dataclass(frozen=True)
class NewerGate(Gate):
    """A part of recipes as a later version may have it."""

    sharpness: float = recipes._f(1.0, "", added="0.2")


def test_a_new_field_at_its_default_changes_no_identity() -> None:
    newer = dataclasses.replace(RECIPE, gate=NewerGate(**dataclasses.asdict(RECIPE.gate)))
    assert ledger.identity(newer) == ledger.identity(RECIPE)
    assert ledger.file_name(newer) == ledger.file_name(RECIPE)
    for changes in ({"sharpness": 2.0}, {"prior": 0.7}):
        other = dataclasses.replace(newer, gate=dataclasses.replace(newer.gate, **changes))
        assert ledger.identity(other) != ledger.identity(RECIPE)


def test_no_folder_is_an_empty_ledger(tmp_path: Path) -> None:
    assert ledger.read(tmp_path / "nowhere") == []


def test_seconds_are_those_of_the_logged_throughput() -> None:
    recipe = change(RECIPE, ["run.batch=100"])
    lines: list[dict[str, object]] = [
        {"step": 10, "epoch": 1.0, "images_per_second": 100.0},  # 1000 images in 10 s: compiling
        {"kind": "dynamics", "step": 10, "epoch": 1},
        {"step": 20, "epoch": 2.0, "images_per_second": 500.0},  # 2 s
        {"step": 40, "epoch": 4.0, "images_per_second": 1000.0},  # 2 s
    ]
    total, per_epoch = ledger.train_seconds(lines, recipe)
    assert total == pytest.approx(14.0)
    assert per_epoch == pytest.approx(2.0)  # 1000 images at the median rate
    assert ledger.train_seconds([], recipe) == (None, None)


def test_lists_of_numbers_stay_on_one_line_and_nothing_changes() -> None:
    tree = {"a": list(range(50)), "b": [{"c": [0.5, None, "x [ y\n"]}], "d": []}
    text = ledger.layout(tree)
    assert json.loads(text) == tree
    assert text.count("\n") < 20  # and not 50


def test_rounding_keeps_seven_digits_and_drops_what_is_not_finite() -> None:
    tree = [math.pi, -1e-9 / 3, float("inf"), True, None, 7]
    assert rounded(tree, ledger.SIGNIFICANT) == [3.141593, -3.333333e-10, None, True, None, 7]
    assert rounded({1: np.array([[1 / 3, np.nan]])}) == {"1": [[1 / 3, None]]}


def test_every_entry_of_the_repository_is_as_the_program_wrote_it() -> None:
    for path in sorted((ROOT / "results").glob("*.json")):
        entry = ledger.read_entry(path)
        assert path.name == ledger.file_name(ledger.recipe_in(entry))
        assert ledger.layout(entry) == path.read_text()
        assert "/" not in entry["recipe"]["data"]["root"]


def test_the_page_of_the_repository_is_what_the_ledger_says(tmp_path: Path) -> None:
    before = {path.name for path in (ROOT / "docs" / "figures").glob("*.png")}
    written = page.write(tmp_path, ledger.read(ROOT / "results"))
    assert written.read_bytes() == (ROOT / "docs" / "results.md").read_bytes()
    assert {path.name for path in (tmp_path / "figures").glob("*.png")} == before
