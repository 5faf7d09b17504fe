"""The ledger: identity of runs, entries that nobody edits, and the page made from them."""

import json
from pathlib import Path

import pytest

from bayesncl.errors import InputError
from bayesncl.measure.result import Result
from bayesncl.paper import ledger, page
from bayesncl.recipes import change, named
from bayesncl.training.run_folder import RunFolder

from .conftest import ROOT

RECIPE = named("cifar100-bayesncl")
EVALUATION = Result(
    paper={"consistency": 17.123456789},
    sound={"consistency": float("nan")},
    parameters={5: (1, 2.0), "recipe": {"data": {"root": "/home/someone"}}},
    seconds=3.5,
)


def write_run(folder: Path, lines: list[dict[str, object]], date: str = "today") -> RunFolder:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    around = {"device": "abacus", "command": ["/home/someone/x"], "date": date}
    (folder / "environment.json").write_text(json.dumps(around))
    return RunFolder(folder)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """An entry."""
    return ledger.enter(tmp_path, write_run(tmp_path / "run", []), RECIPE, EVALUATION)


def test_fields_without_effect_are_not_part_of_the_identity() -> None:
    fields = ("log_every=7", "checkpoint_every=3", "keep_checkpoints=9", "dynamics_every=5")
    for text in ("data.root=/elsewhere", "run.compile=false", *(f"run.{f}" for f in fields)):
        assert ledger.identity(change(RECIPE, [text])) == ledger.identity(RECIPE), text
    by_name = named("cifar100-bayesncl-soft")  # the content counts, not the name
    assert ledger.identity(change(RECIPE, ["gate.kind=soft"])) == ledger.identity(by_name)


def test_all_other_fields_are() -> None:
    for text in ("run.seed=1", "gate.prior=0.7", "objective.decoupled=true"):
        changed = change(RECIPE, [text])
        assert ledger.identity(changed) != ledger.identity(RECIPE)
        same_setting = ledger.setting(changed) == ledger.setting(RECIPE)
        assert same_setting == (text == "run.seed=1")


def test_an_entry_reads_back_as_recorded(tmp_path: Path) -> None:
    dynamics = {"kind": "dynamics", "epoch": 10, "step": 4, "paper": {"af_gv": 0.123456789}}
    line: dict[str, object] = {"step": 2, "epoch": 1.0, "images_per_second": 256.0}
    run = write_run(tmp_path / "run", [line, dynamics])
    recipe = change(RECIPE, ["data.root=/home/someone/data", "run.seed=2"])
    extra = {"waterbirds": {"h": 1}}
    path = ledger.enter(tmp_path / "results", run, recipe, EVALUATION, extra=extra)
    assert path.name == f"cifar100-bayesncl-s2-{ledger.identity(recipe)[:8]}.json"
    assert "/home" not in path.read_text()
    (entry,) = ledger.read(tmp_path / "results")
    assert entry["measures"] == {
        "paper": {"consistency": 17.12346},
        "sound": {"consistency": None},
        "parameters": {"5": [1, 2.0]},
        "seconds": 3.5,
        "probe": {},
    }
    assert entry["dynamics"] == [{"epoch": 10, "step": 4, "paper": {"af_gv": 0.1234568}}]
    assert (entry["seed"], entry["epochs"], entry["extra"]) == (2, 200, extra)
    assert entry["environment"] == {"device": "abacus", "date": "today"}
    assert ledger.by_identity([entry]) == {ledger.identity(recipe): entry}
    assert ledger.by_setting([entry]) == {ledger.setting(RECIPE): [entry]}
    del entry["recipe"]["views"]["solarize"]  # an entry older than a field
    assert ledger.identity(ledger.recipe_in(entry)) == ledger.identity(recipe)
    assert ledger.read(tmp_path / "nowhere") == []


def test_measures_are_added_once_and_none_is_replaced(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [])
    with pytest.raises(InputError, match="not in the ledger"):
        ledger.enter(tmp_path, run, RECIPE, probe={"acc1": 1.0})
    path = ledger.enter(tmp_path, run, RECIPE, EVALUATION, extra={"a": {"h": 1}})
    before = path.read_bytes()
    same_run = change(RECIPE, ["run.log_every=3"])
    assert ledger.enter(tmp_path, run, same_run, Result(paper={"x": 2.0})) == path
    assert path.read_bytes() == before
    again = write_run(tmp_path / "again", [{"kind": "dynamics", "epoch": 1, "step": 2}], "1999")
    for acc1, folder in ((60.5, again), (70.5, run)):
        extra = {"a": {"h": 2}, "b": {"h": 3}}
        ledger.enter(tmp_path, folder, RECIPE, probe={"acc1": acc1}, extra=extra)
        entry = ledger.read_entry(path)
        assert entry["measures"]["paper"] == {"consistency": 17.12346}
        assert entry["measures"]["probe"] == {"paper": {"acc1": 60.5}}
        assert entry["extra"] == {"a": {"h": 1}, "b": {"h": 3}}
        assert entry["dynamics"] == [{"epoch": 1, "step": 2}]
        assert set(entry["added"]) == {"probe.paper", "dynamics", "extra.b"}
        assert {source["date"] for source in entry["added"].values()} == {"1999"}


@pytest.mark.parametrize(
    ("old", "new"),
    [("17.12346", "27.12346"), ('"checksum": "', '"checksum": "0'), ('"format": 1', '"format": 2'),
     ("{", "[")],
)
def test_an_edited_or_damaged_entry_is_refused(recorded: Path, old: str, new: str) -> None:
    text = recorded.read_text()
    recorded.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=recorded.name):
        ledger.read(recorded.parent)


def test_seconds_come_from_the_logged_throughput() -> None:
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


def test_every_entry_of_the_repository_is_as_the_program_wrote_it() -> None:
    for path in sorted((ROOT / "results").glob("*.json")):
        entry = ledger.read_entry(path)
        assert path.name == ledger.file_name(ledger.recipe_in(entry))
        assert ledger.layout(entry) == path.read_text()
        assert "/" not in entry["recipe"]["data"]["root"]


def test_the_page_of_the_repository_is_generated_from_the_ledger(tmp_path: Path) -> None:
    written = page.write(tmp_path, ledger.read(ROOT / "results")[::-1])  # in any order
    assert written.read_bytes() == (ROOT / "docs" / "results.md").read_bytes()
    names = "figures/*.png"
    assert {p.name for p in tmp_path.glob(names)} == {p.name for p in (ROOT / "docs").glob(names)}
