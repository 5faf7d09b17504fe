"""Which images an atlas shows, and what it says about a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bayesncl.atlas import AtlasRun, sources
from bayesncl.atlas.sources import KEPT, keep_in_groups, other_images, shown_split, thin_out
from bayesncl.method.encoder import build_model
from bayesncl.progress import Display
from bayesncl.recipes import change, named
from bayesncl.training.run_folder import RunFolder
from bayesncl.training.weights import model_bytes
from tests.conftest import tiny_images, tiny_recipe


def test_a_small_folder_is_shown_whole(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("BAYESNCL_CACHE", str(tmp_path / "cache"))
    photos = tmp_path / "photos"
    photos.mkdir()
    for i in range(10):
        Image.fromarray(np.full((20, 20, 3), 20 * i, np.uint8)).save(photos / f"{i}.png")
    recipe = change(named("folder"), [f"data.root={photos}", "data.size=16", "data.holdout=0.3"])
    images, trained_on = shown_split(recipe, Display())
    assert (len(images), trained_on) == (10, True)
    assert "training images" in capsys.readouterr().err


def test_a_real_test_split_is_shown_even_if_it_is_small() -> None:
    recipe = change(named("scenes"), ["data.train_images=40", "data.test_images=20"])
    images, trained_on = shown_split(recipe, Display(quiet=True))
    assert (len(images), trained_on) == (20, False)


def test_images_are_thinned_out_evenly() -> None:
    images = tiny_images(70)
    few = thin_out(images, 8)
    rows = np.linspace(0, 69, 8).astype(int)
    assert np.array_equal(few.pixels, images.pixels[rows])
    assert np.array_equal(few.labels, images.labels[rows])
    assert thin_out(images, 70) is images


def test_another_folder_is_not_the_training_images(tmp_path: Path) -> None:
    recipe = change(named("folder"), [f"data.root={tmp_path / 'mine'}"])
    assert other_images(recipe, str(tmp_path / "theirs"))
    assert not other_images(recipe, str(tmp_path / "x" / ".." / "mine"))
    assert not other_images(recipe, None)
    assert not other_images(named("cifar10"), str(tmp_path))  # has a test split of its own


@pytest.mark.parametrize("damaged", ["[3]", '{"verdict": {"lines": [3]}}', '{"verdict": "Good."}'])
def test_a_run_is_shown_with_the_verdict_of_its_evaluation(damaged: str, tmp_path: Path) -> None:
    model, images = build_model(tiny_recipe()), tiny_images(10)
    for text, expected in (
        ('{"verdict": {"lines": [{"text": "Good.", "measured_by": "eye"}]}}', (("Good.", "eye"),)),
        (damaged, ()),
    ):
        RunFolder(tmp_path).evaluation_file.write_text(text)
        run = sources.describe_run(model, tmp_path, images, Display(quiet=True))
        assert run.verdict == expected


@pytest.mark.parametrize(
    ("method", "gated", "hard"), [("ncl", 0, 0), ("bayesncl-soft", 1, 0), ("bayesncl", 1, 1)]
)
def test_soft_gates_close_nothing(method: str, gated: int, hard: int, tmp_path: Path) -> None:
    model = build_model(tiny_recipe(method))
    run = sources.describe_run(model, tmp_path, tiny_images(10), Display(quiet=True))
    assert (run.gated is not None, run.open is not None) == (bool(gated), bool(hard))


def test_the_page_says_if_it_shows_training_images(tmp_path: Path, monkeypatch) -> None:
    shown: list[AtlasRun] = []
    monkeypatch.setattr(sources, "build_atlas", lambda out, runs, *_: shown.extend(runs) or out)
    (tmp_path / "model.safetensors").write_bytes(model_bytes(build_model(tiny_recipe())))
    for trained_on in (True, False):
        monkeypatch.setattr(sources, "shown_split", lambda *_, x=trained_on: (tiny_images(10), x))
        out = tmp_path / "atlas"
        sources.atlas_of_runs([tmp_path], out, None, 10, "cpu", Display(quiet=True))
    assert shown[0].sentence == f"{shown[1].sentence} {sources.TRAINED_ON}"


def test_the_strongest_dimensions_are_those_of_each_group() -> None:
    z = np.random.default_rng(0).random((20, 30)).astype(np.float32)
    groups = np.repeat([0, 1], [8, 22])
    shown = keep_in_groups(z, groups)
    for g in (0, 1):
        part, own = z[:, groups == g], shown[:, groups == g]
        for row, kept in zip(part, own):
            assert set(np.flatnonzero(kept)) == set(np.argsort(-row)[:KEPT])
            assert (kept[kept > 0] == row[kept > 0]).all()
    assert (keep_in_groups(z, None).toarray() > 0).sum(1).tolist() == [KEPT] * 20
