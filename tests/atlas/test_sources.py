"""Which images an atlas shows, and what it says about a run."""

from pathlib import Path

import numpy as np
from PIL import Image

from bayesncl.atlas import sources
from bayesncl.atlas.sources import KEPT, OTHER_IMAGES, TRAINED_ON, choose_images, keep_in_groups
from bayesncl.method.encoder import build_model
from bayesncl.progress import Display
from bayesncl.recipes import change, named
from bayesncl.training.run_folder import model_bytes
from tests.conftest import tiny_images, tiny_recipe

QUIET = Display(quiet=True)


def test_the_images_shown(tmp_path: Path, capsys, monkeypatch) -> None:
    """A test split of its own; a small folder or another folder as a whole."""
    monkeypatch.setenv("BAYESNCL_CACHE", str(tmp_path / "cache"))
    for folder, count in (("mine", 10), ("theirs", 4)):
        (tmp_path / folder).mkdir()
        for i in range(count):
            pixels = np.full((20, 20, 3), 20 * i, np.uint8)
            Image.fromarray(pixels).save(tmp_path / folder / f"{i}.png")
    settings = [f"data.root={tmp_path / 'mine'}", "data.size=16", "data.holdout=0.3"]
    recipe = change(named("folder"), settings)
    for root in (None, str(tmp_path / "theirs" / ".." / "mine")):
        images, remark = choose_images(recipe, root, Display())
        assert (len(images), remark) == (10, TRAINED_ON)
        assert "training images" in capsys.readouterr().err
    images, remark = choose_images(recipe, str(tmp_path / "theirs"), QUIET)
    assert (len(images), remark) == (4, OTHER_IMAGES)
    scenes = change(named("scenes"), ["data.train_images=40", "data.test_images=20"])
    images, remark = choose_images(scenes, None, QUIET)
    assert (len(images), remark) == (20, "")


def test_the_page_says_if_it_shows_training_images(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "model.safetensors").write_bytes(model_bytes(build_model(tiny_recipe())))
    images, sentences = tiny_images(70), []
    for remark in (TRAINED_ON, ""):
        monkeypatch.setattr(sources, "choose_images", lambda *_, r=remark: (images, r))
        options = sources.AtlasOptions(max_images=8)
        (run,), shown, _ = sources.show_runs([tmp_path], options, QUIET)
        sentences.append(run.sentence)
    assert sentences[0] == f"{sentences[1]} {TRAINED_ON}"
    rows = np.linspace(0, 69, 8).astype(int)  # spread evenly
    assert np.array_equal(shown.pixels, images.pixels[rows])
    assert np.array_equal(shown.labels, images.labels[rows])


def test_the_strongest_dimensions_are_those_of_each_group() -> None:
    z = np.random.default_rng(0).random((20, 30)).astype(np.float32)
    for groups in (np.zeros(30, int), np.repeat([0, 1], [8, 22])):
        shown = keep_in_groups(z, groups).toarray()
        for g in np.unique(groups):
            for row, kept in zip(z[:, groups == g], shown[:, groups == g]):
                assert set(np.flatnonzero(kept)) == set(np.argsort(-row)[:KEPT])
                assert (kept[kept > 0] == row[kept > 0]).all()
