"""Interrupted runs: signals, full disks, damaged checkpoints, revised recipes: the same bytes."""

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from bayesncl import distributed, io, train
from bayesncl.data.images import Images
from bayesncl.errors import InputError
from bayesncl.method.encoder import build_model
from bayesncl.method.lars import LARS
from bayesncl.training import checkpoint, loop
from bayesncl.training.run_folder import RunFolder
from tests.commands import SETTINGS, draw_folder, refused
from tests.conftest import Stopped, stop_after, tiny_recipe
from tests.training.test_loop import lines, weights

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_a_checkpoint(tmp_path: Path, images: Images, sign: int) -> None:
    """Also in the middle of an epoch, and at once."""

    def interrupt(*_: object) -> None:
        os.kill(os.getpid(), sign)

    recipe = tiny_recipe("bayesncl", "run.checkpoint_every=3")
    with pytest.raises(loop.Interrupted, match="bayesncl resume"):
        train(recipe, images, tmp_path, device="cpu", after_epoch=interrupt)
    assert [path.stem for path in checkpoint.listed(RunFolder(tmp_path))] == ["step-00000005"]


def test_a_run_in_training_is_refused_and_stops_at_a_signal(run, tmp_path: Path) -> None:
    """train, evaluate and resume on a run that another process is training."""
    folder = RunFolder(tmp_path / "run")
    words = ["train", "scenes", "--out", folder, *SETTINGS, "--set", "run.epochs=2000"]
    command = [sys.executable, "-m", "bayesncl", *map(str, words)]
    child = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while not checkpoint.listed(folder):
        time.sleep(0.005)
    refused(run(*words, "--quiet"), "already has a run")
    refused(run("evaluate", folder), "not finished")
    refused(run("resume", folder), "in use")
    child.send_signal(signal.SIGINT)
    _, stderr = child.communicate(timeout=60)
    assert child.returncode == 130 and "bayesncl resume" in stderr
    assert not folder.lock_file.exists() and not folder.weights.exists()


