"""Named recipes adapted to images and machine; the lines that say so; `bayesncl.train` by name."""

from pathlib import Path

import numpy as np
import pytest
import torch

import bayesncl
from bayesncl.errors import InputError
from bayesncl.method.encoder import build_model
from bayesncl.progress import Display
from bayesncl.recipes import change, named, with_root
from bayesncl.training.prepare import (
    check_images,
    clamp_batch,
    load_split,
    prepare_run,
    report_similarity,
)  # fmt: skip
from bayesncl.training.run_folder import RunFolder
from tests.commands import draw_folder
from tests.conftest import TINY, tiny_images, tiny_recipe

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BAYESNCL_CACHE", str(tmp_path / "cache"))


def test_own_images_get_the_preset_on_a_cpu(tmp_path: Path, notes: list[str]) -> None:
    photos = str(draw_folder(tmp_path / "photos"))
    recipe, images = prepare_run("folder", [], photos, CPU, Display())
    assert len(images) == 22  # of 24
    assert (recipe.model.backbone, recipe.run.epochs, recipe.run.batch) == ("small", 100, 16)
    assert images.pixels.shape[2:] == (recipe.data.size, recipe.data.size)
    assert notes[0].startswith("22 images, 24 x 20, 3 classes; small at 48 px, 100 epochs, batch 16")
    assert "CPU preset" in notes[1] and "lowered" in notes[2]
    assert f"bayesncl fit {photos}" in notes[-1]
    options = {"epochs": 3, "size": 24, "backbone": "resnet18"}
    recipe, _ = prepare_run("folder-ncl", ["model.dim=9"], photos, CPU, Display(), **options)
    assert (recipe.run.epochs, recipe.views.size, recipe.data.size) == (3, 24, 28)
    assert (recipe.model.backbone, recipe.model.dim, recipe.gate.kind) == ("resnet18", 9, "none")


def test_published_recipes_and_recipe_files_are_not_adapted(
    tmp_path: Path, notes: list[str]
) -> None:
    scenes, _ = prepare_run("scenes", ["data.train_images=64"], None, CPU, Display())
    assert scenes == change(named("scenes"), ["data.train_images=64"])
    photos = str(draw_folder(tmp_path / "photos"))
    changes = ["run.batch=4", "run.epochs=30", "data.size=16", "views.size=16"]
    own = with_root(change(named("folder"), changes), photos)
    (tmp_path / "own.json").write_text(own.to_json())
    assert prepare_run(str(tmp_path / "own.json"), [], None, CPU, Display())[0] == own


def test_batches_fit_the_images() -> None:
    with pytest.raises(InputError, match=r"run\.batch=8"):
        check_images(tiny_recipe(), tiny_images(9))
    assert clamp_batch(tiny_recipe(), 9).run.batch == 8
    assert clamp_batch(tiny_recipe(), 16) == tiny_recipe()
    large = tiny_recipe("bayesncl", "run.batch=256")
    assert clamp_batch(large, 133).run.batch == 32  # four steps per epoch


def test_a_run_reports_whether_codes_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model(tiny_recipe())
    for codes, words in (
        (torch.eye(70), "differ (mean cosine 0.00)"), (torch.ones(70, 3), "hardly differ"),
        (torch.zeros(70, 3), "warning: the codes of nearly all images are zero"),
    ):  # fmt: skip
        monkeypatch.setattr(model, "encode", lambda pixels, batch, z=codes: z[: len(pixels)])
        assert words in report_similarity(model, tiny_images())


def test_train_by_name_and_by_recipe_agree(
    tmp_path: Path, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    photos = draw_folder(tmp_path / "photos")
    changes = [text for text in TINY if "epochs" not in text and "batch" not in text]
    options = {"epochs": 2, "batch": 8, "changes": changes, "device": "cpu"}
    model = bayesncl.train("folder", data=photos, out=tmp_path / "a", **options)
    recipe = model.recipe
    assert notes[0].startswith("22 images") and "mean cosine" in notes[-2]
    assert "bayesncl evaluate" in notes[-1]
    assert RunFolder(tmp_path / "a").recipe() == recipe
    images = load_split(recipe, "train", Display(quiet=True))
    bayesncl.train(recipe, torch.from_numpy(np.array(images.pixels)), device=CPU)
    bayesncl.train("folder", photos, tmp_path / "b", **options)
    expected = (tmp_path / "a/model.safetensors").read_bytes()
    for folder in (tmp_path / "runs" / recipe.name, tmp_path / "b"):
        assert (folder / "model.safetensors").read_bytes() == expected
