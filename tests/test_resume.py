"""A run that goes on with another number of epochs: the schedule follows, a kill in between changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from bayesncl import checkpoint
from bayesncl.data.images import Images
from bayesncl.errors import InputError
from bayesncl.progress import Display
from bayesncl.recipes import recipe_from_json, revise
from bayesncl.run import Run
from bayesncl.train import train
from tests.commands import SETTINGS, draw_folder, refused
from tests.conftest import Stopped, stop_after, tiny_recipe

CPU = torch.device("cpu")


def stopped(folder: Path, images: Images, after: int = 2, epochs: int = 5, **options: bool) -> None:
    recipe = tiny_recipe("bayesncl", f"run.epochs={epochs}")
    with pytest.raises(Stopped):
        train(recipe, images, folder, device=CPU, after_epoch=stop_after(after), **options)


@pytest.mark.parametrize("epochs", [3, 8])
def test_longer_or_shorter_is_repeatable_also_after_a_kill(
    tmp_path: Path, images: Images, epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off in its second epoch of five; resumed with another number, once through and once killed again."""
    notes: list[str] = []
    monkeypatch.setattr(Display, "note", lambda self, text: notes.append(text))
    recipe = tiny_recipe("bayesncl", f"run.epochs={epochs}")
    for name in "ab":
        stopped(tmp_path / name, images)  # its checkpoint is that of the first epoch: 4 steps
    train(recipe, images, tmp_path / "a", device=CPU, revise=True)
    (note,) = [note for note in notes if "rates" in note]
    assert note.startswith(f"up to epoch 1 the rates were those of 5 epochs, from here they are those of {epochs}: ")
    stopped(tmp_path / "b", images, 2, epochs, revise=True)  # before it wrote a checkpoint of its own
    saved = checkpoint.newest(Run(tmp_path / "b"))
    assert saved is not None
    assert recipe_from_json(saved.recipe).run.epochs == 5
    assert Run(tmp_path / "b").recipe() == recipe
    train(Run(tmp_path / "b").recipe(), images, tmp_path / "b", device=CPU)
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()
    last = checkpoint.newest(Run(tmp_path / "b"))
    assert last is not None
    assert recipe_from_json(last.recipe) == recipe
    assert last.step == 4 * epochs
    steps = [json.loads(line)["step"] for line in (tmp_path / "b/metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(2, 4 * epochs + 1, 2))


def test_revised_before_its_first_checkpoint_it_is_a_run_of_that_length(tmp_path: Path, images: Images) -> None:
    stopped(tmp_path / "a", images, after=1)
    recipe = tiny_recipe("bayesncl", "run.epochs=2")
    train(recipe, images, tmp_path / "a", device=CPU, revise=True)
    train(recipe, images, tmp_path / "b", device=CPU)
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()


def test_what_cannot_be_revised(tmp_path: Path, images: Images) -> None:
    stopped(tmp_path, images, after=4)
    for changes, revised, message in (
        (["run.epochs=7"], False, "of another recipe"),
        (["run.epochs=7", "gate.prior=0.5"], True, "of another recipe"),
        (["run.epochs=2"], True, "has trained 3 epochs already: run.epochs=3 or more"),
    ):
        with pytest.raises(InputError, match=message):
            train(tiny_recipe("bayesncl", *changes), images, tmp_path, device=CPU, revise=revised)
    assert Run(tmp_path).recipe().run.epochs == 5
    with pytest.raises(InputError, match=r"--set run.batch=4: resume changes only run.epochs, "):
        revise(tiny_recipe(), ["run.epochs=4", "run.batch=4"])


def test_a_finished_run_trains_on(run, tmp_path: Path) -> None:
    assert run("train", "scenes", *SETTINGS, "--out", "a", "--quiet").status == 0
    first = (tmp_path / "a/model.safetensors").read_bytes()
    (tmp_path / "a/evaluation.json").write_text("{}")
    refused(run("resume", "a", "--set", "optimiser.lr=3"), "resume changes only run.epochs")
    answer = run("resume", "a", "--set", "run.epochs=2")
    assert answer.status == 0
    assert "up to epoch 1 the rates were those of 1 epoch, from here they are those of 2" in answer.err
    assert (tmp_path / "a/model-1-epochs.safetensors").read_bytes() == first
    assert not (tmp_path / "a/evaluation.json").exists()
    assert Run(tmp_path / "a").finished()
    assert Run(tmp_path / "a").recipe().run.epochs == 2
    assert run("resume", "a").err == "a is finished\n"


def test_features_of_an_unfinished_run(run, tmp_path: Path) -> None:
    assert run("train", "scenes", *SETTINGS, "--out", "a", "--quiet").status == 0
    photos = draw_folder(tmp_path / "photos")
    assert run("embed", "a", photos, "-o", "whole.npz", "--quiet").status == 0
    (tmp_path / "a/model.safetensors").unlink()
    answer = run("embed", "a", photos, "-o", "part.npz")
    assert answer.status == 0
    assert "Not finished: this is its checkpoint after 6 steps." in answer.err
    assert np.array_equal(np.load("part.npz")["z"], np.load("whole.npz")["z"])
