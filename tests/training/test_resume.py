"""Interrupted runs: kills, signals, full disks and revised recipes end in the same bytes."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bayesncl import io, train
from bayesncl.data.images import Images
from bayesncl.errors import InputError
from bayesncl.recipes import revise
from bayesncl.training import checkpoint
from bayesncl.training.run_folder import RunFolder
from tests.commands import SETTINGS, draw_folder, refused
from tests.conftest import TINY, Stopped, stop_after, tiny_recipe
from tests.training.test_loop import FILES, lines, weights

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "BAYESNCL_REVISION": "tests"}


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "bayesncl", *map(str, words)]


def settings(*changes: str) -> list[str]:
    return [word for text in (*TINY, "data.train_images=64", *changes) for word in ("--set", text)]


def test_a_killed_process_continues_to_the_same_bytes(tmp_path: Path) -> None:
    """SIGKILL at random moments, twice, then resume to the end."""
    first = command("train", "scenes", "--quiet", *settings("run.epochs=20"))
    subprocess.run([*first, "--out", tmp_path / "a"], cwd=ROOT, env=ENVIRONMENT, check=True)
    resume = command("resume", tmp_path / "b", "--quiet")
    rng = random.Random(0)
    for words in ([*first, "--out", str(tmp_path / "b")], resume):
        child = subprocess.Popen(words, cwd=ROOT, env=ENVIRONMENT)
        while not checkpoint.listed(RunFolder(tmp_path / "b")) and child.poll() is None:
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.4))
        child.kill()
        child.wait()
    subprocess.run(resume, cwd=ROOT, env=ENVIRONMENT, check=True)
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
    assert [line["step"] for line in lines(tmp_path / "b")] == list(range(2, 81, 2))
    assert {path.name for path in (tmp_path / "b").iterdir()} == FILES


def test_a_second_process_is_refused_while_a_run_trains(run, tmp_path: Path) -> None:
    """train, evaluate and resume on a run that another process is training."""
    folder = RunFolder(tmp_path / "run")
    words = ["train", "scenes", "--out", folder, *settings("run.epochs=20"), "--quiet"]
    child = subprocess.Popen(command(*words), cwd=ROOT, env=ENVIRONMENT)
    while not checkpoint.listed(folder):
        time.sleep(0.005)
    child.send_signal(signal.SIGSTOP)  # so that it is not finished before the others look
    refused(run(*words), "already has a run")
    refused(run("evaluate", folder), "not finished")
    refused(run("resume", folder), "in use")
    child.send_signal(signal.SIGCONT)
    assert child.wait() == 0 and folder.finished()


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_exits_with_130(tmp_path: Path, sign: int) -> None:
    run = RunFolder(tmp_path / "run")
    changes = settings("run.epochs=2000", "run.checkpoint_every=2000")
    words = command("train", "scenes", "--out", run, *changes)
    child = subprocess.Popen(words, cwd=ROOT, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    while not run.metrics_file.exists() or not run.metrics_file.read_text():
        time.sleep(0.01)
    child.send_signal(sign)
    _, stderr = child.communicate(timeout=60)
    assert child.returncode == 130 and "bayesncl resume" in stderr
    assert len(checkpoint.listed(run)) == 1
    assert not run.lock_file.exists() and not run.weights.exists()


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


def stopped(folder: Path, images: Images, after: int = 2, epochs: int = 5, **more: bool) -> None:
    recipe = tiny_recipe("bayesncl", f"run.epochs={epochs}")
    with pytest.raises(Stopped):
        train(recipe, images, folder, device="cpu", after_epoch=stop_after(after), **more)


@pytest.mark.parametrize("epochs", [3, 8])
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
    with pytest.raises(InputError, match="batch"):
        revise(tiny_recipe(), ["run.epochs=4", "run.batch=4"])


def test_a_finished_run_trains_longer(run, tmp_path: Path) -> None:
    assert run("train", "scenes", *SETTINGS, "--out", "a", "--quiet").status == 0
    first = (tmp_path / "a/model.safetensors").read_bytes()
    (tmp_path / "a/evaluation.json").write_text("{}")
    refused(run("resume", "a", "--set", "optimizer.lr=3"), "run.epochs")
    answer = run("resume", "a", "--set", "run.epochs=2")
    assert answer.status == 0 and "learning rates follow 1 epoch" in answer.err
    assert (tmp_path / "a/model-1-epochs.safetensors").read_bytes() == first
    assert not (tmp_path / "a/evaluation.json").exists()
    assert RunFolder("a").finished() and RunFolder("a").recipe().run.epochs == 2
    assert "finished" in run("resume", "a").err


def test_features_of_an_unfinished_run(run, tmp_path: Path) -> None:
    assert run("train", "scenes", *SETTINGS, "--out", "a", "--quiet").status == 0
    photos = draw_folder(tmp_path / "photos")
    assert run("embed", "a", photos, "-o", "whole.npz", "--quiet").status == 0
    (tmp_path / "a/model.safetensors").unlink()
    answer = run("embed", "a", photos, "-o", "part.npz")
    assert answer.status == 0 and "6 steps" in answer.err
    assert np.array_equal(np.load("part.npz")["z"], np.load("whole.npz")["z"])