def test_a_full_disk_loses_nothing(
    tmp_path: Path, images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full at each write in turn; with space again the run ends in the same bytes."""
    recipe = tiny_recipe("bayesncl", "run.epochs=1")
    train(recipe, images, tmp_path / "whole", device="cpu")
    fsync, calls = os.fsync, 0

    def full(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls == fatal:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(handle)

    monkeypatch.setattr(io.os, "fsync", full)
    for fatal in range(1, 6):
        out, calls = tmp_path / str(fatal), 0
        with pytest.raises(OSError, match="No space left") as caught:
            train(recipe, images, out, device="cpu")
        assert str(out) in str(caught.value.filename)
        assert not list(out.rglob("*.partial"))
        train(recipe, images, out, device="cpu")
        assert weights(out) == weights(tmp_path / "whole")


def test_a_run_without_a_checkpoint_starts_over_and_says_so(
    tmp_path: Path, images: Images, notes: list[str]
) -> None:
    recipe = tiny_recipe("bayesncl", "run.checkpoint_every=3")
    with pytest.raises(Stopped):
        train(recipe, images, tmp_path, device="cpu", after_epoch=stop_after(1))
    train(recipe, images, tmp_path, device="cpu")
    assert sum("no checkpoint yet" in note for note in notes) == 1


def stopped(folder: Path, images: Images, after: int = 2, epochs: int = 5, **more: bool) -> None:
    recipe = tiny_recipe("bayesncl", f"run.epochs={epochs}")
    with pytest.raises(Stopped):
        train(recipe, images, folder, device="cpu", after_epoch=stop_after(after), **more)


@pytest.mark.parametrize("epochs", [3, 7])
def test_a_revised_length_is_repeatable_also_after_a_kill(
    tmp_path: Path, images: Images, epochs: int, notes: list[str]
) -> None:
    """Cut off in epoch 2 of 5 and resumed with another number: once through, once cut off again."""
    recipe = tiny_recipe("bayesncl", f"run.epochs={epochs}")
    for name in "ab":
        stopped(tmp_path / name, images)  # leaves the checkpoint of the first epoch: 4 steps
    train(recipe, images, tmp_path / "a", device="cpu", revise=True)
    assert any("learning rates" in note for note in notes)
    stopped(tmp_path / "b", images, 2, epochs, revise=True)  # before its own first checkpoint
    run = RunFolder(tmp_path / "b")
    saved, _ = checkpoint.newest(run)
    assert saved is not None and saved.recipe.run.epochs == 5
    assert run.recipe() == recipe
    train(run.recipe(), images, run.folder, device="cpu")
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
    last, _ = checkpoint.newest(run)
    assert last is not None and last.recipe == recipe
    assert last.step == 4 * epochs
    assert [line["step"] for line in lines(tmp_path / "b")] == list(range(2, 4 * epochs + 1, 2))


def test_what_cannot_be_revised(tmp_path: Path, images: Images) -> None:
    stopped(tmp_path, images, after=4)
    for changes, revised, message in (
        (["run.epochs=7"], False, "another recipe"),
        (["run.epochs=7", "gate.prior=0.5"], True, "another recipe"),
        (["run.epochs=2"], True, "epochs=3"),
    ):
        recipe = tiny_recipe("bayesncl", *changes)
        with pytest.raises(InputError, match=message):
            train(recipe, images, tmp_path, device="cpu", revise=revised)
    assert RunFolder(tmp_path).recipe().run.epochs == 5


def test_a_finished_run_trains_longer(run, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "a")
    first = (tmp_path / "a/model.safetensors").read_bytes()
    (tmp_path / "a/evaluation.json").write_text("{}")
    refused(run("resume", "a", "--set", "optimizer.lr=3"), "run.epochs")
    answer = run("resume", "a", "--set", "run.epochs=2")
    assert answer.status == 0 and "learning rates follow 1 epoch" in answer.err
    assert (tmp_path / "a/model-1-epochs.safetensors").read_bytes() == first
    assert not (tmp_path / "a/evaluation.json").exists()
    assert RunFolder("a").finished() and RunFolder("a").recipe().run.epochs == 2
    assert "finished" in run("resume", "a").err


def test_features_of_an_unfinished_run(run, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "a")
    photos = draw_folder(tmp_path / "photos")
    assert run("embed", "a", photos, "-o", "whole.npz", "--quiet").status == 0
    (tmp_path / "a/model.safetensors").unlink()
    answer = run("embed", "a", photos, "-o", "part.npz")
    assert answer.status == 0 and "6 steps" in answer.err
    assert np.array_equal(np.load("part.npz")["z"], np.load("whole.npz")["z"])


def test_any_damage_is_noticed_and_the_checkpoint_before_used(tmp_path: Path) -> None:
    run, rng, model = RunFolder(tmp_path), random.Random(0), build_model(tiny_recipe())
    optimizer = LARS(model.parameters(), lr=0.1)
    for step in (1, 2):
        checkpoint.write(run, checkpoint.snapshot(model, optimizer, step, ("70 images", "hash")))
    path = checkpoint.listed(run)[-1]
    whole = path.read_bytes()
    for i in range(30):
        spoilt = bytearray(whole)
        if i % 2:
            del spoilt[rng.randrange(len(spoilt)) :]
        else:
            spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
        path.write_bytes(spoilt)
        found, damaged = checkpoint.newest(run)
        assert found is not None and found.step == 1 and list(damaged) == [path]


def test_damaged_checkpoints_never_push_out_good_ones(tmp_path: Path, images: Images) -> None:
    """All are damaged, the run starts over and is killed early: its new checkpoint is used."""
    run = RunFolder(tmp_path)
    train(tiny_recipe(), images, tmp_path, device="cpu")
    expected = run.weights.read_bytes()
    run.weights.unlink()
    for path in checkpoint.listed(run):
        path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(Stopped):
        train(tiny_recipe(), images, tmp_path, device="cpu", after_epoch=stop_after(2))
    assert [path.stem for path in checkpoint.listed(run)] == ["step-00000004"]
    names = sorted(path.name for path in run.checkpoints.glob("*.damaged"))
    assert names == ["step-00000008.ckpt.damaged", "step-00000012.ckpt.damaged"]
    train(tiny_recipe(), images, tmp_path, device="cpu")
    assert run.weights.read_bytes() == expected


def test_processes_that_find_different_checkpoints_stop(
    tmp_path: Path, images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "gather_arrays", lambda _: torch.tensor([4, 0]))
    with pytest.raises(InputError, match="different checkpoints"):
        train(tiny_recipe(), images, tmp_path, device="cpu")
