"""Runs that survive a kill, recorded one by one; measures added to an entry, never replaced."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bayesncl.data import load
from bayesncl.measure.result import Result
from bayesncl.paper import ledger, measures, reproduce
from bayesncl.progress import Display
from bayesncl.recipes import Recipe, named
from bayesncl.training.loop import Interrupted
from bayesncl.training.run_folder import RunFolder
from tests.commands import call

from .conftest import smoke, smoked_experiment

MAIN = smoked_experiment("interpretability")


def run_list(recipes: list[Recipe], results: Path, models: Path, **options: Any) -> list[Path]:
    return reproduce.run_list(recipes, MAIN, reproduce.Workspace(results, models, **options))


class Killer(Display):
    """Asks the run to stop after its first step, once."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.killed = False

    def count(self, done: int, total: int, title: str, status: str = "") -> None:
        if title.startswith("scenes") and done and not self.killed:
            self.killed = True
            os.kill(os.getpid(), signal.SIGTERM)


def without_times(path: Path) -> dict[str, Any]:
    tree = ledger.read_entry(path)
    tree["measures"].pop("seconds")
    return {key: tree[key] for key in ("measures", "dynamics", "exemplars", "recipe")}


@pytest.fixture
def recorded(first_run: Path, tmp_path: Path) -> Path:
    """Entry of a finished run, in a ledger of its own; the weights are in `models`."""
    shutil.copytree(first_run, tmp_path, dirs_exist_ok=True)
    (path,) = (tmp_path / "results").glob("*.json")
    return path


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are trained and recorded without their measures."""
    monkeypatch.setattr(reproduce, "evaluate", lambda *a, **k: Result(paper={"consistency": 10.0}))


def test_a_killed_run_resumes_to_the_same_entry(tmp_path: Path, recorded: Path) -> None:
    recipe = smoke("bayesncl", "run.dynamics_every=1")
    with pytest.raises(Interrupted):
        run_list([recipe], tmp_path / "halves", tmp_path / "b", display=Killer())
    assert not (tmp_path / "halves").exists()
    (halves,) = run_list([recipe], tmp_path / "halves", tmp_path / "b")
    assert without_times(halves) == without_times(recorded)


def test_a_trained_run_is_only_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unmeasured: None
) -> None:
    recipe, models = smoke("ncl"), tmp_path / "models"
    with monkeypatch.context() as patch:
        patch.setattr(reproduce, "evaluate", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run_list([recipe], tmp_path, models)
    assert ledger.read(tmp_path) == []
    monkeypatch.setattr(reproduce, "train", lambda *a, **k: pytest.fail("trained again"))
    with RunFolder(models / Path(ledger.file_name(recipe)).stem).lock():  # another process has it
        assert run_list([recipe], tmp_path, models) == []
    (path,) = run_list([recipe], tmp_path, models)
    assert RunFolder(models / path.stem).finished()


def test_an_entry_that_another_process_wrote_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    unmeasured: None,
) -> None:  # fmt: skip
    recipe, train = smoke("ncl", "run.epochs=1"), reproduce.train

    def overtaken(*arguments: Any, **options: Any) -> Any:
        model = train(*arguments, **options)
        with monkeypatch.context() as patch:
            patch.setattr(reproduce, "train", train)
            run_list([recipe], tmp_path, tmp_path / "models")
        return model

    monkeypatch.setattr(reproduce, "train", overtaken)
    assert run_list([recipe], tmp_path, tmp_path / "models", display=Display()) == []
    assert "another process" in capsys.readouterr().err
    assert len(ledger.read(tmp_path)) == 1


def test_a_run_without_images_is_reported_and_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], unmeasured: None
) -> None:
    todo = [named("cifar100-bayesncl"), smoke("ncl", "run.epochs=1")]
    options: Any = {"data": str(tmp_path), "display": Display()}
    written = run_list(todo, tmp_path / "r", tmp_path / "m", **options)
    assert [path.name.split("-s")[0] for path in written] == ["scenes-ncl"]
    assert "not run: cifar100-" in capsys.readouterr().err


@pytest.mark.parametrize("kept", [True, False])
def test_a_missing_measure_is_added_and_nothing_replaced(
    tmp_path: Path, kept: bool, monkeypatch: pytest.MonkeyPatch, recorded: Path
) -> None:
    """From kept weights, or from a second training that leaves the entry's own measures alone."""
    recipe, needs = smoke("bayesncl"), smoked_experiment("background-like")
    before = ledger.read_entry(recorded)
    kinds = "h", "z", "gated"
    needed = {f"extra/waterbirds_like/{kind}" for kind in kinds}
    assert reproduce.lacking(before, needs) == needed
    if kept:
        monkeypatch.setattr(reproduce, "train", lambda *a, **k: pytest.fail("trained again"))
    models = tmp_path / ("models" if kept else "elsewhere")
    monkeypatch.setattr(reproduce, "evaluate", lambda *a, **k: pytest.fail("evaluated again"))
    space = reproduce.Workspace(recorded.parent, models)
    reproduce.run_list([recipe], needs, space)
    after = ledger.read_entry(recorded)
    assert reproduce.lacking(after, needs) == set()
    source = after.pop("added")["extra.waterbirds_like"]
    assert (source == "same run") == kept
    del before["checksum"], after["checksum"]
    assert after["extra"].pop("waterbirds_like")["h"]["acc1"] > 0
    del after["extra"]["waterbirds"]
    assert after == before


