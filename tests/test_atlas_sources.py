"""Which images an atlas shows, and the theory's table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bayesncl import explore
from bayesncl.atlas import AtlasRun
from bayesncl.explore import shown_split, thin_out
from bayesncl.measure.report import render_theory
from bayesncl.model import WEIGHTS, build_model, save_model
from bayesncl.progress import Display
from bayesncl.recipes import change, named
from tests.conftest import tiny_images, tiny_recipe


def test_a_small_folder_is_shown_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setenv("BAYESNCL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "photos").mkdir()
    for i in range(10):
        Image.fromarray(np.full((20, 20, 3), 20 * i, np.uint8)).save(tmp_path / "photos" / f"{i}.png")
    recipe = change(named("folder"), [f"data.root={tmp_path / 'photos'}", "data.size=16", "data.holdout=0.3"])
    images, trained_on = shown_split(recipe, Display())
    assert (len(images), trained_on) == (10, True)
    assert "only 3 images are held out: the training images are shown too" in capsys.readouterr().err


def test_a_true_test_split_is_shown_however_small() -> None:
    recipe = change(named("scenes"), ["data.train_images=40", "data.test_images=20"])
    images, trained_on = shown_split(recipe, Display(quiet=True))
    assert (len(images), trained_on) == (20, False)


def test_at_most_so_many_spread_evenly() -> None:
    images = tiny_images(70)
    few = thin_out(images, 8)
    rows = np.linspace(0, 69, 8).astype(int)
    assert np.array_equal(few.pixels, images.pixels[rows])
    assert np.array_equal(few.labels, images.labels[rows])
    assert thin_out(images, 70) is images


def test_theory_table_says_what_holds() -> None:
    rows = [
        {"statement": "a", "predicted": 1.5, "observed": None, "holds": None, "note": "why [b]not[/b]"},
        {"statement": "c", "predicted": 2.0, "observed": 3.0, "holds": False, "note": "so"},
    ]
    text = render_theory(rows)
    assert "cannot tell" in text
    assert "why [b]not[/b]" in text  # text, not markup
    assert ["c", "2.000", "3.000", "no"] in [line.split() for line in text.splitlines()]


@pytest.mark.parametrize(("method", "gated", "hard"), [("ncl", 0, 0), ("bayesncl-soft", 1, 0), ("bayesncl", 1, 1)])
def test_soft_gates_are_shown_as_gates_that_close_nothing(method: str, gated: int, hard: int, tmp_path: Path) -> None:
    run = explore.describe_run(build_model(tiny_recipe(method)), tmp_path, tiny_images(10))
    assert (run.gated is not None, run.open is not None) == (bool(gated), bool(hard))


def test_the_page_says_whether_the_model_was_trained_on_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[AtlasRun] = []
    monkeypatch.setattr(explore, "build_atlas", lambda out, runs, images, title: shown.extend(runs) or out)
    for trained_on in (True, False):
        monkeypatch.setattr(explore, "shown_split", lambda *_, answer=trained_on: (tiny_images(10), answer))
        save_model(build_model(tiny_recipe()), tmp_path / WEIGHTS)
        explore.atlas_of_runs([tmp_path], tmp_path / "atlas", None, 10, "cpu", Display(quiet=True))
    assert [run.sentence.endswith(explore.TRAINED_ON) for run in shown] == [True, False]
    assert shown[0].sentence.startswith(shown[1].sentence)
