"""Before and after a run: what suits images and machine, what is said of it, whether features differ."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import bayesncl
from bayesncl import plan
from bayesncl.cost import cost
from bayesncl.model import build_model, load
from bayesncl.plan import describe, lighten, mean_cosine, plan_run, sizes, tell_difference
from bayesncl.progress import Display
from bayesncl.recipes import change, named, with_root
from bayesncl.run import Run
from tests.commands import draw_folder
from tests.conftest import TINY, tiny_images, tiny_recipe

CPU = torch.device("cpu")


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What a display says; no step is timed."""
    monkeypatch.setenv("BAYESNCL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(plan, "time_steps", lambda *_, **__: {"images_per_second": 10.0})
    said: list[str] = []
    monkeypatch.setattr(Display, "note", lambda self, text: said.append(text))
    return said


def test_without_a_gpu_own_images_get_a_recipe_that_ends_in_minutes(tmp_path: Path, notes: list[str]) -> None:
    photos = draw_folder(tmp_path / "photos")
    recipe, images = plan_run("folder", [], str(photos), CPU, Display())
    assert len(images) == 22  # of 24
    assert recipe.model.backbone == "small"
    assert recipe.run.epochs == 100
    assert images.pixels.shape[2:] == (recipe.data.size, recipe.data.size)
    assert notes[0].startswith("22 images, 24 x 20, 3 classes; small at 48 px, 100 epochs, batch 16; CPU, ")
    assert notes[0].endswith(": about 3 min")  # 100 epochs of one step of 16 images, 10 a second
    assert "without a GPU" in notes[1]
    assert f"bayesncl fit {photos}" in notes[-1]


def test_what_a_person_asks_for_stands(tmp_path: Path, notes: list[str]) -> None:
    photos = str(draw_folder(tmp_path / "photos"))
    recipe, _ = plan_run("folder-ncl", ["model.dim=9"], photos, CPU, Display(), epochs=3, size=24, backbone="resnet18")
    assert (recipe.run.epochs, recipe.views.size, recipe.data.size) == (3, 24, 28)
    assert (recipe.model.backbone, recipe.model.dim, recipe.gate.kind) == ("resnet18", 9, "none")
    assert not any("without a GPU" in note for note in notes)


def test_published_recipes_and_recipe_files_stay_what_they_are(tmp_path: Path, notes: list[str]) -> None:
    scenes, _ = plan_run("scenes", ["data.train_images=64"], None, CPU, Display())
    assert scenes == change(named("scenes"), ["data.train_images=64"])
    photos = str(draw_folder(tmp_path / "photos"))
    own = with_root(change(named("folder"), ["run.batch=4", "run.epochs=30", "data.size=16", "views.size=16"]), photos)
    (tmp_path / "own.json").write_text(own.to_json())
    assert plan_run(str(tmp_path / "own.json"), [], None, CPU, Display())[0] == own
    assert not any("without a GPU" in note for note in notes)


def test_more_images_fewer_epochs() -> None:
    epochs = [lighten(named("folder"), n).run.epochs for n in (100, 2_000, 10_000, 1_000_000)]
    assert epochs == [100, 50, 10, 2]


def test_sizes_and_broken_files_are_told(tmp_path: Path, notes: list[str]) -> None:
    photos = draw_folder(tmp_path / "photos", (), 4)
    (photos / "99.png").write_bytes(b"not a picture")
    recipe = with_root(change(named("folder"), ["data.holdout=0", "data.size=8"]), str(photos))
    with pytest.warns(UserWarning, match="1 broken"):
        images = plan.load_split(recipe, "train", Display(quiet=True))
    assert images.broken == 1
    assert describe(recipe, images, CPU).startswith("12 images, 24 x 20, no classes, 1 broken file left out; ")
    assert sizes(named("scenes"), tiny_images(size=16)) == "16 x 16"


def test_mean_cosine_is_that_of_all_pairs() -> None:
    z = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    z[4] = 0
    rows = [row.astype(float) for row in z if row.any()]
    slow = [a @ b / np.sqrt((a @ a) * (b @ b)) for i, a in enumerate(rows) for j, b in enumerate(rows) if i != j]
    assert mean_cosine(z) == pytest.approx(np.mean(slow))
    assert mean_cosine(np.ones((3, 2))) == pytest.approx(1)
    assert mean_cosine(np.eye(3)) == pytest.approx(0)
    assert mean_cosine(np.zeros((3, 2))) is None


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("eye", "images differ: mean cosine 0.00"),
        ("ones", "warning: features of different images hardly differ: mean cosine 1.00"),
        ("zeros", "warning: the features of nearly all images are zero"),
    ],
)
def test_a_run_says_whether_features_differ(
    rows: str, said: str, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = {"eye": torch.eye(70), "ones": torch.ones(70, 3), "zeros": torch.zeros(70, 3)}[rows]
    model = build_model(tiny_recipe())
    monkeypatch.setattr(model, "encode", lambda pixels, batch: fake[: len(pixels)])
    tell_difference(model, tiny_images(), Display())
    assert len(notes) == 1
    assert said in notes[0]


def test_train_from_python(tmp_path: Path, notes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """By name with a folder, as the command does; the same from a Recipe and pixels, said nothing of."""
    monkeypatch.chdir(tmp_path)
    photos = draw_folder(tmp_path / "photos")
    changes = [text for text in TINY if "epochs" not in text and "batch" not in text]
    options = {"epochs": 2, "batch": 8, "changes": changes, "device": "cpu"}
    model = bayesncl.train("folder", data=photos, out=tmp_path / "a", **options)
    assert notes[0].startswith("22 images")
    assert any("mean cosine" in note for note in notes)
    images, recipe = plan.load_split(model.recipe, "train", Display(quiet=True)), model.recipe
    assert Run(tmp_path / "a").recipe() == recipe
    notes.clear()
    again = bayesncl.train(recipe, torch.from_numpy(np.array(images.pixels)), device=CPU)
    assert notes == []
    assert (tmp_path / "runs" / recipe.name / "model.safetensors").is_file()
    for a, b in zip(model.state_dict().values(), again.state_dict().values()):
        assert torch.equal(a, b)
    third = bayesncl.train("folder", photos, tmp_path / "b", **options)
    for a, b in zip(third.state_dict().values(), load(tmp_path / "a").state_dict().values()):
        assert torch.equal(a, b)


def test_cost_of_own_images(run, tmp_path: Path) -> None:
    photos = draw_folder(tmp_path / "photos")
    small = [word for text in (*TINY, "run.batch=4") for word in ("--set", text)]
    answer = run("cost", "folder-ncl", "--data", photos, *small, "--json", "cost.json", "--device", "cpu")
    assert answer.status == 0, answer.err
    found = json.loads((tmp_path / "cost.json").read_text())
    assert (found["images"], found["epochs"], found["classes"]) == (22, 3, 3)
    assert found["seconds_per_epoch"] == pytest.approx(5 * found["seconds_per_step"])
    assert found["seconds_in_all"] == pytest.approx(3 * found["seconds_per_epoch"])


@pytest.mark.parametrize("name", ["cifar100-bayesncl", "imagenet100-ncl"])
def test_a_gpu_is_promised_the_time_of_the_operations_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    monkeypatch.setattr(plan, "words", lambda seconds: f"{seconds}")
    recipe = change(named(name), ["run.epochs=1", "model.hidden=2048"])
    seconds = float(plan.expected(recipe, 40 * recipe.run.batch, torch.device("cuda")).removeprefix("about "))
    pace = plan.PACE if recipe.views.size <= 64 else plan.PACE_LARGE
    counted = 40 * cost(recipe)["flops_per_step"] / pace  # by torch, forward and backward
    assert seconds - plan.START == pytest.approx(counted, rel=0.05)
