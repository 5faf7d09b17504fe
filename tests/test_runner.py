"""Doing the runs: kill-safe, recorded one by one, under a time limit; and what is taken from a model besides."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bayesncl.data import load
from bayesncl.measure.result import Result
from bayesncl.model import build_model
from bayesncl.progress import Display
from bayesncl.recipes import Recipe, change, named
from bayesncl.report.tables import open_console
from bayesncl.reproduce import command, ledger, runner
from bayesncl.reproduce.experiments import EXPERIMENTS, runs
from bayesncl.run import Run
from bayesncl.train import Interrupted

from .test_reproduce import at_full_size, smoke


@pytest.fixture(scope="module")
def entry(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A real entry."""
    folder = tmp_path_factory.mktemp("entry")
    (path,) = runner.run_list([smoke("bayesncl")], None, folder, folder / "models")
    return ledger.read_entry(path)


class Killer(Display):
    """Asks the run to stop after its first step, once."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.killed = False

    def update(self, line: dict[str, Any]) -> None:
        if not self.killed:
            self.killed = True
            os.kill(os.getpid(), signal.SIGTERM)


def without_times(path: Path) -> dict[str, Any]:
    tree = ledger.read_entry(path)
    tree["measures"].pop("seconds")
    return {key: tree[key] for key in ("measures", "dynamics", "exemplars", "recipe")}


def test_a_killed_run_goes_on_to_the_same_entry(tmp_path: Path) -> None:
    recipe = smoke("bayesncl", "run.dynamics_every=1")
    (whole,) = runner.run_list([recipe], None, tmp_path / "whole", tmp_path / "a")
    with pytest.raises(Interrupted):
        runner.run_list([recipe], None, tmp_path / "halves", tmp_path / "b", display=Killer())
    assert not (tmp_path / "halves").exists()
    (halves,) = runner.run_list([recipe], None, tmp_path / "halves", tmp_path / "b")
    assert without_times(halves) == without_times(whole)


def test_a_trained_run_is_only_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = smoke("ncl")
    with monkeypatch.context() as patch:
        patch.setattr(runner, "evaluate", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            runner.run_list([recipe], None, tmp_path, tmp_path / "models")
    assert ledger.read(tmp_path) == []
    monkeypatch.setattr(runner, "train", lambda *a, **k: pytest.fail("trained again"))
    with Run(tmp_path / "models" / Path(ledger.file_name(recipe)).stem).lock():  # another process is at it
        assert runner.run_list([recipe], None, tmp_path, tmp_path / "models") == []
    (path,) = runner.run_list([recipe], None, tmp_path, tmp_path / "models")
    assert Run(tmp_path / "models" / path.stem).finished()


def test_what_another_process_measured_meanwhile_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, train = smoke("ncl"), runner.train

    def overtaken(*arguments: Any, **options: Any) -> Any:
        model = train(*arguments, **options)
        with monkeypatch.context() as patch:  # while we load and train, another one does the same run
            patch.setattr(runner, "train", train)
            runner.run_list([recipe], None, tmp_path, tmp_path / "models")
        return model

    monkeypatch.setattr(runner, "train", overtaken)
    assert runner.run_list([recipe], None, tmp_path, tmp_path / "models", display=Display()) == []
    assert "another process has measured it meanwhile" in capsys.readouterr().err
    assert len(ledger.read(tmp_path)) == 1


def test_a_list_is_recorded_run_by_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there: list[int] = []  # entries at the start of each run

    def pretend(recipe: Recipe, *args: Any, **kwargs: Any) -> Path:
        there.append(len(ledger.read(tmp_path / "results")))
        (tmp_path / "run").mkdir(exist_ok=True)
        return ledger.record(tmp_path / "results", tmp_path / "run", Result(paper={}), recipe)

    monkeypatch.setattr(runner, "run_experiment_run", pretend)
    todo = [smoke("ncl", f"run.seed={seed}") for seed in range(3)]
    first = runner.run_list(todo[:2], None, tmp_path / "results", tmp_path / "models")
    second = runner.run_list(todo, None, tmp_path / "results", tmp_path / "models")
    assert [path.name for path in first + second] == [ledger.file_name(recipe) for recipe in todo]
    assert there == [0, 1, 2]


def test_a_run_without_images_is_noted_and_the_list_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    todo = [change(named("cifar100-ncl"), ["run.seed=1"]), named("cifar100-bayesncl")]
    made = runner.run_list([*todo, smoke("ncl")], str(tmp_path), tmp_path / "r", tmp_path / "m", display=Display())
    assert [path.name.split("-s")[0] for path in made] == ["scenes-ncl"]
    assert capsys.readouterr().err.count("not run: cifar100-") == 2


def test_time_is_estimated_from_the_ledger_or_as_stated(entry: dict[str, Any]) -> None:
    assert runner.estimate(named("cifar100-ncl")) == pytest.approx(300.0)
    assert runner.estimate(change(named("cifar100-ncl"), ["run.epochs=100"])) == pytest.approx(150.0)
    assert runner.estimate(runs(EXPERIMENTS["resnet50"])[0]) > runner.estimate(named("imagenet100-ncl"))
    known = at_full_size(entry, named("cifar100-ncl"))
    known |= {"epochs": 200, "seconds": {"train": 380.0, "per_epoch": 1.9, "evaluate": 20.0}}
    shared = known | {"seconds": {"train": 900.0, "per_epoch": 4.5, "evaluate": 20.0}}
    assert runner.estimate(named("cifar100-cl"), [shared, known, entry]) == pytest.approx(400.0)


def test_exemplars_are_the_strongest_images(entry: dict[str, Any]) -> None:
    chosen = entry["exemplars"]
    assert set(chosen) == {"high_entropy", "suppressed"}
    test = load(smoke("ncl").data, "test")
    for dimension in chosen["high_entropy"]:
        assert dimension["classes"] == [test.class_names[test.labels[i]] for i in dimension["images"]]
        assert dimension["support"] >= 10
    values = [d["value"] for d in chosen["high_entropy"]]
    assert values == sorted(values, reverse=True)


@pytest.fixture
def waterbirds(tmp_path: Path) -> Path:
    """Eighty images in the layout of waterbirds: bird and background are told by colour."""
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


def test_background_probe_on_a_waterbirds_layout(waterbirds: Path) -> None:
    model = build_model(smoke("bayesncl")).eval()
    found = runner.background_like(model, str(waterbirds))
    assert found["size"] == 16
    assert found["images"] == [48, 32]
    assert found["h"]["acc1"] > 90  # colour alone tells the background
    assert set(found["gated"]) == {"acc1", "acc1_spread", "acc1_chance"}
    library = runner.Library(str(waterbirds.parent), Display(quiet=True))
    assert library.backgrounds() == {"waterbirds_like": str(waterbirds)}
    assert runner.Library(None, Display(quiet=True)).backgrounds() == {}


@pytest.mark.parametrize("width", [60, 100])
def test_a_narrow_terminal_keeps_the_means_and_loses_the_spreads(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [["NCL", "ours", *["10.25 ± 0.31"] * 5]]
    monkeypatch.setattr(command, "text", lambda section: (["method", "", "a", "b", "c", "d", "e"], rows))
    monkeypatch.setattr(command, "open_console", lambda: open_console(width))
    command.show(EXPERIMENTS["prior"], {}, "smoke")
    shown = capsys.readouterr().out
    assert shown.count("10.25") == 5 * shown.count("NCL  ")
    assert ("± 0.31" in shown) == (width == 100)
    assert "…" not in shown