def test_exemplars_are_the_strongest_images(entry: dict[str, Any]) -> None:
    exemplars = entry["exemplars"]
    assert set(exemplars) == {"high_entropy", "pairs", "suppressed"}
    test = load(smoke("ncl").data, "test")
    for dimension in [*exemplars["high_entropy"], *exemplars["pairs"]]:
        classes = [
            f"{test.class_names[test.labels[i]]} on {test.background_names[test.backgrounds[i]]}"
            for i in dimension["images"]
        ]
        assert dimension["classes"] == classes
    assert all(len(set(test.labels[pair["images"]])) == 2 for pair in exemplars["pairs"])
    assert all(dimension["support"] >= 10 for dimension in exemplars["high_entropy"])
    values = [d["value"] for d in exemplars["high_entropy"]]
    assert values == sorted(values, reverse=True)


@pytest.fixture
def waterbirds(tmp_path: Path) -> Path:
    """Eighty images in the layout of waterbirds: color gives bird and background away."""
    root = tmp_path / "data" / "waterbirds-like"
    root.mkdir(parents=True)
    lines = ["img_id,img_filename,y,split,place"]
    rng = np.random.default_rng(0)
    for i in range(80):
        bird, place, split = i % 2, (i // 2) % 2, 0 if i < 48 else 2
        pixels = rng.integers(0, 60, (24, 24, 3), dtype=np.uint8)
        pixels[..., 2 if place else 1] += 150
        pixels[8:16, 8:16, 0] = 200 * bird
        Image.fromarray(pixels).save(root / f"{i}.png")
        lines.append(f"{i},{i}.png,{bird},{split},{place}")
    (root / "metadata.csv").write_text("\n".join(lines) + "\n")
    return root


def test_a_finished_run_gets_its_measures_later(
    tmp_path: Path, waterbirds: Path, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`record` and `evaluate` add the published probe and the background probe."""
    probe = {"acc1": 61.0, "acc5": 88.0}
    monkeypatch.setattr(measures, "run_published_probe", lambda *_, **__: probe)
    before, folder = recorded.read_bytes(), str(tmp_path / "models" / recorded.stem)
    words = ("--quiet", "--device", "cpu")
    record = ("record", folder, *words, "--results", recorded.parent)
    assert call(*record) == 0
    assert recorded.read_bytes() == before  # nothing to add
    assert call(*record, "--paper-probe", "--background", waterbirds) == 0
    entry = ledger.read_entry(recorded)
    assert entry["measures"]["probe"]["paper"] == probe
    background = entry["extra"]["waterbirds_like"]
    assert (background["size"], background["images"]) == (16, [48, 32])
    assert background["h"]["acc1"] > 90  # color alone tells the background
    assert set(background["gated"]) == {"acc1", "acc1_spread", "acc1_chance"}
    assert set(entry["added"]) == {"probe.paper", "extra.waterbirds_like"}
    assert call("evaluate", folder, *words, "--paper-probe", "--background", waterbirds) == 0
    result = Result.from_json((Path(folder) / "evaluation.json").read_text())
    assert (result.probe["paper"], result.background) == (probe, background)
    fresh = tmp_path / "fresh"  # the evaluation brings its probe into a new entry
    assert call("record", folder, *words, "--results", fresh) == 0
    assert ledger.read(fresh)[0]["measures"]["probe"]["paper"] == probe


def test_background_sets_are_found_under_the_data_folder(waterbirds: Path) -> None:
    here = Path()
    found = reproduce.Workspace(here, here, str(waterbirds.parent)).backgrounds(smoke=False)
    assert found == {"waterbirds_like": str(waterbirds)}
    assert reproduce.Workspace(here, here).backgrounds(smoke=False) == {}
