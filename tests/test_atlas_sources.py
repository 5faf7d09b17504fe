"""Which images an atlas shows, and the theory's table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bayesncl import checkpoint
from bayesncl.atlas import AtlasRun, sources
from bayesncl.atlas.sources import open_model, other_images, shown_split, thin_out
from bayesncl.errors import InputError
from bayesncl.lars import LARS
from bayesncl.model import build_model, model_bytes
from bayesncl.progress import Display
from bayesncl.recipes import change, named
from bayesncl.report.tables import render_theory
from bayesncl.run import Run
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


@pytest.mark.parametrize("damage", [None, [], {}, {"lines": 3}, {"lines": [3]}, "Good."])
def test_lines_of_a_verdict_whatever_is_in_the_file(damage: object) -> None:
    assert sources.read_verdict({"lines": [3, {"text": "Good.", "measured_by": "eye"}, {"text": "Few."}]}) == (
        ("Good.", "eye"), ("Few.", ""),
    )  # fmt: skip
    assert sources.read_verdict(damage) == ()


def test_a_run_is_shown_with_the_verdict_of_its_evaluation(tmp_path: Path) -> None:
    Run(tmp_path).evaluation_file.write_text('{"verdict": {"lines": [{"text": "Good.", "measured_by": "eye"}]}}')
    run = sources.describe_run(build_model(tiny_recipe()), tmp_path, tiny_images(10), Display(quiet=True))
    assert run.verdict == (("Good.", "eye"),)


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
    run = sources.describe_run(build_model(tiny_recipe(method)), tmp_path, tiny_images(10), Display(quiet=True))
    assert (run.gated is not None, run.open is not None) == (bool(gated), bool(hard))


def test_the_page_says_whether_the_model_was_trained_on_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[AtlasRun] = []
    monkeypatch.setattr(sources, "build_atlas", lambda out, runs, images, title: shown.extend(runs) or out)
    for trained_on in (True, False):
        monkeypatch.setattr(sources, "shown_split", lambda *_, answer=trained_on: (tiny_images(10), answer))
        (tmp_path / "model.safetensors").write_bytes(model_bytes(build_model(tiny_recipe())))
        sources.atlas_of_runs([tmp_path], tmp_path / "atlas", None, 10, "cpu", Display(quiet=True))
    assert [run.sentence.endswith(sources.TRAINED_ON) for run in shown] == [True, False]
    assert shown[0].sentence.startswith(shown[1].sentence)


def test_an_unfinished_run_is_shown_from_its_newest_checkpoint(tmp_path: Path) -> None:
    model = build_model(tiny_recipe())
    with pytest.raises(InputError, match="no trained model"):
        open_model(tmp_path, "cpu")
    optimiser = LARS(model.parameters(), 0.1)
    checkpoint.write(Run(tmp_path), checkpoint.snapshot(model, optimiser, 12))
    found, remark = open_model(tmp_path, "cpu")
    assert remark == "Not finished: this is its checkpoint after 12 steps."
    assert all((a == b).all() for a, b in zip(found.state_dict().values(), model.state_dict().values()))
    (checkpoint.listed(Run(tmp_path))[0]).write_bytes(b"damaged")
    with pytest.raises(InputError, match="none of its checkpoints can be read"):
        open_model(tmp_path, "cpu")
    (tmp_path / "model.safetensors").write_bytes(model_bytes(model))
    assert open_model(tmp_path, "cpu")[1] == ""


def test_another_folder_is_never_called_the_training_images(tmp_path: Path) -> None:
    recipe = change(named("folder"), [f"data.root={tmp_path / 'mine'}"])
    assert other_images(recipe, str(tmp_path / "theirs"))
    assert not other_images(recipe, str(tmp_path / "x" / ".." / "mine"))
    assert not other_images(recipe, None)
    assert not other_images(named("cifar10"), str(tmp_path))  # where the set lies, not another set
